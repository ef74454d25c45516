//! `reset-breaker`: a person closes the circuit breaker, having looked whether the faults were real. It is run in a pod of the
//! controller, whose identity alone may write the Ledger.
//!
//! Who else writes: the leader, whose every write of the Ledger names the version that it replaces, as this one does. Whoever comes second sees what
//! the other wrote. Run twice, it finds a breaker that is closed. It closes the one that was open when it began, and no later one.

use std::io::Write;

use anyhow::{Context, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client, api::PostParams};
use muster_api::{Breaker, Ledger, keys};
use muster_serve::client::{self, CALL_LIMIT, within};

use crate::args::ResetBreakerArgs;

/// How often the leader may write the Ledger in between.
const TRIES: usize = 10;

/// Closes it.
pub async fn run(args: ResetBreakerArgs) -> anyhow::Result<()> {
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    let text = reset(&client).await?;
    // This program's one output: not a log line, so not through the subscriber.
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// What is to be told.
async fn reset(client: &Client) -> anyhow::Result<String> {
    let ledgers: Api<Ledger> = Api::all(client.clone());
    let params = PostParams {
        field_manager: Some(keys::FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PostParams::default()
    };
    let mut meant: Option<Time> = None;
    for _ in 0..TRIES {
        let ledger = within(CALL_LIMIT, ledgers.get(keys::LEDGER_NAME)).await;
        let mut ledger = ledger.context("reading the Ledger")?;
        let open = std::mem::take(&mut ledger.spec.breaker);
        let Some(opened_at) = open.opened_at else {
            return Ok("The circuit breaker is closed.".to_owned());
        };
        if meant.as_ref().is_some_and(|meant| *meant != opened_at) {
            bail!(
                "the circuit breaker was opened again meanwhile, at {}: look why, then run this again",
                opened_at.0
            );
        }
        ledger.metadata.managed_fields = None;
        debug_assert_eq!(ledger.spec.breaker, Breaker::default());
        let write = ledgers.replace(keys::LEDGER_NAME, &params, &ledger);
        match within(CALL_LIMIT, write).await {
            Ok(_) => {
                let why = open.message.unwrap_or_default();
                return Ok(format!(
                    "The circuit breaker is closed. It was open since {}: {why}.",
                    opened_at.0
                ));
            }
            Err(error) if error.status_code() == Some(409) => meant = Some(opened_at),
            Err(error) => {
                return Err(error).context(
                    "closing it; running this again does no harm, whether or not it was done",
                );
            }
        }
    }
    bail!("the controller wrote the Ledger {TRIES} times in between: run this again")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::scripted_api::{ScriptedApi, failure};

    fn ledger(version: &str, breaker: &Value) -> (u16, Value) {
        let ledger = json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Ledger",
            "metadata": {"name": "cluster", "resourceVersion": version},
            "spec": {"leaderEpoch": 4, "sequence": 9, "breaker": breaker},
        });
        (200, ledger)
    }

    fn open(at: &str) -> Value {
        json!({
            "drained": [{"node": "n0", "at": at}], "openedAt": at, "message": "3 of 3 nodes",
        })
    }

    const FIRST: &str = "2026-11-27T00:00:00Z";
    const LATER: &str = "2026-11-27T01:00:00Z";

    #[tokio::test]
    async fn it_is_closed_as_it_was_seen_and_all_else_stays() {
        let api = ScriptedApi::new([
            ledger("7", &open(FIRST)),
            failure(409, "modified"),
            ledger("8", &open(FIRST)),
            ledger("9", &json!({})),
        ]);
        let said = reset(&api.client()).await.unwrap();
        assert!(said.contains("3 of 3 nodes"), "{said}");
        let asked = api.asked();
        assert_eq!(asked.len(), 4);
        let written = &asked[3];
        assert_eq!(
            written.what,
            "PUT /apis/muster.dev/v1alpha1/ledgers/cluster"
        );
        assert_eq!(written.body["metadata"]["resourceVersion"], "8");
        let spec = json!({"leaderEpoch": 4, "sequence": 9});
        assert_eq!(written.body["spec"], spec);
    }

    #[tokio::test]
    async fn one_that_is_closed_is_left_alone() {
        let api = ScriptedApi::new([ledger("7", &json!({}))]);
        let said = reset(&api.client()).await.unwrap();
        assert_eq!(said, "The circuit breaker is closed.");
        assert_eq!(api.asked().len(), 1);
    }

    #[tokio::test]
    async fn one_that_was_opened_again_meanwhile_is_another_one() {
        let api = ScriptedApi::new([
            ledger("7", &open(FIRST)),
            failure(409, "modified"),
            ledger("9", &open(LATER)),
        ]);
        let error = reset(&api.client()).await.unwrap_err();
        assert!(format!("{error:#}").contains("opened again"), "{error:#}");
        assert_eq!(api.asked().len(), 3);
    }
}
