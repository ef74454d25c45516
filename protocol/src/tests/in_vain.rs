//! What the API server does not store is not written over and over.

use super::*;
use crate::{
    FieldNotStored,
    in_vain::{AGAIN_SECONDS, NOT_FOUND_SECONDS},
};

/// Runs for so many seconds, with several polls in each; returns the writes of a kind.
fn writes_of(bench: &mut Bench, kind: Kind, seconds: u64) -> usize {
    let mut writes = 0;
    for _ in 0..seconds {
        for _ in 0..5 {
            bench.acknowledge(&[]);
            for effect in &bench.poll() {
                let target = effect.write.target();
                writes += usize::from(target.is_some_and(|key| key.kind == kind));
                bench.perform(effect);
            }
        }
        bench.seconds += 1;
    }
    writes
}

/// A Team whose gang of one runs, and one that waits behind it.
fn busy(prunes: fn(&mut Object)) -> Bench {
    let mut bench = Bench::new();
    bench.server.put(Object::PriorityTier(parse(json!({
        "apiVersion": "muster.dev/v1alpha1", "kind": "PriorityTier",
        "metadata": {"name": "standard"}, "spec": {"value": 100, "default": true},
    }))));
    bench.server.put(team("vision", 1));
    bench.server.prunes = Some(prunes);
    bench.gang("train", 1);
    bench
}

fn without_tier(object: &mut Object) {
    if let Object::Gang(gang) = object
        && let Some(status) = &mut Arc::make_mut(gang).status
    {
        status.tier = None;
    }
}

fn without_queue_limits(object: &mut Object) {
    if let Object::Queue(queue) = object
        && let Some(status) = &mut Arc::make_mut(queue).status
    {
        status.limits.clear();
    }
}

fn without_team_limits(object: &mut Object) {
    if let Object::Team(team) = object
        && let Some(status) = &mut Arc::make_mut(team).status
    {
        status.limits.clear();
    }
}

#[test]
fn a_field_that_an_older_definition_lacks_is_written_once_in_ten_minutes_and_said_once() {
    for (kind, field) in [
        (Kind::Gang, "status.tier"),
        (Kind::Queue, "status.limits"),
        (Kind::Team, "status.limits"),
    ] {
        let mut bench = busy(match kind {
            Kind::Gang => without_tier,
            Kind::Queue => without_queue_limits,
            _ => without_team_limits,
        });
        // Until the gang is admitted each of its steps is news.
        let first = writes_of(&mut bench, kind, 30);
        assert!((1..=8).contains(&first), "{first} writes of {field}");
        let field = field.to_owned();
        let said = bench.machine.take_fields_not_stored();
        assert_eq!(said, [FieldNotStored { kind, field }]);
        assert_eq!(writes_of(&mut bench, kind, AGAIN_SECONDS - 60), 0);
        // Nothing else makes anybody look at it.
        bench.seconds += 60;
        let again = writes_of(&mut bench, kind, 30);
        assert!(
            (1..=4).contains(&again),
            "{again} writes, ten minutes later"
        );
        assert_eq!(bench.machine.take_fields_not_stored(), [], "once");
    }
}

#[test]
fn a_gang_that_lacks_a_field_is_told_all_else_at_once() {
    let mut bench = busy(without_tier);
    writes_of(&mut bench, Kind::Gang, 10);
    assert_eq!(bench.gang_status().phase, muster_api::GangPhase::Admitted);
    bench.change_pod("train-0", |pod| {
        pod.status.as_mut().unwrap().phase = Some("Running".to_owned());
    });
    writes_of(&mut bench, Kind::Gang, 1);
    assert_eq!(bench.gang_status().phase, muster_api::GangPhase::Running);
}

/// A proposal is decided by: it is not seen, so nothing is committed, and nobody else waits.
#[test]
fn a_proposal_that_an_older_definition_lacks_holds_nobody_else_up() {
    fn without_proposal(object: &mut Object) {
        if let Object::Gang(gang) = object
            && let Some(status) = &mut Arc::make_mut(gang).status
        {
            status.proposal = None;
        }
    }
    let mut bench = Bench::with(Config {
        whole_intent_bytes: 600,
        ..config()
    });
    bench.server.prunes = Some(without_proposal);
    bench.gang("large", 3);
    let writes = writes_of(&mut bench, Kind::Gang, 60);
    assert!(writes <= 4, "{writes} writes");
    bench.gang("small", 1);
    writes_of(&mut bench, Kind::Gang, 10);
    let is_gated = |pod: &str| crate::objects::is_gated(&bench.server.pod(pod).unwrap());
    assert_eq!((is_gated("large-0"), is_gated("small-0")), (true, false));
    let said = bench.machine.take_fields_not_stored();
    let fields: Vec<&str> = said.iter().map(|it| it.field.as_str()).collect();
    assert_eq!(fields, ["status.proposal"]);
}

#[test]
fn the_status_of_a_team_that_is_not_there_is_not_written_over_and_over_until_the_watch_says_so() {
    let mut bench = Bench::new();
    bench.run();
    let vision = team("vision", 4).key();
    bench.server.remove(&vision);
    // The watch does not tell.
    let told = bench.server.news();
    assert!(matches!(told.as_slice(), [Change::Deleted(_)]));
    bench.gang("train", 1);
    let writes = writes_of(&mut bench, Kind::Team, NOT_FOUND_SECONDS);
    assert!((1..=3).contains(&writes), "{writes} writes");
    // It may have been a proxy's word.
    let writes = writes_of(&mut bench, Kind::Team, NOT_FOUND_SECONDS);
    assert!((1..=2).contains(&writes), "{writes} writes");
    // Another of that name is not the one that was not there.
    bench.server.put(team("vision", 3));
    bench.observe();
    bench.run();
    let Some(Object::Team(team)) = bench.server.list(Kind::Team).pop() else {
        panic!("a Team")
    };
    let limits = &team.status.as_ref().unwrap().limits;
    assert_eq!(limits[0].nominal.0, "3");
}
