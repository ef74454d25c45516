//! Whoever has quota and a place starts with the very decision in which that is so, whatever it waited for until then.

use std::collections::BTreeMap;

use muster_engine::{
    Gang, GangUid, Hold, NodeBlock, NodeFilterId, PodUid, RunTime, Running, State, Team, Timestamp,
    Update,
    quota::{PreemptionPolicy, ReclaimWithinCohort, WithinTeam},
};

use super::{LONG, cluster, common::*, decide_at, ends, kept, random::Random, rich, runs, within};

fn preempting(team: Team) -> Team {
    Team {
        preemption: PreemptionPolicy {
            within_team: WithinTeam::LowerPriority,
            ..PreemptionPolicy::NEVER
        },
        ..team
    }
}

/// Two nodes, of which the first is in use until 5,000 s: both are kept for the head of this Team.
fn kept_for_head_of(large: Team, others: &[Team]) -> State {
    let teams = [&[large, rich("small")], others].concat();
    let mut state = cluster(1, 2, teams);
    runs(&mut state, "old", "n00", 0..4, Some(5_000));
    submit(&mut state, [gang("head", "large", 2, 4)]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert!(kept(&state).is_some());
    state
}

#[test]
fn who_was_kept_out_starts_with_the_decision_that_takes_the_heads_quota() {
    let mut state = kept_for_head_of(team("large", None, limit(8)), &[]);
    submit(&mut state, [gang("endless", "small", 1, 1)]);
    assert_eq!(admitted(&decide_at(&mut state, LONG)), Vec::<String>::new());
    // It is gone in time, and may have the quota of its Team until then.
    submit(&mut state, [within(60, gang("brief", "large", 1, 1))]);
    let decisions = decide_at(&mut state, LONG + 1);
    assert_eq!(admitted(&decisions), ["brief", "endless"]);
    assert!(kept(&state).is_none());
}

#[test]
fn whom_the_head_may_preempt_starts_once_the_head_borrows_nothing() {
    let large = preempting(team("large", Some("all"), limit(10)));
    let lender = team("lender", Some("all"), limit(10));
    let mut state = kept_for_head_of(large, &[lender]);
    state.apply(Update::Cohort(cohort("all", None, 0)));
    state.apply(Update::Hold(hold("mine", "large", "elsewhere", &[0, 1, 2])));
    decide_at(&mut state, LONG);
    let mut lesser = with_priority(-1, gang("lesser", "large", 1, 1));
    lesser.run_time.preemptable_after_seconds = Some(0);
    submit(&mut state, [lesser]);
    assert_eq!(admitted(&decide_at(&mut state, LONG)), Vec::<String>::new());
    state.apply(Update::HoldGone(pod_uid("mine")));
    let decisions = decide_at(&mut state, LONG + 1);
    assert_eq!(admitted(&decisions), ["lesser"]);
    assert!(kept(&state).is_some());
}

#[test]
fn what_came_free_where_a_place_is_kept_is_offered_to_whom_lacked_quota_then() {
    let poor = team("poor", None, limit(1));
    let mut state = cluster(1, 2, vec![rich("large"), poor]);
    runs(&mut state, "old", "n00", 0..4, Some(5_000));
    runs(&mut state, "other", "n01", 0..4, Some(4_000));
    submit(&mut state, [gang("head", "large", 2, 4)]);
    submit(&mut state, [within(60, gang("brief", "poor", 1, 1))]);
    decide_at(&mut state, 0);
    decide_at(&mut state, LONG);
    assert!(kept(&state).is_some());
    state.apply(Update::Hold(hold("mine", "poor", "elsewhere", &[0])));
    ends(&mut state, "other");
    assert_eq!(admitted(&decide_at(&mut state, LONG)), Vec::<String>::new());
    state.apply(Update::HoldGone(pod_uid("mine")));
    assert_eq!(admitted(&decide_at(&mut state, LONG + 1)), ["brief"]);
}

/// It asks for the same as one before it that may be preempted by nobody, and spoke for both.
#[test]
fn whom_the_head_may_preempt_starts_once_nobody_goes_before_it_whom_the_head_may_not() {
    let mut state = kept_for_head_of(preempting(team("large", None, limit(12))), &[]);
    let stays = with_priority(-1, gang("stays", "large", 1, 1));
    let mut lesser = with_priority(-1, at(1, gang("lesser", "large", 1, 1)));
    lesser.run_time.preemptable_after_seconds = Some(0);
    submit(&mut state, [stays, lesser]);
    assert_eq!(admitted(&decide_at(&mut state, LONG)), Vec::<String>::new());
    state.apply(Update::NotWaiting("stays".into()));
    assert_eq!(admitted(&decide_at(&mut state, LONG)), ["lesser"]);
}

/// Everybody is judged anew, and nobody starts by that.
fn overlooks_nobody(state: &State, now: i64, what: &str) {
    let mut anew = state.clone();
    let mut other = flavor(H100, Some(FABRIC));
    // No pod says this.
    other.excluded = [NodeFilterId(99)].into();
    anew.apply(Update::Flavor(other));
    let late = admitted(&decide_at(&mut anew, now));
    assert_eq!(late, Vec::<String>::new(), "{what}");
}

/// What happens, as it comes.
struct History {
    state: State,
    random: Random,
    now: i64,
    gangs: usize,
    waiting: BTreeMap<GangUid, Gang>,
    running: BTreeMap<GangUid, Vec<PodUid>>,
    blocked: Option<usize>,
    let_in: usize,
    kept: usize,
}

const NODES: [(&str, &str); 4] = [
    ("n00", "s/l0"),
    ("n01", "s/l0"),
    ("n10", "s/l1"),
    ("n11", "s/l1"),
];

impl History {
    fn new(seed: u64) -> Self {
        let reclaims = |mut team: Team| {
            team.preemption.reclaim_within_cohort = ReclaimWithinCohort::Any;
            team
        };
        let teams = vec![
            preempting(team("a", Some("all"), limit(9))),
            reclaims(preempting(team("b", Some("all"), limit(5)))),
            team("c", None, limit(9)),
        ];
        let mut state = cluster(2, 2, teams);
        state.apply(Update::Cohort(cohort("all", None, 1)));
        Self {
            state,
            random: Random::new(seed),
            now: 0,
            gangs: 0,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            blocked: None,
            let_in: 0,
            kept: 0,
        }
    }

    fn submit(&mut self) {
        let random = &mut self.random;
        self.gangs += 1;
        let (pods, each) = random.pick(&[(1, 1), (1, 1), (1, 2), (2, 1), (1, 4), (2, 4), (3, 2)]);
        let name = format!("g{:03}", self.gangs);
        let of = random.pick(&["a", "b", "c"]);
        let mut gang = gang(&name, of, pods, each);
        gang.priority = random.pick(&[0, 0, 0, 1, -1]);
        gang.queued_at = Timestamp(self.now);
        gang.may_borrow = random.percent(80);
        gang.run_time = RunTime {
            max_seconds: random.pick(&[None, Some(60), Some(600), Some(3_000)]),
            ends_within_seconds: 0,
            preemptable_after_seconds: random.pick(&[None, Some(0), Some(300)]),
        };
        self.state.apply(Update::Waiting(gang.clone()));
        self.waiting.insert(gang.uid.clone(), gang);
    }

    fn end_somebody(&mut self) {
        let at = self.random.index(self.running.len().max(1));
        let Some(uid) = self.running.keys().nth(at).cloned() else {
            return;
        };
        for pod in self.running.remove(&uid).into_iter().flatten() {
            self.state.apply(Update::HoldGone(pod));
        }
        self.state.apply(Update::Ends(uid.clone(), None));
        self.state.apply(Update::NotRunning(uid));
    }

    fn withdraw_somebody(&mut self) {
        let at = self.random.index(self.waiting.len().max(1));
        if let Some(uid) = self.waiting.keys().nth(at).cloned() {
            self.waiting.remove(&uid);
            self.state.apply(Update::NotWaiting(uid));
        }
    }

    /// A node is cordoned, or the one that is so no longer.
    fn cordon(&mut self) {
        let (at, block) = match self.blocked.take() {
            Some(at) => (at, None),
            None => (self.random.index(NODES.len()), Some(NodeBlock::Cordoned)),
        };
        self.blocked = block.as_ref().map(|_| at);
        let (name, path) = NODES[at];
        let mut other = node(name, path, super::GPUS_PER_NODE);
        other.block = block;
        self.state.apply(Update::Node(other));
    }

    fn decide(&mut self, what: &str) {
        let stood = kept(&self.state);
        let decisions = decide_at(&mut self.state, self.now);
        assert!(!decisions.is_cut_short(), "{what}");
        self.kept += usize::from(stood.is_none() && kept(&self.state).is_some());
        overlooks_nobody(&self.state, self.now, what);
        for admission in &decisions.admissions {
            let gang = self.waiting.remove(&admission.gang).expect("it waits");
            let mut nodes = admission.pods.iter().map(|pod| &pod.node);
            let is_inside = stood
                .as_ref()
                .is_some_and(|kept| nodes.any(|node| kept.nodes.contains(node)));
            self.let_in += usize::from(is_inside);
            let holds = holds_of(&gang, admission);
            self.commit(&gang, holds);
        }
        overlooks_nobody(&self.state, self.now, what);
    }

    /// What was admitted is told as held.
    fn commit(&mut self, gang: &Gang, holds: Vec<Hold>) {
        let uid = gang.uid.clone();
        let pods = holds.iter().map(|hold| hold.pod.clone()).collect();
        for hold in holds {
            self.state.apply(Update::Hold(hold));
        }
        self.state.apply(Update::NotWaiting(uid.clone()));
        let later = |seconds: u64| Timestamp(self.now + i64::try_from(seconds).expect("small"));
        let ends = gang.run_time.max_seconds.map(later);
        self.state.apply(Update::Ends(uid.clone(), ends));
        if let Some(protected) = gang.run_time.preemptable_after_seconds {
            self.state.apply(Update::Running(Running {
                protected_until: (protected > 0).then(|| later(protected)),
                ..running_since(Timestamp(self.now), gang)
            }));
        }
        self.running.insert(uid, pods);
    }
}

#[test]
fn nobody_is_overlooked_whatever_happens_where_places_are_kept() {
    let (mut kept, mut let_in) = (0, 0);
    for seed in 0..150 {
        let mut history = History::new(seed);
        for step in 0..120 {
            match history.random.between(0, 9) {
                0..=3 => history.submit(),
                4..=5 => history.end_somebody(),
                6 => history.withdraw_somebody(),
                7 if history.random.percent(30) => history.cordon(),
                _ => history.now += history.random.pick(&[0, 1, 60, 200, LONG]),
            }
            if history.random.percent(70) {
                history.decide(&format!("seed {seed} step {step}"));
            }
        }
        kept += history.kept;
        let_in += history.let_in;
    }
    assert!(kept > 100 && let_in > 100, "{kept} {let_in}");
}
