//! What MIG keeps from everybody without anybody having said so: told in the log, and by an Event on the Node.
//!
//! Both come of a change that an administrator makes: a node that becomes `Dynamic` with slices on it, and one that is `Dynamic` no longer
//! with GPUs in MIG mode. Nothing fails then; there is less to be had.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use muster_cluster::text::{listed, truncate};
use muster_serve::{Shutdown, event::Told};
use tokio::sync::watch;

use super::settings::{Mode, OnGpus, Policy};
use crate::{
    inventory::{KnownGpu, KnownGpus},
    kubernetes::Kubernetes,
};

/// Between two looks. What stands in two of them is told: what the driver or an administrator is just doing is not.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// What Events name as their reporter.
const REPORTER: &str = "muster.dev/dra-driver";
/// Longest note; the API takes 1,024 bytes.
const NOTE_BYTES: usize = 1_024;

/// Why something is told. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoticeReason {
    /// On a `Dynamic` node there are slices that no claim accounts for.
    ForeignSlices,
    /// GPUs are in MIG mode, have no slice, and get none by a claim.
    MigModeUnused,
}

impl NoticeReason {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::ForeignSlices, Self::MigModeUnused];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ForeignSlices => "ForeignSlices",
            Self::MigModeUnused => "MigModeUnused",
        }
    }

    /// What is so, and what to do about it.
    fn note(self, gpus: &BTreeSet<String>, policy: &Policy) -> String {
        let names = listed(gpus.iter().map(String::as_str));
        let mut note = match self {
            Self::ForeignSlices => format!(
                "slices that no claim of Muster's accounts for are on {names}, and nothing that overlaps them is given out. Those that a layout \
                 of Muster's made are removed about ten minutes after nothing uses them any more. Remove all others (nvidia-smi mig -dci, \
                 then -dgi), or set this node to Static in driver.mig"
            ),
            Self::MigModeUnused => {
                let remedy = if policy.mode == Mode::Off {
                    "Take them out of it (nvidia-smi -i GPU -mig 0), or set toggle to WhenIdle, with which the driver does so, but for Ampere and \
                     beside NVIDIA's mig-manager"
                } else {
                    "Make slices, name a layout in driver.mig, or take them out of MIG mode (nvidia-smi -i GPU -mig 0)"
                };
                format!(
                    "{names} are in MIG mode and have no slice, so nothing of them is given out: mode is {:?} in driver.mig. {remedy}",
                    policy.mode
                )
            }
        };
        truncate(&mut note, NOTE_BYTES);
        note
    }
}

/// What is to be told: names of the GPUs' devices by reason.
pub type Standing = BTreeMap<NoticeReason, BTreeSet<String>>;

/// What stands at the moment. What the driver itself is about to mend is not among it.
pub fn standing(known: &KnownGpus, policy: &Policy) -> Standing {
    let mut standing = Standing::new();
    for known in &known.gpus {
        if let Some(reason) = reason(known, policy) {
            let gpus = standing.entry(reason).or_default();
            gpus.insert(known.gpu.device_name());
        }
    }
    standing
}

fn reason(known: &KnownGpu, policy: &Policy) -> Option<NoticeReason> {
    if known.gone || known.silent || policy.goal(known).is_some() {
        return None;
    }
    match policy.mode {
        Mode::Dynamic => (!known.foreign.is_empty()).then_some(NoticeReason::ForeignSlices),
        Mode::Off | Mode::Static => {
            let is_unused = known.is_in_mig_mode() && known.instances.is_empty();
            is_unused.then_some(NoticeReason::MigModeUnused)
        }
    }
}

/// What was seen and told. In memory only: a driver that starts tells again what stands.
#[derive(Debug, Default)]
pub struct Notices {
    before: Standing,
    told: Standing,
}

impl Notices {
    /// What is due after this look: what stood in the one before as well, and was not told as it is.
    pub fn due(&mut self, standing: Standing) -> Standing {
        self.told
            .retain(|reason, _| standing.contains_key(reason) || self.before.contains_key(reason));
        let is_due = |&(reason, gpus): &(&NoticeReason, &BTreeSet<String>)| {
            self.before.get(reason) == Some(gpus) && self.told.get(reason) != Some(gpus)
        };
        let due = standing.iter().filter(is_due);
        let due = due.map(|(reason, gpus)| (*reason, gpus.clone())).collect();
        self.before = standing;
        due
    }

    /// It was told.
    pub fn told(&mut self, reason: NoticeReason, gpus: BTreeSet<String>) {
        self.told.insert(reason, gpus);
    }
}

/// Starts to look and to tell, until shutdown.
pub fn spawn(
    gpus: watch::Receiver<Option<KnownGpus>>,
    policy: watch::Receiver<Option<Policy>>,
    kubernetes: Kubernetes,
    shutdown: &Shutdown,
) {
    let telling = run(gpus, policy, kubernetes);
    shutdown.spawn_until_stopped("notices about MIG", telling);
}

async fn run(
    gpus: watch::Receiver<Option<KnownGpus>>,
    policy: watch::Receiver<Option<Policy>>,
    kubernetes: Kubernetes,
) {
    let mut notices = Notices::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let known = gpus.borrow().clone();
        let policy = policy.borrow().clone();
        let (Some(known), Some(policy)) = (known, policy) else {
            continue;
        };
        for (reason, gpus) in notices.due(standing(&known, &policy)) {
            let note = reason.note(&gpus, &policy);
            tracing::warn!(reason = reason.as_str(), "{note}");
            match tell(&kubernetes, reason, note).await {
                Ok(()) => notices.told(reason, gpus),
                // It is told again with the next look.
                Err(cause) => tracing::warn!(cause, "no Event tells of it"),
            }
        }
    }
}

async fn tell(kubernetes: &Kubernetes, reason: NoticeReason, note: String) -> Result<(), String> {
    let uid = kubernetes.node_uid().await;
    let uid = uid.map_err(|error| error.to_string())?;
    let told = Told {
        regarding: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(kubernetes.node().to_owned()),
            uid: Some(uid),
            ..ObjectReference::default()
        },
        action: "Offering",
        reason: reason.as_str().to_owned(),
        note,
        is_warning: true,
        reporter: REPORTER,
        instance: kubernetes.node(),
    };
    let created = kubernetes.create_event(&told.at(Timestamp::now())).await;
    created.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use muster_device::{Gpu, Listed, ListedGpu, MigInstance, Placement};
    use serde_json::json;

    use super::*;
    use crate::{
        inventory::fixtures::{gpu, h100},
        mig::Settings,
    };

    const AT: Placement = Placement { start: 0, size: 4 };

    /// Three GPUs in MIG mode: without a slice, with one that a claim had made, with one of somebody else's; and one that is whole.
    fn node() -> KnownGpus {
        let gpus = (0..4).map(|index| {
            let address = index.to_string();
            let gpu = Gpu {
                mig: Some(h100(index < 3)),
                ..gpu(&format!("GPU-{index}"), index, &address)
            };
            ListedGpu { gpu, silent: None }
        });
        let listed = Listed {
            gpus: gpus.collect(),
            unidentified: Vec::new(),
        };
        let slice = MigInstance {
            placement: AT,
            gpu_instance: 1,
            compute_instance: Some(0),
            is_divided: false,
            profile: 9,
            uuid: Some("MIG-0".to_owned()),
        };
        let seen = (1..3).map(|index| (format!("GPU-{index}"), vec![slice.clone()]));
        let known = KnownGpus::default().after("boot", &listed);
        known.with_instances(&seen.collect(), |gpu, _| gpu == "GPU-2")
    }

    fn policy(mode: &str, toggle: &str, layout: &str) -> Policy {
        let layouts = json!({"large": [{"slices": {"3g.40gb": 2}}]});
        let text = json!({"mode": mode, "toggle": toggle, "layout": layout, "layouts": layouts});
        let settings = Settings::parse(&text.to_string()).unwrap();
        settings.policy(&BTreeMap::new())
    }

    #[test]
    fn a_change_of_mode_that_keeps_hardware_from_everybody_is_told_with_what_to_do() {
        for (mode, toggle, layout, expected) in [
            ("Dynamic", "Never", "", vec![("ForeignSlices", "gpu-2")]),
            ("Dynamic", "WhenIdle", "", vec![("ForeignSlices", "gpu-2")]),
            ("Off", "Never", "", vec![("MigModeUnused", "gpu-0")]),
            // The driver takes it out of MIG mode.
            ("Off", "WhenIdle", "", vec![]),
            ("Static", "WhenIdle", "", vec![("MigModeUnused", "gpu-0")]),
            // The layout is applied.
            ("Static", "Never", "large", vec![]),
        ] {
            let policy = policy(mode, toggle, layout);
            let standing = standing(&node(), &policy);
            let seen: Vec<(&str, &str)> = standing
                .iter()
                .flat_map(|(reason, gpus)| gpus.iter().map(|gpu| (reason.as_str(), gpu.as_str())))
                .collect();
            assert_eq!(seen, expected, "{mode} {toggle} {layout}");
            for (reason, gpus) in &standing {
                let note = reason.note(gpus, &policy);
                assert!(
                    note.contains("driver.mig") && note.contains("nvidia-smi"),
                    "{note}"
                );
                let many = (0..1_000).map(|gpu| "x".repeat(63) + &gpu.to_string());
                let note = reason.note(&many.collect(), &policy);
                assert!(note.len() <= NOTE_BYTES, "{}", note.len());
            }
        }
    }

    #[test]
    fn what_stands_in_two_looks_is_told_once_and_again_when_it_is_about_other_gpus() {
        let mut notices = Notices::default();
        for (look, gpus, is_due) in [
            (0, vec!["gpu-0"], false),
            (1, vec![], false),
            (2, vec!["gpu-0"], false),
            (3, vec!["gpu-0"], true),
            (4, vec!["gpu-0"], false),
            (5, vec!["gpu-0", "gpu-1"], false),
            (6, vec!["gpu-0", "gpu-1"], true),
            // It goes for good, and comes again.
            (7, vec![], false),
            (8, vec![], false),
            (9, vec!["gpu-0"], false),
            (10, vec!["gpu-0"], true),
        ] {
            let gpus: BTreeSet<String> = gpus.into_iter().map(str::to_owned).collect();
            let has_some = !gpus.is_empty();
            let standing = has_some.then_some((NoticeReason::MigModeUnused, gpus));
            let due = notices.due(standing.into_iter().collect());
            assert_eq!(!due.is_empty(), is_due, "look {look}");
            for (reason, gpus) in due {
                notices.told(reason, gpus);
            }
        }
    }

    #[test]
    fn every_reason_stands_in_the_operators_guide() {
        let guide = include_str!("../../../docs/operator-guide.md");
        for reason in NoticeReason::ALL {
            let word = format!("`{}`", reason.as_str());
            assert!(guide.contains(&word), "{word}");
        }
    }
}
