//! The room that evictions have in the Ledger.

use super::*;
use crate::tests::window::{move_to_namespace, with_second_team};

/// The first evictions that are committed of three gangs of one Team and one of another, whose name comes last.
fn first_of_two_teams(evict_bytes: usize) -> Vec<Intent> {
    let mut bench = Bench::with(Config {
        evict_bytes,
        ..config()
    });
    with_second_team(&mut bench);
    for gang in ["a", "b", "c", "z"] {
        bench.gang(gang, 1);
    }
    move_to_namespace(&mut bench, "z-0", "sp");
    bench.run();
    for name in ["vision", "speech"] {
        let mut object = team(name, 4);
        if let Object::Team(team) = &mut object {
            Arc::make_mut(team).spec.stop = muster_api::team::Stop::HoldAndDrain;
        }
        bench.server.put(object);
    }
    bench.run();
    let mut batches = bench.written.into_iter().filter_map(|write| match write {
        ApiRequest::ReplaceLedger { ref spec, .. } if evicts(&write) => Some(spec.intents.clone()),
        _ => None,
    });
    batches.next().unwrap()
}

#[test]
fn teams_take_turns_in_the_room_of_evictions() {
    let all = first_of_two_teams(64 * 1024);
    assert_eq!(all.len(), 4);
    // The sequence, which is not known before, counts as its longest.
    let bytes = |intent: &Intent| serde_json::to_string(intent).unwrap().len() + 20;
    let largest = all.iter().map(bytes).max().unwrap();
    let first = first_of_two_teams(2 * largest);
    let namespaces: Vec<&str> = first.iter().map(|it| it.namespace.as_str()).collect();
    assert_eq!(namespaces, ["ml", "sp"]);
}
