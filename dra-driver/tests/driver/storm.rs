//! A storm of what the driver says of one GPU: ten thousand lines a second in the kernel's log, for five seconds.
//!
//! The same by events of NVML, one second's worth after the other, is in `dra-driver/src/faults/eye/tests.rs`: the mock reads its file for each of
//! its answers, and comes nowhere near that rate. That none of NVML's own is lost on the way is in `device/tests/nvml/events.rs`.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    time::{Duration, Instant},
};

use nvidia_ml_mock::Board;
use serde_json::json;

use crate::{
    faults::{BOTH, FAULT, watched_once},
    node::Node,
};

const BURSTS: u32 = 100;
const EVERY: Duration = Duration::from_millis(50);
const LINES_OF_BURST: u32 = 500;
/// Within which a fault is published.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(2);
const MOST_GROWTH_BYTES: u64 = 64 * 1_024 * 1_024;
/// Of what is remembered on the disk.
const MOST_REMEMBERED_BYTES: u64 = 64 * 1_024;

/// An application that fails in a loop on one GPU, and in the middle of it a fault of the other.
#[tokio::test]
async fn a_storm_in_the_log_hides_and_delays_no_fault_and_costs_neither_memory_nor_writes() {
    let mut node = Node::new().await;
    node.api.permit(1, &json!([]));
    let board = Board::named("t4-2").unwrap();
    let place = |index: usize| board.gpus[index].pci_bus_id[4..14].to_lowercase();
    let (stormy, sick) = (place(0), place(1));
    watched_once(&mut node).await;
    node.start().await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    let peak_before = node.peak_memory_bytes();
    let writes = || (node.api.slice_writes(), node.api.status_writes());
    let writes_before = writes();
    let mut log = fs::OpenOptions::new()
        .append(true)
        .open(node.path("kmsg"))
        .unwrap();
    let written_at = || {
        let file = fs::metadata(node.path("state/faults.json")).ok()?;
        file.modified().ok()
    };
    let mut written = BTreeSet::from([written_at()]);
    let mut sequence = 0;
    let (mut injected, mut seen_after) = (None, None);
    // How far the test itself fell behind on a machine that has other things to do.
    let mut late = Duration::ZERO;
    let begun = Instant::now();
    for burst in 1..=BURSTS {
        let mut lines = String::new();
        let mut line = |place: &str, xid: u32| {
            sequence += 1;
            lines += &format!("4,{sequence},1,-;NVRM: Xid (PCI:{place}): {xid}, pid=1, x\n");
        };
        for number in 0..LINES_OF_BURST {
            line(&stormy, 13 + 18 * (number % 2));
        }
        if burst == BURSTS / 2 {
            line(&sick, 48);
            injected = Some(Instant::now());
        }
        log.write_all(lines.as_bytes()).unwrap();
        written.insert(written_at());
        if let (Some(injected), None) = (injected, seen_after)
            && node.api.tainted(FAULT) == ["gpu-1"]
        {
            seen_after = Some(injected.elapsed());
        }
        let next = begun + EVERY * burst;
        late = late.max(next.elapsed());
        let pause = next.saturating_duration_since(Instant::now());
        // Never none: the API server runs on this thread.
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
    }
    assert!(
        seen_after.is_some(),
        "it is published while the storm lasts"
    );
    let seen_after = seen_after.unwrap();
    assert!(
        seen_after < PUBLISHED_WITHIN + late,
        "published after {seen_after:?}; the test was late by {late:?}"
    );
    assert_eq!(node.api.tainted(FAULT), ["gpu-1"], "an application failed");
    let writes_after = writes();
    let slice_writes = writes_after.0 - writes_before.0;
    assert!(slice_writes <= 2, "{slice_writes} writes of ResourceSlices");
    // What is told of faults and anomalies is a write a second at the most.
    let status_writes = writes_after.1 - writes_before.1;
    let most = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    assert!(
        status_writes <= most,
        "{status_writes} writes of the status"
    );
    let events = node.api.events();
    assert!(events.len() <= 2, "one Event for each fault: {events:?}");
    // By what is new, and not by what is seen again.
    let written = written.len();
    assert!(written <= 8, "{written} writes to the disk");
    let grown = node.peak_memory_bytes() - peak_before;
    assert!(grown < MOST_GROWTH_BYTES, "{grown} bytes");
    let remembered = fs::metadata(node.path("state/faults.json")).unwrap().len();
    assert!(remembered < MOST_REMEMBERED_BYTES, "{remembered} bytes");
}
