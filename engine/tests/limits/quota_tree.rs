//! The arithmetic of the quota tree, against worked numbers and against its definition.

use std::collections::BTreeMap;

use crate::common::{H100, cohort, gpu_quota, gpus, limit, team};
use muster_engine::{
    Amount, Cohort, CohortName, FlavorResource, QuotaLimit, Resource, Team, TeamName,
    quota::{QuotaTree, Sharing, TreeFault, Weight},
};
use proptest::prelude::*;

fn of() -> FlavorResource {
    FlavorResource {
        flavor: H100.into(),
        resource: Resource::Gpus,
    }
}

fn limits(nominal: i64, borrowing: Option<i64>, lending: Option<i64>) -> QuotaLimit {
    QuotaLimit {
        nominal: gpus(nominal),
        borrowing_limit: borrowing.map(gpus),
        lending_limit: lending.map(gpus),
        automatic: false,
    }
}

type Teams = BTreeMap<TeamName, Team>;
type Cohorts = BTreeMap<CohortName, Cohort>;

fn teams(all: impl IntoIterator<Item = Team>) -> Teams {
    all.into_iter()
        .map(|team| (team.name.clone(), team))
        .collect()
}

fn cohorts(all: impl IntoIterator<Item = Cohort>) -> Cohorts {
    all.into_iter()
        .map(|cohort| (cohort.name.clone(), cohort))
        .collect()
}

fn tree(teams: &Teams, cohorts: &Cohorts, usage: &[(&str, i64)]) -> QuotaTree {
    let mut tree = QuotaTree::new(teams, cohorts, []);
    for (team, amount) in usage {
        tree.charge(&TeamName::from(*team), &of(), gpus(*amount));
    }
    tree
}

fn available(tree: &QuotaTree, team: &str) -> i64 {
    tree.available(&team.into(), &of()).expect("in the tree").0 / 1000
}

fn potential(tree: &QuotaTree, team: &str) -> i64 {
    let most = tree.potentially_available(&team.into(), &of());
    most.expect("in the tree").0 / 1000
}

#[test]
fn worked_numbers_with_a_pool_borrowing_and_lending_limits() {
    let teams = teams([
        team("cq1", Some("pool"), limits(10, None, None)),
        team("cq2", Some("pool"), limits(10, Some(2), None)),
        team("cq3", Some("pool"), limits(10, None, Some(5))),
    ]);
    let cohorts = cohorts([cohort("pool", None, 10)]);
    let tree = tree(&teams, &cohorts, &[("cq1", 20), ("cq2", 10), ("cq3", 6)]);
    let numbers =
        ["cq1", "cq2", "cq3"].map(|team| (available(&tree, team), potential(&tree, team)));
    assert_eq!(numbers, [(4, 35), (2, 12), (4, 40)]);
}

#[test]
fn a_siblings_guarantee_is_not_eaten_by_over_admission() {
    let teams = teams([
        team("x", Some("pool"), limit(4)),
        team("y", Some("pool"), limits(4, Some(0), Some(0))),
    ]);
    let cohorts = cohorts([cohort("pool", None, 4)]);
    let tree = tree(&teams, &cohorts, &[("x", 14)]);
    // Kueue lets the pool's deficit of 6 flow down and answers 0.
    assert_eq!(available(&tree, "y"), 4);
    assert_eq!(available(&tree, "x"), 0);
}

#[test]
fn borrowing_reaches_as_far_up_as_it_must() {
    let teams = teams([
        team("a", Some("inner"), limit(2)),
        team("b", Some("inner"), limit(2)),
        team("c", Some("outer"), limit(2)),
        team("alone", None, limit(2)),
    ]);
    let cohorts = cohorts([cohort("inner", Some("outer"), 0)]);
    let tree = tree(&teams, &cohorts, &[]);
    let level = |team: &str, amount| tree.borrow_level(&team.into(), &of(), gpus(amount));
    for (team, amount, expected) in [
        ("a", 2, 0),
        ("a", 3, 1),
        ("a", 4, 1),
        ("a", 5, 2),
        ("a", 9, 2),
        ("c", 3, 2),
        ("alone", 9, 0),
    ] {
        assert_eq!(level(team, amount), Ok(expected), "{team} {amount}");
    }
}

#[test]
fn what_nobody_has_is_asked_of_the_root_whether_or_not_it_was_ever_charged() {
    let teams = teams([team("a", Some("inner"), limit(2))]);
    let cohorts = cohorts([cohort("inner", Some("outer"), 0)]);
    let mut tree = tree(&teams, &cohorts, &[]);
    let unknown = FlavorResource {
        flavor: "unknown".into(),
        resource: Resource::Gpus,
    };
    for amount in [0, 1] {
        let levels = [(); 2].map(|()| {
            let level = tree.borrow_level(&"a".into(), &unknown, gpus(amount));
            tree.charge(&"a".into(), &unknown, gpus(0));
            level
        });
        let expected = if amount == 0 { 0 } else { 2 };
        assert_eq!(levels, [Ok(expected), Ok(expected)], "{amount}");
        tree = self::tree(&teams, &cohorts, &[]);
    }
}

#[test]
fn faults_are_told_apart() {
    let teams = teams([
        team("round", Some("x"), limit(1)),
        team("fine", None, limit(1)),
    ]);
    let cohorts = cohorts([
        cohort("x", Some("y"), 0),
        cohort("y", Some("z"), 0),
        cohort("z", Some("y"), 0),
    ]);
    let tree = tree(&teams, &cohorts, &[]);
    let check = |team: &str| tree.check(&team.into());
    assert_eq!(check("fine"), Ok(()));
    assert_eq!(check("nobody"), Err(TreeFault::UnknownTeam));
    assert_eq!(check("round"), Err(TreeFault::Cycle("y".into())));
}

#[test]
fn a_limit_without_measure_concerns_nobody_else_and_saturates() {
    let mut huge = team("huge", Some("pool"), limit(1));
    huge.quota = gpu_quota(QuotaLimit {
        nominal: Amount(i64::MAX - 7),
        borrowing_limit: Some(Amount(i64::MAX)),
        lending_limit: Some(Amount(0)),
        automatic: false,
    });
    let mut lends_all = huge.clone();
    lends_all.name = "lends-all".into();
    lends_all.cohort = Some("other".into());
    lends_all.quota[0].1.insert(
        Resource::Gpus,
        QuotaLimit {
            nominal: Amount(i64::MAX),
            ..QuotaLimit::default()
        },
    );
    let teams = teams([
        huge,
        team("beside", Some("pool"), limit(3)),
        lends_all,
        team("borrows", Some("other"), limit(3)),
    ]);
    let cohorts = cohorts([cohort("pool", None, 2), cohort("other", None, 2)]);
    let mut tree = tree(&teams, &cohorts, &[]);
    assert_eq!(available(&tree, "beside"), 5);
    let most = |tree: &QuotaTree, team: &str| tree.available(&team.into(), &of());
    assert_eq!(most(&tree, "huge"), Ok(Amount(i64::MAX)));
    assert_eq!(most(&tree, "borrows"), Ok(Amount(i64::MAX)));
    // Charges without measure come and go, and nothing of them stays.
    for _ in 0..3 {
        tree.charge(&"huge".into(), &of(), Amount(i64::MAX));
    }
    assert_eq!(available(&tree, "beside"), 0);
    for _ in 0..3 {
        tree.discharge(&"huge".into(), &of(), Amount(i64::MAX));
    }
    assert_eq!(available(&tree, "beside"), 5);
    assert_eq!(most(&tree, "huge"), Ok(Amount(i64::MAX)));
}

/// A tree of up to four Cohorts (each below an earlier one or a root) and up to five Teams.
fn random_tree() -> impl Strategy<Value = (Teams, Cohorts)> {
    let limit = || {
        let some = || proptest::option::of(0_i64..6);
        (0_i64..6, some(), some())
            .prop_map(|(nominal, borrowing, lending)| limits(nominal, borrowing, lending))
    };
    let some_cohorts = proptest::collection::vec((proptest::option::of(0_usize..4), limit()), 0..4);
    let some_teams = proptest::collection::vec((proptest::option::of(0_usize..4), limit()), 1..5);
    (some_cohorts, some_teams).prop_map(|(all_cohorts, all_teams)| {
        let made = all_cohorts
            .into_iter()
            .enumerate()
            .map(|(at, (parent, limit))| Cohort {
                name: format!("c{at}").into(),
                parent: parent
                    .filter(|parent| *parent < at)
                    .map(|parent| format!("c{parent}").into()),
                quota: gpu_quota(limit),
                weight: Weight::ONE,
                sharing: Sharing::ByPriority,
            });
        let cohorts = cohorts(made);
        let teams = teams(
            all_teams
                .into_iter()
                .enumerate()
                .map(|(at, (cohort, limit))| {
                    let cohort = cohort.map(|cohort| format!("c{cohort}"));
                    team(&format!("t{at}"), cohort.as_deref(), limit)
                }),
        );
        (teams, cohorts)
    })
}

/// What the limits mean, without the formulas: usage flows up as far as nobody below covers it, and a Team can have as much
/// more as flows through no node that would then be above what it may have.
struct Definition<'a> {
    teams: &'a Teams,
    cohorts: &'a Cohorts,
    usage: &'a BTreeMap<TeamName, i64>,
}

#[derive(Clone)]
enum Owner {
    Team(TeamName),
    Cohort(CohortName),
}

impl Definition<'_> {
    fn limit(&self, owner: &Owner) -> QuotaLimit {
        let quota = match owner {
            Owner::Team(name) => self.teams.get(name).map(|team| &team.quota),
            Owner::Cohort(name) => self.cohorts.get(name).map(|cohort| &cohort.quota),
        };
        quota.map_or_else(QuotaLimit::default, |quota| quota[0].1[&Resource::Gpus])
    }

    fn parent(&self, owner: &Owner) -> Option<Owner> {
        let parent = match owner {
            Owner::Team(name) => self.teams[name].cohort.clone(),
            Owner::Cohort(name) => self
                .cohorts
                .get(name)
                .and_then(|cohort| cohort.parent.clone()),
        };
        parent.map(Owner::Cohort)
    }

    fn children(&self, owner: &Owner) -> Vec<Owner> {
        let Owner::Cohort(name) = owner else {
            return Vec::new();
        };
        let teams = self
            .teams
            .values()
            .filter(|team| team.cohort.as_ref() == Some(name));
        let cohorts = self
            .cohorts
            .values()
            .filter(|cohort| cohort.parent.as_ref() == Some(name));
        teams
            .map(|team| Owner::Team(team.name.clone()))
            .chain(cohorts.map(|cohort| Owner::Cohort(cohort.name.clone())))
            .collect()
    }

    fn subtree(&self, owner: &Owner) -> i64 {
        let children = self.children(owner);
        let lent: i64 = children.iter().map(|child| self.lent(child)).sum();
        self.limit(owner).nominal.0 + lent
    }

    /// What a parent sees of a child.
    fn lent(&self, owner: &Owner) -> i64 {
        let all = self.subtree(owner);
        let most = self.limit(owner).lending_limit;
        most.map_or(all, |most| all.min(most.0))
    }

    /// What arrives at a node if a Team takes so much more.
    fn used(&self, owner: &Owner, more: Option<(&TeamName, i64)>) -> i64 {
        match owner {
            Owner::Team(name) => {
                let more = more.filter(|(team, _)| *team == name);
                self.usage.get(name).copied().unwrap_or(0) + more.map_or(0, |(_, more)| more)
            }
            Owner::Cohort(_) => {
                let children = self.children(owner);
                let flows = children.iter().map(|child| {
                    let kept = self.subtree(child) - self.lent(child);
                    (self.used(child, more) - kept).max(0)
                });
                flows.sum()
            }
        }
    }

    /// The most that may arrive at a node.
    fn most(&self, owner: &Owner) -> i64 {
        let own = self.subtree(owner);
        match (self.parent(owner), self.limit(owner).borrowing_limit) {
            (None, _) => own,
            (Some(_), Some(limit)) => own + limit.0,
            (Some(_), None) => i64::MAX,
        }
    }

    fn may_have(&self, team: &TeamName, more: i64) -> bool {
        let mut at = Some(Owner::Team(team.clone()));
        while let Some(owner) = at {
            let used = self.used(&owner, Some((team, more)));
            if used > self.used(&owner, None) && used > self.most(&owner) {
                return false;
            }
            at = self.parent(&owner);
        }
        true
    }

    /// All limits are whole GPUs: so is what can be had.
    fn available(&self, team: &TeamName) -> i64 {
        let more = (1..).map(|count| gpus(count).0);
        let mut fitting = more.take_while(|more| self.may_have(team, *more) && *more < 1 << 20);
        let mut last = 0;
        for more in &mut fitting {
            last = more;
        }
        last
    }
}

proptest! {
    /// Charging and discharging one by one ends where the definition says.
    #[test]
    fn running_sums_agree_with_the_definition(
        (teams, cohorts) in random_tree(),
        changes in proptest::collection::vec((0_usize..5, 0_i64..9), 0..12),
    ) {
        let mut tree = QuotaTree::new(&teams, &cohorts, []);
        let names: Vec<TeamName> = teams.keys().cloned().collect();
        let mut usage: BTreeMap<TeamName, i64> = BTreeMap::new();
        for (at, amount) in changes {
            let team = &names[at % names.len()];
            let used = usage.entry(team.clone()).or_default();
            // Every other change gives back what was taken, as far as there is any.
            if at % 2 == 0 {
                tree.charge(team, &of(), gpus(amount));
                *used += gpus(amount).0;
            } else {
                let back = gpus(amount).0.min(*used);
                tree.discharge(team, &of(), Amount(back));
                *used -= back;
            }
        }
        let definition = Definition { teams: &teams, cohorts: &cohorts, usage: &usage };
        let none = BTreeMap::new();
        let unused = Definition { usage: &none, ..definition };
        for team in &names {
            let owner = Owner::Team(team.clone());
            prop_assert_eq!(tree.used(team, &of()), Ok(Amount(definition.used(&owner, None))));
            prop_assert_eq!(tree.available(team, &of()), Ok(Amount(definition.available(team))));
            prop_assert_eq!(tree.potentially_available(team, &of()), Ok(Amount(unused.available(team))));
        }
    }

    /// S1: who takes no more than is available takes no node above its limit.
    #[test]
    fn what_is_available_takes_nobody_over_a_limit(
        (teams, cohorts) in random_tree(),
        takes in proptest::collection::vec(0_usize..5, 1..8),
    ) {
        let mut tree = QuotaTree::new(&teams, &cohorts, []);
        let names: Vec<TeamName> = teams.keys().cloned().collect();
        let mut usage: BTreeMap<TeamName, i64> = BTreeMap::new();
        for at in takes {
            let team = &names[at % names.len()];
            let all = tree.available(team, &of()).expect("no fault");
            let part = Amount(all.0 / 2 + all.0 % 2);
            tree.charge(team, &of(), part);
            *usage.entry(team.clone()).or_default() += part.0;
        }
        let definition = Definition { teams: &teams, cohorts: &cohorts, usage: &usage };
        let owners = names.into_iter().map(Owner::Team);
        let owners = owners.chain(cohorts.keys().cloned().map(Owner::Cohort));
        for owner in owners {
            let (used, quota) = (definition.used(&owner, None), definition.subtree(&owner));
            match (definition.parent(&owner), definition.limit(&owner).borrowing_limit) {
                (None, _) => prop_assert!(used <= quota),
                (Some(_), Some(limit)) => prop_assert!(used <= quota + limit.0),
                (Some(_), None) => {}
            }
        }
    }
}
