//! The observer sees a violation of each invariant when one is staged, and none when all goes well.

use serde_json::{Value, json};

use super::{
    judge::Judge,
    record::Line,
    world::{Change, Object},
};

/// Longer than events wait for earlier ones.
const RIPE_MILLIS: u64 = 5_000;
/// Longer than any bound of time.
const LATE_MILLIS: u64 = 60_000;
/// A claim of one GPU, and the pod that holds it.
const CLAIM: &str = "c0000000-0000-0000-0000-000000000001";
const POD: &str = "p0000000-0000-0000-0000-000000000001";

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
            .observe(self.revision, self.now_millis, Change { object, gone });
        self.passes(RIPE_MILLIS - 2_000)
    }

    fn passes(&mut self, millis: u64) -> &mut Self {
        self.now_millis += millis;
        self.judge.tick(self.now_millis);
        self
    }

    fn starts(&mut self, container: &str, claim: &str, device: &str) -> &mut Self {
        let line = json!({
            "event": "started", "podNamespace": "ml", "podName": container, "podUid": POD, "containerId": container,
            "cdiDevices": [format!("gpu.muster.dev/claim={claim}-{device}")], "env": {"MUSTER_VISIBLE_GPUS": device}
        });
        self.judge
            .record("node-0", &serde_json::from_value::<Line>(line).unwrap());
        self.passes(100)
    }

    fn exits(&mut self, container: &str) -> &mut Self {
        let line = json!({"event": "exited", "podNamespace": "ml", "podName": container, "podUid": POD, "containerId": container});
        self.judge
            .record("node-0", &serde_json::from_value::<Line>(line).unwrap());
        self.passes(100)
    }

    /// Fails unless exactly the named invariant was violated.
    #[track_caller]
    fn is_seen_as(&self, invariant: &str) {
        let violations = self.judge.verdict().violations;
        assert!(!violations.is_empty(), "{invariant} was not seen");
        assert!(
            violations
                .iter()
                .all(|violation| violation.starts_with(invariant)),
            "{violations:?}"
        );
    }

    #[track_caller]
    fn is_all_well(&self) {
        assert_eq!(self.judge.verdict().violations, Vec::<String>::new());
        assert!(self.judge.verdict().seen.checks > 0);
    }
}

fn object<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).unwrap()
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
        "status": {"allocation": {"devices": {"results": results}}}
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

fn permitted(permits: bool) -> Object {
    let permits = if permits {
        json!([{"podUid": POD, "claimUids": [CLAIM], "gang": "ml/gang", "gangUid": "g1", "attempt": 1, "team": "research", "charge": charge(1)}])
    } else {
        json!([])
    };
    Object::NodeDevices(Box::new(object(&json!({
        "metadata": {"name": "node-0", "uid": "nd0"},
        "spec": {"nodeUid": "n0", "leaderEpoch": 1, "enforce": true, "permits": permits}
    }))))
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

#[test]
fn nothing_is_wrong_with_a_gang_that_runs_and_ends_in_order() {
    let mut stage = a_gang_that_runs();
    stage.passes(LATE_MILLIS).is_all_well();
    stage
        .exits("pod")
        .shows(ungated_pod(1, "node-0", true, "Succeeded"))
        .shows(permitted(false))
        .shows(gang(&json!({"phase": "Finished", "attempt": 1})))
        .passes(LATE_MILLIS)
        .is_all_well();
    assert_eq!(stage.judge.left_over(), Vec::<String>::new());
    assert_eq!(stage.judge.verdict().seen.gangs, 1);
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
fn a_limit_that_is_lowered_below_the_use_is_no_violation() {
    let mut stage = a_gang_that_runs();
    stage.shows(team(0)).shows(permitted(true)).is_all_well();
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

#[test]
fn a_gpu_in_two_containers_is_seen_as_s3() {
    let mut stage = a_gang_that_runs();
    stage
        .starts("thief", "c0000000-0000-0000-0000-000000000002", "gpu-0")
        .is_seen_as("S3");
}

#[test]
fn a_container_without_a_permit_is_seen_as_s3() {
    a_gang_that_is_admitted()
        .shows(permitted(false))
        .starts("pod", CLAIM, "gpu-0")
        .passes(LATE_MILLIS)
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
fn a_gang_that_vanishes_while_its_pods_live_is_seen_as_s5() {
    let mut stage = a_gang_that_runs();
    stage
        .loses(admitted_gang(1))
        .passes(LATE_MILLIS)
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
fn a_gap_in_the_watch_is_never_all_well() {
    let mut stage = a_gang_that_runs();
    stage.judge.gap("pods were listed again");
    stage.is_seen_as("the observer was blind");
}
