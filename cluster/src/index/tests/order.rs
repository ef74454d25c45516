//! S10: everything may be told twice, late and out of order.

use muster_engine::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    index::Index,
    object::{Change, Kind},
    testing::{
        background, claim, config, gang, gone, index_with, indexed_job, is, member, only_gang, pod,
        rank_of, with,
    },
};

/// All that is derived, as text.
fn picture(index: &mut Index) -> String {
    index.refresh(Timestamp(0));
    let gangs: Vec<_> = index.formed_gangs().collect();
    // The names of selectors and filters come from the order in which they were seen; what they mean
    // does not.
    let nodes: Vec<_> = index
        .nodes()
        .filter_map(|(name, _)| index.engine_node(name))
        .map(|node| {
            let devices: Vec<_> = node
                .devices
                .iter()
                .map(|device| (&device.name, device.selectors.len(), &device.allocated_to))
                .collect();
            (
                &node.name,
                node.block,
                node.used.clone(),
                node.filters.len(),
                devices,
            )
        })
        .collect();
    let text = format!("{gangs:#?}\n{nodes:#?}");
    let is_id = |line: &&str| !line.trim().chars().all(|c| c.is_ascii_digit() || c == ',');
    text.lines().filter(is_id).collect::<Vec<_>>().join("\n")
}

fn versioned(object: Value, version: u32) -> Value {
    with(
        object,
        "/metadata/resourceVersion",
        json!(version.to_string()),
    )
}

/// Two gangs by label, one by Job, one pod for itself, one Gang, an allocated claim: each object in
/// two versions.
fn story() -> Vec<Change> {
    let mut objects = vec![
        indexed_job("train", 2),
        gang("group-other-aaaaa", 1, "Pending"),
    ];
    for name in ["w-0", "w-1", "w-2"] {
        objects.extend([member(name, 5, "group", "2"), claim(name, 1)]);
    }
    for index in [0, 1] {
        objects.extend([
            rank_of("train", index, 6),
            claim(&format!("train-{index}-x6"), 2),
        ]);
    }
    objects.extend([pod("solo", 7), claim("solo", 1)]);
    let mut changes = background();
    for object in objects {
        let later = with(
            object.clone(),
            "/metadata/annotations/example.com~1seen",
            json!("yes"),
        );
        changes.push(is(versioned(object, 10)));
        changes.push(is(versioned(later, 11)));
    }
    let bound = with(pod("bound", 8), "/spec/nodeName", json!("b"));
    changes.push(is(versioned(bound, 12)));
    changes
}

fn tell(changes: &[Change]) -> Index {
    let mut index = Index::new(config());
    for change in changes {
        index.observe(change.clone());
    }
    index
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn s10_order_and_repetition_leave_the_same_picture(
        order in Just(story()).prop_shuffle(),
        repeated in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        refreshed in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let expected = picture(&mut tell(&story()));
        let mut changes = order;
        for index in repeated {
            changes.push(changes[index.index(changes.len())].clone());
        }
        let pauses: Vec<usize> = refreshed.iter().map(|index| index.index(changes.len())).collect();
        let mut index = Index::new(config());
        for (position, change) in changes.into_iter().enumerate() {
            index.observe(change);
            if pauses.contains(&position) {
                index.refresh(Timestamp(0));
            }
        }
        prop_assert_eq!(picture(&mut index), expected);
    }
}

#[test]
fn an_older_version_changes_nothing() {
    let newer = versioned(
        with(
            pod("solo", 5),
            "/metadata/labels",
            json!({"muster.dev/tier": "critical"}),
        ),
        9,
    );
    let mut index = index_with([newer, claim("solo", 1)]);
    index.observe(is(versioned(pod("solo", 5), 8)));
    assert!(index.refresh(Timestamp(0)).is_empty());
    assert_eq!(only_gang(&index).priority, 1000);
}

#[test]
fn what_is_told_again_after_the_object_is_gone_does_not_bring_it_back() {
    let mut index = index_with([pod("solo", 5), claim("solo", 1)]);
    index.observe(gone(Kind::Pod, "ml", "solo"));
    index.observe(is(with(
        pod("solo", 5),
        "/metadata/annotations",
        json!({"muster.dev/rank": "0"}),
    )));
    index.refresh(Timestamp(0));
    assert_eq!(index.formed_gangs().count(), 0);

    index.observe(is(with(
        pod("solo", 6),
        "/metadata/uid",
        json!("uid-another"),
    )));
    index.refresh(Timestamp(0));
    assert_eq!(
        index.formed_gangs().count(),
        1,
        "another pod of that name is another pod"
    );
}

#[test]
fn what_a_list_lacks_may_come_back() {
    let mut index = index_with([pod("solo", 5)]);
    index.observe(Change::Listed(Kind::Pod, Vec::new()));
    index.refresh(Timestamp(0));
    assert_eq!(index.formed_gangs().count(), 0);
    index.observe(is(pod("solo", 5)));
    index.refresh(Timestamp(0));
    assert_eq!(index.formed_gangs().count(), 1);
}

#[test]
fn a_refresh_without_a_change_returns_nothing() {
    let mut index = tell(&story());
    assert!(!index.refresh(Timestamp(0)).is_empty());
    assert!(index.refresh(Timestamp(0)).is_empty());
    assert!(!index.engine_updates(Timestamp(0)).is_empty());
    assert!(index.engine_updates(Timestamp(0)).is_empty());
}
