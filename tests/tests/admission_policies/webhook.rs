//! The three states of the webhook: up, down, and deregistered. The policies hold in each.

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::Pod,
};
use kube::{Api, api::PostParams};
use muster_api::keys;
use muster_tests::{
    builders::{self, RankProgram},
    cluster::Cluster,
    install::Part,
    kubernetes::{LIMIT, Progress, eventually},
};

use crate::taken_away::{put_back, take_away};

/// What the API server says where the webhook is registered and does not answer.
pub(crate) const WEBHOOK_FAILS: &str = "failed calling webhook";

/// What the API server finds when it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Webhook {
    /// It answers.
    Up,
    /// It is registered and does not answer.
    Down,
    /// It is not registered any more.
    Deleted,
}

impl Webhook {
    /// All states, in the order in which [`in_every_state`] goes through them.
    pub(crate) const ALL: [Self; 3] = [Self::Up, Self::Down, Self::Deleted];

    /// As part of a name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Deleted => "deleted",
        }
    }
}

/// Does the same in each state of the webhook, and leaves it up.
pub(crate) async fn in_every_state(
    cluster: &mut Cluster,
    mut tries: impl AsyncFnMut(&Cluster, Webhook) -> Result<()>,
) -> Result<()> {
    tries(cluster, Webhook::Up).await.context("webhook up")?;
    cluster.installation()?.stop_part(Part::Webhook).await;
    wait_until_refused(cluster, WEBHOOK_FAILS).await?;
    let down = tries(cluster, Webhook::Down).await.context("webhook down");

    let client = cluster.client();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let saved = (
        take_away(&mutating, "muster").await?,
        take_away(&validating, "muster").await?,
    );
    let deleted = async {
        down?;
        wait_until_refused(cluster, "muster-pod-created").await?;
        tries(cluster, Webhook::Deleted).await
    }
    .await;
    put_back(&mutating, saved.0).await?;
    put_back(&validating, saved.1).await?;
    cluster.installation()?.start(Part::Webhook).await?;
    wait_until_asked(cluster).await?;
    deleted.context("webhook deleted")
}

/// Waits until the API server refuses a managed pod without a gate for this cause: it takes a moment to see that the
/// webhook is not registered any more. It refuses such a pod at every moment; if it lets one through, that is the end.
async fn wait_until_refused(cluster: &Cluster, by: &str) -> Result<()> {
    let (pods, probe) = probe(cluster)?;
    let what = format!("a managed pod is refused by {by:?}");
    eventually(&what, LIMIT, async || {
        Ok(match pods.create(&dry(), &probe).await {
            Ok(_) => Progress::Never(anyhow!("a managed pod without a gate was allowed")),
            Err(kube::Error::Api(status)) if status.message.contains(by) => Progress::Done(()),
            Err(error) => Progress::NotYet(error.to_string()),
        })
    })
    .await
}

/// The API server takes a moment to see that the webhook is registered again.
async fn wait_until_asked(cluster: &Cluster) -> Result<()> {
    let (pods, probe) = probe(cluster)?;
    eventually("the webhook puts its gate", LIMIT, async || {
        let spec = pods.create(&dry(), &probe).await?.spec.unwrap_or_default();
        let gates = spec.scheduling_gates.unwrap_or_default();
        let is_ours = gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE);
        Ok(Progress::when(is_ours, || format!("{gates:?}")))
    })
    .await
}

/// A managed pod without a gate, and where it would be created.
fn probe(cluster: &Cluster) -> Result<(Api<Pod>, Pod)> {
    let ranks = RankProgram::new(cluster.programs().path("rank"), "/".into(), 1);
    let spec = builders::pod_spec(&ranks.container(&["gpus"])?)?;
    let spec = builders::with_claim(spec, "probe");
    let probe = builders::pod("probe", &[], &[], &spec)?;
    Ok((Api::namespaced(cluster.client(), "default"), probe))
}

fn dry() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}
