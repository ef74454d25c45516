//! What is seen of the hardware when a claim is recorded, or given back: under the lock of the checkpoint.
//!
//! A claim is recorded only while nobody has the lock of a GPU of which it has a part. Whoever brings a GPU to its layout, or removes a slice
//! that nothing tells of, took that lock under the one of the checkpoint, when no record had any part of the GPU, and has it until the change
//! has ended ([`Store::try_lock_gpu_and_load`]). So the two are never at once, whoever comes first; the claim waits, and looks again. Nor is
//! hardware asked that somebody is changing: it answers only after that, or never, and all claims of the node would wait with this one.
//!
//! Whoever makes or removes a slice for a claim has the same lock, and a claim that needs a part beside it waits a second for it, as it would for
//! the answer of NVML.

use std::collections::BTreeSet;

use crate::{
    prepare::{Disk, InUse, LiveSlices, Probe, Unit},
    probe::Prober,
    store::{Guard, Store},
};

/// What was seen.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Answers the probe, if there is one.
    pub(crate) in_use: Option<InUse>,
    /// The slices of each GPU that was asked about.
    pub(crate) live: LiveSlices,
}

/// Looks who uses what the probe is about, and which slices these GPUs have. What is recorded already is looked at whatever is being changed:
/// nobody changes it for others. Blocking.
pub(crate) fn look(
    store: &Store,
    _lock: &Guard,
    prober: &Prober,
    probe: Option<&Probe>,
    gpus: &[String],
    disk: &Disk,
) -> Seen {
    let changed = match probe {
        Some(Probe::Recorded(_)) => None,
        Some(Probe::Units(units)) => being_changed(store, units, gpus),
        None => being_changed(store, &[], gpus),
    };
    match changed {
        None => Seen {
            in_use: probe.map(|probe| prober.look(probe, disk)),
            live: prober.live_of_all(gpus),
        },
        Some(cause) => Seen {
            in_use: probe.map(|_| InUse::Unknown(cause.clone())),
            live: gpus
                .iter()
                .map(|gpu| (gpu.clone(), Err(cause.clone())))
                .collect(),
        },
    }
}

/// The first of these GPUs whose lock somebody has, in words; or why that cannot be told.
fn being_changed(store: &Store, units: &[Unit], gpus: &[String]) -> Option<String> {
    let units = units.iter().map(|unit| &unit.gpu);
    let gpus: BTreeSet<&String> = units.chain(gpus).collect();
    gpus.into_iter()
        .find_map(|gpu| match store.try_lock_gpu(gpu) {
            Ok(Some(_free)) => None,
            Ok(None) => Some(format!("GPU {gpu} is being changed")),
            Err(error) => Some(format!("the lock of GPU {gpu}: {error}")),
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_device::{Backend, BackendConfig, LibrarySource, cdi};

    use super::*;

    #[test]
    fn no_claim_is_recorded_for_a_gpu_that_somebody_is_changing_and_its_neighbours_are_asked() {
        let directory = tempfile::tempdir().unwrap();
        let cdi = cdi::Directory::new(directory.path(), "gpu.muster.dev", directory.path());
        let store = Store::open(directory.path().join("state"), cdi).unwrap();
        // Nothing that is asked is answered: what is told is why.
        let library = LibrarySource::File("/nonexistent-muster/libnvidia-ml.so.1".into());
        let backend = Arc::new(Backend::new(BackendConfig::new(library)));
        let prober = Prober::new(backend, directory.path().to_owned());
        let lock = store.lock().unwrap();
        let disk = Disk::default();
        let look = |probe: Option<Probe>, gpus: &[&str]| {
            let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
            let seen = look(&store, &lock, &prober, probe.as_ref(), &gpus, &disk);
            let listed = seen.live.values().filter_map(|live| live.as_ref().err());
            let in_use = match &seen.in_use {
                Some(InUse::Unknown(cause)) => Some(cause),
                _ => None,
            };
            let mut told = listed.chain(in_use);
            told.any(|cause| cause.contains("is being changed"))
        };
        let units = |gpu: &str| Some(Probe::Units(vec![Unit::whole(gpu)]));
        let held = store.lock_gpu("GPU-1").unwrap();
        assert!(look(units("GPU-1"), &[]));
        assert!(look(units("GPU-1"), &["GPU-1"]));
        // For administrative access nothing is probed.
        assert!(look(None, &["GPU-1"]));
        assert!(!look(units("GPU-0"), &["GPU-0"]));
        let recorded = Some(Probe::Recorded("c".to_owned()));
        assert!(!look(recorded, &["GPU-1"]));
        drop(held);
        assert!(!look(units("GPU-1"), &["GPU-1"]));
    }
}
