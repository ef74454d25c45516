use muster_api::GangPhase;

use super::*;
use crate::{ExitReason, objects::ledger_object};

fn is_ungate(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::PatchPod { patch, .. } if patch.to_string().contains("\"remove\""))
}

fn carries(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some())
}

fn commits(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceLedger { spec, .. } if !spec.intents.is_empty())
}

/// The effect that the machine owes next for which `is_meant` holds, unperformed.
fn owed(bench: &mut Bench, is_meant: impl Fn(&ApiRequest) -> bool) -> ApiRequest {
    for _ in 0..200 {
        bench.acknowledge(&[]);
        for effect in bench.poll() {
            if is_meant(&effect.write) {
                return (*effect.write).clone();
            }
            bench.perform(&effect);
        }
    }
    panic!("never owed");
}

#[test]
fn a_leader_whose_ledger_is_deleted_exits_and_its_successor_starts_above_every_epoch() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    bench.take_over();
    bench.run();
    let own = bench.machine.leading_epoch().unwrap();
    bench.server.remove(&ledger_object());
    assert!(bench.poll().is_empty());
    assert_eq!(
        bench.machine.must_exit(),
        Some(&ExitReason::LedgerLost { own })
    );

    bench.take_over();
    bench.run();
    let epoch = bench.machine.leading_epoch().unwrap();
    assert!(epoch > own, "{epoch} after {own}");
    assert_eq!(bench.machine.must_exit(), None);
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    assert_eq!(bench.gang_status().attempt, 1, "the admission stands");
}

#[test]
fn an_epoch_that_only_the_lost_ledger_carried_is_not_given_again() {
    let mut bench = Bench::new();
    bench.run();
    let mut highest = bench.machine.leading_epoch().unwrap();
    for _ in 0..5 {
        // Raised, and nothing else is written by it.
        bench.take_over();
        while bench.machine.leading_epoch().is_none() {
            for effect in bench.poll() {
                bench.perform(&effect);
            }
        }
        let raised = bench.machine.leading_epoch().unwrap();
        assert!(raised > highest, "{raised} after {highest}");
        highest = raised;
        bench.server.remove(&ledger_object());
    }
}

#[test]
fn a_leader_that_finds_another_ledger_after_a_conflict_exits_though_its_own_epoch_is_higher() {
    let mut bench = Bench::new();
    bench.run();
    let own = bench.machine.leading_epoch().unwrap();
    bench.gang("train", 1);
    let create = bench.poll().remove(0);
    bench.machine.settle(create.id, Outcome::Conflict);
    let check = bench.poll().remove(0);
    let ledger = muster_api::LedgerSpec {
        leader_epoch: 1,
        ..Default::default()
    };
    let other = muster_api::Ledger::new(keys::LEDGER_NAME, ledger);
    for seen in [
        Outcome::NotFound,
        Outcome::Done(Some(Object::Ledger(Arc::new(other)))),
    ] {
        bench.machine.settle(check.id, seen);
        assert_eq!(
            bench.machine.must_exit(),
            Some(&ExitReason::LedgerLost { own })
        );
    }
}

#[test]
fn nothing_is_committed_to_a_new_ledger_before_late_writes_of_older_leaders_must_conflict() {
    let mut bench = Bench::new();
    bench.gang("train", 4);
    // Committed, and on its way to the Gang when the Ledger is lost.
    let late = owed(&mut bench, carries);
    bench.server.remove(&ledger_object());
    bench.take_over();
    let commit = owed(&mut bench, commits);
    assert!(
        matches!(bench.server.perform(&late), Outcome::Conflict),
        "the late admission would be charged beside {commit:?}"
    );
    bench.take_over();
    bench.run();
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
}

#[test]
fn a_late_permit_finds_no_node_devices_as_they_were_once_something_is_committed() {
    let mut bench = Bench::new();
    bench.gang("train", 4);
    let permits = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceNodeDevices { spec, .. } if !spec.permits.is_empty());
    let late = owed(&mut bench, permits);
    bench.server.remove(&ledger_object());
    for rank in 0..4 {
        bench.server.remove(&pod_key(&format!("train-{rank}")));
    }
    bench.gang("next", 4);
    bench.take_over();
    owed(&mut bench, commits);
    assert!(matches!(bench.server.perform(&late), Outcome::Conflict));
}

#[test]
fn an_admission_that_was_carried_before_the_new_leader_looked_is_completed() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    assert!(bench.run_until(is_ungate));
    bench.server.remove(&ledger_object());
    bench.take_over();
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Admitted, 1));
    for name in ["train-0", "train-1"] {
        let pod = bench.server.pod(name).unwrap();
        assert_eq!(crate::objects::stamp(&pod), 1);
    }
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
}

#[test]
fn an_admission_that_lost_its_intent_is_voided_like_any_other_where_it_cannot_be_completed() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    assert!(bench.run_until(is_ungate));
    bench.server.remove(&ledger_object());
    bench.server.remove(&pod_key("train-1"));
    bench.take_over();
    bench.run();
    let status = bench.gang_status();
    assert_eq!((status.phase, status.attempt), (GangPhase::Assembling, 2));
    assert!(status.admission.is_none());
    for node in ["n0", "n1"] {
        let spec = bench.server.node_devices(node).unwrap().spec;
        assert!(spec.permits.is_empty(), "{node}");
    }
    assert!(bench.server.ledger().unwrap().spec.intents.is_empty());
}

#[test]
fn pods_go_in_the_order_of_commitment_across_a_lost_ledger() {
    let mut bench = Bench::new();
    bench.gang("first", 1);
    bench.run();
    let before = bench.gang_status().admission.unwrap().ledger_sequence;
    bench.server.remove(&ledger_object());
    bench.take_over();
    bench.gang("second", 1);
    bench.run();
    let sequences: Vec<i64> = bench
        .server
        .list(Kind::Gang)
        .into_iter()
        .filter_map(|object| match object {
            Object::Gang(gang) => Some(gang.status.clone()?.admission?.ledger_sequence),
            _ => None,
        })
        .collect();
    assert_eq!(sequences, [before, before + 1]);
}

#[test]
fn a_ledger_from_a_backup_is_raised_above_what_was_written_since() {
    let mut bench = Bench::new();
    bench.run();
    let backup = bench.server.ledger().unwrap();
    bench.take_over();
    bench.run();
    bench.take_over();
    bench.gang("train", 2);
    bench.run();
    let highest = bench.machine.leading_epoch().unwrap();

    bench.server.remove(&ledger_object());
    let mut restored = muster_api::Ledger::new(keys::LEDGER_NAME, backup.spec);
    restored.metadata.uid = Some("restored".to_owned());
    bench.server.put(Object::Ledger(Arc::new(restored)));
    bench.take_over();
    bench.run();
    let epoch = bench.machine.leading_epoch().unwrap();
    assert!(epoch > highest, "{epoch} after {highest}");
    assert_eq!(bench.gang_status().phase, GangPhase::Admitted);
    assert_eq!(bench.gang_status().attempt, 1);
}

#[test]
fn a_replica_that_took_over_while_another_did_does_not_raise_the_epoch_over_it() {
    let mut bench = Bench::new();
    bench.run();
    bench.take_over();
    // Everything is read but what comes last.
    let own = loop {
        let effects = bench.poll();
        let lists = |effect: &Effect| matches!(*effect.write, ApiRequest::ReadAll { .. });
        if effects.iter().any(lists) {
            let raised = bench.server.ledger().unwrap().spec.leader_epoch;
            // Meanwhile another replica raised the epoch and wrote by it.
            let mut ledger = bench.server.ledger().unwrap();
            ledger.spec.leader_epoch += 1;
            bench.server.put(Object::Ledger(Arc::new(ledger)));
            let mut devices = bench.server.node_devices("n0").unwrap();
            devices.spec.leader_epoch = raised + 1;
            bench.server.put(Object::NodeDevices(Arc::new(devices)));
            for effect in &effects {
                bench.perform(effect);
            }
            break raised;
        }
        for effect in &effects {
            bench.perform(effect);
        }
    };
    for _ in 0..5 {
        for effect in bench.poll() {
            bench.perform(&effect);
        }
    }
    assert_eq!(
        bench.machine.must_exit(),
        Some(&ExitReason::LedgerLost { own })
    );
    assert_eq!(bench.server.ledger().unwrap().spec.leader_epoch, own + 1);
}

#[test]
fn no_team_is_shown_as_idle_before_it_is_known_again_what_is_held() {
    let mut bench = Bench::new();
    bench.gang("train", 2);
    bench.run();
    bench.server.remove(&ledger_object());
    bench.take_over();
    bench.written.clear();
    bench.run();
    bench.gang("more", 1);
    bench.run();
    let shown = bench.written.iter().filter_map(|write| match write {
        ApiRequest::PublishTeam { status, .. } => Some(status.limits[0].used.0.clone()),
        _ => None,
    });
    let shown: Vec<String> = shown.collect();
    assert!(
        !shown.is_empty() && shown.iter().all(|used| used != "0"),
        "{shown:?}"
    );
}
