//! What is stored changes on purpose only: the Ledger, a Gang's status and a node's permits as this code writes them are
//! compared with the files in `tests/golden/`, byte by byte. `MUSTER_GOLDEN=write` writes the files.

use std::{fs, path::PathBuf};

use super::*;

fn golden(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("tests/golden").join(name)
}

fn compare(name: &str, stored: &impl serde::Serialize) {
    let text = serde_json::to_string_pretty(stored).unwrap() + "\n";
    let path = golden(name);
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, text).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap();
    assert_eq!(text, expected, "{} is stored otherwise now", path.display());
}

#[test]
fn the_ledger_is_stored_as_it_was() {
    let mut bench = Bench::new();
    bench.run();
    bench.machine.withhold_ungating(true);
    bench.gang("train", 3);
    bench.run();
    compare("ledger.json", &bench.server.ledger().unwrap().spec);
}

#[test]
fn what_is_proposed_and_the_ledger_that_names_it_are_stored_as_they_were() {
    let mut bench = Bench::with(Config {
        whole_intent_bytes: 0,
        ..config()
    });
    bench.gang("train", 3);
    let carries = |write: &ApiRequest| matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some());
    assert!(bench.run_until(carries));
    compare("ledger-proposed.json", &bench.server.ledger().unwrap().spec);
    compare("gang-status-proposed.json", &bench.gang_status());
}

#[test]
fn the_status_of_an_admitted_gang_is_stored_as_it_was() {
    let mut bench = Bench::new();
    bench.gang("train", 3);
    bench.run();
    compare("gang-status-admitted.json", &bench.gang_status());
}

#[test]
fn the_status_of_a_waiting_gang_is_stored_as_it_was() {
    let mut bench = Bench::new();
    bench.pod("train", 0, 2, keys::DEVICE_CLASS_GPU);
    bench.run();
    compare("gang-status-waiting.json", &bench.gang_status());
}

#[test]
fn the_permits_of_a_node_are_stored_as_they_were() {
    let mut bench = Bench::new();
    bench.gang("train", 4);
    bench.run();
    bench.ends("train-0");
    bench.run_in_silence();
    let node = ["n0", "n1"]
        .into_iter()
        .map(|node| bench.server.node_devices(node).unwrap())
        .find(|devices| devices.spec.permits.iter().any(|permit| permit.withdrawn));
    compare("node-devices.json", &node.unwrap().spec);
}
