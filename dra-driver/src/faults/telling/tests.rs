use muster_device::{
    BackendError, Listed, ListedGpu, Placement,
    faults::{Cause, Device, KnownAddresses, Observation},
};

use super::*;
use crate::inventory::fixtures;

const NOW: i64 = 1_790_000_000;

fn list(count: u32) -> Listed {
    let gpus = (0..count).map(|index| ListedGpu {
        gpu: fixtures::gpu(
            &format!("GPU-{index}"),
            index,
            &format!("0000:{index:02x}:00.0"),
        ),
        silent: None,
    });
    Listed {
        gpus: gpus.collect(),
        unidentified: Vec::new(),
    }
}

fn known(count: u32) -> KnownGpus {
    KnownGpus::default().after("boot", &list(count))
}

/// What is told at this time after that.
fn told(state: &FaultState, known: &KnownGpus, before: &[GpuFault], at: i64) -> Vec<GpuFault> {
    let at = Timestamp::from_second(at).unwrap();
    listed(state, known, &BTreeMap::new(), before, at)
}

fn see(state: &mut FaultState, gpu: &str, class: FaultClass, scope: Scope, xid: u32) {
    let addresses = KnownAddresses([(gpu.to_owned(), None)].into());
    let observation = Observation {
        class,
        scope,
        cause: Cause::Xid(xid),
    };
    let _ = state.observe(&Device::Uuid(gpu.to_owned()), observation, &addresses, NOW);
}

#[test]
fn the_controller_is_told_the_worst_first_of_gpus_that_the_node_has() {
    let mut state = FaultState::default();
    let slice = Scope::Slice(Placement { start: 2, size: 2 });
    see(&mut state, "GPU-1", FaultClass::Info, Scope::Gpu, 63);
    see(&mut state, "GPU-1", FaultClass::Contained, slice, 94);
    see(&mut state, "GPU-0", FaultClass::Reboot, Scope::Gpu, 79);
    see(
        &mut state,
        "GPU-exchanged",
        FaultClass::Retire,
        Scope::Gpu,
        1,
    );
    let listed = told(&state, &known(2), &[], NOW);
    let classes: Vec<&str> = listed.iter().map(|it| it.class.as_str()).collect();
    assert_eq!(classes, ["Reboot", "Contained", "Info"]);
    let contained = &listed[1];
    assert_eq!(contained.device, "gpu-1");
    assert_eq!(contained.part, Some(FaultyPart { start: 2, size: 2 }));
    assert_eq!(contained.causes, ["XID 94"]);
    assert!(contained.since.starts_with("2026-"), "{}", contained.since);
}

#[test]
fn however_much_is_wrong_what_is_told_is_small() {
    let mut state = FaultState::default();
    for gpu in 0..16 {
        for start in 0..8 {
            let scope = Scope::Slice(Placement { start, size: 1 });
            for xid in 0..40 {
                let gpu = format!("GPU-{gpu}");
                see(&mut state, &gpu, FaultClass::Contained, scope, xid);
            }
        }
    }
    let listed = told(&state, &known(16), &[], NOW);
    assert_eq!(listed.len(), NodeDevicesStatus::MOST_FAULTS);
    let bytes = serde_json::to_vec(&listed).unwrap().len();
    assert!(bytes < 64 * 1_024, "{bytes}");
}

#[test]
fn a_gpu_that_is_lost_without_a_word_is_told_as_one_for_which_the_machine_has_to_be_started_anew() {
    let lost = known(2).after("boot", &list(1));
    let mut state = FaultState::default();
    let first = told(&state, &lost, &[], NOW);
    let expected = GpuFault {
        device: "gpu-1".to_owned(),
        gpu: "GPU-1".to_owned(),
        part: None,
        class: "Reboot".to_owned(),
        causes: vec!["GPU lost".to_owned()],
        since: time(NOW),
        reset_hindered: false,
    };
    assert_eq!(first, [expected]);
    // What was said is not said anew with every look, also not by a driver that has started since.
    assert_eq!(told(&state, &lost, &first, NOW + 100), first);
    // That of another GPU is not its time.
    let others = known(1).after("boot", &list(0));
    let other = told(&state, &others, &first, NOW + 100);
    assert_eq!(other[0].since, time(NOW + 100));
    // One that does not answer may be any that is missing: nobody knows yet.
    let mut silent = list(1);
    silent.unidentified.push(BackendError::Unresponsive);
    let silent = known(2).after("boot", &silent);
    assert!(told(&state, &silent, &[], NOW).is_empty());
    // It is back, or the machine was started anew without it.
    for (boot_id, count) in [("boot", 2), ("next boot", 1)] {
        let known = lost.after(boot_id, &list(count));
        assert!(told(&state, &known, &first, NOW).is_empty(), "{boot_id}");
    }
    // With what the driver said of it, it is one fault.
    see(&mut state, "GPU-1", FaultClass::Reboot, Scope::Gpu, 79);
    see(&mut state, "GPU-1", FaultClass::Reset, Scope::Gpu, 48);
    let both = told(&state, &lost, &first, NOW + 100);
    let causes: Vec<_> = both
        .iter()
        .map(|it| (&*it.class, it.causes.join(", ")))
        .collect();
    let expected = [("Reboot", "GPU lost, XID 79"), ("Reset", "XID 48")];
    let expected = expected.map(|(class, causes)| (class, causes.to_owned()));
    assert_eq!(causes, expected);
    assert_eq!(both[0].since, time(NOW));
}

#[test]
fn that_a_gpu_is_lost_is_told_however_much_else_is() {
    let mut state = FaultState::default();
    for xid in 100..100 + 2 * u32::try_from(MOST_CAUSES).unwrap() {
        see(&mut state, "GPU-1", FaultClass::Reboot, Scope::Gpu, xid);
    }
    let lost = known(2).after("boot", &list(1));
    let told = told(&state, &lost, &[], NOW);
    assert_eq!(told.len(), 1);
    let causes = &told[0].causes;
    assert_eq!(causes.len(), MOST_CAUSES);
    assert!(causes.iter().any(|cause| cause == LOST), "{causes:?}");
    assert!(causes.is_sorted());
    // Also among causes that all come before it.
    let mut causes = vec!["A".to_owned(); MOST_CAUSES];
    add_lost(&mut causes);
    assert_eq!(causes.len(), MOST_CAUSES);
    assert_eq!(causes.last().map(String::as_str), Some(LOST));
}

#[test]
fn people_are_told_what_is_wrong_with_which_gpu() {
    let mut state = FaultState::default();
    let slice = Scope::Slice(Placement { start: 2, size: 2 });
    see(&mut state, "GPU-1", FaultClass::Contained, slice, 94);
    let (outline, fault) = outlines(&state).pop_first().unwrap();
    let note = note(&outline.0, Some("gpu-1"), fault);
    assert_eq!(
        note,
        "GPU GPU-1 (gpu-1, memory slices 2 to 3) has a fault of the class Contained: XID 94"
    );
    let event = event("node-0", "u", fault.class, note, Timestamp::UNIX_EPOCH);
    assert_eq!(event.reason.as_deref(), Some("GpuFault"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
}

#[test]
fn that_a_gpu_would_not_be_reset_is_said_of_its_fault_and_stands_until_it_is_known_otherwise() {
    let mut state = FaultState::default();
    see(&mut state, "GPU-0", FaultClass::Contained, Scope::Gpu, 94);
    see(&mut state, "GPU-0", FaultClass::Reset, Scope::Gpu, 48);
    see(&mut state, "GPU-1", FaultClass::Reset, Scope::Gpu, 48);
    let (known, at) = (known(2), Timestamp::from_second(NOW).unwrap());
    let said = |faults: &[GpuFault]| -> Vec<String> {
        let hindered = faults.iter().filter(|fault| fault.reset_hindered);
        hindered
            .map(|fault| format!("{} {}", fault.gpu, fault.class))
            .collect()
    };
    // What is known, what was said before, and what is said then.
    let none: &[&str] = &[];
    let first: &[&str] = &["GPU-0 Reset"];
    let mut before = Vec::new();
    for (word, expected) in [
        (None, none),
        (Some(true), first),
        (None, first),
        (Some(false), none),
        (None, none),
        (Some(true), first),
    ] {
        let hindered = word.map(|word| ("GPU-0".to_owned(), word));
        let hindered: BTreeMap<String, bool> = hindered.into_iter().collect();
        before = listed(&state, &known, &hindered, &before, at);
        assert_eq!(said(&before), expected, "{word:?}");
    }
    // Another fault of the same GPU was never spoken of.
    let mut other = before.clone();
    for fault in &mut other {
        fault.since = time(NOW - 1);
    }
    let told = listed(&state, &known, &BTreeMap::new(), &other, at);
    assert_eq!(said(&told), none);
    // Nor was one of another part of it.
    for fault in &mut before {
        fault.part = Some(FaultyPart { start: 0, size: 2 });
    }
    let told = listed(&state, &known, &BTreeMap::new(), &before, at);
    assert_eq!(said(&told), none);
}
