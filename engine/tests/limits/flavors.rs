//! Which Flavor a gang gets where its Team has several, and when its turn is then.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Admission, Amount, Budget, CommitRoom, Flavor, FlavorName, Gang, Node, NodeFilterId,
    QuotaLimit, Resource, Running, SelectorId, State, Team, Update, Why,
    quota::{AtAPrice, FlavorFungibility, FlavorPreference, PreemptionPolicy, WithinTeam},
};

const A100: &str = "a100";

fn a100_node(name: &str) -> Node {
    let mut node = node(name, "s/l", 8);
    for device in &mut node.devices {
        device.flavors = [FlavorName::from(A100)].into();
    }
    node
}

/// A Team with quota for GPUs of both Flavors, `h100` first.
fn both(name: &str, cohort: &str, h100: i64, a100: i64, when_can_borrow: AtAPrice) -> Team {
    let mut both = team(name, Some(cohort), limit(h100));
    let quota = BTreeMap::from([(Resource::Gpus, limit(a100))]);
    both.quota.push((A100.into(), quota));
    both.fungibility.when_can_borrow = when_can_borrow;
    both
}

/// A Cohort with GPUs of both Flavors for all its members.
fn pool(name: &str, parent: Option<&str>, h100: i64, a100: i64) -> Update {
    let mut pool = cohort(name, parent, h100);
    let quota = BTreeMap::from([(Resource::Gpus, limit(a100))]);
    pool.quota.push((A100.into(), quota));
    Update::Cohort(pool)
}

/// One node of 8 GPUs of each Flavor, and these Teams.
fn one_node_of_each(teams: Vec<Team>) -> State {
    let mut state = state(vec![node("h", "s/l", 8), a100_node("a")], teams);
    state.apply(Update::Flavor(flavor(A100, Some(FABRIC))));
    state
}

#[test]
fn a_gang_gets_another_flavor_rather_than_a_node_that_it_avoids() {
    for (avoided, expected) in [
        (&[][..], H100),
        (&["h"], A100),
        (&["a"], H100),
        (&["a", "h"], H100),
    ] {
        let mut state = one_node_of_each(vec![both("a", "all", 8, 8, AtAPrice::TryNextFlavor)]);
        submit(&mut state, [avoiding(avoided, gang("g", "a", 1, 8))]);
        let admitted = admitted_on(&decide(&mut state).admissions);
        assert_eq!(
            admitted,
            [("g".to_owned(), expected.to_owned())],
            "{avoided:?}"
        );
    }
}

/// Who is admitted, in order, each on the Flavor of its first claim.
fn admitted_on(admissions: &[Admission]) -> Vec<(String, String)> {
    let on = |admission: &Admission| {
        let flavor = admission.pods[0].claims[0].flavor.to_string();
        (admission.gang.to_string(), flavor)
    };
    admissions.iter().map(on).collect()
}

/// The Flavor that a gang of 8 GPUs of Team `a` gets; the Team hangs in `inner`, that in `outer`.
fn flavor_of_eight(team: Team, pools: [Update; 2]) -> String {
    let mut state = one_node_of_each(vec![team]);
    for pool in pools {
        state.apply(pool);
    }
    submit(&mut state, [gang("g", "a", 1, 8)]);
    let decisions = decide(&mut state);
    let on = admitted_on(&decisions.admissions);
    on.first().expect("it is admitted").1.clone()
}

#[test]
fn a_team_takes_the_first_flavor_or_the_one_for_which_it_borrows_from_least_far_up() {
    // Nominal GPUs of h100 and a100: of the Team, of the Cohort above it, of the one above that.
    for (team, inner, outer, may_stop, try_next) in [
        ((8, 8), (0, 0), (0, 0), H100, H100),
        ((4, 8), (4, 0), (0, 0), H100, A100),
        ((4, 4), (0, 4), (4, 0), H100, A100),
        ((4, 4), (4, 0), (0, 4), H100, H100),
        ((4, 4), (4, 4), (0, 0), H100, H100),
        ((4, 8), (0, 0), (0, 0), A100, A100),
    ] {
        for (when_can_borrow, expected) in [
            (AtAPrice::MayStopSearch, may_stop),
            (AtAPrice::TryNextFlavor, try_next),
        ] {
            let pools = [
                pool("inner", Some("outer"), inner.0, inner.1),
                pool("outer", None, outer.0, outer.1),
            ];
            let has = both("a", "inner", team.0, team.1, when_can_borrow);
            let flavor = flavor_of_eight(has, pools);
            let case = (team, inner, outer);
            assert_eq!(flavor, expected, "{case:?} with {when_can_borrow:?}");
        }
    }
}

#[test]
fn without_a_word_the_first_flavor_is_taken_on_which_it_fits() {
    let borrowing = FlavorFungibility::default().when_can_borrow;
    assert_eq!(borrowing, AtAPrice::MayStopSearch);
}

#[test]
fn where_only_the_flavor_that_is_borrowed_has_a_place_it_is_taken() {
    let mut state = one_node_of_each(vec![both("a", "all", 4, 8, AtAPrice::TryNextFlavor)]);
    state.apply(pool("all", None, 4, 0));
    let mut held = hold("p", "elsewhere", "a", &[0]);
    held.claims[0].flavor = A100.into();
    state.apply(Update::Hold(held));
    submit(&mut state, [gang("g", "a", 1, 8)]);
    let decisions = decide(&mut state);
    assert_eq!(
        admitted_on(&decisions.admissions),
        [("g".to_owned(), H100.to_owned())]
    );
}

#[test]
fn a_changed_setting_counts_from_the_next_decision() {
    let with = |when_can_borrow| both("a", "all", 4, 4, when_can_borrow);
    let mut state = one_node_of_each(vec![with(AtAPrice::MayStopSearch)]);
    state.apply(pool("all", None, 4, 0));
    submit(&mut state, [gang("g", "a", 1, 4)]);
    state.apply(Update::Hold(hold("p", "a", "h", &[0])));
    state.apply(Update::Team(with(AtAPrice::TryNextFlavor)));
    let decisions = decide(&mut state);
    assert_eq!(
        admitted_on(&decisions.admissions),
        [("g".to_owned(), A100.to_owned())]
    );
}

/// Who is admitted at once, and who by one gang per call.
fn at_once_and_one_by_one(state: &State) -> [Vec<String>; 2] {
    let at_once = admitted(&decide(&mut state.clone()));
    let mut state = state.clone();
    let mut one_by_one = Vec::new();
    let budget = Budget {
        left: CommitRoom {
            gangs: 1,
            ..CommitRoom::UNLIMITED
        },
        ..Budget::UNLIMITED
    };
    loop {
        let decisions = state.decide(NOW, &budget);
        one_by_one.extend(admitted(&decisions));
        if !decisions.is_cut_short() {
            return [at_once, one_by_one];
        }
    }
}

/// Its gang is the oldest. Where it would borrow, those who do not go first.
#[test]
fn the_turn_is_that_of_the_flavor_which_the_gang_gets() {
    for (when_can_borrow, expected) in [
        (AtAPrice::MayStopSearch, ["other", "g"]),
        (AtAPrice::TryNextFlavor, ["g", "other"]),
    ] {
        let teams = vec![
            both("a", "all", 2, 4, when_can_borrow),
            both("b", "all", 4, 0, when_can_borrow),
        ];
        let mut state = one_node_of_each(teams);
        submit(
            &mut state,
            [at(0, gang("g", "a", 1, 4)), at(1, gang("other", "b", 1, 2))],
        );
        let orders = at_once_and_one_by_one(&state);
        assert_eq!(orders, [expected, expected], "{when_can_borrow:?}");
    }
}

/// Its best place is on the node with the large devices, for which it borrows: where it goes is decided by its pod with cards, to which
/// both nodes are alike. Once the other node is taken in part, that one is the better place, and there it does not borrow.
#[test]
fn a_head_comes_earlier_once_it_borrows_less_with_other_devices() {
    const SMALL_NODE: NodeFilterId = NodeFilterId(1);
    const CARDS: SelectorId = SelectorId(7);
    let with_cards = |name: &str, gib: i64| {
        let mut node = node(name, "s/l", 13);
        let (gpus, cards) = node.devices.split_at_mut(8);
        for gpu in gpus {
            gpu.vram = Amount(gib * GIB);
        }
        for card in cards {
            card.flavors.clear();
            card.gpus = Amount::ZERO;
            card.vram = Amount::ZERO;
            card.selectors = std::collections::BTreeSet::from([CARDS]).into();
        }
        node
    };
    let mut small = with_cards("small", 40);
    small.filters = [ANY_NODE, SMALL_NODE]
        .into_iter()
        .collect::<std::collections::BTreeSet<_>>()
        .into();
    let with_vram = |name: &str, gib: i64| {
        let mut team = team(name, Some("all"), limit(8));
        let vram = QuotaLimit {
            nominal: Amount(gib * GIB),
            ..QuotaLimit::default()
        };
        team.quota[0].1.insert(Resource::Vram, vram);
        team
    };
    let teams = vec![
        with_vram("a", 160),
        with_vram("b", 640),
        with_vram("c", 640),
    ];
    let mut state = state(vec![with_cards("large", 80), small], teams);
    let mut borrows = gang("borrows", "a", 1, 4);
    let mut cards = claim("cards", 5);
    cards.requests[0].choices[0].selector = CARDS;
    borrows.pods.push(pod("with-cards", vec![cards]));
    let on_the_small_node = |mut gang: Gang| {
        gang.pods[0].filter = SMALL_NODE;
        gang
    };
    submit(
        &mut state,
        [
            at(0, borrows),
            at(1, on_the_small_node(gang("picks", "b", 1, 4))),
            at(2, gang("last", "c", 1, 1)),
        ],
    );
    let expected = ["picks", "borrows", "last"];
    assert_eq!(at_once_and_one_by_one(&state), [expected, expected]);
}

/// A gang of 8 GPUs whose pods say something about nodes.
fn picky(name: &str, filter: NodeFilterId) -> Gang {
    let mut gang = gang(name, "a", 1, 8);
    for pod in &mut gang.pods {
        pod.filter = filter;
    }
    gang
}

#[test]
fn a_flavor_that_excludes_what_pods_say_about_nodes_is_passed_over_until_it_does_not() {
    const PICKY: NodeFilterId = NodeFilterId(7);
    let nodes = [node("h", "s/l", 8), a100_node("a")].map(|mut node| {
        node.filters = std::collections::BTreeSet::from([ANY_NODE, PICKY]).into();
        node
    });
    let teams = vec![both("a", "pool", 8, 8, AtAPrice::MayStopSearch)];
    let mut state = state(nodes.into(), teams);
    let told = |name: &str, excluded: &[NodeFilterId]| {
        Update::Flavor(Flavor {
            excluded: excluded.iter().copied().collect(),
            ..flavor(name, Some(FABRIC))
        })
    };
    state.apply(told(H100, &[PICKY]));
    state.apply(told(A100, &[]));
    submit(
        &mut state,
        [picky("first", PICKY), at(1, picky("second", PICKY))],
    );
    let decisions = decide(&mut state);
    let on = |name: &str, flavor: &str| vec![(name.to_owned(), flavor.to_owned())];
    assert_eq!(admitted_on(&decisions.admissions), on("first", A100));
    // The one Flavor is full, the other one is not for it, though it is free and would hold it.
    assert!(matches!(why(&state, "second"), Why::Quota { .. }));
    state.apply(told(A100, &[PICKY]));
    assert!(decide(&mut state).admissions.is_empty());
    let Why::PlacementImpossible { fit, excluded, .. } = why(&state, "second") else {
        panic!("{:?}", why(&state, "second"));
    };
    assert_eq!(fit, 0);
    assert!(
        excluded[0].0.contains("excludes the Flavor"),
        "{excluded:?}"
    );
    state.apply(told(H100, &[]));
    let decisions = decide(&mut state);
    assert_eq!(admitted_on(&decisions.admissions), on("second", H100));
}

/// `low` runs on all GPUs of the first Flavor; those of the second are a pool's, or the Team's own.
#[test]
fn a_team_rather_preempts_than_borrows_or_tries_the_next_flavor_if_it_says_so() {
    let try_next = FlavorFungibility {
        when_can_borrow: AtAPrice::TryNextFlavor,
        when_can_preempt: AtAPrice::TryNextFlavor,
        preference: FlavorPreference::BorrowingOverPreemption,
    };
    let over_borrowing = FlavorFungibility {
        preference: FlavorPreference::PreemptionOverBorrowing,
        ..try_next
    };
    let stops = FlavorFungibility {
        when_can_preempt: AtAPrice::MayStopSearch,
        ..try_next
    };
    for (fungibility, own, pooled, preempts) in [
        (try_next, 0, 8, false),
        (over_borrowing, 0, 8, true),
        // Who borrows nothing has no reason to preempt.
        (over_borrowing, 8, 0, false),
        (stops, 8, 0, true),
        (stops, 0, 8, true),
    ] {
        let team = Team {
            fungibility,
            preemption: PreemptionPolicy {
                within_team: WithinTeam::LowerPriority,
                ..PreemptionPolicy::NEVER
            },
            ..both("a", "pool", 8, own, AtAPrice::TryNextFlavor)
        };
        let mut state = one_node_of_each(vec![team]);
        state.apply(pool("pool", None, 0, pooled));
        let all: Vec<usize> = (0..8).collect();
        let low = hold("low", "a", "h", &all);
        state.apply(Update::Running(Running {
            priority: -1,
            ..held_since(NOW, &low)
        }));
        state.apply(Update::Hold(low));
        submit(&mut state, [gang("g", "a", 1, 8)]);
        let decisions = decide(&mut state);
        let told = (
            admitted_on(&decisions.admissions),
            decisions.preemptions.len(),
        );
        let expected = if preempts {
            (Vec::new(), 1)
        } else {
            (vec![("g".to_owned(), A100.to_owned())], 0)
        };
        assert_eq!(told, expected, "{fungibility:?}, {own} of its own");
    }
}

/// `low` runs on all GPUs of the second Flavor, which are the Team's own; those of the first are a pool's.
#[test]
fn a_flavor_that_ends_the_search_is_taken_whatever_the_ones_before_it_were_like() {
    let team = Team {
        fungibility: FlavorFungibility {
            when_can_borrow: AtAPrice::TryNextFlavor,
            when_can_preempt: AtAPrice::MayStopSearch,
            ..FlavorFungibility::default()
        },
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..both("a", "pool", 0, 8, AtAPrice::TryNextFlavor)
    };
    let mut state = one_node_of_each(vec![team]);
    state.apply(pool("pool", None, 8, 0));
    let all: Vec<usize> = (0..8).collect();
    let mut low = hold("low", "a", "a", &all);
    for claim in &mut low.claims {
        claim.flavor = A100.into();
    }
    state.apply(Update::Running(Running {
        priority: -1,
        ..held_since(NOW, &low)
    }));
    state.apply(Update::Hold(low));
    submit(&mut state, [gang("g", "a", 1, 8)]);
    let decisions = decide(&mut state);
    assert_eq!(admitted_on(&decisions.admissions), []);
    assert_eq!(decisions.preemptions.len(), 1);
}
