//! The controller's machine on a cluster in which everything succeeds at once, until it has nothing left to do.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use muster_api::NodeDevices;
use muster_cluster::{
    index,
    managed::ManagedPods,
    object::{Change, Kind, ObjectKey},
};
use muster_protocol::{ApiRequest, Config, Machine, Now, Outcome};

use super::{
    Error,
    bind::{Scheduler, is_to_bind},
    complete::acknowledge,
};
use crate::{
    api_server::{ApiServer, Place, Stored},
    controller_writes::apply,
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
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    }
}

struct Run<'a> {
    api: &'a mut ApiServer,
    machine: Machine,
    watches: BTreeMap<Kind, Place>,
    scheduler: Scheduler,
    /// Pods that kube-scheduler found when it started.
    found: Vec<ObjectKey>,
}

/// Runs the machine until nothing changes any more. Warns of pods that it let go and that could not be bound.
pub(super) fn settle(
    api: &mut ApiServer,
    begin: Timestamp,
    warnings: &mut Vec<String>,
) -> Result<(), Error> {
    let config = Config::new(index_config());
    let pods = api.list::<Pod>().filter(|pod| is_to_bind(pod));
    let found = pods
        .map(|pod| ObjectKey::of(Kind::Pod, &pod.metadata))
        .collect();
    let mut run = Run {
        api,
        machine: Machine::new(config),
        watches: BTreeMap::new(),
        scheduler: Scheduler::default(),
        found,
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
            warnings.extend(run.scheduler.warnings(run.api));
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
        let mut pods = std::mem::take(&mut self.found);
        for place in self.watches.values() {
            let mut place = *place;
            while let Some(event) = self.api.next_event(place) {
                place = place.after();
                if event.key.kind == Kind::ResourceClaim {
                    let claim = event.object.as_ref().and_then(ResourceClaim::of);
                    self.scheduler.note(&event.key, claim.map(AsRef::as_ref));
                }
                let Some(object) = &event.object else {
                    continue;
                };
                if NodeDevices::of(object).is_some() {
                    nodes.insert(event.key.name.clone());
                }
                if Pod::of(object).is_some_and(|pod| is_to_bind(pod)) {
                    pods.push(event.key.clone());
                }
            }
        }
        for node in nodes {
            acknowledge(self.api, &node);
        }
        self.scheduler.bind(self.api, pods);
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
