//! Whether kube-scheduler is there: its leader renews a lease every few seconds.
//!
//! While it is away no gang can start, and no start is late: the clocks of start limits stand still. Only a lease that was seen
//! says so. A cluster whose scheduler has none, or hides it from us, has its start limits by the clock alone.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use muster_serve::{
    Shutdown,
    client::{CALL_LIMIT, within},
};
use tokio::{sync::watch, time::Instant};

/// Where the lease of the cluster's own scheduler is.
pub const CLUSTER_SCHEDULER: &str = "kube-system/kube-scheduler";
/// Pause between two looks.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a lease stands that does not say so: what Kubernetes sets.
const DEFAULT_DURATION: Duration = Duration::from_secs(15);

/// Where the lease of the scheduler is that managed pods get: `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseReference {
    namespace: String,
    name: String,
}

impl std::str::FromStr for LeaseReference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(format!(
                "{text:?}: must be NAMESPACE/NAME, such as {CLUSTER_SCHEDULER}"
            )),
        }
    }
}

/// What was seen of the lease.
#[derive(Debug, Default)]
struct History {
    /// The last time of renewal that it said, and when that was seen first: clocks of two machines are never compared.
    renewed: Option<(Option<Timestamp>, Instant)>,
}

impl History {
    /// Takes in the lease as it is read now; whether its holder is away.
    fn note(&mut self, lease: Option<&Lease>, now: Instant) -> bool {
        let Some(lease) = lease else {
            // Nobody seeks election; without ever having seen one, that is how this cluster is.
            return self.renewed.is_some();
        };
        let spec = lease.spec.as_ref();
        let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
        let renewed = renewed.map(|time| time.0);
        let since = match self.renewed {
            Some((before, since)) if before == renewed => since,
            _ => now,
        };
        self.renewed = Some((renewed, since));
        let duration = spec
            .and_then(|spec| u64::try_from(spec.lease_duration_seconds?).ok())
            .map_or(DEFAULT_DURATION, Duration::from_secs);
        now - since >= 2 * duration
    }
}

/// Looks until the shutdown. What cannot be read says nothing.
pub fn spawn(
    client: Client,
    reference: &LeaseReference,
    shutdown: &Shutdown,
) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    let leases: Api<Lease> = Api::namespaced(client, &reference.namespace);
    let name = reference.name.clone();
    shutdown.spawn_until_stopped("look at the lease of kube-scheduler", async move {
        let mut history = History::default();
        loop {
            match within(CALL_LIMIT, leases.get_opt(&name)).await {
                Ok(lease) => {
                    let is_away = history.note(lease.as_ref(), Instant::now());
                    let changed = sender
                        .send_if_modified(|known| std::mem::replace(known, is_away) != is_away);
                    if changed {
                        tracing::info!(is_away, "what is known of kube-scheduler changed");
                    }
                }
                Err(error) => tracing::debug!(%error, "the lease of kube-scheduler was not read"),
            }
            tokio::time::sleep(INTERVAL).await;
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(renewed_second: u64) -> Lease {
        let time = format!("2027-01-01T00:{renewed_second:02}:00.000000Z");
        let spec = json!({"leaseDurationSeconds": 15, "renewTime": time});
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_scheduler_is_away_whose_lease_nobody_renews_or_is_gone_after_it_was_seen() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for (case, looks) in [
            ("renewed", vec![(0, Some(1), false), (40, Some(2), false)]),
            (
                "not renewed",
                vec![
                    (0, Some(1), false),
                    (29, Some(1), false),
                    (30, Some(1), true),
                ],
            ),
            (
                "back",
                vec![
                    (0, Some(1), false),
                    (40, Some(1), true),
                    (50, Some(2), false),
                ],
            ),
            ("never seen", vec![(0, None, false), (100, None, false)]),
            (
                "gone",
                vec![(0, Some(1), false), (10, None, true), (20, Some(1), false)],
            ),
        ] {
            let mut history = History::default();
            for (second, renewed, is_away) in looks {
                let lease = renewed.map(lease);
                let found = history.note(lease.as_ref(), at(second));
                assert_eq!(found, is_away, "{case}, second {second}");
            }
        }
    }

    #[test]
    fn a_lease_is_named_by_its_namespace_and_its_name() {
        let reference: LeaseReference = CLUSTER_SCHEDULER.parse().unwrap();
        assert_eq!(
            (reference.namespace.as_str(), reference.name.as_str()),
            ("kube-system", "kube-scheduler")
        );
        for wrong in ["", "kube-scheduler", "/a", "a/", "a/b/c"] {
            assert!(wrong.parse::<LeaseReference>().is_err(), "{wrong}");
        }
    }
}
