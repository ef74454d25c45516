//! Gangs that are evicted since a node is lost (S18), and what proves that one is, by what the API server says alone.
//!
//! **Silence** is no proof: what runs there may live. So it has to last for minutes, and where so many are silent at once that it must be the API server or the
//! network nobody is evicted for it, however long it lasts.
//!
//! **Proof** is that somebody said that the machine is off, or that Node and pod are gone.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use muster_api::{Gang, Intent};

use super::{Violation, holdings::Holdings};
use crate::{
    api_server::{ApiServer, has_ended},
    clock::Margin,
    scenario::{Product, Scenario},
};

/// For how long a node has to be silent until gangs there are evicted, in seconds: less than the controller waits, whose clock counts whole ones.
const SILENT_SECONDS: i64 = 230;
/// From so many nodes of a kind on that are silent at once it is an outage, if they are more than one part in so many of them.
const OUTAGE_NODES: usize = 3;
const OUTAGE_SHARE: usize = 10;
/// For how long they are until every leader has seen it, in seconds.
const SEEN_SECONDS: i64 = 120;
/// For how long at the most until they are rather machines that nobody takes out of the cluster, in seconds: less than an hour by any clock.
const LONG_SECONDS: i64 = 3_000;

/// Taint of a node that somebody says is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// How a node is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It is not Ready.
    Silent,
    /// Nor is it, and somebody said that it is off.
    Off,
    /// There is none of that name.
    Gone,
}

/// From when to when a node was down.
#[derive(Clone, Copy, Debug)]
struct Down {
    since: Timestamp,
    until: Option<Timestamp>,
    how: How,
}

impl Down {
    /// Whether it was so at that time, or later.
    fn is_after(&self, time: Timestamp) -> bool {
        self.until.is_none_or(|until| until >= time)
    }

    /// Whether it was lost, by any time after that one.
    fn is_lost_after(&self, time: Timestamp, now: Timestamp, margin: Margin) -> bool {
        let until = self.until.unwrap_or(now);
        let lasts = self.since + margin.at_least(SILENT_SECONDS) <= until;
        self.is_after(time) && (self.how != How::Silent || lasts)
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    down: BTreeMap<String, Vec<Down>>,
    /// What GPUs nodes have.
    products: BTreeMap<String, Product>,
}

impl Losses {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let nodes = scenario.nodes.iter();
        Self {
            products: nodes.map(|it| (it.name.clone(), it.product)).collect(),
            ..Self::default()
        }
    }

    /// Whether a node is Ready, or off.
    pub(super) fn note_node(&mut self, node: &Node, now: Timestamp) {
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        let is_ready = conditions
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let taints = node.spec.iter().flat_map(|spec| &spec.taints);
        let is_off = taints.flatten().any(|taint| taint.key == OUT_OF_SERVICE);
        let how = if is_off { How::Off } else { How::Silent };
        let name = node.metadata.name.clone().unwrap_or_default();
        self.note(name, (!is_ready).then_some(how), now);
    }

    /// A node is no more.
    pub(super) fn note_no_node(&mut self, name: &str, now: Timestamp) {
        self.note(name.to_owned(), Some(How::Gone), now);
    }

    fn note(&mut self, name: String, how: Option<How>, now: Timestamp) {
        let known = self.down.entry(name).or_default();
        let last = known.last_mut().filter(|last| last.until.is_none());
        let stands = last.as_ref().map(|last| last.how);
        if stands == how {
            return;
        }
        if let Some(last) = last {
            last.until = Some(now);
        }
        known.extend(how.map(|how| Down {
            since: now,
            until: None,
            how,
        }));
    }

    /// S18: nothing is evicted for a node that was never lost, or in an outage. Returns the nodes that are evacuated without proof; `None`: it is proved that one
    /// is lost, or nobody knows.
    pub(super) fn check(
        &self,
        api: &ApiServer,
        holdings: &Holdings,
        intent: &Intent,
        margin: Margin,
    ) -> Result<Option<BTreeSet<String>>, Violation> {
        let Some(since) = given_since(api, holdings, intent) else {
            return Ok(None);
        };
        let now = api.time();
        let is_lost = |node: &&String| {
            let mut down = self.down.get(*node).into_iter().flatten();
            down.any(|down| down.is_lost_after(since, now, margin))
        };
        let lost: BTreeSet<String> = intent.nodes.iter().filter(is_lost).cloned().collect();
        let name = &intent.name;
        if lost.is_empty() {
            let what = format!(
                "{name} is evicted since a node is lost, and of {:?} none was since {since}",
                intent.nodes
            );
            return Err(Violation::new("S18", what));
        }
        if self.is_proved(api, holdings, intent) {
            return Ok(None);
        }
        if lost.iter().all(|node| self.is_silent_in_outage(node, now)) {
            let what = format!(
                "{name} is evicted since {lost:?} are silent, and so are so many that it is an outage"
            );
            return Err(Violation::new("S18", what));
        }
        Ok(Some(lost))
    }

    /// Whether it was proved that the attempt lost a node since it was given anything there; or nobody knows, as its Gang carries it no more.
    pub(super) fn is_proved(&self, api: &ApiServer, holdings: &Holdings, intent: &Intent) -> bool {
        let Some(since) = given_since(api, holdings, intent) else {
            return true;
        };
        let gang = api.get::<Gang>(&intent.namespace, &intent.name);
        let status = gang.and_then(|gang| gang.status.as_ref());
        let Some(status) = status.filter(|status| status.attempt == intent.attempt) else {
            return true;
        };
        let (Some(admission), Some(placement)) = (&status.admission, &status.placement) else {
            return true;
        };
        let was = |node: &str, how: How| {
            let mut down = self.down.get(node).into_iter().flatten();
            down.any(|down| down.how == how && down.is_after(since))
        };
        let mut pods = admission.pods.iter().enumerate();
        pods.any(|(rank, pod)| {
            placement.node_of(rank).is_some_and(|run| {
                let is_gone = was(&run.node, How::Gone) && is_over(api, &pod.uid);
                is_gone || was(&run.node, How::Off)
            })
        })
    }

    /// Whether the node is silent, and so many others of its kind are for so long that every leader takes it for an outage.
    fn is_silent_in_outage(&self, node: &str, now: Timestamp) -> bool {
        let silent_since = |name: &str| {
            let last = self.down.get(name)?.last()?;
            let is_silent = last.how == How::Silent && last.until.is_none();
            is_silent.then_some(last.since)
        };
        let seen = now - SignedDuration::from_secs(SEEN_SECONDS);
        let long = now - SignedDuration::from_secs(LONG_SECONDS);
        let product = self.products.get(node);
        let of_kind = self.products.iter().filter(|(_, it)| Some(*it) == product);
        let of_kind: Vec<&str> = of_kind.map(|(name, _)| name.as_str()).collect();
        let is_sign = |name: &&&str| {
            let since = silent_since(name);
            since.is_some_and(|since| long < since && since <= seen)
        };
        let silent = of_kind.iter().filter(is_sign).count();
        let is_outage = silent >= OUTAGE_NODES && silent * OUTAGE_SHARE > of_kind.len();
        is_outage && silent_since(node).is_some()
    }
}

/// Since when the attempt has anything; `None`: its pods were given nothing yet, or nobody knows.
fn given_since(api: &ApiServer, holdings: &Holdings, intent: &Intent) -> Option<Timestamp> {
    let given = holdings.of_attempt(api, intent)?.into_iter();
    given.map(|(since, _)| *since).min()
}

/// Whether the pod is gone, or has ended.
fn is_over(api: &ApiServer, uid: &str) -> bool {
    let mut pods = api.list::<Pod>();
    let pod = pods.find(|pod| pod.metadata.uid.as_deref() == Some(uid));
    pod.is_none_or(has_ended)
}

#[cfg(test)]
mod tests;
