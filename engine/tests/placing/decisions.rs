//! Who is admitted, in which order, what is charged, and what those who wait are told.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Amount, Budget, ClaimUid, Cohort, CommitRoom, Decisions, FlavorName, Gang, GangUid, Hold,
    Queueing, QuotaLimit, Resource, ResourceCharge, SelectorId, State, Stop, Team, TeamName,
    Timestamp, Update, Why,
};

/// So many nodes with 8 GPUs, all in one leaf.
fn nodes(count: usize) -> Vec<muster_engine::Node> {
    (0..count)
        .map(|at| node(&format!("n{at}"), "s/l", 8))
        .collect()
}

fn lending(nominal: i64, borrowing: Option<i64>, lending: Option<i64>) -> QuotaLimit {
    QuotaLimit {
        nominal: gpus(nominal),
        borrowing_limit: borrowing.map(gpus),
        lending_limit: lending.map(gpus),
        automatic: false,
    }
}

/// Gangs of one pod, by `name:gpus`.
fn gangs(team: &str, what: &str) -> Vec<Gang> {
    let gangs = what.split_whitespace().enumerate().map(|(at, part)| {
        let (name, count) = part.split_once(':').expect("name:gpus");
        let queued_at = i64::try_from(at).expect("few");
        self::at(
            queued_at,
            gang(name, team, 1, count.parse().expect("a number")),
        )
    });
    gangs.collect()
}

#[test]
fn within_a_team_the_higher_tier_then_the_older_then_the_smaller_uid_goes_first() {
    let mut state = state(nodes(1), vec![team("a", None, limit(2))]);
    submit(
        &mut state,
        [
            at(1, gang("young", "a", 1, 1)),
            at(0, gang("old-b", "a", 1, 1)),
            at(0, gang("old-a", "a", 1, 1)),
            with_priority(10, at(9, gang("urgent", "a", 1, 1))),
        ],
    );
    let queue: Vec<String> = state
        .queue(&team_name("a"))
        .map(|gang| gang.uid.to_string())
        .collect();
    assert_eq!(queue, ["urgent", "old-a", "old-b", "young"]);
    assert_eq!(admitted(&decide(&mut state)), ["urgent", "old-a"]);
}

#[test]
fn between_teams_who_stays_within_the_own_quota_goes_first() {
    let teams = vec![
        team("a", Some("all"), limit(0)),
        team("b", Some("all"), limit(4)),
    ];
    let mut state = state(nodes(1), teams);
    submit(
        &mut state,
        [
            with_priority(100, at(0, gang("borrows", "a", 1, 4))),
            at(5, gang("owns", "b", 1, 4)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["owns"]);
}

#[test]
fn among_borrowers_the_higher_tier_then_the_older_goes_first() {
    let teams = vec![
        team("a", Some("all"), limit(0)),
        team("b", Some("all"), limit(0)),
        team("c", Some("all"), limit(0)),
    ];
    let mut state = state(nodes(1), teams);
    state.apply(Update::Cohort(cohort("all", None, 2)));
    submit(
        &mut state,
        [
            at(1, gang("young", "a", 1, 1)),
            at(0, gang("old", "b", 1, 1)),
            with_priority(1, at(2, gang("urgent", "c", 1, 1))),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["urgent", "old"]);
}

#[test]
fn teams_take_turns() {
    let teams = vec![team("a", None, limit(8)), team("b", None, limit(8))];
    let mut state = state(nodes(1), teams);
    submit(&mut state, gangs("a", "a1:2 a2:2 a3:2"));
    submit(&mut state, gangs("b", "b1:2 b2:2 b3:2"));
    assert_eq!(admitted(&decide(&mut state)), ["a1", "b1", "a2", "b2"]);
}

#[test]
fn best_effort_passes_over_what_does_not_fit_and_strict_fifo_does_not() {
    for (queueing, expected) in [
        (Queueing::BestEffort, vec!["small"]),
        (Queueing::StrictFifo, vec![]),
    ] {
        let mut state = state(
            nodes(2),
            vec![Team {
                queueing,
                ..team("a", None, limit(12))
            }],
        );
        state.apply(Update::Hold(hold("p", "a", "n0", &[0, 1, 2, 3, 4, 5])));
        submit(&mut state, gangs("a", "large:8 small:4"));
        assert_eq!(admitted(&decide(&mut state)), expected);
        if queueing == Queueing::StrictFifo {
            assert_eq!(
                why(&state, "small"),
                Why::BehindHead {
                    head: "a/large".into(),
                    flavor: Some(H100.into()),
                }
            );
        }
    }
}

#[test]
fn what_can_never_start_holds_up_nobody() {
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..team("a", None, limit(100))
    };
    let mut state = state(nodes(1), vec![strict]);
    let larger_than_the_cluster = at(-2, gang("larger", "a", 2, 8));
    let larger_than_the_team = at(-1, gang("beyond", "a", 20, 8));
    submit(
        &mut state,
        [
            larger_than_the_cluster,
            larger_than_the_team,
            gang("small", "a", 1, 4),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["small"]);
    let Why::PlacementImpossible {
        pods: 2,
        fit: 1,
        nodes: 1,
        ..
    } = why(&state, "larger")
    else {
        panic!("{:?}", why(&state, "larger"));
    };
    let Why::ExceedsMaxQuota { asked, most, .. } = why(&state, "beyond") else {
        panic!("{:?}", why(&state, "beyond"));
    };
    assert_eq!((asked, most), (gpus(160), gpus(100)));
}

#[test]
fn two_gangs_of_eight_on_eight_gpus_one_runs_and_the_other_waits() {
    let mut state = state(nodes(2), vec![team("a", None, limit(16))]);
    // Each gang wants 4 pods of 2 GPUs; the pods of a third occupy the second node.
    state.apply(Update::Hold(hold(
        "p",
        "a",
        "n1",
        &[0, 1, 2, 3, 4, 5, 6, 7],
    )));
    submit(&mut state, [gang("x", "a", 4, 2), gang("y", "a", 4, 2)]);
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["x"]);
    assert_eq!(decisions.admissions[0].pods.len(), 4);
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), ["y"]);
}

#[test]
fn a_stopped_team_admits_nothing_and_says_so() {
    let stopped = Team {
        stop: Stop::Hold,
        ..team("a", None, limit(8))
    };
    let mut state = state(nodes(1), vec![stopped]);
    submit(&mut state, gangs("a", "g:1"));
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    assert_eq!(why(&state, "g"), Why::TeamStopped);
}

#[test]
fn a_cycle_of_cohorts_disables_its_tree_and_names_itself() {
    let mut state = state(
        nodes(1),
        vec![
            team("a", Some("x"), limit(8)),
            team("b", Some("y"), limit(8)),
            team("free", None, limit(8)),
        ],
    );
    state.apply(Update::Cohort(cohort("x", Some("y"), 0)));
    state.apply(Update::Cohort(cohort("y", Some("x"), 0)));
    submit(
        &mut state,
        [
            gang("g", "a", 1, 1),
            gang("h", "b", 1, 1),
            gang("i", "free", 1, 1),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["i"]);
    assert_eq!(why(&state, "g"), Why::CohortCycle { cohort: "x".into() });
    assert_eq!(why(&state, "h"), Why::CohortCycle { cohort: "x".into() });
    state.apply(Update::Cohort(cohort("y", None, 0)));
    assert_eq!(admitted(&decide(&mut state)), ["g", "h"]);
}

#[test]
fn borrowing_shows_as_use_above_nominal() {
    let mut state = state(
        nodes(2),
        vec![
            team("a", Some("all"), lending(4, Some(8), None)),
            team("b", Some("all"), lending(12, None, Some(6))),
        ],
    );
    submit(&mut state, gangs("a", "g:8 h:4"));
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
    let usage = &state.usage(&team_name("a"))[0];
    assert_eq!(usage.used, gpus(8));
    assert_eq!(usage.borrowed, gpus(4));
    assert_eq!(usage.available, gpus(2));
    assert_eq!(state.usage(&team_name("b"))[0].available, gpus(8));
    let Why::ExceedsMaxQuota { .. } =
        why_of(&mut state, gang("k", "a", 1, 8), gang("l", "a", 2, 8))
    else {
        panic!("4 own and 6 lent are less than 16");
    };
}

/// Why the second of two gangs waits.
fn why_of(state: &mut State, first: Gang, second: Gang) -> Why {
    let uid = second.uid.to_string();
    submit(state, [first, second]);
    decide(state);
    why(state, &uid)
}

#[test]
fn the_first_flavor_that_fits_is_taken() {
    let mut small = node("small", "", 8);
    for device in &mut small.devices {
        device.flavors = [FlavorName::from("a100")].into();
    }
    let mut both = team("a", None, limit(8));
    let quota = BTreeMap::from([(Resource::Gpus, limit(8))]);
    both.quota.push(("a100".into(), quota));
    let mut state = state(vec![node("n0", "s/l", 8), small], vec![both]);
    state.apply(Update::Flavor(flavor("a100", None)));
    submit(&mut state, gangs("a", "first:6 second:6 third:2 fourth:8"));
    let decisions = decide(&mut state);
    let flavors: Vec<(String, String)> = decisions
        .admissions
        .iter()
        .map(|admission| {
            let claim = &admission.pods[0].claims[0];
            (admission.gang.to_string(), claim.flavor.to_string())
        })
        .collect();
    let expected = [("first", "h100"), ("second", "a100"), ("third", "h100")];
    assert_eq!(
        flavors,
        expected.map(|(gang, flavor)| (gang.to_owned(), flavor.to_owned()))
    );
    let Why::Quota {
        of,
        asked,
        available,
        ..
    } = why(&state, "fourth")
    else {
        panic!()
    };
    assert_eq!(
        (of.flavor.as_str(), asked, available),
        ("h100", gpus(8), gpus(0))
    );
}

#[test]
fn memory_of_devices_cores_and_memory_are_charged_where_the_quota_names_them() {
    let mut plain = team("plain", None, limit(8));
    plain.generation = 7;
    let mut full = team("full", None, limit(8));
    full.quota[0].1.extend([
        (
            Resource::Vram,
            QuotaLimit {
                nominal: Amount(160 * GIB),
                ..QuotaLimit::default()
            },
        ),
        (
            Resource::Cpu,
            QuotaLimit {
                nominal: Amount(1500),
                ..QuotaLimit::default()
            },
        ),
    ]);
    let mut state = state(nodes(2), vec![plain, full]);
    submit(
        &mut state,
        [
            gang("p", "plain", 1, 2),
            gang("f", "full", 1, 2),
            gang("f2", "full", 1, 1),
        ],
    );
    let decisions = decide(&mut state);
    let by_name = |name: &str| {
        let mut all = decisions.admissions.iter();
        all.find(|admission| admission.gang == GangUid::from(name))
            .expect("admitted")
    };
    let (plain, full) = (by_name("p"), by_name("f"));
    assert_eq!(plain.team_generation, 7);
    assert_eq!(
        (plain.pods[0].claims[0].gpus, plain.pods[0].claims[0].vram),
        (gpus(2), Amount(0))
    );
    assert_eq!(plain.pods[0].charged, []);
    assert_eq!(full.pods[0].claims[0].vram, Amount(160 * GIB));
    assert_eq!(
        full.pods[0].charged,
        [ResourceCharge::new(
            H100.into(),
            Resource::Cpu,
            Amount(1000)
        )]
    );
    let Why::Quota { of, .. } = why(&state, "f2") else {
        panic!()
    };
    assert_eq!(of.resource, Resource::Vram);
}

#[test]
fn a_device_that_no_quota_names_waits_for_good() {
    let mut cpu_only = team("a", None, limit(8));
    cpu_only.quota[0].1 = BTreeMap::from([(Resource::Cpu, limit(8))]);
    let bare = Team {
        quota: Vec::new(),
        ..team("b", None, limit(0))
    };
    let mut state = state(nodes(1), vec![cpu_only, bare]);
    submit(
        &mut state,
        [
            gang("g", "a", 1, 1),
            gang("h", "b", 1, 1),
            gang("cpu", "b", 2, 0),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["cpu"]);
    for (gang, flavors) in [("g", vec![FlavorName::from(H100)]), ("h", vec![])] {
        let expected = Why::NoQuotaForResource {
            resource: Resource::Gpus,
            flavors,
        };
        assert_eq!(why(&state, gang), expected);
    }
}

#[test]
fn a_claim_is_charged_once_however_many_holds_name_it() {
    let mut state = state(nodes(1), vec![team("a", None, limit(8))]);
    let mut first = hold("p", "a", "n0", &[0, 1]);
    let mut second = hold("q", "a", "n0", &[0, 1]);
    for hold in [&mut first, &mut second] {
        hold.gang = "g".into();
        hold.claims[0].uid = "shared".into();
    }
    for hold in [&first, &second, &first] {
        state.apply(Update::Hold(hold.clone()));
    }
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(2));
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(2));
    state.apply(Update::HoldGone(pod_uid("q")));
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(0));
}

/// A node is back with what it held of a claim that pods on another node have by now: neither use hides the other.
#[test]
fn a_claim_is_charged_on_each_node_on_which_it_is_held() {
    for (earlier, later) in [("p", "q"), ("q", "p")] {
        let teams = ["a", "b"].map(|name| team(name, None, limit(4)));
        let mut state = state(nodes(3), teams.to_vec());
        let mut back = hold(earlier, "a", "n0", &[0, 1]);
        let mut elsewhere = hold(later, "b", "n1", &[0, 1, 2]);
        for hold in [&mut back, &mut elsewhere] {
            hold.claims[0].uid = "shared".into();
        }
        state.apply(Update::Hold(elsewhere));
        for is_back in [false, true] {
            back.charged_to_node = !is_back;
            back.releasing = true;
            state.apply(Update::Hold(back.clone()));
            let used = |name: &str| state.usage(&team_name(name))[0].used;
            let of_a = if is_back { 2 } else { 0 };
            assert_eq!((used("a"), used("b")), (gpus(of_a), gpus(3)), "{earlier}");
        }
        submit(&mut state, gangs("b", "next:2"));
        assert!(admitted(&decide(&mut state)).is_empty(), "{earlier}");
        assert!(matches!(why(&state, "next"), Why::Quota { .. }));
        state.apply(Update::HoldGone(pod_uid(earlier)));
        let used = |name: &str| state.usage(&team_name(name))[0].used;
        assert_eq!((used("a"), used("b")), (gpus(0), gpus(3)), "{earlier}");
        assert!(admitted(&decide(&mut state)).is_empty(), "{earlier}");
    }
}

#[test]
fn what_a_lost_node_bears_is_not_charged_to_the_team() {
    let mut state = state(nodes(1), vec![team("a", None, limit(8))]);
    let mut lost = hold("p", "a", "n0", &[0, 1]);
    state.apply(Update::Hold(lost.clone()));
    lost.charged_to_node = true;
    lost.releasing = true;
    state.apply(Update::Hold(lost));
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(0));
    // Its devices are taken all the same, and nobody is told to wait for its release.
    submit(&mut state, gangs("a", "g:8"));
    decide(&mut state);
    assert!(matches!(why(&state, "g"), Why::Placement { .. }));
}

#[test]
fn a_claim_that_another_gang_holds_is_named() {
    let mut state = state(nodes(2), vec![team("a", None, limit(16))]);
    let mut sharing = gang("g", "a", 1, 1);
    sharing.pods[0].claims[0].uid = "claim-of-p".into();
    state.apply(Update::Hold(hold("p", "a", "n0", &[0])));
    submit(&mut state, [sharing]);
    decide(&mut state);
    let expected = Why::ClaimShared {
        claim: ClaimUid::from("claim-of-p"),
        holder: "a/p".into(),
    };
    assert_eq!(why(&state, "g"), expected);
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
}

#[test]
fn who_would_fit_once_the_last_proof_is_there_waits_for_release() {
    let mut state = state(nodes(1), vec![team("a", None, limit(8))]);
    let mut ending = hold("p", "a", "n0", &[0, 1, 2, 3, 4, 5]);
    state.apply(Update::Hold(ending.clone()));
    submit(&mut state, gangs("a", "g:8"));
    decide(&mut state);
    assert!(matches!(why(&state, "g"), Why::Quota { .. }));
    ending.releasing = true;
    state.apply(Update::Hold(ending));
    decide(&mut state);
    let Why::Release {
        pods: 1,
        blocker,
        behind: None,
    } = why(&state, "g")
    else {
        panic!("{:?}", why(&state, "g"));
    };
    assert_eq!(blocker.gangs, ["a/p"]);
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
}

/// It comes after the release has begun, and another one that goes before it comes with the proof.
#[test]
fn who_is_promised_a_release_that_another_gang_gets_is_told_what_it_lacks_then() {
    let mut state = state(nodes(1), vec![team("a", None, limit(16))]);
    let mut ending = hold("p", "a", "n0", &[0, 1, 2, 3, 4, 5, 6, 7]);
    ending.releasing = true;
    state.apply(Update::Hold(ending));
    decide(&mut state);
    submit(&mut state, [gang("second", "a", 1, 8)]);
    decide(&mut state);
    assert!(matches!(why(&state, "second"), Why::Release { .. }));
    submit(&mut state, [gang("first", "a", 1, 8)]);
    state.apply(Update::HoldGone(pod_uid("p")));
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["first"]);
    assert!(!matches!(why(&state, "second"), Why::Release { .. }));
    let told = &decisions.reasons_changed.gangs;
    assert_eq!(told, &[GangUid::from("second")]);
}

/// As a driver taints what it holds without a permit: not the taint is what the gang waits for.
#[test]
fn devices_that_are_unusable_because_they_are_held_are_waited_for_as_a_release() {
    let mut tainted = nodes(1);
    for device in &mut tainted[0].devices {
        device.usable = false;
    }
    for (held, expects_release) in [(0..8, true), (0..7, false)] {
        let mut state = state(tainted.clone(), vec![team("a", None, limit(8))]);
        let held: Vec<usize> = held.collect();
        let mut ending = hold("p", "a", "n0", &held);
        ending.releasing = true;
        state.apply(Update::Hold(ending));
        submit(&mut state, gangs("a", "g:8"));
        decide(&mut state);
        let told = why(&state, "g");
        let is_release = matches!(told, Why::Release { pods: 1, .. });
        assert_eq!(is_release, expects_release, "{held:?}: {told:?}");
    }
}

#[test]
fn an_admission_is_held_until_it_is_told_or_undone() {
    let mut state = state(nodes(1), vec![team("a", None, limit(8))]);
    let first = gang("first", "a", 1, 8);
    submit(
        &mut state,
        [at(0, first.clone()), at(1, gang("second", "a", 1, 8))],
    );
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["first"]);
    let holds = holds_of(&first, &decisions.admissions[0]);

    // Told again as waiting, or a hold told gone that never was: it stays held.
    submit(&mut state, [first.clone()]);
    state.apply(Update::HoldGone(pod_uid("first-0")));
    assert_eq!(decide(&mut state), Decisions::default());
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(8));

    // Not committed: it waits again, and is admitted again.
    state.undo(&GangUid::from("first"));
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(0));
    assert_eq!(admitted(&decide(&mut state)), ["first"]);

    // Committed: from now on the holds alone count.
    for hold in &holds {
        state.apply(Update::Hold(hold.clone()));
    }
    state.apply(Update::NotWaiting("first".into()));
    state.undo(&GangUid::from("first"));
    assert_eq!(state.usage(&team_name("a"))[0].used, gpus(8));
    state.apply(Update::HoldGone(pod_uid("first-0")));
    assert_eq!(admitted(&decide(&mut state)), ["second"]);
}

fn changed(decisions: &Decisions) -> (Vec<&str>, Vec<&str>) {
    let changed = &decisions.reasons_changed;
    (
        changed.gangs.iter().map(GangUid::as_str).collect(),
        changed.teams.iter().map(TeamName::as_str).collect(),
    )
}

#[test]
fn only_those_who_may_wait_for_another_reason_are_named() {
    let mut state = state(nodes(1), vec![team("a", None, limit(8))]);
    state.apply(Update::Hold(hold("p", "a", "n0", &[0, 1, 2, 3, 4])));
    decide(&mut state);
    submit(&mut state, gangs("a", "x:4 y:4"));
    assert_eq!(changed(&decide(&mut state)), (vec!["x", "y"], vec![]));
    assert_eq!(decide(&mut state), Decisions::default());
    submit(&mut state, gangs("a", "x:4"));
    assert_eq!(decide(&mut state), Decisions::default());

    // One more of the same: it waits for what they wait for, and nobody is judged.
    submit(&mut state, [with_priority(1, gang("z", "a", 1, 4))]);
    let decisions = decide(&mut state);
    assert_eq!(changed(&decisions), (vec!["z"], vec![]));
    assert_eq!(decisions.visited.classes, 0);
    assert_eq!(
        ["z", "x", "y"].map(|gang| state.explain(&gang.into()).expect("waits").position),
        [1, 2, 3]
    );

    // The numbers change, the reason does not.
    state.apply(Update::Hold(hold("q", "a", "n0", &[5])));
    assert_eq!(changed(&decide(&mut state)), (vec![], vec![]));
    let Why::Quota { available, .. } = why(&state, "x") else {
        panic!("{:?}", why(&state, "x"))
    };
    assert_eq!(available, gpus(2));
    state.apply(Update::Team(Team {
        stop: Stop::Hold,
        ..team("a", None, limit(8))
    }));
    assert_eq!(changed(&decide(&mut state)), (vec![], vec!["a"]));
    assert_eq!(why(&state, "x"), Why::TeamStopped);
}

fn gpus_and_cores(gpu_count: i64, cores: i64) -> muster_engine::model::Quota {
    let amount = |nominal| QuotaLimit {
        nominal,
        ..QuotaLimit::default()
    };
    let limits = [
        (Resource::Gpus, amount(gpus(gpu_count))),
        (Resource::Cpu, amount(Amount(cores * 1000))),
    ];
    vec![(H100.into(), BTreeMap::from(limits))]
}

fn lacking(state: &State, gang: &str) -> Resource {
    match why(state, gang) {
        Why::Quota { of, .. } | Why::ExceedsMaxQuota { of, .. } => of.resource,
        other => panic!("{other:?}"),
    }
}

/// The limits of a Cohort are nobody's own: no Team is told anew with them.
#[test]
fn who_lacks_another_resource_than_before_is_named() {
    let pool = |gpu_count, cores| {
        Update::Cohort(Cohort {
            quota: gpus_and_cores(gpu_count, cores),
            ..cohort("all", None, 0)
        })
    };
    let borrowing = |name| Team {
        quota: gpus_and_cores(0, 0),
        ..team(name, Some("all"), limit(0))
    };
    for (before, after, is_for_ever) in [((8, 8), (16, 1), false), ((10, 8), (32, 0), true)] {
        let mut state = state(nodes(4), vec![borrowing("a"), borrowing("b")]);
        state.apply(pool(before.0, before.1));
        submit(&mut state, [gang("holds", "b", 1, 8)]);
        assert_eq!(admitted(&decide(&mut state)), ["holds"]);
        let pods = if is_for_ever { 3 } else { 1 };
        submit(&mut state, [gang("waits", "a", pods, 4)]);
        decide(&mut state);
        assert_eq!(lacking(&state, "waits"), Resource::Gpus);
        state.apply(pool(after.0, after.1));
        let decisions = decide(&mut state);
        assert_eq!(lacking(&state, "waits"), Resource::Cpu);
        let told = why(&state, "waits");
        assert_eq!(
            matches!(told, Why::ExceedsMaxQuota { .. }),
            is_for_ever,
            "{told:?}"
        );
        assert_eq!(changed(&decisions), (vec!["waits"], vec![]));
    }
}

#[test]
fn who_lacks_another_resource_of_its_teams_own_than_before_is_named() {
    let owner = Team {
        quota: gpus_and_cores(8, 8),
        ..team("a", None, limit(0))
    };
    let mut state = state(nodes(2), vec![owner]);
    let all = [0, 1, 2, 3, 4, 5, 6, 7];
    state.apply(Update::Hold(hold("has-gpus", "a", "n0", &all)));
    submit(&mut state, [within_nominal(gang("waits", "a", 1, 4))]);
    decide(&mut state);
    assert_eq!(lacking(&state, "waits"), Resource::Gpus);
    state.apply(Update::HoldGone(pod_uid("has-gpus")));
    let cores = ResourceCharge::new(H100.into(), Resource::Cpu, Amount(8_000));
    state.apply(Update::Hold(Hold {
        claims: Vec::new(),
        charged: vec![cores],
        ..hold("has-cores", "a", "n1", &[])
    }));
    let decisions = decide(&mut state);
    assert_eq!(lacking(&state, "waits"), Resource::Cpu);
    assert_eq!(changed(&decisions), (vec!["waits"], vec![]));
}

#[test]
fn a_number_that_is_too_large_is_an_explanation_and_not_a_wrap() {
    let mut all = team("a", None, limit(8));
    all.quota[0].1.insert(
        Resource::Memory,
        QuotaLimit {
            nominal: Amount(8 * GIB),
            ..QuotaLimit::default()
        },
    );
    let mut state = state(nodes(1), vec![all]);
    let mut huge = gang("g", "a", 2, 1);
    for pod in &mut huge.pods {
        pod.resources.memory_bytes = i64::MAX;
    }
    submit(&mut state, [huge, gang("h", "a", 1, 0)]);
    assert_eq!(admitted(&decide(&mut state)), ["h"]);
    assert_eq!(why(&state, "g"), Why::Overflow);
}

#[test]
fn explanations_are_sentences_with_numbers() {
    let mut state = state(
        nodes(4),
        vec![
            team("research", Some("all"), lending(4, None, None)),
            team("product", Some("all"), lending(20, None, None)),
            team("lonely", None, limit(100)),
        ],
    );
    for (pod, node) in [("job-a", "n0"), ("job-b", "n1")] {
        state.apply(Update::Hold(hold(
            pod,
            "product",
            node,
            &[0, 1, 2, 3, 4, 5],
        )));
    }
    state.apply(Update::Hold(hold("job-c", "research", "n2", &[0, 1, 2, 3])));
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..team("strict", None, limit(24))
    };
    state.apply(Update::Team(strict));
    submit(
        &mut state,
        [
            gang("quota", "research", 2, 8),
            gang("max", "research", 5, 8),
            gang("place", "strict", 2, 8),
            at(1, gang("behind", "strict", 1, 1)),
            requiring("leaf", gang("never", "lonely", 5, 8)),
        ],
    );
    decide(&mut state);
    let table = [
        (
            "quota",
            "asks for 16 GPUs of h100, 8 can be had now (8 of them borrowed); used by product/job-a, \
             product/job-b, research/job-c",
        ),
        (
            "max",
            "asks for 40 GPUs of h100, but the Team can never have more than 24, borrowing included; ask \
             for less, or have the Team's quota raised",
        ),
        (
            "place",
            "quota is there, but there is a place for only 1 of 2 pods; of 4 nodes left out: devices in \
             use or tainted: 3; used by product/job-a, product/job-b, research/job-c",
        ),
        (
            "behind",
            "waits for h100 behind strict/place, which does not fit yet; the Team is StrictFifo",
        ),
        (
            "never",
            "even on the empty cluster there is a place for only 4 of 5 pods in one domain of level leaf; \
             of 4 nodes none is left out, but they do not hold all pods together",
        ),
    ];
    for (gang, expected) in table {
        assert_eq!(why(&state, gang).to_string(), expected, "{gang}");
    }
}

fn a100_node(name: &str, devices: usize) -> muster_engine::Node {
    let mut node = node(name, "s/l", devices);
    for device in &mut node.devices {
        device.flavors = [FlavorName::from("a100")].into();
    }
    node
}

/// A Team with quota for GPUs of both Flavors.
fn two_flavors(name: &str, cohort: Option<&str>, h100: QuotaLimit, a100: QuotaLimit) -> Team {
    let mut both = team(name, cohort, h100);
    let quota = BTreeMap::from([(Resource::Gpus, a100)]);
    both.quota.push(("a100".into(), quota));
    both
}

#[test]
fn a_gang_is_woken_by_every_flavor_not_only_by_the_one_that_is_told() {
    let mut closed = a100_node("n1", 8);
    std::sync::Arc::make_mut(&mut closed.filters).clear();
    let teams = vec![two_flavors("a", None, limit(4), limit(8))];
    let mut state = state(vec![node("n0", "s/l", 8), closed.clone()], teams);
    state.apply(Update::Flavor(flavor("a100", None)));
    submit(&mut state, gangs("a", "g:8"));
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    let told = why(&state, "g");
    assert!(matches!(told, Why::ExceedsMaxQuota { .. }), "{told:?}");
    std::sync::Arc::make_mut(&mut closed.filters).insert(ANY_NODE);
    state.apply(Update::Node(closed));
    assert_eq!(admitted(&decide(&mut state)), ["g"]);
}

#[test]
fn a_cordon_or_a_drain_is_waited_for_and_a_strict_line_is_not_overtaken() {
    for block in [
        muster_engine::NodeBlock::Cordoned,
        muster_engine::NodeBlock::Drained,
        muster_engine::NodeBlock::NotReady,
    ] {
        let strict = Team {
            queueing: Queueing::StrictFifo,
            ..team("a", None, limit(16))
        };
        let mut state = state(nodes(2), vec![strict]);
        let mut cordoned = node("n1", "s/l", 8);
        cordoned.block = Some(block);
        state.apply(Update::Node(cordoned));
        submit(
            &mut state,
            [
                at(0, gang("large", "a", 2, 8)),
                at(1, gang("small", "a", 1, 8)),
            ],
        );
        assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
        let told = why(&state, "large");
        assert!(matches!(told, Why::Placement { fit: 1, .. }), "{told:?}");
        let expected = Why::BehindHead {
            head: "a/large".into(),
            flavor: Some(H100.into()),
        };
        assert_eq!(why(&state, "small"), expected);
        state.apply(Update::Node(node("n1", "s/l", 8)));
        assert_eq!(admitted(&decide(&mut state)), ["large"]);
    }
}

/// It lacked a place alone. What another Team lends no more is what puts it beyond its limits.
#[test]
fn a_head_that_comes_to_be_beyond_its_limits_holds_up_nobody_any_more() {
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..team("a", Some("all"), limit(4))
    };
    let mut state = state(nodes(1), vec![strict, team("b", Some("all"), limit(4))]);
    state.apply(Update::Cohort(cohort("all", None, 0)));
    // Held, and charged to nobody.
    let mut other = hold("p", "elsewhere", "n0", &[0]);
    other.claims[0].gpus = Amount::ZERO;
    state.apply(Update::Hold(other));
    submit(
        &mut state,
        [
            at(-2, gang("large", "a", 1, 8)),
            at(-1, gang("small", "a", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    state.apply(Update::Team(team("b", Some("all"), limit(3))));
    assert_eq!(admitted(&decide(&mut state)), ["small"]);
    assert!(matches!(why(&state, "large"), Why::ExceedsMaxQuota { .. }));
}

#[test]
fn in_a_strict_line_what_becomes_possible_holds_up_those_behind_it() {
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..team("a", None, limit(100))
    };
    let mut state = state(nodes(1), vec![strict]);
    state.apply(Update::Hold(hold("p", "a", "n0", &[0])));
    submit(
        &mut state,
        [
            at(0, gang("large", "a", 2, 8)),
            at(1, gang("first", "a", 1, 8)),
            at(2, gang("second", "a", 1, 1)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    assert!(matches!(
        why(&state, "large"),
        Why::PlacementImpossible { .. }
    ));
    // A second node that is still blocked: now the large one may fit one day.
    let mut second = node("n1", "s/l", 8);
    second.block = Some(muster_engine::NodeBlock::NotReady);
    state.apply(Update::Node(second.clone()));
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    assert!(matches!(why(&state, "large"), Why::Placement { .. }));
    // And never again.
    state.apply(Update::NodeGone(node_name("n1")));
    assert_eq!(admitted(&decide(&mut state)), ["first"]);
}

#[test]
fn the_devices_that_the_quota_admits_are_taken_where_the_best_place_has_larger_ones() {
    let kinds = |name: &str, gib: i64| {
        let mut node = node(name, "s/l", 1);
        node.devices[0].vram = Amount(gib * GIB);
        node
    };
    for (names, expected) in [(["n0", "n1"], "n1"), (["n1", "n0"], "n0")] {
        let mut limited = team("a", None, limit(1));
        limited.quota[0].1.insert(
            Resource::Vram,
            QuotaLimit {
                nominal: Amount(40 * GIB),
                ..QuotaLimit::default()
            },
        );
        let nodes = vec![kinds(names[0], 80), kinds(names[1], 40)];
        let mut state = state(nodes, vec![limited]);
        let placed = nodes_of(&mut state, gang("g", "a", 1, 1));
        assert_eq!(placed, Some(vec![expected.to_owned()]));
        let used = state.usage(&team_name("a"));
        assert!(used.iter().any(|usage| usage.used == Amount(40 * GIB)));
    }
}

/// The smallest devices are the only ones that the quota admits. So many kinds below the largest are tried. Where the gang goes is
/// decided by its first pod, to which all nodes are alike.
#[test]
fn eight_lesser_kinds_of_devices_are_tried_and_a_ninth_is_not() {
    let special = SelectorId(7);
    for (lesser, is_admitted) in [(8, true), (9, false)] {
        let kinds = (0..=lesser).map(|kind| {
            let mut node = node(&format!("n{kind}"), "s/l", 3);
            node.devices[0].vram = Amount((100 - kind) * GIB);
            for card in &mut node.devices[1..] {
                card.flavors.clear();
                card.gpus = Amount::ZERO;
                card.vram = Amount::ZERO;
                card.selectors = std::collections::BTreeSet::from([special]).into();
            }
            node
        });
        let mut limited = team("a", None, limit(1));
        let smallest = QuotaLimit {
            nominal: Amount((100 - lesser) * GIB),
            ..QuotaLimit::default()
        };
        limited.quota[0].1.insert(Resource::Vram, smallest);
        let mut state = state(kinds.collect(), vec![limited]);
        let mut cards = claim("g-cards", 2);
        cards.requests[0].choices[0].selector = special;
        let pods = vec![pod("g-0", vec![cards]), pod("g-1", vec![claim("g-gpu", 1)])];
        let placed = nodes_of(&mut state, gang_of("g", "a", pods));
        let expected = is_admitted.then(|| vec![format!("n{lesser}"), format!("n{lesser}")]);
        assert_eq!(placed, expected, "{lesser} lesser kinds");
        if !is_admitted {
            let told = why(&state, "g");
            assert!(
                matches!(told, Why::Placement { gave_up: true, .. }),
                "{told:?}"
            );
        }
    }
}

/// One gang has the GPUs, another the memory; the GPUs that are left suffice.
#[test]
fn it_is_told_who_has_what_lacks_and_not_who_has_something_else() {
    let mut state = state(nodes(1), vec![team("a", None, limit(8))]);
    state.apply(Update::Hold(hold("computes", "a", "n0", &[0, 1, 2, 3])));
    let mut remembers = hold("remembers", "a", "n0", &[4]);
    remembers.resources.memory_bytes = 500 * GIB;
    state.apply(Update::Hold(remembers));
    let mut large = gang("g", "a", 1, 1);
    large.pods[0].resources.memory_bytes = 100 * GIB;
    submit(&mut state, [large]);
    decide(&mut state);
    let Why::Placement { blocker, .. } = why(&state, "g") else {
        panic!("memory lacks: {:?}", why(&state, "g"));
    };
    assert_eq!(
        blocker.gangs.first().map(String::as_str),
        Some("a/remembers")
    );
}

#[test]
fn one_release_is_promised_to_one_gang() {
    let teams = vec![team("a", None, limit(8)), team("b", None, limit(8))];
    let mut state = state(nodes(1), teams);
    let mut ending = hold("p", "a", "n0", &[0, 1, 2, 3, 4, 5, 6, 7]);
    state.apply(Update::Hold(ending.clone()));
    submit(
        &mut state,
        [
            at(1, gang("young", "a", 1, 8)),
            at(0, gang("old", "b", 1, 8)),
        ],
    );
    decide(&mut state);
    ending.releasing = true;
    state.apply(Update::Hold(ending));
    let decisions = decide(&mut state);
    assert_eq!(changed(&decisions).0, ["old", "young"]);
    let blocker = muster_engine::Blocker {
        gangs: vec!["a/p".into()],
        ..muster_engine::Blocker::default()
    };
    for (gang, behind) in [("old", None), ("young", Some("b/old".to_owned()))] {
        let expected = Why::Release {
            pods: 1,
            blocker: blocker.clone(),
            behind,
        };
        assert_eq!(why(&state, gang), expected, "{gang}");
    }
    state.apply(Update::HoldGone(pod_uid("p")));
    assert_eq!(admitted(&decide(&mut state)), ["old"]);
}

/// To find out who it is for takes as long as a decision, and mostly nothing came of it for them.
#[test]
fn whom_a_release_may_help_is_named_once_in_five_seconds_and_who_was_promised_it_at_once() {
    let mut state = state(nodes(1), vec![team("a", None, limit(100))]);
    let first = hold("p", "a", "n0", &[0, 1, 2, 3]);
    let second = hold("q", "a", "n0", &[4, 5, 6, 7]);
    let begins = |hold: &Hold, releasing| {
        Update::Hold(Hold {
            releasing,
            ..hold.clone()
        })
    };
    state.apply(begins(&first, false));
    state.apply(begins(&second, false));
    submit(&mut state, gangs("a", "w:8"));
    decide(&mut state);
    for (seconds, event, is_named, is_promised) in [
        (0, Some(begins(&first, true)), true, false),
        (1, Some(Update::HoldGone(pod_uid("p"))), false, false),
        (4, None, false, false),
        (5, None, true, false),
        (6, Some(begins(&second, true)), false, true),
        (10, None, true, true),
        (11, Some(begins(&second, false)), true, false),
    ] {
        if let Some(event) = event {
            state.apply(event);
        }
        let decisions = state.decide(Timestamp(seconds), &Budget::UNLIMITED);
        let named = if is_named { vec!["w"] } else { vec![] };
        assert_eq!(changed(&decisions).0, named, "after {seconds} seconds");
        if (1..5).contains(&seconds) {
            assert_eq!(decisions.look_again_at, Some(Timestamp(5)));
        }
        // Who is not named is not asked about.
        if is_named {
            let told = why(&state, "w");
            let is_release = matches!(told, Why::Release { .. });
            assert_eq!(is_release, is_promised, "after {seconds} seconds: {told:?}");
        }
    }
}

#[test]
fn who_was_promised_a_release_is_named_when_it_is_for_somebody_else_than_it_was() {
    let teams = vec![team("a", None, limit(8)), team("b", None, limit(8))];
    let mut state = state(nodes(1), teams);
    decide(&mut state);
    let mut ending = hold("p", "a", "n0", &[0, 1, 2, 3, 4, 5, 6, 7]);
    ending.releasing = true;
    state.apply(Update::Hold(ending));
    let young = at(1, gang("young", "a", 1, 8));
    let old = at(0, gang("old", "b", 1, 8));
    for (seconds, event, named, is_behind) in [
        (0, Some(Update::Waiting(young)), vec!["young"], Some(false)),
        (1, Some(Update::Waiting(old)), vec!["old"], None),
        (5, None, vec!["old", "young"], Some(true)),
        (6, Some(Update::NotWaiting("old".into())), vec![], None),
        (10, None, vec!["young"], Some(false)),
    ] {
        if let Some(event) = event {
            state.apply(event);
        }
        let decisions = state.decide(Timestamp(seconds), &Budget::UNLIMITED);
        assert_eq!(changed(&decisions).0, named, "after {seconds} seconds");
        // Who is not named is not asked about.
        if let Some(is_behind) = is_behind {
            let Why::Release { behind, .. } = why(&state, "young") else {
                panic!("after {seconds} seconds: {:?}", why(&state, "young"));
            };
            let expected = is_behind.then(|| "b/old".to_owned());
            assert_eq!(behind, expected, "after {seconds} seconds");
        } else {
            let due = Timestamp(seconds - seconds % 5 + 5);
            assert_eq!(decisions.look_again_at, Some(due));
        }
    }
}

#[test]
fn who_was_promised_a_release_is_named_when_limits_leave_it_too_little() {
    let teams = ["a", "b"].map(|name| team(name, Some("all"), limit(0)));
    let mut state = state(nodes(2), teams.into());
    state.apply(Update::Cohort(cohort("all", None, 12)));
    decide(&mut state);
    let mut ending = hold("p", "b", "n0", &[0, 1, 2, 3, 4, 5, 6, 7]);
    ending.releasing = true;
    state.apply(Update::Hold(ending));
    state.apply(Update::Hold(hold("q", "b", "n1", &[0, 1, 2, 3])));
    submit(&mut state, gangs("a", "w:8"));
    decide(&mut state);
    assert!(matches!(why(&state, "w"), Why::Release { .. }));
    // It lacks the same as before, and would now once all is released.
    state.apply(Update::Cohort(cohort("all", None, 11)));
    let decisions = state.decide(Timestamp(5), &Budget::UNLIMITED);
    assert_eq!(changed(&decisions), (vec!["w"], vec![]));
    assert!(matches!(why(&state, "w"), Why::Quota { .. }));
}

/// Something is being released at any time in a large cluster, and gangs come all the while.
#[test]
fn who_came_while_something_was_released_is_not_named_with_each_release() {
    let mut state = state(nodes(2), vec![team("a", None, limit(100))]);
    for (pod, node) in [("p", "n0"), ("q", "n1")] {
        let mut ending = hold(pod, "a", node, &[0, 1, 2, 3, 4, 5, 6, 7]);
        ending.releasing = true;
        state.apply(Update::Hold(ending));
    }
    decide(&mut state);
    for at in 0..40 {
        submit(&mut state, [gang(&format!("w{at:02}"), "a", 2, 8)]);
        decide(&mut state);
    }
    state.apply(Update::HoldGone(pod_uid("q")));
    let decisions = state.decide(Timestamp(5), &Budget::UNLIMITED);
    assert_eq!(changed(&decisions), (vec!["w00"], vec![]));
}

#[test]
fn whom_a_release_may_help_is_named_though_the_clock_went_back() {
    let mut state = state(nodes(1), vec![team("a", None, limit(100))]);
    let mut first = hold("p", "a", "n0", &[0, 1, 2, 3]);
    first.releasing = true;
    state.apply(Update::Hold(first));
    state.apply(Update::Hold(hold("q", "a", "n0", &[4, 5, 6, 7])));
    submit(&mut state, gangs("a", "w:8"));
    state.decide(Timestamp(1_000), &Budget::UNLIMITED);
    state.apply(Update::HoldGone(pod_uid("p")));
    let decisions = state.decide(Timestamp(10), &Budget::UNLIMITED);
    assert_eq!(changed(&decisions).0, ["w"]);
}

/// With more of them it takes too long to say who is to have what; then it is told what lacks now.
#[test]
fn of_1024_releases_on_the_way_it_is_worked_out_who_is_to_have_them() {
    for (releases, is_promised) in [(1_024, true), (1_025, false)] {
        let mut state = state(nodes(129), vec![team("a", None, limit(2_000))]);
        for at in 0..releases {
            let (node, device) = (format!("n{}", at / 8), at % 8);
            let mut ending = hold(&format!("p{at}"), "a", &node, &[device]);
            ending.releasing = true;
            state.apply(Update::Hold(ending));
        }
        submit(&mut state, [gang("g", "a", 129, 8)]);
        decide(&mut state);
        let told = why(&state, "g");
        assert_eq!(matches!(told, Why::Release { .. }), is_promised, "{told:?}");
    }
}

#[test]
fn a_claim_that_is_allocated_already_is_charged_to_the_flavor_of_its_devices() {
    let teams = vec![two_flavors("a", None, limit(8), limit(1))];
    let mut state = state(vec![node("n0", "s/l", 8), a100_node("n1", 8)], teams);
    state.apply(Update::Flavor(flavor("a100", None)));
    let allocated = |name: &str, index: usize| {
        let mut gang = gang(name, "a", 1, 1);
        let devices = vec![device(index).name];
        gang.pods[0].claims[0].allocated = Some((node_name("n1"), devices));
        gang
    };
    submit(&mut state, [allocated("first", 0)]);
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["first"]);
    let claim = &decisions.admissions[0].pods[0].claims[0];
    assert_eq!(claim.flavor.as_str(), "a100");
    let used: Vec<Amount> = state
        .usage(&team_name("a"))
        .iter()
        .map(|usage| usage.used)
        .collect();
    assert_eq!(used, [gpus(0), gpus(1)]);
    // The quota of that Flavor counts, not the h100's.
    submit(&mut state, [allocated("second", 1)]);
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    let Why::Quota { of, .. } = why(&state, "second") else {
        panic!("{:?}", why(&state, "second"));
    };
    assert_eq!(of.flavor.as_str(), "a100");
    // A Team without quota for it has none.
    let mut elsewhere = allocated("third", 2);
    elsewhere.team = "b".into();
    state.apply(Update::Team(team("b", None, limit(8))));
    submit(&mut state, [elsewhere]);
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    assert!(matches!(
        why(&state, "third"),
        Why::NoQuotaForResource { .. }
    ));
}

#[test]
fn cores_are_charged_wherever_the_team_has_quota_for_them() {
    let mut both = two_flavors("a", None, limit(8), limit(8));
    let cores = QuotaLimit {
        nominal: Amount(10_000),
        ..QuotaLimit::default()
    };
    both.quota[0].1.insert(Resource::Cpu, cores);
    let mut state = state(vec![a100_node("n0", 8)], vec![both]);
    state.apply(Update::Flavor(flavor("a100", None)));
    let with_cores = |name: &str, cores: i64| {
        let mut gang = gang(name, "a", 1, 1);
        gang.pods[0].resources.cpu_milli = cores * 1000;
        gang
    };
    submit(&mut state, [with_cores("few", 8), with_cores("many", 20)]);
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["few"]);
    let expected = ResourceCharge::new(H100.into(), Resource::Cpu, Amount(8000));
    assert_eq!(decisions.admissions[0].pods[0].charged, [expected]);
    let Why::ExceedsMaxQuota {
        of, asked, most, ..
    } = why(&state, "many")
    else {
        panic!("{:?}", why(&state, "many"));
    };
    assert_eq!(
        (of.resource, asked, most),
        (Resource::Cpu, Amount(20_000), Amount(10_000))
    );
}

#[test]
fn extended_resources_are_charged_where_the_quota_names_them() {
    let efa = Resource::Extended("vpc.amazonaws.com/efa".into());
    let mut limited = team("a", None, limit(8));
    limited.quota[0].1.insert(
        efa.clone(),
        QuotaLimit {
            nominal: Amount(3),
            ..QuotaLimit::default()
        },
    );
    let mut cards = node("n0", "s/l", 8);
    let name = muster_engine::ResourceName::from("vpc.amazonaws.com/efa");
    cards.allocatable.others.insert(name.clone(), 32);
    let mut state = state(vec![cards], vec![limited]);
    let with_cards = |gang: &str| {
        let mut gang = self::gang(gang, "a", 1, 1);
        gang.pods[0].resources.others.insert(name.clone(), 2);
        gang
    };
    submit(&mut state, [with_cards("g"), with_cards("h")]);
    let decisions = decide(&mut state);
    assert_eq!(admitted(&decisions), ["g"]);
    let charged = &decisions.admissions[0].pods[0].charged;
    assert_eq!(
        *charged,
        [ResourceCharge::new(H100.into(), efa.clone(), Amount(2))]
    );
    let Why::Quota { of, available, .. } = why(&state, "h") else {
        panic!("{:?}", why(&state, "h"));
    };
    assert_eq!((of.resource, available), (efa, Amount(1)));
}

#[test]
fn a_limit_without_measure_stops_nobody_else() {
    let huge = QuotaLimit {
        nominal: Amount(i64::MAX),
        borrowing_limit: Some(Amount(i64::MAX)),
        lending_limit: None,
        automatic: false,
    };
    let teams = vec![
        team("huge", Some("all"), huge),
        team("beside", Some("all"), limit(4)),
    ];
    let mut state = state(nodes(2), teams);
    submit(&mut state, gangs("huge", "g:8"));
    submit(&mut state, gangs("beside", "h:4"));
    assert_eq!(admitted(&decide(&mut state)), ["g", "h"]);
}

#[test]
fn who_would_borrow_on_the_flavor_that_has_a_place_goes_after_who_would_not() {
    let teams = vec![
        two_flavors("borrows", Some("all"), limit(8), limit(0)),
        two_flavors("owns", Some("all"), limit(0), limit(8)),
    ];
    // Of the first Flavor there is quota, and no node.
    let mut state = state(vec![a100_node("n1", 8)], teams);
    state.apply(Update::Flavor(flavor("a100", None)));
    submit(
        &mut state,
        [
            at(0, gang("old", "borrows", 1, 8)),
            at(9, gang("young", "owns", 1, 8)),
        ],
    );
    assert_eq!(admitted(&decide(&mut state)), ["young"]);
}

fn room(gangs: usize, pods: usize) -> CommitRoom {
    CommitRoom {
        gangs,
        pods,
        claims: usize::MAX,
        nodes: usize::MAX,
    }
}

#[test]
fn nothing_goes_before_a_gang_for_which_the_commit_has_no_room() {
    let mut state = state(nodes(4), vec![team("a", None, limit(32))]);
    submit(
        &mut state,
        [
            at(0, gang("first", "a", 1, 1)),
            at(1, gang("large", "a", 3, 8)),
            at(2, gang("small", "a", 1, 1)),
        ],
    );
    let budget = |left| Budget {
        left: room(10, left),
        empty: room(10, 3),
        ..Budget::UNLIMITED
    };
    let decisions = state.decide(NOW, &budget(3));
    assert_eq!(
        (admitted(&decisions), decisions.exhausted),
        (vec!["first".into()], true)
    );
    assert_eq!(why(&state, "small"), Why::NextCommit);
    let decisions = state.decide(NOW, &budget(3));
    assert_eq!(
        (admitted(&decisions), decisions.exhausted),
        (vec!["large".into()], true)
    );
    let decisions = state.decide(NOW, &budget(3));
    assert_eq!(
        (admitted(&decisions), decisions.exhausted),
        (vec!["small".into()], false)
    );
}

#[test]
fn a_gang_that_no_commit_can_carry_is_said_so_once_and_holds_up_nobody() {
    let strict = Team {
        queueing: Queueing::StrictFifo,
        ..team("a", None, limit(64))
    };
    let mut state = state(nodes(8), vec![strict]);
    submit(
        &mut state,
        [
            at(0, gang("large", "a", 4, 8)),
            at(1, gang("small", "a", 3, 8)),
        ],
    );
    let mut budget = Budget {
        left: room(10, 3),
        empty: room(10, 3),
        ..Budget::UNLIMITED
    };
    let decisions = state.decide(NOW, &budget);
    assert_eq!(admitted(&decisions), ["small"]);
    let told: Vec<(&str, usize)> = decisions
        .too_large
        .iter()
        .map(|told| (told.gang.as_str(), told.needs.pods))
        .collect();
    assert_eq!((told, decisions.visited.plans), (vec![("large", 4)], 1));
    assert_eq!(
        why(&state, "large").to_string(),
        "one commit carries at most 10 gangs, 3 pods, the gang needs 4 pods, 4 claims, 0 nodes; split it"
    );
    assert_eq!(state.decide(NOW, &budget), Decisions::default());
    // The bound of nodes counts once a place is found; with a larger commit it is tried again.
    budget.left.pods = 4;
    budget.empty = CommitRoom {
        nodes: 3,
        ..room(10, 4)
    };
    let decisions = state.decide(NOW, &budget);
    let needs = decisions.too_large.first().map(|told| told.needs.nodes);
    assert_eq!((admitted(&decisions), needs), (vec![], Some(4)));
    budget.empty.nodes = 4;
    assert_eq!(admitted(&state.decide(NOW, &budget)), ["large"]);
}

/// What is visited when one pod ends and when one gang comes, with so many Teams of ten gangs each, half of them waiting
/// for a place and half for quota.
fn visited_with(teams: usize) -> [usize; 3] {
    let mut all = Vec::new();
    for at in 0..teams {
        let (cohort, limit) = if at % 2 == 0 {
            ("plenty", limit(1000))
        } else {
            ("scarce", limit(0))
        };
        all.push(team(&format!("t{at:04}"), Some(cohort), limit));
    }
    let mut state = state(vec![node("n0", "s/l", 8), node("n1", "s/l", 8)], all);
    state.apply(Update::Cohort(cohort("scarce", None, 8)));
    state.apply(Update::Hold(hold(
        "full",
        "t0000",
        "n0",
        &[0, 1, 2, 3, 4, 5, 6, 7],
    )));
    state.apply(Update::Hold(hold(
        "rest",
        "t0001",
        "n1",
        &[1, 2, 3, 4, 5, 6, 7],
    )));
    state.apply(Update::Hold(hold("one", "t0001", "n1", &[0])));
    for number in 0..teams * 10 {
        // Each with a request of its own, so that no two are judged together.
        let mut gang = gang(
            &format!("g{number:05}"),
            &format!("t{:04}", number % teams),
            1,
            1,
        );
        gang.pods[0].resources.memory_bytes = GIB + i64::try_from(number).expect("few");
        submit(&mut state, [at(i64::try_from(number).expect("few"), gang)]);
    }
    assert_eq!(admitted(&decide(&mut state)), Vec::<String>::new());
    // A pod ends: the first in order gets its place, by its own quota. Those who waited for quota learn, once, that they
    // wait for a place, too.
    state.apply(Update::HoldGone(pod_uid("one")));
    assert_eq!(admitted(&decide(&mut state)), ["g00000"]);
    // From then on a pod that ends costs what it lets in.
    state.apply(Update::NotWaiting("g00000".into()));
    state.undo(&GangUid::from("g00000"));
    let ended = decide(&mut state);
    assert_eq!(admitted(&ended), ["g00002"]);
    submit(&mut state, [gang("late", "t0000", 1, 1)]);
    let came = decide(&mut state);
    let mut cordoned = node("n0", "s/l", 8);
    cordoned.block = Some(muster_engine::NodeBlock::Cordoned);
    state.apply(Update::Node(cordoned));
    let node = decide(&mut state);
    [ended, came, node].map(|decisions| decisions.visited.total())
}

#[test]
fn what_an_event_visits_does_not_grow_with_what_waits() {
    let few = visited_with(4);
    let many = visited_with(200);
    for (few, many) in few.into_iter().zip(many) {
        assert!(
            many <= 2 * few.max(4),
            "{few} objects with 40 gangs, {many} with 2,000"
        );
    }
}
