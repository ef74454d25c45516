//! Slices on the mock library.

use muster_device::{Gpu, Placement};
use nvidia_ml_mock::{Failure, State, StateFile};

use super::*;
use crate::{
    mock_node::{self, EIGHT_H100, MockNode},
    prepare::{RecordState, Write},
};

/// `nvmlReturn_t` for what nobody knows.
const UNKNOWN: u32 = 999;

/// A GPU in MIG mode, through the mock library, and a checkpoint.
struct Fixture {
    _directory: tempfile::TempDir,
    card: StateFile,
    hardware: Hardware,
    store: Store,
    gpu: Gpu,
}

fn fixture() -> Fixture {
    fixture_of(EIGHT_H100)
}

fn fixture_of(board: &str) -> Fixture {
    let node = MockNode::of(board, None);
    let gpu = node.backend.gpus().unwrap().gpus.swap_remove(0).gpu;
    let in_mig_mode = |state: &mut State| {
        let card = state.card(&gpu.uuid);
        card.mig_current = true;
        card.mig_pending = true;
    };
    node.card.change(in_mig_mode).unwrap();
    Fixture {
        card: node.card,
        hardware: Hardware::new(node.backend),
        store: node.store,
        gpu,
        _directory: node.directory,
    }
}

impl Fixture {
    fn order(&self, name: &str, start: u32) -> SliceOrder {
        let profile = self.gpu.mig.as_ref().unwrap().profile(name).unwrap();
        let size = profile.memory_slices;
        SliceOrder {
            gpu: self.gpu.uuid.clone(),
            profile: Arc::new(profile.clone()),
            placement: Placement { start, size },
            is_new: false,
        }
    }

    fn record(&self, state: RecordState) {
        let lock = self.store.lock().unwrap();
        let record = Record {
            claim: mock_node::claim(),
            state,
            call: Some("i/1".to_owned()),
            by_name: None,
            pods: Vec::new(),
            devices: Vec::new(),
        };
        self.store.apply(&lock, &Write::PutRecord(record)).unwrap();
    }

    fn make(&self, orders: &[SliceOrder]) -> Result<Made, SliceFailure> {
        self.hardware.make(&self.store, &fence(), orders, &[])
    }

    fn remove(&self, order: &SliceOrder, uuid: Option<&str>) -> Result<(), SliceFailure> {
        let slice = PlacedSlice {
            gpu: order.gpu.clone(),
            gpu_instance_profile: order.profile.gpu_instance_profile,
            placement: order.placement,
            uuid: uuid.map(str::to_owned),
        };
        self.hardware.remove(&self.store, &fence(), &[slice])
    }

    fn starts(&self) -> Vec<u32> {
        let live = self.hardware.backend.mig_instances(&self.gpu.uuid);
        let live = live.unwrap().into_iter();
        live.map(|instance| instance.placement.start).collect()
    }
}

fn fence() -> Fence {
    Fence {
        claim: "c".to_owned(),
        call: Some("i/1".to_owned()),
    }
}

#[test]
fn slices_are_made_once_and_removed_once_however_often_that_is_asked() {
    let f = fixture();
    f.record(RecordState::Preparing);
    let orders = [f.order("1g.10gb", 2), f.order("3g.40gb", 4)];
    let made = f.make(&orders).unwrap();
    assert_eq!(f.make(&orders).unwrap(), made);
    assert_eq!(f.starts(), [2, 4]);
    f.record(RecordState::Unpreparing);
    for _ in 0..2 {
        for (order, made) in orders.iter().zip(&made.slices) {
            f.remove(order, Some(&made.uuid)).unwrap();
        }
        assert_eq!(f.starts(), Vec::<u32>::new());
    }
}

#[test]
fn nothing_is_made_or_removed_that_the_record_does_not_allow() {
    let f = fixture();
    let order = f.order("1g.10gb", 0);
    for state in [
        RecordState::Waiting,
        RecordState::Prepared,
        RecordState::Unpreparing,
    ] {
        f.record(state);
        f.make(std::slice::from_ref(&order)).unwrap_err();
        assert_eq!(f.starts(), Vec::<u32>::new(), "{state:?}");
    }
    f.record(RecordState::Preparing);
    f.make(std::slice::from_ref(&order)).unwrap();
    for state in [RecordState::Waiting, RecordState::Prepared] {
        f.record(state);
        f.remove(&order, None).unwrap();
        assert_eq!(f.starts(), [0], "{state:?}");
    }
}

#[test]
fn what_lies_in_the_way_is_told_with_its_place_and_stays() {
    let f = fixture();
    f.record(RecordState::Preparing);
    f.make(&[f.order("2g.20gb", 2)]).unwrap();
    let failure = f.make(&[f.order("3g.40gb", 0)]).unwrap_err();
    assert_eq!(failure.reason, Some(Reason::DeviceHeld));
    assert!(failure.message.contains("memory slices 2..4"), "{failure}");
    f.remove(&f.order("2g.20gb", 2), Some("MIG-of-somebody-else"))
        .unwrap();
    assert_eq!(f.starts(), [2]);
}

#[test]
fn what_somebody_made_at_a_place_that_was_empty_when_it_was_recorded_is_not_taken_up() {
    let f = fixture();
    f.record(RecordState::Preparing);
    let by_hand = f.make(&[f.order("1g.10gb", 3)]).unwrap();
    let order = SliceOrder {
        is_new: true,
        ..f.order("1g.10gb", 3)
    };
    let failure = f.make(std::slice::from_ref(&order)).unwrap_err();
    assert_eq!(failure.reason, Some(Reason::DeviceHeld));
    let foreign = failure.foreign.unwrap();
    assert_eq!(foreign.placement, order.placement);
    assert_eq!(foreign.uuid.as_ref(), Some(&by_hand.slices[0].uuid));
    assert_eq!(f.starts(), [3]);
    let beside = SliceOrder {
        is_new: true,
        ..f.order("1g.10gb", 4)
    };
    f.make(std::slice::from_ref(&beside)).unwrap();
    assert_eq!(f.starts(), [3, 4]);
}

#[test]
fn a_gpu_whose_mig_mode_somebody_switched_on_is_not_given_whole() {
    let f = fixture();
    f.record(RecordState::Preparing);
    let whole = [f.gpu.uuid.clone()];
    let use_whole = || f.hardware.make(&f.store, &fence(), &[], &whole);
    let failure = use_whole().unwrap_err();
    assert!(failure.message.contains("is in MIG mode"), "{failure}");
    let out_of_mig_mode = |state: &mut State| {
        let card = state.card(&f.gpu.uuid);
        card.mig_current = false;
        card.mig_pending = false;
    };
    f.card.change(out_of_mig_mode).unwrap();
    let minors = BTreeMap::from([(f.gpu.uuid.clone(), f.gpu.minor)]);
    assert_eq!(use_whole().unwrap().minors, minors);
}

#[test]
fn a_slice_is_on_the_minor_number_that_its_gpu_has_now_whoever_had_it_numbered_anew() {
    let f = fixture();
    f.record(RecordState::Preparing);
    let before = f.make(&[f.order("1g.10gb", 0)]).unwrap();
    assert_eq!(before.minors[&f.gpu.uuid], f.gpu.minor);
    // As the change of the mode for another claim may have left it, before the GPUs were listed again.
    let renumbered = |state: &mut State| state.card(&f.gpu.uuid).minor = Some(42);
    f.card.change(renumbered).unwrap();
    for start in [0, 1] {
        let made = f.make(&[f.order("1g.10gb", start)]).unwrap();
        assert_eq!(made.minors[&f.gpu.uuid], 42, "{start}");
    }
}

#[test]
fn a_mode_that_changes_with_a_reset_only_is_not_left_pending() {
    let f = fixture_of("a100-80gb-nvswitch-8");
    f.record(RecordState::Preparing);
    let cannot_be_reset = |state: &mut State| {
        state.cannot_reset = true;
        let card = state.card(&f.gpu.uuid);
        card.mig_current = false;
        card.mig_pending = false;
    };
    f.card.change(cannot_be_reset).unwrap();
    let (_, switchable) = watch::channel(BTreeSet::from([f.gpu.uuid.clone()]));
    let hardware = f.hardware.clone().with_switchable(switchable);
    let made = hardware.make(&f.store, &fence(), &[f.order("1g.10gb", 0)], &[]);
    let failure = made.unwrap_err();
    assert!(failure.message.contains("it stays as it was"), "{failure}");
    let mode = f.hardware.backend.mig_mode(&f.gpu.uuid).unwrap().unwrap();
    assert!(!mode.current && !mode.pending, "{mode:?}");
}

#[test]
fn a_compute_instance_that_fails_leaves_no_gpu_instance() {
    let f = fixture();
    f.record(RecordState::Preparing);
    let fails = |state: &mut State| {
        state.failures.push(Failure {
            function: "nvmlGpuInstanceCreateComputeInstance".to_owned(),
            code: UNKNOWN,
            times: Some(1),
            ..Failure::default()
        });
    };
    f.card.change(fails).unwrap();
    let order = f.order("1g.10gb", 0);
    f.make(std::slice::from_ref(&order)).unwrap_err();
    assert_eq!(f.starts(), Vec::<u32>::new());
    f.make(std::slice::from_ref(&order)).unwrap();
    assert_eq!(f.starts(), [0]);
}
