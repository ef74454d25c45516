//! GPUs that break under gangs: who restarts, who does not, what is closed to new work, and what ends that.
//!
//! Real kubelets and the mock NVML library, by which tests break GPUs ([`muster_tests::faults`]). That a fault is told until something ended
//! it (S7), and that it costs whoever holds the device, once (S8), is judged by the observer in every scenario; here is what it must not see.
//! A claim that is prepared while an earlier one is held by force-deleted pods (k/k#141471) is `same_gpu` in `nodes_and_driver`, and in `slices`
//! `overlapping`. Nodes that are lost are the suite `node_loss`.
//!
//! As part of all tests this suite runs a sample: the seed chooses. `cargo xtask test faults --all` runs all of it, with gangs of 64 pods.

mod budgets;
mod classes;
mod cordon;
mod crowd;
mod drains;
mod halts;
mod hung;
mod limits;
mod node_condition;
mod peers;
mod preempted;
mod recovery;
mod remedies;
mod restarts;
mod stage;
mod stages_of_life;

use std::{collections::BTreeMap, env, process::ExitCode, sync::OnceLock, time::SystemTime};

use muster_tests::{
    cluster::ClusterOptions,
    gpu_board::Board,
    install::MusterOptions,
    node::{BOOT_ID_ARGUMENT, NodeOptions},
    suite::{self, Scenario},
};

use crate::stage::ROOM;

/// Set for the long form of a suite.
const ALL: &str = "MUSTER_ALL";
/// Set to a number, it chooses the sample.
const SEED: &str = "MUSTER_SEED";
/// The nodes of the sample; each has eight GPUs.
const NODES: usize = 4;
/// Nodes of the whole: as many as 64 pods with a GPU each need, and one more.
const ALL_NODES: usize = 9;

fn main() -> ExitCode {
    let is_all = env::var_os(ALL).is_some();
    let node = |number: usize| NodeOptions {
        name: format!("node-{number}"),
        labels: BTreeMap::from([(ROOM.to_owned(), room(number))]),
        board: Some(Board::H100Nvswitch8),
        // Who is refused while there is no driver is asked about again at the pod's next regular look.
        sync_seconds: Some(5),
        ..NodeOptions::default()
    };
    let nodes = if is_all { ALL_NODES } else { NODES };
    let options = ClusterOptions {
        nodes: (0..nodes).map(node).collect(),
        muster: Some(MusterOptions {
            values: vec![
                // Scenarios break GPUs of one node after another. What opens the breaker says so itself.
                halts::CLOSED_BREAKER.to_owned(),
                format!("driver.extraArgs={{{BOOT_ID_ARGUMENT}}}"),
            ],
            ..MusterOptions::default()
        }),
        ..ClusterOptions::default()
    };
    let mut scenarios = classes::scenarios(is_all);
    scenarios.extend(recovery::core());
    scenarios.extend(node_condition::scenarios());
    let further = [
        recovery::further(),
        crowd::scenarios(),
        stages_of_life::scenarios(),
        halts::scenarios(),
        cordon::scenarios(),
        restarts::scenarios(),
    ];
    let further: Vec<Scenario> = further.into_iter().flatten().collect();
    if is_all {
        scenarios.extend(further);
        let longer = [
            stages_of_life::longer_scenarios(),
            recovery::longer(),
            hung::scenarios(),
            drains::scenarios(),
            remedies::scenarios(),
            preempted::scenarios(),
            peers::scenarios(),
            limits::scenarios(),
        ];
        scenarios.extend(longer.into_iter().flatten());
    } else {
        scenarios.extend(one_of(further, seed()));
    }
    suite::run("faults", options, scenarios)
}

/// Two nodes by two.
fn room(node: usize) -> String {
    format!("room-{}", node / 2)
}

/// What chooses the sample: the seed that is given, else another one each second; the same all the time. It is told, so that a run can be repeated.
pub(crate) fn seed() -> usize {
    static CHOSEN: OnceLock<usize> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let given = env::var(SEED).ok().and_then(|seed| seed.parse().ok());
        given.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.map_or(0, |now| usize::try_from(now.as_secs()).unwrap_or(0))
        })
    })
}

/// One of them. Filters by name find all of them where they are asked for by `--all`.
fn one_of(scenarios: Vec<Scenario>, seed: usize) -> Vec<Scenario> {
    let number = seed % scenarios.len().max(1);
    eprintln!(
        "faults: seed {seed} chooses the sample ({SEED}={seed} repeats it, --all runs everything)"
    );
    scenarios.into_iter().skip(number).take(1).collect()
}
