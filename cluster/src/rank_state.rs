//! What became of a rank of an admitted gang, as its pod shows it.

use crate::pod::{self, PodFields};

/// What became of a rank of an admitted gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankState {
    /// Its pod does not exist, and did not succeed before.
    Missing,
    /// Its pod carries the admission gate.
    Gated,
    /// Its pod does not run yet.
    Pending,
    /// Its pod runs.
    Running,
    /// Its pod is being deleted.
    Terminating,
    /// Its pod succeeded.
    Succeeded,
    /// Its pod failed.
    Failed,
}

impl RankState {
    /// What became of the rank whose pod this is; `None`: it does not exist.
    pub fn of(pod: Option<&impl PodFields>) -> Self {
        let Some(pod) = pod else {
            return Self::Missing;
        };
        match pod::phase(pod) {
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ if pod::is_deleting(pod) => Self::Terminating,
            "Running" => Self::Running,
            _ if pod::is_gated(pod) => Self::Gated,
            _ => Self::Pending,
        }
    }

    /// Whether the rank does its part: it runs, or has done so to the end.
    pub fn is_well(self) -> bool {
        matches!(self, Self::Running | Self::Succeeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    #[test]
    fn a_rank_does_its_part_while_it_runs_or_once_it_succeeded() {
        let gates = json!([{"name": muster_api::keys::ADMISSION_GATE}]);
        let deleted = json!("2026-11-21T00:00:09Z");
        let none = Value::Null;
        for (phase, gates, deleted, state, is_well) in [
            ("Pending", &gates, &none, RankState::Gated, false),
            ("Pending", &none, &none, RankState::Pending, false),
            ("Running", &none, &none, RankState::Running, true),
            ("Running", &none, &deleted, RankState::Terminating, false),
            ("Succeeded", &none, &deleted, RankState::Succeeded, true),
            ("Failed", &none, &none, RankState::Failed, false),
        ] {
            let pod = serde_json::from_value(json!({
                "metadata": {"deletionTimestamp": deleted},
                "spec": {"containers": [], "schedulingGates": gates},
                "status": {"phase": phase},
            }));
            let found = RankState::of(Some::<&Pod>(&pod.unwrap()));
            assert_eq!((found, found.is_well()), (state, is_well), "{phase}");
        }
        assert!(!RankState::of(None::<&Pod>).is_well());
    }
}
