//! A leader of a fake cluster, from its lease to its first decision.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test or a benchmark that cannot go on ends"
)]

use std::time::Duration;

use axum::http::Uri;
use muster_cluster::{index, managed::ManagedPods};
use muster_controller::{
    claim_templates, disruption_budgets,
    extender_probe::ExtenderState,
    feed::Feed,
    leader::{Leader, Pace},
    metrics::ControllerMetrics,
    node_conditions,
    perform::Performer,
};
use muster_protocol::{Config, Machine};
use muster_serve::{Readiness, lease::Leadership, metrics::Metrics};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

/// Leads the cluster at `url` until it decides. Returns the time that took, and its metrics as text.
///
/// # Panics
///
/// If it does not decide within `limit`, or ends before.
pub(crate) async fn take_over(url: Uri, limit: Duration) -> (Duration, String) {
    let client = || {
        let config = kube::Config::new(url.clone());
        kube::Client::try_from(config).expect("a client")
    };
    let config = Config::new(index::Config {
        managed: ManagedPods::new(["nvidia.com/gpu"]).expect("a resource name"),
        excluded_namespaces: [].into(),
        excepted_device_classes: [].into(),
        default_team: None,
        start_timeout_seconds: muster_cluster::index::START_TIMEOUT_SECONDS,
    });
    let metrics = Metrics::new("takeover", "0");
    let (_lease, leadership) = watch::channel(Leadership::Leader);
    let stop = CancellationToken::new();
    let begun = Instant::now();
    let leader = Leader {
        feed: Feed::open(&Readiness::default(), &metrics, client()),
        machine: Machine::new(config),
        performer: Performer::new(client(), "replica-0".to_owned()),
        pace: Pace::new(0, 0),
        metrics: ControllerMetrics::register(&metrics),
        leadership,
        extender: watch::channel(ExtenderState::Ready).1,
        scheduler_is_away: watch::channel(false).1,
        waiting_for_templates: claim_templates::Waiting::default(),
        refused_templates: watch::channel(claim_templates::Refused::new()).1,
        node_conditions: node_conditions::Reported::default(),
        guarded_gangs: disruption_budgets::Gangs::default(),
        stop: stop.clone(),
    };
    let mut leading = tokio::spawn(leader.lead());
    let decides = async {
        loop {
            let text = metrics.encode().expect("metrics");
            if value(&text, "muster_leader_epoch").is_some_and(|epoch| epoch > 0.0) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let text = tokio::select! {
        text = tokio::time::timeout(limit, decides) => text.expect("it decides within the limit"),
        ended = &mut leading => panic!("it ended: {ended:?}"),
    };
    let took = begun.elapsed();
    stop.cancel();
    leading.await.expect("no panic").expect("a good end");
    (took, text)
}

/// The value of a metric, by its name with labels.
pub(crate) fn value(text: &str, name: &str) -> Option<f64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}
