//! Permits are added only to objects that were seen before their leader was the newest for certain: a superseded one permits nothing,
//! also where the object that kept it from it was deleted.

use super::*;
use crate::{
    ExitReason,
    objects::{ledger_object, node_devices_object},
};

/// The permits that a write gives a node, if it is one of its object.
fn permits(write: &ApiRequest) -> Option<usize> {
    match write {
        ApiRequest::CreateNodeDevices { spec, .. }
        | ApiRequest::ReplaceNodeDevices { spec, .. } => Some(spec.permits.len()),
        _ => None,
    }
}

fn reads_ledger(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReadObject { key } if *key == ledger_object())
}

/// A cluster with one gang of one pod that was let go, and the node that it is on.
fn running() -> (Bench, &'static str) {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 1);
    bench.run();
    let node = ["n0", "n1"]
        .into_iter()
        .find(|node| bench.has_permits(node));
    (bench, node.unwrap())
}

#[test]
fn a_superseded_leader_permits_nothing_anew_where_the_object_that_its_successor_wrote_was_deleted()
{
    let (mut bench, node) = running();
    let own = bench.machine.leading_epoch().unwrap();
    let mut old = std::mem::replace(&mut bench.machine, Machine::new(config()));
    // Of all that follows the old leader sees nothing but the deletion.
    bench.server.remove(&pod_key("train-0"));
    bench.run();
    assert!(!bench.has_permits(node), "its successor took it back");
    let devices = node_devices_object(node);
    bench.server.remove(&devices);
    old.observe(Change::Deleted(devices));
    let effects = old.poll(bench.now());
    let create = effects
        .iter()
        .find(|effect| permits(&effect.write).is_some());
    let create = create.unwrap();
    assert_eq!(permits(&create.write), Some(0), "{create:?}");
    // However late it comes: there is none.
    let outcome = bench.server.perform(&create.write);
    assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    old.settle(create.id, outcome);
    let made = bench.server.node_devices(node).unwrap();
    old.observe(Change::Applied(Object::NodeDevices(Arc::new(made))));
    let effects = old.poll(bench.now());
    let written = effects.iter().filter_map(|effect| permits(&effect.write));
    assert_eq!(written.count(), 0, "{effects:?}");
    let read = effects.iter().find(|effect| reads_ledger(&effect.write));
    let read = read.unwrap();
    let outcome = bench.server.perform(&read.write);
    old.settle(read.id, outcome);
    let exit = old.must_exit();
    assert!(
        matches!(exit, Some(ExitReason::HigherEpoch { own: its, .. }) if *its == own),
        "{exit:?}"
    );
    assert!(old.poll(bench.now()).is_empty());
}

#[test]
fn a_running_gang_is_permitted_again_after_its_leader_has_read_that_it_leads() {
    let (mut bench, node) = running();
    bench.runs_on("train-0", node);
    bench.run();
    bench.server.remove(&node_devices_object(node));
    bench.written.clear();
    bench.run();
    let read = bench.written.iter().position(reads_ledger).unwrap();
    let count = |write: &ApiRequest| permits(write).unwrap_or_default();
    let permitted = bench.written.iter().position(|write| count(write) > 0);
    assert!(read < permitted.unwrap(), "{:?}", bench.written);
    let devices = bench.server.node_devices(node).unwrap();
    let [permit] = devices.spec.permits.as_slice() else {
        panic!("one permit, not {:?}", devices.spec.permits);
    };
    assert!(!permit.withdrawn);
}

#[test]
fn a_leader_that_cannot_read_the_ledger_permits_nothing_anew_until_it_can() {
    let (mut bench, node) = running();
    bench.server.remove(&node_devices_object(node));
    let mut asked = 0;
    for _ in 0..6 {
        for effect in &bench.poll() {
            if reads_ledger(&effect.write) {
                asked += 1;
                bench.machine.settle(effect.id, Outcome::Unknown);
            } else {
                bench.perform(effect);
            }
        }
        bench.seconds += 1;
    }
    assert!(asked > 1, "asked {asked} times");
    assert!(!bench.has_permits(node));
    bench.run();
    assert!(bench.has_permits(node));
}

/// A read that fails tells no node anything: each of ten thousand that wait would be looked at in every second, as long as the API server
/// is away.
#[test]
fn while_the_ledger_cannot_be_read_it_is_asked_for_once_a_second_and_no_node_is_looked_at() {
    let mut bench = Bench::new();
    bench.run();
    bench.gang("train", 4);
    bench.run();
    for node in ["n0", "n1"] {
        assert!(bench.has_permits(node));
        bench.server.remove(&node_devices_object(node));
    }
    // A look at everything after each poll would be counted too.
    bench.checks_polls = false;
    let (mut reads, mut looks) = (0, 0);
    for second in 0..40 {
        let before = bench.machine.visited();
        // The answer makes work at once, or not before the next second.
        for _ in 0..3 {
            for effect in &bench.poll() {
                if reads_ledger(&effect.write) {
                    reads += 1;
                    bench.machine.settle(effect.id, Outcome::Unknown);
                } else {
                    bench.perform(effect);
                }
            }
        }
        // First the objects are made again, and seen.
        if second >= 10 {
            looks += bench.machine.visited() - before;
        }
        bench.seconds += 1;
    }
    assert!((30..=41).contains(&reads), "{reads} reads in 40 seconds");
    assert!(looks < 20, "{looks} looks in 30 seconds");
    assert!(!bench.has_permits("n0") && !bench.has_permits("n1"));
    bench.checks_polls = true;
    bench.run();
    assert!(bench.has_permits("n0") && bench.has_permits("n1"));
}

#[test]
fn the_commit_of_an_admission_is_proof_enough_for_its_permits() {
    let mut bench = Bench::new();
    bench.run();
    bench.written.clear();
    bench.gang("train", 4);
    bench.run();
    assert!(bench.has_permits("n0") && bench.has_permits("n1"));
    let reads = bench.written.iter().filter(|write| reads_ledger(write));
    assert_eq!(reads.count(), 0, "{:?}", bench.written);
}
