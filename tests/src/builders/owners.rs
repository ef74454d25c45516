//! Who owns quota, and of what: namespaces, Teams, Cohorts, Flavors, Topologies.

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{Api, Client};
use muster_api::{
    Cohort, CohortSpec, Flavor, FlavorQuota, FlavorSpec, PriorityTier, PriorityTierSpec, Team,
    TeamSpec, TierPreemption, Topology, TopologySpec, keys,
};
use serde_json::json;

use super::{made, map, typed};
use crate::kubernetes::{self, LIMIT, Progress, eventually};

/// Creates a namespace of this Team (of none without) and waits until pods can be created in it.
pub async fn namespace(client: &Client, name: &str, team: Option<&str>) -> Result<()> {
    let mut labels = made(&[]);
    if let Some(team) = team {
        labels.insert(keys::TEAM.to_owned(), team.to_owned());
    }
    let namespace: Namespace = typed(json!({"metadata": {"name": name, "labels": labels}}))?;
    kubernetes::create(&Api::all(client.clone()), &namespace).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
    eventually(
        &format!("namespace {name} has its default ServiceAccount"),
        LIMIT,
        async || {
            let account = accounts.get_opt("default").await?;
            Ok(Progress::when(account.is_some(), || {
                "it has none".to_owned()
            }))
        },
    )
    .await
}

/// Makes or changes a Team with this quota.
pub async fn team(
    client: &Client,
    name: &str,
    cohort: Option<&str>,
    quota: Vec<FlavorQuota>,
) -> Result<()> {
    let spec = TeamSpec {
        cohort: cohort.map(str::to_owned),
        quota,
        ..TeamSpec::default()
    };
    team_of(client, name, spec).await
}

/// Makes or changes a Team.
pub async fn team_of(client: &Client, name: &str, spec: TeamSpec) -> Result<()> {
    let mut team = Team::new(name, spec);
    team.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &team).await?;
    Ok(())
}

/// Makes or changes a PriorityTier.
pub async fn tier(
    client: &Client,
    name: &str,
    value: i32,
    preemption: TierPreemption,
    notice_seconds: Option<i64>,
) -> Result<()> {
    let spec = PriorityTierSpec {
        value,
        preemption,
        notice_seconds,
        ..PriorityTierSpec::default()
    };
    let tier = PriorityTier::new(name, spec);
    kubernetes::apply(&Api::all(client.clone()), &tier).await?;
    Ok(())
}

/// A Team with 16 GPUs of a Flavor of all GPUs, and a namespace of the same name.
pub async fn team_of_sixteen(client: &Client, name: &str) -> Result<()> {
    flavor(client, "h100", None).await?;
    team(client, name, None, vec![gpu_quota("h100", 16, None)]).await?;
    namespace(client, name, Some(name)).await
}

/// Makes or changes a Cohort.
pub async fn cohort(client: &Client, name: &str, quota: Vec<FlavorQuota>) -> Result<()> {
    let mut cohort = Cohort::new(
        name,
        CohortSpec {
            quota,
            ..CohortSpec::default()
        },
    );
    cohort.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &cohort).await?;
    Ok(())
}

/// Makes or changes a Flavor of all devices of Muster's driver.
pub async fn flavor(client: &Client, name: &str, topology: Option<&str>) -> Result<()> {
    flavor_on(client, name, topology, &[]).await
}

/// Makes or changes a Flavor of the devices of Muster's driver on nodes with these labels.
pub async fn flavor_on(
    client: &Client,
    name: &str,
    topology: Option<&str>,
    node_labels: &[(&str, &str)],
) -> Result<()> {
    let mut flavor = Flavor::new(
        name,
        FlavorSpec {
            node_selector: map(node_labels),
            topology: topology.map(str::to_owned),
            ..FlavorSpec::default()
        },
    );
    flavor.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &flavor).await?;
    Ok(())
}

/// Makes or changes a Flavor of what a device plugin hands out on nodes with these labels.
pub async fn flavor_of_resource(
    client: &Client,
    name: &str,
    resource: &str,
    node_labels: &[(&str, &str)],
) -> Result<()> {
    let mut flavor = Flavor::new(
        name,
        FlavorSpec {
            node_selector: map(node_labels),
            extended_resource: Some(resource.to_owned()),
            ..FlavorSpec::default()
        },
    );
    flavor.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &flavor).await?;
    Ok(())
}

/// Makes or changes a Topology: (level, node label), outermost first.
pub async fn topology(client: &Client, name: &str, levels: &[(&str, &str)]) -> Result<()> {
    let level = |(name, label): &(&str, &str)| muster_api::TopologyLevel {
        name: (*name).to_owned(),
        node_label: (*label).to_owned(),
    };
    let mut topology = Topology::new(
        name,
        TopologySpec {
            fabric: levels.iter().map(level).collect(),
            accelerator: None,
        },
    );
    topology.metadata.labels = Some(made(&[]));
    kubernetes::apply(&Api::all(client.clone()), &topology).await?;
    Ok(())
}

/// A quota of whole GPUs of one flavor.
pub fn gpu_quota(flavor: &str, nominal: u32, borrowing_limit: Option<u32>) -> FlavorQuota {
    let quantity = |gpus: u32| muster_api::Quantity(gpus.to_string());
    FlavorQuota {
        flavor: flavor.to_owned(),
        resources: vec![muster_api::ResourceQuota {
            name: "gpus".to_owned(),
            nominal: Some(quantity(nominal)),
            borrowing_limit: borrowing_limit.map(quantity),
            ..muster_api::ResourceQuota::default()
        }],
    }
}
