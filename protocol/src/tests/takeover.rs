use muster_api::{Gang, LedgerSpec, NodeDevicesSpec};

use super::*;
use crate::{ExitReason, objects::is_gated};

/// Performs the first `count` effects.
fn perform_first(bench: &mut Bench, count: usize) {
    for _ in 0..count {
        let effects = bench.poll();
        for effect in effects {
            bench.perform(&effect);
        }
    }
}

#[test]
fn a_leader_raises_the_epoch_before_it_reads_anything() {
    let mut bench = Bench::new();
    perform_first(&mut bench, 6);
    let names: Vec<&str> = bench.written.iter().take(5).map(kind_of).collect();
    // The Ledger does not exist, so its first read brings nothing and is not listed here.
    assert_eq!(
        names,
        ["create Ledger", "read", "replace Ledger", "list", "list"]
    );
    assert!(bench.machine.leading_epoch().is_some());
    assert_eq!(
        bench
            .written
            .iter()
            .filter(|it| kind_of(it) == "list")
            .count(),
        17
    );
}

#[test]
fn each_leader_raises_the_epoch_by_one_and_keeps_what_is_committed() {
    let mut bench = Bench::new();
    bench.run();
    let first = bench.machine.leading_epoch().unwrap();
    bench.take_over();
    bench.run();
    assert_eq!(bench.machine.leading_epoch(), Some(first + 1));
    assert_eq!(bench.server.ledger().unwrap().spec.leader_epoch, first + 1);
}

#[test]
fn a_raise_that_conflicts_or_is_not_answered_begins_with_the_ledger_again() {
    for outcome in [Outcome::Conflict, Outcome::Unknown] {
        let mut bench = Bench::new();
        bench.server.perform(&ApiRequest::CreateLedger {
            spec: LedgerSpec {
                leader_epoch: 6,
                ..LedgerSpec::default()
            },
        });
        let read = bench.poll().remove(0);
        bench.perform(&read);
        let raise = bench.poll().remove(0);
        assert!(
            matches!(&*raise.write, ApiRequest::ReplaceLedger { spec, .. } if spec.leader_epoch == 7)
        );
        bench.machine.settle(raise.id, outcome);
        assert!(bench.poll().is_empty(), "not in a tight loop");
        bench.seconds += 1;
        assert!(matches!(
            *bench.poll()[0].write,
            ApiRequest::ReadObject { .. }
        ));
        assert_eq!(bench.machine.leading_epoch(), None);
    }
}

#[test]
fn a_leader_that_sees_a_higher_epoch_anywhere_stops() {
    let mut bench = Bench::new();
    bench.run();
    let own = bench.machine.leading_epoch().unwrap();
    let mut devices = bench.server.node_devices("n0").unwrap();
    devices.spec = NodeDevicesSpec {
        leader_epoch: own + 1,
        ..devices.spec
    };
    bench.server.put(Object::NodeDevices(Arc::new(devices)));
    bench.gang("train", 2);
    assert!(bench.poll().is_empty());
    let expected = ExitReason::HigherEpoch {
        object: "NodeDevices n0".to_owned(),
        epoch: own + 1,
        own,
    };
    assert_eq!(bench.machine.must_exit(), Some(&expected));
}

#[test]
fn after_a_conflict_nothing_is_committed_before_the_ledger_was_read_again() {
    let mut bench = Bench::new();
    bench.run();
    let own = bench.machine.leading_epoch().unwrap();
    bench.gang("train", 1);
    let create = bench.poll().remove(0);
    assert!(matches!(*create.write, ApiRequest::CreateGang { .. }));
    bench.machine.settle(create.id, Outcome::Conflict);
    let effects = bench.poll();
    assert_eq!(effects.len(), 1);
    assert!(matches!(*effects[0].write, ApiRequest::ReadObject { .. }));
    let mut ledger = bench.server.ledger().unwrap();
    ledger.spec.leader_epoch = own + 8;
    bench.server.put(Object::Ledger(Arc::new(ledger)));
    bench.perform(&effects[0]);
    let expected = ExitReason::HigherEpoch {
        object: "Ledger cluster".to_owned(),
        epoch: own + 8,
        own,
    };
    assert_eq!(bench.machine.must_exit(), Some(&expected));
}

#[test]
fn a_ledger_that_cannot_be_read_after_a_conflict_is_asked_for_again_but_not_in_a_tight_loop() {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 1);
    let create = bench.poll().remove(0);
    bench.machine.settle(create.id, Outcome::Conflict);
    let read = bench.poll().remove(0);
    bench.machine.settle(read.id, Outcome::Unknown);
    assert!(bench.poll().is_empty());
    bench.seconds += 1;
    let effects = bench.poll();
    let is_read = |effect: &&Effect| matches!(*effect.write, ApiRequest::ReadObject { .. });
    assert_eq!(effects.iter().filter(is_read).count(), 1, "{effects:?}");
}

#[test]
fn a_write_that_is_not_answered_is_repeated_word_by_word() {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 1);
    let first = bench.poll().remove(0);
    bench.machine.settle(first.id, Outcome::Unknown);
    bench.seconds += 1;
    let again = bench.poll();
    let again = again
        .iter()
        .find(|it| matches!(*it.write, ApiRequest::CreateGang { .. }))
        .unwrap();
    assert_ne!(again.id, first.id);
    assert!(
        Arc::ptr_eq(&again.write, &first.write),
        "word by word: {again:?}, after {first:?}"
    );
}

/// Tells the machine all objects once more, as watches do that were interrupted.
fn relist(bench: &mut Bench) {
    bench.server.news();
    for kind in Kind::ALL {
        let objects = bench.server.list(kind);
        let keys = objects.iter().map(Object::key).collect();
        for object in objects {
            bench.machine.observe(Change::Applied(object));
        }
        bench.machine.observe(Change::ListedKeys(kind, keys));
    }
}

#[test]
fn a_leader_under_whom_the_store_is_set_back_ends_and_the_next_one_goes_on_from_what_is_stored() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    let backup = bench.server.clone();
    for name in ["train-0", "train-1"] {
        bench.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
        });
    }
    bench.run();
    assert_eq!(bench.gang_status().phase, muster_api::GangPhase::Running);
    // The same leader all the time: the Ledger that is restored is the one that it raised.
    bench.server = backup;
    relist(&mut bench);
    perform_first(&mut bench, 3);
    let exit = bench.machine.must_exit();
    assert!(
        matches!(exit, Some(ExitReason::StoreSetBack { .. })),
        "{exit:?}"
    );
    bench.take_over();
    bench.run();
    assert_eq!(bench.machine.must_exit(), None);
    assert_eq!(bench.gang_status().phase, muster_api::GangPhase::Admitted);
    bench.change_pod("train-0", |pod| {
        pod.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    });
    bench.run();
    let conditions = bench.gang_status().conditions;
    assert!(
        conditions.iter().any(|it| it.reason == "PodFailed"),
        "{conditions:?}"
    );
}

#[test]
fn a_list_of_an_api_server_that_lags_behind_costs_one_read_and_changes_nothing() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    let before = bench.server.clone();
    for name in ["train-0", "train-1"] {
        bench.change_pod(name, |pod| {
            pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
        });
    }
    bench.run();
    bench.written.clear();
    let now = std::mem::replace(&mut bench.server, before);
    relist(&mut bench);
    bench.server = now;
    bench.run();
    assert_eq!(bench.machine.must_exit(), None);
    let written: Vec<&str> = bench.written.iter().map(kind_of).collect();
    assert_eq!(written, ["read"]);
}

/// The answer of the read was made before the last change, and comes after it.
#[test]
fn what_changes_while_the_read_is_under_way_is_no_store_that_was_set_back() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    let before = bench.server.clone();
    let run = |pod: &mut Pod| pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
    for name in ["train-0", "train-1"] {
        bench.change_pod(name, run);
    }
    bench.run();
    let now = std::mem::replace(&mut bench.server, before);
    relist(&mut bench);
    bench.server = now;
    let effects = bench.machine.poll(bench.now());
    let is_read = |effect: &&Effect| matches!(*effect.write, ApiRequest::ReadObject { .. });
    let read = effects.iter().find(is_read).expect("a suspicion");
    let ApiRequest::ReadObject { key } = &*read.write else {
        unreachable!("it is a read")
    };
    let answer = bench.server.perform(&read.write);
    let object = bench.server.list(key.kind).into_iter();
    let object = object.filter(|object| object.key() == *key).last();
    bench.server.put(object.expect("it is there"));
    bench.observe();
    bench.machine.settle(read.id, answer);
    assert_eq!(bench.machine.must_exit(), None);
}

/// Of two gangs on one node one is gone, so that its intent leaves the Ledger once the node's object carries the new epoch. The permit of the
/// other one waits for the proof that this leader is the newest; but its Gang is written to at once, and until that is seen it is due
/// none.
#[test]
fn an_epoch_that_a_node_is_owed_does_not_wait_for_a_permit_that_nobody_is_due_while_its_gang_is_written_to()
 {
    let mut bench = Bench::new();
    bench.run();
    voiding::cordon(&mut bench, "n1");
    bench.gang("goes", 1);
    bench.gang("stays", 1);
    let permits = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceNodeDevices { spec, .. } if !spec.permits.is_empty());
    assert!(bench.run_until(permits), "carried, and not permitted yet");
    assert_eq!(bench.server.ledger().unwrap().spec.intents.len(), 2);
    bench.server.remove(&pod_key("goes-0"));
    for object in bench.server.list(Kind::Gang) {
        let Object::Gang(gang) = &object else {
            unreachable!("of this kind")
        };
        let labels = gang.metadata.labels.as_ref().unwrap();
        if labels[keys::GANG] == "goes" {
            bench.server.remove(&object.key());
            continue;
        }
        // Its status says which spec was seen.
        let mut gang = Gang::clone(gang);
        gang.metadata.generation = Some(2);
        bench.server.put(Object::Gang(Arc::new(gang)));
    }
    bench.take_over();
    let first = (0..20).find_map(|_| {
        let effects = bench.poll();
        if bench.machine.leading_epoch().is_some() {
            return Some(effects);
        }
        for effect in &effects {
            bench.perform(effect);
        }
        None
    });
    let first = first.expect("it leads");
    let own = bench.machine.leading_epoch().unwrap();
    let tells = |effect: &Effect| matches!(&*effect.write, ApiRequest::ReplaceGangStatus { .. });
    assert!(first.iter().any(tells), "{first:?}");
    let is_fence = |effect: &Effect| {
        matches!(&*effect.write, ApiRequest::ReplaceNodeDevices { node, spec, .. }
            if node == "n0" && spec.leader_epoch == own && spec.permits.is_empty())
    };
    assert!(first.iter().any(is_fence), "{first:?}");
    for effect in &first {
        bench.perform(effect);
    }
    bench.run();
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
    assert!(!is_gated(&bench.server.pod("stays-0").unwrap()));
    let permits = bench.server.node_devices("n0").unwrap().spec.permits;
    assert!(
        permits.len() == 1 && permits[0].gang.contains("stays") && !permits[0].withdrawn,
        "{permits:?}"
    );
}

fn kind_of(write: &ApiRequest) -> &'static str {
    match write {
        ApiRequest::ReadObject { .. } => "read",
        ApiRequest::ReadAll { .. } => "list",
        ApiRequest::CreateLedger { .. } => "create Ledger",
        ApiRequest::ReplaceLedger { .. } => "replace Ledger",
        _ => "other",
    }
}
