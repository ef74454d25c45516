//! What XIDs and other signals mean. A table of data, `catalogue.json`: what ships is NVIDIA's catalogue as far as its texts decide; an
//! administrator may say otherwise, entry by entry.

mod file;

use std::collections::BTreeMap;

use super::{
    class::FaultClass,
    log_line::XidDetail,
    observation::Cause,
    signal::{Signal, Subject},
};

/// The table that ships.
const SHIPPED: &str = include_str!("catalogue.json");
/// How a code is called that says nothing by itself.
const COMPANION: &str = "Companion";

/// What an XID means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A fault of this class.
    Class(FaultClass),
    /// Nothing by itself: it comes with others, or the driver's recovery action says more.
    Companion,
}

impl Meaning {
    /// The meaning of this name: a class, or `Companion`.
    pub fn named(name: &str) -> Option<Self> {
        if name == COMPANION {
            return Some(Self::Companion);
        }
        FaultClass::named(name).map(Self::Class)
    }
}

/// How much of a GPU something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Gpu,
    /// The slice that it was seen in, where that is known.
    Slice,
}

/// So many occurrences within so long are a fault of a class of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// How many.
    pub count: u32,
    /// Within how many seconds.
    pub within_seconds: u32,
    /// Of which class that is.
    pub class: FaultClass,
    /// What follows within so many seconds is the same occurrence.
    pub burst_seconds: u32,
}

impl Repeat {
    /// The fewest occurrences that can be more than one, and the most that are remembered.
    pub const COUNTS: (u32, u32) = (2, 20);
    /// The shortest and the longest time within which they are counted: a minute, and thirty days.
    pub const WITHIN_SECONDS: (u32, u32) = (60, 2_592_000);
    /// How soon after the one before what follows is the same occurrence. Not shorter: NVML and the kernel's log tell of each XID, and are heard one after the other.
    pub const BURST_SECONDS: (u32, u32) = (10, 3_600);
    /// What is the same occurrence where nothing is said.
    pub const DEFAULT_BURST_SECONDS: u32 = 180;
}

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What each occurrence means.
    pub meaning: Meaning,
    /// How much of the GPU it is about; `None`: as is usual for the class.
    pub extent: Option<Extent>,
    /// What many of them mean.
    pub repeat: Option<Repeat>,
}

impl From<Meaning> for Rule {
    fn from(meaning: Meaning) -> Self {
        Self {
            meaning,
            extent: None,
            repeat: None,
        }
    }
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleKey {
    /// An XID.
    Xid {
        /// The code.
        code: u32,
        /// Only what the kernel's log calls fatal, or only what it calls not; `None`: both.
        is_fatal: Option<bool>,
        /// Only this sub-code.
        sub_code: Option<u32>,
    },
    /// Anything else.
    Signal(Signal),
}

impl RuleKey {
    /// An XID, whatever the log says beside it.
    pub fn xid(code: u32) -> Self {
        Self::Xid {
            code,
            is_fatal: None,
            sub_code: None,
        }
    }

    /// The code of a rule about all of an XID.
    fn whole_xid(self) -> Option<u32> {
        match self {
            Self::Xid {
                code,
                is_fatal: None,
                sub_code: None,
            } => Some(code),
            Self::Xid { .. } | Self::Signal(_) => None,
        }
    }

    fn is_detail_of(self, xid: u32) -> bool {
        self.whole_xid().is_none() && matches!(self, Self::Xid { code, .. } if code == xid)
    }
}

/// Why a table is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// It is no JSON of this shape.
    #[error("the table of XIDs cannot be read: {0}")]
    Unreadable(String),
    /// There is no such class.
    #[error(
        "XID {code}: there is no class {name:?}; there are Info, App, Contained, Link, Unknown, Reset, Reboot, Retire and Companion"
    )]
    NoClass {
        /// The code; the first of its class.
        code: u32,
        /// What the table says.
        name: String,
    },
    /// There is no such word.
    #[error("there is no class, signal or severity {0:?}")]
    NoWord(String),
    /// A code, or a signal, has two classes.
    #[error("{0} is listed twice")]
    Twice(String),
}

/// What each signal means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    rules: BTreeMap<RuleKey, Rule>,
}

impl Catalogue {
    /// The table that ships.
    pub fn shipped() -> Self {
        // A test reads it. Without it every code would be of the class Unknown, which is safe.
        Self::parse(SHIPPED).unwrap_or_default()
    }

    fn parse(text: &str) -> Result<Self, CatalogueError> {
        file::parse(text).map(|rules| Self { rules })
    }

    /// This table, but for what `overrides` says: a JSON object of codes and classes, `{"109": "App"}`.
    pub fn with_overrides(mut self, overrides: &str) -> Result<Self, CatalogueError> {
        let overrides: BTreeMap<u32, String> = serde_json::from_str(overrides)
            .map_err(|error| CatalogueError::Unreadable(error.to_string()))?;
        for (code, name) in overrides {
            let meaning = Meaning::named(&name).ok_or(CatalogueError::NoClass { code, name })?;
            self.forget_details(code);
            let rule = self.rules.entry(RuleKey::xid(code));
            rule.or_insert_with(|| meaning.into()).meaning = meaning;
        }
        Ok(self)
    }

    /// This table, but for these rules; of two about the same the first counts. A rule about all of an XID takes the place of what this
    /// table says of its details.
    #[must_use]
    pub fn with_rules(mut self, rules: &[(RuleKey, Rule)]) -> Self {
        for code in rules.iter().filter_map(|(key, _)| key.whole_xid()) {
            self.forget_details(code);
        }
        for (key, rule) in rules.iter().rev() {
            self.rules.insert(*key, *rule);
        }
        self
    }

    fn forget_details(&mut self, xid: u32) {
        self.rules.retain(|key, _| !key.is_detail_of(xid));
    }

    /// What a code means. One that is not listed is unknown, which is a class.
    pub fn meaning(&self, code: u32) -> Meaning {
        self.xid(code, None).meaning
    }

    /// What a code means, with what the kernel's log says beside it: the rule that says most about it.
    pub fn xid(&self, code: u32, detail: Option<XidDetail>) -> Rule {
        let is_fatal = detail.map(|detail| detail.is_fatal);
        let sub_code = detail.and_then(|detail| detail.sub_code);
        let keys = [
            (is_fatal, sub_code),
            (None, sub_code),
            (is_fatal, None),
            (None, None),
        ];
        let found = keys.into_iter().find_map(|(is_fatal, sub_code)| {
            let key = RuleKey::Xid {
                code,
                is_fatal,
                sub_code,
            };
            self.rules.get(&key).copied()
        });
        found.unwrap_or_else(|| Meaning::Class(FaultClass::Unknown).into())
    }

    /// Whether what a code means depends on what only the kernel's log says.
    pub fn has_details(&self, code: u32) -> bool {
        self.rules.keys().any(|key| key.is_detail_of(code))
    }

    /// What anything else means. One that is not listed is unknown.
    pub fn signal(&self, signal: Signal) -> Rule {
        let found = self.rules.get(&RuleKey::Signal(signal)).copied();
        found.unwrap_or_else(|| Meaning::Class(FaultClass::Unknown).into())
    }

    /// How bad anything else is.
    pub(super) fn class_of(&self, signal: Signal) -> FaultClass {
        match self.signal(signal).meaning {
            Meaning::Class(class) => class,
            Meaning::Companion => FaultClass::Info,
        }
    }

    /// What many occurrences of the same mean.
    pub fn repeat(&self, cause: Cause) -> Option<Repeat> {
        match cause.subject()? {
            Subject::Xid(code, detail) => self.xid(code, detail).repeat,
            Subject::Signal(signal) => self.signal(signal).repeat,
        }
    }
}

#[cfg(test)]
mod tests;
