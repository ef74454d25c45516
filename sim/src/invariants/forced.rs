//! Pods that controllers delete by force, by what the API server showed when they did.
//!
//! * **forced** a pod is deleted by force only if it was told to end, its grace period and the limit after it were over, and its node was not
//!   Ready at any time since; if the node was never out of service or gone since then, only if its owner consents.
//!
//! A node that comes back between the look at it and the deletion is nobody's fault; so is one that did before the request arrived. That
//! nothing is released by it, S2 and S3 show.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use muster_api::keys;

use super::Violation;
use crate::{
    api_server::{ApiServer, node_of},
    controllers::FORCE_AFTER_SECONDS,
};

/// A leader counts in whole seconds: what it sees late in one began with it.
const SLACK: SignedDuration = SignedDuration::from_secs(1);

/// When a node was last as what lets its pods be deleted by force.
#[derive(Clone, Copy, Debug, Default)]
struct Unwell {
    is_not_ready: bool,
    is_fenced: bool,
    not_ready_at: Option<Timestamp>,
    fenced_at: Option<Timestamp>,
}

/// What was seen of nodes, and what is wrong about a pod that was deleted by force.
#[derive(Debug, Default)]
pub(super) struct Forced {
    nodes: BTreeMap<String, Unwell>,
    violation: Option<Violation>,
}

impl Forced {
    /// How the nodes are now, those included that have no Node at the moment.
    pub(super) fn look<'a>(&mut self, api: &ApiServer, nodes: impl Iterator<Item = &'a String>) {
        for name in nodes {
            self.see(api, name);
        }
    }

    fn see(&mut self, api: &ApiServer, name: &str) {
        let now = Some(api.time());
        let node = api.get::<Node>("", name);
        let (is_not_ready, is_fenced) = (
            !node.is_some_and(is_ready),
            node.is_none_or(is_out_of_service),
        );
        let unwell = self.nodes.entry(name.to_owned()).or_default();
        // Until now it was what it was when it was seen last.
        if is_not_ready || unwell.is_not_ready {
            unwell.not_ready_at = now;
        }
        if is_fenced || unwell.is_fenced {
            unwell.fenced_at = now;
        }
        unwell.is_not_ready = is_not_ready;
        unwell.is_fenced = is_fenced;
    }

    /// A controller has deleted that pod by force, which was like that before.
    pub(super) fn note(&mut self, api: &ApiServer, pod: &Pod) {
        if let Some(node) = node_of(pod) {
            self.see(api, node);
        }
        if let Some(what) = self.wrong_about(api, pod) {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let what = format!("pod {name} is deleted by force: {what}");
            self.violation = Some(Violation::new("forced", what));
        }
    }

    /// What was wrong, once.
    pub(super) fn check(&mut self) -> Result<(), Violation> {
        self.violation.take().map_or(Ok(()), Err)
    }

    fn wrong_about(&self, api: &ApiServer, pod: &Pod) -> Option<String> {
        let metadata = &pod.metadata;
        let Some(deleted) = metadata.deletion_timestamp.as_ref() else {
            return Some("nobody had told it to end".to_owned());
        };
        let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
        let after = i64::try_from(FORCE_AFTER_SECONDS).unwrap_or_default();
        let due = deleted.0 + SignedDuration::from_secs(grace + after) - SLACK;
        if api.time() < due {
            return Some(format!("it may take until {due}"));
        }
        let unwell = node_of(pod).and_then(|node| self.nodes.get(node));
        let unwell = unwell.copied().unwrap_or_default();
        let was = |at: Option<Timestamp>| at.is_some_and(|at| at >= due);
        if !was(unwell.not_ready_at) {
            return Some(format!("its node was Ready all the time: {unwell:?}"));
        }
        let annotations = metadata.annotations.as_ref();
        let consents = annotations.and_then(|it| it.get(keys::FORCE_DELETION));
        let consents = consents.is_some_and(|it| it == keys::FORCE_DELETION_CONSENTED);
        (!consents && !was(unwell.fenced_at))
            .then(|| "its owner does not consent, and its node was not fenced".to_owned())
    }
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
}

fn is_out_of_service(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    let mut taints = taints.into_iter().flatten();
    taints.any(|taint| taint.key == "node.kubernetes.io/out-of-service")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NODE: &str = "node-0";

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    fn node(ready: &str, taints: &Value) -> Node {
        let node = json!({
            "metadata": {"name": NODE}, "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
        serde_json::from_value(node).unwrap()
    }

    /// A pod that was told to end at second 0.
    fn pod(consent: &str) -> Pod {
        let pod = json!({
            "metadata": {
                "name": "p", "deletionTimestamp": time(0).to_string(), "deletionGracePeriodSeconds": 30,
                "annotations": {keys::FORCE_DELETION: consent},
            },
            "spec": {"nodeName": NODE, "containers": []},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn whoever_is_forced_too_early_or_on_a_node_that_is_well_or_without_consent_is_seen() {
        let out = json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoSchedule"}]);
        let none = json!([]);
        for (ready, taints, consent, second, is_right) in [
            ("Unknown", &none, "true", 40, true),
            ("Unknown", &none, "true", 38, false),
            ("Unknown", &none, "no", 40, false),
            ("Unknown", &out, "no", 40, true),
            ("True", &none, "true", 40, false),
        ] {
            let mut api = ApiServer::default();
            api.set_time(time(second));
            api.create(node(ready, taints)).unwrap();
            let mut forced = Forced::default();
            let names = [NODE.to_owned()];
            forced.look(&api, names.iter());
            forced.note(&api, &pod(consent));
            let case = format!("{ready} {taints} {consent} {second}");
            assert_eq!(forced.check().is_ok(), is_right, "{case}");
            assert_eq!(forced.check(), Ok(()), "it is told once");
        }
    }
}
