//! What a machine must have for these tests, said clearly where it is missing.

use std::{process::Command, time::Duration};

use tokio::sync::OnceCell;

use crate::process::Launch;

/// Why the tests cannot run here, if they cannot. Building the programs is not part of it.
pub async fn missing() -> Option<String> {
    for (program, package) in [
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("setpriv", "util-linux"),
        ("flock", "util-linux"),
    ] {
        if !is_on_path(program) {
            return Some(format!(
                "'{program}' (package {package}) is not on the PATH"
            ));
        }
    }
    let ready_made = |variable: &str| std::env::var_os(variable).is_some();
    let all_ready_made = ready_made("MUSTER_KUBE_BIN") && ready_made("MUSTER_HELM_BIN");
    if !is_on_path("go") && !all_ready_made {
        return Some(
            "there is no Go toolchain (1.26 or newer) to build Kubernetes and Helm with; install it, or name ready-made programs by MUSTER_KUBE_BIN and MUSTER_HELM_BIN".to_owned(),
        );
    }
    if !user_namespaces_work().await && !is_root() {
        return Some(
            "this user may not make user namespaces (see sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces or kernel.apparmor_restrict_unprivileged_userns) and is not root".to_owned(),
        );
    }
    None
}

/// Whether a node can have a user and mount namespace of its own, with mounts in it. Tried once, so that all nodes are
/// alike: a try that fails while the machine is busy would make one of them another.
pub async fn user_namespaces_work() -> bool {
    static WORK: OnceCell<bool> = OnceCell::const_new();
    *WORK.get_or_init(try_user_namespaces).await
}

async fn try_user_namespaces() -> bool {
    Launch::new("unshare", "unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "mount",
            "-t",
            "tmpfs",
            "tmpfs",
            "/var/lib",
        ])
        .output(Duration::from_secs(10))
        .await
        .is_ok()
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_on_path(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", "command -v \"$1\" >/dev/null", "sh", program])
        .status()
        .is_ok_and(|status| status.success())
}
