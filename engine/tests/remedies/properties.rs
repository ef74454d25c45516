//! In random worlds: what is told does help, nothing less does, and everybody is told something.

use muster_engine::{
    Amount, Decisions, Gang, GangUid, NodeRepair, Order, Remedies, RemedyEvent, State, Stop, Why,
    decision::Blocker, quota::Sharing,
};

use crate::{
    common::*,
    random::Random,
    world::{Setting, World, random_world},
};

/// How often what was told.
#[derive(Debug, Default)]
struct Told {
    ends: usize,
    several_end: usize,
    raises: usize,
    repairs: usize,
    several_repairs: usize,
    devices: usize,
    by_quota: usize,
    after_others: usize,
    open: usize,
    nothing: usize,
}

/// Who is admitted, or preempts.
fn helped(decisions: &Decisions) -> Vec<String> {
    let preempting = decisions.preemptions.iter();
    let preempting = preempting.map(|preemption| preemption.gang.to_string());
    admitted(decisions).into_iter().chain(preempting).collect()
}

/// What is told, and the same with one part of it left out.
type Happening<'a> = Box<dyn Fn(&mut State) + 'a>;

fn happenings<'a>(
    world: &'a World,
    gang: &GangUid,
    event: &RemedyEvent,
) -> (Happening<'a>, Vec<Happening<'a>>) {
    match event {
        RemedyEvent::GangsEnd(holders) => {
            let gangs: Vec<GangUid> = holders.iter().map(|it| it.gang.clone()).collect();
            let less = (0..gangs.len()).map(|left_out| {
                let mut less = gangs.clone();
                less.remove(left_out);
                let less: Happening<'a> = Box::new(move |state| world.end_in(state, &less));
                less
            });
            let less = less.collect();
            (Box::new(move |state| world.end_in(state, &gangs)), less)
        }
        RemedyEvent::QuotaRaised(by) => {
            let [more] = &by[..] else {
                panic!("only GPUs have a limit here");
            };
            let (team, by) = (world.gangs[gang].team.to_string(), more.amount);
            let raise = move |team: String, by: i64| -> Happening<'a> {
                Box::new(move |state| world.raise_in(state, &team, Amount(by)))
            };
            let less = vec![raise(team.clone(), by.0 - 1)];
            (raise(team, by.0), less)
        }
        RemedyEvent::Repaired(nodes) => {
            let repair = move |nodes: Vec<NodeRepair>| -> Happening<'a> {
                Box::new(move |state| world.repair_in(state, &nodes))
            };
            let mut less = Vec::new();
            for at in 0..nodes.len() {
                if nodes[at].block.is_some() {
                    let mut nodes = nodes.clone();
                    nodes[at].block = None;
                    less.push(repair(nodes));
                }
                for device in 0..nodes[at].devices.len() {
                    let mut nodes = nodes.clone();
                    nodes[at].devices.remove(device);
                    less.push(repair(nodes));
                }
            }
            (repair(nodes.clone()), less)
        }
    }
}

fn count(told: &mut Told, event: &RemedyEvent, why: &Why) {
    match event {
        RemedyEvent::GangsEnd(holders) => {
            told.ends += 1;
            told.several_end += usize::from(holders.len() > 1);
        }
        RemedyEvent::QuotaRaised(_) => told.raises += 1,
        RemedyEvent::Repaired(nodes) => {
            told.repairs += 1;
            told.several_repairs += usize::from(nodes.len() > 1);
            told.devices += nodes.iter().map(|node| node.devices.len()).sum::<usize>();
            let is_of_quota = matches!(why, Why::Quota { .. } | Why::ExceedsMaxQuota { .. });
            told.by_quota += usize::from(is_of_quota);
        }
    }
}

/// How much a gang holds, by what it was admitted with.
fn held(world: &World, gang: &GangUid) -> Amount {
    let holds = world.holds.get(gang).into_iter().flatten();
    let claims = holds.flat_map(|hold| &hold.claims);
    Amount(claims.map(|claim| claim.gpus.0).sum())
}

/// Whether who is said to use something does.
fn check_blocker(world: &World, blocker: &Blocker, says: &str) {
    for name in &blocker.gangs {
        let (_, uid) = name.split_once('/').unwrap();
        assert!(held(world, &uid.into()) > Amount::ZERO, "{says}: {name}");
    }
}

/// Checks the numbers of a reason against what the world knows itself.
fn check_numbers(world: &World, gang: &Gang, why: &Why, says: &str) {
    let asked: i64 = gang.pods[..gang.least_pods()]
        .iter()
        .flat_map(|pod| &pod.claims)
        .flat_map(|claim| &claim.requests)
        .map(|request| i64::from(request.choices[0].count) * 1000)
        .sum();
    let usage = world.state.usage(&gang.team);
    match why {
        Why::Quota {
            asked: told,
            available,
            borrowable,
            may_borrow,
            blocker,
            ..
        } => {
            assert_eq!((told.0, *available), (asked, usage[0].available), "{says}");
            assert_eq!(*may_borrow, gang.may_borrow, "{says}");
            let borrowed = if *may_borrow { 0 } else { borrowable.0 };
            assert!(asked > available.0 - borrowed, "{says}");
            check_blocker(world, blocker, says);
        }
        Why::ExceedsMaxQuota {
            asked: told, most, ..
        } => {
            assert_eq!(told.0, asked, "{says}");
            assert!(*most >= usage[0].nominal && asked > most.0, "{says}");
        }
        Why::Placement {
            pods, fit, blocker, ..
        } => {
            assert_eq!(*pods, gang.least_pods(), "{says}");
            assert!(fit < pods, "{says}");
            check_blocker(world, blocker, says);
        }
        Why::PlacementImpossible { pods, fit, .. } => {
            assert_eq!(*pods, gang.least_pods(), "{says}");
            assert!(fit < pods, "{says}");
        }
        Why::BehindHead { head, .. } => {
            let mut before = world.state.queue(&gang.team);
            let mut before = before.by_ref().take_while(|other| other.uid != gang.uid);
            assert!(before.any(|other| other.name == *head), "{says}");
        }
        Why::TeamStopped => {
            assert_eq!(world.teams[gang.team.as_str()].stop, Stop::Hold, "{says}");
        }
        Why::Preemption { victims } => check_blocker(world, victims, says),
        Why::HeldOff { behind, .. } => {
            let (_, uid) = behind.split_once('/').unwrap();
            let first = world.state.explain(&uid.into()).map(|it| it.why);
            assert!(matches!(first, Some(Why::PlaceKept { .. })), "{says}");
        }
        Why::PlaceKept { .. } | Why::Release { .. } => {}
        Why::NextCommit
        | Why::CohortCycle { .. }
        | Why::NoQuotaForResource { .. }
        | Why::ClaimShared { .. }
        | Why::TooLarge { .. }
        | Why::Recovering { .. }
        | Why::Overflow => panic!("{says}"),
    }
}

/// Checks all that is told in a world.
fn check(world: &World, setting: Setting, told: &mut Told, seed: u64) {
    for uid in &world.waiting {
        let explained = world.state.explain(uid);
        let explained = explained.unwrap_or_else(|| panic!("seed {seed}: {uid} is told nothing"));
        let team = &world.gangs[uid].team;
        let in_line = world.state.queue(team).position(|gang| gang.uid == *uid);
        assert_eq!(Some(explained.position), in_line.map(|at| at + 1));
        let says = format!("seed {seed}: {uid}: {}", explained.why);
        check_numbers(world, &world.gangs[uid], &explained.why, &says);
        let Remedies { each, gave_up } = world.state.remedies(&explained);
        // While something is kept for somebody, what other limits would do is left open; so is what would be divided anew.
        let is_small = !setting.preempts && !setting.follows && !setting.keeps;
        assert!(!gave_up || !is_small, "seed {seed}: the world is small");
        told.nothing += usize::from(each.is_empty());
        for remedy in each {
            let says = format!("seed {seed}: {uid}: {}; {remedy}", explained.why);
            count(told, &remedy.event, &explained.why);
            let (happens, by_less) = happenings(world, uid, &remedy.event);
            let decisions = helped(&world.after(&*happens));
            match &remedy.order {
                Order::Itself => {
                    assert!(
                        decisions.contains(&uid.to_string()),
                        "{says}: {decisions:?}"
                    );
                }
                Order::After(first) => {
                    told.after_others += 1;
                    let (_, first) = first.split_once('/').unwrap();
                    assert!(
                        decisions.contains(&first.to_owned()),
                        "{says}: {decisions:?}"
                    );
                }
                Order::Open => {
                    told.open += 1;
                    assert!(!decisions.is_empty(), "{says}: nobody goes first");
                }
            }
            let alone = helped(&world.alone_after(uid, &*happens));
            assert!(alone.contains(&uid.to_string()), "{says}: {alone:?}");
            let may_be_more = gave_up && (setting.preempts || setting.keeps);
            for less in by_less {
                let suffices = admitted(&world.after(&*less)).contains(&uid.to_string());
                assert!(!suffices || may_be_more, "{says}: less suffices");
            }
        }
    }
}

fn check_worlds(setting: Setting, seeds: u64) -> Told {
    let mut told = Told::default();
    for seed in 0..seeds {
        let world = random_world(&mut Random::new(seed), setting);
        check(&world, setting, &mut told, seed);
    }
    told
}

#[test]
fn what_would_help_does_help_and_nothing_less_does() {
    let told = check_worlds(Setting::PLAIN, 600);
    assert!(told.ends > 500 && told.several_end > 50, "{told:?}");
    assert!(told.raises > 100 && told.after_others > 50, "{told:?}");
}

#[test]
fn where_gangs_preempt_or_shares_are_fair_it_helps_too_or_is_left_open() {
    for (preempts, sharing) in [
        (true, Sharing::ByPriority),
        (false, Sharing::FAIR),
        (true, Sharing::FAIR),
    ] {
        let setting = Setting {
            preempts,
            sharing,
            ..Setting::PLAIN
        };
        let told = check_worlds(setting, 200);
        let certain = told.ends + told.raises - told.open;
        // Where gangs preempt, who goes first is mostly left open.
        assert!(certain > if preempts { 0 } else { 50 }, "{told:?}");
        assert!(told.ends > 100, "{told:?}");
    }
}

#[test]
fn the_repair_that_would_help_does_help_and_none_of_it_can_be_left_out() {
    let setting = Setting {
        fails: true,
        ..Setting::PLAIN
    };
    let told = check_worlds(setting, 300);
    assert!(told.repairs > 200 && told.devices > 100, "{told:?}");
    assert!(told.several_repairs > 10, "{told:?}");
}

#[test]
fn a_repair_gives_quota_back_where_that_follows_what_is_healthy() {
    for sharing in [Sharing::ByPriority, Sharing::FAIR] {
        let setting = Setting {
            fails: true,
            follows: true,
            sharing,
            ..Setting::PLAIN
        };
        let told = check_worlds(setting, 200);
        assert!(told.repairs > 100 && told.by_quota > 20, "{told:?}");
    }
}

#[test]
fn where_all_that_comes_together_what_is_told_helps_too_or_is_left_open() {
    for (preempts, sharing) in [(false, Sharing::ByPriority), (true, Sharing::FAIR)] {
        let setting = Setting {
            fails: true,
            follows: true,
            keeps: true,
            preempts,
            sharing,
        };
        let told = check_worlds(setting, 200);
        assert!(told.repairs > 50 && told.ends > 50, "{told:?}");
    }
}
