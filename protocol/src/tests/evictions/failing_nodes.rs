//! Nodes where attempts failed: new plans avoid them, as far as they can.

use muster_engine::MOST_AVOIDED_NODES;

use super::*;
use crate::tests::voiding::cordon;

/// A gang of one pod by label, which is bound where it is planned, and whose image never comes.
fn that_does_not_start() -> (Bench, String) {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    bench.run();
    let node = bind(&mut bench);
    (bench, node)
}

/// Its pod is bound where it is planned, and does not run; to which node.
fn bind(bench: &mut Bench) -> String {
    let placement = bench.gang_status().placement.unwrap();
    let node = placement.node_of(0).unwrap().node.clone();
    bench.change_pod("train-0", |pod| {
        pod.spec.as_mut().unwrap().node_name = Some(node.clone());
    });
    bench.run();
    node
}

/// Its start is late; its pod is ended and made again, and waits for the end of the pause.
fn time_out(bench: &mut Bench) {
    bench.seconds += 600;
    bench.run();
    assert_eq!(end_deleted(bench), 1);
    bench.gang("train", 1);
    bench.run();
}

fn wait(bench: &mut Bench, seconds: u64) {
    bench.seconds += seconds;
    bench.run();
}

/// What the Gang says about its admission.
fn admitted(bench: &Bench) -> String {
    let status = bench.gang_status();
    let mut conditions = status.conditions.into_iter();
    let admitted = conditions.find(|it| it.type_ == "Admitted");
    admitted.unwrap().message
}

#[test]
fn a_node_that_is_avoided_is_taken_where_there_is_no_room_without_it_and_that_is_told() {
    let (mut bench, first) = that_does_not_start();
    cordon(&mut bench, if first == "n0" { "n1" } else { "n0" });
    time_out(&mut bench);
    wait(&mut bench, 30);
    assert_eq!(bind(&mut bench), first);
    let told = format!("attempt 1 failed on {first}, but there was no room without it");
    assert!(admitted(&bench).contains(&told), "{}", admitted(&bench));
}

#[test]
fn a_node_is_avoided_for_six_hours() {
    for (hours, is_avoided) in [(5, true), (6, false)] {
        let (mut bench, first) = that_does_not_start();
        time_out(&mut bench);
        wait(&mut bench, hours * 3_600);
        assert_eq!(bind(&mut bench) != first, is_avoided, "{hours} h");
    }
}

/// They were counted together, the first eight by name.
#[test]
fn a_node_where_a_start_failed_is_avoided_however_many_others_have_a_claim_prepared() {
    let (mut bench, first) = that_does_not_start();
    let prepared: Vec<String> = (0..=MOST_AVOIDED_NODES)
        .map(|at| format!("before-{at}"))
        .collect();
    for node in &prepared {
        for object in node_with_gpus(node, 2) {
            bench.server.put(object);
        }
        let claims = vec!["claim-of-train-0".to_owned()];
        bench.holding.insert(node.clone(), claims);
    }
    bench.run();
    assert!(prepared.iter().all(|node| bench.has_permits(node)));
    time_out(&mut bench);
    wait(&mut bench, 30);
    let next = bind(&mut bench);
    assert!(next != first && !prepared.contains(&next), "{next}");
}

#[test]
fn the_engine_is_told_when_a_node_is_avoided_no_longer() {
    let (mut bench, first) = that_does_not_start();
    for node in ["n0", "n1"] {
        cordon(&mut bench, node);
    }
    time_out(&mut bench);
    let uid = gang_uid(&bench);
    let avoided = |bench: &Bench| {
        let waiting = bench.machine.engine().waiting(&uid.as_str().into());
        waiting.map(|gang| gang.topology.avoided.len())
    };
    let evicted = bench.gang_status().evictions[0].clone();
    assert_eq!(evicted.node, Some(first));
    let until = evicted.at.0.as_second() + 6 * 3_600;
    // The slow look at everything began in the second of the eviction: six hours later it comes again, unless it comes late once.
    wait(&mut bench, 900);
    bench.checks_polls = false;
    while bench.now().wall.as_second() < until {
        assert!(avoided(&bench).is_none_or(|nodes| nodes == 1));
        // Nothing but what is due by time has it look at the gang.
        let due = bench.machine.next_due().unwrap();
        bench.seconds = due.max(bench.seconds + 1);
        bench.run_at_once();
    }
    assert!(bench.now().wall.as_second() <= until + 1);
    assert_eq!(avoided(&bench), Some(0));
}

fn gang_uid(bench: &Bench) -> String {
    match bench.server.list(Kind::Gang).as_slice() {
        [Object::Gang(gang)] => gang.metadata.uid.clone().unwrap(),
        other => panic!("one Gang, not {other:?}"),
    }
}

#[test]
fn a_node_that_fails_a_rank_is_avoided_and_not_one_where_a_program_does() {
    for (reason, is_avoided) in [
        (Some("UnexpectedAdmissionError"), true),
        (Some("DeadlineExceeded"), false),
        (None, false),
    ] {
        let mut bench = running();
        bench.change_pod("train-1", |pod| {
            set_phase(pod, "Failed");
            let status = pod.status.as_mut().unwrap();
            status.reason = reason.map(str::to_owned);
            status.container_statuses = serde_json::from_value(json!([{
                "name": "rank", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 1}},
            }]))
            .unwrap();
        });
        bench.run();
        bench.seconds += 60;
        bench.run();
        assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
        let node = bench.gang_status().evictions[0].node.clone();
        assert_eq!(node.is_some(), is_avoided, "{reason:?}");
    }
}
