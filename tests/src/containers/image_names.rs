//! Images on machines, by containerd's own `ctr`: what an operator does who has no registry.

use anyhow::Result;

use super::{COMMAND_LIMIT, Lab, machine::Machine, prepared::SHIPPED};

/// What the names of Muster's images begin with: the chart's default.
pub const REPOSITORY: &str = "ghcr.io/muster-dev/muster";
/// Their version: that of the checkout.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Gives Muster's images other names on all machines, too: as if they had been made with this repository, at this version.
pub async fn name_too(lab: &Lab, repository: &str, version: &str) -> Result<()> {
    for machine in &lab.machines {
        for program in SHIPPED {
            let suffix = program.strip_prefix("muster").unwrap_or(program);
            let now = format!("{REPOSITORY}{suffix}:{VERSION}");
            let too = format!("{repository}{suffix}:{version}");
            let words = ["images", "tag", "--local", "--force", &now, &too];
            ctr(lab, machine, &words).await?;
        }
    }
    Ok(())
}

/// Imports the archive of kube-scheduler's image, which only machines of the control plane have from the start.
pub async fn import_scheduler(lab: &Lab, machine: &Machine) -> Result<()> {
    let archive = lab.prepared.scheduler_image.display().to_string();
    ctr(lab, machine, &["images", "import", "--local", &archive]).await
}

async fn ctr(lab: &Lab, machine: &Machine, words: &[&str]) -> Result<()> {
    let program = lab.prepared.containerd.join("ctr").display().to_string();
    let socket = "/run/containerd/containerd.sock";
    let common = [
        program.as_str(),
        "--address",
        socket,
        "--namespace",
        "k8s.io",
    ];
    machine
        .run(&[&common[..], words].concat(), COMMAND_LIMIT)
        .await
        .map(drop)
}
