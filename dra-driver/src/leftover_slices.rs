//! Slices that this driver made and that nothing on disk tells of any more.
//!
//! That takes the loss of a record and of its CDI file. Without a CDI file no container starts with such a slice, and a Prepare refuses its
//! place, because nobody knows whose it is: it would be lost until a reboot. So it is removed if
//!
//! * its UUID is one that was made in this boot: an administrator's slice never is;
//! * or a declared layout made it in this boot, and the node is `Dynamic` by now: nothing else would ever remove it, and what overlaps it
//!   would be given to nobody;
//! * no record and no CDI file has any of its memory, and the records are not lost at the moment (then they are rebuilt first);
//! * no process uses it;
//!
//! in two looks, minutes apart, and once more under the lock of its GPU: while that is held nobody records an intent for the GPU, and
//! every intent that was recorded is seen ([`crate::store`]). A GPU that somebody is just changing is left to the next look.
//!
//! What else lies there that no claim of ours accounts for the inventory tells.

use std::collections::BTreeSet;

use muster_device::MigInstance;
use tokio::sync::watch;

use crate::{
    hardware::Hardware,
    inventory::{KnownGpu, KnownGpus},
    mig::{Mode, Policy},
    prepare::{Disk, InUse, LiveSlices, PlacedSlice, Record, Unit},
    probe::Prober,
    store::{Guard, Store},
};

/// What looking needs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LeftoverSlices {
    /// The checkpoint.
    pub store: Store,
    /// Which boot this is.
    pub boot_id: String,
    /// Which slices there are, and who uses them.
    pub prober: Prober,
    /// Who removes them.
    pub hardware: Hardware,
    /// The GPUs.
    pub gpus: watch::Receiver<Option<KnownGpus>>,
    /// What holds for this node.
    pub policy: watch::Receiver<Option<Policy>>,
}

impl LeftoverSlices {
    /// Those of this moment. What cannot be found out is none.
    pub(crate) async fn look(&self) -> BTreeSet<PlacedSlice> {
        let this = self.clone();
        let found = tokio::task::spawn_blocking(move || this.found()).await;
        found.unwrap_or_default()
    }

    /// Removes those that still are what they were taken for.
    pub(crate) async fn remove(&self, slices: BTreeSet<PlacedSlice>) {
        if slices.is_empty() {
            return;
        }
        let this = self.clone();
        let removed = tokio::task::spawn_blocking(move || {
            for slice in &slices {
                match this.remove_one(slice) {
                    Ok(()) => tracing::warn!(%slice, "a slice that nothing tells of is removed"),
                    Err(cause) => {
                        tracing::warn!(%slice, cause, "a slice that nothing tells of stays");
                    }
                }
            }
        });
        if let Err(panicked) = removed.await {
            tracing::error!(%panicked, "removal of slices that nothing tells of");
        }
    }

    /// GPUs that answer. Which of them are in MIG mode is asked for with their slices: what is known of that may be of before another instance
    /// switched it on.
    fn gpus_that_answer(&self) -> Vec<String> {
        let known = self.gpus.borrow();
        let gpus = known.iter().flat_map(|known| &known.gpus);
        let answer = gpus.filter(|known| !known.gone && !known.silent);
        answer.map(|known| known.gpu.uuid.clone()).collect()
    }

    fn found(&self) -> BTreeSet<PlacedSlice> {
        if self.gpus.borrow().is_none() {
            return BTreeSet::new();
        }
        let gpus = self.gpus_that_answer();
        // Before the hardware is looked at: what a layout makes meanwhile is not taken for gone.
        let Some(of_layouts) = self.of_layouts() else {
            return BTreeSet::new();
        };
        let live = self.prober.live(&gpus);
        let Ok(lock) = self.store.lock() else {
            return BTreeSet::new();
        };
        let (Ok(disk), Ok(told), Ok(mut made)) = (
            self.store.load(&lock),
            self.store.records_in_cdi(),
            self.store.made_slices(&lock, &self.boot_id),
        ) else {
            return BTreeSet::new();
        };
        self.forget_missing(&lock, &of_layouts, &live);
        drop(lock);
        if self.layouts_are_over() {
            made.extend(of_layouts);
        }
        // A file that does not say what it is about may be about any of them.
        let Some(told) = told.into_values().collect::<Option<Vec<Record>>>() else {
            return BTreeSet::new();
        };
        let live = live.iter().flat_map(|(gpu, live)| {
            let live = live.iter().flatten();
            live.map(move |instance| (gpu.as_str(), instance))
        });
        leftover(live, &disk, &told, &made)
    }

    /// Whether slices are made for claims here, and for no layout.
    fn layouts_are_over(&self) -> bool {
        let policy = self.policy.borrow();
        policy
            .as_ref()
            .is_some_and(|policy| policy.mode == Mode::Dynamic)
    }

    /// UUIDs of the slices that layouts made in this boot; `None`: nobody can tell.
    fn of_layouts(&self) -> Option<BTreeSet<String>> {
        let lock = self.store.lock().ok()?;
        self.store.layout_slices(&lock, &self.boot_id).ok()
    }

    /// A slice of a layout that somebody removed is not the layout's if it is there again. Where a GPU does not say what lies on it nothing is
    /// forgotten; nor if that fails, for then the next look does.
    fn forget_missing(&self, lock: &Guard, of_layouts: &BTreeSet<String>, live: &LiveSlices) {
        let is_silent = |known: &KnownGpu| known.silent || known.gone;
        let some_are_silent = {
            let known = self.gpus.borrow();
            let mut gpus = known.iter().flat_map(|known| &known.gpus);
            gpus.any(is_silent)
        };
        if some_are_silent || live.values().any(Result::is_err) {
            return;
        }
        let there = live.values().flatten().flatten();
        let there: BTreeSet<String> = there.filter_map(|it| it.uuid.clone()).collect();
        let gone = of_layouts.difference(&there).cloned().collect();
        let forgotten = self.store.forget_layout_slices(lock, &self.boot_id, &gone);
        if let Err(failure) = forgotten {
            tracing::warn!(%failure, "slices of layouts that are gone are not forgotten");
        }
    }

    fn remove_one(&self, slice: &PlacedSlice) -> Result<(), String> {
        let locked = self.store.try_lock_gpu_and_load(&slice.gpu);
        let Some((_gpu, disk)) = locked.map_err(|failure| failure.to_string())? else {
            return Err("its GPU is being changed".to_owned());
        };
        if disk.acknowledged.is_none() || disk.records.values().any(|record| has(record, slice)) {
            return Err("it is recorded by now".to_owned());
        }
        let unit = Unit::slice(slice.gpu.clone(), slice.placement, 0);
        match self.prober.claim(std::iter::once(&unit), &[], Some(&disk)) {
            InUse::No => {}
            InUse::Yes(who) => return Err(format!("in use: {who}")),
            InUse::Unknown(cause) => return Err(cause),
        }
        let removed = self.hardware.remove_one(slice);
        removed.map_err(|failure| failure.to_string())
    }
}

/// Whether a record has any of the memory of a slice.
fn has(record: &Record, slice: &PlacedSlice) -> bool {
    record.devices.iter().any(|device| {
        device.unit.gpu == slice.gpu && device.unit.overlaps_placement(slice.placement)
    })
}

/// The slices that are there, were made here, and are nobody's.
fn leftover<'a>(
    live: impl Iterator<Item = (&'a str, &'a MigInstance)>,
    disk: &Disk,
    told: &[Record],
    made: &BTreeSet<String>,
) -> BTreeSet<PlacedSlice> {
    if disk.acknowledged.is_none() {
        return BTreeSet::new();
    }
    let records = || disk.records.values().chain(told);
    live.filter_map(|(gpu, instance)| {
        let uuid = instance.uuid.clone().filter(|uuid| made.contains(uuid))?;
        let slice = PlacedSlice {
            gpu: gpu.to_owned(),
            gpu_instance_profile: instance.profile,
            placement: instance.placement,
            uuid: Some(uuid),
        };
        let is_known = records().any(|record| has(record, &slice));
        (!is_known).then_some(slice)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, thread};

    use nvidia_ml_mock::{Hang, State};

    use super::*;
    use crate::{
        mig::Settings,
        mock_node::{BOOT, MockNode, acknowledged, prepared},
        prepare::{Placement, Write},
    };

    fn instance(uuid: &str, start: u32) -> MigInstance {
        MigInstance {
            placement: Placement { start, size: 1 },
            gpu_instance: start,
            compute_instance: Some(0),
            is_divided: false,
            profile: 19,
            uuid: Some(uuid.to_owned()),
        }
    }

    fn disk(records: Vec<Record>) -> Disk {
        let records = records.into_iter();
        Disk {
            acknowledged: Some(acknowledged()),
            records: records.map(|it| (it.claim.uid.clone(), it)).collect(),
            ..Disk::default()
        }
    }

    #[test]
    fn only_what_was_made_here_and_is_nobodys_is_left_over() {
        let ours = instance("MIG-ours", 2);
        let foreign = instance("MIG-foreign", 3);
        let halved = MigInstance {
            uuid: None,
            ..instance("", 4)
        };
        let made = BTreeSet::from(["MIG-ours".to_owned()]);
        let placed = |start| Unit::slice("GPU-0", Placement { start, size: 1 }, 1);
        let lost = Disk {
            acknowledged: None,
            ..disk(Vec::new())
        };
        for (what, disk, told, is_left) in [
            ("nothing tells of it", disk(Vec::new()), vec![], true),
            ("a record", disk(vec![prepared(placed(2))]), vec![], false),
            (
                "a record of the whole GPU",
                disk(vec![prepared(Unit::whole("GPU-0"))]),
                vec![],
                false,
            ),
            (
                "a record of its neighbour",
                disk(vec![prepared(placed(1))]),
                vec![],
                true,
            ),
            (
                "a CDI file",
                disk(Vec::new()),
                vec![prepared(placed(2))],
                false,
            ),
            ("lost records", lost, vec![], false),
        ] {
            let live = [&ours, &foreign, &halved].map(|it| ("GPU-0", it));
            let found = leftover(live.into_iter(), &disk, &told, &made);
            let starts: Vec<u32> = found.iter().map(|it| it.placement.start).collect();
            let expected: &[u32] = if is_left { &[2] } else { &[] };
            assert_eq!(starts, expected, "{what}");
        }
    }

    #[test]
    fn a_gpu_that_hangs_while_a_slice_is_removed_holds_up_no_claim_of_another() {
        let node = MockNode::new();
        node.acknowledge();
        let MockNode {
            directory,
            card,
            backend,
            store,
        } = node;
        let gpu = backend.gpus().unwrap().gpus.swap_remove(0).gpu.uuid;
        let hangs = |state: &mut State| {
            state.hangs.push(Hang {
                function: String::new(),
                gpu: gpu.clone(),
            });
        };
        card.change(hangs).unwrap();
        let slices = LeftoverSlices {
            store: store.clone(),
            boot_id: BOOT.to_owned(),
            prober: Prober::new(backend.clone(), directory.path().to_owned()),
            hardware: Hardware::new(backend),
            gpus: watch::channel(None).1,
            policy: watch::channel(None).1,
        };
        let slice = PlacedSlice {
            gpu: gpu.clone(),
            gpu_instance_profile: 19,
            placement: Placement { start: 2, size: 1 },
            uuid: Some("MIG-ours".to_owned()),
        };
        let removing = thread::spawn(move || slices.remove_one(&slice));
        // Whoever has the lock of the checkpoint, and finds that of the GPU taken, saw that the first is free while it is changed.
        let mut is_free = false;
        while !is_free && !removing.is_finished() {
            let lock = store.lock().unwrap();
            is_free = store.try_lock_gpu(&gpu).unwrap().is_none();
            drop(lock);
            thread::yield_now();
        }
        card.change(|state| state.hangs.clear()).unwrap();
        let removed = removing.join().unwrap();
        assert!(is_free, "{removed:?}");
        assert!(store.try_lock_gpu(&gpu).unwrap().is_some());
    }

    /// A node of this mode with a card on which a layout and an administrator have made a slice each. `is_news`: what is known of the card is of before
    /// it was in MIG mode.
    fn two_made(
        mode: &str,
        is_recorded: bool,
        is_news: bool,
    ) -> (tempfile::TempDir, LeftoverSlices) {
        let node = MockNode::new();
        node.acknowledge();
        let MockNode {
            directory,
            card: _,
            backend,
            store,
        } = node;
        let before = backend.gpus().unwrap();
        let gpu = before.gpus[0].gpu.uuid.clone();
        assert!(backend.set_mig_mode(&gpu, true).unwrap().current);
        let listed = backend.gpus().unwrap();
        let mig = listed.gpus[0].gpu.mig.clone().unwrap();
        let listed = if is_news { before } else { listed };
        let known = KnownGpus::default().after(BOOT, &listed);
        let profile = mig.profile("1g.10gb").unwrap();
        let lock = store.lock().unwrap();
        for start in [2, 3] {
            let placement = Placement { start, size: 1 };
            let made = backend.create_slice(&gpu, profile, placement).unwrap();
            if start == 2 {
                let uuid = made.uuid.unwrap();
                store.note_layout_slice(&lock, BOOT, &uuid, true).unwrap();
            }
        }
        if is_recorded {
            let placement = Placement { start: 2, size: 1 };
            let record = prepared(Unit::slice(gpu.clone(), placement, 1));
            store.apply(&lock, &Write::PutRecord(record)).unwrap();
        }
        drop(lock);
        let settings = format!(r#"{{"mode": "{mode}"}}"#);
        let policy = Settings::parse(&settings).unwrap();
        let policy = policy.policy(&BTreeMap::new());
        let slices = LeftoverSlices {
            store,
            boot_id: BOOT.to_owned(),
            prober: Prober::new(backend.clone(), directory.path().to_owned()),
            hardware: Hardware::new(backend),
            gpus: watch::channel(Some(known)).1,
            policy: watch::channel(Some(policy)).1,
        };
        (directory, slices)
    }

    /// What is left over on such a node.
    fn left_in(mode: &str, is_recorded: bool) -> BTreeSet<u32> {
        let (_directory, slices) = two_made(mode, is_recorded, false);
        let found = slices.found();
        found.iter().map(|slice| slice.placement.start).collect()
    }

    /// As the one of two instances may see it that has not switched it.
    #[test]
    fn a_slice_of_a_layout_on_a_gpu_that_is_not_known_yet_to_be_in_mig_mode_stays_the_layouts() {
        let (_directory, slices) = two_made("Static", false, true);
        let noted = || slices.of_layouts().unwrap();
        assert_eq!(noted().len(), 1);
        assert!(slices.found().is_empty());
        assert_eq!(noted().len(), 1);
    }

    #[test]
    fn a_slice_of_a_layout_is_left_over_once_slices_are_made_for_claims_and_no_claim_has_it() {
        for (mode, is_recorded, left) in [
            ("Static", false, vec![]),
            ("Off", false, vec![]),
            ("Dynamic", true, vec![]),
            ("Dynamic", false, vec![2]),
        ] {
            let expected: BTreeSet<u32> = left.into_iter().collect();
            assert_eq!(left_in(mode, is_recorded), expected, "{mode} {is_recorded}");
        }
    }
}
