//! Kubernetes alone: control plane, nodes and process runtime. What fails here is no fault of Muster.
//!
//! Where it is run by root, it runs itself a second time as an ordinary user: nothing of the harness
//! may need root.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::Api;
use muster_tests::{
    builders::{self, RankProgram, RankSource},
    cluster::{Cluster, ClusterOptions, Program},
    control_plane::ControlPlanePart,
    kube_binaries::KubeBinaries,
    kubernetes::{self, Progress, eventually},
    node::{NodeOptions, NodePart},
    preflight,
    programs::{Programs, Wanted},
    scenarios, suite,
};

/// The conventional number of a user without rights.
const ORDINARY_USER: &str = "65534";

fn main() -> ExitCode {
    let nodes = ["left", "right"].map(|name| NodeOptions {
        name: name.to_owned(),
        ..NodeOptions::default()
    });
    let options = ClusterOptions {
        nodes: nodes.to_vec(),
        ..ClusterOptions::default()
    };
    let ended = suite::run(
        "smoke",
        options,
        scenarios![
            ranks_of_a_job_meet_across_nodes,
            every_program_is_killed_frozen_and_started_alone,
        ],
    );
    if ended != ExitCode::SUCCESS || !preflight::is_root() {
        return ended;
    }
    match run_as_ordinary_user() {
        Ok(ended) => ended,
        Err(error) => {
            eprintln!("smoke as an ordinary user: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// After each of them a Job still completes.
async fn every_program_is_killed_frozen_and_started_alone(cluster: &mut Cluster) -> Result<()> {
    let left = |part| Program::Node("left", part);
    let programs = [
        Program::ControlPlane(ControlPlanePart::Etcd),
        Program::ControlPlane(ControlPlanePart::ApiServer),
        Program::ControlPlane(ControlPlanePart::ControllerManager),
        Program::ControlPlane(ControlPlanePart::Scheduler),
        left(NodePart::Kubelet),
        left(NodePart::Runtime),
    ];
    for program in programs {
        let service = cluster.service(program)?;
        let before = service.id();
        service.freeze();
        service.thaw();
        service.kill();
        service.start().await?;
        ensure!(service.id() != before, "{program:?} was not started again");
    }
    let api_server = Program::ControlPlane(ControlPlanePart::ApiServer);
    cluster.service(api_server)?.wait_until_ready().await?;
    run_job(cluster, "killed").await
}

async fn ranks_of_a_job_meet_across_nodes(cluster: &mut Cluster) -> Result<()> {
    run_job(cluster, "meet").await
}

async fn run_job(cluster: &mut Cluster, name: &str) -> Result<()> {
    let client = cluster.client();
    builders::namespace(&client, name, None).await?;
    let peers = builders::peers_directory(cluster.directory(), name)?;
    let mut ranks = RankProgram::new(cluster.programs().path("rank"), peers, 4);
    ranks.rank = RankSource::CompletionIndex;
    let spec = builders::pod_spec(&ranks.container(&[])?)?;
    let jobs: Api<Job> = Api::namespaced(client.clone(), name);
    kubernetes::create(&jobs, &builders::indexed_job(name, 4, &[], &spec)?).await?;
    eventually("the Job is complete", Duration::from_mins(1), async || {
        let status = jobs.get_status(name).await?.status.unwrap_or_default();
        Ok(Progress::when(status.succeeded == Some(4), || {
            format!("{status:?}")
        }))
    })
    .await?;
    ranks.ensure_all_met()
}

/// Runs this program again without root, with copies of the programs: those that root has built may lie
/// where only root can read.
fn run_as_ordinary_user() -> Result<ExitCode> {
    let directory = tempfile::Builder::new().prefix("muster-user-").tempdir()?;
    open_to_all(directory.path())?;
    let runtime = tokio::runtime::Runtime::new()?;
    let kube = runtime.block_on(KubeBinaries::find())?;
    let built = directory.path().join("built");
    fs::create_dir(&built)?;
    let programs = runtime.block_on(Programs::find(&built, Wanted::Workload))?;
    let kube_copy = copy_directory(kube.kubernetes_directory(), &directory.path().join("kube"))?;
    let helm_copy = copy_directory(kube.helm_directory(), &directory.path().join("helm"))?;
    let programs_copy = copy_directory(programs.directory(), &directory.path().join("programs"))?;
    let own_copy = directory.path().join("smoke");
    // Not by its name: a build that happened meanwhile has put another file there.
    fs::copy("/proc/self/exe", &own_copy).context("cannot copy the test program")?;
    let temporary = directory.path().join("tmp");
    fs::create_dir(&temporary)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777))?;
    eprintln!("smoke: once more as user {ORDINARY_USER}");
    let status = Command::new("setpriv")
        .arg(format!("--reuid={ORDINARY_USER}"))
        .arg(format!("--regid={ORDINARY_USER}"))
        .args(["--clear-groups", "--no-new-privs", "--"])
        .arg(own_copy)
        .env("TMPDIR", &temporary)
        .env("HOME", &temporary)
        .env("MUSTER_KUBE_BIN", kube_copy)
        .env("MUSTER_HELM_BIN", helm_copy)
        .env("MUSTER_PROGRAMS", programs_copy)
        .status()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(ExitCode::SUCCESS)
}

fn open_to_all(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Copies a flat directory; links stay links to what is beside them.
fn copy_directory(from: &Path, to: &Path) -> Result<PathBuf> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(entry.path())?, target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(to.to_owned())
}
