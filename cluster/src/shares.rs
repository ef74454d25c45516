//! How many rules the pods and claims of one namespace may use.

use std::collections::{BTreeMap, BTreeSet};

/// Most different rules of one sort that the pods and claims of one namespace may use at a time. One more waits until another
/// is no longer used, so that nobody's rules cost the others more than a share.
pub(crate) const RULES_PER_NAMESPACE: usize = 128;

/// How many of the rules of one sort each namespace uses.
#[derive(Debug)]
pub(crate) struct Shares<R, U> {
    used: BTreeMap<String, BTreeMap<R, usize>>,
    users: BTreeMap<R, BTreeSet<String>>,
    waiting: BTreeMap<String, BTreeSet<U>>,
    freed: BTreeSet<String>,
}

impl<R, U> Default for Shares<R, U> {
    fn default() -> Self {
        Self {
            used: BTreeMap::new(),
            users: BTreeMap::new(),
            waiting: BTreeMap::new(),
            freed: BTreeSet::new(),
        }
    }
}

impl<R: Ord + Copy, U: Ord> Shares<R, U> {
    /// Whether the namespace may use another rule; if not, `user` waits.
    pub(crate) fn has_room(&mut self, namespace: &str, user: U) -> bool {
        self.has_room_beside(namespace, user, 0)
    }

    /// Whether the namespace may use another rule, beside so many that it is about to [take](Self::take); if not, `user` waits.
    pub(crate) fn has_room_beside(&mut self, namespace: &str, user: U, others: usize) -> bool {
        let used = self.used.get(namespace).map_or(0, BTreeMap::len);
        if used.saturating_add(others) < RULES_PER_NAMESPACE {
            return true;
        }
        self.waiting
            .entry(namespace.to_owned())
            .or_default()
            .insert(user);
        false
    }

    /// Whether the namespace uses the rule.
    pub(crate) fn uses(&self, namespace: &str, rule: R) -> bool {
        self.used
            .get(namespace)
            .is_some_and(|rules| rules.contains_key(&rule))
    }

    /// The namespaces that use the rule.
    pub(crate) fn users_of(&self, rule: R) -> impl Iterator<Item = &String> {
        self.users.get(&rule).into_iter().flatten()
    }

    /// The rules that the namespace uses.
    pub(crate) fn rules_of(&self, namespace: &str) -> impl Iterator<Item = R> {
        let used = self.used.get(namespace).into_iter();
        used.flat_map(BTreeMap::keys).copied()
    }

    /// One more use.
    pub(crate) fn take(&mut self, namespace: &str, rule: R) {
        self.users
            .entry(rule)
            .or_default()
            .insert(namespace.to_owned());
        let rules = self.used.entry(namespace.to_owned()).or_default();
        *rules.entry(rule).or_default() += 1;
    }

    /// One use less.
    pub(crate) fn give(&mut self, namespace: &str, rule: R) {
        let Some(rules) = self.used.get_mut(namespace) else {
            return;
        };
        if let Some(uses) = rules.get_mut(&rule) {
            *uses -= 1;
            if *uses > 0 {
                return;
            }
            rules.remove(&rule);
            if let Some(users) = self.users.get_mut(&rule) {
                users.remove(namespace);
                if users.is_empty() {
                    self.users.remove(&rule);
                }
            }
            self.freed.insert(namespace.to_owned());
        }
        if rules.is_empty() {
            self.used.remove(namespace);
        }
    }

    /// Who may try again, where room became free: no more than there is room for.
    pub(crate) fn wake(&mut self) -> Vec<U> {
        let mut woken = Vec::new();
        for namespace in std::mem::take(&mut self.freed) {
            let used = self.used.get(&namespace).map_or(0, BTreeMap::len);
            let Some(waiting) = self.waiting.get_mut(&namespace) else {
                continue;
            };
            woken.extend((used..RULES_PER_NAMESPACE).map_while(|_| waiting.pop_first()));
            if waiting.is_empty() {
                self.waiting.remove(&namespace);
            } else if used < RULES_PER_NAMESPACE {
                // Whoever is woken may use a rule that is used already, and leave room for another.
                self.freed.insert(namespace);
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_uses_at_most_its_share_of_rules_and_whoever_waits_is_told_when_one_is_free() {
        let mut shares: Shares<usize, &str> = Shares::default();
        for rule in 0..RULES_PER_NAMESPACE {
            assert!(shares.has_room("ml", "pod"), "rule {rule}");
            shares.take("ml", rule);
        }
        assert!(!shares.has_room("ml", "late"));
        let almost = RULES_PER_NAMESPACE - 1;
        assert!(shares.has_room_beside("other", "pod", almost));
        assert!(!shares.has_room_beside("third", "pod", almost + 1));
        assert!(shares.uses("ml", 0) && !shares.uses("ml", RULES_PER_NAMESPACE));
        assert!(
            shares.has_room("other", "pod"),
            "others have their own share"
        );
        shares.take("ml", 0);
        shares.give("ml", 0);
        assert!(shares.wake().is_empty(), "it is still used once");
        shares.give("ml", 0);
        assert_eq!(shares.wake(), ["late"]);
        assert!(shares.has_room("ml", "late"));
    }
}
