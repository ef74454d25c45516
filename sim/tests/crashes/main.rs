//! Something befalls gangs that run, and while they are started anew elsewhere each process is killed, at each step of that: the leader, drivers,
//! kubelets, the leader and a driver at once. It comes to rest with as many restarts as without, whenever that was. What befalls them is a [`Story`].
//!
//! The same seed gives the same run up to the kill, so a clean play says how many steps there are. As many of them are tried as a minute allows for all
//! stories, others with each process and seed; `MUSTER_STRIDE=1` tries all, `MUSTER_SEED` and `MUSTER_RUNS` choose the seeds.
//!
//! **Killed** is whoever loses by that what a recovery hangs on, on machines that live ([`Victim`]):
//!
//! * the **leader**: what it has decided and not committed, for how long it has seen anything, and which answers it waits for;
//! * **drivers**: what they have yet to write to their disk, or to tell the API server;
//! * **kubelets**: which calls of drivers are under way, and which pods they were about to start or end.
//!
//! **Not killed** is
//!
//! * the controller's other replica: it waits for the lease, and knows nothing that it does not list when it begins to lead;
//! * the API server: what it has answered is stored, and what it has not is what a leader finds that dies before or after a write;
//! * kube-scheduler and the controllers of Kubernetes: each of their steps follows from what they watch, which comes late at any time anyway;
//! * a rank: that is a failure of its gang, and so another cause to begin with;
//! * a machine, and whatever dies with it: that is what some stories are about, and there neither the driver nor the kubelet of that node is a victim.

mod stories;

use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, Reason};
use muster_sim::{
    faults::Faults,
    gpu_node::GpuNode,
    invariants::Violation,
    random::Random,
    run::come_to_rest,
    seeds,
    world::{Steps, World},
};
use stories::{Stage, Story, never};

/// Least steps between two that are tried, unless it is said how many.
const LEAST_STRIDE: u64 = 10;
/// Least kills of each process that show anything.
const LEAST_TRIES: u64 = 4;
const SEEDS: u64 = 1;
/// Steps after which a story is taken for one that never ends.
const MOST_STEPS: u64 = 20_000;

/// What is killed: here is the node of what happens, elsewhere one where the gang is started anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Leader,
    DriverHere,
    DriverElsewhere,
    KubeletHere,
    KubeletElsewhere,
    LeaderAndDriverHere,
    LeaderAndDriverElsewhere,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Another node: where pods of a later attempt run, or as long as none does any.
fn elsewhere(world: &World, stage: &Stage) -> String {
    let is_new = |node: &GpuNode| {
        let mut pods = node.containers.keys();
        pods.any(|pod| !stage.before.contains(pod))
    };
    let mut others = world.nodes.iter().filter(|(name, _)| **name != stage.node);
    let new = others.clone().find(|(_, node)| is_new(node));
    let other = new.or_else(|| others.next());
    other.map_or_else(String::new, |(name, _)| name.clone())
}

fn kill_driver(world: &mut World, node: &str) {
    if let Some(instance) = world.newest_instance(node) {
        world.crash_instance(node, instance);
    }
}

fn kill(world: &mut World, victim: Victim, stage: &Stage) {
    let elsewhere = elsewhere(world, stage);
    match victim {
        Victim::Leader => world.crash_leader(),
        Victim::DriverHere => kill_driver(world, &stage.node),
        Victim::DriverElsewhere => kill_driver(world, &elsewhere),
        Victim::KubeletHere => world.restart_kubelet(&stage.node),
        Victim::KubeletElsewhere => world.restart_kubelet(&elsewhere),
        Victim::LeaderAndDriverHere => {
            world.crash_leader();
            kill_driver(world, &stage.node);
        }
        Victim::LeaderAndDriverElsewhere => {
            world.crash_leader();
            kill_driver(world, &elsewhere);
        }
    }
}

/// Plays a story in which somebody is killed after so many steps of it, if anybody is. How many steps it took until it was over.
fn play(story: &Story, world: &mut World, killed: Option<(Victim, u64)>) -> Result<u64, Violation> {
    world.hold(Steps::Ranks);
    let stage = (story.begin)(world)?;
    (story.strike)(world, &stage);
    let mut steps = 0;
    let mut has_shown = false;
    while !(story.is_over)(world, &stage) {
        if let Some((victim, after)) = killed
            && after == steps
        {
            kill(world, victim, &stage);
        }
        if steps >= MOST_STEPS {
            return Err(never("it is over"));
        }
        world.step()?;
        steps += 1;
        has_shown = has_shown || (story.has_shown)(world);
    }
    come_to_rest(world)?;
    if !has_shown {
        return Err(never("what it is about happens"));
    }
    let reasons: Vec<Reason> = world
        .api
        .list::<Gang>()
        .flat_map(|gang| gang.status.iter().flat_map(|status| &status.evictions))
        .map(|eviction| eviction.reason)
        .collect();
    let are_meant = reasons.iter().all(|reason| story.reasons.contains(reason));
    if !are_meant || !story.evictions.contains(&reasons.len()) {
        let what = format!(
            "attempts were evicted for {reasons:?}, and {:?} of {:?} were to be",
            story.evictions, story.reasons
        );
        return Err(Violation {
            invariant: "S10",
            what,
        });
    }
    let mut gangs = world.owners.wanted();
    if !gangs.all(|gang| world.owners.is_complete(&gang.name, &world.api)) {
        return Err(never("all gangs finish"));
    }
    Ok(steps)
}

/// What came of it, and how what failed went.
fn played(story: &Story, seed: u64, killed: Option<(Victim, u64)>) -> Result<u64, String> {
    let mut world = World::new(&(story.scenario)(), Faults::none(), Random::new(seed));
    world.trace.keep(400);
    let outcome = play(story, &mut world, killed);
    outcome.map_err(|violation| {
        let pods = world.api.list::<Pod>().count();
        format!(
            "seed {seed}, {killed:?}: {violation}; {pods} pods\n{}",
            world.trace.text()
        )
    })
}

/// Kills each victim at every few steps of a story. At how many; or how it went where it broke anything, or went otherwise than the story.
fn sweep(story: &Story) -> Result<String, String> {
    let mut told = Vec::new();
    let first = number("MUSTER_SEED").unwrap_or(1);
    let runs = number("MUSTER_RUNS").unwrap_or(SEEDS);
    for seed in first..first + runs {
        let steps = played(story, seed, None);
        let steps = steps.map_err(|how| format!("nobody is killed: {how}"))?;
        let ordinary = (steps / story.tries).max(LEAST_STRIDE);
        let stride = number("MUSTER_STRIDE").unwrap_or(ordinary).max(1);
        let tries = steps / stride;
        told.push(format!(
            "seed {seed}: {steps} steps, of which {tries} are tried with each of {:?}",
            story.victims
        ));
        if tries < LEAST_TRIES {
            return Err(format!("{tries} of {steps} steps are hardly any"));
        }
        let count = story.victims.len() as u64;
        let failed = seeds::all(0..tries * count, |number| {
            let place = number % count;
            let victim = usize::try_from(place)
                .ok()
                .and_then(|it| story.victims.get(it))?;
            // Each is killed at other steps.
            let after = number / count * stride + (place * stride / count + seed) % stride;
            played(story, seed, Some((*victim, after))).err()
        });
        let failed: Vec<String> = failed.into_iter().flatten().collect();
        if let Some(how) = failed.first() {
            let kills = tries * count;
            return Err(format!("{} of {kills} kills: {how}", failed.len()));
        }
    }
    Ok(told.join("\n"))
}

#[test]
fn whoever_is_killed_at_whatever_step_of_a_recovery_it_ends_with_one_restart() {
    let told = sweep(&stories::a_gpu_breaks()).unwrap_or_else(|how| panic!("{how}"));
    println!("{told}");
}

#[test]
fn whoever_is_killed_while_two_faults_are_recovered_from_it_ends_with_two_restarts_at_the_most() {
    let told = sweep(&stories::two_gpus_break_at_once()).unwrap_or_else(|how| panic!("{how}"));
    println!("{told}");
}

#[test]
fn whoever_is_killed_while_a_node_is_lost_the_gang_goes_on_elsewhere_after_one_restart() {
    let told = sweep(&stories::a_node_is_lost()).unwrap_or_else(|how| panic!("{how}"));
    println!("{told}");
}

#[test]
fn whoever_is_killed_while_a_gang_is_moved_it_is_moved_once() {
    let told = sweep(&stories::a_gang_is_moved()).unwrap_or_else(|how| panic!("{how}"));
    println!("{told}");
}

#[test]
fn whoever_is_killed_while_pods_are_deleted_by_force_behind_a_fence_the_gang_goes_on_elsewhere() {
    let told =
        sweep(&stories::pods_are_forced_behind_a_fence()).unwrap_or_else(|how| panic!("{how}"));
    println!("{told}");
}

#[test]
fn whoever_is_killed_while_the_breaker_opens_nobody_goes_before_a_person_closes_it() {
    let told = sweep(&stories::the_breaker_opens()).unwrap_or_else(|how| panic!("{how}"));
    println!("{told}");
}
