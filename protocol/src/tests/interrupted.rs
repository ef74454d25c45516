//! Decisions that take long are made in parts, between which other things are done.

use kube::ResourceExt as _;
use muster_api::{GangPhase, GangStatus, Reason};

use super::*;
use crate::feed::EXPLAINED_AT_ONCE;

fn status(bench: &Bench, gang: &str) -> GangStatus {
    let prefix = format!("group-{gang}-");
    let gangs = bench.server.list(Kind::Gang).into_iter();
    let statuses = gangs.filter_map(|object| match object {
        Object::Gang(of) if of.name_any().starts_with(&prefix) => of.status.clone(),
        _ => None,
    });
    statuses.last().unwrap_or_default()
}

#[test]
fn a_decision_that_was_interrupted_goes_on_at_once_and_loses_nobody() {
    let mut bench = Bench::with(Config {
        looks_in_vain: 0,
        ..config()
    });
    // A look at everything goes on deciding, too.
    bench.checks_polls = false;
    bench.run();
    // Each asks for something else, and none fits; who fits stands behind them.
    for size in [20, 21, 22] {
        bench.gang(&format!("large-{size}"), size);
    }
    bench.gang("train", 1);
    let second = bench.seconds;
    let mut polls = 0;
    while status(&bench, "train").phase != GangPhase::Admitted {
        polls += 1;
        assert!(polls < 100, "it is admitted");
        let effects = bench.poll();
        for effect in &effects {
            bench.perform(effect);
        }
        bench.acknowledge(&[]);
        // What was written is seen before the next poll, which is due by that.
        let due = bench.machine.next_due();
        if effects.is_empty() && due.is_some_and(|due| due > bench.seconds) {
            bench.seconds += 1;
        }
    }
    assert_eq!(bench.seconds, second, "nobody waits for the time");
    bench.run();
    for size in [20, 21, 22] {
        let queue = status(&bench, &format!("large-{size}")).queue;
        let reason = queue.map(|queue| queue.reason);
        assert_eq!(reason, Some(Reason::ExceedsMaxQuota), "{size}");
    }
}

#[test]
fn while_the_engine_may_not_be_asked_nothing_is_polled_for_it() {
    let mut bench = Bench::with(Config {
        looks_in_vain: 0,
        ..config()
    });
    bench.checks_polls = false;
    bench.run();
    // The first is admitted, and then it is found that the second does not fit.
    bench.gang("early", 1);
    for size in [20, 21] {
        bench.gang(&format!("large-{size}"), size);
    }
    // The write of the Ledger is not answered.
    let is_stopped = bench.run_until(|write| matches!(write, ApiRequest::ReplaceLedger { .. }));
    assert!(is_stopped, "it is admitted");
    bench.poll();
    let due = bench.machine.next_due();
    assert!(due.is_none_or(|due| due > bench.seconds), "{due:?}");
}

/// A defect once: a machine with more gangs to explain than it explains at once was polled without end until the write was answered.
#[test]
fn while_the_engine_may_not_be_asked_nothing_is_polled_for_explanations() {
    let mut bench = Bench::new();
    bench.checks_polls = false;
    bench.run();
    for number in 0..3 * EXPLAINED_AT_ONCE {
        bench.gang(&format!("wait-{number:02}"), 1);
    }
    // The first four are admitted, and the write of the Ledger is not answered.
    let is_stopped = bench.run_until(|write| matches!(write, ApiRequest::ReplaceLedger { .. }));
    assert!(is_stopped, "some are admitted");
    for _ in 0..5 {
        bench.poll();
    }
    let due = bench.machine.next_due();
    assert!(due.is_none_or(|due| due > bench.seconds), "{due:?}");
}
