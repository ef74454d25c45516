//! What it costs where shares are fair and many wait to whom nobody gives way. Looks are the same on every machine.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Admission, Budget, Cohort, Gang, GangUid, Resource, State, Team, Timestamp, Update,
    model::Quota,
    quota::{PreemptionPolicy, ReclaimWithinCohort, Sharing},
};

const TEAMS: usize = 20;
/// What all Teams together may have, and use.
const POOL: i64 = 120;
const GPUS: usize = 120;
/// So many calls decide all that there is to be decided after one event.
const CALLS: i64 = 10;

struct World {
    state: State,
    now: i64,
    gangs: BTreeMap<GangUid, Gang>,
}

impl World {
    fn submit(&mut self, gang: Gang) {
        self.gangs.insert(gang.uid.clone(), gang.clone());
        self.state.apply(Update::Waiting(gang));
    }

    fn start(&mut self, admission: &Admission) {
        let gang = &self.gangs[&admission.gang];
        for hold in holds_of(gang, admission) {
            self.state.apply(Update::Hold(hold));
        }
        self.state.apply(Update::NotWaiting(gang.uid.clone()));
        self.state
            .apply(Update::Running(running_since(Timestamp(self.now), gang)));
    }

    /// Decides all that there is to be decided: who starts, and how many Teams, classes, groups and plans were looked at.
    fn come_to_rest(&mut self) -> (Vec<String>, usize) {
        let (mut started, mut judged) = (Vec::new(), 0);
        for _ in 0..CALLS {
            self.now += 1;
            let decisions = self.state.decide(Timestamp(self.now), &Budget::UNLIMITED);
            assert_eq!(decisions.preemptions, []);
            for admission in &decisions.admissions {
                self.start(admission);
            }
            started.extend(admitted(&decisions));
            let visited = decisions.visited;
            judged += visited.teams + visited.classes + visited.groups + visited.plans;
        }
        (started, judged)
    }
}

/// Quota of GPUs, and of cores if those are what lacks: then there are a hundred times as many GPUs as cores.
fn quota(nominal: i64, cores_lack: bool) -> Quota {
    if !cores_lack {
        return gpu_quota(limit(nominal));
    }
    let limits = [(Resource::Gpus, 100 * nominal), (Resource::Cpu, nominal)];
    let limits = limits.map(|(of, nominal)| (of, limit(nominal)));
    vec![(H100.into(), BTreeMap::from(limits))]
}

/// Teams that borrow the same, and all that there is. In each of them gangs wait that ask for one GPU and a core, for two, and so on.
fn full(waiting: usize, cores_lack: bool) -> World {
    let nothing = quota(0, cores_lack);
    let teams = (0..TEAMS).map(|number| Team {
        quota: nothing.clone(),
        preemption: PreemptionPolicy {
            reclaim_within_cohort: ReclaimWithinCohort::Any,
            ..PreemptionPolicy::NEVER
        },
        ..team(&format!("t{number:02}"), Some("all"), limit(0))
    });
    // Where cores lack there are places for everybody.
    let nodes = if cores_lack { 10 * GPUS } else { GPUS } / 8;
    let nodes = (0..nodes).map(|at| node(&format!("n{at:03}"), "s/l", 8));
    let mut world = World {
        state: state(nodes.collect(), teams.collect()),
        now: 0,
        gangs: BTreeMap::new(),
    };
    world.state.apply(Update::Cohort(Cohort {
        sharing: Sharing::FAIR,
        quota: quota(POOL, cores_lack),
        ..cohort("all", None, POOL)
    }));
    for number in 0..GPUS {
        let team = format!("t{:02}", number % TEAMS);
        world.submit(gang(&format!("runs-{number:03}"), &team, 1, 1));
    }
    assert_eq!(world.come_to_rest().0.len(), GPUS);
    for number in 0..TEAMS {
        for pods in 1..=waiting {
            let team = format!("t{number:02}");
            let gang = gang(&format!("waits-{number:02}-{pods:02}"), &team, pods, 1);
            world.submit(at(1, gang));
        }
    }
    assert_eq!(world.come_to_rest().0, [""; 0]);
    world
}

/// What is looked at when one GPU comes free, which goes to the Team that gave it back.
fn looks_after_a_release(waiting: usize, cores_lack: bool) -> (u64, usize) {
    let mut world = full(waiting, cores_lack);
    let before = world.state.visited();
    world.state.apply(Update::NotRunning("runs-000".into()));
    world.state.apply(Update::HoldGone(pod_uid("runs-000-0")));
    let (started, judged) = world.come_to_rest();
    assert_eq!(started, ["waits-00-01"]);
    (world.state.visited() - before, judged)
}

#[test]
fn with_ten_times_the_gangs_that_nobody_gives_way_to_a_release_costs_the_same() {
    for cores_lack in [false, true] {
        let looks = |waiting| looks_after_a_release(waiting, cores_lack);
        let (few, many) = (looks(4), looks(40));
        assert!(many.0 <= 2 * few.0, "looks: {few:?}, then {many:?}");
        assert!(many.1 <= 2 * few.1, "judged: {few:?}, then {many:?}");
    }
}
