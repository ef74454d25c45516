//! Looks for records that the kubelet has forgotten ([`crate::prepare::Orphan`] says which those are), and for slices that nothing
//! tells of ([`crate::leftover_slices`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_serve::Shutdown;

use crate::{
    driver::Handle,
    kubernetes::Kubernetes,
    leftover_slices::LeftoverSlices,
    prepare::{Input, Orphan, Read, Record},
    store::Store,
};

/// Between two looks. Far longer than the kubelet takes for an Unprepare it knows of (10 to 15 s, or 60).
const LOOK_EVERY: Duration = Duration::from_mins(5);

/// Starts to look, until shutdown.
pub fn spawn(
    store: Store,
    kubernetes: Kubernetes,
    slices: LeftoverSlices,
    driver: Handle,
    shutdown: &Shutdown,
) {
    let search = run(store, kubernetes, slices, driver);
    shutdown.spawn_until_stopped("search for orphaned claims", search);
}

async fn run(store: Store, kubernetes: Kubernetes, slices: LeftoverSlices, driver: Handle) {
    let mut seen_before = BTreeSet::new();
    let mut left_before = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let seen = look(&store, &kubernetes).await;
        let orphans: Vec<Orphan> = seen.intersection(&seen_before).cloned().collect();
        if !orphans.is_empty() {
            tracing::warn!(?orphans, "claims that no pod may use here are given back");
            driver.tell(Input::Orphaned(orphans));
        }
        seen_before = seen;
        let left = slices.look().await;
        slices
            .remove(left.intersection(&left_before).cloned().collect())
            .await;
        left_before = left;
    }
}

/// The orphans of this moment. What cannot be found out is none.
async fn look(store: &Store, kubernetes: &Kubernetes) -> BTreeSet<Orphan> {
    let store = store.clone();
    let records = tokio::task::spawn_blocking(move || recorded(&store)).await;
    let mut orphans = BTreeSet::new();
    for record in records.unwrap_or_default().into_values() {
        let read = kubernetes.claim_now(&record.claim).await;
        if let Read::Failed(error) = &read {
            tracing::warn!(claim = %record.claim, %error, "the claim cannot be looked up");
        }
        orphans.extend(Orphan::of(&record, kubernetes.node(), &read));
    }
    orphans
}

/// By UID of the claim: what is recorded, and what only a CDI file tells of.
fn recorded(store: &Store) -> BTreeMap<String, Record> {
    let mut records = BTreeMap::new();
    if let Ok(specs) = store.records_in_cdi() {
        let told = specs.into_values().flatten();
        records.extend(told.map(|record| (record.claim.uid.clone(), record)));
    }
    if let Ok(lock) = store.lock()
        && let Ok(disk) = store.load(&lock)
    {
        records.extend(disk.records);
    }
    records
}
