//! The guide's table and the cases are the same; so are its files and the scenarios that it counts on.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::cases::CASES;

/// How many forms there are at the least.
const LEAST: usize = 40;
/// The file of what the others name.
pub(crate) const TEMPLATES: &str = "templates";

/// Forms that scenarios with real kubelets and drivers carry from the pod to its end: the form, the scenario's file, and the scenario.
pub(crate) const END_TO_END: [(&str, &str, &str); 10] = [
    (
        "pod-claim-template",
        "gangs/starting.rs",
        "a_pod_that_declares_nothing_but_a_gpu_is_a_gang_of_one",
    ),
    (
        "pods-gang",
        "gangs/starting.rs",
        "a_launcher_without_gpus_starts_together_with_its_workers",
    ),
    (
        "job-indexed",
        "gangs/starting.rs",
        "ten_gangs_that_are_created_at_once_all_start",
    ),
    (
        "pod-gpus",
        "gangs/shorthand.rs",
        "a_pod_that_only_says_how_many_gpus_gets_them",
    ),
    (
        "job-min-count",
        "gangs/partial.rs",
        "a_job_starts_with_the_four_of_its_six_pods_that_fit_and_runs_the_others_next",
    ),
    (
        "stateful-set-gang",
        "gangs/evictions/rolling.rs",
        "a_rolling_update_of_a_stateful_set_that_is_a_gang_comes_to_its_end",
    ),
    (
        "pods-shared-claim",
        "gangs/reasons/until.rs",
        "a_wait_that_somebody_can_end_ends_when_he_does",
    ),
    (
        "pod-containers-share",
        "shipped/given.rs",
        "a_container_gets_its_gpus_and_the_driver_and_nothing_else",
    ),
    (
        "plugin-limits",
        "device_plugins.rs",
        "a_gang_that_only_writes_limits_waits_for_quota_and_runs_whole_beside_one_with_claims",
    ),
    (
        "pod-visible-devices",
        "shipped/side_doors.rs",
        "a_tenant_gets_no_gpu_by_a_side_door",
    ),
];

/// A row of the guide: the form that it links to, and what it says becomes of it.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    form: String,
    outcome: String,
}

/// Fails with everything in which guide, files, cases and scenarios differ.
pub(crate) fn check() -> Result<()> {
    let rows = rows(&guide("pods.md")?)?;
    let expected: Vec<Row> = CASES
        .iter()
        .map(|case| Row {
            form: case.form.to_owned(),
            outcome: case.outcome.to_string(),
        })
        .collect();
    for (row, case) in rows.iter().zip(&expected) {
        ensure!(
            row == case,
            "docs/pods.md says {row:?}, and the cases {case:?}"
        );
    }
    ensure!(
        rows.len() == expected.len(),
        "docs/pods.md has {} rows, and there are {} cases",
        rows.len(),
        expected.len()
    );
    ensure!(rows.len() >= LEAST, "there are {} forms only", rows.len());
    same_files()?;
    scenarios_exist()
}

/// The manifest of a form.
pub(crate) fn manifest(form: &str) -> Result<String> {
    guide(&format!("pods/{form}.yaml"))
}

/// The text of a file of `docs`.
pub(crate) fn guide(name: &str) -> Result<String> {
    fs::read_to_string(docs().join(name)).with_context(|| format!("docs/{name}"))
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// The rows that begin with a link to a manifest.
fn rows(text: &str) -> Result<Vec<Row>> {
    let lines = text.lines().filter(|line| line.starts_with("| ["));
    lines
        .map(|line| {
            let mut cells = line.split('|').skip(1).map(str::trim);
            let (written, outcome) = (cells.next(), cells.next());
            let row = written.zip(outcome).and_then(|(written, outcome)| {
                let (form, rest) = written.strip_prefix('[')?.split_once(']')?;
                let target = rest.strip_prefix('(')?.split_once("):")?.0;
                (target == format!("pods/{form}.yaml")).then(|| Row {
                    form: form.to_owned(),
                    outcome: outcome.to_owned(),
                })
            });
            row.with_context(|| {
                format!("docs/pods.md: not `| [FORM](pods/FORM.yaml): … | … |`: {line}")
            })
        })
        .collect()
}

fn same_files() -> Result<()> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(docs().join("pods"))? {
        files.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    let forms = CASES.iter().map(|case| case.form);
    let named: BTreeSet<String> = forms
        .chain([TEMPLATES])
        .map(|form| format!("{form}.yaml"))
        .collect();
    let differ: Vec<&String> = files.symmetric_difference(&named).collect();
    ensure!(
        differ.is_empty(),
        "docs/pods has other files than there are forms: {differ:?}"
    );
    Ok(())
}

fn scenarios_exist() -> Result<()> {
    let suites = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for (form, file, scenario) in END_TO_END {
        ensure!(
            CASES.iter().any(|case| case.form == form),
            "there is no form {form}"
        );
        let text = fs::read_to_string(suites.join(file)).with_context(|| file.to_owned())?;
        ensure!(
            text.contains(&format!("async fn {scenario}(")),
            "{file} has no scenario {scenario}, which {form} counts on"
        );
    }
    Ok(())
}
