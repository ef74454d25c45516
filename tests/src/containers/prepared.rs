//! What a lab needs of the world outside, built before it is entered: inside there is no way out.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use nvidia_ml_mock::LIBRARY;
use serde::{Deserialize, Serialize};

use super::{
    hardware::{self, Driver},
    image::{self, Image},
    suite,
};
use crate::{
    kube_binaries::{self, KubeBinaries},
    programs::{Programs, Wanted},
    progress::ProgressCallback,
};

/// The image of the workload, and of the process that holds a pod's namespaces.
pub const WORKLOAD: &str = "localhost/workload:1";
/// The image of a workload that knows no glibc.
pub const WITHOUT_GLIBC: &str = "localhost/without-glibc:1";
/// The image of the cluster's DNS.
pub const DNS: &str = "localhost/coredns:1";
/// The image of kube-scheduler, as kubeadm names it.
pub const SCHEDULER: &str = "registry.k8s.io/kube-scheduler:v1.37.1";

/// Programs of Muster as they ship, each with an image of its own.
pub(super) const SHIPPED: [&str; 4] = [
    "muster-controller",
    "muster-webhook",
    "muster-extender",
    "muster-dra-driver",
];
/// Where they lie in the lab's directory, as their images have them.
const STRIPPED: &str = "stripped";
/// What else lies in one of these images.
const TOOL: &str = "muster-cdi-hook";

/// Everything that was built.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Prepared {
    /// Where the lab keeps its files.
    pub directory: PathBuf,
    /// Who made it: names its cgroups.
    pub process: u32,
    /// Kubernetes and Helm.
    pub kube: KubeBinaries,
    /// Directory with containerd and what belongs to it.
    pub containerd: PathBuf,
    /// Archives of all images that machines need.
    pub images: Vec<PathBuf>,
    /// The archive of kube-scheduler's image, which only the control plane's machine needs.
    pub scheduler_image: PathBuf,
    /// Stands for NVIDIA's container runtime.
    pub nvidia_runtime: PathBuf,
    /// The hook of NVIDIA's container toolkit, if scenarios that need it may run.
    pub toolkit_hook: Option<PathBuf>,
}

impl Prepared {
    /// Builds everything. `examples` are further names of the workload's image: those that examples pull.
    pub async fn build(
        directory: &Path,
        examples: &[String],
        progress: &ProgressCallback,
    ) -> Result<Self> {
        progress.say("looking for Kubernetes and Helm (built once, minutes the first time)");
        let kube = KubeBinaries::find().await?;
        progress.say("looking for containerd (built once, a minute or two the first time)");
        let containerd = kube_binaries::build("containers").await?;
        let toolkit_hook = if suite::may_run("toolkit") {
            progress.say("looking for NVIDIA's container toolkit (built once, about a minute the first time)");
            let directory = kube_binaries::build("toolkit").await?;
            Some(directory.join("nvidia-cdi-hook"))
        } else {
            None
        };
        progress.say("building Muster's programs");
        let programs = Programs::find(directory, Wanted::MusterForImages).await?;
        progress.say("making images");
        let images = directory.join("images");
        fs::create_dir_all(&images)?;
        let shipped = ship(&programs, directory, &images)?;
        // Machines see the lab's directory, and not where cargo builds.
        let nvidia_runtime = directory.join("nvidia-container-runtime");
        fs::copy(programs.path("muster-nvidia-runtime"), &nvidia_runtime)?;
        hardware::build_cuda_devices(&directory.join("cuda-devices"))?;
        Driver::build(&hardware_files(directory), &programs.path(LIBRARY))?;

        let workload = images.join("workload.tar");
        let mut names = vec![WORKLOAD.to_owned()];
        names.extend_from_slice(examples);
        // The process that holds a pod's namespaces needs a command.
        let command = [
            "/bin/sh",
            "-c",
            "trap 'exit 0' TERM; sleep 2000000000 & wait",
        ];
        image::workload(&directory.join("cuda-devices"))?.write(&workload, &names, &command)?;
        let without_glibc = images.join("without-glibc.tar");
        let names = [WITHOUT_GLIBC.to_owned()];
        image::without_glibc()?.write(&without_glibc, &names, &command)?;
        let dns = images.join("coredns.tar");
        let program = containerd.join("coredns");
        one_program("coredns", &program)?.write(&dns, &[DNS.to_owned()], &["/coredns"])?;
        let scheduler_image = images.join("kube-scheduler.tar");
        let program = fs::canonicalize(kube.kubernetes("kube-scheduler"))?;
        let names = [SCHEDULER.to_owned()];
        one_program("usr/local/bin/kube-scheduler", &program)?.write(
            &scheduler_image,
            &names,
            &["kube-scheduler"],
        )?;

        let mut all = vec![workload, without_glibc, dns];
        all.extend(shipped);
        Ok(Self {
            directory: directory.to_owned(),
            process: std::process::id(),
            kube,
            containerd,
            images: all,
            scheduler_image,
            nvidia_runtime,
            toolkit_hook,
        })
    }

    /// A program of Muster as its image has it.
    pub fn program(&self, name: &str) -> PathBuf {
        self.directory.join(STRIPPED).join(name)
    }

    /// The driver that machines with GPUs get.
    pub fn driver(&self) -> Result<Driver> {
        Driver::built(&hardware_files(&self.directory))
    }
}

fn hardware_files(directory: &Path) -> PathBuf {
    directory.join("driver")
}

fn one_program(path: &str, program: &Path) -> Result<Image> {
    let mut image = Image::empty();
    image.executable(path, program)?;
    Ok(image)
}

/// Makes the images of Muster's programs by its own command. What was built for tests is stripped of what only debuggers
/// read: it is most of it.
fn ship(programs: &Programs, directory: &Path, images: &Path) -> Result<Vec<PathBuf>> {
    let stripped = directory.join(STRIPPED);
    fs::create_dir_all(&stripped)?;
    for name in SHIPPED.into_iter().chain([TOOL]) {
        let to = stripped.join(name);
        let done = Command::new("strip")
            .arg("-o")
            .arg(&to)
            .arg(programs.path(name))
            .status()
            .context("starting strip")?;
        ensure!(done.success(), "strip: {done}");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    }
    let made = Command::new(programs.path("xtask"))
        .args(["image", "--executables"])
        .arg(&stripped)
        .arg("--output")
        .arg(images)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("starting cargo xtask image")?;
    ensure!(made.status.success(), "cargo xtask image: {}", made.status);
    eprintln!(
        "Images, of programs that are built for tests and stripped:\n{}",
        String::from_utf8_lossy(&made.stdout).trim_end()
    );
    Ok(SHIPPED
        .map(|name| images.join(format!("{name}.tar")))
        .to_vec())
}
