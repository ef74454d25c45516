//! When a rank that is not bound yet has lost the place that was planned for it.
//!
//! The one reader of the rule. Since when a node is not Ready is asked of the caller: the controller counts on its own
//! clock, the extender, which remembers nothing, goes by what the node says.

use std::fmt;

use k8s_openapi::api::core::v1::{Node, Taint, Toleration};

use crate::taints;

/// A node, as far as it decides about places that are planned on it.
#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    /// UID: a node that is made again under its name is another node.
    pub uid: &'a str,
    /// Whether an administrator keeps new pods off it.
    pub cordoned: bool,
    /// Its taints.
    pub taints: &'a [Taint],
}

impl<'a> From<&'a Node> for NodeFacts<'a> {
    fn from(node: &'a Node) -> Self {
        let spec = node.spec.as_ref();
        Self {
            uid: node.metadata.uid.as_deref().unwrap_or_default(),
            cordoned: taints::is_cordoned(node),
            taints: spec
                .and_then(|spec| spec.taints.as_deref())
                .unwrap_or_default(),
        }
    }
}

/// Why a rank has lost its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Its node does not exist any more, or another one has its name.
    Gone,
    /// Its node is cordoned.
    Cordoned,
    /// Its node has a taint that the pod does not tolerate.
    Tainted,
    /// Its node has not been Ready for too long.
    NotReady,
}

impl Lost {
    /// Whether the place cannot come back.
    pub fn is_for_good(self) -> bool {
        self == Self::Gone
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Gone => "gone",
            Self::Cordoned => "cordoned",
            Self::Tainted => "tainted",
            Self::NotReady => "not ready",
        })
    }
}

/// Whether a pod with these tolerations has lost its place on `node`, and why. `planned_uid` is the node's UID when the
/// plan was made, where the plan is known; `is_not_ready`, whether the node has not been Ready for too long.
pub fn lost(
    node: Option<NodeFacts<'_>>,
    planned_uid: Option<&str>,
    tolerations: &[Toleration],
    is_not_ready: impl FnOnce() -> bool,
) -> Option<Lost> {
    let Some(node) = node.filter(|node| planned_uid.is_none_or(|uid| uid == node.uid)) else {
        return Some(Lost::Gone);
    };
    if node.cordoned {
        return Some(Lost::Cordoned);
    }
    if taints::displacing(node.taints, tolerations).is_some() {
        return Some(Lost::Tainted);
    }
    is_not_ready().then_some(Lost::NotReady)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_lost_with_its_node_by_cordon_by_taint_and_by_silence() {
        let taint = |effect: &str| Taint {
            key: "k".to_owned(),
            effect: effect.to_owned(),
            ..Taint::default()
        };
        let (hard, soft) = ([taint("NoSchedule")], [taint("PreferNoSchedule")]);
        let node = |cordoned, taints| {
            let uid = "planned";
            Some(NodeFacts {
                uid,
                cordoned,
                taints,
            })
        };
        let none: &[Taint] = &[];
        for (node, planned, silent, expected) in [
            (node(false, none), Some("planned"), false, None),
            (node(false, none), None, false, None),
            (None, None, false, Some(Lost::Gone)),
            (node(false, none), Some("another"), false, Some(Lost::Gone)),
            (node(true, none), None, false, Some(Lost::Cordoned)),
            (node(false, &hard[..]), None, true, Some(Lost::Tainted)),
            (node(false, &soft[..]), None, false, None),
            (node(false, none), None, true, Some(Lost::NotReady)),
        ] {
            let found = lost(node, planned, &[], || silent);
            assert_eq!(found, expected, "{node:?}, planned {planned:?}");
        }
    }
}
