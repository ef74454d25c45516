//! What the API server showed, and when: pods, taints of devices, evictions in the Ledger.
//!
//! Times are those at which a watch brought the news, on the clock of this process, which is that by which faults are injected. A watch that had to
//! list anew may have missed something in between: that is counted, and a run in which it happened has no result.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use futures::StreamExt;
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceSlice};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use muster_api::{IntentKind, Ledger, keys};
use serde::de::DeserializeOwned;
use tokio_util::task::AbortOnDropHandle;

/// Annotation with the index of a pod of an Indexed Job.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Watches until it is dropped.
#[derive(Debug)]
pub(super) struct Watched {
    seen: Arc<Mutex<Seen>>,
    _tasks: [AbortOnDropHandle<()>; 3],
}

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// By UID. They stay after they are gone.
    pub(super) pods: BTreeMap<String, SeenPod>,
    /// Since when devices have had the taint of a fault, by pool and name; not those that have none now.
    pub(super) tainted: BTreeMap<(String, String), Instant>,
    /// When the Ledger first named the eviction of an attempt of a gang, `namespace/name`.
    pub(super) evicted: BTreeMap<(String, i64), Instant>,
    /// How often a watch had to list anew.
    pub(super) gaps: u32,
}

/// A pod.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenPod {
    pub(super) name: String,
    /// `namespace/name` of its Gang, once it has one.
    pub(super) gang: Option<String>,
    /// `namespace/name` of whoever controls it.
    pub(super) owner: Option<String>,
    /// Its completion index.
    pub(super) index: Option<u32>,
    pub(super) node: Option<String>,
    /// Every attempt that it belonged to. What a gated pod is stamped with is not among them: the stamp is changed when an admission is taken back,
    /// and the pod belongs to whichever attempt lets it go.
    pub(super) attempts: BTreeSet<i64>,
    /// When it was first seen in phase Running.
    pub(super) running_since: Option<Instant>,
    /// When it was first seen in phase Succeeded or Failed.
    pub(super) ended_at: Option<Instant>,
    /// Whether it was told to go.
    pub(super) is_deleted: bool,
    /// When it was deleted for good.
    pub(super) gone_at: Option<Instant>,
}

impl Watched {
    pub(super) fn start(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let tasks = [
            watch(client, &seen, Seen::note_pod),
            watch(client, &seen, Seen::note_slice),
            watch(client, &seen, Seen::note_ledger),
        ];
        Self {
            seen,
            _tasks: tasks,
        }
    }

    /// Asks something of what was seen.
    pub(super) fn ask<T>(&self, question: impl FnOnce(&Seen) -> T) -> T {
        question(&lock(&self.seen))
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether something holds it before it may be scheduled.
fn is_gated(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let gates = spec.and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

/// Tells every object of a kind, and whether it is gone.
fn watch<K>(
    client: &Client,
    seen: &Arc<Mutex<Seen>>,
    note: fn(&mut Seen, &K, bool, Instant),
) -> AbortOnDropHandle<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let seen = Arc::clone(seen);
    let api: Api<K> = Api::all(client.clone());
    AbortOnDropHandle::new(tokio::spawn(async move {
        let events = watcher::watcher(api, watcher::Config::default());
        let mut events = events.default_backoff().boxed();
        let mut was_listed = false;
        while let Some(event) = events.next().await {
            let now = Instant::now();
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => {
                    note(&mut lock(&seen), &object, false, now);
                }
                Ok(Event::Delete(object)) => note(&mut lock(&seen), &object, true, now),
                Ok(Event::Init) if was_listed => lock(&seen).gaps += 1,
                Ok(Event::Init) => {}
                Ok(Event::InitDone) => was_listed = true,
                Err(error) => tracing::warn!(%error, kind = %K::kind(&()), "watch"),
            }
        }
    }))
}

impl Seen {
    fn note_pod(&mut self, pod: &Pod, is_gone: bool, now: Instant) {
        let Some(uid) = pod.uid() else { return };
        let namespace = pod.namespace().unwrap_or_default();
        let annotation = |key: &str| pod.annotations().get(key);
        let seen = self.pods.entry(uid).or_default();
        seen.name = pod.name_any();
        if let Some(gang) = annotation(keys::GANG_NAME) {
            seen.gang = Some(format!("{namespace}/{gang}"));
        }
        let owners = pod.owner_references().iter();
        let mut controllers = owners.filter(|owner| owner.controller == Some(true));
        if let Some(owner) = controllers.next() {
            seen.owner = Some(format!("{namespace}/{}", owner.name));
        }
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) {
            seen.node = Some(node.clone());
        }
        let index = annotation(COMPLETION_INDEX);
        seen.index = index.and_then(|index| index.parse().ok()).or(seen.index);
        let attempt = annotation(keys::ATTEMPT).filter(|_| !is_gated(pod));
        seen.attempts
            .extend(attempt.and_then(|attempt| attempt.parse::<i64>().ok()));
        seen.is_deleted |= pod.metadata.deletion_timestamp.is_some();
        let status = pod.status.as_ref();
        match status.and_then(|status| status.phase.as_deref()) {
            Some("Running") => {
                seen.running_since.get_or_insert(now);
            }
            Some("Succeeded" | "Failed") => {
                seen.ended_at.get_or_insert(now);
            }
            _ => {}
        }
        if is_gone {
            seen.gone_at.get_or_insert(now);
        }
    }

    /// A slice that is gone says nothing of its devices: they may stand in another one by then.
    fn note_slice(&mut self, slice: &ResourceSlice, is_gone: bool, now: Instant) {
        if is_gone || slice.spec.driver != keys::DRIVER {
            return;
        }
        for device in slice.spec.devices.iter().flatten() {
            let key = (slice.spec.pool.name.clone(), device.name.clone());
            let mut taints = device.taints.iter().flatten();
            if taints.any(|taint| taint.key == keys::TAINT_FAULT) {
                self.tainted.entry(key).or_insert(now);
            } else {
                self.tainted.remove(&key);
            }
        }
    }

    fn note_ledger(&mut self, ledger: &Ledger, _: bool, now: Instant) {
        for intent in &ledger.spec.intents {
            if intent.kind == IntentKind::Evict {
                let gang = format!("{}/{}", intent.namespace, intent.name);
                self.evicted.entry((gang, intent.attempt)).or_insert(now);
            }
        }
    }

    /// The gangs of the pods of a Job, `namespace/name`.
    pub(super) fn gangs_of_job(&self, job: &str) -> BTreeSet<String> {
        let pods = self.pods.values();
        pods.filter(|pod| pod.owner.as_deref() == Some(job))
            .filter_map(|pod| pod.gang.clone())
            .collect()
    }

    /// The pods of a gang, by UID.
    pub(super) fn of_gang<'a>(
        &'a self,
        gang: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a SeenPod)> {
        let pods = self.pods.iter();
        pods.filter(move |(_, pod)| pod.gang.as_deref() == Some(gang))
    }

    /// When the last of these pods was gone, once all are. One that ended by itself stays there, as its Job keeps it: it was gone when it ended.
    pub(super) fn gone_since(&self, uids: &BTreeSet<String>) -> Option<Instant> {
        let gone = uids.iter().map(|uid| {
            let pod = self.pods.get(uid)?;
            pod.gone_at
                .or_else(|| pod.ended_at.filter(|_| !pod.is_deleted))
        });
        let gone: Option<Vec<Instant>> = gone.collect();
        gone?.into_iter().max()
    }

    /// The first attempt after this one of which so many pods ran at one time, and since when.
    pub(super) fn whole_after(
        &self,
        gang: &str,
        attempt: i64,
        size: usize,
    ) -> Option<(i64, Instant)> {
        let mut by_attempt: BTreeMap<i64, Vec<(Instant, Option<Instant>)>> = BTreeMap::new();
        for (_, pod) in self.of_gang(gang) {
            let of = pod.attempts.last().filter(|of| **of > attempt);
            if let (Some(of), Some(from)) = (of, pod.running_since) {
                by_attempt.entry(*of).or_default().push((from, pod.end()));
            }
        }
        by_attempt.into_iter().find_map(|(of, runs)| {
            let running_at = |at: Instant| {
                let begun = runs.iter().filter(|(from, _)| *from <= at);
                begun
                    .filter(|(_, end)| end.is_none_or(|end| end > at))
                    .count()
            };
            let mut begun: Vec<Instant> = runs.iter().map(|(from, _)| *from).collect();
            begun.sort();
            let whole = begun.into_iter().find(|at| running_at(*at) >= size)?;
            Some((of, whole))
        })
    }

    /// The gangs with pods that run on a node.
    pub(super) fn gangs_on(&self, node: &str) -> BTreeSet<String> {
        let pods = self.pods.values();
        pods.filter(|pod| pod.runs() && pod.node.as_deref() == Some(node))
            .filter_map(|pod| pod.gang.clone())
            .collect()
    }
}

impl SeenPod {
    /// Whether it is said to run.
    pub(super) fn runs(&self) -> bool {
        self.running_since.is_some() && self.end().is_none()
    }

    /// When it ended or was gone, whatever came first.
    pub(super) fn end(&self) -> Option<Instant> {
        [self.ended_at, self.gone_at].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn slice(taint: Option<&str>) -> ResourceSlice {
        let taints = taint.map(|key| json!({"key": key, "value": "Reset", "effect": "NoSchedule"}));
        let taints: Vec<_> = taints.into_iter().collect();
        let slice = json!({
            "metadata": {"name": "slice"},
            "spec": {
                "driver": keys::DRIVER,
                "nodeName": "node-0",
                "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "gpu-0", "taints": taints}],
            },
        });
        serde_json::from_value(slice).unwrap()
    }

    #[test]
    fn a_device_is_tainted_since_that_was_first_seen_until_it_is_seen_without() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut seen = Seen::default();
        let (faulty, well) = (slice(Some(keys::TAINT_FAULT)), slice(None));
        let gone = slice(Some(keys::TAINT_GONE));
        for (slice, is_gone, when, expected) in [
            (&well, false, 0, None),
            (&faulty, false, 1, Some(1)),
            (&faulty, false, 2, Some(1)),
            // It may be published in another slice by then.
            (&faulty, true, 3, Some(1)),
            (&gone, false, 4, None),
            (&faulty, false, 5, Some(5)),
        ] {
            seen.note_slice(slice, is_gone, at(when));
            let device = ("node-0".to_owned(), "gpu-0".to_owned());
            let since = seen.tainted.get(&device).copied();
            assert_eq!(since, expected.map(at), "after {when} s");
        }
    }

    fn pod(attempt: Option<&str>, is_gated: bool) -> Pod {
        let mut annotations = json!({keys::GANG_NAME: "job-fault-1"});
        if let Some(attempt) = attempt {
            annotations[keys::ATTEMPT] = attempt.into();
        }
        let gates = json!([{"name": "gate"}]);
        let gates = if is_gated { gates } else { json!([]) };
        let pod = json!({
            "metadata": {"name": "rank-0", "namespace": "bench", "uid": "pod", "annotations": annotations},
            "spec": {"containers": [], "schedulingGates": gates},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_belongs_to_the_attempt_that_let_it_go_and_not_to_those_that_its_gate_was_stamped_with()
    {
        let mut seen = Seen::default();
        let now = Instant::now();
        for (attempt, is_gated, expected) in [
            (None, true, vec![]),
            (Some("2"), true, vec![]),
            (Some("3"), true, vec![]),
            (Some("3"), false, vec![3]),
            // What must never be is seen all the same.
            (Some("4"), false, vec![3, 4]),
        ] {
            seen.note_pod(&pod(attempt, is_gated), false, now);
            let attempts = seen.pods.get("pod").map(|pod| &pod.attempts);
            let expected: BTreeSet<i64> = expected.into_iter().collect();
            assert_eq!(attempts, Some(&expected), "{attempt:?}, {is_gated}");
        }
    }
}
