//! `begin-observe`: what insists on the work of the webhook is taken down before mode Observe begins. The chart runs it before an upgrade or a
//! rollback to Observe.
//!
//! Helm takes the webhook its rules right before it changes the policies that insist on the gate. An API server learns of webhooks at once, and
//! of policies by looking once a second: in between it would refuse every pod with a GPU.
//!
//! Who else may write: Helm, which makes these bindings again right afterwards, as ones that only audit. Run twice, or in Observe, this finds
//! none that refuses, changes nothing and waits for nothing. Where Helm does not get so far, the webhook puts the gate as before, and the next
//! upgrade or rollback makes the bindings again, whichever mode it is for.

use std::io::Write;

use anyhow::Context;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{Api, Client};
use muster_serve::client::{self, CALL_LIMIT, within};

use crate::{
    args::{BeginObserveArgs, GuardsArgs},
    enforce_check::refuses,
    take_down::take_down,
};

/// Takes down those that refuse.
pub async fn run(args: BeginObserveArgs) -> anyhow::Result<()> {
    let client = client::write_client(args.kubeconfig.as_deref()).await?;
    let text = begin(&client, &args.policy_bindings).await?;
    // This program's one output: not a log line, so not through the subscriber.
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

/// What is to be told.
async fn begin(client: &Client, names: &[String]) -> anyhow::Result<String> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let mut refusing = Vec::new();
    for name in names {
        let binding = within(CALL_LIMIT, bindings.get_opt(name)).await;
        let binding = binding.with_context(|| format!("reading the binding {name}"))?;
        if binding.is_some_and(|binding| refuses(&binding)) {
            refusing.push(name.clone());
        }
    }
    if refusing.is_empty() {
        return Ok("No policy refuses pods: nothing was taken down.".to_owned());
    }
    let text = format!(
        "Taken down, until they are made again and only audit: {}.",
        refusing.join(", ")
    );
    let guards = GuardsArgs {
        policy_bindings: refusing,
        ..GuardsArgs::default()
    };
    take_down(client, &guards).await?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::{
        scripted_api::{ScriptedApi, failure},
        take_down::LEARNED,
    };

    const PATH: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

    fn binding(name: &str, action: &str) -> (u16, Value) {
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": [action]},
        });
        (200, binding)
    }

    fn names() -> [String; 3] {
        ["created", "scheduler", "side-door"].map(str::to_owned)
    }

    fn asked(api: &ScriptedApi) -> Vec<String> {
        api.asked().into_iter().map(|asked| asked.what).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_refuses_goes_and_api_servers_have_the_time_to_learn_of_it() {
        let gone = failure(404, "not found");
        let done =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
        let api = ScriptedApi::new([
            binding("created", "Deny"),
            gone,
            binding("side-door", "Audit"),
            (200, done),
        ]);
        let began = Instant::now();
        let said = begin(&api.client(), &names()).await.unwrap();
        assert!(began.elapsed() >= LEARNED);
        assert!(said.ends_with(": created."), "{said}");
        let get = |name: &str| format!("GET {PATH}/{name}");
        assert_eq!(
            asked(&api),
            [
                get("created"),
                get("scheduler"),
                get("side-door"),
                format!("DELETE {PATH}/created"),
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn in_observe_nothing_is_changed_and_nothing_waited_for() {
        let api = ScriptedApi::new(names().map(|name| binding(&name, "Audit")));
        let began = Instant::now();
        begin(&api.client(), &names()).await.unwrap();
        assert!(began.elapsed() < LEARNED);
        assert!(asked(&api).iter().all(|what| what.starts_with("GET ")));
    }

    #[tokio::test]
    async fn what_may_not_be_read_is_named_and_nothing_is_taken_down() {
        let api = ScriptedApi::new([binding("created", "Deny"), failure(403, "forbidden")]);
        let error = begin(&api.client(), &names()).await.unwrap_err();
        assert!(format!("{error:#}").contains("scheduler"), "{error:#}");
        assert_eq!(asked(&api).len(), 2);
    }
}
