//! `docs/first-hour.md`, from a cluster where nothing of Muster is to a gang that waits and says why: its files and its commands, in
//! its order and word for word.
//!
//! What differs here stands in [`here`]: programs are built already, there is no registry, and hardware is played.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use muster_tests::{
    containers::{
        Lab, hardware, image_names, kube_scheduler, operator, operator::TEAM_NAMESPACE, repository,
    },
    kubernetes::{LIMIT, Progress, eventually},
};
use serde_json::json;

use crate::{CONTROL, GPU_MACHINES, examples, scheduler, uninstall};

/// Whether a command's output is as the guide promises.
type Look = fn(&str) -> bool;

/// What a command begins with, and what the guide promises of it.
const PROMISED: &[(&str, Look)] = &[
    (
        "cargo run --release --package muster-controller -- preflight ",
        |said| said.contains("NotInstalled") && said.contains("\n0 errors,"),
    ),
    ("cargo xtask image --repository ", |_| true),
    ("kubectl create namespace muster-system", |_| true),
    ("kubectl label namespace muster-system ", |_| true),
    ("helm install muster ", |said| {
        said.contains("(mode Observe)")
    }),
    ("kubectl --namespace muster-system get pods", |said| {
        rows(said, "muster-", &["1/1", "Running"]) == 6
    }),
    ("kubectl label node NODE ", |_| true),
    ("kubectl --namespace muster-driver get pods", |said| {
        rows(said, "muster-driver-", &["1/1", GPU_MACHINES[0]]) == 1
    }),
    ("kubectl get resourceslices ", |said| {
        rows(said, "", &[GPU_MACHINES[0], "gpu.muster.dev"]) > 0
    }),
    ("kubectl get nodedevices", |said| {
        rows(said, GPU_MACHINES[0], &[]) == 1
    }),
    ("kubectl apply --filename team.yaml", |_| true),
    ("kubectl get flavors,teams", |said| {
        rows(said, "flavor.muster.dev/gpus ", &["8", "True"]) == 1
            && rows(said, "team.muster.dev/research ", &["8"]) == 1
    }),
    ("helm upgrade muster ", |said| {
        said.contains("(mode Enforce)")
    }),
    (
        "kubectl --namespace muster-system rollout status ",
        has_rolled_out,
    ),
    (
        "kubectl --namespace muster-driver rollout status ",
        has_rolled_out,
    ),
    ("kubectl -n muster-system exec ", |_| true),
    ("helm test muster ", |said| {
        said.contains("1 of 1 GPUs: /dev/nvidia")
    }),
    ("kubectl apply --filename first.yaml", |_| true),
    ("kubectl --namespace research get gangs,pods", |said| {
        rows(said, "gang.muster.dev/job-first-", &["Running"]) == 1
            && rows(said, "pod/first-", &["Running"]) == 2
    }),
    ("kubectl apply --filename second.yaml", |_| true),
    (
        "kubectl --namespace research get gangs --output wide",
        |said| rows(said, "job-second-", &["WaitingForQuota"]) == 1,
    ),
    ("kubectl --namespace research get queues", |said| {
        said.contains("research")
    }),
    ("kubectl --namespace research get events", |said| {
        said.contains("WaitingForQuota")
    }),
    ("kubectl --namespace research delete job first", |_| true),
    ("kubectl --namespace research get gangs", |said| {
        rows(said, "job-second-", &["Running"]) == 1
    }),
];

fn has_rolled_out(said: &str) -> bool {
    said.contains("successfully rolled out")
}

/// How many lines begin so and have all of these words.
fn rows(said: &str, beginning: &str, words: &[&str]) -> usize {
    let has_all = |line: &str| {
        words
            .iter()
            .all(|word| line.split_whitespace().any(|it| it == *word))
    };
    let lines = said.lines().filter(|line| line.starts_with(beginning));
    lines.filter(|line| has_all(line)).count()
}

/// The guide, in `docs`.
pub(crate) const GUIDE: &str = "first-hour.md";

/// Its text.
pub(crate) fn guide() -> Result<String> {
    Ok(fs::read_to_string(repository().join("docs").join(GUIDE))?)
}

/// What is to be done.
#[derive(Debug)]
enum Step {
    /// Lines for a file, behind those that it has.
    File { name: String, content: String },
    /// A line for a shell.
    Command(String),
    /// What the command before says.
    Promise(String),
}

/// The guide's blocks, in its order. A file is the one that was named last before its content.
fn steps(guide: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut named: Option<String> = None;
    let mut open: Option<(String, String)> = None;
    for line in guide.lines() {
        match open.take() {
            None => {
                if let Some(language) = line.strip_prefix("```") {
                    open = Some((language.to_owned(), String::new()));
                } else if let Some(name) = file_named_in(line) {
                    named = Some(name.to_owned());
                }
            }
            Some((language, content)) if line == "```" => match language.as_str() {
                "sh" => {
                    let lines = content.lines().filter(|line| !line.is_empty());
                    steps.extend(lines.map(|line| Step::Command(line.to_owned())));
                }
                "yaml" | "yaml values" => steps.push(Step::File {
                    name: named.clone().context("the guide names no file")?,
                    content,
                }),
                "text" => steps.push(Step::Promise(content)),
                other => bail!("what is to be done with a block of {other:?}?"),
            },
            Some((language, content)) => open = Some((language, format!("{content}{line}\n"))),
        }
    }
    ensure!(open.is_none(), "a block of the guide has no end");
    Ok(steps)
}

/// The last file in a line of the guide.
fn file_named_in(line: &str) -> Option<&str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted
        .filter(|word| {
            Path::new(word)
                .extension()
                .is_some_and(|ending| ending == "yaml")
        })
        .last()
}

/// A line of the guide as it is run here.
fn here(lab: &Lab, line: &str) -> String {
    let controller = lab.prepared.program("muster-controller");
    let kubeconfig = lab.control_plane.admin_kubeconfig();
    let line = line
        .replace(
            "cargo run --release --package muster-controller --",
            &controller.display().to_string(),
        )
        .replace("~/.kube/config", &kubeconfig.display().to_string())
        .replace(" NODE ", &format!(" {} ", GPU_MACHINES[0]))
        .replace(
            "--values muster-values.yaml",
            "--values muster-values.yaml --values hardware.yaml",
        );
    if line.starts_with("helm test ") {
        format!("{line} --timeout 110s")
    } else {
        line
    }
}

/// Where somebody works who goes by the guide: what it takes from the checkout is there.
fn working_directory(lab: &Lab) -> Result<PathBuf> {
    let directory = lab.directory().join("first-hour");
    fs::create_dir(&directory)?;
    std::os::unix::fs::symlink(
        fs::canonicalize(repository().join("deploy"))?,
        directory.join("deploy"),
    )?;
    let values = json!({"driver": hardware::values()});
    fs::write(directory.join("hardware.yaml"), format!("{values:#}\n"))?;
    Ok(directory)
}

/// As the guide for operators says, after users and the release are gone.
pub(crate) async fn nothing_of_muster_is_left_after_the_guides_commands(
    lab: &mut Lab,
) -> Result<()> {
    lab.kubectl(&[
        "delete",
        "namespace",
        TEAM_NAMESPACE,
        examples::NAMESPACE,
        "--ignore-not-found",
    ])
    .await?;
    uninstall::uninstall_if_there(lab).await?;
    kube_scheduler::take_extender_out(lab, CONTROL).await?;
    for line in operator::guide_block("kubectl delete namespace muster-system")?.lines() {
        lab.shell(line).await?;
    }
    let kinds = "crds,namespaces,deviceclasses,clusterroles,clusterrolebindings,validatingadmissionpolicies,\
                 validatingadmissionpolicybindings,mutatingwebhookconfigurations,validatingwebhookconfigurations";
    eventually("nothing is named after Muster", LIMIT, async || {
        let mut left = lab.kubectl(&["get", kinds, "--output=name"]).await?;
        left += &lab
            .kubectl(&[
                "get",
                "nodes",
                "--output=jsonpath={.items[*].metadata.labels}",
            ])
            .await?;
        Ok(Progress::when(!left.contains("muster"), || {
            let lines = left.lines().filter(|line| line.contains("muster"));
            format!("{:?}", lines.collect::<Vec<_>>())
        }))
    })
    .await
}

pub(crate) async fn the_guide_leads_to_a_gang_that_says_why_it_waits_word_for_word(
    lab: &mut Lab,
) -> Result<()> {
    let directory = working_directory(lab)?;
    let mut promised = PROMISED.iter();
    let mut last = String::new();
    for step in steps(&guide()?)? {
        match step {
            Step::File { name, content } => append(&directory.join(name), &content)?,
            Step::Command(line) => {
                let (beginning, is_as_promised) = promised
                    .next()
                    .with_context(|| format!("the guide goes on with: {line}"))?;
                ensure!(
                    line.starts_with(beginning),
                    "the guide says {line:?}, and {beginning:?} was to come"
                );
                run(lab, &directory, &line, *is_as_promised).await?;
                lab.notes.examples += 1;
                last = line;
            }
            Step::Promise(text) => says(lab, &directory, &last, &text).await?,
        }
    }
    let next = promised.next().map(|(beginning, _)| beginning);
    ensure!(next.is_none(), "the guide does not say {next:?}");
    Ok(())
}

async fn run(lab: &mut Lab, directory: &Path, line: &str, is_as_promised: Look) -> Result<()> {
    if let Some((_, repository)) = line.split_once("image --repository ") {
        return image_names::name_too(lab, repository, image_names::VERSION).await;
    }
    if line.contains("scheduler-config") {
        let noted = operator::command(lab, &["scheduler-config > scheduler.yaml"]).await?;
        ensure!(noted == line, "the notes say {noted:?}");
        return scheduler::kube_scheduler_gets_the_extender_as_the_notes_say(lab).await;
    }
    // What is wrong stands in what is printed, not in how it ends.
    let command = format!(
        "cd {}; {{ {}; }} 2>&1 || echo \"it ended with $?\"",
        directory.display(),
        here(lab, line)
    );
    let is_repeated = line.contains(" get ") || line.starts_with("kubectl apply ");
    let what = format!("{line:?} says what the guide does");
    eventually(&what, LIMIT * 2, async || {
        let said = lab.shell(&command).await?;
        let is_so = is_as_promised(&said) && !said.contains("it ended with ");
        Ok(if is_so {
            Progress::Done(())
        } else if is_repeated {
            Progress::NotYet(said)
        } else {
            Progress::Never(anyhow::anyhow!("it says: {said}"))
        })
    })
    .await
}

/// Waits until a command says what the guide shows.
async fn says(lab: &Lab, directory: &Path, line: &str, promised: &str) -> Result<()> {
    let promised = words(promised);
    let command = format!("cd {}; {line}", directory.display());
    eventually("it says what the guide shows", LIMIT, async || {
        let said = words(&lab.shell(&command).await?);
        Ok(Progress::when(said.contains(&promised), || {
            format!("{said}\nand not\n{promised}")
        }))
    })
    .await
}

/// The words, without the ends of Gangs' names, which are made from UIDs.
fn words(text: &str) -> String {
    let words = text.split_whitespace();
    let words = words.map(|word| match word.split_once("/job-first-") {
        Some((before, _)) => format!("{before}/job-first-"),
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn append(file: &Path, content: &str) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(file)?;
    Ok(file.write_all(content.as_bytes())?)
}
