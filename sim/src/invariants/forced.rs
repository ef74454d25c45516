//! Pods that controllers delete by force, by what the API server showed when they did.
//!
//! * **forced** a pod is deleted by force only if it was told to end, its grace period and the limit after it were over, and at any time since its
//!   node was out of service, or gone and not Ready for a minute together, or, if its owner consents, not Ready for a minute.
//!
//! A node that comes back between the look at it and the deletion is nobody's fault; so is one that did before the request arrived. That
//! nothing is released by it, S2 and S3 show.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use muster_api::keys;

use super::Violation;
use crate::{
    api_server::{ApiServer, node_of},
    clock::Margin,
    controllers::FORCE_AFTER_SECONDS,
};

/// A leader counts in whole seconds: what it sees late in one began with it.
const SLACK_SECONDS: i64 = 1;

/// For how long a node has to be not Ready, or gone, where nobody says that it is off: as it ships, counted in whole seconds.
const LASTS_SECONDS: i64 = 59;

/// When a node was last as what lets its pods be deleted by force.
#[derive(Clone, Copy, Debug, Default)]
struct Unwell {
    /// Since when it is not Ready, or gone.
    since: Option<Timestamp>,
    is_gone: bool,
    is_off: bool,
    not_ready_at: Option<Timestamp>,
    /// When it was so for long.
    long_at: Option<Timestamp>,
    fenced_at: Option<Timestamp>,
}

/// What was seen of nodes, and what is wrong about a pod that was deleted by force.
#[derive(Debug, Default)]
pub(super) struct Forced {
    nodes: BTreeMap<String, Unwell>,
    pub(super) margin: Margin,
    violation: Option<Violation>,
    /// How often a pod was, by whose word.
    tally: BTreeMap<String, u64>,
}

impl Forced {
    /// How the nodes are now, those included that have no Node at the moment.
    pub(super) fn look<'a>(&mut self, api: &ApiServer, nodes: impl Iterator<Item = &'a String>) {
        for name in nodes {
            self.see(api, name);
        }
    }

    fn see(&mut self, api: &ApiServer, name: &str) {
        let now = api.time();
        let node = api.get::<Node>("", name);
        let (is_gone, is_off) = (node.is_none(), node.is_some_and(is_out_of_service));
        let is_not_ready = !node.is_some_and(is_ready);
        let lasts = self.margin.at_least(LASTS_SECONDS);
        let unwell = self.nodes.entry(name.to_owned()).or_default();
        // Until now it was what it was when it was seen last.
        let is_long = unwell.since.is_some_and(|since| since + lasts <= now);
        if is_not_ready || unwell.since.is_some() {
            unwell.not_ready_at = Some(now);
        }
        if is_long {
            unwell.long_at = Some(now);
        }
        if is_off || unwell.is_off || is_long && (is_gone || unwell.is_gone) {
            unwell.fenced_at = Some(now);
        }
        unwell.since = is_not_ready.then(|| unwell.since.unwrap_or(now));
        unwell.is_gone = is_gone;
        unwell.is_off = is_off;
    }

    /// A controller has deleted that pod by force, which was like that before.
    pub(super) fn note(&mut self, api: &ApiServer, pod: &Pod) {
        if let Some(node) = node_of(pod) {
            self.see(api, node);
        }
        match self.word_for(api, pod) {
            Ok(word) => *self.tally.entry(format!("forced {word}")).or_default() += 1,
            Err(what) => {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                let what = format!("pod {name} is deleted by force: {what}");
                self.violation = Some(Violation::new("forced", what));
            }
        }
    }

    /// How often a pod was deleted by force, by whose word.
    pub(super) fn tally(&self) -> &BTreeMap<String, u64> {
        &self.tally
    }

    /// What was wrong, once.
    pub(super) fn check(&mut self) -> Result<(), Violation> {
        self.violation.take().map_or(Ok(()), Err)
    }

    /// By whose word it may be, or what is wrong about it.
    fn word_for(&self, api: &ApiServer, pod: &Pod) -> Result<&'static str, String> {
        let metadata = &pod.metadata;
        let Some(deleted) = metadata.deletion_timestamp.as_ref() else {
            return Err("nobody had told it to end".to_owned());
        };
        let grace = metadata.deletion_grace_period_seconds.unwrap_or_default();
        let after = i64::try_from(FORCE_AFTER_SECONDS).unwrap_or_default();
        let due = deleted.0 + self.margin.at_least(grace + after - SLACK_SECONDS);
        if api.time() < due {
            return Err(format!("it may take until {due}"));
        }
        let unwell = node_of(pod).and_then(|node| self.nodes.get(node));
        let unwell = unwell.copied().unwrap_or_default();
        let was = |at: Option<Timestamp>| at.is_some_and(|at| at >= due);
        if !was(unwell.not_ready_at) {
            return Err(format!("its node was Ready all the time: {unwell:?}"));
        }
        if was(unwell.fenced_at) {
            return Ok("by a fence");
        }
        let annotations = metadata.annotations.as_ref();
        let consents = annotations.and_then(|it| it.get(keys::FORCE_DELETION));
        if consents.is_none_or(|it| it != keys::FORCE_DELETION_CONSENTED) {
            return Err(format!(
                "its owner does not consent, and its node was not fenced: {unwell:?}"
            ));
        }
        if !was(unwell.long_at) {
            return Err(format!("its node was not Ready for a moment: {unwell:?}"));
        }
        Ok("by consent")
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
    use crate::api_server::Precondition;

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
        let by_consent = Some("forced by consent");
        let by_fence = Some("forced by a fence");
        for (ready, taints, consent, since, second, told) in [
            (Some("Unknown"), &none, "true", -30, 40, by_consent),
            (Some("Unknown"), &none, "true", 0, 40, None),
            (Some("Unknown"), &none, "true", -30, 38, None),
            (Some("Unknown"), &none, "no", -30, 40, None),
            (Some("Unknown"), &out, "no", 0, 40, by_fence),
            (Some("True"), &none, "true", -30, 40, None),
            (None, &none, "no", -30, 40, by_fence),
            (None, &none, "no", 0, 40, None),
        ] {
            let mut api = ApiServer::default();
            api.set_time(time(since));
            if let Some(ready) = ready {
                api.create(node(ready, taints)).unwrap();
            }
            let mut forced = Forced::default();
            let names = [NODE.to_owned()];
            forced.look(&api, names.iter());
            api.set_time(time(second));
            forced.note(&api, &pod(consent));
            let case = format!("{ready:?} {taints} {consent} {since} {second}");
            assert_eq!(forced.check().is_ok(), told.is_some(), "{case}");
            assert_eq!(forced.check(), Ok(()), "it is told once");
            assert!(forced.tally().keys().eq(told), "{case}");
        }
    }

    #[test]
    fn a_node_that_was_ready_for_a_moment_is_not_ready_anew() {
        let mut api = ApiServer::default();
        let names = [NODE.to_owned()];
        let mut forced = Forced::default();
        api.set_time(time(-60));
        api.create(node("Unknown", &json!([]))).unwrap();
        forced.look(&api, names.iter());
        for (second, ready) in [(30, "True"), (31, "Unknown")] {
            api.set_time(time(second));
            let any = Precondition::default();
            api.update::<Node>("", NODE, any, |known| {
                known.status = node(ready, &json!([])).status;
            })
            .unwrap();
            forced.look(&api, names.iter());
        }
        api.set_time(time(89));
        forced.note(&api, &pod("true"));
        assert!(forced.check().is_err());
        api.set_time(time(90));
        forced.note(&api, &pod("true"));
        assert_eq!(forced.check(), Ok(()));
    }
}
