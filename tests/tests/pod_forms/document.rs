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

/// How many of them run to their end in a suite that needs no root, and say which GPUs they held.
const LEAST_END_TO_END: usize = 8;

/// A form, and the scenario with real kubelets that runs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    form: &'static str,
    /// Below `tests/tests`.
    file: &'static str,
    scenario: &'static str,
    /// By what the scenario sees what its containers hold.
    seen_by: &'static str,
}

const fn runs_in(
    form: &'static str,
    file: &'static str,
    scenario: &'static str,
    seen_by: &'static str,
) -> Run {
    Run {
        form,
        file,
        scenario,
        seen_by,
    }
}

/// Forms that run from the pod to its end on what real drivers prepare, and say themselves which GPUs they hold.
pub(crate) const END_TO_END: [Run; 9] = [
    runs_in(
        "pod-claim-template",
        "gangs/starting.rs",
        "a_pod_that_declares_nothing_but_a_gpu_is_a_gang_of_one",
        "ranks_got_what_was_allocated(",
    ),
    runs_in(
        "pods-gang",
        "gangs/starting.rs",
        "a_launcher_without_gpus_starts_together_with_its_workers",
        "ranks_got_what_was_allocated(",
    ),
    runs_in(
        "job-indexed",
        "gangs/starting.rs",
        "ten_gangs_that_are_created_at_once_all_start",
        "ranks_got_what_was_allocated(",
    ),
    runs_in(
        "pod-gpus",
        "gangs/shorthand.rs",
        "a_pod_that_only_says_how_many_gpus_gets_them",
        "ranks_got_what_was_allocated(",
    ),
    runs_in(
        "job-min-count",
        "gangs/partial.rs",
        "a_job_starts_with_the_four_of_its_six_pods_that_fit_and_runs_the_others_next",
        "ranks.gpus()",
    ),
    runs_in(
        "stateful-set-gang",
        "gangs/evictions/rolling.rs",
        "a_rolling_update_of_a_stateful_set_that_is_a_gang_comes_to_its_end",
        "ranks.gpus()",
    ),
    runs_in(
        "pod-claim-by-name",
        "gangs/reasons/until.rs",
        "a_wait_that_somebody_can_end_ends_when_he_does",
        "had_a_gpu_each(&holder)",
    ),
    runs_in(
        "pods-shared-claim",
        "gangs/reasons/until.rs",
        "a_wait_that_somebody_can_end_ends_when_he_does",
        "had_a_gpu_each(ranks)",
    ),
    runs_in(
        "pod-containers-share",
        "shipped/given.rs",
        "a_container_gets_its_gpus_and_the_driver_and_nothing_else",
        "given_there(",
    ),
];

/// Forms that no driver has to do with: they run, or are refused, where a device plugin and a runtime are.
pub(crate) const BESIDES: [Run; 2] = [
    runs_in(
        "plugin-limits",
        "device_plugins.rs",
        "a_gang_that_only_writes_limits_waits_for_quota_and_runs_whole_beside_one_with_claims",
        "gangs::charged(",
    ),
    runs_in(
        "pod-visible-devices",
        "shipped/side_doors.rs",
        "a_tenant_gets_no_gpu_by_a_side_door",
        "",
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

/// The rows of all tables. Each begins with a link to a manifest: what is said without one is checked by nobody.
fn rows(text: &str) -> Result<Vec<Row>> {
    let is_heading =
        |line: &str| line.starts_with("| how it is written") || line.starts_with("| --");
    let lines = text
        .lines()
        .filter(|line| line.starts_with('|') && !is_heading(line));
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
    for run in END_TO_END.iter().chain(&BESIDES) {
        let Run {
            form,
            file,
            scenario,
            seen_by,
        } = run;
        ensure!(
            CASES.iter().any(|case| case.form == *form),
            "there is no form {form}"
        );
        let text = fs::read_to_string(suites.join(file)).with_context(|| (*file).to_owned())?;
        let body = text.split_once(&format!("async fn {scenario}("));
        let (_, body) = body.with_context(|| {
            format!("{file} has no scenario {scenario}, which {form} counts on")
        })?;
        let body = body.split_once("\n}\n").map_or(body, |(body, _)| body);
        ensure!(
            body.contains(seen_by),
            "{scenario} does not look at what {form} holds: there is no {seen_by:?}"
        );
    }
    let in_ordinary = END_TO_END
        .iter()
        .filter(|run| !run.file.starts_with("shipped/"));
    let count = in_ordinary.count();
    ensure!(
        count >= LEAST_END_TO_END,
        "{count} forms run to their end only"
    );
    Ok(())
}
