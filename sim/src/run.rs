//! One seed, one run: a phase in which things go wrong, then one in which they do not.

use std::collections::BTreeMap;

use muster_protocol::OnCordon;

use crate::{
    faults::{Fault, Faults},
    fixtures,
    invariants::{Violation, end},
    matrix::{EffectKind, Matrix},
    performing::Performing,
    random::Random,
    scenario::{Hardships, Product, Scenario},
    script::Script,
    world::World,
};

/// Steps after which a run that does not come to rest is a violation.
const MOST_STEPS: u64 = 40_000;
/// Steps for which it is waited at the most until kubelets are back that are silent when the troubles would end, and drains are over: before anybody
/// lost patience, or was moved.
const MOST_STEPS_OF_PATIENCE: u64 = 6_000;
/// Virtual time without a write after which a run is at rest. Longer than any time that the code under test waits
/// for by itself (missing slices count for 120 s).
const REST_MILLISECONDS: u64 = 130_000;
/// The same while some gang is between its admission and its start, or pauses: longer than any limit of a start, of a pod that does not
/// die, or of a pause, which is half an hour at most.
const REST_OF_LIMITS_MILLISECONDS: u64 = 2_000_000;

/// A rule that is broken on purpose.
#[cfg(feature = "injected-bugs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// In the controller's machine.
    Controller(crate::controllers::InjectedBug),
    /// In the driver's machine.
    Driver(crate::drivers::InjectedBug),
    /// In what a driver knows of faults.
    Faults(crate::drivers::FaultBug),
}

/// How what the controllers ask for is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// By the requests of the shipping controller, in bytes.
    #[default]
    Requested,
    /// Done to the API server directly, which comes to the same.
    Applied,
}

/// What a run is made with.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The faults; drawn from the seed without.
    pub faults: Option<Faults>,
    /// What users, administrators and nodes do that only an eviction puts right; what every seed bears, by default.
    pub hardships: Option<Hardships>,
    /// Whether a seed has only what it draws of them ([`Hardships::of_seed`]); else all of them.
    pub draws_hardships: bool,
    /// What is done instead of what the seed draws: its cluster, and its faults alone.
    pub script: Option<Script>,
    /// Rules that are broken on purpose; mostly one, and the two ends of one that stands on both sides.
    #[cfg(feature = "injected-bugs")]
    pub planted: Vec<Planted>,
    /// How what the controllers ask for is carried out.
    pub writes: Writes,
    /// How many steps of the trace are kept; the last 80 without.
    pub trace_lines: Option<usize>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Steps taken.
    pub steps: u64,
    /// Effects of the controllers carried out.
    pub effects: u64,
    /// Attempts whose plan was stored.
    pub admitted: usize,
    /// Gangs that finished.
    pub finished: usize,
    /// Gangs that were deleted by their users.
    pub cancelled: usize,
    /// Pods that got nowhere for ten minutes and were deleted by their users, by what kept them.
    pub given_up: BTreeMap<String, u64>,
    /// Gangs that waited for a claim that another gang held.
    pub waited_for_claims: usize,
    /// How often each thing happened that is worth to be counted: takeovers, notices, evictions by their cause.
    pub tally: BTreeMap<String, u64>,
    /// How often each kind of write was carried out by the controller's requests.
    pub requested: BTreeMap<&'static str, u64>,
    /// What met what.
    pub matrix: Matrix,
    /// Faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// What was wrong, if anything.
    pub violation: Option<Violation>,
    /// What the run began with, and its last steps.
    pub story: String,
}

/// Runs a seed.
pub fn run(seed: u64, options: &Options) -> Report {
    let mut random = Random::new(seed);
    let hardships = options.hardships.clone().unwrap_or_else(Hardships::borne);
    let hardships = if options.draws_hardships {
        hardships.of_seed(seed)
    } else {
        hardships
    };
    let mut drawn = Scenario::draw(&mut random, &hardships);
    drawn.draw_apart(seed, options.faults.is_some());
    let drawn_faults = Faults::draw(&mut random, seed, &hardships);
    let (mut scenario, faults) = match &options.script {
        Some(script) => (script.scenario.clone(), Faults::none()),
        None => (drawn, options.faults.clone().unwrap_or(drawn_faults)),
    };
    let mut troubled_steps = random.between(400, 2_500);
    if faults.aims_at(EffectKind::DeleteGang) {
        scenario.keep_ended_seconds = 2;
        troubled_steps = 2_500;
    }
    if faults.aims_at(EffectKind::ProposeToGang) {
        scenario.whole_intent_bytes = 0;
    }
    let mut world = World::new(&scenario, faults, random);
    if let Some(lines) = options.trace_lines {
        world.trace.keep(lines);
    }
    #[cfg(feature = "injected-bugs")]
    for planted in &options.planted {
        match *planted {
            Planted::Controller(bug) => world.plant_in_controllers(bug),
            Planted::Driver(bug) => world.plant_in_drivers(bug),
            Planted::Faults(bug) => world.plant_about_faults(bug),
        }
    }
    let violation = ready(&mut world, options.writes)
        .and_then(|()| play(&mut world, options.script.as_ref(), troubled_steps))
        .err();
    let wanted: Vec<&str> = world
        .owners
        .wanted()
        .map(|gang| gang.name.as_str())
        .collect();
    let finished = wanted
        .iter()
        .filter(|gang| world.owners.is_complete(gang, &world.api))
        .count();
    Report {
        seed,
        steps: world.steps,
        effects: world.controllers.effects,
        admitted: world.invariants.attempts_admitted(),
        finished,
        cancelled: scenario.gangs.len() - wanted.len(),
        given_up: world.owners.given_up().clone(),
        waited_for_claims: world.invariants.waited_for_claims(),
        tally: world.invariants.tally(),
        requested: world.controllers.requested(),
        matrix: world.matrix.clone(),
        faults: world.faults.injected().clone(),
        violation,
        story: format!("{}{}", describe(&scenario), world.trace.text()),
    }
}

fn ready(world: &mut World, writes: Writes) -> Result<(), Violation> {
    if writes == Writes::Requested {
        let performing = Performing::new().map_err(|error| Violation {
            invariant: "simulator",
            what: format!("no runtime for requests: {error}"),
        })?;
        world.controllers.send_requests(performing);
    }
    Ok(())
}

fn play(world: &mut World, script: Option<&Script>, troubled_steps: u64) -> Result<(), Violation> {
    if let Some(script) = script {
        (script.play)(world)?;
    } else {
        for _ in 0..troubled_steps {
            world.step()?;
        }
        let latest = world.steps + MOST_STEPS_OF_PATIENCE;
        let lasts = |world: &World| world.is_kubelet_silent() || world.is_anything_drained();
        while lasts(world) && world.steps < latest {
            world.step()?;
        }
    }
    come_to_rest(world)
}

/// Nothing goes wrong any more, and everything comes to rest with nothing left over.
///
/// # Errors
///
/// An invariant that breaks on the way or in the end, or that it does not come to rest.
pub fn come_to_rest(world: &mut World) -> Result<(), Violation> {
    world.heal();
    let mut quiet_since = None;
    while world.steps < MOST_STEPS {
        let moved = world.step()?;
        if moved || !world.is_quiet() {
            quiet_since = None;
            continue;
        }
        let since = *quiet_since.get_or_insert(world.now);
        let rest = if world.awaits_limit() {
            REST_OF_LIMITS_MILLISECONDS
        } else {
            REST_MILLISECONDS
        };
        if world.now >= since + rest {
            return end::check(&world.api, &world.nodes, &world.owners);
        }
    }
    let what = format!("no rest after {MOST_STEPS} steps");
    Err(Violation {
        invariant: "L-6",
        what,
    })
}

fn describe(scenario: &Scenario) -> String {
    let mut text = String::new();
    for node in &scenario.nodes {
        text += &format!(
            "{} on {} has {} {}\n",
            node.name,
            node.leaf,
            node.gpus,
            node.product.name()
        );
    }
    for team in &scenario.teams {
        if let Some(fairness) = team.fairness {
            text += &format!(
                "namespaces {} of team {} take turns: {fairness:?}\n",
                team.namespaces.join(" "),
                team.name
            );
        }
        for quota in &team.quotas {
            text += &format!(
                "team {} is guaranteed {} {}, borrows {:?}\n",
                team.name,
                quota.nominal_gpus,
                quota.product.name(),
                quota.borrowing_gpus
            );
        }
    }
    if scenario.on_cordon == OnCordon::Move {
        text += "gangs are moved away from what is drained\n";
    }
    for gang in &scenario.gangs {
        text += &format!(
            "{} of {} in {}{} ({:?}): {} pods{}{} x {} {} at {} ms{}\n",
            gang.name,
            gang.team,
            gang.namespace,
            match gang.tier {
                0 => String::new(),
                tier => format!(", {}", fixtures::TIERS[tier].0),
            },
            gang.owner,
            gang.pods,
            gang.min_count
                .map_or_else(String::new, |least| format!(", {least} at the least,")),
            gang.max_runtime_seconds
                .map_or_else(String::new, |most| format!(", for {most} s at most,")),
            gang.gpus_per_pod,
            gang.product.map_or("GPUs of any kind", Product::name),
            gang.submitted_at,
            gang.shared
                .as_ref()
                .map_or_else(String::new, |shared| format!(
                    "; {} of them share {} with {} GPUs",
                    shared.pods, shared.name, shared.gpus
                ))
        );
    }
    text
}
