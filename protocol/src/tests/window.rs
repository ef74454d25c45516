//! What is ungated at a time, and what a pod costs others that nobody schedules.

use super::*;
use crate::objects::is_gated;

/// A second Team with a namespace of its own and room for all its gangs.
pub(super) fn with_second_team(bench: &mut Bench) {
    bench.server.put(team("speech", 4));
    bench.server.put(Object::Namespace(parse(
        json!({"metadata": {"name": "sp", "labels": {keys::TEAM: "speech"}}}),
    )));
}

fn ungated(bench: &Bench, prefix: &str) -> usize {
    let pods = bench.server.list(Kind::Pod);
    let pods = pods.iter().filter(|pod| match pod {
        Object::Pod(pod) => {
            let name = pod.metadata.name.as_deref().unwrap();
            name.starts_with(prefix) && !is_gated(pod)
        }
        _ => false,
    });
    pods.count()
}

fn narrow(limit: usize) -> Bench {
    Bench::with(Config {
        ungated_unbound_limit: limit,
        careful_ungated_unbound_limit: 2,
        ..config()
    })
}

#[test]
fn pods_for_another_scheduler_do_not_fill_the_window() {
    let mut bench = narrow(2);
    bench.gang("foreign", 2);
    for name in ["foreign-0", "foreign-1"] {
        bench.change_pod(name, |pod| {
            pod.spec.as_mut().unwrap().scheduler_name = Some("nobody".to_owned());
        });
    }
    bench.run_at_once();
    bench.gang("train", 2);
    bench.run_at_once();
    assert_eq!(
        (ungated(&bench, "foreign"), ungated(&bench, "train")),
        (2, 2)
    );
}

#[test]
fn fewer_pods_are_ungated_at_a_time_while_that_is_done_carefully() {
    let mut bench = narrow(4);
    bench.machine.ungate_carefully(true);
    bench.gang("train", 4);
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 2, "the careful limit");
    bench.machine.ungate_carefully(false);
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 4);
}

#[test]
fn carefulness_never_widens_the_window() {
    let mut bench = narrow(1);
    bench.machine.ungate_carefully(true);
    bench.gang("train", 2);
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 1);
}

#[test]
fn a_pod_that_nobody_binds_fills_the_window_for_30_seconds_only() {
    let mut bench = narrow(2);
    bench.gang("stuck", 2);
    bench.run_at_once();
    bench.gang("train", 2);
    bench.run_at_once();
    assert_eq!((ungated(&bench, "stuck"), ungated(&bench, "train")), (2, 0));
    bench.seconds += 29;
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 0);
    bench.seconds += 1;
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 2);
}

#[test]
fn a_pod_that_is_called_unschedulable_makes_room() {
    let mut bench = narrow(2);
    bench.gang("stuck", 2);
    bench.run_at_once();
    bench.gang("train", 2);
    for name in ["stuck-0", "stuck-1"] {
        bench.change_pod(name, |pod| {
            let condition =
                json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
            pod.status.as_mut().unwrap().conditions = serde_json::from_value(condition).unwrap();
        });
    }
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 2);
}

#[test]
fn one_team_fills_half_of_the_window_while_another_wants_it() {
    let mut bench = narrow(2);
    with_second_team(&mut bench);
    bench.machine.withhold_ungating(true);
    bench.gang("train", 2);
    bench.run_at_once();
    bench.gang("other", 2);
    for name in ["other-0", "other-1"] {
        move_to_namespace(&mut bench, name, "sp");
    }
    bench.run_at_once();
    bench.machine.withhold_ungating(false);
    bench.run_at_once();
    assert_eq!((ungated(&bench, "train"), ungated(&bench, "other")), (1, 1));
}

pub(super) fn move_to_namespace(bench: &mut Bench, name: &str, namespace: &str) {
    let mut pod = bench.server.pod(name).unwrap();
    bench.server.remove(&pod_key(name));
    pod.metadata.namespace = Some(namespace.to_owned());
    pod.metadata.uid = Some(format!("{namespace}-{name}"));
    bench.server.put(Object::Pod(Arc::new(pod)));
    let Object::ResourceClaim(claim) = claim(name, keys::DEVICE_CLASS_GPU) else {
        unreachable!()
    };
    let mut claim = Arc::unwrap_or_clone(claim);
    claim.metadata.namespace = Some(namespace.to_owned());
    claim.metadata.uid = Some(format!("{namespace}-claim-of-{name}"));
    bench.server.put(Object::ResourceClaim(Arc::new(claim)));
}

/// Runs for so many seconds, the API server refusing each change of the pod.
fn run_refusing(bench: &mut Bench, pod: &str, seconds: u64) -> usize {
    let mut refusals = 0;
    for _ in 0..seconds {
        for _ in 0..12 {
            bench.acknowledge(&[]);
            for effect in &bench.poll() {
                if effect.write.target() == Some(pod_key(pod)) {
                    refusals += 1;
                    let answer = Outcome::Refused("a policy forbids it".to_owned());
                    bench.machine.settle(effect.id, answer);
                } else {
                    bench.perform(effect);
                }
            }
        }
        bench.seconds += 1;
    }
    refusals
}

#[test]
fn an_ungate_that_is_refused_three_times_costs_the_attempt_and_is_not_tried_for_a_minute() {
    let mut bench = narrow(2);
    bench.gang("train", 1);
    let refusals = run_refusing(&mut bench, "train-0", 50);
    assert_eq!(refusals, 3);
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.admission), (2, None));
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    let queue = status.queue.unwrap();
    assert_eq!(queue.reason, muster_api::Reason::NotPermitted);
    assert!(queue.details.contains("train-0"), "{}", queue.details);
    assert!(!bench.has_permits("n0") && !bench.has_permits("n1"));
    bench.gang("next", 2);
    bench.run_at_once();
    assert_eq!(ungated(&bench, "next"), 2, "nobody else waits for it");
}

#[test]
fn a_pod_in_the_place_of_one_that_may_not_be_changed_is_tried_though_nobody_told_that_the_other_is_gone()
 {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    assert_eq!(run_refusing(&mut bench, "train-0", 50), 3);
    let queue = bench.gang_status().queue.unwrap();
    assert_eq!(queue.reason, muster_api::Reason::NotPermitted);
    bench.change_pod("train-0", |pod| {
        pod.metadata.uid = Some("another-uid".to_owned());
    });
    let listed = bench.server.list(Kind::Pod);
    let listed = Change::ListedKeys(Kind::Pod, listed.iter().map(Object::key).collect());
    bench.observe();
    bench.machine.observe(listed);
    bench.run_at_once();
    let queue = bench.gang_status().queue;
    assert!(queue.is_none(), "it waits for nothing: {queue:?}");
    assert_eq!(ungated(&bench, "train"), 1);
}

#[test]
fn an_attempt_that_is_refused_half_way_is_evicted() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    // Nor may the pod be deleted.
    let refusals = run_refusing(&mut bench, "train-1", 80);
    assert_eq!(refusals, 3 + 3);
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.admission), (2, None));
    assert_eq!(status.evictions[0].reason, muster_api::Reason::NotPermitted);
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
}

#[test]
fn an_attempt_with_one_pod_ungated_and_another_deleted_is_evicted() {
    let mut bench = narrow(1);
    bench.gang("train", 2);
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 1);
    let gated = usize::from(!is_gated(&bench.server.pod("train-0").unwrap()));
    bench.server.remove(&pod_key(&format!("train-{gated}")));
    bench.run();
    bench.seconds += 5;
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.attempt, status.admission), (2, None));
    assert_eq!(
        status.evictions[0].reason,
        muster_api::Reason::MembersChanged
    );
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
}

#[test]
fn a_partly_started_attempt_with_a_pod_gone_stamps_the_gated_ones_before_it_leaves_the_ledger() {
    let mut bench = narrow(1);
    bench.gang("train", 3);
    bench.run_at_once();
    assert_eq!(ungated(&bench, "train"), 1);
    bench.server.remove(&pod_key("train-1"));
    bench.run();
    let gated = bench.server.pod("train-2").unwrap();
    assert!(is_gated(&gated));
    assert_eq!(
        crate::objects::stamp(&gated),
        2,
        "no late ungate is taken any more"
    );
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    bench.server.remove(&pod_key("train-0"));
    bench.run();
    assert_eq!(
        bench.gang_status().attempt,
        2,
        "nothing of it runs any more"
    );
}
