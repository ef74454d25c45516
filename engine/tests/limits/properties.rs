//! Invariants under random sequences: S1 (limits), S4 (whole or not at all), S10 (order and repetition do not
//! matter), determinism, and that what is planned on a node kube-scheduler can allocate there, in whatever
//! order it takes the pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::common::*;
use muster_engine::{
    Admission, Amount, Claim, ClaimUid, Decisions, Device, DeviceName, Gang, GangUid, Hold, Node,
    NodeName, PodUid, QuotaLimit, SelectorId, State, Team, Update,
};
use proptest::prelude::*;

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A gang comes: team, number of pods, kind of claim, tier.
    Submit(usize, usize, usize, i32),
    /// The engine decides, and what it admits is committed (or not).
    Decide(bool),
    /// The pod with this index (of those that wait for devices) gets them from the scheduler.
    Schedule(usize),
    /// The gang with this index ends; the proof of release comes with a later step.
    End(usize),
    /// What ended is proved released.
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..4, 1_usize..5, 0_usize..6, 0_i32..3)
            .prop_map(|(team, pods, kind, tier)| Step::Submit(team, pods, kind, tier)),
        4 => proptest::bool::weighted(0.8).prop_map(Step::Decide),
        4 => (0_usize..8).prop_map(Step::Schedule),
        2 => (0_usize..4).prop_map(Step::End),
        2 => Just(Step::Release),
    ];
    proptest::collection::vec(step, 1..40)
}

fn limits(nominal: i64, borrowing: Option<i64>, lending: Option<i64>) -> QuotaLimit {
    QuotaLimit {
        nominal: gpus(nominal),
        borrowing_limit: borrowing.map(gpus),
        lending_limit: lending.map(gpus),
        automatic: false,
    }
}

const NOMINAL: [i64; 3] = [4, 6, 2];
const BORROWING: [Option<i64>; 3] = [Some(4), None, Some(0)];
const POOL: i64 = 3;
/// What the Team outside the Cohort has.
const ALONE: i64 = 5;

fn teams() -> Vec<Team> {
    vec![
        team("t0", Some("all"), limits(NOMINAL[0], BORROWING[0], Some(2))),
        team("t1", Some("all"), limits(NOMINAL[1], BORROWING[1], None)),
        team("t2", Some("all"), limits(NOMINAL[2], BORROWING[2], Some(0))),
        team("t3", None, limit(ALONE)),
    ]
}

const SPECIAL: SelectorId = SelectorId(1);

/// Two leaves with two nodes of four GPUs; on one of them two GPUs also match the special selector.
fn nodes() -> Vec<Node> {
    let paths = [
        ("n0", "s/l0"),
        ("n1", "s/l0"),
        ("n2", "s/l1"),
        ("n3", "s/l1"),
    ];
    let mut nodes: Vec<Node> = paths.map(|(name, path)| node(name, path, 4)).into();
    for index in [1, 2] {
        std::sync::Arc::make_mut(&mut nodes[2].devices[index].selectors).insert(SPECIAL);
    }
    nodes
}

fn claim_of(kind: usize, uid: &str) -> Option<Claim> {
    let special = |mut claim: Claim| {
        claim.requests[0].choices[0].selector = SPECIAL;
        claim
    };
    match kind {
        0 => None,
        1 => Some(claim(uid, 1)),
        2 => Some(claim(uid, 2)),
        3 => Some(paired(claim(uid, 2))),
        4 => Some(special(claim(uid, 1))),
        _ => Some(claim(uid, 4)),
    }
}

fn new_gang(number: usize, team: usize, pods: usize, kind: usize, tier: i32) -> Gang {
    let name = format!("g{number:02}");
    let pods = (0..pods).map(|rank| {
        let uid = format!("{name}-{rank}");
        // The first pod of every other gang is a launcher without devices.
        let kind = if rank == 0 && number % 2 == 1 {
            0
        } else {
            kind
        };
        pod(&uid, claim_of(kind, &uid).into_iter().collect())
    });
    let mut gang = gang_of(&name, &format!("t{team}"), pods.collect());
    gang.may_borrow = number % 3 != 2;
    with_priority(tier, at(i64::try_from(number).expect("few"), gang))
}

/// The world around the engine: what a protocol and a scheduler would do.
struct World {
    state: State,
    nodes: BTreeMap<NodeName, Node>,
    gangs: BTreeMap<GangUid, Gang>,
    /// Told as waiting, and not told otherwise since.
    waiting: BTreeSet<GangUid>,
    holds: BTreeMap<PodUid, Hold>,
    ended: BTreeSet<GangUid>,
    submitted: usize,
    log: String,
}

impl World {
    fn new() -> Self {
        let mut state = state(nodes(), teams());
        state.apply(Update::Cohort(cohort("all", None, POOL)));
        Self {
            state,
            nodes: nodes()
                .into_iter()
                .map(|node| (node.name.clone(), node))
                .collect(),
            gangs: BTreeMap::new(),
            waiting: BTreeSet::new(),
            holds: BTreeMap::new(),
            ended: BTreeSet::new(),
            submitted: 0,
            log: String::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Submit(team, pods, kind, tier) => {
                let gang = new_gang(self.submitted, *team, *pods, *kind, *tier);
                self.submitted += 1;
                self.gangs.insert(gang.uid.clone(), gang.clone());
                self.waiting.insert(gang.uid.clone());
                self.state.apply(Update::Waiting(gang));
            }
            Step::Decide(commit) => self.decide(*commit),
            Step::Schedule(index) => self.schedule(*index),
            Step::End(index) => self.end(*index),
            Step::Release => self.release(),
        }
    }

    fn decide(&mut self, commit: bool) {
        let decisions = decide(&mut self.state);
        writeln!(self.log, "{decisions:?}").expect("a string takes all");
        assert_nothing_decided(&decide(&mut self.state));
        for admission in &decisions.admissions {
            let gang = self.gangs[&admission.gang].clone();
            assert_whole(&gang, admission);
            if commit {
                for hold in holds_of(&gang, admission) {
                    self.state.apply(Update::Hold(hold.clone()));
                    self.holds.insert(hold.pod.clone(), hold);
                }
                self.waiting.remove(&gang.uid);
                self.state.apply(Update::NotWaiting(gang.uid));
            }
        }
        self.assert_limits();
        if !commit {
            for admission in &decisions.admissions {
                self.state.undo(&admission.gang);
            }
        }
    }

    /// kube-scheduler takes any pod that waits for devices; on its planned node there must be some.
    fn schedule(&mut self, index: usize) {
        let waiting = self.holds.values().filter(|hold| {
            !hold.claims.is_empty() && hold.claims.iter().all(|claim| claim.devices.is_none())
        });
        let waiting: Vec<PodUid> = waiting.map(|hold| hold.pod.clone()).collect();
        if waiting.is_empty() {
            return;
        }
        let hold = self
            .holds
            .get_mut(&waiting[index % waiting.len()])
            .expect("listed");
        let node = self.nodes.get_mut(&hold.node).expect("planned on a node");
        for claim in &mut hold.claims {
            let asked = claim.request.as_ref().expect("told with its request");
            let devices = first_fit(node, asked);
            let devices =
                devices.unwrap_or_else(|| panic!("{asked:?} has no devices on {}", node.name));
            for device in &mut node.devices {
                if devices.contains(&device.name) {
                    device.allocated_to = Some(claim.uid.clone());
                }
            }
            claim.devices = Some(devices);
        }
        self.state.apply(Update::Node(node.clone()));
        self.state.apply(Update::Hold(hold.clone()));
    }

    fn end(&mut self, index: usize) {
        let running: BTreeSet<GangUid> =
            self.holds.values().map(|hold| hold.gang.clone()).collect();
        let running: Vec<GangUid> = running
            .into_iter()
            .filter(|gang| !self.ended.contains(gang))
            .collect();
        if running.is_empty() {
            return;
        }
        let gang = &running[index % running.len()];
        self.ended.insert(gang.clone());
        for hold in self.holds.values_mut().filter(|hold| hold.gang == *gang) {
            hold.releasing = true;
            self.state.apply(Update::Hold(hold.clone()));
        }
    }

    fn release(&mut self) {
        let Some(gang) = self.ended.pop_first() else {
            return;
        };
        let pods: Vec<PodUid> = self
            .holds
            .values()
            .filter(|hold| hold.gang == gang)
            .map(|hold| hold.pod.clone())
            .collect();
        for pod in pods {
            let hold = self.holds.remove(&pod).expect("listed");
            let claims: BTreeSet<ClaimUid> =
                hold.claims.iter().map(|claim| claim.uid.clone()).collect();
            let node = self.nodes.get_mut(&hold.node).expect("planned on a node");
            for device in &mut node.devices {
                if device
                    .allocated_to
                    .as_ref()
                    .is_some_and(|claim| claims.contains(claim))
                {
                    device.allocated_to = None;
                }
            }
            self.state.apply(Update::Node(node.clone()));
            self.state.apply(Update::HoldGone(pod));
        }
    }

    /// Everything that is known, as updates for another state.
    fn facts(&self) -> Vec<Update> {
        let mut facts: Vec<Update> = teams().into_iter().map(Update::Team).collect();
        facts.push(Update::Cohort(cohort("all", None, POOL)));
        facts.push(Update::Topology(topology(&["spine", "leaf"])));
        facts.push(Update::Flavor(flavor(H100, Some(FABRIC))));
        facts.extend(self.nodes.values().cloned().map(Update::Node));
        facts.extend(self.holds.values().cloned().map(Update::Hold));
        let waiting = self.waiting.iter().map(|uid| self.gangs[uid].clone());
        facts.extend(waiting.map(Update::Waiting));
        facts
    }

    /// S1. The limits never change here, so nobody may ever be above them.
    fn assert_limits(&self) {
        let used = |name: &str| self.state.usage(&team_name(name))[0].used.0 / 1000;
        assert!(used("t3") <= ALONE);
        let all = ["t0", "t1", "t2"].map(used);
        for at in 0..all.len() {
            if let Some(borrowing) = BORROWING[at] {
                assert!(all[at] <= NOMINAL[at] + borrowing, "t{at} uses {}", all[at]);
            }
        }
        // t0 lends 2 of its 4 and t2 nothing of its 2: what they keep is theirs alone.
        let kept = [2, 0, 2];
        let common: i64 = (0..3).map(|at| (all[at] - kept[at]).max(0)).sum();
        let pool = POOL + (4 - 2) + 6;
        assert!(common <= pool, "{all:?} take {common} of {pool}");
    }
}

/// Asked again without news, the engine has nothing to say and looks at nothing. What is due later is so still.
fn assert_nothing_decided(decisions: &Decisions) {
    let nothing = Decisions {
        look_again_at: decisions.look_again_at,
        ..Decisions::default()
    };
    assert_eq!(decisions, &nothing);
    assert!(decisions.look_again_at.is_none_or(|at| at > NOW));
}

/// S4: every pod of the gang has a node, and every claim of it a charge.
fn assert_whole(gang: &Gang, admission: &Admission) {
    let pods: Vec<&PodUid> = admission.pods.iter().map(|pod| &pod.uid).collect();
    assert_eq!(
        pods,
        gang.pods.iter().map(|pod| &pod.uid).collect::<Vec<_>>()
    );
    for (pod, admitted) in gang.pods.iter().zip(&admission.pods) {
        let claims: Vec<(&ClaimUid, Amount)> = pod
            .claims
            .iter()
            .map(|claim| {
                (
                    &claim.uid,
                    gpus(i64::from(claim.requests[0].choices[0].count)),
                )
            })
            .collect();
        let charged: Vec<(&ClaimUid, Amount)> = admitted
            .claims
            .iter()
            .map(|claim| (&claim.uid, claim.gpus))
            .collect();
        assert_eq!(charged, claims);
    }
}

/// The first combination of free devices, in order, that a claim with one request accepts.
fn first_fit(node: &Node, asked: &Claim) -> Option<Vec<DeviceName>> {
    let request = &asked.requests[0];
    let free: Vec<&Device> = node
        .devices
        .iter()
        .filter(|device| {
            device.allocated_to.is_none() && device.selectors.contains(&request.choices[0].selector)
        })
        .collect();
    let count = request.choices[0].count as usize;
    let chosen = combinations(free.len(), count).into_iter().find(|chosen| {
        asked.constraints.is_empty() || {
            let pairs: BTreeSet<&String> = chosen
                .iter()
                .map(|at| &free[*at].attributes[&"pair".into()])
                .collect();
            pairs.len() == 1
        }
    })?;
    Some(chosen.into_iter().map(|at| free[at].name.clone()).collect())
}

/// All ways to take so many of so many, in lexicographic order.
fn combinations(of: usize, take: usize) -> Vec<Vec<usize>> {
    if take == 0 {
        return vec![Vec::new()];
    }
    (0..of)
        .flat_map(|first| {
            let rest = combinations(of - first - 1, take - 1);
            rest.into_iter().map(move |rest| {
                let rest = rest.into_iter().map(|at| at + first + 1);
                std::iter::once(first).chain(rest).collect()
            })
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn limits_wholeness_and_promises_hold_under_any_sequence(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        // Whatever still waits for devices gets them.
        for _ in 0..world.holds.len() {
            world.schedule(0);
        }
    }

    #[test]
    fn the_same_updates_give_the_same_bytes(steps in steps()) {
        let run = || {
            let mut world = World::new();
            for step in &steps {
                world.take(step);
            }
            world.log
        };
        prop_assert_eq!(run(), run());
    }

    /// S10: what is known decides, not the order in which it came, nor how often.
    #[test]
    fn order_and_repetition_of_updates_do_not_matter(steps in steps(), seed in any::<u64>()) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        let facts = world.facts();
        let decide = |facts: &[Update]| -> Decisions {
            let mut state = State::new();
            for fact in facts {
                state.apply(fact.clone());
            }
            decide(&mut state)
        };
        let straight = decide(&facts);
        let mut shuffled = facts.clone();
        let length = shuffled.len();
        for at in 0..length {
            let random = seed.rotate_left(u32::try_from(at).expect("few"));
            let with = usize::try_from(random % length as u64).expect("below the length");
            shuffled.swap(at, with);
        }
        shuffled.extend(facts.into_iter().step_by(2));
        prop_assert_eq!(straight, decide(&shuffled));
    }

    /// Looking only at what is concerned finds what looking at everything finds.
    #[test]
    fn what_was_told_step_by_step_is_what_is_told_at_once(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        world.decide(true);
        let mut fresh = State::new();
        for fact in world.facts() {
            fresh.apply(fact);
        }
        let decisions = decide(&mut fresh);
        prop_assert_eq!(admitted(&decisions), Vec::<String>::new());
        for gang in &world.waiting {
            prop_assert_eq!(world.state.explain(gang), fresh.explain(gang));
        }
    }
}
