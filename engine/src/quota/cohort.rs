//! What a Cohort has, by itself and from its members, and how much of it is used.

use super::{
    account::saturated,
    tree::{NodeId, QuotaTree},
};
use crate::{
    amount::{Amount, FlavorResource},
    names::CohortName,
};

/// What a Cohort shares of one resource of one Flavor. What a member keeps for itself counts in neither quota nor use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CohortUsage {
    /// The Flavor and resource.
    pub of: FlavorResource,
    /// The Cohort's own pool.
    pub nominal: Amount,
    /// The pool, and what all members lend.
    pub subtree_quota: Amount,
    /// Charged to that, and to what is borrowed from above; what is being released included.
    pub used: Amount,
    /// Of `used`, what lies above `subtree_quota`.
    pub borrowed: Amount,
    /// What members could get in addition now, borrowing from above included.
    pub available: Amount,
}

impl QuotaTree {
    /// What a Cohort shares, in the order of the names; nothing of what it neither has nor uses. Empty for one that nobody names, or
    /// that is cut off by a cycle.
    pub fn cohort_usage(&self, cohort: &CohortName) -> Vec<CohortUsage> {
        let node = self.node_of_cohort(cohort);
        let mut usage = node.map_or_else(Vec::new, |node| self.usage_at(node));
        usage.sort_by(|one, other| one.of.cmp(&other.of));
        usage
    }

    fn usage_at(&self, node: NodeId) -> Vec<CohortUsage> {
        let accounts = self.accounts_of(node);
        let counts = accounts.filter(|(_, it)| it.nominal != 0 || it.subtree != 0 || it.usage != 0);
        let usage = counts.map(|(pair, account)| CohortUsage {
            of: self.named(pair).clone(),
            nominal: saturated(account.nominal),
            subtree_quota: saturated(account.subtree),
            used: saturated(account.usage),
            borrowed: saturated((-account.headroom()).max(0)),
            available: self.available_at(node, pair),
        });
        usage.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{
        amount::Resource,
        model::{Cohort, Queueing, Quota, QuotaLimit, Shrink, Stop, Team},
        names::TeamName,
        quota::{FlavorFungibility, PreemptionPolicy, Sharing, Weight},
    };

    fn gpus() -> FlavorResource {
        FlavorResource {
            flavor: "h100".into(),
            resource: Resource::Gpus,
        }
    }

    fn quota(nominal: i64, lending_limit: Option<i64>) -> Quota {
        let limit = QuotaLimit {
            nominal: Amount(nominal),
            lending_limit: lending_limit.map(Amount),
            ..QuotaLimit::default()
        };
        vec![("h100".into(), BTreeMap::from([(Resource::Gpus, limit)]))]
    }

    fn cohort(name: &str, parent: Option<&str>, nominal: i64) -> (CohortName, Cohort) {
        let cohort = Cohort {
            name: name.into(),
            parent: parent.map(Into::into),
            quota: quota(nominal, None),
            weight: Weight::ONE,
            sharing: Sharing::ByPriority,
        };
        (name.into(), cohort)
    }

    fn team(name: &str, cohort: &str, nominal: i64, lent: Option<i64>) -> (TeamName, Team) {
        let team = Team {
            name: name.into(),
            cohort: Some(cohort.into()),
            quota: quota(nominal, lent),
            generation: 1,
            queueing: Queueing::BestEffort,
            stop: Stop::None,
            shrink: Shrink::Keep,
            fungibility: FlavorFungibility::default(),
            preemption: PreemptionPolicy::default(),
            weight: Weight::ONE,
            fairness: None,
        };
        (name.into(), team)
    }

    /// What `below` and `all` share: nominal, subtree quota, used, borrowed and available of each.
    fn shared(tree: &QuotaTree) -> [[i64; 5]; 2] {
        ["below", "all"].map(|name| {
            let usage = tree.cohort_usage(&name.into());
            let [of_gpus] = usage.as_slice() else {
                panic!("{usage:?}")
            };
            assert_eq!(of_gpus.of, gpus());
            [
                of_gpus.nominal.0,
                of_gpus.subtree_quota.0,
                of_gpus.used.0,
                of_gpus.borrowed.0,
                of_gpus.available.0,
            ]
        })
    }

    #[test]
    fn a_cohort_shares_its_own_and_what_its_members_lend_and_may_borrow_from_above() {
        let teams = BTreeMap::from([
            team("red", "below", 8, Some(3)),
            team("blue", "below", 4, None),
            team("beside", "all", 10, None),
        ]);
        let cohorts = BTreeMap::from([cohort("all", None, 5), cohort("below", Some("all"), 2)]);
        let mut tree = QuotaTree::new(&teams, &cohorts, []);
        // Red keeps 5 of its 8.
        assert_eq!(shared(&tree), [[2, 9, 0, 0, 24], [5, 24, 0, 0, 24]]);
        tree.charge(&"red".into(), &gpus(), Amount(5));
        assert_eq!(shared(&tree), [[2, 9, 0, 0, 24], [5, 24, 0, 0, 24]]);
        tree.charge(&"red".into(), &gpus(), Amount(4));
        tree.charge(&"blue".into(), &gpus(), Amount(7));
        assert_eq!(shared(&tree), [[2, 9, 11, 2, 13], [5, 24, 11, 0, 13]]);
    }

    #[test]
    fn of_a_cohort_that_nobody_names_and_of_one_in_a_cycle_nothing_is_said() {
        let cohorts = BTreeMap::from([cohort("a", Some("b"), 2), cohort("b", Some("a"), 2)]);
        let tree = QuotaTree::new(&BTreeMap::new(), &cohorts, []);
        assert_eq!(tree.cohort_usage(&"a".into()), []);
        assert_eq!(tree.cohort_usage(&"unknown".into()), []);
    }
}
