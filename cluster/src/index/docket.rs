//! Whose rule is judged next.
//!
//! Those who use rules have turns: one request each, however many rules they bring and however long these take. A rule that
//! several use stands with all of them, and is judged when the first has its turn: nobody waits behind the rules of a
//! neighbour who happened to bring the same one first.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use crate::judgement::Rule;

/// Rules that are to be judged, by who uses them.
#[derive(Debug, Default)]
pub(super) struct Docket {
    of_user: BTreeMap<String, Turns>,
    users: BTreeMap<Rule, BTreeSet<String>>,
    under_way: BTreeSet<Rule>,
    /// Whose turn it was last.
    last: Option<String>,
}

#[derive(Debug, Default)]
struct Turns {
    rules: BTreeSet<Rule>,
    last: Option<Rule>,
}

impl Docket {
    /// The rule is to be judged for one more user.
    pub(super) fn add(&mut self, user: &str, rule: Rule) {
        let users = self.users.entry(rule).or_default();
        if users.insert(user.to_owned()) {
            let turns = self.of_user.entry(user.to_owned()).or_default();
            turns.rules.insert(rule);
        }
    }

    /// Nothing is left to be judged about the rule, or nobody uses it any more.
    pub(super) fn remove(&mut self, rule: Rule) {
        self.under_way.remove(&rule);
        for user in self.users.remove(&rule).unwrap_or_default() {
            if let Some(turns) = self.of_user.get_mut(&user) {
                turns.rules.remove(&rule);
                if turns.rules.is_empty() {
                    self.of_user.remove(&user);
                }
            }
        }
    }

    /// What was under way about the rule was answered.
    pub(super) fn answered(&mut self, rule: Rule) {
        self.under_way.remove(&rule);
    }

    /// Whether a rule waits for its turn.
    pub(super) fn has_next(&self) -> bool {
        self.users.len() > self.under_way.len()
    }

    /// The rule whose turn it is; it is under way until [`Docket::answered`]. `None`: none waits.
    pub(super) fn next(&mut self) -> Option<Rule> {
        let after = self.last.clone();
        let later = (
            after.as_ref().map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let up_to = after.as_ref().map_or(Bound::Unbounded, Bound::Included);
        let first = self.of_user.range::<String, _>(later);
        let again = self.of_user.range::<String, _>((Bound::Unbounded, up_to));
        let turn = first.chain(again).find_map(|(user, turns)| {
            let rule = turns.next(&self.under_way)?;
            Some((user.clone(), rule))
        });
        let (user, rule) = turn?;
        if let Some(turns) = self.of_user.get_mut(&user) {
            turns.last = Some(rule);
        }
        self.last = Some(user);
        self.under_way.insert(rule);
        Some(rule)
    }
}

impl Turns {
    fn next(&self, under_way: &BTreeSet<Rule>) -> Option<Rule> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let up_to = self.last.map_or(Bound::Unbounded, Bound::Included);
        let first = self.rules.range((after, Bound::Unbounded));
        let again = self.rules.range((Bound::Unbounded, up_to));
        let mut rules = first.chain(again);
        rules.find(|rule| !under_way.contains(rule)).copied()
    }
}

#[cfg(test)]
mod tests {
    use muster_engine::SelectorId;

    use super::*;

    fn rule(number: u32) -> Rule {
        Rule::Selector(SelectorId(number))
    }

    #[test]
    fn each_user_has_its_turn_however_many_rules_another_brings() {
        let mut docket = Docket::default();
        for number in 0..10_000 {
            docket.add("flood", rule(number));
        }
        docket.add("modest", rule(20_000));
        docket.add("small", rule(20_001));
        let mut turns = Vec::new();
        for _ in 0..3 {
            let next = docket.next().unwrap();
            turns.push(next);
            docket.answered(next);
        }
        assert_eq!(turns, [rule(0), rule(20_000), rule(20_001)]);
        let next = docket.next().unwrap();
        assert_eq!(next, rule(1), "and the rules of one user take turns too");
    }

    #[test]
    fn a_rule_that_two_use_is_judged_when_the_first_of_them_has_its_turn_and_once() {
        let mut docket = Docket::default();
        for number in 0..100 {
            docket.add("flood", rule(number));
        }
        docket.add("modest", rule(99));
        assert_eq!(docket.next(), Some(rule(0)));
        assert_eq!(docket.next(), Some(rule(99)), "not behind the other 98");
        let rest: BTreeSet<Rule> = std::iter::from_fn(|| docket.next()).collect();
        assert_eq!(rest.len(), 98);
        assert!(!rest.contains(&rule(99)));
        assert!(!docket.has_next());
        docket.answered(rule(7));
        assert_eq!(docket.next(), Some(rule(7)), "it is not judged to the end");
        docket.remove(rule(7));
        assert_eq!(docket.next(), None);
    }
}
