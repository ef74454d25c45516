//! What would leave a cluster without scheduling, or its GPUs with two schedulers, is refused before anything is printed.
//!
//! kube-scheduler decodes its configuration strictly and does not start with one that it does not understand; and of its
//! flags it ignores `--kubeconfig` once it is given a file. On a control plane of kubeadm either shows only as pods that stay
//! Pending, in the whole cluster.

mod extenders;
mod fields;
mod profiles;

use serde_json::Value;

use super::{
    Request,
    refusal::{Reason, Refusal},
    refused,
    target::Target,
};

/// The lease of the cluster's own scheduler, unless it is told another one.
const CLUSTER_LEASE: (&str, &str) = ("kube-system", "kube-scheduler");

/// Whether kube-scheduler can be started with it, and the cluster's pods still find a scheduler.
pub fn check(document: &Value, request: &Request) -> Result<(), Refusal> {
    fields::check(document)?;
    api_server(document, request)?;
    url(request)?;
    leader_election(document, request)?;
    profiles::check(document, request)?;
    extenders::check(document, request)
}

/// What can be said of a configuration without knowing which scheduler it is for, and whether Muster's extender is in it.
pub fn check_alone(document: &Value) -> Result<(), Refusal> {
    fields::check(document)?;
    profiles::names(document)?;
    Ok(())
}

/// The way to the API server.
fn api_server(document: &Value, request: &Request) -> Result<(), Refusal> {
    let connection = &document["clientConnection"];
    let kubeconfig = connection["kubeconfig"].as_str().unwrap_or_default();
    let has_account = match request.target {
        Target::Second => true,
        Target::Kubeadm => {
            request.settings.in_cluster && !request.running.iter().any(|found| found.is_static)
        }
        Target::Other | Target::Managed => request.settings.in_cluster,
    };
    if kubeconfig.is_empty() && !has_account {
        return refused(
            Reason::MissingKubeconfig,
            "clientConnection.kubeconfig is empty, and a kube-scheduler that is given a configuration ignores its flag \
             --kubeconfig: it would schedule nothing. Name the file on its machine by --scheduler-kubeconfig PATH (kubeadm: \
             /etc/kubernetes/scheduler.conf); or say --in-cluster if its pod has a ServiceAccount, which a static pod never has",
        );
    }
    if !kubeconfig.is_empty() && !kubeconfig.starts_with('/') {
        return refused(
            Reason::InvalidField,
            format!(
                "clientConnection.kubeconfig {kubeconfig}: must be an absolute path on the scheduler's machine"
            ),
        );
    }
    Ok(())
}

/// A scheduler on its machine's network asks its machine's resolver, which knows no Services.
fn url(request: &Request) -> Result<(), Refusal> {
    let url = &request.endpoint.url;
    let parsed: Result<http::Uri, _> = url.parse();
    let host = parsed.as_ref().ok().and_then(http::Uri::host);
    let Some(host) = host else {
        return refused(
            Reason::InvalidField,
            format!("--extender-url {url}: names no host"),
        );
    };
    if is_a_services_name(host) && request.target != Target::Second {
        return refused(
            Reason::UnresolvableUrl,
            format!(
                "--extender-url {url}: the cluster's own scheduler is on its machine's network, where the name of a Service is \
                 not resolved; leave the flag out, and the Service's cluster IP is taken"
            ),
        );
    }
    Ok(())
}

/// NAME.NAMESPACE.svc, with or without the cluster's domain.
pub(crate) fn is_a_services_name(host: &str) -> bool {
    let third = host.split('.').nth(2);
    third.is_some_and(|label| label.eq_ignore_ascii_case("svc"))
}

fn leader_election(document: &Value, request: &Request) -> Result<(), Refusal> {
    let election = &document["leaderElection"];
    let in_file = election["leaderElect"].as_bool().unwrap_or(true);
    let replicas = request.running.len();
    let mut running = request.running.iter();
    let not_electing = running.find(|scheduler| !scheduler.leader_elect.unwrap_or(in_file));
    if let Some(scheduler) = not_electing.filter(|_| replicas > 1) {
        let (pod, cause, remedy) = match scheduler.leader_elect {
            // The flag holds beside the file, whatever that says.
            Some(_) => (
                scheduler.pod.as_str(),
                "is started with --leader-elect=false",
                "take that flag from it",
            ),
            None => (
                "leaderElection.leaderElect",
                "is false",
                "say --leader-elect=true",
            ),
        };
        return refused(
            Reason::SeveralActive,
            format!(
                "{pod} {cause} and {replicas} schedulers run: more than one would be active and give away the same devices; \
                 {remedy}"
            ),
        );
    }
    let named = |field: &str, otherwise: &'static str| {
        let name = election[field].as_str();
        name.filter(|name| !name.is_empty()).unwrap_or(otherwise)
    };
    let lease = (
        named("resourceNamespace", CLUSTER_LEASE.0),
        named("resourceName", CLUSTER_LEASE.1),
    );
    if request.target == Target::Second && in_file && lease == CLUSTER_LEASE {
        return refused(
            Reason::SharedLease,
            format!(
                "leaderElection.resourceNamespace {}, resourceName {}: that is the lease of the cluster's own scheduler, and one \
                 of the two would wait for ever; name another lease",
                lease.0, lease.1
            ),
        );
    }
    Ok(())
}
