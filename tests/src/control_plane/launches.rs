//! The command lines of the control plane.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

use super::ControlPlane;
use crate::process::Launch;

/// Most that etcd keeps, in bytes: the largest for which it does not warn.
const MOST_BYTES: u64 = 8 << 30;

impl ControlPlane {
    pub(super) fn etcd(&self) -> Launch {
        let client = self.url("http", self.ports.etcd);
        let peer = self.url("http", self.ports.etcd_peer);
        self.launch("etcd")
            .arg("--name=muster")
            .arg(format!(
                "--data-dir={}",
                self.directory.join("etcd").display()
            ))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=muster={peer}"))
            // A test cluster does not outlive its machine, and fsync is most of what etcd does.
            .arg("--unsafe-no-fsync=true")
            // The API server forgets old revisions every five minutes only: what measurements write within ten may be more than the 2 GiB after which
            // etcd by itself takes no write any more.
            .arg(format!("--quota-backend-bytes={MOST_BYTES}"))
            .arg("--log-level=warn")
    }

    pub(super) fn apiserver(&self) -> Result<Launch> {
        let names = [
            &self.network.address.to_string(),
            "127.0.0.1",
            "localhost",
            "kubernetes.default.svc",
            &self.network.kubernetes_service.to_string(),
        ]
        .map(str::to_owned);
        let serving = self.pki.server("kube-apiserver", &names)?;
        let front_proxy = self.pki.front_proxy_client()?;
        let audit_policy = self.directory.join("audit-policy.yaml");
        fs::write(&audit_policy, audit_policy_content().to_string())?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let issuer = "https://kubernetes.default.svc";
        Ok(self
            .launch("kube-apiserver")
            .arg(format!(
                "--etcd-servers={}",
                self.url("http", self.ports.etcd)
            ))
            .arg(format!("--bind-address={}", self.network.address))
            .arg(format!("--advertise-address={}", self.network.address))
            .arg(format!("--secure-port={}", self.ports.apiserver))
            .args(self.reaching_pods()?)
            // The observer reads what is stored.
            .arg("--storage-media-type=application/json")
            .arg(file("tls-cert-file", &serving.certificate))
            .arg(file("tls-private-key-file", &serving.key))
            .arg(file("client-ca-file", &self.pki.cluster.certificate))
            .arg("--authorization-mode=Node,RBAC")
            .arg("--enable-admission-plugins=NodeRestriction")
            .arg(format!("--service-account-issuer={issuer}"))
            .arg(file(
                "service-account-key-file",
                &self.pki.service_accounts_public,
            ))
            .arg(file(
                "service-account-signing-key-file",
                &self.pki.service_accounts,
            ))
            .arg(format!("--api-audiences={issuer}"))
            .arg(format!(
                "--service-cluster-ip-range={}",
                self.network.services
            ))
            .arg("--allow-privileged=true")
            .arg(file(
                "requestheader-client-ca-file",
                &self.pki.front_proxy.certificate,
            ))
            .arg("--requestheader-allowed-names=front-proxy-client")
            .arg("--requestheader-username-headers=X-Remote-User")
            .arg("--requestheader-group-headers=X-Remote-Group")
            .arg("--requestheader-extra-headers-prefix=X-Remote-Extra-")
            .arg(file("proxy-client-cert-file", &front_proxy.certificate))
            .arg(file("proxy-client-key-file", &front_proxy.key))
            .arg(file("audit-policy-file", &audit_policy))
            .arg(file("audit-log-path", &self.audit_log()))
            .arg("--v=1"))
    }

    /// How the API server and what runs in the cluster find each other.
    fn reaching_pods(&self) -> Result<Vec<String>> {
        if !self.network.reaches_pods {
            // The Service `kubernetes` is not reached by anybody.
            return Ok(vec!["--endpoint-reconciler-type=none".to_owned()]);
        }
        let group = Some("system:masters");
        let client = self
            .pki
            .client("kubelet-client", "kube-apiserver-kubelet-client", group)?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        Ok(vec![
            // There is no kube-proxy beside it: it dials the endpoints of a webhook's Service.
            "--enable-aggregator-routing=true".to_owned(),
            // Nodes have no names in any DNS.
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            file("kubelet-client-certificate", &client.certificate),
            file("kubelet-client-key", &client.key),
        ])
    }

    pub(super) fn controller_manager(&self) -> Result<Launch> {
        let user = "system:kube-controller-manager";
        let kubeconfig = self.kubeconfig_for("controller-manager", user, None)?;
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        Ok(self
            .launch("kube-controller-manager")
            .arg(file("kubeconfig", &kubeconfig))
            .args(self.serving(self.ports.controller_manager, &kubeconfig))
            .arg("--leader-elect=false")
            .arg("--use-service-account-credentials=true")
            .arg(file("root-ca-file", &self.pki.cluster.certificate))
            .arg(file(
                "service-account-private-key-file",
                &self.pki.service_accounts,
            ))
            .arg(file(
                "cluster-signing-cert-file",
                &self.pki.cluster.certificate,
            ))
            .arg(file("cluster-signing-key-file", &self.pki.cluster.key))
            .arg("--node-monitor-period=1s")
            .arg(format!(
                "--node-monitor-grace-period={}s",
                self.node_monitor_grace_seconds
            ))
            .arg("--terminated-pod-gc-threshold=100")
            .arg("--kube-api-qps=500")
            .arg("--kube-api-burst=1000"))
    }

    /// Flags of a program that asks the API server who its callers are.
    pub(super) fn serving(&self, port: u16, kubeconfig: &Path) -> [String; 4] {
        [
            format!("--bind-address={}", self.network.address),
            format!("--secure-port={port}"),
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
        ]
    }
}

/// Bodies for what Muster decides by and writes; names alone for the rest; reads are left out.
fn audit_policy_content() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "verbs": ["get", "list", "watch"]},
            {"level": "None", "resources": [{"group": "coordination.k8s.io"}, {"group": "", "resources": ["events", "nodes/status"]}]},
            {"level": "Request", "resources": [{"group": "muster.dev"}, {"group": "resource.k8s.io"}, {"group": "", "resources": ["pods", "pods/binding"]}]},
            {"level": "Metadata"},
        ],
    })
}
