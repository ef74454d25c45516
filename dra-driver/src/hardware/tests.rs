//! Slices on the mock library.

use std::time::Duration;

use muster_device::{BackendConfig, Gpu, LibrarySource, MigModeAfter, Placement};
use nvidia_ml_mock::{Failure, Hang, State, StateFile};

use super::*;
use crate::{
    mock_node::{self, EIGHT_H100, MockNode},
    prepare::Write,
};

/// `nvmlReturn_t` for what nobody knows.
const UNKNOWN: u32 = 999;
/// `nvmlReturn_t` for a GPU that has to be reset first.
const RESET_REQUIRED: u32 = 16;
/// `nvmlReturn_t` for too few resources.
const INSUFFICIENT_RESOURCES: u32 = 23;
/// Makes a GPU instance.
const CREATE_GPU_INSTANCE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
/// Makes a compute instance in it.
const CREATE_COMPUTE_INSTANCE: &str = "nvmlGpuInstanceCreateComputeInstance";

const OFF: MigModeAfter = MigModeAfter {
    current: false,
    pending: false,
};
const ON: MigModeAfter = MigModeAfter {
    current: true,
    pending: true,
};

/// A GPU, through the mock library, and a checkpoint.
struct Fixture {
    directory: tempfile::TempDir,
    card: StateFile,
    hardware: Hardware,
    store: Store,
    gpu: Gpu,
}

fn fixture() -> Fixture {
    fixture_of(EIGHT_H100)
}

fn fixture_of(board: &str) -> Fixture {
    let f = fixture_on(MockNode::of(board, None));
    f.set_mode(true);
    f
}

/// An H100 out of MIG mode, which may be switched, and a record that lets slices be made.
fn switchable(call_limit: Option<Duration>) -> Fixture {
    let f = fixture_on(MockNode::of(EIGHT_H100, call_limit));
    f.record(RecordState::Preparing);
    Fixture {
        hardware: f.may_be_switched(f.hardware.clone()),
        ..f
    }
}

fn fixture_on(node: MockNode) -> Fixture {
    let gpu = node.backend.gpus().unwrap().gpus.swap_remove(0).gpu;
    Fixture {
        card: node.card,
        hardware: Hardware::new(node.backend),
        store: node.store,
        gpu,
        directory: node.directory,
    }
}

impl Fixture {
    /// As somebody has put it into MIG mode, or out of it.
    fn set_mode(&self, on: bool) {
        let set = |state: &mut State| {
            let card = state.card(&self.gpu.uuid);
            card.mig_current = on;
            card.mig_pending = on;
        };
        self.card.change(set).unwrap();
    }

    fn mode(&self) -> MigModeAfter {
        let mode = self.hardware.backend.mig_mode(&self.gpu.uuid);
        mode.unwrap().unwrap()
    }

    fn may_be_switched(&self, hardware: Hardware) -> Hardware {
        let (_, switchable) = watch::channel(BTreeSet::from([self.gpu.uuid.clone()]));
        hardware.with_switchable(switchable)
    }

    /// The driver is started again: it knows nothing but what is on disk and on the card.
    fn restart(&mut self) {
        let library = self.directory.path().join("libnvidia-ml.so.1");
        let backend = Backend::new(BackendConfig::new(LibrarySource::File(library)));
        self.hardware = self.may_be_switched(Hardware::new(Arc::new(backend)));
    }

    fn fail_once(&self, function: &str, code: u32, after_effect: bool) {
        let failure = Failure {
            function: function.to_owned(),
            gpu: self.gpu.uuid.clone(),
            code,
            times: Some(1),
            after_effect,
        };
        let fails = |state: &mut State| state.failures.push(failure);
        self.card.change(fails).unwrap();
    }

    /// What the card itself has, whatever NVML says of it.
    fn instances_on_card(&self) -> usize {
        let mut state = self.card.read().unwrap();
        state.card(&self.gpu.uuid).gpu_instances.len()
    }

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
    f.set_mode(false);
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
    f.set_mode(false);
    f.card.change(|state| state.cannot_reset = true).unwrap();
    let hardware = f.may_be_switched(f.hardware.clone());
    let made = hardware.make(&f.store, &fence(), &[f.order("1g.10gb", 0)], &[]);
    let failure = made.unwrap_err();
    assert!(failure.message.contains("it stays as it was"), "{failure}");
    assert_eq!(f.mode(), OFF);
}

#[test]
fn a_compute_instance_that_fails_leaves_no_gpu_instance() {
    let f = fixture();
    f.record(RecordState::Preparing);
    f.fail_once(CREATE_COMPUTE_INSTANCE, UNKNOWN, false);
    let order = f.order("1g.10gb", 0);
    f.make(std::slice::from_ref(&order)).unwrap_err();
    assert_eq!(f.starts(), Vec::<u32>::new());
    f.make(std::slice::from_ref(&order)).unwrap();
    assert_eq!(f.starts(), [0]);
}

#[test]
fn a_slice_that_fails_leaves_nothing_and_its_gpu_out_of_mig_mode_as_it_was() {
    for function in [CREATE_GPU_INSTANCE, CREATE_COMPUTE_INSTANCE] {
        for code in [UNKNOWN, RESET_REQUIRED, INSUFFICIENT_RESOURCES] {
            for after_effect in [false, true] {
                let case = format!("{function} {code} {after_effect}");
                let f = switchable(None);
                f.fail_once(function, code, after_effect);
                let order = f.order("1g.10gb", 0);
                let failure = f.make(std::slice::from_ref(&order)).unwrap_err();
                assert!(failure.message.contains("is not made"), "{case}: {failure}");
                assert_eq!((f.mode(), f.instances_on_card()), (OFF, 0), "{case}");
                f.make(std::slice::from_ref(&order)).unwrap();
                assert_eq!((f.mode(), f.starts()), (ON, vec![0]), "{case}");
            }
        }
    }
}

#[test]
fn slices_of_which_a_later_one_fails_leave_nothing_and_their_gpu_out_of_mig_mode_once_they_are_undone()
 {
    let f = switchable(None);
    let orders = [f.order("1g.10gb", 0), f.order("2g.20gb", 2)];
    f.make(&orders[..1]).unwrap();
    f.fail_once(CREATE_GPU_INSTANCE, UNKNOWN, false);
    f.make(&orders).unwrap_err();
    assert_eq!((f.mode(), f.starts()), (ON, vec![0]), "the first has it");
    for order in &orders {
        f.remove(order, None).unwrap();
    }
    assert_eq!((f.mode(), f.instances_on_card()), (OFF, 0));
}

#[test]
fn what_is_undone_takes_the_mode_from_no_slice_that_another_claim_has() {
    let f = switchable(None);
    f.make(&[f.order("1g.10gb", 4)]).unwrap();
    let order = f.order("1g.10gb", 0);
    f.fail_once(CREATE_COMPUTE_INSTANCE, UNKNOWN, true);
    f.make(std::slice::from_ref(&order)).unwrap_err();
    f.remove(&order, None).unwrap();
    assert_eq!((f.mode(), f.starts()), (ON, vec![4]));
}

#[test]
fn a_claim_that_has_ended_leaves_the_mode_to_the_next() {
    let f = switchable(None);
    let order = f.order("1g.10gb", 0);
    f.make(std::slice::from_ref(&order)).unwrap();
    f.record(RecordState::Unpreparing);
    f.remove(&order, None).unwrap();
    assert_eq!((f.mode(), f.instances_on_card()), (ON, 0));
}

/// What comes after a crash that left a GPU in MIG mode, without a slice, and the mode that it has then.
type AfterCrash = (&'static str, fn(&Fixture), MigModeAfter);

#[test]
fn after_a_crash_between_the_switch_and_the_first_slice_whoever_comes_next_has_the_mode_that_he_needs()
 {
    let cases: [AfterCrash; 4] = [
        (
            "the claim is prepared again",
            |f| {
                f.make(&[f.order("1g.10gb", 0)]).unwrap();
                assert_eq!(f.starts(), [0]);
            },
            ON,
        ),
        (
            "that fails",
            |f| {
                f.fail_once(CREATE_GPU_INSTANCE, UNKNOWN, false);
                f.make(&[f.order("1g.10gb", 0)]).unwrap_err();
            },
            OFF,
        ),
        (
            "its Prepare is undone before it comes to the GPU",
            |f| f.remove(&f.order("1g.10gb", 0), None).unwrap(),
            OFF,
        ),
        (
            "it is unprepared, and another claim has the GPU whole",
            |f| {
                f.record(RecordState::Unpreparing);
                f.remove(&f.order("1g.10gb", 0), None).unwrap();
                f.record(RecordState::Preparing);
                let whole = [f.gpu.uuid.clone()];
                let made = f.hardware.make(&f.store, &fence(), &[], &whole).unwrap();
                assert_eq!(made.minors[&f.gpu.uuid], f.gpu.minor);
            },
            OFF,
        ),
    ];
    for (case, next, expected) in cases {
        let mut f = switchable(None);
        // A process that is killed between two calls leaves just this.
        let switched = f.hardware.backend.set_mig_mode(&f.gpu.uuid, true);
        assert_eq!(switched, Ok(ON), "{case}");
        f.restart();
        assert_eq!((f.mode(), f.instances_on_card()), (ON, 0), "{case}");
        next(&f);
        assert_eq!(f.mode(), expected, "{case}");
    }
}

#[test]
fn a_slice_that_hangs_has_nvml_closed_for_nobody() {
    let f = switchable(Some(Duration::from_millis(500)));
    let hangs = |state: &mut State| {
        state.hangs = vec![Hang {
            function: CREATE_GPU_INSTANCE.to_owned(),
            gpu: f.gpu.uuid.clone(),
        }];
    };
    f.card.change(hangs).unwrap();
    let failure = f.make(&[f.order("1g.10gb", 0)]).unwrap_err();
    assert_eq!(failure.reason, Some(Reason::DeviceUnknown), "{failure}");
    let listed = f.hardware.backend.gpus().unwrap().gpus;
    let silent = listed.iter().filter(|gpu| gpu.silent.is_some());
    assert_eq!((listed.len(), silent.count()), (8, 1));
    // The first, and the one after the switch.
    assert_eq!(f.hardware.backend.status().openings, 2);
    f.card.change(|state| state.hangs.clear()).unwrap();
}
