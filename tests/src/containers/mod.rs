//! Machines with real containers: a lab. What users run is what runs here: kubelet, containerd, runc, a pod network, kube-proxy, DNS,
//! the images of Muster and the chart as it is.
//!
//! ```text
//! the suite's program                                   outside: builds what is needed, then runs itself again
//! `- unshare: mounts, network, processes
//!    `- the suite's program (process 1)                 inside: control plane, scenarios
//!       |- etcd, kube-apiserver, kube-controller-manager
//!       |- a bridge, 10.90.0.1
//!       `- unshare: mounts, network, processes, cgroups, name     one for each machine
//!          `- node.sh (process 1): containerd, kubelet, kube-proxy, and all containers
//! ```
//!
//! The end of any of these ends what is below. The network has no way out, so any number of labs run side by side, and
//! addresses are always the same ([`addresses`]). A machine's root is this machine's, with a layer of its own over it
//! (`tests/containers/node.sh`): what runs there finds everything where a node has it, and writes nothing outside.
//!
//! What stands in for the world: NVIDIA's hardware and driver ([`hardware`]). What does not hold here: NetworkPolicies are made
//! and not enforced, since the bridge plugin knows none.

pub mod addresses;
pub mod cgroups;
pub mod enter;
pub mod hardware;
pub mod image;
pub mod image_names;
pub mod kube_scheduler;
pub mod machine;
mod machine_files;
pub mod operator;
pub mod prepared;
pub mod requirements;
pub mod suite;
pub mod workload;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use kube::Client;

use self::{
    cgroups::Cgroups,
    machine::{Machine, MachineOptions},
    prepared::Prepared,
};
use crate::{
    control_plane::{ControlPlane, NODE_MONITOR_GRACE_SECONDS},
    process::Launch,
    progress::ProgressCallback,
};

/// Longest time of one command.
const COMMAND_LIMIT: Duration = Duration::from_mins(2);

/// A running lab.
#[derive(Debug)]
pub struct Lab {
    /// etcd, API server, controller manager.
    pub control_plane: ControlPlane,
    /// Its machines.
    pub machines: Vec<Machine>,
    /// What was built for it.
    pub prepared: Prepared,
    /// What was found out while scenarios ran.
    pub notes: suite::Notes,
}

impl Lab {
    /// Starts everything, and waits until pods run and find each other by name.
    pub async fn start(
        prepared: Prepared,
        machines: Vec<MachineOptions>,
        progress: &ProgressCallback,
    ) -> Result<Self> {
        make_bridge().await?;
        let control_plane = ControlPlane::start(
            &prepared.directory,
            &prepared.kube,
            addresses::CONTROL_PLANE,
            NODE_MONITOR_GRACE_SECONDS,
            progress,
        )
        .await?;
        progress.say(&format!("starting {} machines", machines.len()));
        let all = u8::try_from(machines.len())?;
        for number in 0..all {
            let (pods, machine) = (addresses::pods_of(number), addresses::machine(number));
            ip(&["route", "add", &pods, "via", &machine.to_string()]).await?;
        }
        let cgroups = Cgroups::of(prepared.process)?;
        let started = (0..all).zip(machines).map(|(number, options)| {
            Machine::start(options, number, all, &prepared, &control_plane, &cgroups)
        });
        let mut lab = Self {
            machines: started.collect::<Result<_>>()?,
            control_plane,
            prepared,
            notes: suite::Notes::default(),
        };
        let control_plane = &lab.control_plane;
        let machines = lab.machines.iter_mut();
        try_join_all(machines.map(|machine| machine.wait_until_ready(control_plane))).await?;
        progress.say("starting DNS");
        let manifest =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("containers/coredns/coredns.yaml");
        lab.kubectl(&["apply", "--filename", &manifest.display().to_string()])
            .await?;
        operator::rolled_out(&lab, "kube-system", "deployment/coredns").await?;
        progress.say("the lab is ready");
        Ok(lab)
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.control_plane.client()
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        &self.prepared.directory
    }

    /// A machine by its name.
    pub fn machine(&self, name: &str) -> Result<&Machine> {
        let mut machines = self.machines.iter();
        let found = machines.find(|machine| machine.name() == name);
        found.with_context(|| format!("there is no machine {name}"))
    }

    /// Runs kubectl with all rights, and returns what it prints.
    pub async fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.kubectl_launch(words).output(COMMAND_LIMIT).await
    }

    /// Runs a line of a guide, in the checkout, as an administrator, with kubectl and Helm on the path.
    pub async fn shell(&self, line: &str) -> Result<String> {
        let kube = &self.prepared.kube;
        let path = format!(
            "{}:{}:/usr/bin:/bin",
            kube.kubernetes_directory().display(),
            kube.helm_directory().display()
        );
        Launch::new(line, "bash")
            .args(["-euo", "pipefail", "-c"])
            .arg(format!("cd {}; {line}", repository().display()))
            .env("PATH", path)
            .env("KUBECONFIG", self.control_plane.admin_kubeconfig())
            // Helm keeps its caches there.
            .env("HOME", self.directory())
            .output(COMMAND_LIMIT)
            .await
    }

    /// Fails if a program has ended that should run.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.control_plane.ensure_running()?;
        self.machines
            .iter_mut()
            .try_for_each(Machine::ensure_running)
    }

    fn kubectl_launch(&self, words: &[&str]) -> Launch {
        let kubectl = self.prepared.kube.kubernetes("kubectl");
        Launch::new("kubectl", kubectl)
            .env("KUBECONFIG", self.control_plane.admin_kubeconfig())
            .args(words)
    }
}

/// The checkout.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The bridge that machines are connected to; the control plane is on it.
async fn make_bridge() -> Result<()> {
    ensure!(
        std::process::id() == 1,
        "a lab is made in namespaces of its own"
    );
    let address = format!("{}/24", addresses::BRIDGE);
    ip(&["link", "set", "lo", "up"]).await?;
    ip(&["link", "add", "br0", "type", "bridge"]).await?;
    ip(&["addr", "add", &address, "dev", "br0"]).await?;
    ip(&["link", "set", "br0", "up"]).await
}

async fn ip(words: &[&str]) -> Result<()> {
    let launch = Launch::new(format!("ip {}", words.join(" ")), "ip").args(words);
    launch.output(COMMAND_LIMIT).await.map(drop)
}
