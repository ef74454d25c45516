//! The files of a machine: where an administrator, or kubeadm, would have put them.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{addresses, machine::MachineOptions, prepared};
use crate::{control_plane::ControlPlane, kubeconfig};

/// Where a kubelet finds static pods.
const STATIC_PODS: &str = "/etc/kubernetes/manifests";
/// The manifest of kube-scheduler.
pub const SCHEDULER_MANIFEST: &str = "/etc/kubernetes/manifests/kube-scheduler.yaml";
/// Its kubeconfig.
const SCHEDULER_KUBECONFIG: &str = "/etc/kubernetes/scheduler.conf";

/// Where files are written, and what they are about.
pub(super) struct Paths<'a> {
    pub(super) over: &'a Path,
    pub(super) control_plane: &'a ControlPlane,
    pub(super) nvidia_runtime: &'a Path,
}

impl Paths<'_> {
    /// Writes all of them.
    pub(super) fn write(&self, options: &MachineOptions, number: u8) -> Result<()> {
        let name = &options.name;
        self.file("/etc/containerd/config.toml", &self.containerd(options))?;
        self.json("/etc/cni/net.d/10-pods.conflist", &pod_network(number))?;
        // What pods of the machine's own network ask: nobody.
        self.file("/etc/resolv.conf", "search lab.example\n")?;
        self.json("/etc/kubernetes/kubelet.yaml", &self.kubelet(options))?;
        self.kubeconfig(
            "kubelet.conf",
            &format!("system:node:{name}"),
            "system:nodes",
        )?;
        self.json("/etc/kubernetes/kube-proxy.yaml", &kube_proxy(name))?;
        self.kubeconfig("kube-proxy.conf", "system:kube-proxy", "")?;
        fs::create_dir_all(self.place(STATIC_PODS))?;
        if options.is_control_plane {
            self.kubeconfig("scheduler.conf", "system:kube-scheduler", "")?;
            self.json(SCHEDULER_MANIFEST, &scheduler())?;
        }
        Ok(())
    }

    fn place(&self, path: &str) -> std::path::PathBuf {
        self.over.join(path.trim_start_matches('/'))
    }

    fn file(&self, path: &str, content: &str) -> Result<()> {
        let place = self.place(path);
        let directory = place.parent().context("a file lies in a directory")?;
        fs::create_dir_all(directory)?;
        fs::write(&place, content).with_context(|| place.display().to_string())
    }

    fn json(&self, path: &str, content: &Value) -> Result<()> {
        self.file(path, &format!("{content:#}\n"))
    }

    /// A kubeconfig that is whole in itself, as kubeadm writes them: a pod may have it mounted alone.
    fn kubeconfig(&self, name: &str, user: &str, group: &str) -> Result<()> {
        let group = (!group.is_empty()).then_some(group);
        let pki = self.control_plane.pki();
        // Of each machine its own: machines start side by side.
        let machine = self.over.parent().and_then(Path::file_name);
        let machine = machine.unwrap_or_default().to_string_lossy();
        let identity = pki.client(&format!("{machine}-{name}"), user, group)?;
        let server = self.control_plane.server();
        let content = kubeconfig::whole(&server, &pki.cluster.certificate, &identity)?;
        self.json(&format!("/etc/kubernetes/{name}"), &content)
    }

    fn containerd(&self, options: &MachineOptions) -> String {
        let mut text = CONTAINERD.replace("SANDBOX", prepared::WORKLOAD);
        if options.has_nvidia_runtime {
            let program = self.nvidia_runtime.display().to_string();
            text += &NVIDIA_RUNTIME.replace("PROGRAM", &program);
        }
        text
    }

    fn kubelet(&self, options: &MachineOptions) -> Value {
        let taints: &[Value] = if options.is_control_plane {
            &[json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"})]
        } else {
            &[]
        };
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "failSwapOn": false,
            "cgroupDriver": "cgroupfs",
            "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "staticPodPath": STATIC_PODS,
            "registerWithTaints": taints,
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.control_plane.pki().cluster.certificate},
            },
            "authorization": {"mode": "Webhook"},
            "readOnlyPort": 0,
            // Below 0 needs a capability that virtual machines do not always have.
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "clusterDNS": [addresses::DNS],
            "clusterDomain": "cluster.local",
            "resolvConf": "/etc/resolv.conf",
            "makeIPTablesUtilChains": false,
            // A full disk of the real machine is not what is tested.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
            "nodeStatusUpdateFrequency": "2s",
            // A pod that is gone, a file that changed: seen soon.
            "fileCheckFrequency": "1s",
        })
    }
}

const CONTAINERD: &str = r#"version = 3
disabled_plugins = [
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "SANDBOX"
[plugins."io.containerd.cri.v1.runtime"]
  # The driver knows the second by another name: /var/run is a link.
  cdi_spec_dirs = ["/etc/cdi", "/run/cdi"]
  # Virtual machines do not always have CAP_SYS_RESOURCE.
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
"#;

const NVIDIA_RUNTIME: &str = r#"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "nvidia"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
  BinaryName = "PROGRAM"
"#;

/// A bridge on the machine; nothing is hidden behind its address, since all of the lab knows the way to pods.
fn pod_network(number: u8) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": addresses::pods_of(number)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

fn kube_proxy(machine: &str) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/kube-proxy.conf"},
        "hostnameOverride": machine,
        "clusterCIDR": addresses::PODS,
        "detectLocalMode": "ClusterCIDR",
        // 0 leaves the real machine's settings alone.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    })
}

/// kube-scheduler as kubeadm starts it, without its probes of a second port: a pod of the machine's network that has its
/// kubeconfig mounted and nothing else.
fn scheduler() -> Value {
    let kubeconfig = |flag: &str| format!("--{flag}={SCHEDULER_KUBECONFIG}");
    let labels = BTreeMap::from([("component", "kube-scheduler"), ("tier", "control-plane")]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "kube-scheduler", "namespace": "kube-system", "labels": labels},
        "spec": {
            "hostNetwork": true,
            "priorityClassName": "system-node-critical",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "kube-scheduler",
                "image": prepared::SCHEDULER,
                "imagePullPolicy": "IfNotPresent",
                "command": [
                    "kube-scheduler",
                    kubeconfig("authentication-kubeconfig"),
                    kubeconfig("authorization-kubeconfig"),
                    "--bind-address=127.0.0.1",
                    kubeconfig("kubeconfig"),
                    "--leader-elect=true",
                ],
                "livenessProbe": {
                    "failureThreshold": 8,
                    "httpGet": {"host": "127.0.0.1", "path": "/livez", "port": 10259, "scheme": "HTTPS"},
                    "periodSeconds": 10,
                },
                "readinessProbe": {
                    "failureThreshold": 3,
                    "httpGet": {"host": "127.0.0.1", "path": "/readyz", "port": 10259, "scheme": "HTTPS"},
                    "periodSeconds": 1,
                },
                "resources": {"requests": {"cpu": "100m"}},
                "volumeMounts": [{"mountPath": SCHEDULER_KUBECONFIG, "name": "kubeconfig", "readOnly": true}],
            }],
            "volumes": [{"hostPath": {"path": SCHEDULER_KUBECONFIG, "type": "FileOrCreate"}, "name": "kubeconfig"}],
        },
    })
}
