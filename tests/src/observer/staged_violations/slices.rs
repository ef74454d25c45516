//! The same of slices of GPUs, and of claims that kube-scheduler makes.

use super::*;

/// A quarter of GPU 0: GPU instance 4.
const QUARTER: Slice = Slice {
    device: "gpu-0-mig-1g20gb-2",
    profile: "1g.20gb",
    compute: 1,
    memory: 2,
    nodes: &[
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap39",
        "/dev/nvidia-caps/nvidia-cap40",
    ],
};
/// An eighth of GPU 0 within that quarter: GPU instance 9.
const WITHIN: Slice = Slice {
    device: "gpu-0-mig-1g10gb-2",
    profile: "1g.10gb",
    compute: 1,
    memory: 1,
    nodes: &[
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap84",
        "/dev/nvidia-caps/nvidia-cap85",
    ],
};
/// An eighth of GPU 0 beside it: GPU instance 11.
const BESIDE: Slice = Slice {
    device: "gpu-0-mig-1g10gb-4",
    nodes: &[
        "/dev/nvidia0",
        "/dev/nvidia-caps/nvidia-cap102",
        "/dev/nvidia-caps/nvidia-cap103",
    ],
    ..WITHIN
};
/// The whole GPU.
const WHOLE: Slice = Slice {
    device: "gpu-0",
    profile: "gpu-0",
    compute: 7,
    memory: 8,
    nodes: &["/dev/nvidia0", "/dev/nvidiactl"],
};

/// A device of GPU 0, and what a container gets that has it.
#[derive(Clone, Copy)]
struct Slice {
    device: &'static str,
    profile: &'static str,
    compute: u32,
    memory: u32,
    nodes: &'static [&'static str],
}

impl Slice {
    fn published(self, taint: Option<&str>) -> Value {
        let kind = if self.device == WHOLE.device {
            "gpu"
        } else {
            "mig"
        };
        let taints: Vec<Value> = taint
            .iter()
            .map(|key| json!({"key": key, "effect": "NoSchedule"}))
            .collect();
        json!({
            "name": self.device,
            "attributes": {
                "type": {"string": kind}, "profile": {"string": self.profile}, "parentUUID": {"string": "GPU-0"},
                "computeSlices": {"int": self.compute}, "memorySlices": {"int": self.memory},
            },
            "capacity": {"memory": {"value": format!("{}Gi", 10 * self.memory)}},
            "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory-slice-0": {"value": "1"}}}],
            "taints": taints,
        })
    }
}

/// GPU 0 of `node-0` as it can be cut; the whole has this taint.
fn published(taint: Option<&str>) -> Object {
    let slices = [WITHIN, BESIDE, QUARTER].map(|slice| slice.published(None));
    let mut devices = slices.to_vec();
    devices.push(WHOLE.published(taint));
    Object::Slice(Box::new(object(&json!({
        "metadata": {"name": "slice"},
        "spec": {"driver": "gpu.muster.dev", "nodeName": "node-0", "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
            "devices": devices}
    }))))
}

/// The claim for the smallest device with some memory, which was allocated this one, or none yet.
fn claim_of(slice: Option<Slice>) -> Object {
    let result = |slice: Slice| json!({"request": "gpus/size-1", "driver": "gpu.muster.dev", "pool": "node-0", "device": slice.device});
    let allocation = slice.map(|slice| json!({"devices": {"results": [result(slice)]}}));
    let rung = json!({"name": "size-1", "deviceClassName": "gpu-or-slice.muster.dev"});
    Object::Claim(Box::new(object(&json!({
        "metadata": {"name": "claim", "namespace": "ml", "uid": CLAIM},
        "spec": {"devices": {"requests": [{"name": "gpus", "firstAvailable": [rung]}]}},
        "status": {"allocation": allocation, "reservedFor": [{"resource": "pods", "name": "pod", "uid": POD}]}
    }))))
}

fn charge_of(gpus_milli: i64, vram_gib: i64) -> Value {
    json!({"claims": [{"flavor": "h100", "gpusMilli": gpus_milli, "vramBytes": vram_gib << 30, "uids": [CLAIM]}]})
}

fn admitted_for(charge: &Value) -> Object {
    let mut admission = admission(1);
    admission["charge"] = charge.clone();
    gang(&json!({
        "phase": "Admitted", "attempt": 1, "admission": admission,
        "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 1}]}
    }))
}

fn permitted_for(charge: &Value) -> Object {
    let Object::NodeDevices(mut node) = permits(LIVE) else {
        panic!("permits are in NodeDevices");
    };
    for permit in &mut node.spec.permits {
        permit.charge = object(charge);
    }
    Object::NodeDevices(node)
}

/// A gang that is admitted for this charge, before its claim is allocated.
fn a_gang_admitted_for(charge: &Value) -> Stage {
    let mut stage = Stage::default();
    stage
        .shows(node())
        .shows(published(None))
        .shows(flavor("a"))
        .shows(namespace("research"))
        .shows(team(4))
        .shows(claim_of(None))
        .shows(gated_pod())
        .shows(admitted_for(charge))
        .shows(permitted_for(charge));
    stage
}

/// The same, running on an eighth of a GPU.
fn a_gang_that_runs_on(slice: Slice, charge: &Value) -> Stage {
    let mut stage = a_gang_admitted_for(charge);
    stage
        .shows(claim_of(Some(slice)))
        .shows(ungated_pod(1, "node-0", true, "Running"));
    let revision = Some(stage.revision);
    stage.started_with(revision, "pod", CLAIM, slice.device, slice.nodes);
    stage
}

#[test]
fn nothing_is_wrong_with_a_gang_on_a_slice_and_one_beside_it_on_the_same_gpu() {
    let mut stage = a_gang_that_runs_on(WITHIN, &charge_of(142, 10));
    stage.passes(LATE_MILLIS).is_all_well();
    stage.another_starts_on(BESIDE).shares_nothing();
}

#[test]
fn hardware_in_two_containers_is_seen_as_s3_whatever_its_devices_are_called() {
    for (one, other) in [
        (WITHIN, QUARTER),
        (QUARTER, WITHIN),
        (WITHIN, WHOLE),
        (WHOLE, BESIDE),
    ] {
        let charge = charge_of(1000, 80);
        let mut stage = a_gang_that_runs_on(one, &charge);
        stage.another_starts_on(other).shares_hardware();
    }
}

#[test]
fn a_container_is_judged_by_the_nodes_that_it_was_given_and_not_by_the_name_of_its_device() {
    let mut stage = a_gang_that_runs_on(WITHIN, &charge_of(142, 10));
    let misnamed = Slice {
        nodes: WITHIN.nodes,
        ..BESIDE
    };
    stage.another_starts_on(misnamed).shares_hardware();

    let mut stage = a_gang_that_runs_on(WITHIN, &charge_of(142, 10));
    let without_leave = Slice {
        nodes: &["/dev/nvidia0"],
        ..BESIDE
    };
    stage.another_starts_on(without_leave).shares_hardware();
}

#[test]
fn a_container_whose_nodes_are_those_of_no_gpu_is_never_all_well() {
    let mut stage = a_gang_that_runs_on(WITHIN, &charge_of(142, 10));
    let nothing = Slice {
        nodes: &["/dev/nvidiactl"],
        ..BESIDE
    };
    stage
        .another_starts_on(nothing)
        .is_seen_as("the observer was blind");
}

impl Stage {
    fn another_starts_on(&mut self, slice: Slice) -> &mut Self {
        let revision = Some(self.revision);
        self.started_with(revision, "another", OTHER_CLAIM, slice.device, slice.nodes)
    }

    #[track_caller]
    fn shares_hardware(&mut self) {
        let violations = self.judge.take_verdict().violations;
        let is_that = |violation: &String| violation.contains(" is used by ml/");
        assert!(violations.iter().any(is_that), "{violations:?}");
    }

    /// That the other one has no permit is not what is asked here.
    #[track_caller]
    fn shares_nothing(&mut self) {
        let violations = self.judge.take_verdict().violations;
        let is_that = |violation: &String| violation.contains("there is no permit");
        assert!(violations.iter().any(is_that), "{violations:?}");
        let is_shared = |violation: &String| violation.contains(" is used by ");
        assert!(!violations.iter().any(is_shared), "{violations:?}");
    }
}

#[test]
fn a_slice_that_is_charged_otherwise_than_its_share_is_seen_as_s1() {
    for (gpus_milli, vram_gib, is_well) in [
        (250, 20, true),
        // What was planned came to be had cheaper.
        (285, 20, true),
        (250, 40, true),
        (125, 20, false),
        (250, 10, false),
    ] {
        let charge = charge_of(gpus_milli, vram_gib);
        let mut stage = a_gang_admitted_for(&charge);
        // Nobody knows yet what it gets.
        stage.is_all_well();
        stage.shows(claim_of(Some(QUARTER)));
        if is_well {
            stage.is_all_well();
        } else {
            stage.is_seen_as("S1");
        }
    }
}

#[test]
fn a_permit_that_does_not_cover_the_slice_is_seen_as_s3() {
    let mut stage = a_gang_admitted_for(&charge_of(250, 20));
    stage.shows(ungated_pod(1, "node-0", true, "Running"));
    let revision = Some(stage.revision);
    // A whole GPU, by a permit for a quarter of one.
    stage
        .started_with(revision, "pod", CLAIM, WHOLE.device, WHOLE.nodes)
        .is_seen_as("S3");
}

#[test]
fn a_slice_that_stays_on_its_card_is_seen_as_s6() {
    let mut stage = a_gang_that_ended();
    let cards = Cards::fresh(&["GPU-0"]);
    let nodes: Vec<String> = WITHIN.nodes.iter().map(|&node| node.to_owned()).collect();
    let slices = cards.parts(&nodes).unwrap();
    stage.judge.slices("node-0", slices);
    // The driver has a record of some claim.
    stage.finds_on_disk(&[("node-0", CLAIM)]);
    let left = stage.judge.left_over().join("; ");
    assert!(left.contains("cut off"), "{left}");
    stage.finds_on_disk(&[]).passes(LATE_MILLIS);
    stage.is_seen_as("S6");
    stage.judge.slices("node-0", Vec::new());
    assert_eq!(stage.judge.left_over(), Vec::<String>::new());
}

#[test]
fn a_slice_that_is_held_is_the_cause_of_the_taint_of_its_gpu() {
    let Object::NodeDevices(mut held) = permits(Permits {
        is_held: true,
        ..LIVE
    }) else {
        panic!("permits are in NodeDevices");
    };
    for held in held.status.iter_mut().flat_map(|status| &mut status.held) {
        held.devices = vec![WITHIN.device.to_owned()];
    }
    let mut stage = a_gang_that_runs_on(WITHIN, &charge_of(142, 10));
    stage
        .shows(Object::NodeDevices(held))
        .shows(published(Some("gpu.muster.dev/held")))
        .passes(LATE_MILLIS)
        .is_all_well();
}

#[test]
fn a_claim_that_kube_scheduler_made_is_charged_and_permitted_by_the_name_of_its_class() {
    let name = format!("{POD}/deviceclass.resource.kubernetes.io/gpu.muster.dev");
    let made = |devices: u32| {
        let Object::Claim(mut claim) = claim(devices) else {
            panic!("a claim is a claim");
        };
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": POD, "controller": true});
        claim.metadata.owner_references = Some(vec![object(&owner)]);
        let key = "resource.kubernetes.io/extended-resource-claim".to_owned();
        claim.metadata.annotations = Some([(key, "true".to_owned())].into());
        Object::Claim(claim)
    };
    for (charged, devices, seen_as) in [
        (Some(&*name), 1, None),
        (Some(&*name), 2, Some("S1")),
        (None, 1, Some("S3")),
    ] {
        let mut charge = charge_of(1000, 0);
        charge["claims"][0]["uids"] = json!([charged.unwrap_or(OTHER_CLAIM)]);
        let mut node_devices = permitted_for(&charge);
        if let (Object::NodeDevices(node), Some(name)) = (&mut node_devices, charged) {
            for permit in &mut node.spec.permits {
                permit.claim_uids = vec![name.to_owned()];
            }
        }
        let mut admission = admission(1);
        admission["charge"] = charge.clone();
        admission["pods"][0]["claims"] = charge["claims"][0]["uids"].clone();
        let status = json!({
            "phase": "Admitted", "attempt": 1, "admission": admission,
            "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 1}]}
        });
        let mut stage = Stage::default();
        stage
            .shows(node())
            .shows(slice(None))
            .shows(flavor("a"))
            .shows(namespace("research"))
            .shows(team(4))
            .shows(gated_pod())
            .shows(gang(&status))
            .shows(node_devices)
            .shows(made(devices));
        match seen_as {
            None => {
                stage
                    .shows(ungated_pod(1, "node-0", true, "Running"))
                    .starts("pod", CLAIM, "gpu-0")
                    .is_all_well();
            }
            Some("S1") => stage.is_seen_as("S1"),
            Some(other) => {
                stage.starts("pod", CLAIM, "gpu-0");
                let violations = stage.judge.take_verdict().violations;
                let is_that = |violation: &String| violation.starts_with(other);
                assert!(violations.iter().any(is_that), "{violations:?}");
            }
        }
    }
}
