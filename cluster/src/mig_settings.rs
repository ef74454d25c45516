//! What an administrator says about MIG (the chart's `driver.mig`), and what of it holds for a node.
//!
//! The driver does by it, and `preflight` compares it with the nodes.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::text::listed;

/// How GPUs that can be cut are offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Mode {
    /// As they are: whole, and of those in MIG mode the slices that exist. No slice is made.
    #[default]
    Off,
    /// The same, and declared layouts are applied.
    Static,
    /// As every slice that can be made; it is made for the claim that gets it.
    Dynamic,
}

/// Whether the MIG mode of a GPU is switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Toggle {
    /// Never: it stays what the administrator made it.
    #[default]
    Never,
    /// While nothing uses the GPU; of Ampere never, which would have to be reset. With `Off` GPUs without slices are taken out of it.
    WhenIdle,
}

/// Slices of a GPU: how many of each profile.
pub type Cut = BTreeMap<String, u32>;

/// How the GPUs of a node are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutEntry {
    /// Names of the GPUs' devices (`gpu-0`); empty: all that no earlier entry names.
    #[serde(default)]
    pub gpus: Vec<String>,
    /// How many slices of each profile.
    pub slices: Cut,
}

/// What some nodes have otherwise than the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRule {
    /// Labels of the nodes, all of them.
    pub labels: BTreeMap<String, String>,
    /// Their mode; that of all nodes if absent.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// Whether their GPUs are switched; as on all nodes if absent.
    #[serde(default)]
    pub toggle: Option<Toggle>,
    /// Name of their layout; that of all nodes if absent, none if empty.
    #[serde(default)]
    pub layout: Option<String>,
}

/// What the administrator says about MIG.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// How GPUs are offered.
    pub mode: Mode,
    /// Whether their MIG mode is switched.
    pub toggle: Toggle,
    /// Name of the layout that is applied with `Static`; none, or empty: what exists stays.
    pub layout: Option<String>,
    /// Layouts by name.
    pub layouts: BTreeMap<String, Vec<LayoutEntry>>,
    /// What holds for some nodes: the first entry whose labels a node has.
    pub nodes: Vec<NodeRule>,
}

/// What holds for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How GPUs are offered.
    pub mode: Mode,
    /// Whether their MIG mode is switched.
    pub toggle: Toggle,
    /// The layout that is applied; `None`: what exists stays.
    pub layout: Option<Vec<LayoutEntry>>,
    /// Why less is done than the administrator says, if so.
    pub refused: Option<String>,
}

/// What NVIDIA's mig-manager is deployed by, per node.
const MANAGER_DEPLOYED: &str = "nvidia.com/gpu.deploy.mig-manager";
/// How far NVIDIA's mig-manager has come. It stays when mig-manager leaves.
const MANAGER_STATE: &str = "nvidia.com/mig.config.state";

impl Settings {
    /// Reads JSON, as the chart writes it. A misspelled field is refused.
    pub fn parse(text: &str) -> Result<Self, String> {
        let settings: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let named = settings
            .nodes
            .iter()
            .filter_map(|rule| rule.layout.as_ref());
        let named = named.chain(&settings.layout);
        for name in named.filter(|name| !name.is_empty()) {
            if !settings.layouts.contains_key(name) {
                let known: Vec<&str> = settings.layouts.keys().map(String::as_str).collect();
                return Err(format!(
                    "there is no layout {name} among layouts ({})",
                    listed(known)
                ));
            }
        }
        if let Some(position) = settings
            .nodes
            .iter()
            .position(|rule| rule.labels.is_empty())
        {
            return Err(format!(
                "nodes[{position}].labels is empty: for all nodes say mode, toggle and layout beside nodes"
            ));
        }
        Ok(settings)
    }

    /// What holds for a node with these labels.
    pub fn policy(&self, labels: &BTreeMap<String, String>) -> Policy {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let mut rules = self.nodes.iter();
        let rule = rules.find(|rule| rule.labels.iter().all(has));
        let mode = rule.and_then(|rule| rule.mode).unwrap_or(self.mode);
        let toggle = rule.and_then(|rule| rule.toggle).unwrap_or(self.toggle);
        let layout = rule
            .and_then(|rule| rule.layout.as_ref())
            .or(self.layout.as_ref())
            .filter(|name| mode == Mode::Static && !name.is_empty())
            .and_then(|name| self.layouts.get(name));
        let policy = Policy {
            mode,
            toggle,
            layout: layout.cloned(),
            refused: None,
        };
        match manager(labels) {
            Some(manager) if mode == Mode::Dynamic || layout.is_some() => Policy {
                mode: Mode::Static,
                toggle: Toggle::Never,
                layout: None,
                refused: Some(format!(
                    "NVIDIA's mig-manager cuts the GPUs of this node ({manager}), and two would undo each other's slices: what it makes \
                     is offered. To have Muster cut them, label the node {MANAGER_DEPLOYED}=false"
                )),
            },
            // It may be about to cut a GPU that has no slice yet.
            Some(_) => Policy {
                toggle: Toggle::Never,
                ..policy
            },
            None => policy,
        }
    }
}

/// By which label NVIDIA's mig-manager is seen to be active on a node. One that is paused comes back.
fn manager(labels: &BTreeMap<String, String>) -> Option<String> {
    let label = |key: &str| {
        let value = labels.get(key)?;
        Some(format!("label {key}={value}"))
    };
    match labels.get(MANAGER_DEPLOYED).map(String::as_str) {
        Some("false" | "") => None,
        Some(_) => label(MANAGER_DEPLOYED),
        None => label(MANAGER_STATE),
    }
}

impl Policy {
    /// How this GPU is to be cut; `None`: as it is.
    pub fn cut(&self, device: &str) -> Option<&Cut> {
        let mut entries = self.layout.iter().flatten();
        let entry = entries
            .find(|entry| entry.gpus.is_empty() || entry.gpus.iter().any(|gpu| gpu == device))?;
        Some(&entry.slices)
    }
}

/// Whether the MIG mode of a GPU with this CUDA compute capability is switched without a reset, which would end all that runs on it: from
/// Hopper on.
pub fn switches_without_reset(capability_major: u32) -> bool {
    capability_major >= 9
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn settings() -> Settings {
        let text = json!({
            "mode": "Off",
            "layouts": {
                "small": [{"slices": {"1g.10gb": 7}}],
                "mixed": [
                    {"gpus": ["gpu-0"], "slices": {"3g.40gb": 2}},
                    {"slices": {"2g.20gb": 3, "1g.10gb": 1}},
                ],
            },
            "nodes": [
                {"labels": {"pool": "notebooks"}, "mode": "Static", "layout": "mixed"},
                {"labels": {"pool": "dynamic"}, "mode": "Dynamic", "toggle": "WhenIdle"},
            ],
        });
        Settings::parse(&text.to_string()).unwrap()
    }

    #[test]
    fn a_node_has_what_the_first_entry_with_its_labels_says_and_else_what_holds_for_all() {
        let settings = settings();
        assert_eq!(settings.policy(&labels(&[])), Policy::default());
        let notebooks = settings.policy(&labels(&[("pool", "notebooks"), ("x", "y")]));
        assert_eq!(notebooks.mode, Mode::Static);
        assert_eq!(notebooks.cut("gpu-0").unwrap()["3g.40gb"], 2);
        assert_eq!(notebooks.cut("gpu-7").unwrap()["2g.20gb"], 3);
        let dynamic = settings.policy(&labels(&[("pool", "dynamic")]));
        assert_eq!(dynamic.mode, Mode::Dynamic);
        assert_eq!(dynamic.toggle, Toggle::WhenIdle);
        assert_eq!(dynamic.cut("gpu-0"), None);
    }

    #[test]
    fn beside_an_active_mig_manager_nothing_is_cut_and_it_is_said_why() {
        let settings = settings();
        for (manager, is_active) in [
            (vec![], false),
            (vec![(MANAGER_STATE, "success")], true),
            (vec![(MANAGER_DEPLOYED, "true")], true),
            (vec![(MANAGER_DEPLOYED, "paused-for-driver-upgrade")], true),
            (
                vec![(MANAGER_DEPLOYED, "false"), (MANAGER_STATE, "success")],
                false,
            ),
        ] {
            for pool in ["notebooks", "dynamic", "other"] {
                let mut pairs = manager.clone();
                pairs.push(("pool", pool));
                let policy = settings.policy(&labels(&pairs));
                let is_refused = is_active && pool != "other";
                assert_eq!(policy.refused.is_some(), is_refused, "{pairs:?}");
                if is_refused {
                    assert_eq!(policy.mode, Mode::Static, "{pairs:?}");
                    assert_eq!(policy.layout, None, "{pairs:?}");
                    assert!(policy.refused.unwrap().contains(pairs[0].0), "{pairs:?}");
                }
            }
        }
    }

    #[test]
    fn what_is_misspelled_names_no_layout_or_chooses_no_node_is_refused_by_name() {
        for (text, cause) in [
            (r#"{"modus": "Off"}"#, "modus"),
            (r#"{"mode": "dynamic"}"#, "dynamic"),
            (r#"{"layout": "none", "layouts": {"small": []}}"#, "small"),
            (r#"{"nodes": [{"labels": {}, "mode": "Off"}]}"#, "nodes[0]"),
            (
                r#"{"nodes": [{"labels": {"a": "b"}, "layout": "x"}]}"#,
                "layout x",
            ),
            (r#"{"layouts": {"a": [{"slices": {"1g": -1}}]}}"#, "-1"),
        ] {
            let error = Settings::parse(text).unwrap_err();
            assert!(error.contains(cause), "{text}: {error}");
        }
        assert_eq!(Settings::parse("{}").unwrap(), Settings::default());
        // As the chart writes what is not set.
        let text = r#"{"layout":"","layouts":{},"mode":"Static","nodes":[],"toggle":"Never"}"#;
        let policy = Settings::parse(text).unwrap().policy(&labels(&[]));
        assert_eq!((policy.mode, policy.layout), (Mode::Static, None));
    }
}
