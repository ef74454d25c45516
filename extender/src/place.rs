//! When a rank that is not bound yet has lost the place that was planned for it.
//!
//! Everything is judged by what the API server shows (the Ready condition carries the time of its last
//! change), never by when this process saw it: so every replica says the same, also just after a start.

use k8s_openapi::{
    api::core::v1::{NodeCondition, Taint, Toleration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
pub use muster_cluster::place::Lost;
use muster_cluster::{
    place::{self, NodeFacts},
    taints,
};

/// How long a node may be not Ready before a planned rank has lost its place, in seconds.
pub const NOT_READY_GRACE_SECONDS: i64 = 30;

/// What is known about a node, as far as it decides about places.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// UID: a node created again under the same name is another node.
    pub uid: String,
    /// Whether it is cordoned.
    pub cordoned: bool,
    /// Taints that keep pods out, without Kubernetes' own: a cordon and readiness are judged apart.
    pub taints: Vec<Taint>,
    /// Since when it is not Ready; `None` while it is.
    pub not_ready_since: Option<Timestamp>,
}

impl NodeView {
    /// The view of a node.
    pub fn new(
        metadata: &ObjectMeta,
        cordoned: bool,
        mut taints: Vec<Taint>,
        conditions: &[NodeCondition],
    ) -> Self {
        taints.retain(taints::displaces);
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            cordoned,
            taints,
            not_ready_since: not_ready_since(metadata, conditions),
        }
    }
}

/// A node that never reported is as new as its object; one without a time has been so for ever.
fn not_ready_since(metadata: &ObjectMeta, conditions: &[NodeCondition]) -> Option<Timestamp> {
    let since = match conditions
        .iter()
        .find(|condition| condition.type_ == "Ready")
    {
        Some(condition) if condition.status == "True" => return None,
        Some(condition) => condition.last_transition_time.as_ref(),
        None => metadata.creation_timestamp.as_ref(),
    };
    Some(since.map_or(Timestamp::MIN, |time| time.0))
}

/// Whether a pod with these tolerations has lost its place on `node`, and why. `planned_uid` is the
/// node's UID when the plan was made, where the plan is known.
pub fn lost(
    node: Option<&NodeView>,
    planned_uid: Option<&str>,
    tolerations: &[Toleration],
    now: Timestamp,
) -> Option<Lost> {
    let facts = node.map(|node| NodeFacts {
        uid: &node.uid,
        cordoned: node.cordoned,
        taints: &node.taints,
    });
    place::lost(facts, planned_uid, tolerations, || {
        let since = node.and_then(|node| node.not_ready_since);
        since.is_some_and(|since| {
            now.as_second().saturating_sub(since.as_second()) >= NOT_READY_GRACE_SECONDS
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slim::SlimNode;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn view(node: Value) -> NodeView {
        serde_json::from_value::<SlimNode>(node).unwrap().view
    }

    fn ready() -> Value {
        json!([{"type": "Ready", "status": "True"}])
    }

    #[test]
    fn a_place_is_lost_with_its_node_by_cordon_by_taint_and_after_thirty_seconds() {
        let node = |spec: Value, conditions: Value| {
            view(
                json!({"metadata": {"name": "n", "uid": "node-uid"}, "spec": spec,
                "status": {"conditions": conditions}}),
            )
        };
        let silent = json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-01T00:01:40Z"}]);
        let good = node(json!({}), ready());
        assert_eq!(lost(Some(&good), Some("node-uid"), &[], at(0)), None);
        assert_eq!(lost(None, None, &[], at(0)), Some(Lost::Gone));
        assert_eq!(
            lost(Some(&good), Some("another-uid"), &[], at(0)),
            Some(Lost::Gone),
            "another node under the same name"
        );
        let cordoned = node(json!({"unschedulable": true}), ready());
        assert_eq!(
            lost(Some(&cordoned), None, &[], at(0)),
            Some(Lost::Cordoned)
        );
        let tainted = node(
            json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}),
            ready(),
        );
        assert_eq!(lost(Some(&tainted), None, &[], at(0)), Some(Lost::Tainted));
        let hinted = node(
            json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}),
            ready(),
        );
        assert_eq!(lost(Some(&hinted), None, &[], at(0)), None);
        let silent = node(json!({}), silent);
        assert_eq!(lost(Some(&silent), None, &[], at(129)), None);
        assert_eq!(
            lost(Some(&silent), None, &[], at(130)),
            Some(Lost::NotReady)
        );
    }
}
