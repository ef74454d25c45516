//! What need not be told: where Muster is installed, and how the cluster's own scheduler runs.

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Api, Client, ResourceExt, api::ListParams};
use muster_serve::{
    authority_secret::SecretReference,
    client::{CALL_LIMIT, within},
};

use super::{
    extender::Endpoint,
    refusal::{Reason, Refusal},
    refused,
    running::RunningScheduler,
    target::Target,
};
use crate::args::SchedulerConfigArgs;

/// The labels that the chart gives the extender's Service.
const SERVICE_LABELS: &str = "app.kubernetes.io/name=muster,app.kubernetes.io/component=extender";
/// The label of kube-scheduler's pods, as kubeadm and others set it.
const SCHEDULER_LABEL: &str = "component=kube-scheduler";
/// Namespace and Secret where the URL is given and nothing is looked up.
const NAMESPACE: &str = "muster-system";
const SECRET: &str = "muster-extender-ca";

/// Where Muster is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Namespace of the release.
    pub namespace: String,
    /// Secret of the extender's authority and of the scheduler's client certificate.
    pub extender_ca_secret: String,
    /// How kube-scheduler reaches the extender.
    pub endpoint: Endpoint,
}

impl Installation {
    /// The Secret of the certificates.
    pub fn secret(&self) -> SecretReference {
        SecretReference {
            namespace: self.namespace.clone(),
            name: self.extender_ca_secret.clone(),
        }
    }
}

/// The replicas of the cluster's own scheduler that are pods, by name.
pub async fn running_schedulers(client: &Client) -> anyhow::Result<Vec<RunningScheduler>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let found = within(
        CALL_LIMIT,
        pods.list(&ListParams::default().labels(SCHEDULER_LABEL)),
    )
    .await?;
    let mut running: Vec<_> = found.items.iter().map(RunningScheduler::of).collect();
    running.sort_by(|one, other| one.pod.cmp(&other.pod));
    Ok(running)
}

/// By what the command line says; what it does not say, the extender's Service does.
pub async fn installation(
    client: &Client,
    args: &SchedulerConfigArgs,
    target: Target,
) -> anyhow::Result<Installation> {
    if let Some(url) = &args.extender_url {
        return Ok(Installation {
            namespace: args
                .namespace
                .clone()
                .unwrap_or_else(|| NAMESPACE.to_owned()),
            extender_ca_secret: args
                .extender_ca_secret
                .clone()
                .unwrap_or_else(|| SECRET.to_owned()),
            endpoint: Endpoint {
                url: url.clone(),
                server_name: args.server_name.clone(),
            },
        });
    }
    let found = services(client, args).await?;
    Ok(described_by(&found, args, target)?)
}

async fn services(client: &Client, args: &SchedulerConfigArgs) -> anyhow::Result<Vec<Service>> {
    let api: Api<Service> = match &args.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    // In its pod the program may read only this one.
    if let (Some(name), Some(_)) = (&args.extender_service, &args.namespace) {
        return Ok(within(CALL_LIMIT, api.get_opt(name))
            .await?
            .into_iter()
            .collect());
    }
    let labelled = ListParams::default().labels(SERVICE_LABELS);
    Ok(within(CALL_LIMIT, api.list(&labelled)).await?.items)
}

/// What the one Service of an extender says.
pub fn described_by(
    found: &[Service],
    args: &SchedulerConfigArgs,
    target: Target,
) -> Result<Installation, Refusal> {
    let [service] = found else {
        let names: Vec<String> = found
            .iter()
            .map(|service| {
                format!(
                    "{}/{}",
                    service.namespace().unwrap_or_default(),
                    service.name_any()
                )
            })
            .collect();
        let text = if names.is_empty() {
            "there is no Service of the extender; is the chart installed with extender.enabled=true? Name its namespace by \
             --namespace, or the extender's address by --extender-url"
                .to_owned()
        } else {
            format!(
                "{} Services are extenders of Muster ({}); choose one by --namespace",
                names.len(),
                names.join(", ")
            )
        };
        return refused(Reason::ServiceNotFound, text);
    };
    let namespace = service.namespace().unwrap_or_default();
    let name = service.name_any();
    let spec = service.spec.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let port = ports
        .iter()
        .find(|port| port.name.as_deref() == Some("https"));
    let (Some(port), Some(address)) = (
        port,
        spec.cluster_ip.filter(|ip| ip != "None" && !ip.is_empty()),
    ) else {
        return refused(
            Reason::ServiceNotFound,
            format!(
                "Service {namespace}/{name} has no cluster IP with a port named https; name the extender's address by \
                 --extender-url"
            ),
        );
    };
    let dns_name = format!("{name}.{namespace}.svc");
    let host = match target {
        Target::Second => dns_name.clone(),
        _ if address.contains(':') => format!("[{address}]"),
        _ => address,
    };
    let server_name = args
        .server_name
        .clone()
        .or_else(|| (host != dns_name).then_some(dns_name));
    let secret = args.extender_ca_secret.clone();
    Ok(Installation {
        namespace,
        extender_ca_secret: secret.unwrap_or_else(|| format!("{name}-ca")),
        endpoint: Endpoint {
            url: format!("https://{host}:{}/scheduler", port.port),
            server_name,
        },
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::{
        args::{Cli, Command},
        scripted_api::{ScriptedApi, failure},
    };

    fn args(flags: &[&str]) -> SchedulerConfigArgs {
        let command = ["muster-controller", "scheduler-config"];
        let cli = Cli::try_parse_from(command.iter().chain(flags)).unwrap();
        let Some(Command::SchedulerConfig(args)) = cli.command else {
            panic!("scheduler-config")
        };
        args
    }

    fn service() -> serde_json::Value {
        json!({"metadata": {"namespace": "gpus", "name": "gangs-extender"},
            "spec": {"clusterIP": "10.0.0.9", "ports": [{"name": "https", "port": 443}]}})
    }

    #[tokio::test]
    async fn in_its_pod_only_the_service_is_read_that_the_chart_names() {
        let api = ScriptedApi::new([(200, service())]);
        let args = args(&["--namespace=gpus", "--extender-service=gangs-extender"]);
        let found = installation(&api.client(), &args, Target::Kubeadm)
            .await
            .unwrap();
        assert_eq!(found.extender_ca_secret, "gangs-extender-ca");
        assert_eq!(found.endpoint.url, "https://10.0.0.9:443/scheduler");
        let asked = api.asked();
        assert_eq!(asked.len(), 1);
        assert_eq!(
            asked[0].what,
            "GET /api/v1/namespaces/gpus/services/gangs-extender"
        );
    }

    #[tokio::test]
    async fn outside_of_it_the_service_is_found_in_whatever_namespace_it_is() {
        let list = json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": [service()]});
        let api = ScriptedApi::new([(200, list)]);
        let found = installation(&api.client(), &args(&[]), Target::Second)
            .await
            .unwrap();
        assert_eq!(found.namespace, "gpus");
        assert_eq!(
            found.endpoint.url,
            "https://gangs-extender.gpus.svc:443/scheduler"
        );
        assert_eq!(found.endpoint.server_name, None);
        let asked = api.asked();
        assert_eq!(asked[0].what, "GET /api/v1/services");
        assert!(
            asked[0].query.contains("component%3Dextender"),
            "{}",
            asked[0].query
        );
    }

    #[tokio::test]
    async fn what_the_api_server_does_not_show_is_an_error_and_not_an_absence() {
        let forbidden = || failure(403, "pods is forbidden");
        let api = ScriptedApi::new([forbidden(), forbidden()]);
        assert!(running_schedulers(&api.client()).await.is_err());
        assert!(
            installation(&api.client(), &args(&[]), Target::Kubeadm)
                .await
                .is_err()
        );
        let gone = ScriptedApi::new([failure(404, "not found")]);
        let args = args(&["--namespace=gpus", "--extender-service=gangs-extender"]);
        let error = installation(&gone.client(), &args, Target::Kubeadm)
            .await
            .unwrap_err();
        assert!(
            error.to_string().starts_with("ServiceNotFound: "),
            "{error}"
        );
    }
}
