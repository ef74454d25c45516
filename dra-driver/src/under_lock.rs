//! What is seen of the hardware when a claim is recorded, or given back: without the lock of the checkpoint ([`look`]); and what of that
//! counts under it ([`judge`]; why, `prepare::sight` says).
//!
//! **Nothing here asks NVML under the lock of the checkpoint.** A GPU that hangs, or that somebody is changing, answers late or never, and
//! all claims of the node would wait with the one that asks. That holds for what is given back, too: what is recorded is looked at whatever
//! is being changed, for nobody changes it for others, and such a look may take as long as the change.
//!
//! A claim is recorded only while nobody has the lock of a GPU of which it has a part, and none had it since the GPU was looked at. Whoever
//! brings a GPU to its layout, or removes a slice that nothing tells of, took that lock under the one of the checkpoint, when no record had any
//! part of the GPU, and has it until the change has ended ([`Store::try_lock_gpu_and_load`]). So the two are never at once, whoever comes
//! first; the claim waits, and looks again. Whoever makes or removes a slice for a claim has the same lock, and a claim that needs a part
//! beside it waits likewise.
//!
//! The lock of a GPU is shared by those who count its changes, for as long as that takes, and nobody waits for it here. Who would change a GPU
//! for no claim may find it counted at that moment, and comes again.

use crate::{
    prepare::{Disk, InUse, LiveSlices, Probe, Sight, Sights, Verified},
    probe::Prober,
    store::{Guard, Store},
};

/// What is known under the lock.
#[derive(Debug)]
pub(crate) struct Judged {
    /// Answers the probe, if there is one.
    pub(crate) in_use: Option<InUse>,
    /// The slices of each GPU that was looked at, but for those that were changed since.
    pub(crate) live: LiveSlices,
}

/// Looks at a GPU. The changes are counted before NVML is asked: one that begins meanwhile shows later. Blocking; bounded by the limit of the
/// NVML backend.
pub(crate) fn look(store: &Store, prober: &Prober, gpu: &str) -> Sight {
    prober.look_at(gpu, changes(store, gpu))
}

/// Judges by what was seen before. Blocking, for as long as it takes to read small files.
pub(crate) fn judge(
    store: &Store,
    _lock: &Guard,
    prober: &Prober,
    probe: Option<&Probe>,
    sights: &Sights,
    disk: &Disk,
) -> Judged {
    let verified = Verified::of(probe, sights, |gpu| changes(store, gpu));
    let in_use = probe.map(|probe| match verified.unknown {
        Some(cause) => InUse::Unknown(cause),
        None => prober.judge(probe, disk, &verified.sights),
    });
    Judged {
        in_use,
        live: verified.live,
    }
}

/// How many changes of a GPU have begun; or in words why that cannot be told, or does not count.
fn changes(store: &Store, gpu: &str) -> Result<u64, String> {
    match store.changes_of_gpu(gpu) {
        Ok(Some(changes)) => Ok(changes),
        Ok(None) => Err(format!("GPU {gpu} is being changed")),
        Err(error) => Err(format!("the lock of GPU {gpu}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        thread,
        time::{Duration, Instant},
    };

    use nvidia_ml_mock::{Hang, StateFile};

    use super::*;
    use crate::{
        mock_node::{MockNode, prepared},
        prepare::{Unit, Write},
    };

    /// Longest that a question is waited for: far longer than all that is done here but wait for NVML.
    const LIMIT: Duration = Duration::from_secs(3);

    struct Fixture {
        _directory: tempfile::TempDir,
        card: StateFile,
        store: Store,
        prober: Prober,
        /// UUIDs of eight H100.
        gpus: Vec<String>,
    }

    fn fixture() -> Fixture {
        let node = MockNode::with_call_limit(LIMIT);
        let gpus = node.gpus();
        assert_eq!(gpus.len(), 8);
        let path = node.directory.path().to_owned();
        Fixture {
            store: node.store,
            prober: Prober::new(node.backend, path),
            card: node.card,
            gpus,
            _directory: node.directory,
        }
    }

    impl Fixture {
        fn sights(&self, gpus: &[&str]) -> Sights {
            let look = |gpu: &&str| {
                let sight = look(&self.store, &self.prober, gpu);
                ((*gpu).to_owned(), Arc::new(sight))
            };
            gpus.iter().map(look).collect()
        }

        fn judge(&self, probe: Option<&Probe>, sights: &Sights) -> Judged {
            let lock = self.store.lock().unwrap();
            let disk = self.store.load(&lock).unwrap();
            judge(&self.store, &lock, &self.prober, probe, sights, &disk)
        }
    }

    fn units(gpu: &str) -> Probe {
        Probe::Units(vec![Unit::whole(gpu)])
    }

    #[test]
    fn no_claim_is_recorded_for_a_gpu_that_somebody_is_changing_and_its_neighbours_are_not_held_up()
    {
        let f = fixture();
        let (one, other) = (f.gpus[0].as_str(), f.gpus[1].as_str());
        let is_busy = |cause: &String| cause.contains("is being changed");
        let before = f.sights(&[one, other]);
        let held = f.store.lock_gpu(one).unwrap();
        let meanwhile = f.sights(&[one, other]);
        for sights in [&before, &meanwhile] {
            let judged = f.judge(Some(&units(one)), sights);
            let Some(InUse::Unknown(cause)) = &judged.in_use else {
                panic!("{judged:?}");
            };
            assert!(is_busy(cause), "{cause}");
            // For administrative access nothing is probed.
            let judged = f.judge(None, sights);
            assert!(judged.live[one].as_ref().is_err_and(is_busy), "{judged:?}");
            assert_eq!(judged.live[other], Ok(Vec::new()));
        }
        let neighbours = f.sights(&[other]);
        let judged = f.judge(Some(&units(other)), &neighbours);
        assert_eq!(judged.in_use, Some(InUse::No));
        drop(held);
        let after = f.sights(&[one]);
        let judged = f.judge(Some(&units(one)), &after);
        assert_eq!(judged.in_use, Some(InUse::No));
        assert_eq!(judged.live[one], Ok(Vec::new()));
        // What was seen before it, or meanwhile, does not count for that.
        let judged = f.judge(Some(&units(other)), &before);
        assert!(!judged.live.contains_key(one), "{judged:?}");
        let judged = f.judge(Some(&units(one)), &meanwhile);
        assert!(matches!(judged.in_use, Some(InUse::Unknown(_))));
    }

    #[test]
    fn whoever_holds_the_lock_of_the_checkpoint_waits_for_no_gpu_that_hangs() {
        let f = fixture();
        let gpu = f.gpus[0].as_str();
        let lock = f.store.lock().unwrap();
        let record = prepared(Unit::whole(gpu));
        f.store.apply(&lock, &Write::PutRecord(record)).unwrap();
        drop(lock);
        let sound = f.sights(&[gpu]);
        let hang = Hang {
            function: String::new(),
            gpu: gpu.to_owned(),
        };
        f.card.change(|state| state.hangs.push(hang)).unwrap();
        for probe in [units(gpu), Probe::Recorded("c".to_owned())] {
            let started = Instant::now();
            for sights in [&sound, &Sights::new()] {
                f.judge(Some(&probe), sights);
            }
            assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
            // What nobody has looked at counts as in use.
            let judged = f.judge(Some(&probe), &Sights::new());
            assert!(matches!(judged.in_use, Some(InUse::Unknown(_))));
        }
        // Another GPU is looked at meanwhile.
        thread::scope(|scope| {
            let hung = scope.spawn(|| f.sights(&[gpu]));
            let started = Instant::now();
            let other = f.gpus[1].as_str();
            let seen = f.sights(&[other]);
            assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
            let judged = f.judge(Some(&units(other)), &seen);
            assert_eq!(judged.in_use, Some(InUse::No));
            let hung = hung.join().unwrap();
            assert!(hung[gpu].processes.is_err() && hung[gpu].live.is_err());
            f.card.change(|state| state.hangs.clear()).unwrap();
        });
    }

    #[test]
    fn a_lock_that_cannot_be_asked_for_records_nothing() {
        let f = fixture();
        let odd = "../GPU";
        let sights = f.sights(&[odd]);
        let judged = f.judge(Some(&units(odd)), &sights);
        let Some(InUse::Unknown(cause)) = judged.in_use else {
            panic!("{judged:?}");
        };
        assert!(cause.contains("is no UUID of a GPU"), "{cause}");
    }
}
