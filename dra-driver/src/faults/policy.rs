//! What the faults of GPUs mean on this node: the table that ships, what the program was started with, and over both what the
//! administrator says (FaultPolicy).
//!
//! The API server is watched for it. What was seen last is kept in `fault-policy.json` beside the checkpoint: a driver that starts while the
//! API server is away goes by that, and by the table that ships where there never was one. A FaultPolicy that is deleted counts no more. It
//! counts for what is seen from then on; what is remembered keeps its class, since only a recovery makes anything milder (S7).
//!
//! Who else writes the file: another instance of the driver during an update, which has seen the same object, or an earlier state of it that
//! its own watch corrects.

use std::sync::Arc;

use kube::{Api, Client, runtime::watcher};
use muster_api::{FaultPolicy, FaultPolicySpec};
use muster_cluster::fault_policy::{self, About, Entry, NAME};
use muster_device::faults::{
    Catalogue, Extent, FaultClass, Meaning, Repeat, Rule, RuleKey, Signal,
};
use muster_serve::{
    Condition, Shutdown,
    watch::{self, WatchEvent, WatchMetrics},
};
use tokio::sync::{mpsc, watch as value};

use crate::{
    prepare::DiskFailure,
    store::{self, Store},
};

/// File in the state directory.
const FILE: &str = "fault-policy.json";

/// What following needs.
#[expect(
    missing_debug_implementations,
    reason = "a Kubernetes client has none, and nobody prints this"
)]
pub struct Follower {
    /// What holds without a FaultPolicy.
    pub base: Catalogue,
    /// Where it is remembered.
    pub store: Store,
    /// The API server.
    pub client: Client,
    /// What is counted of watches.
    pub metrics: WatchMetrics,
    /// Holds once the watch has told its first list. Nobody waits for it.
    pub synced: Condition,
}

impl Follower {
    /// Starts to follow, until shutdown. What is received is what means what, from now on. Blocking, for a moment.
    pub fn spawn(self, shutdown: &Shutdown) -> value::Receiver<Arc<Catalogue>> {
        let remembered = load(&self.store);
        let first = catalogue(&self.base, &remembered);
        let (sender, receiver) = value::channel(Arc::new(first));
        let (events, seen) = mpsc::channel(16);
        let api: Api<watch::Decoded<FaultPolicy>> = Api::all(self.client);
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let watching = watch::run(api, config, self.metrics, self.synced, events, |seen| seen);
        shutdown.spawn_until_stopped("watch of the FaultPolicy", watching);
        let (base, store) = (self.base, self.store);
        let following = follow(base, store, remembered, sender, seen);
        shutdown.spawn_until_stopped("what is seen of the FaultPolicy", following);
        receiver
    }
}

async fn follow(
    base: Catalogue,
    store: Store,
    mut kept: FaultPolicySpec,
    catalogues: value::Sender<Arc<Catalogue>>,
    mut seen: mpsc::Receiver<WatchEvent<FaultPolicy>>,
) {
    // What counts, which is not on the disk where that failed.
    let mut current = kept.clone();
    while let Some(event) = seen.recv().await {
        let spec = match event {
            WatchEvent::Applied(object) => object.spec,
            WatchEvent::Deleted(_) => FaultPolicySpec::default(),
            WatchEvent::Listed(objects) => objects
                .into_iter()
                .next()
                .map(|object| object.spec)
                .unwrap_or_default(),
        };
        if spec != current {
            tracing::info!(rules = spec.rules.len(), "the FaultPolicy has changed");
            catalogues.send_replace(Arc::new(catalogue(&base, &spec)));
            current.clone_from(&spec);
        }
        if spec == kept {
            continue;
        }
        let (place, content) = (store.clone(), spec.clone());
        let written = tokio::task::spawn_blocking(move || keep(&place, &content)).await;
        match written {
            Ok(Ok(())) => kept = spec,
            // It holds all the same, and is written with the next event: the watch lists it anew now and then.
            Ok(Err(failure)) => tracing::warn!(%failure, "the FaultPolicy is not kept"),
            Err(broken) => tracing::error!(%broken, "the FaultPolicy is not kept"),
        }
    }
}

/// What was seen last, as far as that can be read. Blocking.
pub(crate) fn load(store: &Store) -> FaultPolicySpec {
    let load = || -> Result<Option<FaultPolicySpec>, DiskFailure> {
        let _lock = store
            .lock()
            .map_err(|error| DiskFailure::new(error.to_string()))?;
        store::load_beside(store, FILE)
    };
    load()
        .inspect_err(|failure| tracing::warn!(%failure, "the last FaultPolicy cannot be read"))
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// Keeps what was seen last. Blocking; twice does no harm.
pub(crate) fn keep(store: &Store, spec: &FaultPolicySpec) -> Result<(), DiskFailure> {
    let _lock = store
        .lock()
        .map_err(|error| DiskFailure::new(error.to_string()))?;
    store::put_beside(store, FILE, spec)
}

/// The table with what the administrator says. What of it is not understood is left out, and told.
fn catalogue(base: &Catalogue, spec: &FaultPolicySpec) -> Catalogue {
    let read = fault_policy::read(spec);
    for invalid in &read.invalid {
        tracing::error!(
            field = invalid.field,
            why = invalid.why,
            "a rule of the FaultPolicy is left out"
        );
    }
    let rules: Vec<(RuleKey, Rule)> = read
        .entries
        .iter()
        .filter_map(|entry| {
            let rule = rule(entry);
            if rule.is_none() {
                tracing::error!(?entry, "a rule of the FaultPolicy is left out");
            }
            rule
        })
        .collect();
    base.clone().with_rules(&rules)
}

/// The rule of an entry; `None`: it has a word that this program does not know, which a test rules out.
fn rule(entry: &Entry) -> Option<(RuleKey, Rule)> {
    let key = match &entry.about {
        About::Xid {
            code,
            is_fatal,
            sub_code,
        } => RuleKey::Xid {
            code: *code,
            is_fatal: *is_fatal,
            sub_code: *sub_code,
        },
        About::Signal(name) => RuleKey::Signal(Signal::named(name)?),
    };
    let repeat = match &entry.repeat {
        None => None,
        Some(repeat) => Some(Repeat {
            count: repeat.count,
            within_seconds: repeat.within_seconds,
            class: FaultClass::named(&repeat.class)?,
            burst_seconds: repeat.burst_seconds,
        }),
    };
    let rule = Rule {
        meaning: Meaning::named(&entry.class)?,
        extent: entry.is_of_slice.map(|is_of_slice| {
            if is_of_slice {
                Extent::Slice
            } else {
                Extent::Gpu
            }
        }),
        repeat,
    };
    Some((key, rule))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use muster_device::cdi;
    use serde_json::{Value, json};

    use super::*;

    fn spec(rules: &Value) -> FaultPolicySpec {
        serde_json::from_value(json!({ "rules": rules })).unwrap()
    }

    fn store(directory: &tempfile::TempDir) -> Store {
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        Store::open(directory.path().join("state"), cdi).unwrap()
    }

    /// The readers of both sides know the same words.
    #[test]
    fn every_word_that_an_administrator_may_say_is_known_here() {
        let classes: BTreeSet<&str> = FaultClass::ALL.iter().map(|it| it.as_str()).collect();
        let faults = FaultClass::ALL.iter().filter(|class| class.is_fault());
        let faults: BTreeSet<&str> = faults.map(|class| class.as_str()).collect();
        assert_eq!(BTreeSet::from(fault_policy::FAULTS), faults);
        let all = [&fault_policy::FAULTS[..], &fault_policy::ANOMALIES[..]].concat();
        assert_eq!(BTreeSet::from_iter(all), classes);
        let signals: BTreeSet<&str> = Signal::ALL.iter().map(|it| it.as_str()).collect();
        assert_eq!(BTreeSet::from(fault_policy::SIGNALS), signals);
        assert_eq!(
            Meaning::named(fault_policy::COMPANION),
            Some(Meaning::Companion)
        );
        assert_eq!(
            i64::from(Repeat::DEFAULT_BURST_SECONDS),
            muster_api::FaultRepeat::DEFAULT_BURST_SECONDS
        );
    }

    #[test]
    fn what_is_wrong_is_left_out_and_the_rest_counts() {
        let rules = json!([
            {"xid": 109, "class": "App"},
            {"xid": 48, "class": "Sinking"},
            {"signal": "Throttled", "class": "Unknown", "scope": "Gpu"},
        ]);
        let shipped = Catalogue::shipped();
        let changed = catalogue(&shipped, &spec(&rules));
        assert_eq!(changed.meaning(109), Meaning::Class(FaultClass::App));
        assert_eq!(changed.meaning(48), shipped.meaning(48));
        let throttled = changed.signal(Signal::Throttled);
        assert_eq!(throttled.meaning, Meaning::Class(FaultClass::Unknown));
        assert_eq!(throttled.extent, Some(Extent::Gpu));
        assert_eq!(catalogue(&shipped, &FaultPolicySpec::default()), shipped);
    }

    #[test]
    fn what_was_seen_last_holds_while_the_api_server_is_away_and_what_is_deleted_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        assert_eq!(
            load(&store),
            FaultPolicySpec::default(),
            "there never was one"
        );
        let policy = spec(&json!([{"xid": 48, "class": "Retire", "repeat":
            {"count": 2, "withinSeconds": 60, "class": "Retire"}}]));
        keep(&store, &policy).unwrap();
        assert_eq!(load(&store), policy);
        keep(&store, &FaultPolicySpec::default()).unwrap();
        assert_eq!(load(&store), FaultPolicySpec::default());
    }

    #[tokio::test]
    async fn a_policy_that_is_seen_counts_at_once_and_its_end_does_too() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        let (sender, mut receiver) = value::channel(Arc::new(Catalogue::shipped()));
        let (events, seen) = mpsc::channel(16);
        let follower = tokio::spawn(follow(
            Catalogue::shipped(),
            store.clone(),
            FaultPolicySpec::default(),
            sender,
            seen,
        ));
        let policy = FaultPolicy::new(NAME, spec(&json!([{"xid": 48, "class": "Info"}])));
        events
            .send(WatchEvent::Listed(vec![policy.clone()]))
            .await
            .unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(
            receiver.borrow_and_update().meaning(48),
            Meaning::Class(FaultClass::Info)
        );
        events
            .send(WatchEvent::Deleted(Box::new(policy.metadata.clone())))
            .await
            .unwrap();
        receiver.changed().await.unwrap();
        assert_eq!(
            receiver.borrow_and_update().meaning(48),
            Meaning::Class(FaultClass::Reset)
        );
        drop(events);
        follower.await.unwrap();
        assert_eq!(load(&store), FaultPolicySpec::default());
    }

    #[tokio::test]
    async fn a_policy_that_could_not_be_kept_ends_when_what_is_on_the_disk_counts_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(&directory);
        // Nobody can lock a directory: nothing is written.
        std::fs::create_dir(directory.path().join("state/lock")).unwrap();
        let (sender, receiver) = value::channel(Arc::new(Catalogue::shipped()));
        let (events, seen) = mpsc::channel(16);
        let policy = FaultPolicy::new(NAME, spec(&json!([{"xid": 48, "class": "Info"}])));
        let end = Box::new(policy.metadata.clone());
        for event in [WatchEvent::Listed(vec![policy]), WatchEvent::Deleted(end)] {
            events.send(event).await.unwrap();
        }
        drop(events);
        let kept = FaultPolicySpec::default();
        follow(Catalogue::shipped(), store, kept, sender, seen).await;
        let shipped = Catalogue::shipped().meaning(48);
        assert_eq!(receiver.borrow().meaning(48), shipped);
    }
}
