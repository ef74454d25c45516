//! Each rule of the protocol is broken on purpose, one by one, and must be seen to be broken; and with the rule
//! intact the same run must break nothing.
//!
//! Where chance finds the moment that shows it, the run is [`drawn`] from seeds, with the faults that the rule
//! guards against. Where it does not, the run is [`steered`] by one of the [`scripts`]. Most scripts follow the
//! shortest trace that the model of DESIGN section 6 prints for the bug of that name. Where the model evicts an
//! attempt, these void one, or lose its pod by force: permits and late writes fare the same.
//!
//! Faults that other schedulers had are [`historic`].
//!
//! `NoUidInStatus` is one rule with two ends. The driver writes its status, which names the UID of the object that
//! it is about, to the object with that UID only; the controller heeds no status that names another. With either end
//! intact no status of a lost object is ever taken for one of its successor, so it takes both bugs to show one
//! (the model, which breaks both ends at once, finds nothing in a complete search if only the controller's is
//! broken). What the driver's end guards alone, the generation on its disk, shows alone.

mod drawn;
mod historic;
mod scripts;
mod steered;

use std::collections::BTreeSet;

use muster_sim::{controllers, drivers, run::Planted};

#[test]
fn every_rule_that_can_be_broken_is_broken_here() {
    let covered: BTreeSet<String> = drawn::planted()
        .chain(steered::planted())
        .chain(historic::planted())
        .map(|planted| format!("{planted:?}"))
        .collect();
    let controllers = controllers::InjectedBug::ALL.map(Planted::Controller);
    let drivers = drivers::InjectedBug::ALL.map(Planted::Driver);
    let faults = drivers::FaultBug::ALL.map(Planted::Faults);
    let forgotten: Vec<String> = controllers
        .into_iter()
        .chain(drivers)
        .chain(faults)
        .map(|planted| format!("{planted:?}"))
        .filter(|planted| !covered.contains(planted))
        .collect();
    assert!(forgotten.is_empty(), "{forgotten:?}");
}
