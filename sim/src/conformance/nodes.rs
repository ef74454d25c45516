//! What nodes the Flavors of the cases have, and what pods say about nodes.
//!
//! Only what a Flavor's own labels say counts: nodes may have any others.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// What a pod says about nodes, as the names of Go's builders with their arguments.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Constraints(Vec<(String, Vec<Value>)>);

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Term {
    #[serde(default)]
    match_expressions: Vec<Requirement>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Requirement {
    key: String,
    operator: String,
    #[serde(default)]
    values: Vec<String>,
}

/// A Flavor that the cases presume: its labels, and a `NoSchedule` taint that pods have to tolerate.
struct Presumed {
    labels: &'static [(&'static str, &'static str)],
    taint: Option<(&'static str, &'static str)>,
}

fn presumed(flavor: &str) -> Option<Presumed> {
    let (labels, taint): (&[_], _) = match flavor {
        "default"
        | "on-demand"
        | "spot"
        | "model-a"
        | "taint_and_toleration"
        | "tas-a"
        | "tas-b" => (&[], None),
        "spot-tainted" => (&[], Some(("key", "val"))),
        "spot-tainted-2" => (&[], Some(("key", "val2"))),
        "one" => (&[("type", "one")], None),
        "two" => (&[("type", "two")], None),
        "b_one" => (&[("b_type", "one")], None),
        "b_two" => (&[("b_type", "two")], None),
        "label-x-a" => (&[("x", "a")], None),
        "label-xy-b" => (&[("x", "b"), ("y", "k")], None),
        "tainted" => (&[], Some(("instance", "spot"))),
        _ => return None,
    };
    Some(Presumed { labels, taint })
}

/// What says something about nodes, of all that Go's builders say of pods.
const ABOUT_NODES: [&str; 3] = [
    "NodeSelector",
    "Toleration",
    "RequiredDuringSchedulingIgnoredDuringExecution",
];

impl Constraints {
    /// Those of them that say something about nodes.
    pub(super) fn about_nodes(&self) -> Self {
        let about_nodes = self.0.iter();
        let about_nodes = about_nodes.filter(|(kind, _)| ABOUT_NODES.contains(&kind.as_str()));
        Self(about_nodes.cloned().collect())
    }

    /// Those of both.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Whether no node of a Flavor takes a pod, as far as it is known what they are like.
    pub(super) fn exclude(&self, flavor: &str) -> anyhow::Result<bool> {
        Ok(presumed(flavor).is_some() && !self.allow(flavor)?)
    }

    /// The limits of containers, by resource.
    pub(super) fn limits(&self) -> anyhow::Result<Vec<(String, String)>> {
        let limits = self.0.iter().filter(|(kind, _)| kind == "Limit");
        limits
            .map(|(_, arguments)| match arguments.as_slice() {
                [name, amount] => Ok((read(name)?, read(amount)?)),
                _ => anyhow::bail!("a limit has a resource and an amount"),
            })
            .collect()
    }

    /// Whether a pod may run on nodes of a Flavor.
    pub(super) fn allow(&self, flavor: &str) -> anyhow::Result<bool> {
        let Some(Presumed { labels, taint }) = presumed(flavor) else {
            return Ok(false);
        };
        let label = |key: &str| labels.iter().find(|(own, _)| *own == key);
        let mut tolerated = taint.is_none();
        for (kind, arguments) in &self.0 {
            for argument in arguments {
                let allows = match kind.as_str() {
                    "NodeSelector" => {
                        let wanted: BTreeMap<String, String> = read(argument)?;
                        let mut wanted = wanted.iter();
                        wanted.all(|(key, value)| label(key).is_none_or(|(_, own)| own == value))
                    }
                    "Toleration" => {
                        let toleration: Toleration = read(argument)?;
                        tolerated |= taint.is_some_and(|taint| toleration.tolerates(taint));
                        true
                    }
                    "RequiredDuringSchedulingIgnoredDuringExecution" => {
                        let terms: Vec<Term> = read(argument)?;
                        let mut terms = terms.iter();
                        terms.any(|term| {
                            let mut all = term.match_expressions.iter();
                            all.all(|one| label(&one.key).is_none_or(|(_, own)| one.allows(own)))
                        })
                    }
                    other => anyhow::bail!("the constraint {other:?} is not known"),
                };
                if !allows {
                    return Ok(false);
                }
            }
        }
        Ok(tolerated)
    }
}

impl Toleration {
    fn tolerates(&self, (key, value): (&str, &str)) -> bool {
        let exists = self.operator.ends_with("Exists");
        let key_matches = self.key == key || (self.key.is_empty() && exists);
        let effect_matches = self.effect.is_empty() || self.effect.ends_with("NoSchedule");
        key_matches && effect_matches && (exists || self.value == value)
    }
}

impl Requirement {
    fn allows(&self, own: &str) -> bool {
        let is_listed = self.values.iter().any(|value| value == own);
        match self.operator.trim_start_matches("NodeSelectorOp") {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => true,
            _ => false,
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(argument: &Value) -> anyhow::Result<T> {
    Ok(serde_path_to_error::deserialize(argument)?)
}
