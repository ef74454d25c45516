//! Events: what `kubectl describe` shows below an object.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use muster_api::Reason;

use crate::kubernetes::{Progress, eventually, list};

/// Longest time until something is told. A driver waits 35 s inside the call before it refuses, and the call before
/// may have failed for another cause; the kubelet repeats it after up to 90 s.
const TOLD_LIMIT: Duration = Duration::from_secs(150);

/// Waits for an Event with this reason on an object of this kind whose name begins so.
pub async fn wait_for_reason(
    client: &Client,
    namespace: &str,
    kind: &str,
    beginning: &str,
    reason: Reason,
) -> Result<()> {
    let reason = reason.as_str();
    wait_for(client, namespace, kind, beginning, reason, |event| {
        event.reason.as_deref() == Some(reason)
    })
    .await
}

/// Waits for an Event on this pod whose message has this text: what kube-scheduler and the kubelet repeat of what
/// they were told.
pub async fn wait_for_message(
    client: &Client,
    namespace: &str,
    pod: &str,
    text: &str,
) -> Result<()> {
    wait_for(client, namespace, "Pod", pod, text, |event| {
        let message = event.message.as_deref();
        message.is_some_and(|message| message.contains(text))
    })
    .await
}

async fn wait_for(
    client: &Client,
    namespace: &str,
    kind: &str,
    beginning: &str,
    says: &str,
    is_wanted: impl Fn(&Event) -> bool,
) -> Result<()> {
    let what = format!("an Event on {kind} {namespace}/{beginning}* says {says:?}");
    eventually(&what, TOLD_LIMIT, async || {
        let events: Vec<Event> = list(client, Some(namespace)).await?;
        let about: Vec<&Event> = events
            .iter()
            .filter(|event| {
                let object = &event.involved_object;
                object.kind.as_deref() == Some(kind)
                    && object
                        .name
                        .as_ref()
                        .is_some_and(|name| name.starts_with(beginning))
            })
            .collect();
        let is_told = about.iter().any(|event| is_wanted(event));
        Ok(Progress::when(is_told, || {
            let said = about.iter().map(|event| (&event.reason, &event.message));
            format!("{:?}", said.collect::<Vec<_>>())
        }))
    })
    .await
}
