//! What is wrong with a device, and what that asks of whoever holds it.

use std::fmt;

/// How bad a fault is, from the mildest to the worst: what has to be done with the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultClass {
    /// Nothing: it is worth knowing.
    Info,
    /// Nothing of the hardware: an application ended by its own doing.
    App,
    /// Memory was lost, and whoever used it ended. The rest of the device goes on.
    Contained,
    /// NVLink: whoever needs it cannot go on.
    Link,
    /// Nobody knows: nothing new is placed there until a person has looked.
    Unknown,
    /// The device is of no use until it is reset.
    Reset,
    /// The device is of no use until the machine is started again.
    Reboot,
    /// The device is to be exchanged.
    Retire,
}

impl FaultClass {
    /// All of them, ascending.
    pub const ALL: [Self; 8] = [
        Self::Info,
        Self::App,
        Self::Contained,
        Self::Link,
        Self::Unknown,
        Self::Reset,
        Self::Reboot,
        Self::Retire,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "Info",
            Self::App => "App",
            Self::Contained => "Contained",
            Self::Link => "Link",
            Self::Unknown => "Unknown",
            Self::Reset => "Reset",
            Self::Reboot => "Reboot",
            Self::Retire => "Retire",
        }
    }

    /// The class of that name. One that a later version gives is one that nobody knows, which is a class.
    pub fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|class| class.as_str() == name)
            .unwrap_or(Self::Unknown)
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// In what way something is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// The device itself, or the part of it that a slice is.
    Device(FaultClass),
    /// Its NVLinks.
    Links(FaultClass),
    /// It is not listed any more.
    Gone,
}

impl FaultKind {
    /// How it is recorded: `Reset`, `Links/Link`, `Gone`.
    pub fn name(self) -> String {
        match self {
            Self::Device(class) => class.to_string(),
            Self::Links(class) => format!("Links/{class}"),
            Self::Gone => "Gone".to_owned(),
        }
    }

    /// What is recorded by that name.
    pub fn named(name: &str) -> Self {
        if name == "Gone" {
            return Self::Gone;
        }
        name.strip_prefix("Links/").map_or_else(
            || Self::Device(FaultClass::named(name)),
            |class| Self::Links(FaultClass::named(class)),
        )
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(class) => write!(formatter, "has a fault of class {class}"),
            Self::Links(class) => {
                write!(formatter, "has a fault of its NVLinks of class {class}")
            }
            Self::Gone => formatter.write_str("is not listed by NVML any more"),
        }
    }
}

/// A fault as it is published, by which it is told from every other one of that device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceFault {
    /// What is wrong.
    pub kind: FaultKind,
    /// Since when it is published so, in seconds since 1970 by the API server's clock. It is compared with itself alone.
    pub since_unix_seconds: i64,
}

/// What a fault asks of those who hold the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consequence {
    /// They are started anew, once it has been seen for so many seconds.
    RestartAfter(u64),
    /// They go on.
    GoOn,
}

/// For how long a device is to be missing, in seconds, until those who hold it are started anew. A driver that is started anew may
/// list its devices one by one.
pub const GONE_SECONDS: u64 = 30;

/// What a fault asks of those who hold the device. `needs_links`: whether they use its NVLinks.
///
/// Whoever was hit by what made a device one of Retire or Unknown has a fault of another class as well, or goes on.
pub fn consequence(kind: FaultKind, needs_links: bool) -> Consequence {
    match kind {
        FaultKind::Gone => Consequence::RestartAfter(GONE_SECONDS),
        FaultKind::Links(class) if needs_links && class >= FaultClass::Contained => {
            Consequence::RestartAfter(0)
        }
        FaultKind::Device(FaultClass::Contained | FaultClass::Reset | FaultClass::Reboot) => {
            Consequence::RestartAfter(0)
        }
        FaultKind::Links(_)
        | FaultKind::Device(
            FaultClass::Info
            | FaultClass::App
            | FaultClass::Link
            | FaultClass::Unknown
            | FaultClass::Retire,
        ) => Consequence::GoOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_costs_what_its_row_says() {
        use FaultClass::{App, Contained, Info, Link, Reboot, Reset, Retire, Unknown};
        let at_once = Consequence::RestartAfter(0);
        for (class, expected) in [
            (Info, Consequence::GoOn),
            (App, Consequence::GoOn),
            (Contained, at_once),
            (Link, Consequence::GoOn),
            (Unknown, Consequence::GoOn),
            (Reset, at_once),
            (Reboot, at_once),
            (Retire, Consequence::GoOn),
        ] {
            for needs_links in [false, true] {
                let found = consequence(FaultKind::Device(class), needs_links);
                assert_eq!(found, expected, "{class}");
            }
        }
        for class in FaultClass::ALL {
            let spared = consequence(FaultKind::Links(class), false);
            assert_eq!(spared, Consequence::GoOn, "{class}: it needs no links");
            let hit = consequence(FaultKind::Links(class), true);
            let expected = if class >= Contained {
                at_once
            } else {
                Consequence::GoOn
            };
            assert_eq!(hit, expected, "{class}");
        }
        let gone = Consequence::RestartAfter(GONE_SECONDS);
        assert_eq!(consequence(FaultKind::Gone, false), gone);
    }

    #[test]
    fn classes_ascend_and_an_unknown_name_is_a_class() {
        assert!(FaultClass::ALL.is_sorted());
        for class in FaultClass::ALL {
            assert_eq!(FaultClass::named(class.as_str()), class);
        }
        assert_eq!(FaultClass::named("Sinking"), FaultClass::Unknown);
        let kinds = FaultClass::ALL
            .into_iter()
            .flat_map(|class| [FaultKind::Device(class), FaultKind::Links(class)]);
        for kind in kinds.chain([FaultKind::Gone]) {
            assert_eq!(FaultKind::named(&kind.name()), kind);
        }
    }
}
