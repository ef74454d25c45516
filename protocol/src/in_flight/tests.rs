use jiff::Timestamp;
use muster_api::{Gang, GangSpec};
use muster_cluster::{index, managed::ManagedPods};
use serde_json::Value;

use super::*;

fn now(monotonic_seconds: u64) -> Now {
    Now {
        monotonic_seconds,
        wall: Timestamp::UNIX_EPOCH,
    }
}

fn index() -> Index {
    Index::new(index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        excluded_namespaces: BTreeSet::new(),
        excepted_device_classes: BTreeSet::new(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    })
}

fn key(kind: Kind) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: "ml".to_owned(),
        name: "train".to_owned(),
    }
}

/// The last word about a pod after so many refusals, the last of them at second 1,000: the answer, and for how long it is
/// believed.
fn refused(times: u64, answer: &str) -> Option<(String, u64)> {
    let (index, mut flights) = (index(), InFlightWrites::new(1));
    for left in (0..times).rev() {
        let second = 1_000 - 10 * left;
        let write = ApiRequest::PatchPod {
            key: key(Kind::Pod),
            patch: Value::Null,
        };
        let effect = flights.send(&index, write, now(second)).unwrap();
        let refusal = Outcome::Refused(answer.to_owned());
        flights.settle(&index, effect.id, &refusal, now(second));
        assert!(flights.busy(&key(Kind::Pod)), "it waits for ten seconds");
        flights.advance(&index, now(second));
        flights.advance(&index, now(second + 10));
    }
    let (answer, until) = flights.refused(&key(Kind::Pod), Refusable::Pod)?;
    Some((answer.to_owned(), until - 1_000))
}

#[test]
fn the_third_refusal_is_believed_for_a_minute_and_each_later_one_for_twice_as_long_up_to_16_minutes()
 {
    let first = FIRST_REFUSED_SECONDS;
    let last = u64::from(REFUSED_AT_MOST);
    for (times, believed) in [
        (last - 1, None),
        (last, Some(first)),
        (last + 1, Some(2 * first)),
        (last + 3, Some(8 * first)),
        (last + 4, Some(16 * first)),
        (last + 5, Some(16 * first)),
    ] {
        let seconds = refused(times, "no").map(|(_, seconds)| seconds);
        assert_eq!(seconds, believed, "{times} refusals");
    }
}

#[test]
fn what_is_right_only_as_long_as_it_was_judged_is_never_sent_again_as_it_is() {
    let delete = ApiRequest::DeletePod {
        key: key(Kind::Pod),
        uid: "uid".to_owned(),
        grace_period_seconds: None,
    };
    let force = ApiRequest::ForceDeletePod {
        key: key(Kind::Pod),
        uid: "uid".to_owned(),
        resource_version: "7".to_owned(),
    };
    for (write, again) in [(delete, 1), (force, 0)] {
        let (index, mut flights) = (index(), InFlightWrites::new(1));
        let effect = flights.send(&index, write, now(1_000)).unwrap();
        flights.settle(&index, effect.id, &Outcome::Unknown, now(1_000));
        assert!(flights.advance(&index, now(1_000)).0.is_empty());
        assert!(flights.busy(&key(Kind::Pod)), "not at once");
        assert_eq!(flights.advance(&index, now(1_001)).0.len(), again);
        assert_eq!(flights.busy(&key(Kind::Pod)), again > 0);
    }
}

#[test]
fn an_answer_is_cut_where_the_next_byte_is_too_many() {
    let kept = |bytes: usize| refused(3, &"x".repeat(bytes)).unwrap().0;
    let whole = kept(REFUSAL_BYTES);
    assert_eq!((whole.len(), whole.ends_with('x')), (REFUSAL_BYTES, true));
    let cut = kept(REFUSAL_BYTES + 1);
    assert!(cut.len() <= REFUSAL_BYTES && cut.ends_with('…'));
}

#[test]
fn what_was_made_and_is_not_shown_in_time_is_asked_for() {
    let (index, mut flights) = (index(), InFlightWrites::new(1));
    let mut gang = Gang::new("train", GangSpec::default());
    gang.metadata.namespace = Some("ml".to_owned());
    let write = ApiRequest::CreateGang {
        gang: Box::new(gang.clone()),
    };
    let effect = flights.send(&index, write, now(1_000)).unwrap();
    gang.metadata.resource_version = Some("7".to_owned());
    let made = Outcome::Done(Some(Object::Gang(Arc::new(gang))));
    flights.settle(&index, effect.id, &made, now(1_000));
    for (after, is_asked) in [
        (0, false),
        (SHOWN_WITHIN_SECONDS - 1, false),
        (SHOWN_WITHIN_SECONDS, true),
    ] {
        let (effects, over) = flights.advance(&index, now(1_000 + after));
        let reads = |effect: &Effect| matches!(*effect.write, ApiRequest::ReadObject { .. });
        assert_eq!(effects.iter().any(reads), is_asked, "after {after} seconds");
        assert!(over.is_empty() && flights.busy(&key(Kind::Gang)));
    }
}

/// A pod of that version, as far as it is told.
fn pod(version: &str) -> Object {
    let mut pod = k8s_openapi::api::core::v1::Pod::default();
    pod.metadata.name = Some("train".to_owned());
    pod.metadata.namespace = Some("ml".to_owned());
    pod.metadata.uid = Some("uid".to_owned());
    pod.metadata.resource_version = Some(version.to_owned());
    // Others are not kept.
    let label = (muster_api::keys::GANG.to_owned(), "train".to_owned());
    pod.metadata.labels = Some([label].into());
    pod.spec = Some(k8s_openapi::api::core::v1::PodSpec::default());
    Object::Pod(Arc::new(pod))
}

#[test]
fn an_answer_is_news_unless_it_only_says_that_what_is_yet_to_be_seen_is_done() {
    use muster_cluster::object::Change;

    let refused = || Outcome::Refused("no".to_owned());
    for (seen, outcome, expected) in [
        // It is seen later.
        ("7", Outcome::Done(Some(pod("8"))), Answer::Awaited),
        // It was seen before its answer came, or something later was.
        ("8", Outcome::Done(Some(pod("8"))), Answer::Taken),
        ("9", Outcome::Done(Some(pod("8"))), Answer::Taken),
        // It changed nothing, so nothing is to be seen.
        ("7", Outcome::Done(Some(pod("7"))), Answer::Taken),
        // What was deleted is seen to be gone, or to be another one.
        ("7", Outcome::Done(None), Answer::Awaited),
        ("9", Outcome::Done(None), Answer::Taken),
        ("7", Outcome::Unknown, Answer::Taken),
        ("7", Outcome::Conflict, Answer::Taken),
        ("7", Outcome::NotFound, Answer::Taken),
        ("7", refused(), Answer::Taken),
    ] {
        let (mut index, mut flights) = (index(), InFlightWrites::new(1));
        index.observe(Change::Applied(pod("7")));
        let write = ApiRequest::PatchPod {
            key: key(Kind::Pod),
            patch: Value::Null,
        };
        let effect = flights.send(&index, write, now(1_000)).unwrap();
        index.observe(Change::Applied(pod(seen)));
        let answer = flights.settle(&index, effect.id, &outcome, now(1_000));
        assert_eq!(answer, expected, "{outcome:?}, {seen} is seen");
        assert_eq!(
            flights.has_moved(),
            expected == Answer::Taken,
            "{outcome:?}, {seen} is seen"
        );
        if expected == Answer::Awaited {
            assert!(flights.busy(&key(Kind::Pod)));
            assert_eq!(flights.next_due(), Some(1_000 + SHOWN_WITHIN_SECONDS));
            index.observe(Change::Applied(pod("8")));
            flights.saw(&key(Kind::Pod), false);
            let (_, over) = flights.advance(&index, now(1_001));
            assert_eq!(over, [key(Kind::Pod)], "{outcome:?}, {seen} is seen");
        }
    }
}

#[test]
fn what_is_seen_is_compared_with_what_was_written_unless_somebody_has_written_since() {
    use muster_api::GangStatus;
    use muster_cluster::object::Change;

    let gang = |version: &str| {
        let mut gang = Gang::new("train", GangSpec::default());
        gang.metadata.namespace = Some("ml".to_owned());
        gang.metadata.uid = Some("uid".to_owned());
        gang.metadata.resource_version = Some(version.to_owned());
        Object::Gang(Arc::new(gang))
    };
    let write = || ApiRequest::ReplaceGangStatus {
        key: key(Kind::Gang),
        uid: "uid".to_owned(),
        resource_version: "7".to_owned(),
        status: Box::new(GangStatus {
            attempt: 3,
            ..GangStatus::default()
        }),
        tells: true,
    };
    for (seen, is_held_back) in [("8", true), ("9", false)] {
        let (mut index, mut flights) = (index(), InFlightWrites::new(1));
        index.observe(Change::Applied(gang("7")));
        let effect = flights.send(&index, write(), now(1_000)).unwrap();
        let done = Outcome::Done(Some(gang("8")));
        flights.settle(&index, effect.id, &done, now(1_000));
        // Nothing of it is stored.
        index.observe(Change::Applied(gang(seen)));
        flights.saw(&key(Kind::Gang), false);
        let (_, over) = flights.advance(&index, now(1_001));
        assert_eq!(over, [key(Kind::Gang)], "{seen} is seen");
        let again = flights.send(&index, write(), now(1_001));
        assert_eq!(again.is_none(), is_held_back, "{seen} is seen");
        let said = flights.in_vain.take_news();
        assert_eq!(said.len(), usize::from(is_held_back), "{said:?}");
    }
}
