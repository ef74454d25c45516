//! Who chooses the model of its GPU by a selector of its claim gets that one, though others are free.

use anyhow::{Result, ensure};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::Api;
use muster_tests::{builders, cluster::Cluster, kubernetes, scenarios, suite::Scenario};

use crate::stage::{BRIDGED, H100, Single, attributes, prepare_team};

/// Name of the pod and of its template, what is said of `productName`, the product that this is, and the node that has it.
const MODELS: [(&str, &str, &str, &str); 2] = [
    (
        "exact",
        " == 'NVIDIA H100 80GB HBM3'",
        "NVIDIA H100 80GB HBM3",
        H100,
    ),
    (
        "part",
        ".contains('A100')",
        "NVIDIA A100-PCIE-40GB",
        BRIDGED,
    ),
];

pub(crate) fn scenarios() -> Vec<Scenario> {
    scenarios![a_claim_that_selects_a_model_gets_a_whole_gpu_of_it_and_no_other_that_is_free]
}

/// Both models are free all the time, and no pod says on which node it is to be: the selectors alone decide.
async fn a_claim_that_selects_a_model_gets_a_whole_gpu_of_it_and_no_other_that_is_free(
    cluster: &mut Cluster,
) -> Result<()> {
    let client = cluster.client();
    prepare_team(&client, "models").await?;
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), "models");
    let mut running = Vec::new();
    for (name, said, product, node) in MODELS {
        let selector = format!("device.attributes['gpu.muster.dev'].productName{said}");
        let template = builders::claim_template(name, 1, Some(&selector))?;
        kubernetes::create(&templates, &template).await?;
        let pod = Single::create_with_template(cluster, "models", name, name).await?;
        let given = pod.runs(cluster).await?;
        ensure!(
            given.len() == 1 && given.iter().all(|given| given.node == node),
            "{name} was given {given:?}, not one of {node}"
        );
        let told = attributes(&client, &given, "productName").await?;
        ensure!(
            told.iter().all(|it| it.string.as_deref() == Some(product)),
            "{name} was given {given:?}, which are {told:?}"
        );
        running.push((pod, given));
    }
    for (pod, given) in running {
        pod.finishes(&client, &given).await?;
    }
    Ok(())
}
