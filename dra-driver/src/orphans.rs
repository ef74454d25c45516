//! Claims that the kubelet has forgotten.
//!
//! The kubelet unprepares what it prepared, also when the claim's object is gone, for ever. Only if it lost its own
//! checkpoint nobody asks any more. So a claim whose object has been gone for two looks in a row is given back like
//! one that is unprepared: if nothing uses it.

use std::{collections::BTreeSet, time::Duration};

use muster_serve::Shutdown;

use crate::{
    driver::Handle,
    kubernetes::Kubernetes,
    prepare::{ClaimRef, Input},
    store::Store,
};

/// Between two looks. Far longer than the kubelet takes for an Unprepare it knows of (10 to 15 s, or 60).
const LOOK_EVERY: Duration = Duration::from_mins(5);

/// Starts to look, until shutdown.
pub fn spawn(store: Store, kubernetes: Kubernetes, driver: Handle, shutdown: &Shutdown) {
    shutdown.spawn_until_stopped("search for orphaned claims", run(store, kubernetes, driver));
}

async fn run(store: Store, kubernetes: Kubernetes, driver: Handle) {
    let mut gone_before = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let gone = look(&store, &kubernetes).await;
        let orphans: Vec<ClaimRef> = gone.intersection(&gone_before).cloned().collect();
        if !orphans.is_empty() {
            tracing::warn!(?orphans, "claims without object or kubelet are given back");
            driver.tell(Input::Orphaned(orphans));
        }
        gone_before = gone;
    }
}

/// The recorded claims whose objects are gone. What cannot be found out is not gone.
async fn look(store: &Store, kubernetes: &Kubernetes) -> BTreeSet<ClaimRef> {
    let store = store.clone();
    let claims = tokio::task::spawn_blocking(move || recorded(&store)).await;
    let mut gone = BTreeSet::new();
    for claim in claims.unwrap_or_default() {
        match kubernetes.claim_is_gone(&claim).await {
            Ok(true) => {
                gone.insert(claim);
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%claim, %error, "the claim cannot be looked up"),
        }
    }
    gone
}

/// Claims with a record, and those with nothing but a CDI file.
fn recorded(store: &Store) -> BTreeSet<ClaimRef> {
    let mut claims = BTreeSet::new();
    if let Ok(lock) = store.lock()
        && let Ok(disk) = store.load(&lock)
    {
        claims.extend(disk.records.into_values().map(|record| record.claim));
    }
    if let Ok(specs) = store.records_in_cdi() {
        claims.extend(specs.into_values().flatten().map(|record| record.claim));
    }
    claims
}
