//! GPUs that the driver resets by a command of the administrator, as far as the controller lets it (`docs/adr/0045-gpus-are-reset-by-a-command-under-a-mark.md`).
//!
//! The commands are a shell script, which tells the scenario that it was called, and ends when the scenario lets it. What a reset does to a GPU is done to the
//! mock's cards meanwhile, by the scenario, and noted in the journal like everything else that is: so the observer knows of a proof from the moment
//! when there is one (S7). Each scenario has one node whose driver has commands, and a controller that lets nodes reset GPUs; it gives both back as they were installed.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use futures::future::try_join_all;
use kube::{Api, Client};
use muster_api::{NodeDevices, Reason, Remediation, keys::TAINT_FAULT};
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    events,
    faults::{
        Fault, TargetGpu, ensure_fault_evictions, reset_breaker, wait_for_breaker,
        wait_for_fault_eviction,
    },
    kubernetes::{LIMIT, Progress, always, eventually},
    node::NodePart,
    scenarios,
    suite::Scenario,
    workloads::Workload,
};
use serde_json::json;

use crate::{
    halts::SHARE,
    stage::{Running, Single, ensure_tainted, prepare_team, restart_controller},
};

/// GPUs of a node.
const GPUS: u32 = 8;
/// Nodes that lose a GPU before the breaker is open: one more than may where the share is nothing.
const ALARMED: usize = 3;
/// How long it is looked whether nothing is done: three times as long as it takes until a driver looks again which GPUs are to be reset.
const NOTHING: Duration = Duration::from_secs(6);
/// The same of a node that has just begun to want a reset: half as long again as the 30 s for which the controller has it wait in any case.
const WITHHELD: Duration = Duration::from_secs(45);
/// Longest time until a command is called: the controller has the node wait for 30 s, and the GPU has to be free by then.
const CALL_LIMIT: Duration = Duration::from_mins(2);
/// How long a GPU that was reset is given to be found in order: more than two of the ten seconds after which its driver looks at it.
const SETTLE_SECONDS: u32 = 25;
/// The argument that the chart makes of drivers without a command, by which nothing is reset, and that of these tests.
const RESETS: (&str, &str) = ("--most-nodes-resetting=0", "--most-nodes-resetting=5");
/// Longest time for what these do beside the rest.
const MORE_TIME: Duration = Duration::from_mins(4);
/// What the script is called as.
const RESET: &str = "reset";
const VALIDATION: &str = "validation";
/// The kernel's log of the node, which tells of no fault. Without one that can be read nothing is reset.
const KERNEL_LOG: &str = "6,0,1,-;NVRM: loading\n";
/// Tells that it was called, for which GPU, and waits until it is told to end: for some minutes, longer than any of its deadlines, so that it is left behind by
/// nobody.
const SCRIPT: &str = r#"
directory=${0%/*}
name=$1
echo "$2" >> "$directory/$name.called"
number=$(($(wc -l < "$directory/$name.called")))
tries=0
until test -e "$directory/$name.end-$number" || test -e "$directory/end"; do
    tries=$((tries + 1))
    test "$tries" -lt 3000 || exit 3
    sleep 0.1
done
exit 0
"#;

pub(crate) fn scenarios() -> Vec<Scenario> {
    let evicting = scenarios![
        a_gpu_is_reset_once_nobody_has_it_and_is_of_use_again_only_after_its_validation,
        a_gpu_that_two_resets_do_not_mend_is_retired_however_often_its_driver_starts,
    ];
    let evicting = evicting.into_iter().map(Scenario::with_fault_evictions);
    // The breaker may be open before anybody is evicted.
    let halted = scenarios![while_the_breaker_is_open_no_gpu_is_reset];
    let halted = halted.into_iter().map(Scenario::with_faults);
    let all = evicting.chain(halted);
    all.map(|one| one.with_more_time(MORE_TIME)).collect()
}

/// The commands of a node's driver.
struct Commands {
    node: String,
    directory: PathBuf,
    /// Variables of the driver.
    variables: [(&'static str, String); 2],
}

impl Commands {
    /// Gives the driver of a node a command that resets GPUs, and perhaps one that has to find them in order, as an administrator does: it starts anew.
    async fn install(
        cluster: &mut Cluster,
        node: &str,
        scenario: &str,
        validates: bool,
    ) -> Result<Self> {
        let name = format!("remedies-{scenario}");
        let directory = cluster.node(node)?.directory().join(&name);
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("command.sh"), SCRIPT)?;
        fs::write(directory.join("kmsg"), KERNEL_LOG)?;
        let on_node = format!("/run/machine/{name}");
        let command =
            |word: &str| json!(["/bin/sh", format!("{on_node}/command.sh"), word, "{uuid}"]);
        let mut remedies = json!({
            "reset": {"command": command(RESET), "deadlineSeconds": 90, "settleSeconds": SETTLE_SECONDS},
        });
        if validates {
            // A gang starts anew while it runs.
            remedies["validation"] =
                json!({"command": command(VALIDATION), "deadlineSeconds": 240});
        }
        let commands = Self {
            node: node.to_owned(),
            directory,
            variables: [
                ("MUSTER_REMEDIES", remedies.to_string()),
                ("MUSTER_KERNEL_LOG", format!("{on_node}/kmsg")),
            ],
        };
        commands.crash_driver(cluster).await?;
        Ok(commands)
    }

    /// The driver dies, and another one is started with the same commands.
    async fn crash_driver(&self, cluster: &mut Cluster) -> Result<()> {
        let variables = self.variables.each_ref();
        let variables = variables.map(|(name, value)| (*name, value.as_str()));
        let driver = cluster.node(&self.node)?.service(NodePart::Driver)?;
        driver.kill();
        driver.spawn_with_variables(&variables)?;
        driver.wait_until_ready().await
    }

    /// Whatever runs ends, and the driver is again as it was installed.
    async fn remove(&self, cluster: &mut Cluster) -> Result<()> {
        fs::write(self.directory.join("end"), "")?;
        cluster.node(&self.node)?.crash_driver().await
    }

    /// UUIDs of the GPUs that a command was called for, each time.
    fn calls(&self, word: &str) -> Result<Vec<String>> {
        let file = self.directory.join(format!("{word}.called"));
        match fs::read_to_string(&file) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_context(|| file.display().to_string()),
        }
    }

    /// Waits until a command was called so often, each time for this GPU, and not once more.
    async fn is_called(&self, word: &str, times: usize, gpu: &TargetGpu) -> Result<()> {
        let what = format!(
            "the command {word} was called {times} times on {}",
            self.node
        );
        eventually(&what, CALL_LIMIT, async || {
            let calls = self.calls(word)?;
            let is_meant = calls.iter().all(|called| *called == gpu.uuid);
            Ok(if calls.len() > times || !is_meant {
                Progress::Never(anyhow!("it is to be for {}: {calls:?}", gpu.uuid))
            } else {
                Progress::when(calls.len() == times, || format!("{calls:?}"))
            })
        })
        .await
    }

    /// The command that was called as the one of this number, from 1, ends well.
    fn end(&self, word: &str, number: usize) -> Result<()> {
        fs::write(self.directory.join(format!("{word}.end-{number}")), "")?;
        Ok(())
    }
}

/// Whether the controller lets the driver of a node reset GPUs.
async fn remediation(client: &Client, node: &str) -> Result<Option<Remediation>> {
    let nodes: Api<NodeDevices> = Api::all(client.clone());
    Ok(nodes.get(node).await?.spec.remediation)
}

/// Waits until the driver tells the controller of no fault of the GPU's node any more: the taint goes a moment earlier.
async fn is_told_of_nothing(client: &Client, gpu: &TargetGpu) -> Result<()> {
    let nodes: Api<NodeDevices> = Api::all(client.clone());
    let what = format!("the controller is told of no fault of {}", gpu.node);
    eventually(&what, LIMIT, async || {
        let status = nodes.get(&gpu.node).await?.status.unwrap_or_default();
        let faults = status.faults.unwrap_or_default();
        Ok(Progress::when(faults.is_empty(), || format!("{faults:?}")))
    })
    .await
}

/// What a scenario does while the controller lets nodes reset GPUs, and in which other ways it acts. Whatever came of it, it is as it was installed afterwards.
async fn with_resets(
    cluster: &mut Cluster,
    exchanged: &[(&str, &str)],
    scenario: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let exchanged: Vec<_> = exchanged.iter().copied().chain([RESETS]).collect();
    restart_controller(cluster, &exchanged).await?;
    let judged = scenario(cluster).await;
    restart_controller(cluster, &[]).await?;
    judged
}

/// Waits until the controller says nothing about resets: nothing is wrong with the node's GPUs.
async fn is_allowed_nothing(client: &Client, node: &str) -> Result<()> {
    let what = format!("no reset is allowed on node {node}");
    eventually(&what, LIMIT, async || {
        let now = remediation(client, node).await?;
        Ok(Progress::when(now.is_none(), || format!("{now:?}")))
    })
    .await
}

async fn a_gpu_is_reset_once_nobody_has_it_and_is_of_use_again_only_after_its_validation(
    cluster: &mut Cluster,
) -> Result<()> {
    with_resets(cluster, &[], is_of_use_again).await
}

async fn is_of_use_again(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "reset", GPUS).await?;
    let workload = Workload {
        namespace: "reset",
        name: "train",
        ranks: 2,
        gpus: 2,
    };
    let running = Running::start(cluster, workload, RankProgram::hanging_when_lost).await?;
    let gpu = running.gpu_of(cluster, 1).await?;
    let commands = Commands::install(cluster, &gpu.node, "reset", true).await?;
    let judged = is_reset_and_validated(cluster, &commands, &running, &gpu).await;
    // Whatever was found, the next ones have nothing of it.
    let removed = commands.remove(cluster).await;
    let cleared = gpu.clear(cluster).await;
    judged?;
    removed?;
    cleared?;
    running.finishes(&client).await?;
    let whole = Single::create(cluster, "reset", "whole", GPUS, &gpu.node).await?;
    let given = whole.runs(cluster).await?;
    ensure!(given.contains(&gpu), "it was given {given:?}");
    whole.finishes(&client).await
}

async fn is_reset_and_validated(
    cluster: &Cluster,
    commands: &Commands,
    running: &Running<'_>,
    gpu: &TargetGpu,
) -> Result<()> {
    let client = cluster.client();
    is_allowed_nothing(&client, &gpu.node).await?;
    gpu.inject(Fault::Xid(48))?;
    gpu.wait_until_tainted(&client, TAINT_FAULT, "Reset")
        .await?;
    wait_for_fault_eviction(&client, "reset", &running.gang(), gpu).await?;
    commands.is_called(RESET, 1, gpu).await?;
    let allowed = remediation(&client, &gpu.node).await?;
    ensure!(allowed == Some(Remediation::Allowed), "{allowed:?}");
    ensure_tainted(&client, gpu).await?;
    // The command does its work. While it does the other GPUs of the node are given to nobody: the gang is waited for afterwards.
    gpu.reset()?;
    commands.end(RESET, 1)?;
    commands.is_called(VALIDATION, 1, gpu).await?;
    running.runs_again(cluster, 2, 2 * LIMIT, &[gpu]).await?;
    ensure_fault_evictions(&client, "reset", &running.gang(), 1).await?;
    always(
        "it is not over before it is validated",
        NOTHING,
        async || {
            ensure_tainted(&client, gpu).await?;
            Ok(Progress::Done(()))
        },
    )
    .await?;
    commands.end(VALIDATION, 1)?;
    gpu.wait_until_untainted(&client, &[TAINT_FAULT]).await?;
    is_allowed_nothing(&client, &gpu.node).await?;
    events::wait_for_reason(&client, "default", "Node", &gpu.node, Reason::GpuReset).await?;
    let calls = (commands.calls(RESET)?, commands.calls(VALIDATION)?);
    ensure!(calls.0.len() == 1 && calls.1.len() == 1, "{calls:?}");
    Ok(())
}

async fn a_gpu_that_two_resets_do_not_mend_is_retired_however_often_its_driver_starts(
    cluster: &mut Cluster,
) -> Result<()> {
    with_resets(cluster, &[], is_given_up).await
}

async fn is_given_up(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "in-vain", GPUS).await?;
    let workload = Workload {
        namespace: "in-vain",
        name: "train",
        ranks: 1,
        gpus: 1,
    };
    let running = Running::start(cluster, workload, RankProgram::hanging_when_lost).await?;
    let gpu = running.gpu_of(cluster, 0).await?;
    let commands = Commands::install(cluster, &gpu.node, "in-vain", false).await?;
    let judged = is_retired(cluster, &commands, &running, &gpu).await;
    let removed = commands.remove(cluster).await;
    let cleared = gpu.clear(cluster).await;
    judged?;
    removed?;
    cleared?;
    running.finishes(&client).await
}

/// The driver dies while the first reset is under way, which counts as one all the same, and once more after the second. Neither mends anything.
async fn is_retired(
    cluster: &mut Cluster,
    commands: &Commands,
    running: &Running<'_>,
    gpu: &TargetGpu,
) -> Result<()> {
    let client = cluster.client();
    gpu.inject(Fault::Xid(48))?;
    wait_for_fault_eviction(&client, "in-vain", &running.gang(), gpu).await?;
    commands.is_called(RESET, 1, gpu).await?;
    commands.crash_driver(cluster).await?;
    commands.is_called(RESET, 2, gpu).await?;
    commands.end(RESET, 2)?;
    gpu.wait_until_tainted(&client, TAINT_FAULT, "Retire")
        .await?;
    commands.crash_driver(cluster).await?;
    // It is to be exchanged, and not reset a third time, whatever the controller allows.
    always("it is left alone", NOTHING, async || {
        ensure_tainted(&client, gpu).await?;
        let calls = commands.calls(RESET)?;
        Ok(Progress::when(calls.len() == 2, || format!("{calls:?}")))
    })
    .await?;
    gpu.wait_until_tainted(&client, TAINT_FAULT, "Retire")
        .await?;
    running.runs_again(cluster, 2, 2 * LIMIT, &[gpu]).await?;
    ensure_fault_evictions(&client, "in-vain", &running.gang(), 1).await
}

async fn while_the_breaker_is_open_no_gpu_is_reset(cluster: &mut Cluster) -> Result<()> {
    with_resets(cluster, &[SHARE], async |cluster: &mut Cluster| {
        let judged = is_withheld(cluster).await;
        // Whatever was found, it is closed for those that come after it.
        let reset = reset_breaker(cluster).await;
        judged?;
        reset.map(drop)
    })
    .await
}

/// A false alarm on three nodes opens the breaker. On a fourth one a GPU breaks that nobody uses: nothing else keeps it from being reset.
async fn is_withheld(cluster: &mut Cluster) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "withheld", GPUS).await?;
    let names: Vec<String> = (0..ALARMED)
        .map(|number| format!("train-{number}"))
        .collect();
    let shared = &*cluster;
    let started = names.iter().zip(&shared.nodes).map(async |(name, node)| {
        let workload = Workload {
            namespace: "withheld",
            name,
            ranks: 1,
            gpus: 1,
        };
        let running =
            Running::start_where(shared, workload, RankProgram::hanging_when_lost, |spec| {
                builders::on_node(spec, node.name())
            });
        let running = running.await?;
        let gpu = running.gpu_of(shared, 0).await?;
        anyhow::Ok((running, gpu))
    });
    let gangs = try_join_all(started).await?;
    let node = shared.nodes.get(ALARMED).context("a fourth node")?;
    let idle = TargetGpu::of(node, 0)?;
    let commands = Commands::install(cluster, &idle.node, "withheld", false).await?;
    let judged = is_reset_once_it_is_closed(cluster, &commands, &gangs, &idle).await;
    let removed = commands.remove(cluster).await;
    let broken = gangs.iter().map(|(_, gpu)| gpu).chain([&idle]);
    let shared = &*cluster;
    let cleared = try_join_all(broken.map(|gpu| gpu.clear(shared))).await;
    judged?;
    removed?;
    cleared?;
    for (running, _) in &gangs {
        running.finishes(&client).await?;
    }
    Ok(())
}

async fn is_reset_once_it_is_closed(
    cluster: &Cluster,
    commands: &Commands,
    gangs: &[(Running<'_>, TargetGpu)],
    idle: &TargetGpu,
) -> Result<()> {
    let client = cluster.client();
    for (_, gpu) in gangs {
        gpu.inject(Fault::Xid(48))?;
    }
    wait_for_breaker(&client, true).await?;
    idle.inject(Fault::Xid(48))?;
    idle.wait_until_tainted(&client, TAINT_FAULT, "Reset")
        .await?;
    // Longer than a node waits while the breaker is closed.
    always("nothing is reset", WITHHELD, async || {
        let calls = commands.calls(RESET)?;
        let now = remediation(&client, &idle.node).await?;
        let is_withheld = calls.is_empty() && now != Some(Remediation::Allowed);
        Ok(Progress::when(is_withheld, || {
            format!("{calls:?}, {now:?}")
        }))
    })
    .await?;
    // Else it would be opened again.
    let mended = gangs.iter().map(async |(_, gpu)| {
        gpu.clear(cluster).await?;
        is_told_of_nothing(&client, gpu).await
    });
    try_join_all(mended).await?;
    reset_breaker(cluster).await?;
    wait_for_breaker(&client, false).await?;
    commands.is_called(RESET, 1, idle).await?;
    let allowed = remediation(&client, &idle.node).await?;
    ensure!(allowed == Some(Remediation::Allowed), "{allowed:?}");
    idle.reset()?;
    commands.end(RESET, 1)?;
    idle.wait_until_untainted(&client, &[TAINT_FAULT]).await
}
