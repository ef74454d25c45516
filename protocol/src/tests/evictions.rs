//! Attempts that are evicted: what costs one, in which order it is taken back, and how its pods are ended.

use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use muster_api::{GangPhase, GangStatus, Intent, IntentKind, Reason, gang::Eviction};

mod failing_nodes;
mod forced;
mod left_of_deleted;
mod pauses;
mod recovery;
mod restarts;
mod room;
mod settings;
mod stalls;
mod suspensions;

use super::{
    ranks::{job, pod_of_job},
    *,
};
use crate::{
    JobChange, REFUSED_AT_MOST,
    objects::{is_deleting, is_gated, stamp},
    outward::gang_status,
};

/// The pods are bound where they are planned, and run.
pub(super) fn start(bench: &mut Bench, pods: &[&str]) {
    for name in pods {
        let uid = bench.server.pod(name).unwrap().metadata.uid.unwrap();
        let gangs = bench.server.list(Kind::Gang).into_iter();
        let mut nodes = gangs.filter_map(|gang| match gang {
            Object::Gang(gang) => {
                let status = gang.status.as_ref()?;
                let pods = &status.admission.as_ref()?.pods;
                let place = pods.iter().position(|it| it.uid == uid)?;
                let node = status.placement.as_ref()?.node_of(place)?;
                Some(node.node.clone())
            }
            _ => None,
        });
        let node = nodes.next().unwrap();
        bench.change_pod(name, |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node);
            set_phase(pod, "Running");
        });
    }
    bench.run();
}

fn set_phase(pod: &mut Pod, phase: &str) {
    pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
}

/// Kubelets end what is being deleted. Returns how many pods that were.
fn end_deleted(bench: &mut Bench) -> usize {
    let pods = bench.server.list(Kind::Pod);
    let gone: Vec<ObjectKey> = pods
        .iter()
        .filter(|pod| matches!(pod, Object::Pod(pod) if is_deleting(pod.as_ref())))
        .map(Object::key)
        .collect();
    for key in &gone {
        bench.server.remove(key);
    }
    gone.len()
}

/// A gang of two pods by label that runs.
fn running() -> Bench {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    start(&mut bench, &["train-0", "train-1"]);
    bench.written.clear();
    bench
}

/// A gang of two pods of a Job that runs. `change`: what else the Job says.
fn running_job(change: impl FnOnce(&mut Job)) -> Bench {
    running_job_of(2, change)
}

/// The same, of so many pods.
fn running_job_of(pods: usize, change: impl FnOnce(&mut Job)) -> Bench {
    let mut bench = Bench::new();
    bench.server.put(job(pods, 0));
    change_job(&mut bench, change);
    make_again(&mut bench, 0..pods);
    bench.written.clear();
    bench
}

/// The Job makes its pods with these indexes, and they run once they are admitted.
fn make_again(bench: &mut Bench, indexes: std::ops::Range<usize>) {
    for index in indexes.clone() {
        pod_of_job(bench, index);
    }
    bench.run();
    let names: Vec<String> = indexes.map(|index| format!("fit-{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    start(bench, &names);
}

/// The Job becomes a work queue of so many pods.
fn work_queue(job: &mut Job, pods: usize) {
    let spec = job.spec.as_mut().unwrap();
    spec.completions = None;
    spec.completion_mode = None;
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::GANG_SIZE.to_owned(), pods.to_string());
}

/// An administrator wants what the Team runs to end; nothing has come of it yet.
fn drain(bench: &mut Bench) {
    let mut object = team("vision", 4);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.stop = muster_api::team::Stop::HoldAndDrain;
    }
    bench.server.put(object);
}

fn forbidden() -> Outcome {
    Outcome::Refused("a policy forbids it".to_owned())
}

/// So many seconds in which some writes are answered otherwise than by doing what they ask for.
fn run_answering(bench: &mut Bench, seconds: u64, answer: impl Fn(&ApiRequest) -> Option<Outcome>) {
    for _ in 0..seconds {
        for _ in 0..12 {
            bench.acknowledge(&[]);
            for effect in &bench.poll() {
                match answer(&effect.write) {
                    Some(outcome) => {
                        bench.machine.settle(effect.id, outcome);
                    }
                    None => bench.perform(effect),
                }
            }
        }
        bench.seconds += 1;
    }
}

/// Somebody deletes a pod, which takes its time to end.
fn delete_slowly(bench: &mut Bench, name: &str) {
    bench.change_pod(name, |pod| {
        pod.metadata.deletion_timestamp =
            serde_json::from_value(json!("2027-01-01T00:00:09Z")).unwrap();
    });
}

pub(super) fn the_job(bench: &Bench) -> Job {
    match bench.server.list(Kind::Job).pop() {
        Some(Object::Job(job)) => Arc::unwrap_or_clone(job),
        _ => panic!("a Job"),
    }
}

pub(super) fn change_job(bench: &mut Bench, change: impl FnOnce(&mut Job)) {
    let mut job = the_job(bench);
    change(&mut job);
    bench.server.put(Object::Job(Arc::new(job)));
}

pub(super) fn is_suspended(bench: &Bench) -> bool {
    the_job(bench).spec.unwrap().suspend == Some(true)
}

fn annotation(bench: &Bench, key: &str) -> Option<String> {
    the_job(bench).metadata.annotations?.get(key).cloned()
}

/// An administrator ends what the Team runs, or lets it go on.
fn stop(bench: &mut Bench, stop: &str) {
    let mut object = team("vision", 4);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.stop = serde_json::from_value(stop.into()).unwrap();
    }
    bench.server.put(object);
    bench.run();
}

fn intents(bench: &Bench) -> Vec<Intent> {
    bench.server.ledger().unwrap().spec.intents
}

fn evictions(bench: &Bench) -> Vec<(i64, Reason)> {
    let evictions = bench.gang_status().evictions;
    let of = |eviction: &Eviction| (eviction.attempt, eviction.reason);
    evictions.iter().map(of).collect()
}

fn evicts(write: &ApiRequest) -> bool {
    let is_evict = |intent: &Intent| intent.kind == IntentKind::Evict;
    matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.iter().any(is_evict))
}

/// What is written for an eviction, in order, each step once.
fn order(written: &[ApiRequest]) -> Vec<&'static str> {
    let steps = written.iter().filter_map(|write| match write {
        write if evicts(write) => Some("evict"),
        ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty() => Some("drop"),
        ApiRequest::ReplaceGangStatus { status, .. } if status.phase == GangPhase::Evicting => {
            Some("gang")
        }
        ApiRequest::ReplaceNodeDevices { .. } => Some("permits"),
        ApiRequest::PatchPod { .. } => Some("stamp"),
        ApiRequest::PatchPodStatus { .. } => Some("condition"),
        ApiRequest::DeletePod { .. } => Some("delete"),
        ApiRequest::PatchJob { .. } => Some("job"),
        _ => None,
    });
    let mut steps: Vec<&str> = steps.collect();
    steps.dedup();
    steps
}

#[test]
fn an_eviction_goes_from_the_ledger_over_stamps_gang_and_permits_to_the_pods() {
    let mut bench = Bench::with(Config {
        ungated_unbound_limit: 1,
        ..config()
    });
    bench.gang("train", 3);
    bench.run();
    bench.machine.withhold_ungating(true);
    bench.run();
    let first = intents(&bench).remove(0);
    assert_eq!(first.kind, IntentKind::Admit, "pods are still gated");
    bench.written.clear();
    stop(&mut bench, "HoldAndDrain");
    let order = order(&bench.written);
    assert!(
        order.starts_with(&["evict", "stamp", "gang", "permits"]),
        "{order:?}"
    );
    assert!(
        order.contains(&"drop") && order.contains(&"delete"),
        "{order:?}"
    );
    let evict = bench.written.iter().find_map(|write| match write {
        ApiRequest::ReplaceLedger { spec, .. } if evicts(write) => Some(spec.intents.clone()),
        _ => None,
    });
    let [evict] = evict.unwrap().try_into().unwrap();
    assert_eq!(evict.cause, Some(Reason::TeamStopped));
    assert_eq!((evict.attempt, evict.gang_uid), (1, first.gang_uid));
    assert!(evict.pods.is_empty() && evict.plan.is_empty() && evict.digest.is_some());
    let mut nodes: Vec<_> = first.plan.into_iter().map(|run| run.node).collect();
    nodes.dedup();
    assert_eq!(evict.nodes, nodes);
    let stamps = (0..3).filter_map(|rank| bench.server.pod(&format!("train-{rank}")));
    let stamps: Vec<i64> = stamps.filter(is_gated).map(|pod| stamp(&pod)).collect();
    assert_eq!(stamps, [2, 2]);
}

#[test]
fn a_pod_is_told_before_it_is_deleted_and_only_pods_that_were_let_go_are() {
    let mut bench = running();
    bench.server.remove(&pod_key("train-1"));
    bench.run();
    bench.pod("train", 1, 2, keys::DEVICE_CLASS_GPU);
    bench.seconds += 5;
    bench.run();
    let pods: Vec<&ApiRequest> = bench
        .written
        .iter()
        .filter(|write| write.target() == Some(pod_key("train-0")))
        .collect();
    let [
        ApiRequest::PatchPodStatus { patch, .. },
        ApiRequest::DeletePod { uid, .. },
    ] = pods.as_slice()
    else {
        panic!("{pods:?}")
    };
    assert_eq!(uid, "train-0-uid");
    let condition = &patch.as_array().unwrap().last().unwrap()["value"][0];
    assert_eq!(condition["type"], "DisruptionTarget");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("MembersChanged: rank 1"), "{message}");
    let new = bench.server.pod("train-1").unwrap();
    assert!(!is_deleting(&new) && is_gated(&new));
}

#[test]
fn a_gang_that_was_evicted_keeps_its_place_and_is_admitted_again_once_all_is_released() {
    let mut bench = running();
    let queued_at = bench.gang_status().queued_at;
    bench.server.remove(&pod_key("train-1"));
    bench.run();
    bench.pod("train", 1, 2, keys::DEVICE_CLASS_GPU);
    bench.seconds += 5;
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Evicting, 2));
    let queue = status.queue.unwrap();
    assert_eq!(queue.reason, Reason::Evicting, "{}", queue.details);
    assert_eq!(end_deleted(&mut bench), 1);
    bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 2));
    assert_eq!(status.queued_at, queued_at);
    assert_eq!(evictions(&bench), [(1, Reason::MembersChanged)]);
    let evicted = status.conditions.iter().find(|it| it.type_ == "Evicted");
    assert_eq!(evicted.unwrap().status, "False");
    assert!(intents(&bench).is_empty());
}

#[test]
fn a_gang_is_drained_with_the_team_that_is_charged_though_its_namespace_left_it() {
    let mut bench = running();
    bench.server.put(Object::Namespace(parse(
        json!({"metadata": {"name": "ml"}}),
    )));
    bench.run();
    stop(&mut bench, "HoldAndDrain");
    assert_eq!(evictions(&bench), [(1, Reason::TeamStopped)]);
}

#[test]
fn what_an_evicted_gang_holds_is_charged_until_it_is_proved_released() {
    let mut bench = running();
    bench.gang("next", 4);
    bench.run();
    stop(&mut bench, "HoldAndDrain");
    let admitted = |bench: &Bench| {
        let gangs = bench.server.list(Kind::Gang);
        let admitted = gangs.iter().filter(|gang| match gang {
            Object::Gang(gang) => gang.status.as_ref().unwrap().admission.is_some(),
            _ => false,
        });
        admitted.count()
    };
    assert_eq!(admitted(&bench), 0);
    stop(&mut bench, "None");
    assert_eq!(admitted(&bench), 0, "its pods are still there");
    let held = ["claim-of-train-0", "claim-of-train-1"];
    bench.acknowledge(&held);
    bench.run_in_silence();
    assert_eq!(end_deleted(&mut bench), 2);
    bench.run_in_silence();
    assert_eq!(admitted(&bench), 0, "the driver still holds their claims");
    bench.run();
    assert_eq!(admitted(&bench), 1);
}

/// A gang of one pod that asks for three cores, and no device.
fn gang_with_cores(bench: &mut Bench, label: &str) {
    bench.gang(label, 1);
    bench.change_pod(&format!("{label}-0"), |pod| {
        let spec = pod.spec.as_mut().unwrap();
        spec.resource_claims = None;
        let resources = json!({"requests": {"cpu": "3"}});
        spec.containers[0].resources = serde_json::from_value(resources).unwrap();
    });
}

/// Such a gang that runs, and its Team, which has four cores.
fn running_with_cores() -> (Bench, Object) {
    let mut bench = Bench::new();
    let quota = json!([
        {"flavor": "gpu", "resources": [{"name": "gpus", "nominal": 4}, {"name": "cpu", "nominal": "4"}]},
    ]);
    let mut object = team("vision", 4);
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.quota = serde_json::from_value(quota).unwrap();
    }
    bench.server.put(object.clone());
    gang_with_cores(&mut bench, "train");
    bench.run();
    start(&mut bench, &["train-0"]);
    (bench, object)
}

/// A rank without claims has no devices that a driver would speak for: its permit alone says what it is charged.
#[test]
fn pods_without_claims_are_charged_until_they_are_gone() {
    let (mut bench, object) = running_with_cores();
    let permits: Vec<_> = ["n0", "n1"]
        .into_iter()
        .flat_map(|node| bench.server.node_devices(node).unwrap().spec.permits)
        .collect();
    let [permit] = permits.as_slice() else {
        panic!("{permits:?}")
    };
    assert!(permit.claim_uids.is_empty());
    assert_eq!(permit.charge.resources[0].amount, 3_000);
    stop_as(&mut bench, &object, "HoldAndDrain");
    assert_eq!(evictions(&bench), [(1, Reason::TeamStopped)]);
    gang_with_cores(&mut bench, "next");
    stop_as(&mut bench, &object, "None");
    assert!(
        is_gated(&bench.server.pod("next-0").unwrap()),
        "3 of 4 cores are in use"
    );
    assert_eq!(end_deleted(&mut bench), 1);
    bench.run_in_silence();
    assert!(
        !is_gated(&bench.server.pod("next-0").unwrap()),
        "no driver has a say about cores"
    );
}

/// Somebody deletes the object that says so, while the Evict is in the Ledger.
#[test]
fn pods_without_claims_are_charged_though_their_permits_are_lost_while_they_are_evicted() {
    let (mut bench, object) = running_with_cores();
    let node = ["n0", "n1"]
        .into_iter()
        .find(|node| bench.has_permits(node));
    let node = node.unwrap();
    let mut drained = object.clone();
    if let Object::Team(team) = &mut drained {
        Arc::make_mut(team).spec.stop = muster_api::team::Stop::HoldAndDrain;
    }
    bench.server.put(drained);
    assert!(
        bench.run_until(|write| matches!(write, ApiRequest::ReplaceNodeDevices { .. })),
        "the Gang is raised"
    );
    bench.server.remove(&ObjectKey {
        kind: Kind::NodeDevices,
        namespace: String::new(),
        name: node.to_owned(),
    });
    bench.take_over();
    bench.run();
    assert_eq!(evictions(&bench), [(1, Reason::TeamStopped)]);
    assert!(intents(&bench).is_empty());
    gang_with_cores(&mut bench, "next");
    stop_as(&mut bench, &object, "None");
    assert!(
        is_gated(&bench.server.pod("next-0").unwrap()),
        "3 of 4 cores are in use"
    );
    assert_eq!(end_deleted(&mut bench), 1);
    bench.run();
    assert!(!is_gated(&bench.server.pod("next-0").unwrap()));
    assert!(intents(&bench).is_empty());
}

/// Its Gang is deleted, and made again: what is charged besides claims is known by the permits alone.
#[test]
fn a_gang_that_is_adopted_is_charged_what_its_permits_say_besides_claims() {
    let (mut bench, _) = running_with_cores();
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    bench.server.remove(&gang.key());
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert!(admission.adopted);
    let charged: Vec<_> = admission.charge.resources.iter().collect();
    assert_eq!(charged.len(), 1, "{charged:?}");
    assert_eq!(
        (charged[0].resource.as_str(), charged[0].amount),
        ("cpu", 3_000)
    );
    gang_with_cores(&mut bench, "next");
    bench.run();
    assert!(
        is_gated(&bench.server.pod("next-0").unwrap()),
        "3 of 4 cores are in use"
    );
}

fn stop_as(bench: &mut Bench, team: &Object, stop: &str) {
    let mut object = team.clone();
    if let Object::Team(team) = &mut object {
        Arc::make_mut(team).spec.stop = serde_json::from_value(stop.into()).unwrap();
    }
    bench.server.put(object);
    bench.run();
}

/// A pod that may not be changed may not be ungated by a write that comes late either, once its attempt is over.
#[test]
fn a_pod_of_an_evicted_attempt_that_may_not_be_stamped_is_deleted_before_its_gang_is_raised() {
    for is_taken_over in [false, true] {
        for may_be_deleted in [true, false] {
            let case = format!("taken over: {is_taken_over}, may be deleted: {may_be_deleted}");
            let mut bench = Bench::with(Config {
                ungated_unbound_limit: 1,
                ..config()
            });
            bench.gang("train", 2);
            bench.run();
            assert!(is_gated(&bench.server.pod("train-1").unwrap()));
            let refuses = |write: &ApiRequest| match write {
                ApiRequest::PatchPod { key, .. } if key.name == "train-1" => Some(forbidden()),
                ApiRequest::DeletePod { uid, .. } if uid == "train-1-uid" && !may_be_deleted => {
                    Some(forbidden())
                }
                _ => None,
            };
            drain(&mut bench);
            run_answering(&mut bench, 2, refuses);
            assert_eq!(intents(&bench)[0].kind, IntentKind::Evict, "{case}");
            if is_taken_over {
                bench.take_over();
            }
            bench.written.clear();
            run_answering(&mut bench, 90, refuses);
            assert!(intents(&bench).is_empty(), "{case}");
            let deleted = bench.written.iter().position(|write| match write {
                ApiRequest::DeletePod { uid, .. } => uid == "train-1-uid",
                _ => false,
            });
            let raised = bench.written.iter().position(|write| match write {
                ApiRequest::ReplaceGangStatus { status, .. } => status.attempt == 2,
                _ => false,
            });
            let raised = raised.unwrap();
            let is_before = deleted.is_some_and(|deleted| deleted < raised);
            assert_eq!(is_before, may_be_deleted, "{case}");
        }
    }
}

#[test]
fn whoever_leads_completes_an_eviction_wherever_it_stands() {
    type Stop = fn(&ApiRequest) -> bool;
    let stops: [(&str, Stop); 6] = [
        (
            "committed",
            |write| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.phase == GangPhase::Evicting),
        ),
        (
            "gang raised",
            |write| matches!(write, ApiRequest::ReplaceNodeDevices { spec, .. } if spec.permits.iter().any(|it| it.withdrawn)),
        ),
        (
            "permits withdrawn",
            |write| matches!(write, ApiRequest::ReplaceLedger { spec, .. } if spec.intents.is_empty()),
        ),
        ("intent dropped", |write| {
            matches!(write, ApiRequest::PatchPodStatus { .. })
        }),
        ("told", |write| {
            matches!(write, ApiRequest::DeletePod { .. })
        }),
        ("before", evicts),
    ];
    for (step, reached) in stops {
        for deletes_gang in [false, true] {
            let mut bench = running();
            drain(&mut bench);
            assert!(bench.run_until(reached), "{step}");
            if deletes_gang {
                let gang = bench.server.list(Kind::Gang).pop().unwrap();
                bench.server.remove(&gang.key());
            }
            bench.take_over();
            bench.run();
            // A Gang that was made again waits for its pods to be taken up, or to go by themselves, first.
            bench.seconds += 30;
            bench.run();
            assert!(intents(&bench).is_empty(), "{step}");
            assert_eq!(
                end_deleted(&mut bench),
                2,
                "{step}, deleted: {deletes_gang}"
            );
            bench.run();
            for node in ["n0", "n1"] {
                assert!(!bench.has_permits(node), "{step}");
            }
            assert_eq!(bench.gang_status().phase, GangPhase::Failed, "{step}");
        }
    }
}

#[test]
fn a_gang_whose_pods_nobody_makes_again_fails_and_says_why() {
    let mut bench = running();
    stop(&mut bench, "HoldAndDrain");
    end_deleted(&mut bench);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Failed);
    let finished = status.conditions.iter().find(|it| it.type_ == "Finished");
    let message = &finished.unwrap().message;
    assert!(
        message.contains("TeamStopped") && message.contains("HoldAndDrain"),
        "{message}"
    );
}

#[test]
fn a_gang_whose_job_fails_after_an_eviction_fails_by_what_its_job_says() {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    change_job(&mut bench, |job| {
        let conditions =
            json!([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]);
        job.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
    });
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Failed);
    let finished = status.conditions.iter().find(|it| it.type_ == "Finished");
    let message = &finished.unwrap().message;
    assert!(message.contains("DeadlineExceeded"), "{message}");
    assert!(!message.contains("nobody made them again"), "{message}");
}

#[test]
fn a_job_is_suspended_until_its_pods_are_gone_and_then_resumed() {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench));
    let gang = bench.server.list(Kind::Gang).pop().unwrap().key().name;
    assert_eq!(
        annotation(&bench, keys::SUSPENDED_FOR),
        Some(format!("{gang}/1/fit-uid"))
    );
    let deletes = |write: &ApiRequest| matches!(write, ApiRequest::DeletePod { .. });
    assert!(
        !bench.written.iter().any(deletes),
        "its controller does that"
    );
    bench.server.remove(&pod_key("fit-0"));
    bench.run();
    assert!(is_suspended(&bench), "one pod is left");
    bench.take_over();
    bench.server.remove(&pod_key("fit-1"));
    bench.run();
    assert!(!is_suspended(&bench));
    assert_eq!(annotation(&bench, keys::SUSPENDED_FOR), None);
    stop(&mut bench, "None");
    for index in 0..2 {
        pod_of_job(&mut bench, index);
    }
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 2));
}

#[test]
fn a_job_that_muster_suspended_is_resumed_though_its_gang_was_deleted() {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench));
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    bench.server.remove(&gang.key());
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.take_over();
    bench.run();
    assert!(!is_suspended(&bench));
}

#[test]
fn a_suspension_of_the_users_own_is_never_undone() {
    let mut gang = running_job(|_| {}).server.list(Kind::Gang);
    let copied = format!("{}/1/uid-of-another-job", gang.pop().unwrap().key().name);
    for mark in [None, Some("x"), Some(copied.as_str())] {
        let mut bench = running_job(|_| {});
        change_job(&mut bench, |job| {
            job.spec.as_mut().unwrap().suspend = Some(true);
            let annotations = job.metadata.annotations.get_or_insert_default();
            annotations.extend(mark.map(|mark| (keys::SUSPENDED_FOR.to_owned(), mark.to_owned())));
        });
        stop(&mut bench, "HoldAndDrain");
        for pod in ["fit-0", "fit-1"] {
            bench.server.remove(&pod_key(pod));
        }
        bench.run();
        assert!(is_suspended(&bench), "{mark:?}");
        let patches = |write: &ApiRequest| matches!(write, ApiRequest::PatchJob { .. });
        assert!(!bench.written.iter().any(patches), "{mark:?}");
    }
}

#[test]
fn an_annotation_that_nobody_can_read_keeps_no_job_from_being_suspended() {
    let mut bench = running_job(|job| {
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::SUSPENDED_FOR.to_owned(), "x".to_owned());
    });
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench));
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    assert!(!is_suspended(&bench));
}

#[test]
fn pods_whose_owner_does_nothing_about_them_are_deleted_after_two_minutes() {
    type Change = fn(&mut Job);
    let owners: [(&str, Change); 3] = [
        ("suspended by its user", |job| {
            job.spec.as_mut().unwrap().suspend = Some(true);
        }),
        ("deleted, but for a finalizer", |job| {
            job.metadata.deletion_timestamp =
                serde_json::from_value(json!("2027-01-01T00:00:09Z")).unwrap();
        }),
        ("suspended by Muster", |_| {}),
    ];
    for (case, change) in owners {
        let mut bench = running_job(|_| {});
        change_job(&mut bench, change);
        stop(&mut bench, "HoldAndDrain");
        bench.seconds += 110;
        bench.run();
        assert_eq!(end_deleted(&mut bench), 0, "{case}");
        bench.seconds += 10;
        bench.run();
        assert_eq!(end_deleted(&mut bench), 2, "{case}");
    }
}

#[test]
fn a_suspension_that_is_never_answered_stops_no_eviction() {
    let mut bench = running_job(|_| {});
    drain(&mut bench);
    let silent = |write: &ApiRequest| match write {
        ApiRequest::PatchJob { .. } => Some(Outcome::Unknown),
        _ => None,
    };
    run_answering(&mut bench, 100, silent);
    assert_eq!(end_deleted(&mut bench), 0);
    run_answering(&mut bench, 40, silent);
    assert_eq!(end_deleted(&mut bench), 2);
}

#[test]
fn a_job_that_may_not_be_suspended_has_its_limit_raised_all_the_same() {
    let mut bench = running_job(|_| {});
    drain(&mut bench);
    run_answering(&mut bench, 60, |write| match write {
        ApiRequest::PatchJob {
            change: JobChange::Suspend,
            ..
        } => Some(forbidden()),
        _ => None,
    });
    assert!(!is_suspended(&bench));
    let limit = the_job(&bench).spec.unwrap().backoff_limit;
    assert_eq!(limit, Some(6 + 2));
    assert_eq!(end_deleted(&mut bench), 2);
}

#[test]
fn a_refusal_is_believed_for_a_while_only() {
    let mut bench = running_job(|_| {});
    drain(&mut bench);
    run_answering(&mut bench, 60, |write| match write {
        ApiRequest::PatchJob { .. } => Some(forbidden()),
        _ => None,
    });
    assert_eq!(end_deleted(&mut bench), 2);
    stop(&mut bench, "None");
    bench.seconds += 120;
    make_again(&mut bench, 0..2);
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench), "somebody has allowed it since");
}

#[test]
fn a_gang_says_that_its_job_may_not_be_resumed() {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    for pod in ["fit-0", "fit-1"] {
        bench.server.remove(&pod_key(pod));
    }
    run_answering(&mut bench, 60, |write| match write {
        ApiRequest::PatchJob { .. } => Some(forbidden()),
        _ => None,
    });
    assert!(is_suspended(&bench));
    let queue = bench.gang_status().queue.unwrap();
    let says_so =
        queue.details.contains("resume Job fit") && queue.details.contains("a policy forbids it");
    assert!(says_so, "{}", queue.details);
}

fn controlled_by_another(job: &mut Job) {
    let owner = json!([{"apiVersion": "jobset.x-k8s.io/v1", "kind": "JobSet", "name": "s", "uid": "s", "controller": true}]);
    job.metadata.owner_references = serde_json::from_value(owner).unwrap();
}

#[test]
fn a_limit_that_somebody_lowers_before_the_pods_are_gone_is_raised_again_and_not_beyond() {
    let mut bench = running_job(controlled_by_another);
    drain(&mut bench);
    let raised = |bench: &Bench| the_job(bench).spec.unwrap().backoff_limit == Some(6 + 2);
    for _ in 0..60 {
        bench.acknowledge(&[]);
        for effect in &bench.poll() {
            bench.perform(effect);
        }
        if raised(&bench) {
            break;
        }
        bench.seconds += 1;
    }
    assert!(raised(&bench));
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(6);
    });
    bench.run();
    assert!(raised(&bench));
    assert_eq!(end_deleted(&mut bench), 2);
}

#[test]
fn a_gang_that_is_made_again_counts_on_from_what_its_job_was_changed_for() {
    let limit = |bench: &Bench| the_job(bench).spec.unwrap().backoff_limit;
    // One that is read from another place than it was written to says nothing, nor does one that nobody can have written.
    for (forged, first) in [
        (None, 2),
        (Some("another/7/UID/9".to_owned()), 1),
        (Some("GANG/7/another/9".to_owned()), 1),
        (Some(format!("GANG/{}/UID/9", i64::MAX)), 1),
        (Some("GANG/-1/UID/9".to_owned()), 1),
        (Some("GANG".to_owned()), 1),
        // However high it is, each attempt after it can be stamped, and so be ended.
        (Some(format!("GANG/{}/UID/9", 1_i64 << 32)), (1 << 32) + 1),
        (Some(format!("GANG/{}/UID/9", (1_i64 << 32) + 1)), 1),
        (Some(format!("GANG/{}/UID/9", 1_i64 << 48)), 1),
    ] {
        let mut bench = running_job(controlled_by_another);
        let gang = bench.server.list(Kind::Gang).pop().unwrap().key();
        stop(&mut bench, "HoldAndDrain");
        assert_eq!(limit(&bench), Some(6 + 2));
        assert_eq!(end_deleted(&mut bench), 2);
        bench.run();
        // Nothing but the Job says any more which attempts there were.
        bench.server.remove(&gang);
        if let Some(forged) = &forged {
            change_job(&mut bench, |job| {
                let uid = job.metadata.uid.clone().unwrap();
                let mark = forged.replace("GANG", &gang.name).replace("UID", &uid);
                let annotations = job.metadata.annotations.get_or_insert_default();
                annotations.insert(keys::BACKOFF_RAISED_FOR.to_owned(), mark);
            });
        }
        stop(&mut bench, "None");
        make_again(&mut bench, 0..2);
        assert_eq!(bench.gang_status().attempt, first, "{forged:?}");
        stop(&mut bench, "HoldAndDrain");
        assert_eq!(limit(&bench), Some(6 + 2 + 2), "{forged:?}");
        assert_eq!(end_deleted(&mut bench), 2);
    }
}

#[test]
fn each_gang_of_one_that_a_job_has_raises_its_limit_by_one() {
    let mut bench = running_job(|job| {
        let annotations = job.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::GANG_SIZE.to_owned(), "1".to_owned());
    });
    assert_eq!(bench.server.list(Kind::Gang).len(), 2);
    stop(&mut bench, "HoldAndDrain");
    assert!(!is_suspended(&bench));
    let limit = the_job(&bench).spec.unwrap().backoff_limit;
    assert_eq!(limit, Some(6 + 2));
    assert_eq!(end_deleted(&mut bench), 2);
}

#[test]
fn a_job_that_somebody_else_resumes_is_not_suspended_again_and_loses_its_pods() {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    change_job(&mut bench, |job| {
        job.spec.as_mut().unwrap().suspend = Some(false);
    });
    bench.run();
    assert!(!is_suspended(&bench));
    assert_eq!(annotation(&bench, keys::SUSPENDED_FOR), None);
    assert_eq!(end_deleted(&mut bench), 2);
}

#[test]
fn the_pods_of_a_job_that_cannot_be_suspended_without_harm_are_deleted_after_its_limit_was_raised()
{
    type Change = fn(&mut Job);
    let queue = |job: &mut Job| {
        work_queue(job, 2);
        job.status.as_mut().unwrap().succeeded = Some(1);
    };
    let cases: [(&str, Change); 2] = [("work queue", queue), ("controlled", controlled_by_another)];
    for (case, change) in cases {
        let mut bench = running_job(change);
        stop(&mut bench, "HoldAndDrain");
        assert!(!is_suspended(&bench), "{case}");
        let steps = order(&bench.written);
        let at = |step: &str| steps.iter().position(|it| *it == step);
        assert!(
            at("job").unwrap() < at("delete").unwrap(),
            "{case}: {steps:?}"
        );
        let limit = the_job(&bench).spec.unwrap().backoff_limit;
        assert_eq!(limit, Some(6 + 2), "{case}: raised once, by both pods");
        assert_eq!(end_deleted(&mut bench), 2, "{case}");
        bench.run();
        assert!(intents(&bench).is_empty());
    }
}

#[test]
fn a_job_that_may_not_be_changed_loses_its_pods_and_its_gang_says_so() {
    let mut bench = running_job(|_| {});
    drain(&mut bench);
    run_answering(&mut bench, 60, |write| match write {
        ApiRequest::PatchJob { .. } => Some(forbidden()),
        _ => None,
    });
    let queue = bench.gang_status().queue.unwrap();
    assert!(
        queue.details.contains("a policy forbids it"),
        "{}",
        queue.details
    );
    assert_eq!(end_deleted(&mut bench), 2);
}

#[test]
fn a_job_whose_limit_may_not_be_raised_loses_its_pods_once_that_is_the_last_word() {
    for (refusals, limit) in [(REFUSED_AT_MOST - 1, 6 + 2), (REFUSED_AT_MOST, 6)] {
        let mut bench = running_job(controlled_by_another);
        drain(&mut bench);
        let left = std::cell::Cell::new(refusals);
        run_answering(&mut bench, 60, |write| match write {
            ApiRequest::PatchJob {
                change: JobChange::RaiseBackoffLimit,
                ..
            } if left.get() > 0 => {
                left.set(left.get() - 1);
                Some(forbidden())
            }
            _ => None,
        });
        assert_eq!(left.get(), 0);
        let stands = the_job(&bench).spec.unwrap().backoff_limit.unwrap_or(6);
        assert_eq!(stands, limit, "{refusals} refusals");
        assert_eq!(end_deleted(&mut bench), 2, "{refusals} refusals");
    }
}

#[test]
fn a_pod_on_a_lost_node_holds_no_job_suspended_and_no_gang_back() {
    let mut bench = running_job(|_| {});
    stop(&mut bench, "HoldAndDrain");
    delete_slowly(&mut bench, "fit-0");
    bench.server.remove(&pod_key("fit-1"));
    bench.run();
    assert!(is_suspended(&bench), "it may end yet");
    let node = bench.server.pod("fit-0").unwrap().spec.unwrap().node_name;
    let key = ObjectKey {
        kind: Kind::Node,
        namespace: String::new(),
        name: node.unwrap(),
    };
    bench.server.remove(&key);
    bench.run();
    assert!(!is_suspended(&bench));
}

#[test]
fn a_pod_that_was_never_bound_and_is_kept_by_a_finalizer_holds_no_job_suspended() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    pod_of_job(&mut bench, 0);
    pod_of_job(&mut bench, 1);
    bench.run();
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench));
    bench.server.remove(&pod_key("fit-1"));
    bench.run();
    assert!(is_suspended(&bench), "the other one may be bound yet");
    delete_slowly(&mut bench, "fit-0");
    bench.run();
    assert!(!is_suspended(&bench));
}

#[test]
fn a_start_that_makes_no_progress_is_evicted_and_tried_again_after_a_pause_that_doubles() {
    let mut bench = Bench::new();
    let create = |bench: &mut Bench| {
        bench.pod("train", 0, 1, keys::DEVICE_CLASS_GPU);
        bench.change_pod("train-0", |pod| {
            let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "s", "controller": true}]);
            pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
        });
    };
    create(&mut bench);
    for (times, pause) in [(1, 30), (2, 60), (3, 120)] {
        bench.run();
        assert_eq!(bench.gang_status().phase, GangPhase::Admitted, "{times}");
        bench.seconds += 590;
        bench.run();
        assert_eq!(evictions(&bench).len(), times - 1, "the limit has not come");
        bench.seconds += 10;
        // Not bound: it is gone at once, and its owner makes it again.
        bench.run_at_once();
        let status = bench.gang_status();
        assert_eq!(evictions(&bench).len(), times, "{status:?}");
        assert_eq!(status.evictions[times - 1].reason, Reason::StartTimeout);
        let at = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.unwrap().0.as_second()
        };
        let evicted = at(Some(&status.evictions[times - 1].at));
        assert_eq!(at(status.requeue_at.as_ref()) - evicted, pause);
        assert!(bench.server.pod("train-0").is_none());
        create(&mut bench);
        bench.run();
        let status: GangStatus = bench.gang_status();
        assert_eq!(status.queue.unwrap().reason, Reason::BackingOff);
        bench.seconds += u64::try_from(pause).unwrap();
    }
}

#[test]
fn an_attempt_that_ran_ends_the_row_of_failed_starts() {
    let row = |evictions: &[(i64, Reason, i64)]| {
        let evictions = evictions.iter().map(|(attempt, reason, minute)| Eviction {
            attempt: *attempt,
            reason: *reason,
            message: String::new(),
            at: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                Timestamp::from_second(1_800_000_000 + 60 * minute).unwrap(),
            ),
            node: None,
            template: None,
            fault: None,
        });
        let status = GangStatus {
            evictions: evictions.collect(),
            ..GangStatus::default()
        };
        gang_status::attempts_in_vain(&status, &crate::Recovery::default())
    };
    let late = |attempt| (attempt, Reason::StartTimeout, 10 * attempt);
    assert_eq!(row(&[]), 0);
    assert_eq!(row(&[late(1), late(2), late(3)]), 3);
    assert_eq!(
        row(&[late(1), late(2), late(4)]),
        1,
        "attempt 3 ended by itself"
    );
    // A node that is lost ends no row of its own: whether it did anything before is told by how long that took.
    let lost = |attempt, minute| (attempt, Reason::NodeLost, minute);
    assert_eq!(row(&[lost(1, 5)]), 0, "once");
    assert_eq!(row(&[lost(1, 5), lost(2, 10), lost(3, 15)]), 2);
    assert_eq!(row(&[late(1), late(2), lost(3, 25)]), 3);
    // Nor does a device that breaks.
    let broken = |attempt, minute| (attempt, Reason::DeviceFault, minute);
    assert_eq!(row(&[broken(1, 5)]), 0, "once");
    assert_eq!(row(&[broken(1, 5), broken(2, 10), lost(3, 15)]), 2);
    assert_eq!(row(&[broken(1, 5), broken(2, 80)]), 0, "it ran for long");
    assert_eq!(row(&[late(1), lost(2, 15), late(3)]), 3);
    assert_eq!(row(&[late(1), late(2), lost(3, 80)]), 0, "it ran for long");
    let preempted = (1, Reason::Preempted, 10);
    assert_eq!(row(&[preempted, lost(2, 15)]), 0);
}

/// The clock of the leader that evicted was a day ahead.
#[test]
fn a_job_of_which_one_index_is_left_is_suspended_all_the_same() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 1));
    make_again(&mut bench, 1..2);
    let gang = bench.server.list(Kind::Gang).pop().unwrap();
    assert!(matches!(gang, Object::Gang(gang) if gang.spec.size == 1));
    stop(&mut bench, "HoldAndDrain");
    assert!(is_suspended(&bench));
}

#[test]
fn no_start_is_late_while_nothing_can_be_let_go_or_nobody_schedules() {
    type Obstruct = fn(&mut Machine, bool);
    let obstructs: [Obstruct; 2] = [Machine::withhold_ungating, Machine::note_scheduler_away];
    for obstruct in obstructs {
        let mut bench = Bench::new();
        bench.gang("train", 1);
        bench.run();
        bench.seconds += 590;
        obstruct(&mut bench.machine, true);
        bench.run();
        bench.seconds += 3_600;
        bench.run();
        assert_eq!(evictions(&bench), []);
        obstruct(&mut bench.machine, false);
        bench.run();
        bench.seconds += 590;
        bench.run();
        assert_eq!(evictions(&bench), [], "the clock began anew");
        bench.seconds += 10;
        bench.run();
        assert_eq!(evictions(&bench).len(), 1);
    }
}

/// Statuses of the one init container of a pod.
fn init_container(pod: &mut Pod, restarts: i32, state: &Value) {
    let containers = json!([{"name": "fetch"}]);
    pod.spec.as_mut().unwrap().init_containers = serde_json::from_value(containers).unwrap();
    let statuses = json!([{
        "name": "fetch", "image": "", "imageID": "", "ready": false, "restartCount": restarts,
        "state": state,
    }]);
    pod.status.as_mut().unwrap().init_container_statuses =
        serde_json::from_value(statuses).unwrap();
}

#[test]
fn an_init_container_may_take_an_hour_unless_it_crashes_all_the_time() {
    type Runs = fn(u64) -> bool;
    let runs = json!({"running": {}});
    let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let cases: [(&str, Runs, u64, bool); 4] = [
        ("runs", |_| true, 55, false),
        (
            "runs again after a failure",
            |minute| minute != 20,
            55,
            false,
        ),
        ("hangs", |_| true, 65, true),
        ("crashes all the time", |minute| minute % 2 == 0, 40, true),
    ];
    for (case, is_running, minutes, is_evicted) in cases {
        let mut bench = Bench::new();
        bench.gang("train", 1);
        bench.run();
        let node = bench.gang_status().placement.unwrap().nodes[0].node.clone();
        bench.change_pod("train-0", |pod| {
            pod.spec.as_mut().unwrap().node_name = Some(node);
        });
        for minute in 0..minutes {
            let restarts = (1..=minute).filter(|minute| !is_running(*minute)).count();
            let state = if is_running(minute) { &runs } else { &waits };
            if bench.server.pod("train-0").is_some() {
                let restarts = i32::try_from(restarts).unwrap();
                bench.change_pod("train-0", |pod| init_container(pod, restarts, state));
            }
            bench.run_at_once();
            bench.seconds += 60;
        }
        assert_eq!(evictions(&bench).len(), usize::from(is_evicted), "{case}");
    }
}

#[test]
fn pods_say_how_long_their_start_may_take_and_a_failure_may_last() {
    for (key, seconds) in [
        (keys::START_TIMEOUT_SECONDS, 1_200),
        (keys::FAILURE_GRACE_SECONDS, 300),
    ] {
        let mut bench = running_job(|job| {
            let annotations = job.metadata.annotations.get_or_insert_default();
            annotations.insert(key.to_owned(), seconds.to_string());
        });
        if key == keys::FAILURE_GRACE_SECONDS {
            bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
        } else {
            stop(&mut bench, "HoldAndDrain");
            bench.server.remove(&pod_key("fit-0"));
            bench.server.remove(&pod_key("fit-1"));
            bench.run();
            stop(&mut bench, "None");
            pod_of_job(&mut bench, 0);
            pod_of_job(&mut bench, 1);
        }
        bench.run();
        let before = evictions(&bench).len();
        bench.seconds += seconds - 10;
        bench.run();
        assert_eq!(evictions(&bench).len(), before, "{key}");
        bench.seconds += 10;
        bench.run();
        assert_eq!(evictions(&bench).len(), before + 1, "{key}");
    }
}

fn runs_at_most(job: &mut Job, seconds: &str) {
    let annotations = job.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::MAX_RUNTIME_SECONDS.to_owned(), seconds.to_owned());
}

#[test]
fn an_attempt_ends_once_it_ran_for_as_long_as_it_may_and_is_not_started_again() {
    for is_taken_over in [false, true] {
        let mut bench = running_job(|job| runs_at_most(job, "1000"));
        bench.seconds += 900;
        if is_taken_over {
            // What counts is when it was admitted, whoever leads.
            bench.take_over();
        }
        bench.run();
        assert_eq!(evictions(&bench), []);
        bench.seconds += 100;
        bench.run();
        let ran_out = [(1, Reason::MaxRuntimeExceeded)];
        assert_eq!(evictions(&bench), ran_out);
        end_deleted(&mut bench);
        bench.run();
        pod_of_job(&mut bench, 0);
        pod_of_job(&mut bench, 1);
        bench.seconds += 10_000;
        bench.run();
        let status = bench.gang_status();
        assert_eq!((status.phase, status.admission), (GangPhase::Pending, None));
        assert_eq!(status.queue.unwrap().reason, Reason::MaxRuntimeExceeded);
        assert_eq!(evictions(&bench), ran_out);
        assert!(is_gated(&bench.server.pod("fit-0").unwrap()));
    }
}

#[test]
fn a_clock_that_is_set_neither_ends_an_attempt_early_nor_lets_it_run_for_longer() {
    for by_seconds in [3_600, -3_600] {
        let mut bench = running_job(|job| runs_at_most(job, "1000"));
        bench.wall_set_by_seconds = by_seconds;
        bench.seconds += 900;
        bench.run();
        assert_eq!(evictions(&bench), [], "{by_seconds}");
        bench.seconds += 100;
        bench.run();
        let ran_out = [(1, Reason::MaxRuntimeExceeded)];
        assert_eq!(evictions(&bench), ran_out, "{by_seconds}");
    }
}

#[test]
fn under_a_leader_whose_clock_is_behind_an_attempt_runs_for_its_limit_once_more_at_most() {
    let mut bench = running_job(|job| runs_at_most(job, "1000"));
    bench.wall_set_by_seconds = -24 * 3_600;
    bench.take_over();
    bench.run();
    bench.seconds += 900;
    bench.run();
    assert_eq!(evictions(&bench), []);
    bench.seconds += 100;
    bench.run();
    assert_eq!(evictions(&bench), [(1, Reason::MaxRuntimeExceeded)]);
}

/// Others were promised its place by then.
#[test]
fn a_job_that_says_later_that_it_runs_for_longer_ends_all_the_same() {
    for later in [Some("100000"), None] {
        let mut bench = running_job(|job| runs_at_most(job, "1000"));
        bench.seconds += 500;
        change_job(&mut bench, |job| match later {
            Some(seconds) => runs_at_most(job, seconds),
            None => job.metadata.annotations = None,
        });
        bench.run();
        bench.seconds += 400;
        bench.run();
        assert_eq!(evictions(&bench), []);
        bench.seconds += 100;
        bench.run();
        let ran_out = [(1, Reason::MaxRuntimeExceeded)];
        assert_eq!(evictions(&bench), ran_out, "{later:?}");
    }
}

/// Pods choose how long they may take to end once they are told to.
#[test]
fn a_place_is_promised_for_when_the_pods_there_are_gone_and_not_for_when_they_are_told_to_go() {
    let mut bench = Bench::new();
    bench.server.put(team("vision", 8));
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| runs_at_most(job, "1000"));
    for (index, seconds) in [3_600, 10].into_iter().enumerate() {
        pod_of_job(&mut bench, index);
        bench.change_pod(&format!("fit-{index}"), |pod| {
            let spec = pod.spec.as_mut().unwrap();
            spec.termination_grace_period_seconds = Some(seconds);
        });
    }
    bench.run();
    start(&mut bench, &["fit-0", "fit-1"]);
    let conditions = bench.gang_status().conditions;
    let mut admitted = conditions.iter().filter(|it| it.type_ == "Admitted");
    let admitted_at = admitted.next().unwrap().last_transition_time.0.as_second();
    bench.gang("large", 4);
    bench.run();
    bench.seconds += 610;
    bench.run();
    let engine = bench.machine.engine();
    let place = engine.head_reservations().next().expect("a place is kept");
    assert_eq!(place.starts_at.unwrap().0, admitted_at + 1_000 + 3_600);
    let waiting = engine.waiting(&place.gang).unwrap();
    assert_eq!(waiting.run_time.ends_within_seconds, 30, "nobody said");
}

#[test]
fn a_run_time_that_cannot_be_read_keeps_the_gang_from_starting() {
    let mut bench = Bench::new();
    bench.server.put(job(2, 0));
    change_job(&mut bench, |job| runs_at_most(job, "18446744073709551615"));
    pod_of_job(&mut bench, 0);
    pod_of_job(&mut bench, 1);
    bench.run();
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, Reason::RequestNotUnderstood);
    assert!(
        queue.details.contains(keys::MAX_RUNTIME_SECONDS),
        "{}",
        queue.details
    );
}

#[test]
fn a_start_that_is_late_says_on_which_node_and_what_it_waits_for() {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    bench.run();
    bench.change_pod("train-0", |pod| {
        pod.spec.as_mut().unwrap().node_name = Some("n0".to_owned());
        let statuses = json!([{
            "name": "rank", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}},
        }]);
        pod.status.as_mut().unwrap().container_statuses = serde_json::from_value(statuses).unwrap();
    });
    bench.run();
    bench.seconds += 600;
    bench.run();
    let message = bench.gang_status().evictions[0].message.clone();
    assert!(message.contains("node n0"), "{message}");
    assert!(
        message.contains("container rank: ImagePullBackOff"),
        "{message}"
    );
}

#[test]
fn a_rank_that_failed_costs_the_attempt_once_its_peers_have_gone_on_for_the_grace() {
    let mut bench = running_job(|_| {});
    bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
    bench.run();
    bench.seconds += 50;
    bench.run();
    assert_eq!(evictions(&bench), [], "the grace has not passed");
    bench.seconds += 10;
    bench.run();
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
    assert!(is_suspended(&bench));
}

#[test]
fn a_job_that_is_over_is_left_to_its_own_controller() {
    let mut bench = running_job(|_| {});
    bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
    change_job(&mut bench, |job| {
        let conditions =
            json!([{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]);
        job.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
    });
    bench.run();
    bench.seconds += 600;
    bench.run();
    assert_eq!(evictions(&bench), []);
}

#[test]
fn a_job_whose_pods_are_being_ended_by_itself_or_its_user_is_not_evicted() {
    type Change = fn(&mut Job);
    fn says(job: &mut Job, condition: &str) {
        let conditions = json!([{"type": condition, "status": "True"}]);
        let conditions = serde_json::from_value(conditions).unwrap();
        job.status.as_mut().unwrap().conditions = conditions;
    }
    let endings: [(&str, Change, usize); 5] = [
        ("nothing", |_| {}, 1),
        ("about to fail", |job| says(job, "FailureTarget"), 0),
        (
            "about to complete",
            |job| says(job, "SuccessCriteriaMet"),
            0,
        ),
        (
            "deleted",
            |job| {
                job.metadata.deletion_timestamp =
                    serde_json::from_value(json!("2027-01-01T00:00:09Z")).unwrap();
            },
            0,
        ),
        (
            "suspended by its user",
            |job| job.spec.as_mut().unwrap().suspend = Some(true),
            0,
        ),
    ];
    for (case, change, evicted) in endings {
        let mut bench = running_job(|_| {});
        change_job(&mut bench, change);
        // The other one is about to be.
        delete_slowly(&mut bench, "fit-1");
        bench.run();
        bench.seconds += 600;
        bench.run();
        assert_eq!(evictions(&bench).len(), evicted, "{case}");
        assert_eq!(bench.gang_status().attempt > 1, evicted > 0, "{case}");
    }
}

#[test]
fn a_failed_rank_costs_nothing_where_its_job_would_not_make_all_pods_again() {
    type Change = fn(&mut Job);
    let per_index = |job: &mut Job| {
        job.spec.as_mut().unwrap().backoff_limit_per_index = Some(0);
        job.status.as_mut().unwrap().failed_indexes = Some("1".to_owned());
    };
    let counted = |job: &mut Job| job.status.as_mut().unwrap().succeeded = Some(1);
    let cases: [(&str, Change, Change, usize); 5] = [
        ("indexed", |_| {}, |_| {}, 1),
        ("failed for good", |_| {}, per_index, 0),
        ("work queue", |job| work_queue(job, 3), |_| {}, 1),
        (
            "work queue with a success",
            |job| work_queue(job, 3),
            counted,
            0,
        ),
        (
            "work queue, success of a pod not counted yet",
            |job| work_queue(job, 3),
            |_| {},
            0,
        ),
    ];
    for (case, before, after, evicted) in cases {
        let mut bench = running_job_of(3, before);
        if case.contains("not counted") {
            bench.change_pod("fit-0", |pod| set_phase(pod, "Succeeded"));
        }
        bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
        change_job(&mut bench, after);
        bench.run();
        bench.seconds += 600;
        bench.run();
        assert_eq!(evictions(&bench).len(), evicted, "{case}");
    }
}

#[test]
fn draining_a_work_queue_of_which_a_pod_succeeded_says_what_is_lost() {
    for (succeeded, says_so) in [(0, false), (1, true)] {
        let mut bench = running_job(|job| work_queue(job, 2));
        change_job(&mut bench, |job| {
            job.status.as_mut().unwrap().succeeded = Some(succeeded);
        });
        stop(&mut bench, "HoldAndDrain");
        let message = bench.gang_status().evictions[0].message.clone();
        assert!(message.contains("HoldAndDrain"), "{message}");
        assert_eq!(message.contains("complete without"), says_so, "{message}");
    }
}

/// The plan of a later attempt lacks what was done before it, so that is no reason for any of its pods to be gone.
#[test]
fn a_rank_that_is_gone_is_not_taken_for_one_that_succeeded_before_its_attempt() {
    let mut bench = running_job_of(3, |_| {});
    bench.change_pod("fit-0", |pod| set_phase(pod, "Succeeded"));
    change_job(&mut bench, |job| {
        let status = job.status.as_mut().unwrap();
        status.succeeded = Some(1);
        status.completed_indexes = Some("0".to_owned());
    });
    bench.change_pod("fit-1", |pod| set_phase(pod, "Failed"));
    bench.run();
    bench.seconds += 60;
    bench.run();
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
    for pod in ["fit-0", "fit-1", "fit-2"] {
        bench.server.remove(&pod_key(pod));
    }
    bench.run();
    make_again(&mut bench, 1..3);
    assert_eq!(bench.gang_status().phase, GangPhase::Running);
    bench.server.remove(&pod_key("fit-2"));
    pod_of_job(&mut bench, 2);
    bench.run();
    bench.seconds += 5;
    bench.run();
    let second = (2, Reason::MembersChanged);
    assert_eq!(evictions(&bench), [(1, Reason::PodFailed), second]);
}

#[test]
fn an_index_that_succeeded_is_done_though_its_pod_is_gone() {
    let mut bench = running_job(|_| {});
    bench.change_pod("fit-0", |pod| set_phase(pod, "Succeeded"));
    change_job(&mut bench, |job| {
        let status = job.status.as_mut().unwrap();
        status.succeeded = Some(1);
        status.completed_indexes = Some("0".to_owned());
    });
    bench.run();
    bench.server.remove(&pod_key("fit-0"));
    bench.run();
    bench.seconds += 3_600;
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Running, 1));
    assert_eq!(status.evictions, []);
}

/// A StatefulSet replaces one pod, and waits for the new one to run before it replaces the next.
#[test]
fn an_owner_that_replaces_its_pods_one_by_one_does_not_lock_its_gang_out() {
    let mut bench = running();
    bench.server.remove(&pod_key("train-1"));
    bench.pod("train", 1, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    bench.seconds += 5;
    bench.run();
    assert_eq!(
        end_deleted(&mut bench),
        1,
        "the other one of its generation"
    );
    bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    start(&mut bench, &["train-0", "train-1"]);
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Running, 2));
    assert_eq!(status.evictions.len(), 1);
}

#[test]
fn a_gang_that_is_deleted_by_its_owner_is_not_evicted() {
    let mut bench = running();
    for pod in ["train-0", "train-1"] {
        delete_slowly(&mut bench, pod);
        bench.run_at_once();
        bench.seconds += 2;
    }
    bench.run();
    bench.seconds += 600;
    bench.run();
    assert_eq!(evictions(&bench), [], "they take as long as they take");
    end_deleted(&mut bench);
    bench.run();
    let status = bench.gang_status();
    assert_eq!(
        (status.phase, status.evictions.len()),
        (GangPhase::Failed, 0)
    );
}

/// A name of 60 characters.
const LONG_NAME: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// The gangs whose evictions are in each write of the Ledger that has any, where they have so many bytes.
fn evicted_at_once(evict_bytes: usize, gangs: [&str; 3]) -> Vec<Vec<Intent>> {
    let mut bench = Bench::with(Config {
        evict_bytes,
        ..config()
    });
    for gang in gangs {
        bench.gang(gang, 1);
    }
    bench.run();
    bench.written.clear();
    stop(&mut bench, "HoldAndDrain");
    let batches = bench.written.iter().filter_map(|write| match write {
        ApiRequest::ReplaceLedger { spec, .. } if evicts(write) => Some(spec.intents.clone()),
        _ => None,
    });
    batches.collect()
}

#[test]
fn an_eviction_that_has_no_room_yet_keeps_none_behind_it_from_entering() {
    // In the order of their names the long one is the second.
    let gangs = ["0", LONG_NAME, "b"];
    let all = evicted_at_once(64 * 1024, gangs);
    let bytes = |intent: &Intent| serde_json::to_string(intent).unwrap().len();
    let mut of_each: Vec<usize> = all[0].iter().map(bytes).collect();
    of_each.sort_unstable();
    let [small, other, long] = of_each.try_into().unwrap();
    // The sequence, which is not known before, counts as its longest.
    let room = small + other + 2 * 20;
    assert!(long <= room && small + long > room);
    let first = &evicted_at_once(room, gangs)[0];
    assert_eq!(first.len(), 2, "{first:?}");
}

#[test]
fn evictions_have_room_of_their_own_and_go_one_after_the_other_where_it_is_full() {
    // A name takes as many bytes as it has: one that is larger than all of the room does not hold the others up.
    for (evict_bytes, at_once, first) in [
        (64 * 1024, 3, "a"),
        (400, 1, "a"),
        (1, 1, "a"),
        (400, 2, LONG_NAME),
    ] {
        let mut bench = Bench::with(Config {
            evict_bytes,
            ..config()
        });
        for gang in [first, "b", "c"] {
            bench.gang(gang, 1);
        }
        bench.run();
        bench.written.clear();
        stop(&mut bench, "HoldAndDrain");
        let most = bench.written.iter().map(|write| match write {
            ApiRequest::ReplaceLedger { spec, .. } => spec.intents.len(),
            _ => 0,
        });
        assert_eq!(most.max(), Some(at_once), "{evict_bytes} bytes");
        assert!(intents(&bench).is_empty());
        assert!(
            bench.server.list(Kind::Pod).is_empty(),
            "all are evicted in the end"
        );
    }
}

/// A pod runs that nobody let go, and its gang is charged for it.
fn found_running() -> Bench {
    let mut bench = Bench::new();
    bench.gang("old", 1);
    bench.change_pod("old-0", |pod| {
        let spec = pod.spec.as_mut().unwrap();
        spec.scheduling_gates = None;
        spec.node_name = Some("n1".to_owned());
        set_phase(pod, "Running");
    });
    let mut object = claim("old-0", keys::DEVICE_CLASS_GPU);
    if let Object::ResourceClaim(claim) = &mut object {
        Arc::make_mut(claim).status =
            serde_json::from_value(json!({"allocation": {"devices": {"results": [
                {"request": "gpu", "driver": keys::DRIVER, "pool": "n1", "device": "gpu-0"},
            ]}}}))
            .unwrap();
    }
    bench.server.put(object);
    bench.run();
    assert!(bench.gang_status().admission.unwrap().adopted);
    bench
}

#[test]
fn what_was_found_running_before_muster_is_not_evicted() {
    let mut bench = found_running();
    stop(&mut bench, "HoldAndDrain");
    assert_eq!(evictions(&bench), []);
}

/// A defect once: the pod that was made in its place waited for ever where nothing ended it, on a dead node say.
#[test]
fn what_was_found_running_makes_way_for_the_next_pod_once_it_is_being_deleted() {
    let mut bench = found_running();
    delete_slowly(&mut bench, "old-0");
    bench.pod("old", 1, 1, keys::DEVICE_CLASS_GPU);
    bench.run_for(10, |_| false);
    assert_eq!(evictions(&bench), [(1, Reason::MembersChanged)]);
    assert!(bench.gang_status().admission.is_none(), "it may run still");
    bench.server.remove(&pod_key("old-0"));
    bench.run();
    let admission = bench.gang_status().admission.unwrap();
    assert_eq!(
        admission.pods[0].uid,
        bench.server.pod("old-1").unwrap().metadata.uid.unwrap()
    );
}
