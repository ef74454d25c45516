//! In which order gangs are admitted where shares are fair.

use std::collections::{BTreeMap, BTreeSet};

use crate::{common::*, slices::decide_in_slices};
use muster_engine::{
    Amount, Cohort, FlavorResource, Gang, Hold, Queueing, QuotaLimit, Resource, ResourceCharge,
    State, Team, TeamName, Update, Why,
    model::Quota,
    quota::{
        Entrant, PreemptionPolicy, PreemptionReason, QuotaTree, ReclaimWithinCohort, Sharing,
        Weight, fair_order,
    },
};
use proptest::prelude::*;

const ROOT: &str = "all";

fn fair(name: &str, parent: Option<&str>, nominal: i64) -> Cohort {
    Cohort {
        sharing: Sharing::FAIR,
        ..cohort(name, parent, nominal)
    }
}

/// One large node, and a pool of so many GPUs below which these Teams have nothing of their own.
fn pool(sharing: Sharing<'static>, gpus: i64, teams: &[&str]) -> State {
    let teams = teams.iter().map(|name| team(name, Some(ROOT), limit(0)));
    let mut state = state(vec![node("n0", "s/l", 64)], teams.collect());
    state.apply(Update::Cohort(Cohort {
        sharing,
        ..cohort(ROOT, None, gpus)
    }));
    state
}

fn runs(state: &mut State, name: &str, team: &str, devices: std::ops::Range<usize>) {
    let devices: Vec<usize> = devices.collect();
    state.apply(Update::Hold(hold(name, team, "n0", &devices)));
}

#[test]
fn where_shares_are_fair_the_smaller_share_goes_first_and_elsewhere_who_waits_longer() {
    for (sharing, first) in [
        (Sharing::FAIR, ["late-1", "early-1"]),
        (Sharing::ByPriority, ["early-1", "late-1"]),
    ] {
        let mut state = pool(sharing, 8, &["large", "small"]);
        runs(&mut state, "r", "large", 0..4);
        submit(
            &mut state,
            [
                at(1, gang("early-1", "large", 1, 1)),
                at(2, gang("late-1", "small", 1, 1)),
            ],
        );
        assert_eq!(admitted(&decide(&mut state)), first, "{sharing:?}");
    }
}

/// Once the first is withdrawn, one comes to be first that can never run and asks for more, and then one that asks for less.
#[test]
fn a_team_in_strict_order_competes_by_the_least_that_any_of_its_line_asks_for() {
    let mut state = pool(Sharing::FAIR, 2, &["strict", "half", "third"]);
    state.apply(Update::Team(Team {
        queueing: Queueing::StrictFifo,
        ..team("strict", Some(ROOT), limit(0))
    }));
    state.apply(Update::Team(Team {
        weight: Weight(Weight::ONE.0 / 2),
        ..team("half", Some(ROOT), limit(0))
    }));
    runs(&mut state, "r", "third", 0..2);
    submit(
        &mut state,
        [
            at(1, gang("first", "strict", 1, 2)),
            at(2, gang("never", "strict", 1, 5)),
            at(3, gang("one", "strict", 1, 1)),
            at(4, gang("two", "half", 1, 2)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), [""; 0]);
    state.apply(Update::NotWaiting("first".into()));
    state.apply(Update::HoldGone(pod_uid("r")));
    // One GPU for a weight of 1 is less than two for one of a half, and five would be more.
    assert_eq!(admitted(&decide(&mut state)), ["one"]);
}

#[test]
fn a_team_says_its_weighted_share_where_shares_are_fair() {
    for (sharing, weight, share) in [
        (Sharing::FAIR, Weight::ONE, Some(Some(500))),
        (Sharing::FAIR, Weight(2 * Weight::ONE.0), Some(Some(250))),
        (Sharing::FAIR, Weight::ZERO, Some(None)),
        (Sharing::ByPriority, Weight::ONE, None),
    ] {
        let mut state = pool(sharing, 8, &["small"]);
        let large = team("large", Some(ROOT), limit(0));
        state.apply(Update::Team(Team { weight, ..large }));
        runs(&mut state, "r", "large", 0..4);
        let told = state.fair_share(&"large".into());
        let told = told.map(|share| share.thousandths());
        assert_eq!(told, share, "{sharing:?} {weight:?}");
    }
    let state = pool(Sharing::FAIR, 8, &["small"]);
    assert!(state.fair_share(&"nobody".into()).is_none());
}

/// Each asks for what makes its share: of equal shares the higher priority, then the age, then the UID.
#[test]
fn of_equal_shares_the_priority_decides_then_the_age_and_then_the_uid() {
    let mut state = pool(Sharing::FAIR, 8, &["a", "b", "c", "d"]);
    submit(
        &mut state,
        [
            at(1, gang("g4", "a", 1, 1)),
            at(1, gang("g3", "b", 1, 1)),
            at(0, gang("g2", "c", 1, 1)),
            at(9, with_priority(1, gang("g1", "d", 1, 1))),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["g1", "g2", "g3", "g4"]);
}

/// The owner borrows so much of something else that its share is the larger one.
#[test]
fn who_borrows_nothing_of_what_it_asks_for_goes_before_who_does() {
    let links = Resource::Extended("example.com/link".into());
    let with_links = |mut quota: Quota, count: i64| {
        let limit = QuotaLimit {
            nominal: Amount(count),
            ..QuotaLimit::default()
        };
        quota[0].1.insert(links.clone(), limit);
        quota
    };
    let teams = [("owner", 2), ("borrower", 0)].map(|(name, nominal)| {
        let team = team(name, Some(ROOT), limit(nominal));
        Team {
            quota: with_links(team.quota.clone(), 0),
            ..team
        }
    });
    let mut state = state(vec![node("n0", "s/l", 8)], teams.into());
    let root = fair(ROOT, None, 6);
    state.apply(Update::Cohort(Cohort {
        quota: with_links(root.quota.clone(), 10),
        ..root
    }));
    state.apply(Update::Hold(Hold {
        charged: vec![ResourceCharge::new(H100.into(), links, Amount(9))],
        ..hold("r", "owner", "n0", &[])
    }));
    submit(
        &mut state,
        [
            at(0, with_priority(9, gang("borrows", "borrower", 1, 1))),
            at(1, gang("owns", "owner", 1, 2)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["owns", "borrows"]);
}

/// The Team with the smaller share is in the Cohort with the larger one.
#[test]
fn cohorts_compete_before_the_teams_in_them_do() {
    let teams = [("a", "left"), ("b", "left"), ("c", "right")];
    let teams = teams.map(|(name, cohort)| team(name, Some(cohort), limit(0)));
    let mut state = state(vec![node("n0", "s/l", 16)], teams.into());
    for cohort in [
        fair(ROOT, None, 16),
        cohort("left", Some(ROOT), 0),
        cohort("right", Some(ROOT), 0),
    ] {
        state.apply(Update::Cohort(cohort));
    }
    runs(&mut state, "r1", "b", 0..6);
    runs(&mut state, "r2", "c", 6..9);
    submit(
        &mut state,
        [at(0, gang("ga", "a", 1, 1)), at(1, gang("gc", "c", 1, 1))],
    );
    assert_eq!(admitted(&decide(&mut state)), ["gc", "ga"]);
}

#[test]
fn shares_are_compared_anew_after_every_admission() {
    let mut state = pool(Sharing::FAIR, 6, &["a", "b"]);
    runs(&mut state, "r", "a", 0..2);
    submit(
        &mut state,
        (0..4).flat_map(|at_second| {
            ["a", "b"].map(|team| {
                let name = format!("{team}{at_second}");
                at(at_second, gang(&name, team, 1, 1))
            })
        }),
    );
    // A round serves each Team once.
    let admitted = admitted(&decide(&mut state));
    assert_eq!(admitted, ["b0", "a0", "b1", "a1"]);
}

#[test]
fn what_is_released_is_promised_to_who_comes_before_those_whose_shares_are_fair() {
    for (queued_at, is_promised) in [(0, true), (2, false)] {
        let teams = vec![team("a", None, limit(8)), team("f", Some("fair"), limit(8))];
        let mut state = state(vec![node("n0", "s/l", 8)], teams);
        state.apply(Update::Cohort(fair("fair", None, 0)));
        let mut ending = hold("p", "a", "n0", &[0, 1, 2, 3, 4, 5, 6, 7]);
        ending.releasing = true;
        state.apply(Update::Hold(ending));
        submit(
            &mut state,
            [
                at(queued_at, gang("g", "a", 1, 8)),
                at(1, gang("h", "f", 1, 8)),
            ],
        );
        decide(&mut state);
        let told = why(&state, "g");
        let is_told = matches!(told, Why::Release { behind: None, .. });
        assert_eq!(is_told, is_promised, "queued at {queued_at}: {told:?}");
    }
}

/// A tree of GPUs alone, with gangs in it.
#[derive(Clone, Debug)]
struct World {
    /// Cohorts below the root, each with a pool.
    pools: Vec<i64>,
    /// Teams: in which Cohort, with what of their own, and what runs there.
    teams: Vec<(usize, i64, i64)>,
    /// Gangs: of which Team, how many GPUs, priority, age.
    gangs: Vec<(usize, i64, i32, i64)>,
}

fn world() -> impl Strategy<Value = World> {
    let pools = proptest::collection::vec(0..4_i64, 1..4);
    let teams = proptest::collection::vec((0..3_usize, 0..3_i64, 0..3_i64), 1..7);
    let gangs = proptest::collection::vec((0..6_usize, 1..4_i64, 0..2_i32, 0..3_i64), 1..14);
    (pools, teams, gangs).prop_map(|(pools, teams, gangs)| World {
        pools,
        teams,
        gangs,
    })
}

impl World {
    fn cohorts(&self) -> Vec<Cohort> {
        let inner = self.pools.iter().enumerate();
        let inner = inner.map(|(at, pool)| cohort(&format!("c{at}"), Some(ROOT), *pool));
        std::iter::once(fair(ROOT, None, 4)).chain(inner).collect()
    }

    fn teams(&self) -> Vec<Team> {
        let teams = self.teams.iter().enumerate();
        let teams = teams.map(|(at, (cohort, nominal, _))| {
            let cohort = format!("c{}", cohort % self.pools.len());
            team(&format!("t{at}"), Some(&cohort), limit(*nominal))
        });
        teams.collect()
    }

    fn gangs(&self) -> Vec<Gang> {
        let gangs = self.gangs.iter().enumerate();
        let gangs = gangs.map(|(number, (team, gpus, priority, queued_at))| {
            let team = format!("t{}", team % self.teams.len());
            let name = format!("g{number:02}");
            let devices = u32::try_from(*gpus).expect("few");
            at(
                *queued_at,
                with_priority(*priority, gang(&name, &team, 1, devices)),
            )
        });
        gangs.collect()
    }

    fn state(&self, gangs: &[Gang]) -> State {
        let mut state = state(vec![node("n0", "s/l", 128)], self.teams());
        for cohort in self.cohorts() {
            state.apply(Update::Cohort(cohort));
        }
        let mut first = 0;
        for (at, (_, _, running)) in self.teams.iter().enumerate() {
            let last = first + usize::try_from(*running).expect("few");
            runs(
                &mut state,
                &format!("r{at}"),
                &format!("t{at}"),
                first..last,
            );
            first = last;
        }
        submit(&mut state, gangs.iter().cloned());
        state
    }

    /// What is to be expected, worked out from nothing again and again: in each round the first gang of every Team that fits, in the
    /// order of a tournament among those that fit then.
    fn expected(&self) -> Vec<String> {
        let teams = self.teams().into_iter();
        let teams: BTreeMap<TeamName, Team> = teams.map(|it| (it.name.clone(), it)).collect();
        let cohorts = self.cohorts().into_iter();
        let cohorts = cohorts.map(|it| (it.name.clone(), it)).collect();
        let of = FlavorResource {
            flavor: H100.into(),
            resource: Resource::Gpus,
        };
        let running = self.teams.iter().enumerate();
        let used: Vec<(TeamName, i128)> = running
            .map(|(at, (_, _, running))| (format!("t{at}").into(), i128::from(running * 1000)))
            .collect();
        let used = used.iter().map(|(team, amount)| (team, &of, *amount));
        let mut tree = QuotaTree::new(&teams, &cohorts, used);
        let asked = |gang: &Gang| {
            let requests = gang.pods.iter().flat_map(|pod| &pod.claims);
            let requests = requests.flat_map(|claim| &claim.requests);
            gpus(
                requests
                    .map(|request| i64::from(request.choices[0].count))
                    .sum(),
            )
        };
        let mut waiting = self.gangs();
        waiting.sort_by_key(|gang| {
            let place = (gang.queued_at, gang.uid.clone());
            (std::cmp::Reverse(gang.priority), place)
        });
        let mut admitted = Vec::new();
        let mut served: BTreeSet<TeamName> = BTreeSet::new();
        loop {
            let heads: Vec<Entrant> = waiting
                .iter()
                .filter(|gang| !served.contains(&gang.team))
                .filter(|gang| {
                    let available = tree.available(&gang.team, &of);
                    available.is_ok_and(|available| available >= asked(gang))
                })
                .map(|gang| Entrant {
                    gang: gang.uid.clone(),
                    team: gang.team.clone(),
                    priority: gang.priority,
                    queued_at: gang.queued_at,
                    charges: vec![ResourceCharge {
                        of: of.clone(),
                        amount: asked(gang),
                    }],
                })
                .collect();
            let mut seen = BTreeSet::new();
            let heads: Vec<Entrant> = heads
                .into_iter()
                .filter(|head| seen.insert(head.team.clone()))
                .collect();
            let order = fair_order(&mut tree, &ROOT.into(), &heads);
            let Some(head) = order.first().map(|at| &heads[*at]) else {
                if served.is_empty() {
                    return admitted;
                }
                served.clear();
                continue;
            };
            tree.charge(&head.team, &of, head.charges[0].amount);
            served.insert(head.team.clone());
            waiting.retain(|gang| gang.uid != head.gang);
            admitted.push(head.gang.to_string());
        }
    }
}

proptest! {
    #[test]
    fn gangs_are_admitted_in_the_order_of_a_tournament_that_is_held_anew_for_each_of_them(
        world in world()
    ) {
        let mut state = world.state(&world.gangs());
        prop_assert_eq!(admitted(&decide(&mut state)), world.expected());
    }

    #[test]
    fn gangs_are_admitted_in_the_same_order_however_they_were_told_and_however_little_a_commit_carries(
        world in world(), seed in any::<u64>(),
    ) {
        let gangs = world.gangs();
        let at_once = admitted(&decide(&mut world.state(&gangs)));
        let mut shuffled = gangs;
        let mut seed = seed;
        for last in (1..shuffled.len()).rev() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            shuffled.swap(last, usize::try_from(seed >> 33).expect("31 bits") % (last + 1));
        }
        let mut state = world.state(&shuffled);
        let slices = decide_in_slices(&mut state, NOW, 1);
        let one_by_one: Vec<String> = slices.iter().flat_map(admitted).collect();
        prop_assert_eq!(one_by_one, at_once);
    }
}

/// A thousand Teams wait for the same GPUs. What one of them gives back is decided by judging very few of them.
#[test]
fn of_a_thousand_teams_that_wait_few_are_judged_when_a_gang_ends() {
    let names: Vec<String> = (0..1000).map(|at| format!("t{at:03}")).collect();
    let teams: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut state = pool(Sharing::FAIR, 8, &teams);
    runs(&mut state, "r", "t000", 0..7);
    runs(&mut state, "s", "t001", 7..8);
    let gangs = names.iter().enumerate().map(|(number, team)| {
        let second = i64::try_from(number).expect("few");
        at(second, gang(&format!("g-{team}"), team, 1, 1))
    });
    submit(&mut state, gangs);
    assert!(decide(&mut state).admissions.is_empty());
    state.apply(Update::HoldGone(pod_uid("s")));
    let decisions = decide(&mut state);
    // The first Team waits longest, and uses seven already.
    assert_eq!(admitted(&decisions), ["g-t001"]);
    println!("{:?}", decisions.visited);
    assert!(decisions.visited.classes <= 3, "{:?}", decisions.visited);
    assert!(decisions.visited.plans <= 3, "{:?}", decisions.visited);
}

#[test]
fn an_amount_of_a_limit_that_overflows_decides_nothing_for_others() {
    let endless = QuotaLimit {
        nominal: Amount(i64::MAX),
        ..QuotaLimit::default()
    };
    let teams = vec![
        team("endless", Some(ROOT), endless),
        team("small", Some(ROOT), limit(0)),
    ];
    let mut state = state(vec![node("n0", "s/l", 8)], teams);
    state.apply(Update::Cohort(fair(ROOT, None, 8)));
    submit(
        &mut state,
        [gang("a", "small", 1, 1), gang("b", "endless", 1, 1)],
    );
    assert_eq!(admitted(&decide(&mut state)), ["b", "a"]);
}

/// The gang that waits longer borrows from the root. The other one needs no more than what its own Cohort, far down, never lends: of that
/// nothing is charged to the Cohorts above.
#[test]
fn in_a_deep_tree_cohorts_cover_what_they_keep_for_themselves() {
    const DEPTH: usize = 300;
    let name = |side: &str, depth: usize| format!("{side}-{depth}");
    let mut cohorts = vec![fair(ROOT, None, 4)];
    for side in ["keeps", "lends"] {
        for depth in 0..DEPTH {
            let above = depth.checked_sub(1).map(|above| name(side, above));
            let above = above.as_deref().unwrap_or(ROOT);
            let is_last = depth + 1 == DEPTH;
            let mut cohort = cohort(&name(side, depth), Some(above), i64::from(is_last) * 4);
            if is_last && side == "keeps" {
                let limit = cohort.quota[0].1.get_mut(&Resource::Gpus);
                limit.expect("it has a limit").lending_limit = Some(Amount::ZERO);
            }
            cohorts.push(cohort);
        }
    }
    let teams = ["keeps", "lends"].map(|side| {
        let cohort = name(side, DEPTH - 1);
        team(side, Some(&cohort), limit(0))
    });
    let mut state = state(vec![node("n0", "s/l", 16)], teams.into());
    for cohort in cohorts {
        state.apply(Update::Cohort(cohort));
    }
    runs(&mut state, "r1", "keeps", 0..3);
    runs(&mut state, "r2", "lends", 4..8);
    submit(
        &mut state,
        [
            at(0, gang("borrows", "lends", 1, 1)),
            at(1, gang("stays-within", "keeps", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["stays-within", "borrows"]);
}

/// A pool that one Team has taken whole; the other Team has nothing of its own either.
#[test]
fn where_shares_are_fair_a_gang_of_the_larger_share_gives_way_to_one_of_the_smaller() {
    for (sharing, expected) in [
        (Sharing::FAIR, vec![PreemptionReason::FairShare]),
        (Sharing::ByPriority, Vec::new()),
    ] {
        let mut state = pool(sharing, 4, &["greedy"]);
        state.apply(Update::Team(Team {
            preemption: PreemptionPolicy {
                reclaim_within_cohort: ReclaimWithinCohort::Any,
                ..PreemptionPolicy::NEVER
            },
            ..team("late", Some(ROOT), limit(0))
        }));
        for number in 0..4 {
            let held = hold(&format!("r{number}"), "greedy", "n0", &[number]);
            state.apply(Update::Running(held_since(NOW, &held)));
            state.apply(Update::Hold(held));
        }
        submit(&mut state, [gang("g", "late", 1, 1)]);
        let preemptions = decide(&mut state).preemptions;
        let victims = preemptions
            .iter()
            .flat_map(|preemption| &preemption.victims);
        let reasons: Vec<PreemptionReason> = victims.map(|victim| victim.reason).collect();
        assert_eq!(reasons, expected, "{sharing:?}");
    }
}

/// Found by chance: `g01` fits at first, and no more once `g04` has its GPUs. As long as it stood for its Cohort, `g00` of another one went
/// before `g03`, which is in the Cohort of `g01`.
#[test]
fn a_head_that_lost_its_quota_to_another_cohort_does_not_stand_for_its_own() {
    let world = World {
        pools: vec![0, 1, 1],
        teams: vec![(1, 1, 0), (0, 2, 0), (1, 0, 0), (2, 0, 2), (0, 0, 2)],
        gangs: vec![
            (3, 1, 0, 0),
            (1, 3, 0, 0),
            (5, 1, 0, 0),
            (4, 1, 0, 0),
            (2, 2, 0, 0),
        ],
    };
    let mut state = world.state(&world.gangs());
    assert_eq!(admitted(&decide(&mut state)), world.expected());
}
