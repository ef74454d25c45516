//! The same of GPUs that break: S7 and S8.

use super::*;
use crate::faults::{
    Fault, Mend,
    journal::{Injected, What},
};

const FAULT: &str = "gpu.muster.dev/fault";
const GPU_0: &str = "gpu.muster.dev/node-0/gpu-0";
/// Longer than it may take until whoever tells of faults has heard of one, and shorter than until it has to be told.
const HEARD_MILLIS: u64 = 15_000;

impl Stage {
    /// A gang runs on GPU 0 of two.
    fn with_gpus(mut self) -> Self {
        self.judge
            .node("node-0", &["GPU-0", "GPU-1"].map(str::to_owned));
        self
    }

    fn done(&mut self, gpu: &str, what: What) -> &mut Self {
        let injected = Injected {
            gpu: gpu.to_owned(),
            what,
            at_unix_millis: 0,
        };
        self.judge.injected("node-0", &injected);
        self.passes(STEP_MILLIS)
    }

    fn breaks(&mut self, gpu: &str, fault: Fault) -> &mut Self {
        self.done(gpu, What::Fault(fault))
    }

    fn is_mended(&mut self, gpu: &str, mend: Mend) -> &mut Self {
        self.done(gpu, What::Mend(mend))
    }

    /// GPU 0 is published with this taint alone.
    fn tells(&mut self, key: &str, value: &str) -> &mut Self {
        self.shows(told(&[(key, value)]))
    }

    /// GPU 0 is published without a taint.
    fn tells_nothing(&mut self) -> &mut Self {
        self.shows(told(&[]))
    }

    /// Attempts of the gang were evicted for faults of these devices, the first one first.
    fn evicts(&mut self, devices: &[&str]) -> &mut Self {
        self.shows(gang(&json!({
            "phase": "Pending", "attempt": devices.len() + 1, "evictions": evictions(devices),
        })))
    }

    /// The gang is admitted again, as it was.
    fn admits_after(&mut self, devices: &[&str]) -> &mut Self {
        self.shows(gang(&json!({
            "phase": "Admitted", "attempt": devices.len() + 1, "admission": admission(1), "evictions": evictions(devices),
            "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 1}]}
        })))
    }
}

fn told(taints: &[(&str, &str)]) -> Object {
    let taints: Vec<Value> = taints
        .iter()
        .map(|(key, value)| json!({"key": key, "value": value, "effect": "NoSchedule"}))
        .collect();
    published(
        "gpu.muster.dev",
        &json!({"name": "gpu-0", "taints": taints}),
    )
}

/// The slice of this driver, with this device and GPU 1.
fn published(driver: &str, device: &Value) -> Object {
    Object::Slice(Box::new(object(&json!({
        "metadata": {"name": "slice"},
        "spec": {"driver": driver, "nodeName": "node-0", "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
            "devices": [device, {"name": "gpu-1"}]}
    }))))
}

fn evictions(devices: &[&str]) -> Value {
    let at = "2026-11-27T00:00:00Z";
    let evictions = devices.iter().zip(1..).map(|(device, attempt)| {
        json!({"attempt": attempt, "reason": "DeviceFault", "message": "a fault", "at": at,
            "fault": {"device": device, "kind": "Reset", "since": at}})
    });
    evictions.collect()
}

/// A gang runs on GPU 0, which breaks and is told to be broken.
fn a_gpu_that_is_told_to_be_broken(fault: Fault, class: &str) -> Stage {
    let mut stage = a_gang_that_runs().with_gpus();
    stage.breaks("GPU-0", fault).tells(FAULT, class);
    stage
}

#[test]
fn a_fault_that_is_told_until_it_is_mended_is_all_well() {
    for (fault, class, mend) in [
        (Fault::Xid(48), "Reset", Mend::Reset),
        (Fault::Xid(48), "Reset", Mend::Operator),
        (Fault::Xid(94), "Contained", Mend::Reset),
        (Fault::Xid(79), "Reboot", Mend::Reboot),
        (Fault::RowRemapFailure, "Retire", Mend::Operator),
    ] {
        let mut stage = a_gpu_that_is_told_to_be_broken(fault, class);
        stage.tells(FAULT, "Retire").passes(HEARD_MILLIS);
        stage.is_mended("GPU-0", mend).tells_nothing();
        let verdict = stage.judge.take_verdict();
        assert_eq!(verdict.violations, Vec::<String>::new(), "{fault:?}");
        assert!(verdict.seen.checks.contains_key(&Invariant::S7));
    }
}

#[test]
fn a_fault_that_is_told_no_more_without_a_proof_that_fits_and_is_newer_is_seen_as_s7() {
    type Act = fn(&mut Stage);
    let rows: [(&str, Fault, &str, Act); 7] = [
        ("nothing was done", Fault::Xid(48), "Reset", |stage| {
            stage.tells_nothing();
        }),
        (
            "a milder event lowers it",
            Fault::Xid(48),
            "Reset",
            |stage| {
                stage
                    .breaks("GPU-0", Fault::Xid(94))
                    .tells(FAULT, "Contained");
            },
        ),
        (
            "the driver was started anew",
            Fault::Xid(79),
            "Reboot",
            |stage| {
                stage.loses(told(&[(FAULT, "Reboot")])).tells_nothing();
            },
        ),
        ("a reset is no reboot", Fault::Xid(79), "Reboot", |stage| {
            stage.is_mended("GPU-0", Mend::Reset).tells_nothing();
        }),
        (
            "a reboot gives no new rows",
            Fault::RowRemapFailure,
            "Retire",
            |stage| {
                stage.is_mended("GPU-0", Mend::Reboot).tells_nothing();
            },
        ),
        ("another GPU was mended", Fault::Xid(48), "Reset", |stage| {
            stage.is_mended("GPU-1", Mend::Reset).tells_nothing();
        }),
        (
            "it broke again after it was mended",
            Fault::Xid(48),
            "Reset",
            |stage| {
                stage
                    .is_mended("GPU-0", Mend::Reset)
                    .breaks("GPU-0", Fault::Xid(48))
                    .passes(HEARD_MILLIS)
                    .tells_nothing();
            },
        ),
    ];
    for (how, fault, class, act) in rows {
        let mut stage = a_gpu_that_is_told_to_be_broken(fault, class);
        act(&mut stage);
        eprintln!("{how}");
        stage.is_seen_as("S7");
    }
}

/// The node's live permit, with this boot id.
fn booted(boot_id: &str) -> Object {
    let Object::NodeDevices(mut node) = permits(LIVE) else {
        panic!("permits are in NodeDevices");
    };
    node.status.as_mut().unwrap().boot_id = boot_id.to_owned();
    Object::NodeDevices(node)
}

#[test]
fn a_reboot_that_gives_the_node_no_other_boot_id_ends_nothing() {
    let rebooted = || {
        let mut stage = a_gang_that_runs().with_gpus();
        stage
            .shows(booted("a"))
            .breaks("GPU-0", Fault::Xid(79))
            .tells(FAULT, "Reboot")
            .is_mended("GPU-0", Mend::Reboot)
            .tells_nothing();
        stage
    };
    rebooted().passes(LATE_MILLIS).is_seen_as("S7");
    rebooted()
        .shows(booted("b"))
        .passes(LATE_MILLIS)
        .is_all_well();
    // A person's word needs none.
    let mut stage = rebooted();
    stage.is_mended("GPU-0", Mend::Operator);
    stage.passes(LATE_MILLIS).is_all_well();
}

#[test]
fn a_proof_from_before_the_fault_is_none() {
    let mut stage = a_gang_that_runs().with_gpus();
    stage
        .is_mended("GPU-0", Mend::Operator)
        .breaks("GPU-0", Fault::Xid(48))
        .tells(FAULT, "Reset")
        .tells_nothing()
        .is_seen_as("S7");
}

#[test]
fn a_fault_that_is_never_told_is_seen_as_s7_but_an_anomaly_need_not_be() {
    for fault in [Fault::Xid(48), Fault::Xid(74), Fault::Lost] {
        let mut stage = a_gang_that_runs().with_gpus();
        stage.tells_nothing().breaks("GPU-0", fault);
        stage.passes(LATE_MILLIS).is_seen_as("S7");
    }
    for fault in [
        Fault::Xid(13),
        Fault::Xid(31),
        Fault::Xid(63),
        Fault::TooHot,
    ] {
        let mut stage = a_gang_that_runs().with_gpus();
        stage.tells_nothing().breaks("GPU-0", fault);
        stage.passes(LATE_MILLIS).is_all_well();
    }
}

#[test]
fn a_contained_fault_is_over_once_nobody_has_the_gpu_and_not_before() {
    let mut stage = a_gpu_that_is_told_to_be_broken(Fault::Xid(94), "Contained");
    stage.tells_nothing().passes(STEP_MILLIS);
    stage.is_seen_as("S7");

    let mut stage = a_gpu_that_is_told_to_be_broken(Fault::Xid(94), "Contained");
    stage.exits("pod").tells_nothing().passes(STEP_MILLIS);
    stage.is_all_well();
}

#[test]
fn a_gang_that_is_evicted_once_for_a_fault_that_reached_it_is_all_well() {
    for (fault, class) in [
        (Fault::Xid(48), "Reset"),
        (Fault::Xid(94), "Contained"),
        (Fault::Xid(79), "Reboot"),
    ] {
        let mut stage = a_gpu_that_is_told_to_be_broken(fault, class);
        stage.evicts(&[GPU_0]);
        let verdict = stage.judge.take_verdict();
        assert_eq!(verdict.violations, Vec::<String>::new(), "{fault:?}");
        assert!(verdict.seen.checks.contains_key(&Invariant::S8));
        for invariant in [Invariant::S7, Invariant::S8] {
            let mut blind = verdict.clone();
            blind.seen.checks.remove(&invariant);
            let wrong = blind.wrong(Expected::FaultEvictions).join("; ");
            let named = format!("never checked {invariant}");
            assert!(wrong.contains(&named), "{invariant}: {wrong}");
        }
    }
}

#[test]
fn a_gang_that_is_evicted_for_no_fault_or_one_that_does_not_cost_it_is_seen_as_s8() {
    for (gpu, fault) in [
        ("GPU-1", Fault::Xid(79)),
        ("GPU-0", Fault::Xid(13)),
        ("GPU-0", Fault::Xid(63)),
        ("GPU-0", Fault::TooHot),
        ("GPU-0", Fault::RowRemapFailure),
        // It has one GPU, and needs no links.
        ("GPU-0", Fault::Xid(74)),
    ] {
        let mut stage = a_gang_that_runs().with_gpus();
        stage.breaks(gpu, fault).evicts(&[GPU_0]);
        stage.is_seen_as("S8");
    }
    let mut stage = a_gang_that_runs().with_gpus();
    stage.evicts(&[GPU_0]).is_seen_as("S8");
}

#[test]
fn an_eviction_that_names_another_device_than_the_faulty_one_is_seen_as_s8() {
    let mut stage = a_gpu_that_is_told_to_be_broken(Fault::Xid(48), "Reset");
    stage
        .evicts(&["gpu.muster.dev/node-0/gpu-1"])
        .is_seen_as("S8");
}

#[test]
fn a_taint_for_which_single_pods_are_deleted_is_seen_as_s8() {
    let shown = |driver: &str, device: &str, key: &str, effect: &str| {
        let taints = json!([
            {"key": FAULT, "value": "Reset", "effect": "NoSchedule"},
            {"key": key, "effect": effect},
        ]);
        let mut stage = a_gpu_that_is_told_to_be_broken(Fault::Xid(48), "Reset");
        stage.shows(published(
            driver,
            &json!({"name": device, "taints": taints}),
        ));
        stage
    };
    let (ours, other) = ("gpu.muster.dev", "gpu.example.com");
    let (held, gone) = ("gpu.muster.dev/held", "gpu.muster.dev/gone");
    // Also on a device that nobody knows.
    for (device, key) in [("gpu-0", gone), ("gpu-0", held), ("gpu-9", held)] {
        shown(ours, device, key, "NoExecute").is_seen_as("S8");
    }
    for (driver, effect) in [(ours, "NoSchedule"), (ours, "None"), (other, "NoExecute")] {
        shown(driver, "gpu-0", gone, effect).is_all_well();
    }
}

#[test]
fn a_gang_that_holds_nothing_is_evicted_for_no_fault() {
    let mut stage = a_gang_that_waits(1, 1).with_gpus();
    // It is admitted, and its claim is not allocated.
    stage
        .shows(freed_claim())
        .breaks("GPU-1", Fault::Xid(48))
        .shows(gang(&json!({
            "phase": "Admitted", "attempt": 1,
            "admission": {"team": "research", "teamGeneration": 1, "ledgerSequence": 1, "charge": charge(1),
                "pods": [{"uid": "another-pod", "claims": ["another-claim"]}]},
        })));
    stage.judge.take_verdict();
    stage.evicts(&[GPU_0]).is_seen_as("S8");
}

#[test]
fn two_evictions_for_one_fault_are_seen_as_s8_and_two_faults_may_cost_two() {
    let mut stage = a_gpu_that_is_told_to_be_broken(Fault::Xid(48), "Reset");
    stage.evicts(&[GPU_0]).admits_after(&[GPU_0]);
    stage.evicts(&[GPU_0, GPU_0]).is_seen_as("S8");

    let mut stage = a_gpu_that_is_told_to_be_broken(Fault::Xid(48), "Reset");
    stage
        .evicts(&[GPU_0])
        .admits_after(&[GPU_0])
        .breaks("GPU-0", Fault::Xid(48))
        .evicts(&[GPU_0, GPU_0])
        .is_all_well();
}

#[test]
fn a_fault_that_was_over_before_the_gang_got_the_device_costs_it_nothing() {
    let mut stage = Stage::default().with_gpus();
    stage
        .shows(node())
        .breaks("GPU-0", Fault::Xid(48))
        .tells(FAULT, "Reset")
        .is_mended("GPU-0", Mend::Reset)
        .tells_nothing()
        .shows(flavor("a"))
        .shows(namespace("research"))
        .shows(team(1))
        .shows(claim(1))
        .shows(gated_pod())
        .shows(admitted_gang(1))
        .evicts(&[GPU_0])
        .is_seen_as("S8");
}
