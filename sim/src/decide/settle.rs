//! The controller's machine on a cluster in which everything succeeds at once, until it has nothing left to do.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use muster_api::NodeDevices;
use muster_cluster::{
    index,
    managed::ManagedPods,
    object::{Change, Kind},
};
use muster_protocol::{ApiRequest, Config, Machine, Now, Outcome};

use super::{Error, complete::acknowledge};
use crate::{
    api_server::{ApiServer, Place, Precondition, Stored, is_bound},
    controller_writes::apply,
    owners::is_gated,
    scheduler::pinned_node,
};

/// Seconds without a write after which nothing more comes: longer than the machine waits before it writes a reason, and than a Team with a
/// long line rests before its Queues are written again.
const QUIET_SECONDS: u64 = 8;
/// Rounds after which a bug is reported. Each admits what one Ledger carries.
const MOST_ROUNDS: u64 = 1_000_000;

/// What the chart says about pods and namespaces by default.
pub(super) fn index_config() -> index::Config {
    let managed = ManagedPods::new(["nvidia.com/gpu", "nvidia.com/mig-*"]);
    index::Config {
        #[expect(
            clippy::expect_used,
            reason = "the names stand here, and a test makes the value"
        )]
        managed: managed.expect("resource names"),
        excluded_namespaces: ["kube-system", "muster-system"].map(str::to_owned).into(),
        excepted_device_classes: BTreeSet::new(),
        default_team: None,
    }
}

struct Run<'a> {
    api: &'a mut ApiServer,
    machine: Machine,
    watches: BTreeMap<Kind, Place>,
}

/// Runs the machine until nothing changes any more.
pub(super) fn settle(api: &mut ApiServer, begin: Timestamp) -> Result<(), Error> {
    let config = Config::new(index_config());
    let mut run = Run {
        api,
        machine: Machine::new(config),
        watches: BTreeMap::new(),
    };
    let mut seconds = 0;
    let mut quiet_since = 0;
    for _ in 0..MOST_ROUNDS {
        let elapsed = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
        let wall = begin.saturating_add(elapsed).unwrap_or(begin);
        run.api.set_time(wall);
        let moved = run.round(Now {
            monotonic_seconds: seconds,
            wall,
        });
        if let Some(reason) = run.machine.must_exit() {
            return Err(Error::Exit(reason.to_string()));
        }
        // A poll without a write is no rest yet: new rules, say, are told to a bounded number of nodes in each.
        let is_due = run.machine.next_due().is_some_and(|due| due <= seconds);
        if moved || is_due {
            quiet_since = seconds;
            continue;
        }
        if seconds >= quiet_since + QUIET_SECONDS {
            return Ok(());
        }
        seconds += 1;
    }
    Err(Error::Restless(MOST_ROUNDS))
}

impl Run<'_> {
    /// One poll, and all that comes of it. False if nothing did.
    fn round(&mut self, now: Now) -> bool {
        let effects = self.machine.poll(now);
        let asks = |machine: &Machine| {
            let due = machine.next_due();
            due.is_some_and(|due| due <= now.monotonic_seconds)
        };
        // What a poll leaves over, rules that are compared with some nodes at a time, say, is looked at again at once.
        let moved = !effects.is_empty() || asks(&self.machine);
        for effect in effects {
            let outcome = match &*effect.write {
                ApiRequest::ReadAll { kind } => {
                    self.list(*kind);
                    Outcome::Done(None)
                }
                write => apply(self.api, write),
            };
            self.machine.settle(effect.id, outcome);
        }
        self.react();
        self.tell();
        moved
    }

    fn list(&mut self, kind: Kind) {
        let objects = self.api.objects(kind).cloned().collect();
        self.watches.insert(kind, self.api.watch(kind));
        self.machine.observe(Change::Listed(kind, objects));
    }

    /// Drivers acknowledge what they are told, and kube-scheduler binds what was let go.
    fn react(&mut self) {
        let mut nodes = BTreeSet::new();
        let mut pods = Vec::new();
        for place in self.watches.values() {
            let mut place = *place;
            while let Some(event) = self.api.next_event(place) {
                place = place.after();
                let Some(object) = &event.object else {
                    continue;
                };
                if NodeDevices::of(object).is_some() {
                    nodes.insert(event.key.name.clone());
                }
                if let Some(pod) = Pod::of(object)
                    && let Some(node) = node_to_bind(pod)
                {
                    pods.push((event.key.clone(), node));
                }
            }
        }
        for node in nodes {
            acknowledge(self.api, &node);
        }
        for (key, node) in pods {
            let any = Precondition::default();
            let _ = self
                .api
                .update::<Pod>(&key.namespace, &key.name, any, |pod| {
                    if let Some(spec) = &mut pod.spec {
                        spec.node_name = Some(node);
                    }
                    let status = pod.status.get_or_insert_with(PodStatus::default);
                    status.phase = Some("Running".to_owned());
                });
        }
    }

    /// The watches tell all that changed.
    fn tell(&mut self) {
        for place in self.watches.values_mut() {
            while let Some(event) = self.api.next_event(*place) {
                *place = place.after();
                self.machine.observe(event.change());
            }
        }
    }
}

fn node_to_bind(pod: &Pod) -> Option<String> {
    let waits = !is_gated(pod) && !is_bound(pod) && pod.metadata.deletion_timestamp.is_none();
    waits.then(|| pinned_node(pod).map(str::to_owned)).flatten()
}
