//! ServiceAccount tokens: each program speaks with the rights that the chart gives it, and no others.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, ServiceAccount},
};
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

use super::NAMESPACE;
use crate::{
    control_plane::ControlPlane,
    kubeconfig::Credentials,
    kubernetes::{self, Progress, eventually},
};

/// Validity of a token: longer than any run of a suite, or of a measurement that takes all night. Rotation is the kubelet's business in production.
const TOKEN_SECONDS: i64 = 48 * 3600;

/// Longest time until the API server gives a token, or takes a pod and it runs: what the chart made is new to it.
const LIMIT: Duration = Duration::from_mins(1);

/// A kubeconfig that speaks for this ServiceAccount, bound to this pod if one is given. `file` names it.
pub(super) async fn kubeconfig(
    control_plane: &ControlPlane,
    file: &str,
    service_account: &str,
    bound_to: Option<&Pod>,
) -> Result<PathBuf> {
    let accounts: Api<ServiceAccount> = Api::namespaced(control_plane.client(), NAMESPACE);
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            bound_object_ref: bound_to.map(|pod| BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    let what = format!("there is a token of ServiceAccount {service_account}");
    let token = eventually(&what, LIMIT, async || {
        let answer = accounts
            .create_token_request(service_account, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token);
        token
            .map(Progress::Done)
            .context("a token request without an answer")
    })
    .await?;
    let token_file = control_plane.directory().join(format!("{file}.token"));
    fs::write(&token_file, token)?;
    control_plane.kubeconfig_with(file, &Credentials::TokenFile(token_file))
}

/// A pod that stands for the driver's on this node: the API server writes the node into tokens that are
/// bound to it.
pub(super) async fn placeholder(
    control_plane: &ControlPlane,
    service_account: &str,
    node: &str,
) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(control_plane.client(), NAMESPACE);
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": format!("driver-{node}")},
        "spec": {
            "serviceAccountName": service_account,
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "placeholder", "image": "example.invalid/placeholder:1", "command": ["sleep", "infinity"]}],
        },
    }))?;
    let name = pod.name_any();
    eventually(&format!("the placeholder {name} runs"), LIMIT, async || {
        // It may have been made by a call whose answer was lost.
        let pod = match pods.get_opt(&name).await? {
            Some(pod) => pod,
            None => kubernetes::create(&pods, &pod).await?,
        };
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        Ok(if phase.as_deref() == Some("Running") {
            Progress::Done(pod)
        } else {
            Progress::NotYet(format!("it is {phase:?}"))
        })
    })
    .await
}
