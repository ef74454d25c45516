//! `cargo xtask test`: what CI runs, stage by stage, with the time that each took. By itself it is all but two things, which run where they are
//! asked for: the stages that take minutes to build ([`ON_DEMAND`]), and the longer cases of some suites (`--all`).

mod model;
mod report;
mod side_by_side;
mod stages;

use std::{num::NonZero, path::Path, process::Command, thread, time::Duration};

use anyhow::{Result, bail};

use crate::{
    bench,
    build::{self, TestProgram},
    prerequisites, root,
};
use report::Report;
use side_by_side::Suite;
use stages::STAGES;
pub(crate) use stages::succeed;

/// Arguments of `cargo xtask test`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// One suite: a stage, a package's directory (with the packages in it), or a file under `tests/tests` without its ending;
    /// `scenarios` for all of the latter.
    suite: Option<String>,
    /// Names the suites and the measurements, and stops.
    #[arg(long)]
    list: bool,
    /// How often a suite that samples runs.
    #[arg(long)]
    runs: Option<u32>,
    /// The seed that a suite that samples starts from.
    #[arg(long)]
    seed: Option<u64>,
    /// The longer cases, too, of a suite that has a core: `shipped`, `slices`, `faults`, `outages`. No run has them without, CI's neither.
    #[arg(long)]
    all: bool,
}

/// What all suites on the real control plane are called together.
const SCENARIOS: &str = "scenarios";

/// Suites on the real control plane, those that take longest first: started in this order two at a time, they end
/// at about the same time. What is not named comes before them.
const LONGEST_FIRST: [&str; 11] = [
    "gangs",
    "node_loss",
    "shipped",
    "admission_policies",
    "outages",
    "slices",
    "faults",
    "nodes_and_driver",
    "pod_forms",
    "device_plugins",
    "smoke",
];

/// Stages that run where they are named alone, and so not in CI: the promtool of `alerts`, the Helm of `helm3` and the library of `cdi` take
/// minutes to build once.
const ON_DEMAND: [&str; 3] = ["alerts", "helm3", "cdi"];

/// Suites that ask a program honestly while others attack it, and fail unless it answers in time: they run one after the
/// other and beside nothing else. What they measure is what an attack costs, not who else has the cores.
const UNDISTURBED: &str = "hostile_clients";

/// Suites that are called by their target alone, with the package that each is in.
const BY_TARGET: [(&str, &str); 1] = [("device", "gpu")];

/// How many suites on the real control plane run at a time. On two cores two clusters leave about half of the time
/// idle; three would make the kubelets of all of them late.
const CLUSTERS: usize = 2;

/// Longest time of one suite among others: more than twice what the longest takes, and short enough that a suite that hangs is
/// told before CI is cut off.
const LONGEST_SUITE: Duration = Duration::from_mins(25);

/// Runs all stages and suites, or one.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    prerequisites::check()?;
    let root = root();
    let mut report = Report::new();
    let wanted = arguments.suite.as_deref();
    let mut found = false;
    if !arguments.list {
        for (name, stage) in STAGES {
            let is_wanted =
                wanted.map_or_else(|| !ON_DEMAND.contains(&name), |wanted| wanted == name);
            if is_wanted {
                found = true;
                report.stage(name, || stage.run(&root))?;
            }
        }
        if found && wanted.is_some() {
            report.print();
            return Ok(());
        }
    }
    let mut programs = Vec::new();
    report.stage("build", || {
        programs = build::test_programs(&root)?;
        Ok(())
    })?;
    // Scenarios on the real control plane come last: what is cheap to find is found first.
    programs.sort_by_key(|program| {
        let rank = LONGEST_FIRST
            .iter()
            .position(|name| *name == program.target);
        (
            order(program),
            rank,
            program.package.clone(),
            program.target.clone(),
        )
    });
    if arguments.list {
        for (name, _) in STAGES {
            println!("{name}");
        }
        for program in &programs {
            println!("{}", program.suite());
        }
        println!("{SCENARIOS}");
        for (name, _) in bench::names() {
            println!("{name} (cargo xtask bench {name})");
        }
        return Ok(());
    }
    let selected: Vec<&TestProgram> = programs
        .iter()
        .filter(|program| program.is_selected(wanted))
        .collect();
    if selected.is_empty() {
        bail!(
            "no suite is named {:?}; `cargo xtask test --list` names them",
            wanted.unwrap_or_default()
        );
    }
    if let [program] = selected.as_slice() {
        // Nothing is printed after it: its own last line stays the last.
        report.stage(&program.suite(), || program.run(arguments))?;
        return Ok(());
    }
    let (scenarios, others): (Vec<&TestProgram>, Vec<&TestProgram>) = selected
        .into_iter()
        .partition(|program| is_on_control_plane(program));
    let (undisturbed, others): (Vec<&TestProgram>, Vec<&TestProgram>) = others
        .into_iter()
        .partition(|program| program.target == UNDISTURBED);
    let output = root.join("target/suites");
    // Many of these use one core only, and each has its own files; two of them keep two cores busy.
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    for (programs, lanes) in [(undisturbed, 1), (others, cores), (scenarios, CLUSTERS)] {
        let suites = programs.into_iter().map(|program| Suite {
            name: program.suite(),
            command: program.command(arguments),
            limit: LONGEST_SUITE,
        });
        side_by_side::run(suites.collect(), lanes, &output, &mut report)?;
    }
    report.print();
    Ok(())
}

fn is_on_control_plane(program: &TestProgram) -> bool {
    program.is_integration_test && program.package == "tests"
}

/// Pure crates first, then the simulator, then real processes.
fn order(program: &TestProgram) -> u8 {
    match program.package.as_str() {
        _ if is_on_control_plane(program) => 2,
        "sim" => 1,
        _ => 0,
    }
}

impl TestProgram {
    /// What the suite is called on the command line.
    fn suite(&self) -> String {
        let by_target = BY_TARGET.contains(&(self.package.as_str(), self.target.as_str()));
        if is_on_control_plane(self) || (self.is_integration_test && by_target) {
            self.target.clone()
        } else if self.is_integration_test {
            format!("{}/{}", self.package, self.target)
        } else {
            self.package.clone()
        }
    }

    fn is_named(&self, wanted: &str) -> bool {
        let package = Path::new(&self.package);
        self.suite() == wanted
            || (package.starts_with(wanted) && wanted != "tests")
            || (wanted == SCENARIOS && is_on_control_plane(self))
    }

    /// Whether it runs where this was asked for, or everything.
    fn is_selected(&self, wanted: Option<&str>) -> bool {
        wanted.is_none_or(|wanted| self.is_named(wanted))
    }

    fn command(&self, arguments: &Arguments) -> Command {
        let mut command = Command::new(&self.executable);
        command
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .arg("--nocapture");
        if let Some(runs) = arguments.runs {
            command.env("MUSTER_RUNS", runs.to_string());
        }
        if let Some(seed) = arguments.seed {
            command.env("MUSTER_SEED", seed.to_string());
        }
        if arguments.all {
            command.env("MUSTER_ALL", "1");
        }
        command
    }

    fn run(&self, arguments: &Arguments) -> Result<()> {
        succeed(&mut self.command(arguments), &self.suite())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn program(package: &str, target: &str, is_integration_test: bool) -> TestProgram {
        TestProgram {
            package: package.to_owned(),
            target: target.to_owned(),
            is_integration_test,
            executable: PathBuf::new(),
            directory: PathBuf::new(),
        }
    }

    #[test]
    fn a_suite_is_named_by_itself_by_its_package_and_with_all_scenarios() {
        let programs = [
            program("engine", "muster_engine", false),
            program("engine/tests", "order", true),
            program("device", "nvml", true),
            program("device", "gpu", true),
            program("tests", "gangs", true),
            program("tests", "shipped", true),
        ];
        for (wanted, expected) in [
            (
                None,
                vec![
                    "engine",
                    "engine/tests/order",
                    "device/nvml",
                    "gpu",
                    "gangs",
                    "shipped",
                ],
            ),
            (Some("device"), vec!["device/nvml", "gpu"]),
            (Some("gpu"), vec!["gpu"]),
            (Some("device/gpu"), vec![]),
            (Some("engine"), vec!["engine", "engine/tests/order"]),
            (Some("engine/tests/order"), vec!["engine/tests/order"]),
            (Some(SCENARIOS), vec!["gangs", "shipped"]),
            (Some("gangs"), vec!["gangs"]),
            (Some("shipped"), vec!["shipped"]),
            (Some("order"), vec![]),
        ] {
            let selected = programs.iter().filter(|it| it.is_selected(wanted));
            let names: Vec<String> = selected.map(TestProgram::suite).collect();
            assert_eq!(names, expected, "{wanted:?}");
        }
    }

    #[test]
    fn what_is_told_to_run_on_demand_and_in_which_order_exists() {
        let scenarios = root().join("tests/tests");
        let is_suite = |name: &str| {
            scenarios.join(name).is_dir() || scenarios.join(format!("{name}.rs")).is_file()
        };
        for name in LONGEST_FIRST {
            assert!(is_suite(name), "{name}");
        }
        for package in ["webhook", "extender"] {
            let suite = format!("{package}/tests/{UNDISTURBED}.rs");
            assert!(root().join(&suite).is_file(), "{suite}");
        }
        for name in ON_DEMAND {
            assert!(STAGES.iter().any(|(stage, _)| *stage == name), "{name}");
        }
    }
}
