//! Attempts that were taken back, as their Gangs tell of them.

use anyhow::{Context, Result, ensure};
use kube::Client;
use muster_api::{Gang, Reason, conditions, gang::Eviction};

use crate::{
    gangs,
    kubernetes::{LIMIT, Progress, eventually},
};

/// Waits until the Gang says that this attempt of it was evicted for that reason, and that nothing of it is admitted.
pub async fn wait_for_eviction(
    client: &Client,
    namespace: &str,
    beginning: &str,
    reason: Reason,
) -> Result<(Gang, Eviction)> {
    let what = format!("gang {namespace}/{beginning}* is evicted with reason {reason}");
    let gang = eventually(&what, LIMIT, async || {
        let gang = gangs::find(client, namespace, beginning).await?;
        let gang = gang.context("there is no such Gang")?;
        let status = gang.status.clone().unwrap_or_default();
        let is_evicted = status.evictions.iter().any(|it| it.reason == reason);
        Ok(if is_evicted {
            Progress::Done(gang)
        } else {
            Progress::NotYet(format!(
                "it is {:?}, {:?}, {:?}",
                status.phase, status.conditions, status.evictions
            ))
        })
    })
    .await?;
    let status = gang.status.as_ref().context("a status")?;
    let eviction = status.evictions.last().context("an eviction")?.clone();
    ensure!(
        eviction.reason == reason && status.attempt == eviction.attempt + 1,
        "{status:?}"
    );
    ensure!(status.admission.is_none(), "{:?}", status.admission);
    let mut conditions = status.conditions.iter();
    let evicted = conditions.find(|it| it.type_ == conditions::EVICTED);
    let evicted = evicted.context("no condition says that it is evicted")?;
    ensure!(
        evicted.status == "True" && evicted.reason == reason.as_str(),
        "{evicted:?}"
    );
    Ok((gang, eviction))
}
