//! What happens to a place, or to the gang, and passes: neither what was waited for nor its age is lost by that.

use muster_engine::{Gang, NodeBlock, State, Timestamp, Update};

use super::{GPUS_PER_NODE, LONG, cluster, common::*, decide_at, kept, kept_in_short, rich, runs};

fn cordon(state: &mut State, name: &str, path: &str) {
    let mut cordoned = node(name, path, GPUS_PER_NODE);
    cordoned.block = Some(NodeBlock::Cordoned);
    state.apply(Update::Node(cordoned));
}

fn place(leaf: usize, until: i64) -> (String, Vec<String>, Option<i64>) {
    let nodes = [0, 1].map(|at| format!("n{leaf}{at}"));
    ("head".to_owned(), nodes.to_vec(), Some(until))
}

/// The second leaf is free later than the first, and half of either is idle until then.
fn two_leaves(first: i64, second: i64) -> State {
    let mut state = cluster(2, 2, vec![rich("large"), rich("small")]);
    runs(&mut state, "first", "n00", 0..4, Some(first));
    runs(&mut state, "second", "n10", 0..4, Some(second));
    submit(&mut state, [requiring("leaf", gang("head", "large", 2, 4))]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert_eq!(kept_in_short(&state), Some(place(0, first)));
    state
}

#[test]
fn a_gang_that_loses_a_node_of_its_place_has_another_place_at_once() {
    let mut state = two_leaves(5_000, 6_000);
    submit(&mut state, [gang("endless", "small", 2, 1)]);
    assert_eq!(admitted(&decide_at(&mut state, LONG)), ["endless"]);
    cordon(&mut state, "n01", "s/l0");
    decide_at(&mut state, LONG + 100);
    let elsewhere = kept(&state).expect("kept");
    assert!(
        elsewhere
            .nodes
            .iter()
            .all(|node| node.to_string().starts_with("n1"))
    );
    // It goes on counting: for how long, and what stood idle.
    assert_eq!(elsewhere.since, Timestamp(LONG));
    assert_eq!(elsewhere.idle_gpu_seconds, 4_000 * 100);
    // When it is free there nobody knows.
    let most = 4_000 * 100 + 8_000 * i128::from(LONG);
    assert_eq!(elsewhere.most_idle_gpu_seconds, Some(most));
}

/// Nodes come and go every day in a large cluster: a gang that loses one each time before its place is free would have what it keeps idle
/// for ever, though it is known of each place when it is free.
#[test]
fn a_place_that_is_put_off_for_more_than_a_day_stands_idle_no_longer_than_one_of_unknown_end() {
    const DAY: i64 = 86_400;
    let lost_at = 79_000;
    for (second, is_put_off) in [(LONG + DAY, false), (LONG + DAY + 1, true)] {
        let mut state = two_leaves(80_000, second);
        cordon(&mut state, "n01", "s/l0");
        decide_at(&mut state, lost_at);
        let elsewhere = kept(&state).expect("kept");
        assert_eq!(kept_in_short(&state), Some(place(1, second)));
        let so_far = 4_000 * i128::from(lost_at - LONG);
        let most = is_put_off.then_some(so_far + 8_000 * i128::from(LONG));
        assert_eq!(elsewhere.most_idle_gpu_seconds, most);
        // Half of its own GPUs stand idle, for twice as long.
        decide_at(&mut state, lost_at + 2 * LONG);
        assert_eq!(kept_in_short(&state).is_none(), is_put_off);
    }
}

/// What stood idle is paid for, and no more: a place that stood for hours, of which half was idle, is not followed by hours without.
#[test]
fn a_flavor_rests_no_longer_than_what_stood_idle_would_have_taken() {
    for (stood, rests) in [(100, 50), (2 * LONG, LONG), (40_000, LONG)] {
        let mut state = cluster(1, 2, vec![rich("large")]);
        runs(&mut state, "old", "n00", 0..4, Some(80_000));
        submit(&mut state, [gang("head", "large", 2, 4)]);
        decide_at(&mut state, 0);
        decide_at(&mut state, LONG);
        cordon(&mut state, "n01", "s/l0");
        let given_up_at = LONG + stood;
        let decisions = decide_at(&mut state, given_up_at);
        assert_eq!(kept_in_short(&state), None);
        let until = Some(Timestamp(given_up_at + rests));
        assert_eq!(decisions.look_again_at, until, "{stood}");
    }
}

#[test]
fn a_gang_that_is_told_anew_has_its_age_and_its_place() {
    let head = || requiring("leaf", gang("head", "large", 2, 4));
    let with_other_pods = || {
        let mut head = head();
        head.pods[1].uid = "head-made-again".into();
        head
    };
    let preemptable_later = || {
        let mut head = head();
        head.run_time.preemptable_after_seconds = Some(300);
        head
    };
    let table: [(&str, Gang); 4] = [
        ("a pod was made again", with_other_pods()),
        ("its Team protects it for longer", preemptable_later()),
        ("it is of another tier", with_priority(1, head())),
        (
            "it may not borrow",
            Gang {
                may_borrow: false,
                ..head()
            },
        ),
    ];
    for (what, told) in table {
        // Before a place is kept.
        let mut state = cluster(1, 2, vec![rich("large")]);
        runs(&mut state, "old", "n00", 0..4, Some(5_000));
        submit(&mut state, [head()]);
        decide_at(&mut state, 0);
        submit(&mut state, [told.clone()]);
        decide_at(&mut state, LONG - 1);
        assert_eq!(kept_in_short(&state), None, "{what}");
        decide_at(&mut state, LONG);
        assert_eq!(kept_in_short(&state), Some(place(0, 5_000)), "{what}");
        // And afterwards.
        let mut state = two_leaves(5_000, 6_000);
        submit(&mut state, [told]);
        decide_at(&mut state, LONG + 50);
        let still = kept(&state).expect("kept");
        assert_eq!(still.since, Timestamp(LONG), "{what}");
        assert_eq!(still.idle_gpu_seconds, 4_000 * 50, "{what}");
    }
}

#[test]
fn a_gang_that_asks_for_something_else_by_now_begins_anew() {
    let mut state = two_leaves(5_000, 6_000);
    submit(&mut state, [requiring("leaf", gang("head", "large", 2, 3))]);
    decide_at(&mut state, LONG + 50);
    assert_eq!(kept_in_short(&state), None);
}

/// Who goes before it is another question once it is of another tier.
#[test]
fn whoever_goes_first_by_now_is_let_in_where_a_place_is_kept() {
    let mut state = cluster(1, 2, vec![rich("large"), rich("small")]);
    runs(&mut state, "old", "n00", 0..4, Some(5_000));
    let head = |priority| with_priority(priority, gang("head", "large", 2, 4));
    submit(&mut state, [head(2)]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    submit(&mut state, [with_priority(1, gang("other", "small", 1, 1))]);
    assert_eq!(admitted(&decide_at(&mut state, LONG)), Vec::<String>::new());
    submit(&mut state, [head(0)]);
    assert_eq!(admitted(&decide_at(&mut state, LONG + 1)), ["other"]);
    assert!(kept(&state).is_some());
}
