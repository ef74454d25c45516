//! What XIDs mean. A table of data, `catalogue.json`: what ships is NVIDIA's catalogue as far as its texts decide; an administrator
//! may say otherwise, code by code.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::class::FaultClass;

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
    fn named(name: &str) -> Option<Self> {
        if name == COMPANION {
            return Some(Self::Companion);
        }
        FaultClass::named(name).map(Self::Class)
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
    /// A code has two classes.
    #[error("XID {0} is listed twice")]
    Twice(u32),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[expect(dead_code, reason = "for whoever reads the file")]
    sources: Vec<String>,
    xids: BTreeMap<String, Vec<u32>>,
}

/// What each XID means.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Catalogue {
    meanings: BTreeMap<u32, Meaning>,
}

impl Catalogue {
    /// The table that ships.
    pub fn shipped() -> Self {
        // A test reads it. Without it every code would be of the class Unknown, which is safe.
        Self::parse(SHIPPED).unwrap_or_default()
    }

    fn parse(text: &str) -> Result<Self, CatalogueError> {
        let file: File = serde_json::from_str(text)
            .map_err(|error| CatalogueError::Unreadable(error.to_string()))?;
        let mut meanings = BTreeMap::new();
        for (name, codes) in file.xids {
            for code in codes {
                let meaning = Meaning::named(&name).ok_or_else(|| CatalogueError::NoClass {
                    code,
                    name: name.clone(),
                })?;
                if meanings.insert(code, meaning).is_some() {
                    return Err(CatalogueError::Twice(code));
                }
            }
        }
        Ok(Self { meanings })
    }

    /// This table, but for what `overrides` says: a JSON object of codes and classes, `{"109": "App"}`.
    pub fn with_overrides(mut self, overrides: &str) -> Result<Self, CatalogueError> {
        let overrides: BTreeMap<u32, String> = serde_json::from_str(overrides)
            .map_err(|error| CatalogueError::Unreadable(error.to_string()))?;
        for (code, name) in overrides {
            let meaning = Meaning::named(&name).ok_or(CatalogueError::NoClass { code, name })?;
            self.meanings.insert(code, meaning);
        }
        Ok(self)
    }

    /// What a code means. One that is not listed is unknown, which is a class.
    pub fn meaning(&self, code: u32) -> Meaning {
        let listed = self.meanings.get(&code).copied();
        listed.unwrap_or(Meaning::Class(FaultClass::Unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::{
        FaultClass::{App, Contained, Info, Link, Reboot, Reset, Retire, Unknown},
        *,
    };

    #[test]
    fn what_ships_is_whole_and_says_what_it_is_to_say() {
        let catalogue = Catalogue::parse(SHIPPED).unwrap();
        assert_eq!(catalogue, Catalogue::shipped());
        assert_eq!(catalogue.meanings.len(), COUNT);
        for (code, class) in [
            (13, App),
            (31, App),
            (32, App),
            (43, Info),
            (46, Reset),
            (48, Reset),
            (54, Unknown),
            (63, Info),
            (64, Reset),
            (74, Link),
            (79, Reboot),
            (94, Contained),
            (95, Reset),
            (109, Reset),
            (145, Link),
            (151, Reboot),
            (167, Unknown),
            (171, Reset),
            (9_999, Unknown),
            (u32::MAX, Unknown),
        ] {
            assert_eq!(catalogue.meaning(code), Meaning::Class(class), "{code}");
        }
        assert_eq!(catalogue.meaning(45), Meaning::Companion);
        assert_eq!(catalogue.meaning(154), Meaning::Companion);
    }

    /// Codes that the shipped table lists.
    const COUNT: usize = 111;

    #[test]
    fn an_administrator_may_say_otherwise_code_by_code() {
        let shipped = Catalogue::shipped();
        let changed = shipped.clone();
        let changed =
            changed.with_overrides(r#"{"109": "App", "500": "Retire", "13": "Companion"}"#);
        let changed = changed.unwrap();
        assert_eq!(changed.meaning(109), Meaning::Class(App));
        assert_eq!(changed.meaning(500), Meaning::Class(Retire));
        assert_eq!(changed.meaning(13), Meaning::Companion);
        assert_eq!(changed.meaning(48), shipped.meaning(48));
    }

    #[test]
    fn a_table_that_is_wrong_is_refused_with_what_is_wrong() {
        let shipped = Catalogue::shipped();
        let refused = |text: &str| {
            shipped
                .clone()
                .with_overrides(text)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(r#"{"109": "Harmless"}"#).contains("XID 109"));
        assert!(refused(r#"{"one": "App"}"#).contains("cannot be read"));
        assert!(refused("").contains("cannot be read"));
        let twice = r#"{"sources": [], "xids": {"App": [1], "Info": [1]}}"#;
        assert_eq!(Catalogue::parse(twice), Err(CatalogueError::Twice(1)));
    }
}
