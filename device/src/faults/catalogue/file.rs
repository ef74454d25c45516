//! The table that ships, as it stands in its file.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    super::{class::FaultClass, signal::Signal},
    CatalogueError, Meaning, Repeat, Rule, RuleKey,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[expect(dead_code, reason = "for whoever reads the file")]
    sources: Vec<String>,
    xids: BTreeMap<String, Vec<u32>>,
    #[serde(default)]
    details: Vec<Details>,
    #[serde(default)]
    signals: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    repeats: Vec<Repeats>,
}

/// What codes mean of which the log says this.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Details {
    xids: Vec<u32>,
    severity: String,
    class: String,
}

/// What many occurrences of these codes mean, each by itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Repeats {
    xids: Vec<u32>,
    count: u32,
    within_seconds: u32,
    class: String,
}

pub(super) fn parse(text: &str) -> Result<BTreeMap<RuleKey, Rule>, CatalogueError> {
    let file: File = serde_json::from_str(text)
        .map_err(|error| CatalogueError::Unreadable(error.to_string()))?;
    let mut rules: BTreeMap<RuleKey, Rule> = BTreeMap::new();
    for (name, codes) in file.xids {
        for code in codes {
            let meaning = Meaning::named(&name).ok_or_else(|| CatalogueError::NoClass {
                code,
                name: name.clone(),
            })?;
            if rules.insert(RuleKey::xid(code), meaning.into()).is_some() {
                return Err(CatalogueError::Twice(format!("XID {code}")));
            }
        }
    }
    for details in file.details {
        let is_fatal = match details.severity.as_str() {
            "Fatal" => true,
            "Nonfatal" => false,
            _ => return Err(CatalogueError::NoWord(details.severity)),
        };
        let meaning =
            Meaning::named(&details.class).ok_or(CatalogueError::NoWord(details.class))?;
        for code in details.xids {
            let key = RuleKey::Xid {
                code,
                is_fatal: Some(is_fatal),
                sub_code: None,
            };
            if rules.insert(key, meaning.into()).is_some() {
                return Err(CatalogueError::Twice(format!("XID {code}")));
            }
        }
    }
    for (name, signals) in file.signals {
        let class = FaultClass::named(&name).ok_or_else(|| CatalogueError::NoWord(name.clone()))?;
        for name in signals {
            let signal = Signal::named(&name).ok_or(CatalogueError::NoWord(name))?;
            let rule = Meaning::Class(class).into();
            if rules.insert(RuleKey::Signal(signal), rule).is_some() {
                return Err(CatalogueError::Twice(signal.as_str().to_owned()));
            }
        }
    }
    for repeats in file.repeats {
        let class =
            FaultClass::named(&repeats.class).ok_or(CatalogueError::NoWord(repeats.class))?;
        for code in repeats.xids {
            let rule = rules.get_mut(&RuleKey::xid(code));
            let rule = rule.ok_or_else(|| CatalogueError::NoWord(format!("XID {code}")))?;
            rule.repeat = Some(Repeat {
                count: repeats.count,
                within_seconds: repeats.within_seconds,
                class,
                burst_seconds: Repeat::DEFAULT_BURST_SECONDS,
            });
        }
    }
    Ok(rules)
}
