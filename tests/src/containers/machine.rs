//! A machine of the lab: containerd, kubelet and kube-proxy in namespaces of their own, with a root of its own.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;

pub use super::machine_files::SCHEDULER_MANIFEST;
use super::{addresses, cgroups::Cgroups, machine_files::Paths, prepared::Prepared};
use crate::{
    control_plane::ControlPlane,
    gpu_board::Board,
    kubernetes::{Progress, eventually},
    process::{Launch, Process},
};

/// Longest time until a machine is Ready; on an idle one it takes eight seconds.
const READY_LIMIT: Duration = Duration::from_mins(2);

/// What a machine is to be.
#[derive(Clone, Debug, Default)]
pub struct MachineOptions {
    /// Its name.
    pub name: String,
    /// Its GPUs; none without.
    pub board: Option<Board>,
    /// Whether it is one of the control plane: tainted, and with kube-scheduler as a static pod.
    pub is_control_plane: bool,
    /// Whether NVIDIA's container runtime is its default one, or what does as that does.
    pub has_nvidia_runtime: bool,
}

/// A running machine.
#[derive(Debug)]
pub struct Machine {
    options: MachineOptions,
    directory: PathBuf,
    process: Process,
}

impl Machine {
    /// Switches it on. `all` is how many machines there are, numbered from 0; this is number `number`.
    pub fn start(
        options: MachineOptions,
        number: u8,
        all: u8,
        prepared: &Prepared,
        control_plane: &ControlPlane,
        cgroups: &Cgroups,
    ) -> Result<Self> {
        let lab = &prepared.directory;
        let directory = lab.join("machines").join(&options.name);
        let over = directory.join("over");
        for room in ["over", "disk"] {
            fs::create_dir_all(directory.join(room))?;
        }
        let logs = lab.join("logs").join(&options.name);
        fs::create_dir_all(&logs)?;
        std::os::unix::fs::symlink(&logs, directory.join("log"))?;
        let paths = Paths {
            over: &over,
            control_plane,
            nvidia_runtime: &prepared.nvidia_runtime,
        };
        paths.write(&options, number)?;
        if let Some(board) = &options.board {
            prepared.driver()?.install(&over, &options.name, board)?;
        }
        let others = (0..all).filter(|other| *other != number);
        let routes = others.map(|other| {
            let (pods, machine) = (addresses::pods_of(other), addresses::machine(other));
            format!("{pods} via {machine}")
        });
        let mut images = prepared.images.clone();
        if options.is_control_plane {
            images.push(prepared.scheduler_image.clone());
        }
        let made = cgroups.make(&options.name)?;
        let shown = [
            lab.clone(),
            prepared.containerd.clone(),
            prepared.kube.kubernetes_directory().to_owned(),
        ];
        for (file, lines) in [
            (
                "address",
                vec![format!("{}/24", addresses::machine(number))],
            ),
            ("gateway", vec![addresses::BRIDGE.to_string()]),
            ("routes", routes.collect()),
            ("cgroups", displayed(&made)),
            ("shown", displayed(&shown)),
            ("images", displayed(&images)),
        ] {
            let mut text = lines.join("\n");
            text.push('\n');
            fs::write(directory.join(file), text)?;
        }
        let path = format!(
            "{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            prepared.containerd.display(),
            prepared.kube.kubernetes_directory().display()
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("containers/node.sh");
        let process = Launch::new(&options.name, "bash")
            .arg(script)
            .arg(&directory)
            .env("PATH", path)
            .start(&lab.join("logs"))?;
        Ok(Self {
            options,
            directory,
            process,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Whether it has GPUs.
    pub fn has_gpus(&self) -> bool {
        self.options.board.is_some()
    }

    /// Fails if it has ended.
    pub fn ensure_running(&mut self) -> Result<()> {
        self.process.ensure_running()
    }

    /// Where a path of the machine is for us.
    pub fn path(&self, path: &str) -> Result<PathBuf> {
        let root = PathBuf::from(format!("/proc/{}/root", self.init()?));
        Ok(root.join(path.trim_start_matches('/')))
    }

    /// Runs a command on it, and returns what it prints.
    pub async fn run(&self, words: &[&str], limit: Duration) -> Result<String> {
        let target = format!("--target={}", self.init()?);
        let namespaces = ["--mount", "--net", "--pid", "--cgroup", "--uts"];
        Launch::new(format!("on {}", self.name()), "nsenter")
            .arg(target)
            .args(namespaces)
            .args(words)
            .output(limit)
            .await
    }

    /// Waits until the cluster sees that it is Ready.
    pub async fn wait_until_ready(&mut self, control_plane: &ControlPlane) -> Result<()> {
        let nodes: Api<Node> = Api::all(control_plane.client());
        let name = self.options.name.clone();
        let process = &mut self.process;
        eventually(
            &format!("machine {name} is Ready"),
            READY_LIMIT,
            async || {
                if let Err(ended) = process.ensure_running() {
                    return Ok(Progress::Never(ended));
                }
                let node = nodes.get_opt(&name).await?;
                let status = node.and_then(|node| node.status).unwrap_or_default();
                let conditions = status.conditions.unwrap_or_default();
                let ready = conditions.iter().find(|it| it.type_ == "Ready");
                let is_ready = ready.is_some_and(|it| it.status == "True");
                Ok(Progress::when(is_ready, || format!("{ready:?}")))
            },
        )
        .await
    }

    /// Its first process, as the lab numbers it.
    fn init(&self) -> Result<String> {
        let file = self.directory.join("init.pid");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.trim().to_owned())
    }
}

fn displayed(paths: &[PathBuf]) -> Vec<String> {
    paths
        .iter()
        .map(|path| path.display().to_string())
        .collect()
}
