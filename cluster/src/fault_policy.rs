//! What an administrator says of the faults of GPUs (FaultPolicy), read strictly, entry by entry.
//!
//! The webhook reads it when it is written, and refuses what is wrong; the driver reads it again, since it may have been written while the
//! webhook was down, or by a later version: it leaves out what it does not understand, and says so. Both call this.

use std::collections::BTreeMap;

use muster_api::{FaultPolicySpec, FaultRepeat, FaultRule};

use crate::text::{listed, quoted};

/// Name of the one object.
pub const NAME: &str = "cluster";
/// Classes that close what they reach.
pub const FAULTS: [&str; 6] = ["Contained", "Link", "Unknown", "Reset", "Reboot", "Retire"];
/// Classes that close nothing.
pub const ANOMALIES: [&str; 2] = ["Info", "App"];
/// What an XID says that says nothing by itself.
pub const COMPANION: &str = "Companion";
/// Signals that are no XIDs.
pub const SIGNALS: [&str; 13] = [
    "ContainedPoison",
    "CorrectedEcc",
    "DoubleBitEcc",
    "FatalPoison",
    "LinkErrors",
    "LinksDown",
    "NarrowBus",
    "RowRemapFailure",
    "RowRemapPending",
    "RowRetired",
    "Throttled",
    "Unavailable",
    "UncorrectedEcc",
];
/// XIDs of which the kernel's log says more.
const DETAILED: std::ops::RangeInclusive<i64> = 144..=150;
/// Largest XID: that of the driver is a number of 32 bits, those that there are have three digits.
const MOST_XID: i64 = 65_535;

/// What an entry is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum About {
    /// An XID.
    Xid {
        /// The code.
        code: u32,
        /// Only what the kernel's log calls fatal, or only what it calls not.
        is_fatal: Option<bool>,
        /// Only this sub-code.
        sub_code: Option<u32>,
    },
    /// Another signal; one of [`SIGNALS`].
    Signal(String),
}

/// An entry that is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it is about.
    pub about: About,
    /// One of [`FAULTS`], [`ANOMALIES`], or, for an XID, [`COMPANION`].
    pub class: String,
    /// Whether it is about the slice alone in which it was seen (true) or about all of the GPU; `None`: as is usual for the class.
    pub is_of_slice: Option<bool>,
    /// What many of them mean.
    pub repeat: Option<Repeat>,
}

/// So many within so long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeat {
    /// How many.
    pub count: u32,
    /// Within how many seconds.
    pub within_seconds: u32,
    /// One of [`FAULTS`].
    pub class: String,
    /// What follows within so many seconds is the same occurrence.
    pub burst_seconds: u32,
}

/// An entry that is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidEntry {
    /// Path of the field.
    pub field: String,
    /// What is wrong with it, and what would work.
    pub why: String,
}

/// What is understood, and what is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadPolicy {
    /// The entries, in their order; of those about the same the first.
    pub entries: Vec<Entry>,
    /// All that is wrong with the others.
    pub invalid: Vec<InvalidEntry>,
}

/// Reads it all.
pub fn read(spec: &FaultPolicySpec) -> ReadPolicy {
    let mut read = ReadPolicy::default();
    let mut known: BTreeMap<About, usize> = BTreeMap::new();
    for (index, rule) in spec.rules.iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        if index >= FaultPolicySpec::MOST_RULES {
            read.invalid.push(InvalidEntry {
                field: path,
                why: format!(
                    "there are at most {} rules; this and those after it are left out",
                    FaultPolicySpec::MOST_RULES
                ),
            });
            break;
        }
        let entry = match entry(rule, &path) {
            Ok(entry) => entry,
            Err(invalid) => {
                read.invalid.push(invalid);
                continue;
            }
        };
        if let Some(first) = known.get(&entry.about) {
            read.invalid.push(InvalidEntry {
                field: path,
                why: format!("is about the same as spec.rules[{first}], which counts"),
            });
            continue;
        }
        known.insert(entry.about.clone(), index);
        read.entries.push(entry);
    }
    read
}

fn entry(rule: &FaultRule, path: &str) -> Result<Entry, InvalidEntry> {
    let about = about(rule, path)?;
    let mut classes: Vec<&str> = [&ANOMALIES[..], &FAULTS[..]].concat();
    if matches!(about, About::Xid { .. }) {
        classes.push(COMPANION);
    }
    Ok(Entry {
        about,
        class: word(&rule.class, &classes, path, "class")?,
        is_of_slice: match &rule.scope {
            None => None,
            Some(scope) => Some(word(scope, &["Gpu", "Slice"], path, "scope")? == "Slice"),
        },
        repeat: match &rule.repeat {
            None => None,
            Some(again) => Some(repeat(again, &format!("{path}.repeat"))?),
        },
    })
}

fn about(rule: &FaultRule, path: &str) -> Result<About, InvalidEntry> {
    match (rule.xid, &rule.signal) {
        (Some(code), None) => about_xid(rule, code, path),
        (None, Some(signal)) => about_signal(rule, signal, path),
        (Some(_), Some(_)) | (None, None) => Err(InvalidEntry {
            field: path.to_owned(),
            why: "must have either xid or signal".to_owned(),
        }),
    }
}

fn about_signal(rule: &FaultRule, signal: &str, path: &str) -> Result<About, InvalidEntry> {
    let only_of_xids = [
        ("severity", rule.severity.is_some()),
        ("subCode", rule.sub_code.is_some()),
    ];
    if let Some((name, _)) = only_of_xids.into_iter().find(|(_, is_there)| *is_there) {
        return Err(InvalidEntry {
            field: format!("{path}.{name}"),
            why: "goes with an xid only".to_owned(),
        });
    }
    word(signal, &SIGNALS, path, "signal").map(About::Signal)
}

fn about_xid(rule: &FaultRule, xid: i64, path: &str) -> Result<About, InvalidEntry> {
    let code = number(xid, 1, MOST_XID, path, "xid")?;
    let has_details = rule.severity.is_some() || rule.sub_code.is_some();
    if has_details && !DETAILED.contains(&xid) {
        return Err(InvalidEntry {
            field: format!("{path}.xid"),
            why: format!(
                "{xid}: severity and subCode go with XIDs {} to {} only, of which the kernel's log tells them",
                DETAILED.start(),
                DETAILED.end()
            ),
        });
    }
    Ok(About::Xid {
        code,
        is_fatal: match &rule.severity {
            None => None,
            Some(severity) => {
                Some(word(severity, &["Fatal", "Nonfatal"], path, "severity")? == "Fatal")
            }
        },
        sub_code: match rule.sub_code {
            None => None,
            Some(sub_code) => Some(number(sub_code, 0, 63, path, "subCode")?),
        },
    })
}

fn repeat(repeat: &FaultRepeat, path: &str) -> Result<Repeat, InvalidEntry> {
    let burst = repeat
        .burst_seconds
        .unwrap_or(FaultRepeat::DEFAULT_BURST_SECONDS);
    Ok(Repeat {
        count: number(repeat.count, 2, 20, path, "count")?,
        within_seconds: number(repeat.within_seconds, 60, 2_592_000, path, "withinSeconds")?,
        class: word(&repeat.class, &FAULTS, path, "class")?,
        burst_seconds: number(burst, 10, 3_600, path, "burstSeconds")?,
    })
}

fn word(value: &str, known: &[&str], path: &str, name: &str) -> Result<String, InvalidEntry> {
    if known.contains(&value) {
        return Ok(value.to_owned());
    }
    Err(InvalidEntry {
        field: format!("{path}.{name}"),
        why: format!(
            "there is no {}; there are: {}",
            quoted(value),
            listed(known.iter().copied())
        ),
    })
}

fn number(value: i64, least: i64, most: i64, path: &str, name: &str) -> Result<u32, InvalidEntry> {
    let is_within = (least..=most).contains(&value);
    let read = u32::try_from(value).ok().filter(|_| is_within);
    read.ok_or_else(|| InvalidEntry {
        field: format!("{path}.{name}"),
        why: format!("{value}: must be from {least} to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use muster_engine::recovery::FaultClass;
    use serde_json::{Value, json};

    use super::*;

    /// The engine decides by the classes that drivers give, and drivers by those that are said here: a class that one of them lacks would be
    /// told as unknown.
    #[test]
    fn the_classes_are_those_that_the_engine_knows_from_the_mildest_to_the_worst() {
        let said = [&ANOMALIES[..], &FAULTS[..]].concat();
        let known = FaultClass::ALL.map(FaultClass::as_str);
        assert_eq!(said, known);
    }

    fn spec(rules: &Value) -> FaultPolicySpec {
        serde_json::from_value(json!({ "rules": rules })).unwrap()
    }

    /// What is wrong with the only rule.
    fn wrong(rule: &Value) -> String {
        let read = read(&spec(&json!([rule])));
        assert!(read.entries.is_empty(), "{rule}");
        assert_eq!(read.invalid.len(), 1, "{rule}");
        read.invalid[0].to_string()
    }

    #[test]
    fn what_is_said_is_read_whole() {
        let read = read(&spec(&json!([
            {"xid": 109, "class": "App"},
            {"xid": 149, "severity": "Fatal", "subCode": 63, "class": "Reset", "scope": "Gpu"},
            {"signal": "Throttled", "class": "Info", "repeat": {"count": 20, "withinSeconds": 86400, "class": "Unknown"}},
            {"xid": 31, "class": "Companion", "scope": "Slice",
             "repeat": {"count": 2, "withinSeconds": 60, "class": "Reset", "burstSeconds": 10}},
        ])));
        assert!(read.invalid.is_empty(), "{read:?}");
        let [app, detailed, throttled, companion] = &read.entries[..] else {
            panic!("{read:?}");
        };
        assert_eq!(app.class, "App");
        assert_eq!(
            detailed.about,
            About::Xid {
                code: 149,
                is_fatal: Some(true),
                sub_code: Some(63)
            }
        );
        assert_eq!(detailed.is_of_slice, Some(false));
        assert_eq!(throttled.about, About::Signal("Throttled".to_owned()));
        assert_eq!(throttled.repeat.as_ref().unwrap().burst_seconds, 180);
        assert_eq!(companion.is_of_slice, Some(true));
        assert_eq!(companion.repeat.as_ref().unwrap().count, 2);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field_and_what_would_work() {
        let repeat = |repeat: Value| json!({"xid": 48, "class": "Reset", "repeat": repeat});
        for (rule, expected) in [
            (json!({"class": "App"}), "spec.rules[0]: must have either"),
            (
                json!({"xid": 1, "signal": "Throttled", "class": "App"}),
                "must have either xid or signal",
            ),
            (
                json!({"xid": 1, "class": "Harmless"}),
                "spec.rules[0].class",
            ),
            (json!({"xid": 0, "class": "App"}), "from 1 to 65535"),
            (json!({"xid": -1, "class": "App"}), "from 1 to 65535"),
            (json!({"xid": i64::MAX, "class": "App"}), "from 1 to 65535"),
            (json!({"signal": "Heat", "class": "App"}), "RowRemapFailure"),
            (
                json!({"signal": "Throttled", "class": "Companion"}),
                "spec.rules[0].class",
            ),
            (
                json!({"signal": "Throttled", "subCode": 1, "class": "App"}),
                "spec.rules[0].subCode: goes with an xid",
            ),
            (
                json!({"xid": 143, "severity": "Fatal", "class": "App"}),
                "144 to 150",
            ),
            (
                json!({"xid": 144, "severity": "Lethal", "class": "App"}),
                "spec.rules[0].severity",
            ),
            (
                json!({"xid": 144, "subCode": 64, "class": "App"}),
                "from 0 to 63",
            ),
            (
                json!({"xid": 48, "scope": "Node", "class": "App"}),
                "spec.rules[0].scope",
            ),
            (
                repeat(json!({"count": 1, "withinSeconds": 60, "class": "Retire"})),
                "spec.rules[0].repeat.count: 1: must be from 2 to 20",
            ),
            (
                repeat(json!({"count": 21, "withinSeconds": 60, "class": "Retire"})),
                "from 2 to 20",
            ),
            (
                repeat(json!({"count": 2, "withinSeconds": 59, "class": "Retire"})),
                "withinSeconds",
            ),
            (
                repeat(json!({"count": 2, "withinSeconds": 60, "class": "Info"})),
                "spec.rules[0].repeat.class",
            ),
            (
                repeat(
                    json!({"count": 2, "withinSeconds": 60, "class": "Reset", "burstSeconds": 9}),
                ),
                "from 10 to 3600",
            ),
        ] {
            let told = wrong(&rule);
            assert!(told.contains(expected), "{rule}: {told}");
        }
    }

    #[test]
    fn an_entry_that_is_wrong_costs_itself_only_and_of_two_the_first_counts() {
        let read = read(&spec(&json!([
            {"xid": 48, "class": "Sinking"},
            {"xid": 48, "class": "Retire"},
            {"xid": 48, "class": "Info"},
            {"xid": 149, "class": "Link"},
            {"xid": 149, "subCode": 1, "class": "Info"},
        ])));
        let classes: Vec<&str> = read.entries.iter().map(|it| it.class.as_str()).collect();
        assert_eq!(classes, ["Retire", "Link", "Info"]);
        let fields: Vec<&str> = read.invalid.iter().map(|it| it.field.as_str()).collect();
        assert_eq!(fields, ["spec.rules[0].class", "spec.rules[2]"]);
        assert!(read.invalid[1].why.contains("spec.rules[1]"));
    }

    #[test]
    fn so_many_are_read_and_no_more() {
        let rules: Vec<Value> = (1..=300)
            .map(|xid| json!({"xid": xid, "class": "Info"}))
            .collect();
        let read = read(&spec(&json!(rules)));
        assert_eq!(read.entries.len(), FaultPolicySpec::MOST_RULES);
        assert_eq!(read.invalid.len(), 1);
        assert_eq!(read.invalid[0].field, "spec.rules[256]");
    }
}
