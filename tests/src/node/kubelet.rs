//! What a kubelet needs to run without root, without cgroups and without containers.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::json;

use super::NodeOptions;
use crate::{control_plane::ControlPlane, loopback::Loopback};

/// Longest path of a unix socket, without the closing zero (`sockaddr_un`).
const LONGEST_SOCKET_PATH: usize = 107;

/// Writes the kubelet's files; returns its arguments, and the URL at which it says whether it is well.
pub(super) fn arguments(
    options: &NodeOptions,
    directory: &Path,
    loopback: &Loopback,
    control_plane: &ControlPlane,
) -> Result<(Vec<String>, String)> {
    let socket = directory.join("cri.sock");
    anyhow::ensure!(
        socket.as_os_str().len() <= LONGEST_SOCKET_PATH,
        "{} is longer than the {LONGEST_SOCKET_PATH} bytes that a unix socket's path may have: set TMPDIR to a shorter directory",
        socket.display()
    );
    let name = &options.name;
    let kubeconfig = control_plane.kubeconfig_for(
        &format!("node-{name}"),
        &format!("system:node:{name}"),
        Some("system:nodes"),
    )?;
    let [port, healthz_port] = loopback.free_ports()?;
    let file = directory.join("kubelet.yaml");
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        // Errors of sysctl, rlimit and kernel log are tolerated.
        "featureGates": {"KubeletInUserNamespace": true},
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": ["none"],
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "address": loopback.address(),
        "port": port,
        "healthzBindAddress": loopback.address(),
        "healthzPort": healthz_port,
        "readOnlyPort": 0,
        // The default of -999 needs a capability of the machine's own namespace.
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": control_plane.pki().cluster.certificate},
        },
        "authorization": {"mode": "Webhook"},
        "makeIPTablesUtilChains": false,
        "failSwapOn": false,
        "resolvConf": "",
        // There is no DNS; without this every pod gets an event that says so.
        "clusterDNS": ["127.0.0.1"],
        "enableControllerAttachDetach": false,
        "localStorageCapacityIsolation": false,
        "imageGCHighThresholdPercent": 100,
        // Zero is refused at the start; a full disk of the test machine is not what is tested.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": directory.join("logs"),
    });
    if let Some(seconds) = options.sync_seconds {
        configuration["syncFrequency"] = json!(format!("{seconds}s"));
    }
    fs::write(&file, format!("{configuration:#}\n"))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let arguments = vec![
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--hostname-override={name}"),
        "--root-dir=/var/lib/kubelet".to_owned(),
        format!("--cert-dir={}", directory.join("certificates").display()),
        "--v=2".to_owned(),
    ];
    let url = format!("http://{}:{healthz_port}", loopback.address());
    Ok((arguments, url))
}
