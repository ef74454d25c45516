//! Rules about what is told, and what is kept.

use muster_api::{GangPhase, Reason};

use super::*;
use crate::{admission::record::bytes, feed::HELPED, objects::stamp};

fn gang_writes(bench: &Bench) -> usize {
    let writes = bench.written.iter();
    let writes = writes.filter(|write| matches!(write, ApiRequest::ReplaceGangStatus { .. }));
    writes.count()
}

#[test]
fn a_claim_that_is_made_within_two_seconds_is_no_reason_to_tell() {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 1);
    bench.server.remove(&ObjectKey {
        kind: Kind::ResourceClaim,
        ..pod_key("train-0")
    });
    bench.run_at_once();
    bench.seconds += 1;
    bench.run_at_once();
    assert_eq!(bench.gang_status().queue, None);
    let mut made = claim("train-0", keys::DEVICE_CLASS_GPU);
    if let Object::ResourceClaim(claim) = &mut made {
        Arc::make_mut(claim).metadata.uid = Some("made-late".to_owned());
    }
    bench.server.put(made);
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    let told = bench.written.iter().any(|write| match write {
        ApiRequest::ReplaceGangStatus { status, .. } => status.queue.is_some(),
        _ => false,
    });
    assert!(!told, "it never waited for anything that lasted");
}

#[test]
fn how_many_of_its_pods_run_is_no_write() {
    let mut bench = Bench::new();
    bench.gang("train", 4);
    bench.run();
    bench.written.clear();
    for rank in 0..3 {
        bench.change_pod(&format!("train-{rank}"), |pod| {
            pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
        });
        bench.run();
    }
    assert_eq!(gang_writes(&bench), 0);
    bench.change_pod("train-3", |pod| {
        pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
    });
    bench.run();
    assert_eq!(gang_writes(&bench), 1);
    assert_eq!(bench.gang_status().phase, GangPhase::Running);
}

#[test]
fn numbers_inside_a_reason_are_written_at_most_once_in_30_seconds() {
    let mut bench = Bench::new();
    bench.pod("train", 0, 4, keys::DEVICE_CLASS_GPU);
    bench.run();
    let said = |bench: &Bench| bench.gang_status().queue.unwrap().details;
    let first = said(&bench);
    bench.written.clear();
    let began = bench.seconds;
    bench.pod("train", 1, 4, keys::DEVICE_CLASS_GPU);
    bench.run();
    bench.pod("train", 2, 4, keys::DEVICE_CLASS_GPU);
    bench.run();
    assert_eq!((gang_writes(&bench), said(&bench)), (0, first.clone()));
    bench.seconds = began + 30;
    bench.run();
    assert_eq!(gang_writes(&bench), 1);
    assert_ne!(said(&bench), first);
}

/// The Gangs that are written from that second on, until everything is at rest.
fn gangs_written_at(bench: &mut Bench, second: u64) -> BTreeSet<String> {
    bench.seconds = second;
    bench.written.clear();
    bench.run();
    let writes = bench.written.iter().filter_map(|write| match write {
        ApiRequest::ReplaceGangStatus { key, .. } => Some(key.name.clone()),
        _ => None,
    });
    writes.collect()
}

#[test]
fn of_a_long_line_only_the_head_has_its_numbers_written_twice_a_minute() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.run();
    bench.server.put(team("vision", 1));
    for number in 0..=HELPED {
        bench.gang(&format!("wait-{number:02}"), 3);
    }
    bench.run();
    let began = bench.seconds;
    let written_at = |bench: &mut Bench, seconds: u64| gangs_written_at(bench, began + seconds);
    // Whatever changed while they came.
    written_at(&mut bench, 60);
    // None of them may have so much, as before.
    bench.server.put(team("vision", 2));
    let head = written_at(&mut bench, 100);
    assert_eq!(head.len(), HELPED, "{head:?}");
    let is_behind = |gang: &String| !head.contains(gang);
    let soon = written_at(&mut bench, 200);
    assert!(!soon.iter().any(is_behind), "{soon:?}");
    let late = written_at(&mut bench, 310);
    assert_eq!(late.iter().filter(|gang| is_behind(gang)).count(), 1);
}

#[test]
fn a_gang_that_comes_near_the_head_has_its_numbers_written_once_it_is_near_for_half_a_minute() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.run();
    bench.server.put(team("vision", 1));
    let label = |number: usize| format!("wait-{number:02}");
    for number in 0..=HELPED {
        bench.gang(&label(number), 3);
    }
    bench.run();
    let began = bench.seconds;
    let written_at = |bench: &mut Bench, seconds: u64| gangs_written_at(bench, began + seconds);
    written_at(&mut bench, 60);
    bench.server.put(team("vision", 2));
    let head = written_at(&mut bench, 100);
    let is_in_head = |label: &String| head.iter().any(|gang| gang.contains(label));
    let (near, far): (Vec<String>, Vec<String>) = (0..=HELPED).map(label).partition(is_in_head);
    assert_eq!((near.len(), far.len()), (HELPED, 1), "{head:?}");
    // One of those before it is gone, and it is the sixteenth.
    for rank in 0..3 {
        bench
            .server
            .remove(&pod_key(&format!("{}-{rank}", near[0])));
    }
    let is_written = |gangs: &BTreeSet<String>| gangs.iter().any(|gang| gang.contains(&far[0]));
    for (seconds, expected) in [(110, false), (125, false), (150, true)] {
        let written = written_at(&mut bench, seconds);
        assert_eq!(is_written(&written), expected, "{seconds}: {written:?}");
    }
}

#[test]
fn a_conflict_of_a_pod_stops_nothing_and_asks_nobody_who_leads() {
    let mut bench = Bench::new();
    let is_pod = |write: &ApiRequest| matches!(write, ApiRequest::PatchPod { .. });
    bench.gang("train", 2);
    assert!(bench.run_until(is_pod));
    // The effects that were just returned are lost; the next leader's are looked at.
    bench.take_over();
    let mut patches = Vec::new();
    for _ in 0..100 {
        bench.acknowledge(&[]);
        for effect in bench.poll() {
            if is_pod(&effect.write) {
                patches.push(effect);
            } else {
                bench.perform(&effect);
            }
        }
    }
    bench.machine.settle(patches[0].id, Outcome::Conflict);
    bench.gang("next", 1);
    let effects = bench.poll();
    let reads = |effect: &Effect| matches!(*effect.write, ApiRequest::ReadObject { .. });
    let creates = |effect: &Effect| matches!(*effect.write, ApiRequest::CreateGang { .. });
    assert!(!effects.iter().any(reads), "{effects:?}");
    assert!(effects.iter().any(creates), "{effects:?}");
}

#[test]
fn a_node_that_is_made_again_under_its_name_keeps_its_permits_and_is_answered_for() {
    let mut bench = Bench::new();
    bench.gang("train", 1);
    bench.run();
    let node = bench.gang_status().placement.unwrap().nodes[0].node.clone();
    bench.runs_on("train-0", &node);
    bench.run();
    let [Object::Node(object), _] = node_with_gpus(&node, 2) else {
        panic!("a node")
    };
    let mut object = Arc::unwrap_or_clone(object);
    object.metadata.uid = Some("made-again".to_owned());
    bench.server.put(Object::Node(Arc::new(object)));
    bench.run();
    let spec = bench.server.node_devices(&node).unwrap().spec;
    assert_eq!(spec.node_uid, "made-again");
    assert_eq!(spec.permits.len(), 1, "the pod lives on");
    assert!(!spec.permits[0].withdrawn);
    // The other GPU of that node, and both of the other, can be given away again.
    bench.gang("next", 3);
    bench.run();
    let gang = bench
        .server
        .list(Kind::Gang)
        .into_iter()
        .find_map(|it| match it {
            Object::Gang(gang) if gang.spec.size == 3 => gang.status.clone(),
            _ => None,
        });
    assert_eq!(gang.unwrap().phase, GangPhase::Admitted);
}

#[test]
fn a_late_stamp_of_an_older_leader_does_not_void_a_partly_started_attempt_but_costs_it_whole() {
    let mut bench = Bench::with(Config {
        ungated_unbound_limit: 1,
        ..config()
    });
    bench.gang("train", 2);
    bench.run_at_once();
    assert_eq!(stamp(&bench.server.pod("train-0").unwrap()), 1);
    bench.change_pod("train-1", |pod| {
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(keys::ATTEMPT.to_owned(), "2".to_owned());
    });
    bench.take_over();
    bench.run_at_once();
    bench.seconds += 2;
    bench.run_at_once();
    let status = bench.gang_status();
    assert_eq!(status.attempt, 1, "one of its pods may run");
    assert!(status.admission.is_some());
    let degraded = status.conditions.iter().find(|it| it.type_ == "Degraded");
    assert_eq!(degraded.unwrap().reason, "MembersChanged");
    bench.seconds += 5;
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.evictions[0].reason, Reason::MembersChanged);
    assert_eq!(status.attempt, 2);
}

#[test]
fn an_ended_gang_that_was_taken_up_again_is_not_deleted_by_a_late_delete() {
    let mut bench = Bench::new();
    // One of two pods, so nothing holds the gang but its declaration.
    bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Assembling);
    // This leader is told that the pod is gone, by a cache that is wrong.
    bench.machine.observe(Change::Deleted(pod_key("train-0")));
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Failed);
    bench.seconds += 3_600;
    let late = bench.poll().pop().unwrap();
    assert!(matches!(*late.write, ApiRequest::DeleteGang { .. }));
    // Another leader sees the pod, and takes the Gang up again.
    bench.take_over();
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Assembling);
    let outcome = bench.server.perform(&late.write);
    assert!(matches!(outcome, Outcome::Conflict), "{outcome:?}");
    assert_eq!(bench.gang_status().phase, GangPhase::Assembling);
}

/// A plan does not look at where a volume can be reached. Whoever looks at the gang is told so while it starts, while it
/// runs, and when it does not come to run.
#[test]
fn what_a_plan_does_not_look_at_is_named_while_the_gang_is_admitted() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.change_pod("train-1", |pod| {
        let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volume).unwrap();
    });
    bench.run();
    let message = |bench: &Bench, type_: &str| {
        let conditions = bench.gang_status().conditions;
        let found = conditions.into_iter().find(|it| it.type_ == type_);
        found.unwrap_or_else(|| panic!("no {type_}")).message
    };
    let named = "not planned for: spec.volumes[0] (data)";
    let admitted = message(&bench, "Admitted");
    assert!(admitted.contains(named), "{admitted}");
    // The volume is elsewhere: no pod comes to run.
    bench.seconds += 3_600;
    bench.run();
    let degraded = bench.gang_status().evictions.remove(0).message;
    assert!(
        degraded.contains("no rank made progress") && degraded.contains(named),
        "{degraded}"
    );
}

#[test]
fn a_gang_of_which_a_rank_failed_while_another_runs_is_degraded_and_does_not_run() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    for (name, phase) in [("train-0", "Running"), ("train-1", "Failed")] {
        bench.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some(phase.to_owned());
        });
    }
    bench.run();
    let status = bench.gang_status();
    assert_eq!(status.phase, GangPhase::Admitted);
    let condition = |type_: &str| {
        let mut conditions = status.conditions.iter();
        let found = conditions.find(|it| it.type_ == type_).unwrap();
        (found.status.as_str(), found.reason.as_str())
    };
    assert_eq!(condition("Running").0, "False");
    assert_eq!(condition("Degraded"), ("True", "PodFailed"));
    assert!(status.admission.is_some(), "what runs stays charged");
}

/// A machine that ungates nothing, with room for many pods.
fn roomy(ledger_bytes: usize) -> Bench {
    let mut bench = Bench::with(Config {
        ledger_bytes,
        ..config()
    });
    bench.server.put(team("vision", 64));
    for number in 2..8 {
        for object in node_with_gpus(&format!("n{number}"), 2) {
            bench.server.put(object);
        }
    }
    bench.run();
    bench.machine.withhold_ungating(true);
    bench
}

/// A gang that waits for room behind one of a single pod, in a Ledger that would hold it alone, and a few bytes more.
fn waiting_for_room(gang: &str, pods: usize, more_bytes: usize) -> Bench {
    let mut alone = roomy(config().ledger_bytes);
    alone.gang(gang, pods);
    alone.run();
    assert_eq!(committed(&alone), [pods]);
    let alone = bytes(&alone.server.ledger().unwrap().spec);
    let mut bench = roomy(alone + more_bytes);
    bench.gang("first", 1);
    bench.run();
    bench.gang(gang, pods);
    bench.run();
    assert_eq!(committed(&bench), [1], "{gang} waits for room");
    bench
}

/// How many pods each intent of the Ledger has.
fn committed(bench: &Bench) -> Vec<usize> {
    let intents = bench.server.ledger().unwrap().spec.intents;
    intents.iter().map(|intent| intent.pods.len()).collect()
}

#[test]
fn what_does_not_fit_into_the_ledger_is_not_overtaken() {
    // Too large for what is left, and before the small one, which would fit.
    let mut bench = waiting_for_room("large", 8, 8);
    bench.gang("small", 1);
    bench.run();
    assert_eq!(committed(&bench), [1], "nothing goes before the large one");
    bench.machine.withhold_ungating(false);
    bench.run();
    let had_its_turn = bench.written.iter().any(|write| match write {
        ApiRequest::ReplaceLedger { spec, .. } => {
            spec.intents.iter().any(|intent| intent.pods.len() == 8)
        }
        _ => false,
    });
    assert!(had_its_turn);
    let reasons: Vec<Reason> = bench
        .server
        .list(Kind::Gang)
        .iter()
        .filter_map(|it| match it {
            Object::Gang(gang) => Some(gang.status.as_ref()?.queue.as_ref()?.reason),
            _ => None,
        })
        .collect();
    assert!(
        reasons.is_empty(),
        "all are admitted in the end: {reasons:?}"
    );
}

#[test]
fn what_is_behind_a_gang_too_large_for_the_ledger_has_its_turn_once_that_one_is_deleted() {
    let mut bench = waiting_for_room("large", 8, 8);
    for rank in 0..8 {
        bench.server.remove(&pod_key(&format!("large-{rank}")));
    }
    bench.run();
    bench.gang("small", 1);
    bench.run();
    assert_eq!(committed(&bench), [1, 1], "the small one fits");
}

#[test]
fn what_waits_for_room_in_the_ledger_is_not_planned_again_by_each_poll() {
    let mut bench = waiting_for_room("second", 1, 64);
    let planned = bench.machine.engine().visited();
    for _ in 0..10 {
        bench.seconds += 1;
        bench.poll();
    }
    assert_eq!(bench.machine.engine().visited(), planned);
    bench.machine.withhold_ungating(false);
    bench.run();
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    assert!(
        bench.machine.engine().visited() > planned,
        "it had its turn"
    );
}

#[test]
fn an_admission_before_500_waiting_gangs_writes_to_none_of_them() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.server.put(team("vision", 3));
    bench.gang("head", 3);
    bench.run();
    // What the others use differs afterwards: all 3 before, 2 of the 3 then.
    for number in 0..500 {
        bench.gang(&format!("wait-{number:03}"), 2);
    }
    bench.run();
    // Every one of them was told why it waits.
    bench.seconds += 60;
    bench.run();
    bench.written.clear();
    for rank in 0..3 {
        bench.change_pod(&format!("head-{rank}"), |pod| {
            pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        });
    }
    bench.run();
    let mut written: BTreeMap<String, usize> = BTreeMap::new();
    for write in &bench.written {
        if let ApiRequest::ReplaceGangStatus { key, .. } = write {
            *written.entry(key.name.clone()).or_default() += 1;
        }
    }
    // The one that ended, and the one that is admitted.
    assert_eq!(written.len(), 2, "{written:?}");
    assert!(written.values().sum::<usize>() <= 4, "{written:?}");
}

#[test]
fn a_gang_keeps_its_place_though_its_pods_are_made_again() {
    let mut bench = Bench::new();
    bench.gang("head", 4);
    bench.run();
    let made_at = |bench: &mut Bench, name: &str, uid: &str, time: &str| {
        bench.change_pod(name, |pod| {
            pod.metadata.uid = Some(uid.to_owned());
            pod.metadata.creation_timestamp = serde_json::from_value(json!(time)).unwrap();
        });
    };
    for (gang, time) in [
        ("early", "2027-01-01T00:00:10Z"),
        ("late", "2027-01-01T00:00:20Z"),
    ] {
        let name = format!("{gang}-0");
        bench.gang(gang, 1);
        bench.change_pod(&name, |pod| {
            pod.metadata.creation_timestamp = serde_json::from_value(json!(time)).unwrap();
            // What makes its pods again keeps its Gang.
            pod.metadata.owner_references = serde_json::from_value(json!([{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": gang, "uid": gang, "controller": true,
            }]))
            .unwrap();
        });
        bench.run();
    }
    let order = |bench: &mut Bench| {
        bench.seconds += 40;
        bench.run();
        let queue = bench.queue();
        let pending = queue.status.as_ref().unwrap().pending.clone();
        pending
            .into_iter()
            .map(|gang| gang.name)
            .collect::<Vec<_>>()
    };
    let before = order(&mut bench);
    assert_eq!(before.len(), 2);
    let pod = bench.server.pod("early-0").unwrap();
    bench.server.remove(&pod_key("early-0"));
    bench.run();
    bench.server.put(Object::Pod(Arc::new(pod)));
    made_at(&mut bench, "early-0", "made-again", "2027-01-01T01:00:00Z");
    assert_eq!(order(&mut bench), before);
}
