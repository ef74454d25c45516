//! The observer sees a violation of each invariant when one is staged, and none when all goes well.

mod faults;
mod outages;
mod releases;
mod slices;
mod whole_evictions;

use serde_json::{Value, json};

use super::{
    Expected,
    disk::Remains,
    findings::Invariant,
    hardware::Cards,
    judge::Judge,
    record::Line,
    world::{Change, Object},
};

/// Time from one thing to the next.
const STEP_MILLIS: u64 = 300;
/// Longer than any bound of time.
const LATE_MILLIS: u64 = 90_000;
/// A claim of one GPU, and the pod that holds it.
const CLAIM: &str = "c0000000-0000-0000-0000-000000000001";
const POD: &str = "p0000000-0000-0000-0000-000000000001";
const OTHER_CLAIM: &str = "c0000000-0000-0000-0000-000000000002";

/// A stage on which things happen one after another, each at a revision of its own.
#[derive(Default)]
struct Stage {
    judge: Judge,
    revision: u64,
    now_millis: u64,
}

impl Stage {
    fn shows(&mut self, object: Object) -> &mut Self {
        self.happens(object, false)
    }

    fn loses(&mut self, object: Object) -> &mut Self {
        self.happens(object, true)
    }

    fn happens(&mut self, object: Object, gone: bool) -> &mut Self {
        self.revision += 1;
        self.judge
            .commit(self.revision, vec![Change { object, gone }]);
        self.passes(STEP_MILLIS)
    }

    fn passes(&mut self, millis: u64) -> &mut Self {
        self.now_millis += millis;
        self.judge.tick(self.now_millis);
        self
    }

    fn starts(&mut self, container: &str, claim: &str, device: &str) -> &mut Self {
        self.started_at(Some(self.revision), container, claim, device)
    }

    /// A line that is read now, of a container that was started at this revision.
    fn started_at(
        &mut self,
        revision: Option<u64>,
        container: &str,
        claim: &str,
        device: &str,
    ) -> &mut Self {
        let node = device.replace("gpu-", "/dev/nvidia");
        self.started_with(revision, container, claim, device, &[node.as_str()])
    }

    /// The same of a container that was given these device nodes.
    fn started_with(
        &mut self,
        revision: Option<u64>,
        container: &str,
        claim: &str,
        device: &str,
        device_nodes: &[&str],
    ) -> &mut Self {
        let line = json!({
            "event": "started", "podNamespace": "ml", "podName": container, "podUid": POD, "containerId": container,
            "revision": revision,
            "cdiDevices": [format!("gpu.muster.dev/claim={claim}-{device}")],
            "deviceNodes": device_nodes,
        });
        self.reads(&line)
    }

    fn exits(&mut self, container: &str) -> &mut Self {
        self.exited_at(self.revision, container)
    }

    fn exited_at(&mut self, revision: u64, container: &str) -> &mut Self {
        let line = json!({
            "event": "exited", "podNamespace": "ml", "podName": container, "podUid": POD, "containerId": container,
            "revision": revision
        });
        self.reads(&line)
    }

    fn reads(&mut self, line: &Value) -> &mut Self {
        self.judge.record(
            "node-0",
            &Cards::fresh(&["GPU-0", "GPU-1"]),
            &serde_json::from_value::<Line>(line.clone()).unwrap(),
        );
        self.passes(100)
    }

    fn finds_on_disk(&mut self, files: &[(&'static str, &'static str)]) -> &mut Self {
        self.judge.disks(files.iter().copied().collect::<Remains>());
        self.passes(100)
    }

    /// Fails unless exactly the named invariant was violated.
    #[track_caller]
    fn is_seen_as(&mut self, invariant: &str) {
        let violations = self.judge.take_verdict().violations;
        assert!(!violations.is_empty(), "{invariant} was not seen");
        let prefix = format!("{invariant}:");
        let is_that = |violation: &String| violation.starts_with(&prefix);
        assert!(violations.iter().all(is_that), "{violations:?}");
    }

    #[track_caller]
    fn is_all_well(&mut self) {
        let verdict = self.judge.take_verdict();
        assert_eq!(verdict.violations, Vec::<String>::new());
    }
}

fn object<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).unwrap()
}

fn namespace(team: &str) -> Object {
    Object::Namespace(Box::new(object(
        &json!({"metadata": {"name": "ml", "labels": {"muster.dev/team": team}}}),
    )))
}

/// Flavor `h100`, of the nodes of this pool.
fn flavor(pool: &str) -> Object {
    Object::Flavor(Box::new(object(
        &json!({"metadata": {"name": "h100"}, "spec": {"nodeSelector": {"pool": pool}}}),
    )))
}

/// Node `node-0` of pool `a`.
fn node() -> Object {
    Object::Node(Box::new(object(
        &json!({"metadata": {"name": "node-0", "labels": {"pool": "a"}}}),
    )))
}

fn slice(taint: Option<&str>) -> Object {
    let taints: Vec<Value> = taint
        .iter()
        .map(|key| json!({"key": key, "effect": "NoSchedule"}))
        .collect();
    Object::Slice(Box::new(object(&json!({
        "metadata": {"name": "slice"},
        "spec": {"driver": "gpu.muster.dev", "nodeName": "node-0", "pool": {"name": "node-0", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "taints": taints}]}
    }))))
}

fn team(nominal: u32) -> Object {
    Object::Team(Box::new(object(&json!({
        "metadata": {"name": "research", "uid": "t1"},
        "spec": {"quota": [{"flavor": "h100", "resources": [{"name": "gpus", "nominal": nominal}]}]}
    }))))
}

fn claim(devices: u32) -> Object {
    let results: Vec<Value> = (0..devices)
        .map(|n| json!({"request": "gpus", "driver": "gpu.muster.dev", "pool": "node-0", "device": format!("gpu-{n}")}))
        .collect();
    Object::Claim(Box::new(object(&json!({
        "metadata": {"name": "claim", "namespace": "ml", "uid": CLAIM},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.muster.dev", "count": devices}}]}},
        "status": {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": POD}]
        }
    }))))
}

/// The same claim after its allocation was taken back.
fn freed_claim() -> Object {
    Object::Claim(Box::new(object(&json!({
        "metadata": {"name": "claim", "namespace": "ml", "uid": CLAIM},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.muster.dev"}}]}}
    }))))
}

fn charge(gpus: u32) -> Value {
    json!({"claims": [{"flavor": "h100", "gpusMilli": gpus * 1000, "vramBytes": 0, "uids": [CLAIM]}]})
}

fn admission(gpus: u32) -> Value {
    json!({"team": "research", "teamGeneration": 1, "ledgerSequence": 1, "charge": charge(gpus), "pods": [{"uid": POD, "claims": [CLAIM]}]})
}

fn gang(status: &Value) -> Object {
    Object::Gang(Box::new(object(&json!({
        "metadata": {"name": "gang", "namespace": "ml", "uid": "g1"}, "spec": {"size": 1}, "status": status
    }))))
}

fn admitted_gang(gpus: u32) -> Object {
    gang(&json!({
        "phase": "Admitted", "attempt": 1, "admission": admission(gpus),
        "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 1}]}
    }))
}

/// How the node's permits are.
#[derive(Clone, Copy)]
struct Permits {
    given: bool,
    charged_gpus: u32,
    withdrawn: bool,
    generation: i64,
    acknowledged: i64,
    is_held: bool,
    epoch: i64,
}

const LIVE: Permits = Permits {
    given: true,
    charged_gpus: 1,
    withdrawn: false,
    generation: 1,
    acknowledged: 1,
    is_held: false,
    epoch: 1,
};

const WITHDRAWN: Permits = Permits {
    withdrawn: true,
    generation: 2,
    ..LIVE
};

fn permits(permits: Permits) -> Object {
    let given = if permits.given {
        json!([{"podUid": POD, "claimUids": [CLAIM], "gang": "ml/gang", "gangUid": "g1", "attempt": 1, "team": "research",
            "charge": charge(permits.charged_gpus), "withdrawn": permits.withdrawn}])
    } else {
        json!([])
    };
    let held = if permits.is_held {
        json!([{"claimUid": CLAIM, "namespace": "ml", "name": "claim", "devices": ["gpu-0"]}])
    } else {
        json!([])
    };
    Object::NodeDevices(Box::new(object(&json!({
        "metadata": {"name": "node-0", "uid": "nd0", "generation": permits.generation},
        "spec": {"nodeUid": "n0", "leaderEpoch": permits.epoch, "enforce": true, "permits": given},
        "status": {"uid": "nd0", "observedGeneration": permits.acknowledged, "held": held}
    }))))
}

fn permitted(given: bool) -> Object {
    permits(Permits { given, ..LIVE })
}

fn gated_pod() -> Object {
    Object::Pod(Box::new(object(&json!({
        "metadata": {"name": "pod", "namespace": "ml", "uid": POD},
        "spec": {
            "containers": [], "schedulingGates": [{"name": "muster.dev/admission"}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": "claim"}]
        }
    }))))
}

fn ungated_pod(attempt: u32, pin: &str, bound: bool, phase: &str) -> Object {
    let mut pod = json!({
        "metadata": {"name": "pod", "namespace": "ml", "uid": POD, "annotations": {
            "muster.dev/gang-name": "gang", "muster.dev/attempt": attempt.to_string(), "muster.dev/placement": "pinned"}},
        "spec": {
            "containers": [], "resourceClaims": [{"name": "gpus", "resourceClaimName": "claim"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pin]}]}]}}}
        },
        "status": {"phase": phase}
    });
    if bound {
        pod["spec"]["nodeName"] = json!(pin);
    }
    Object::Pod(Box::new(object(&pod)))
}

/// A Team with a quota of `quota` GPUs, and a gated pod whose claim asks for `asked`.
fn a_gang_that_waits(quota: u32, asked: u32) -> Stage {
    let mut stage = Stage::default();
    stage
        .shows(node())
        .shows(slice(None))
        .shows(flavor("a"))
        .shows(namespace("research"))
        .shows(team(quota))
        .shows(claim(asked))
        .shows(gated_pod());
    stage
}

/// The same with one GPU, admitted.
fn a_gang_that_is_admitted() -> Stage {
    let mut stage = a_gang_that_waits(1, 1);
    stage.shows(admitted_gang(1));
    stage
}

/// The way of one gang as it should be, up to its running container.
fn a_gang_that_runs() -> Stage {
    let mut stage = a_gang_that_is_admitted();
    stage
        .shows(permitted(true))
        .shows(ungated_pod(1, "node-0", false, "Pending"))
        .shows(ungated_pod(1, "node-0", true, "Running"))
        .starts("pod", CLAIM, "gpu-0");
    stage
}

/// The same, to its end: its pod has succeeded and everything was given back.
fn a_gang_that_ended() -> Stage {
    let mut stage = a_gang_that_runs();
    stage
        .exits("pod")
        .shows(ungated_pod(1, "node-0", true, "Succeeded"))
        .shows(freed_claim())
        .shows(gang(&json!({"phase": "Finished", "attempt": 1})))
        .shows(permits(WITHDRAWN))
        .shows(permitted(false));
    stage
}

#[test]
fn nothing_is_wrong_with_a_gang_that_runs_and_ends_in_order() {
    let mut stage = a_gang_that_runs();
    stage.passes(LATE_MILLIS);
    let verdict = stage.judge.take_verdict();
    assert_eq!(verdict.violations, Vec::<String>::new());
    assert_eq!(verdict.seen.gangs, 1);

    let mut stage = a_gang_that_ended();
    stage.passes(LATE_MILLIS);
    assert_eq!(stage.judge.left_over(), Vec::<String>::new());
    let verdict = stage.judge.take_verdict();
    assert_eq!(verdict.wrong(Expected::Gangs), Vec::<String>::new());
}

#[test]
fn an_invariant_that_was_never_checked_is_never_all_well() {
    let mut stage = a_gang_that_ended();
    let mut verdict = stage.judge.take_verdict();
    for invariant in Expected::Gangs.invariants() {
        let checks = verdict.seen.checks.remove(invariant).unwrap();
        let wrong = verdict.wrong(Expected::Gangs).join("; ");
        let named = format!("never checked {invariant}");
        assert!(wrong.contains(&named), "{invariant}: {wrong}");
        verdict.seen.checks.insert(*invariant, checks);
    }
    assert!(verdict.seen.checks.contains_key(&Invariant::S16));
}

#[test]
fn a_team_that_gets_more_than_its_quota_is_seen_as_s1() {
    a_gang_that_waits(1, 2)
        .shows(admitted_gang(2))
        .is_seen_as("S1");
}

#[test]
fn a_charge_that_is_less_than_the_claim_asks_for_is_seen_as_s1() {
    a_gang_that_waits(4, 2)
        .shows(admitted_gang(1))
        .is_seen_as("S1");
}

#[test]
fn a_charge_to_another_team_than_the_namespaces_is_seen_as_s1() {
    a_gang_that_waits(4, 1)
        .shows(namespace("product"))
        .shows(admitted_gang(1))
        .is_seen_as("S1");
}

#[test]
fn what_comes_back_from_a_dead_node_without_a_charge_is_charged_to_no_other_team() {
    let left = |team: &str| {
        let permit = json!({"podUid": "of-claim", "claimUids": [OTHER_CLAIM], "gang": "ml/", "gangUid": "", "attempt": 0,
            "team": team, "charge": {"claims": []}, "withdrawn": true});
        Object::NodeDevices(Box::new(object(&json!({
            "metadata": {"name": "node-1", "uid": "nd1", "generation": 1},
            "spec": {"nodeUid": "n1", "leaderEpoch": 1, "enforce": true, "permits": [permit]}
        }))))
    };
    a_gang_that_is_admitted().shows(left("")).is_all_well();
    a_gang_that_is_admitted()
        .shows(left("others"))
        .is_seen_as("S1");
}

#[test]
fn a_namespace_that_joins_another_team_takes_no_running_gang_with_it() {
    a_gang_that_runs()
        .shows(namespace("product"))
        .shows(permitted(true))
        .is_all_well();
}

#[test]
fn a_charge_to_a_flavor_without_the_claims_devices_is_seen_as_s1() {
    a_gang_that_waits(4, 1)
        .shows(flavor("b"))
        .shows(admitted_gang(1))
        .is_seen_as("S1");
}

#[test]
fn a_limit_that_is_lowered_below_the_use_is_no_violation() {
    let mut stage = a_gang_that_runs();
    stage.shows(team(0)).shows(permitted(true)).is_all_well();
}

/// Another gang of the Team with a GPU, admitted.
fn another_gang(name: &str) -> Object {
    let uid = format!("claim of {name}");
    let charge =
        json!({"claims": [{"flavor": "h100", "gpusMilli": 1000, "vramBytes": 0, "uids": [uid]}]});
    Object::Gang(Box::new(object(&json!({
        "metadata": {"name": name, "namespace": "ml", "uid": name}, "spec": {"size": 1},
        "status": {"phase": "Admitted", "attempt": 1, "admission": {"team": "research", "teamGeneration": 1, "ledgerSequence": 2,
            "charge": charge, "pods": [{"uid": format!("pod of {name}"), "claims": [uid]}]}}
    }))))
}

/// The node's live permit, with the mark that it is lost or without.
fn lost(is_lost: bool) -> Object {
    let Object::NodeDevices(mut node) = permits(LIVE) else {
        panic!("permits are in NodeDevices");
    };
    node.spec.lost = is_lost;
    Object::NodeDevices(node)
}

#[test]
fn what_a_lost_node_holds_counts_for_no_team_until_it_is_back_and_then_only_falls() {
    let mut stage = a_gang_that_runs();
    stage.shows(another_gang("next")).is_seen_as("S1");

    let mut stage = a_gang_that_runs();
    stage
        .shows(lost(true))
        .shows(another_gang("next"))
        .is_all_well();
    stage.shows(another_gang("more")).is_seen_as("S1");

    let mut stage = a_gang_that_runs();
    stage
        .shows(lost(true))
        .shows(another_gang("next"))
        .shows(lost(false))
        .shows(permitted(true))
        .is_all_well();
    stage.shows(another_gang("more")).is_seen_as("S1");
}

#[test]
fn a_container_on_a_lost_node_is_charged_all_the_same() {
    let mut stage = a_gang_that_runs();
    stage.shows(lost(true)).passes(LATE_MILLIS).is_all_well();
}

#[test]
fn a_bound_gpu_pod_without_a_charge_is_seen_as_s2() {
    let mut stage = Stage::default();
    stage
        .shows(team(1))
        .shows(claim(1))
        .shows(ungated_pod(1, "node-0", true, "Running"));
    stage.passes(LATE_MILLIS).is_seen_as("S2");
}

/// Pod `plugin` of one container and a sidecar, which asks for `units` and one more of a device plugin.
fn plugin_pod(units: u32) -> Object {
    let limits = |units: u32| json!({"limits": {"nvidia.com/gpu": units.to_string()}});
    Object::Pod(Box::new(object(&json!({
        "metadata": {"name": "plugin", "namespace": "ml", "uid": POD},
        "spec": {
            "nodeName": "node-0",
            "containers": [{"name": "c", "resources": limits(units)}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": limits(1)}],
        },
        "status": {"phase": "Running"}
    }))))
}

/// The pod runs on a node of Flavor `h100`, which counts what plugins of pool `pool` hand out, and its permit charges it for so many GPUs.
fn a_plugin_pod_that_runs(pool: &str, units: u32, charged: u32) -> Stage {
    let flavor = object(&json!({"metadata": {"name": "h100"},
        "spec": {"nodeSelector": {"pool": pool}, "extendedResource": "nvidia.com/gpu"}}));
    let uid = format!("{POD}/nvidia.com/gpu");
    let permits = json!([{"podUid": POD, "claimUids": [uid], "gang": "ml/gang", "gangUid": "g1", "attempt": 1, "team": "research",
        "charge": {"claims": [{"flavor": "h100", "gpusMilli": charged * 1000, "vramBytes": 0, "uids": [uid]}]}}]);
    let permits = if charged == 0 { json!([]) } else { permits };
    let mut stage = Stage::default();
    stage
        .shows(node())
        .shows(Object::Flavor(Box::new(flavor)))
        .shows(namespace("research"))
        .shows(team(8))
        .shows(Object::NodeDevices(Box::new(object(&json!({
            "metadata": {"name": "node-0", "uid": "nd0", "generation": 1},
            "spec": {"nodeUid": "n0", "leaderEpoch": 1, "enforce": true, "permits": permits},
        })))))
        .shows(plugin_pod(units));
    stage.passes(LATE_MILLIS);
    stage
}

#[test]
fn a_pod_with_gpus_of_a_device_plugin_is_charged_what_it_asks_for_to_the_flavor_of_its_node() {
    a_plugin_pod_that_runs("a", 3, 4).is_all_well();
    a_plugin_pod_that_runs("a", 3, 3).is_seen_as("S1");
    a_plugin_pod_that_runs("b", 3, 4).is_seen_as("S1");
    a_plugin_pod_that_runs("a", 3, 0).is_seen_as("S2");
}

#[test]
fn a_charge_that_goes_while_the_container_runs_is_seen_as_s2_also_when_it_comes_back() {
    let mut stage = a_gang_that_runs();
    stage
        .shows(gang(&json!({"phase": "Pending", "attempt": 1})))
        .shows(permitted(false))
        .shows(permitted(true));
    stage.passes(LATE_MILLIS).is_seen_as("S2");
}

#[test]
fn a_container_whose_exit_is_read_after_its_charge_went_did_not_run_without_one() {
    let mut stage = a_gang_that_runs();
    let exited = stage.revision;
    stage
        .shows(ungated_pod(1, "node-0", true, "Succeeded"))
        .shows(gang(&json!({"phase": "Finished", "attempt": 1})))
        .shows(permitted(false))
        .exited_at(exited, "pod")
        .passes(LATE_MILLIS);
    let violations = stage.judge.take_verdict().violations;
    assert!(
        violations
            .iter()
            .all(|violation| !violation.starts_with("S2")),
        "{violations:?}"
    );
}

#[test]
fn a_gpu_in_two_containers_is_seen_as_s3() {
    let mut stage = a_gang_that_runs();
    stage.starts("thief", OTHER_CLAIM, "gpu-0");
    let violations = stage.judge.take_verdict().violations;
    assert!(
        violations
            .iter()
            .any(|violation| violation.contains("gpu-0 of node-0 is used by")),
        "{violations:?}"
    );
}

#[test]
fn a_container_without_a_permit_is_seen_as_s3_also_when_it_has_exited() {
    let mut stage = a_gang_that_is_admitted();
    stage.shows(permitted(false));
    let revision = stage.revision;
    stage
        .started_at(Some(revision), "pod", CLAIM, "gpu-0")
        .exited_at(revision, "pod")
        .is_seen_as("S3");
}

#[test]
fn a_container_that_started_before_its_permit_is_seen_as_s3_however_late_its_line_is_read() {
    let mut stage = a_gang_that_is_admitted();
    stage.shows(permitted(false));
    let started = stage.revision;
    stage
        .shows(permitted(true))
        .started_at(Some(started), "pod", CLAIM, "gpu-0")
        .is_seen_as("S3");
}

#[test]
fn a_container_that_started_after_its_permit_was_given_back_is_seen_as_s3() {
    // The proof of release: withdrawn, acknowledged, not held.
    let released = Permits {
        acknowledged: 2,
        ..WITHDRAWN
    };
    let mut stage = a_gang_that_is_admitted();
    stage
        .shows(permitted(true))
        .shows(permits(WITHDRAWN))
        .shows(permits(released))
        .starts("pod", CLAIM, "gpu-0")
        .is_seen_as("S3");
}

#[test]
fn what_was_prepared_under_a_permit_may_start_until_its_release_is_proved() {
    let held = Permits {
        acknowledged: 2,
        is_held: true,
        ..WITHDRAWN
    };
    for withdrawn in [WITHDRAWN, held] {
        let mut stage = a_gang_that_is_admitted();
        stage
            .shows(permitted(true))
            .shows(permits(withdrawn))
            .starts("pod", CLAIM, "gpu-0")
            .is_all_well();
    }
}

#[test]
fn a_container_with_more_devices_than_its_permit_is_charged_for_is_seen_as_s3() {
    let uncharged = Permits {
        charged_gpus: 0,
        ..LIVE
    };
    let mut stage = a_gang_that_is_admitted();
    stage
        .shows(permits(uncharged))
        .starts("pod", CLAIM, "gpu-0")
        .is_seen_as("S3");
}

#[test]
fn a_line_without_a_revision_is_judged_by_the_last_one_that_is_known() {
    a_gang_that_is_admitted()
        .shows(permitted(true))
        .started_at(None, "pod", CLAIM, "gpu-0")
        .is_all_well();
    a_gang_that_is_admitted()
        .shows(permitted(false))
        .started_at(None, "pod", CLAIM, "gpu-0")
        .is_seen_as("S3");
}

#[test]
fn an_ungate_before_the_plan_is_stored_is_seen_as_s4() {
    a_gang_that_waits(1, 1)
        .shows(gang(&json!({"phase": "Pending", "attempt": 1})))
        .shows(ungated_pod(1, "node-0", false, "Pending"))
        .is_seen_as("S4");
}

#[test]
fn an_ungate_for_another_attempt_or_another_node_is_seen_as_s4() {
    for (attempt, pin) in [(2, "node-0"), (1, "node-1")] {
        a_gang_that_is_admitted()
            .shows(ungated_pod(attempt, pin, false, "Pending"))
            .is_seen_as("S4");
    }
}

#[test]
fn an_ungate_while_a_pod_is_missing_or_of_a_pod_outside_the_plan_is_seen_as_s4() {
    let other = json!({"uid": "another-pod", "claims": []});
    let own = json!({"uid": POD, "claims": [CLAIM]});
    for pods in [json!([own, other]), json!([other])] {
        let mut admission = admission(1);
        admission["pods"] = pods;
        let status = json!({
            "phase": "Admitted", "attempt": 1, "admission": admission,
            "placement": {"nodes": [{"node": "node-0", "nodeUid": "n0", "ranks": 2}]}
        });
        a_gang_that_waits(1, 1)
            .shows(gang(&status))
            .shows(permits(LIVE))
            .shows(ungated_pod(1, "node-0", false, "Pending"))
            .is_seen_as("S4");
    }
}

#[test]
fn another_plan_within_an_attempt_is_seen_as_s4() {
    let elsewhere = json!({
        "phase": "Admitted", "attempt": 1, "admission": admission(1),
        "placement": {"nodes": [{"node": "node-1", "nodeUid": "n1", "ranks": 1}]}
    });
    a_gang_that_is_admitted()
        .shows(gang(&elsewhere))
        .is_seen_as("S4");
}

#[test]
fn an_attempt_that_follows_a_later_one_is_seen_as_s16() {
    a_gang_that_waits(1, 1)
        .shows(gang(&json!({"phase": "Pending", "attempt": 2})))
        .shows(gang(&json!({"phase": "Pending", "attempt": 1})))
        .is_seen_as("S16");
}

#[test]
fn a_gang_that_vanishes_while_its_pods_live_is_seen_as_s5() {
    let mut stage = a_gang_that_runs();
    stage
        .loses(admitted_gang(1))
        .passes(LATE_MILLIS)
        .passes(LATE_MILLIS)
        .is_seen_as("S5");
}

#[test]
fn a_gang_that_failed_without_a_reason_is_seen_as_s5() {
    a_gang_that_is_admitted()
        .shows(gang(&json!({"phase": "Failed", "attempt": 1})))
        .is_seen_as("S5");
}

#[test]
fn a_charge_that_outlives_its_pod_is_seen_as_s6() {
    let mut stage = a_gang_that_runs();
    stage
        .exits("pod")
        .loses(ungated_pod(1, "node-0", true, "Running"))
        .passes(LATE_MILLIS)
        .is_seen_as("S6");
}

#[test]
fn an_allocation_a_file_or_a_taint_that_outlives_its_pod_is_seen_as_s6() {
    type Leave = fn(&mut Stage);
    let leaves: [(&str, Leave); 3] = [
        ("allocated", |stage| {
            stage.shows(claim(1));
        }),
        ("CDI file", |stage| {
            stage.finds_on_disk(&[("node-0", CLAIM)]);
        }),
        ("tainted", |stage| {
            stage.shows(slice(Some("gpu.muster.dev/held")));
        }),
    ];
    for (word, leave) in leaves {
        let mut stage = a_gang_that_ended();
        leave(&mut stage);
        stage.passes(LATE_MILLIS);
        assert!(!stage.judge.left_over().is_empty(), "{word}");
        let violations = stage.judge.take_verdict().violations;
        let is_that = |violation: &String| violation.starts_with("S6") && violation.contains(word);
        assert!(
            !violations.is_empty() && violations.iter().all(is_that),
            "{word}: {violations:?}"
        );
    }
}

#[test]
fn a_taint_of_a_device_that_is_held_and_a_file_of_a_pod_that_runs_have_a_cause() {
    let held = Permits {
        is_held: true,
        ..LIVE
    };
    a_gang_that_runs()
        .shows(permits(held))
        .shows(slice(Some("gpu.muster.dev/held")))
        .finds_on_disk(&[("node-0", CLAIM)])
        .passes(LATE_MILLIS)
        .is_all_well();
}

#[test]
fn a_write_of_an_older_epoch_is_seen_as_s16() {
    let newer = Permits { epoch: 2, ..LIVE };
    a_gang_that_is_admitted()
        .shows(permits(newer))
        .shows(permits(LIVE))
        .is_seen_as("S16");
}

#[test]
fn a_ledger_or_a_gang_of_an_older_epoch_is_seen_as_s16() {
    let ledger = |epoch: i64| {
        Object::Ledger(Box::new(object(&json!({
            "metadata": {"name": "cluster", "uid": "l1"},
            "spec": {"leaderEpoch": epoch, "sequence": 1, "intents": []}
        }))))
    };
    let pending =
        |epoch: i64| gang(&json!({"phase": "Pending", "attempt": 1, "leaderEpoch": epoch}));
    for [newer, older] in [[2, 1].map(ledger), [2, 1].map(pending)] {
        a_gang_that_waits(1, 1)
            .shows(newer)
            .shows(older)
            .is_seen_as("S16");
    }
}

#[test]
fn bounds_of_time_stand_still_while_muster_is_stopped_on_purpose() {
    let mut stage = a_gang_that_runs();
    stage.judge.suspend_bounds(true);
    stage
        .exits("pod")
        .loses(ungated_pod(1, "node-0", true, "Running"));
    for _ in 0..60 {
        stage.passes(1_000);
    }
    stage.is_all_well();
    stage.judge.suspend_bounds(false);
    stage.passes(LATE_MILLIS).is_seen_as("S6");
}

#[test]
fn a_violation_is_told_once_and_by_the_verdict_after_it() {
    let mut stage = a_gang_that_waits(1, 2);
    stage.is_all_well();
    // Between two scenarios, as it were.
    stage.shows(admitted_gang(2));
    stage.is_seen_as("S1");
    stage.passes(LATE_MILLIS).is_all_well();
}

#[test]
fn a_revision_that_is_missing_is_never_all_well() {
    let mut stage = a_gang_that_runs();
    stage.revision += 1;
    stage.shows(permitted(true));
    stage.is_seen_as("the observer was blind");
}
