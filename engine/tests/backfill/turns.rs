//! Whose turn it is to have a place kept, and where: no gang, no Team and nobody who runs takes all turns.

use muster_engine::Timestamp;

use super::{LONG, cluster, common::*, decide_at, ends, kept_in_short, rich, runs};

/// For how long a place of unknown end is kept though nothing more comes free.
const STANDS_STILL: i64 = 2 * LONG;

fn kept_for(gang: &str, leaf: usize) -> Option<(String, Vec<String>, Option<i64>)> {
    let nodes = [0, 1].map(|at| format!("n{leaf}{at}"));
    Some((gang.to_owned(), nodes.to_vec(), None))
}

/// Fewest GPUs have to come free in the first leaf, where somebody never ends and nothing is idle. In the other one there are many
/// who end soon, and nobody says so.
#[test]
fn who_never_ends_keeps_no_place_from_others() {
    let mut state = cluster(2, 2, vec![rich("a"), rich("b")]);
    runs(&mut state, "endless", "n00", 0..4, None);
    runs(&mut state, "long", "n01", 0..4, Some(80_000));
    let brief = (0..8).map(|at| (format!("brief{at}"), format!("n1{}", at / 4), at % 4));
    let brief: Vec<(String, String, usize)> = brief.collect();
    for (name, node, gpu) in &brief {
        runs(&mut state, name, node, *gpu..gpu + 1, None);
    }
    for of in ["a", "b"] {
        submit(&mut state, [requiring("leaf", gang(of, of, 2, 4))]);
    }
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert_eq!(kept_in_short(&state), kept_for("a", 0));
    let decisions = decide_at(&mut state, LONG + STANDS_STILL - 1);
    assert_eq!(kept_in_short(&state), kept_for("a", 0));
    let given_up_at = LONG + STANDS_STILL;
    assert_eq!(decisions.look_again_at, Some(Timestamp(given_up_at)));
    // Nothing stood idle: the next one has a place at once, and not there.
    decide_at(&mut state, given_up_at);
    assert_eq!(kept_in_short(&state), kept_for("b", 1));
    // As long as more comes free the place is kept.
    for (at, (name, ..)) in (1..).zip(&brief[..4]) {
        ends(&mut state, name);
        decide_at(&mut state, given_up_at + 100 * at);
        assert_eq!(kept_in_short(&state), kept_for("b", 1));
    }
    for (name, ..) in &brief[4..] {
        ends(&mut state, name);
    }
    assert_eq!(admitted(&decide_at(&mut state, given_up_at + 500)), ["b"]);
}

/// Everybody outlasts every place: each leaf is tried as often as the others.
#[test]
fn where_nobody_ends_each_leaf_is_tried_in_turn() {
    let mut state = cluster(3, 2, vec![rich("a")]);
    for (leaf, gpus) in [(0, 4), (1, 4), (2, 4)] {
        for at in 0..2 {
            let node = format!("n{leaf}{at}");
            runs(&mut state, &format!("r{leaf}{at}"), &node, 0..gpus, None);
        }
    }
    submit(&mut state, [requiring("leaf", gang("a", "a", 2, 4))]);
    decide_at(&mut state, 0);
    let mut now = LONG;
    let mut leaves = Vec::new();
    for _ in 0..6 {
        decide_at(&mut state, now);
        let (_, nodes, _) = kept_in_short(&state).expect("kept");
        leaves.push(nodes[0].chars().nth(1).expect("a leaf"));
        now += STANDS_STILL;
    }
    assert_eq!(leaves, ['0', '1', '2', '0', '1', '2']);
}
