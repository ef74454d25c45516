//! What the API server says of itself in its metrics: which feature gates are on, and how its calls of webhooks went.
//!
//! A large cluster's metrics are many megabytes, so they are read line by line and up to a limit, and only what is asked for is kept. They
//! are those of one replica: a load balancer chooses which.

use std::{collections::BTreeMap, io, time::Duration};

use futures::{AsyncBufReadExt, AsyncReadExt, StreamExt};
use kube::Client;
use muster_serve::client::CallError;

use super::reading::{self, Over, Reading, Unread};

/// Longest time for reading them.
const LIMIT: Duration = Duration::from_secs(60);
/// As much is read of them.
const LARGEST_BYTES: u64 = 256 << 20;
/// As many lines are kept of each kind.
const MOST_KEPT: usize = 10_000;

const GATE: &str = "kubernetes_feature_enabled";
const REQUESTS: &str = "apiserver_admission_webhook_request_total";
const REJECTIONS: &str = "apiserver_admission_webhook_rejection_count";
const FAIL_OPEN: &str = "apiserver_admission_webhook_fail_open_count";

/// What is kept of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerMetrics {
    /// Feature gates, and whether each is on.
    pub gates: BTreeMap<String, bool>,
    /// Calls of webhooks, by the webhook's name.
    pub webhooks: BTreeMap<String, Calls>,
}

/// How the calls of one webhook went since the API server started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Calls {
    /// Answered, with whatever verdict.
    pub answered: f64,
    /// Not answered, or not understood.
    pub failed: f64,
}

impl ServerMetrics {
    /// Takes in one line; whatever is not understood is passed over.
    fn see(&mut self, line: &str) {
        let Some((name, labels, value)) = sample(line) else {
            return;
        };
        let label = |wanted: &str| {
            let mut all = labels.iter();
            all.find_map(|(name, value)| (name == wanted).then_some(value.as_str()))
        };
        let Some(of) = label("name") else { return };
        if name == GATE {
            if self.gates.len() < MOST_KEPT {
                self.gates.insert(of.to_owned(), value > 0.0);
            }
            return;
        }
        if self.webhooks.len() >= MOST_KEPT && !self.webhooks.contains_key(of) {
            return;
        }
        let calls = self.webhooks.entry(of.to_owned()).or_default();
        match name {
            REQUESTS if label("code").is_some_and(|code| code.starts_with(['2', '3', '4'])) => {
                calls.answered += value;
            }
            REJECTIONS if label("error_type") == Some("calling_webhook_error") => {
                calls.failed += value;
            }
            FAIL_OPEN => calls.failed += value,
            _ => {}
        }
    }
}

type Labels = Vec<(String, String)>;

/// A line `NAME{LABEL="VALUE",...} NUMBER` of a metric that is kept.
fn sample(line: &str) -> Option<(&str, Labels, f64)> {
    let (name, rest) = line.split_once('{')?;
    if ![GATE, REQUESTS, REJECTIONS, FAIL_OPEN].contains(&name) {
        return None;
    }
    let (labels, value) = rest.rsplit_once("} ")?;
    let value: f64 = value.split_whitespace().next()?.parse().ok()?;
    let labels = labels
        // No label of these metrics has a quote or a comma in its value.
        .split(',')
        .filter_map(|label| {
            let (name, value) = label.split_once('=')?;
            Some((name.to_owned(), value.trim_matches('"').to_owned()))
        })
        .collect();
    Some((name, labels, value))
}

/// Reads them.
pub async fn read(client: &Client) -> Reading<ServerMetrics> {
    let mut found = ServerMetrics::default();
    let (verb, resource) = ("get", "the path /metrics");
    let ended = reading::ended(LIMIT, all(client, &mut found, LARGEST_BYTES)).await;
    let unread = match ended {
        Ok(Ok(())) => return Reading::whole(found),
        Ok(Err(error)) => Unread::failed(verb, resource, &CallError::Api(Box::new(error))),
        Err(Over::Own) => Unread::failed(verb, resource, &CallError::Timeout(LIMIT)),
        Err(Over::All) => Unread::out_of_time(verb, resource, 0),
    };
    Reading {
        found,
        unread: Some(unread),
    }
}

async fn all(
    client: &Client,
    found: &mut ServerMetrics,
    largest_bytes: u64,
) -> Result<(), kube::Error> {
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    let stream = client.request_stream(request).await?;
    let mut limited = stream.take(largest_bytes);
    {
        let mut lines = (&mut limited).lines();
        while let Some(line) = lines.next().await {
            found.see(&line.map_err(kube::Error::ReadEvents)?);
        }
    }
    if limited.limit() == 0 {
        let text = format!("there is more than {largest_bytes} bytes, and the rest was not read");
        return Err(kube::Error::ReadEvents(io::Error::other(text)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::scripted_api::ScriptedApi;

    #[tokio::test]
    async fn what_goes_beyond_the_limit_was_not_read_and_is_told_so() {
        for (largest_bytes, whole) in [(5, false), (5000, true)] {
            let api = ScriptedApi::new([(200, json!("of no interest"))]);
            let mut found = ServerMetrics::default();
            let ended = all(&api.client(), &mut found, largest_bytes).await;
            assert_eq!(ended.is_ok(), whole, "{ended:?}");
        }
    }

    #[test]
    fn gates_and_calls_of_webhooks_are_read_and_all_else_is_passed_over() {
        let mut metrics = ServerMetrics::default();
        for line in [
            "# HELP kubernetes_feature_enabled [BETA] whether it is on",
            r#"kubernetes_feature_enabled{name="DRADeviceTaints",stage=""} 1"#,
            r#"kubernetes_feature_enabled{name="DRAPartitionableDevices",stage="BETA"} 0"#,
            r#"apiserver_admission_webhook_request_total{code="200",name="a",operation="CREATE",rejected="false",type="admit"} 5"#,
            r#"apiserver_admission_webhook_request_total{code="400",name="a",operation="CREATE",rejected="true",type="admit"} 2"#,
            r#"apiserver_admission_webhook_request_total{code="600",name="a",operation="CREATE",rejected="true",type="admit"} 9"#,
            r#"apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="a",operation="CREATE",rejection_code="0",type="admit"} 3"#,
            r#"apiserver_admission_webhook_rejection_count{error_type="no_error",name="a",operation="CREATE",rejection_code="403",type="admit"} 2"#,
            r#"apiserver_admission_webhook_fail_open_count{name="b",type="admit"} 1"#,
            "kubernetes_feature_enabled{name=\"Broken\"",
            "kubernetes_feature_enabled{} x",
            r#"apiserver_request_total{name="a",code="200"} 77"#,
            "",
        ] {
            metrics.see(line);
        }
        let gates: Vec<(&str, bool)> = metrics
            .gates
            .iter()
            .map(|(name, on)| (name.as_str(), *on))
            .collect();
        assert_eq!(
            gates,
            [
                ("DRADeviceTaints", true),
                ("DRAPartitionableDevices", false)
            ]
        );
        assert_eq!(
            metrics.webhooks["a"],
            Calls {
                answered: 7.0,
                failed: 3.0
            }
        );
        assert!((metrics.webhooks["b"].failed - 1.0).abs() < f64::EPSILON);
    }
}
