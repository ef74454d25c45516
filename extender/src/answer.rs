//! From a verdict to the answer of the verb filter.

use std::collections::BTreeSet;

use crate::{
    filter::{Refusal, Verdict},
    wire::{Arguments, FilterAnswer, RefusedNodes},
};

/// The nodes of a request, each once, in its order. kube-scheduler counts a node that is answered twice as
/// two, and an answer outside of the request fails the whole attempt: every answer is made from these.
pub fn offered_nodes<'a>(arguments: &'a Arguments<'_>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    arguments
        .node_names
        .iter()
        .flatten()
        .map(|name| name.0.as_ref())
        .filter(|name| seen.insert(*name))
        .collect()
}

/// The answer to a filter request.
pub fn filter_answer<'a>(verdict: &Verdict, offered: Vec<&'a str>) -> FilterAnswer<'a> {
    match verdict {
        Verdict::AsGiven => answer(offered, vec![], "", ""),
        Verdict::Planned(node) => {
            let (planned, others) = offered.into_iter().partition(|name| *name == node.as_str());
            answer(planned, others, Refusal::PlannedElsewhere.text(), "")
        }
        Verdict::Refused(refusal) => answer(vec![], offered, refusal.text(), ""),
        Verdict::Unknown(why) => answer(vec![], vec![], "", why),
    }
}

fn answer<'a>(
    node_names: Vec<&'a str>,
    refused: Vec<&'a str>,
    reason: &'a str,
    error: &'a str,
) -> FilterAnswer<'a> {
    FilterAnswer {
        node_names,
        failed_nodes: [].into(),
        failed_and_unresolvable_nodes: RefusedNodes {
            names: refused,
            reason,
        },
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn verdicts() -> impl Strategy<Value = Verdict> {
        prop_oneof![
            Just(Verdict::AsGiven),
            "n[0-9]".prop_map(Verdict::Planned),
            Just(Verdict::Refused(Refusal::NotAdmitted)),
            Just(Verdict::Unknown("no cache")),
        ]
    }

    proptest! {
        /// T3, T4, T5, T6, T29: whatever is asked, the answer is a subset of it, each node once; what is
        /// refused is refused everywhere and never left to preemption; only an error carries an error.
        #[test]
        fn t3_t29_the_answer_is_a_subset_of_the_request(
            names in prop::collection::vec("n[0-9]", 0..20),
            verdict in verdicts(),
        ) {
            let request = serde_json::json!({"Pod": {}, "Nodes": null, "NodeNames": names}).to_string();
            let arguments: Arguments<'_> = serde_json::from_str(&request).unwrap();
            let answer = filter_answer(&verdict, offered_nodes(&arguments));
            let asked: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            let given: BTreeSet<&str> = answer.node_names.iter().copied().collect();
            let refused: BTreeSet<&str> =
                answer.failed_and_unresolvable_nodes.names.iter().copied().collect();
            prop_assert_eq!(given.len(), answer.node_names.len(), "a node is answered twice");
            prop_assert!(given.is_subset(&asked) && given.is_disjoint(&refused));
            prop_assert!(answer.failed_nodes.is_empty());
            if matches!(verdict, Verdict::Unknown(_)) {
                prop_assert!(!answer.error.is_empty());
            } else {
                prop_assert!(answer.error.is_empty());
                let all: BTreeSet<&str> = given.union(&refused).copied().collect();
                prop_assert_eq!(all, asked, "a node was dropped without a reason");
            }
        }
    }

    #[test]
    fn the_planned_node_alone_is_answered_and_the_others_have_one_text() {
        let verdict = Verdict::Planned("n2".into());
        let answer = filter_answer(&verdict, vec!["n1", "n2", "n3"]);
        assert_eq!(
            serde_json::to_string(&answer).unwrap(),
            r#"{"NodeNames":["n2"],"FailedNodes":{},"FailedAndUnresolvableNodes":{"n1":"PlannedElsewhere: its gang is planned on another node","n3":"PlannedElsewhere: its gang is planned on another node"},"Error":""}"#
        );
        let elsewhere = filter_answer(&verdict, vec!["n1"]);
        assert!(elsewhere.node_names.is_empty());
    }
}
