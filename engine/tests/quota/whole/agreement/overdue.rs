//! A gang that was told to go and did not, and whose attempt then ends by a fault.

use std::collections::{BTreeMap, BTreeSet};

use muster_engine::{
    Update,
    quota::{FlavorFungibility, PreemptionPolicy, PreemptionReason, ReclaimWithinCohort, Weight},
};

use super::{Tally, decide, play};
use crate::{
    model::{Limit, Name, Node, Pair},
    whole::{
        engine::Engine,
        history::{Arrival, Event, History, Step},
        model::{MOST_SECONDS, Model, Uid},
    },
};

const COHORT: Name = 0;
const BORROWING: Name = 1;
const OWNING: Name = 2;
const BORROWER: Uid = 1;
const OWNER: Uid = 2;

fn arrives(uid: Uid, team: Name) -> Event {
    Event::Arrives(Arrival {
        uid,
        team,
        priority: 0,
        queued_at: 0,
        pods: 2,
        least: None,
        asks: [1, 0],
        may_borrow: true,
        min_run_time: 0,
        notice: 0,
    })
}

fn node(parent: Option<Name>, nominal: Option<i128>, policy: Option<PreemptionPolicy>) -> Node {
    let cores = Pair {
        flavor: 0,
        resource: 0,
    };
    let limit = nominal.map(|nominal| Limit {
        nominal,
        ..Limit::default()
    });
    Node {
        parent,
        limits: limit.map(|limit| (cores, limit)).into_iter().collect(),
        weight: Weight::ONE.0,
        policy,
    }
}

/// A gang borrows all that another Team owns, is told to go, and has not gone when its time is over.
fn overdue() -> History {
    let reclaims = PreemptionPolicy {
        reclaim_within_cohort: ReclaimWithinCohort::Any,
        ..PreemptionPolicy::NEVER
    };
    let events = [
        arrives(BORROWER, BORROWING),
        arrives(OWNER, OWNING),
        Event::Passes(MOST_SECONDS),
    ];
    let events = events.into_iter().map(|event| Step {
        event,
        decides: true,
        undo: None,
    });
    let teams = [BORROWING, OWNING];
    History {
        nodes: BTreeMap::from([
            (COHORT, node(None, None, None)),
            (
                BORROWING,
                node(Some(COHORT), Some(0), Some(PreemptionPolicy::NEVER)),
            ),
            (OWNING, node(Some(COHORT), Some(2), Some(reclaims))),
        ]),
        strategies: None,
        fungibility: teams
            .map(|team| (team, FlavorFungibility::default()))
            .into(),
        strict: BTreeSet::new(),
        events: events.collect(),
    }
}

/// It was left out since it did not go. Once it has, though late, what is kept for it is its owner's at once.
#[test]
fn what_is_kept_for_a_victim_that_did_not_go_in_time_goes_back_at_once() {
    for (recovers, preemptions) in [(false, 1), (true, 2)] {
        let mut history = overdue();
        history.events.extend(recovers.then_some(Step {
            event: Event::Fails(0),
            decides: true,
            undo: None,
        }));
        let tally = play(&history, false).expect("they agree");
        assert_eq!(tally.preemptions, preemptions, "{tally:?}");
        assert_eq!(tally.admissions, preemptions, "{tally:?}");
        assert_eq!(tally.yielded, usize::from(recovers), "{tally:?}");
    }
}

/// Nobody is made to wait again for pods that did not go before.
#[test]
fn a_victim_that_did_not_go_in_time_is_counted_on_no_sooner_by_that_it_recovers() {
    for ends_first in [false, true] {
        let history = overdue();
        let mut model = Model::new(&history);
        let mut engine = Engine::new(&history, &model);
        for step in &history.events {
            let before = model.clone();
            model.happens(&step.event);
            engine.happens(&step.event, &before, &model);
            decide(&mut engine, &mut model, None, &mut Tally::default()).expect("they agree");
        }
        model.happens(&Event::Fails(0));
        let pods = engine.recovers(&model, BORROWER);
        assert_eq!(pods.len(), 2);
        let until = model.recovering[&BORROWER];
        let now = if ends_first { until } else { model.now };
        let mut decided = engine.decide(now);
        for pod in pods {
            assert!(decided.admissions.is_empty(), "{decided:?}");
            assert!(decided.preemptions.is_empty(), "{decided:?}");
            engine.state.apply(Update::HoldGone(pod));
            decided = engine.decide(now);
        }
        let admitted: Vec<Uid> = decided.admissions.iter().map(|(gang, _)| *gang).collect();
        assert_eq!(admitted, [OWNER], "{decided:?}");
        let victims = vec![(BORROWER, PreemptionReason::Reclaimed)];
        let preemptions = if ends_first {
            Vec::new()
        } else {
            vec![(OWNER, victims)]
        };
        assert_eq!(decided.preemptions, preemptions, "{decided:?}");
    }
}
