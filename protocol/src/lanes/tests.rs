use std::sync::Arc;

use muster_api::{NodeDevices, Reason};
use muster_cluster::{
    index,
    managed::ManagedPods,
    object::{Change, Kind, Object, ObjectKey},
};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::EventNote;

fn place(lane: Lane, party: &str) -> Place {
    Place {
        lane,
        party: party.to_owned(),
    }
}

/// Pops until nothing may be sent, each answered at once, and says what came.
fn drain(lanes: &mut Lanes<u32>) -> Vec<(Lane, String, u32)> {
    let mut sent = Vec::new();
    while let Some((place, write)) = lanes.pop() {
        lanes.finished(&place);
        sent.push((place.lane, place.party, write));
    }
    sent
}

#[test]
fn a_lower_lane_gets_each_tenth_write_and_the_lower_ones_take_turns() {
    use Lane::{Commit, Event, Outward, Queue, Tell};
    let mut lanes = Lanes::default();
    for number in 0..100 {
        for lane in Lane::ALL {
            assert_eq!(lanes.push(&place(lane, "vision"), number), None);
        }
    }
    let order: Vec<Lane> = drain(&mut lanes)
        .into_iter()
        .map(|(lane, ..)| lane)
        .collect();
    let tenth: Vec<Lane> = order.iter().copied().skip(9).step_by(10).take(8).collect();
    assert_eq!(
        tenth,
        [Outward, Tell, Queue, Event, Outward, Tell, Queue, Event]
    );
    let others = order
        .iter()
        .enumerate()
        .take(80)
        .filter(|(at, _)| at % 10 != 9);
    assert!(
        others.map(|(_, lane)| *lane).all(|lane| lane == Commit),
        "{order:?}"
    );
    assert_eq!(order.len(), 500);
}

#[test]
fn a_lane_that_is_the_first_one_when_its_turn_comes_is_not_passed_over_for_one_below() {
    let mut lanes = Lanes::default();
    let push = |lanes: &mut Lanes<u32>, lane| {
        assert_eq!(lanes.push(&place(lane, "vision"), 0), None);
    };
    let mut waited = 0;
    push(&mut lanes, Lane::Queue);
    push(&mut lanes, Lane::Queue);
    // The upper lane has nothing left for a moment whenever a lower one has its turn.
    for _ in 0..200 {
        for _ in 0..9 {
            push(&mut lanes, Lane::Commit);
        }
        push(&mut lanes, Lane::Event);
        for _ in 0..10 {
            let (sent, _) = lanes.pop().unwrap();
            lanes.finished(&sent);
            waited = if sent.lane == Lane::Queue {
                0
            } else {
                waited + 1
            };
            assert!(waited < 40, "passed over by {waited} writes");
            if sent.lane == Lane::Queue {
                push(&mut lanes, Lane::Queue);
            }
        }
    }
}

#[test]
fn teams_alternate_however_much_one_of_them_wants() {
    let mut lanes = Lanes::default();
    for number in 0..50 {
        assert_eq!(lanes.push(&place(Lane::Outward, "greedy"), number), None);
    }
    for number in 0..3 {
        assert_eq!(lanes.push(&place(Lane::Outward, "modest"), number), None);
    }
    let order = drain(&mut lanes);
    let parties: Vec<&str> = order
        .iter()
        .take(7)
        .map(|(_, party, _)| party.as_str())
        .collect();
    assert_eq!(
        parties,
        [
            "greedy", "modest", "greedy", "modest", "greedy", "modest", "greedy"
        ]
    );
}

#[test]
fn a_party_whose_writes_are_not_answered_leaves_places_for_others() {
    let mut lanes = Lanes::default();
    for number in 0..100 {
        assert_eq!(lanes.push(&place(Lane::Outward, "hangs"), number), None);
    }
    let mut held = 0;
    while lanes.pop().is_some() {
        held += 1;
    }
    assert_eq!(held, PARTY_AT_ONCE);
    assert_eq!(lanes.push(&place(Lane::Outward, "works"), 0), None);
    let (next, _) = lanes.pop().expect("there is a place for another party");
    assert_eq!(next.party, "works");
    lanes.finished(&next);
    lanes.finished(&place(Lane::Outward, "hangs"));
    let (next, _) = lanes.pop().expect("one of its own was answered");
    assert_eq!(next.party, "hangs");
}

#[test]
fn what_is_only_told_never_takes_all_places() {
    let mut lanes = Lanes::default();
    for number in 0..200 {
        let party = format!("team-{}", number % 10);
        for lane in [Lane::Tell, Lane::Queue, Lane::Event] {
            assert_eq!(lanes.push(&place(lane, &party), number), None);
        }
    }
    let mut held: BTreeMap<Lane, usize> = BTreeMap::new();
    while let Some((place, _)) = lanes.pop() {
        *held.entry(place.lane).or_default() += 1;
    }
    assert_eq!(held.values().sum::<usize>(), TELLING_AT_ONCE);
    for number in 0..100 {
        let party = format!("team-{}", number % 10);
        assert_eq!(lanes.push(&place(Lane::Commit, &party), number), None);
    }
    let mut more = 0;
    while lanes.pop().is_some() {
        more += 1;
    }
    assert_eq!(more, AT_ONCE - TELLING_AT_ONCE);
}

#[test]
fn events_that_are_not_answered_leave_places_for_other_telling() {
    let mut lanes = Lanes::default();
    for number in 0..20 {
        let party = format!("team-{number}");
        assert_eq!(lanes.push(&place(Lane::Event, &party), number), None);
    }
    let mut held = 0;
    while lanes.pop().is_some() {
        held += 1;
    }
    assert_eq!(held, EVENTS_AT_ONCE);
}

#[test]
fn a_full_lane_takes_from_whoever_filled_it_the_newest_first() {
    for lane in Lane::ALL {
        let Some(capacity) = lane.capacity() else {
            continue;
        };
        let mut lanes = Lanes::default();
        let last = u32::try_from(capacity).unwrap();
        assert_eq!(lanes.push(&place(lane, "modest"), 0), None);
        for number in 1..last {
            assert_eq!(lanes.push(&place(lane, "floods"), number), None, "{lane:?}");
        }
        assert_eq!(lanes.waiting(lane), capacity);
        assert_eq!(lanes.push(&place(lane, "modest"), 1), Some(last - 1));
        assert_eq!(
            lanes.push(&place(lane, "floods"), last),
            Some(last),
            "its own"
        );
        assert_eq!(lanes.waiting(lane), capacity, "{lane:?}");
    }
}

proptest! {
    /// Whatever comes in whatever order: nothing is lost or sent twice, the writes of a party in a lane keep their
    /// order, the limits hold, no lane waits for more than 40 writes, and no party of a lane for more than one turn of
    /// each other party.
    #[test]
    fn lanes_are_fair_complete_and_in_order(
        steps in proptest::collection::vec((0_usize..5, 0_usize..4, 0_usize..3), 1..400)
    ) {
        let mut lanes: Lanes<usize> = Lanes::default();
        let mut pushed: BTreeMap<(Lane, String), Vec<usize>> = BTreeMap::new();
        let mut sent: BTreeMap<(Lane, String), Vec<usize>> = BTreeMap::new();
        let mut passed_over: BTreeMap<Lane, usize> = BTreeMap::new();
        let mut turns_missed: BTreeMap<(Lane, String), BTreeMap<String, usize>> = BTreeMap::new();
        let mut take = |lanes: &mut Lanes<usize>, pushed: &BTreeMap<(Lane, String), Vec<usize>>| {
            let before = Lane::ALL.map(|lane| lanes.waiting(lane));
            let Some((place, number)) = lanes.pop() else { return Ok(false) };
            lanes.finished(&place);
            for (lane, waiting) in Lane::ALL.into_iter().zip(before) {
                let count = passed_over.entry(lane).or_default();
                *count = if waiting == 0 || lane == place.lane { 0 } else { *count + 1 };
                prop_assert!(*count < 40, "{lane:?} waits for ever");
            }
            for (other, all) in pushed {
                let done = sent.get(other).map_or(0, Vec::len);
                let waits = done < all.len() && other.0 == place.lane && other.1 != place.party;
                let missed = turns_missed.entry(other.clone()).or_default();
                if waits {
                    let count = missed.entry(place.party.clone()).or_default();
                    *count += 1;
                    prop_assert!(*count <= 1, "{other:?} is passed over by {}", place.party);
                } else if *other == (place.lane, place.party.clone()) {
                    missed.clear();
                }
            }
            sent.entry((place.lane, place.party)).or_default().push(number);
            Ok(true)
        };
        for (number, (lane, party, pops)) in steps.into_iter().enumerate() {
            let place = place(Lane::ALL[lane], &format!("team-{party}"));
            prop_assert_eq!(lanes.push(&place, number), None);
            pushed.entry((place.lane, place.party)).or_default().push(number);
            for _ in 0..pops {
                take(&mut lanes, &pushed)?;
            }
        }
        while take(&mut lanes, &pushed)? {}
        prop_assert_eq!(sent, pushed);
    }
}

fn seen() -> Index {
    let mut index = Index::new(index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        excluded_namespaces: [].into(),
        excepted_device_classes: [].into(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    });
    let permits = vec![permit("a", "vision"), permit("b", "speech")];
    let devices = NodeDevices::new(
        "n1",
        NodeDevicesSpec {
            permits,
            ..NodeDevicesSpec::default()
        },
    );
    let namespace = json!({"metadata": {"name": "lab", "labels": {"muster.dev/team": "vision"}}});
    let team = json!({"metadata": {"name": "vision"}, "spec": {}});
    for object in [
        Object::Namespace(Arc::new(serde_json::from_value(namespace).unwrap())),
        Object::Team(Arc::new(serde_json::from_value(team).unwrap())),
        Object::NodeDevices(Arc::new(devices)),
    ] {
        index.observe(Change::Applied(object));
    }
    index
}

fn permit(pod_uid: &str, team: &str) -> Permit {
    Permit {
        pod_uid: pod_uid.to_owned(),
        team: team.to_owned(),
        attempt: 1,
        ..Permit::default()
    }
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: "lab".to_owned(),
        name: name.to_owned(),
    }
}

fn status(tells: bool) -> ApiRequest {
    ApiRequest::ReplaceGangStatus {
        key: key(Kind::Gang, "train"),
        uid: "uid".to_owned(),
        resource_version: "1".to_owned(),
        status: Box::default(),
        tells,
    }
}

/// It changes nothing but that something is kept for the gang.
fn recovering() -> ApiRequest {
    let mut write = status(true);
    if let ApiRequest::ReplaceGangStatus { status, .. } = &mut write {
        let recovery = json!({
            "attempt": 1, "reason": "NodeLost", "since": "2027-01-01T00:00:00Z", "until": "2027-01-01T00:10:00Z",
        });
        status.recovery = Some(serde_json::from_value(recovery).unwrap());
    }
    write
}

fn devices(permits: Vec<Permit>) -> ApiRequest {
    ApiRequest::ReplaceNodeDevices {
        node: "n1".to_owned(),
        uid: "uid".to_owned(),
        resource_version: "1".to_owned(),
        spec: NodeDevicesSpec {
            permits,
            ..NodeDevicesSpec::default()
        },
        finalizer: true,
    }
}

#[test]
fn every_write_has_its_place() {
    let index = seen();
    let withdrawn = Permit {
        withdrawn: true,
        ..permit("b", "speech")
    };
    let event = EventNote {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: "stray".to_owned(),
        name: "p".to_owned(),
        uid: "uid".to_owned(),
        warning: false,
        reason: Reason::MissingPods,
        note: String::new(),
    };
    let cases: Vec<(&str, ApiRequest, Lane, &str)> = vec![
        (
            "read",
            ApiRequest::ReadObject {
                key: key(Kind::Gang, "train"),
            },
            Lane::Commit,
            "",
        ),
        (
            "read of a Node",
            ApiRequest::ReadObject {
                key: key(Kind::Node, "n1"),
            },
            Lane::Outward,
            "/nodes",
        ),
        ("raise", status(false), Lane::Commit, "vision"),
        ("tell", status(true), Lane::Tell, "vision"),
        ("keep", recovering(), Lane::Commit, "vision"),
        (
            "permit",
            devices(vec![
                permit("a", "vision"),
                permit("b", "speech"),
                permit("c", "audio"),
            ]),
            Lane::Outward,
            "audio",
        ),
        (
            "withdraw",
            devices(vec![permit("a", "vision"), withdrawn]),
            Lane::Outward,
            "speech",
        ),
        (
            "remove",
            devices(vec![permit("a", "vision")]),
            Lane::Outward,
            "",
        ),
        (
            "pod",
            ApiRequest::PatchPod {
                key: key(Kind::Pod, "p"),
                patch: json!([]),
            },
            Lane::Outward,
            "vision",
        ),
        (
            "old gang",
            ApiRequest::DeleteGang {
                key: key(Kind::Gang, "old"),
                uid: "u".to_owned(),
                resource_version: "1".to_owned(),
            },
            Lane::Queue,
            "vision",
        ),
        (
            "event",
            ApiRequest::PublishEvent(event),
            Lane::Event,
            "stray/",
        ),
    ];
    for (what, write, lane, party) in cases {
        assert_eq!(Place::of(&write, &index), place(lane, party), "{what}");
    }
}
