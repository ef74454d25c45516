//! Tells what changed since the last look.

use std::collections::BTreeMap;

use muster_api::GangPhase;

use super::observation::{Observation, Seen};

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    told: BTreeMap<String, Seen>,
    tainted: BTreeMap<(String, String), String>,
}

impl Timeline {
    /// A line for each device that has a fault or has none any more, and for each gang whose phase or reason changed.
    pub(super) fn news(&mut self, observation: &Observation) -> Vec<String> {
        let mut lines = self.news_of_devices(observation);
        for (name, seen) in &observation.gangs {
            let before = self.told.insert(name.clone(), seen.clone());
            let mut tell = |word: &str, text: &str| {
                lines.push(format!("{name:<16} {word:<11} {text}"));
            };
            let was_told = before
                .as_ref()
                .is_some_and(|before| before.notice.is_some());
            if let Some(notice) = seen.notice.as_ref().filter(|_| !was_told) {
                tell("Told", notice);
            }
            for (attempt, why) in &seen.evictions {
                let before = before.as_ref();
                if before.is_none_or(|before| !before.evictions.contains_key(attempt)) {
                    tell("Evicted", why);
                }
            }
            let is_news = before
                .is_none_or(|before| (before.phase, &before.reason) != (seen.phase, &seen.reason));
            if is_news {
                tell(&format!("{:?}", seen.phase), &details(seen));
            }
        }
        lines
    }

    fn news_of_devices(&mut self, observation: &Observation) -> Vec<String> {
        let now = observation.faulty.iter();
        let now: BTreeMap<(String, String), String> = now
            .map(|(device, fault)| (device.clone(), fault.taint.clone()))
            .collect();
        let line = |(node, device): &(String, String), word: &str, taint: &str| {
            let name = format!("{node}/{device}");
            format!("{name:<16} {word:<11} {taint}")
        };
        let come = now
            .iter()
            .filter(|(device, taint)| self.tainted.get(*device) != Some(*taint))
            .map(|(device, taint)| line(device, "Tainted", taint));
        let gone = self
            .tainted
            .iter()
            .filter(|(device, _)| !now.contains_key(*device))
            .map(|(device, taint)| line(device, "Untainted", taint));
        let lines = come.chain(gone).collect();
        self.tainted = now;
        lines
    }
}

fn details(seen: &Seen) -> String {
    match (seen.phase, &seen.reason) {
        (GangPhase::Pending | GangPhase::Assembling | GangPhase::Recovering, Some(reason)) => {
            reason.clone()
        }
        (GangPhase::Admitted, _) => format!(
            "charged {} GPUs to team {}",
            seen.charged_gpus_milli / 1000,
            seen.team
        ),
        (GangPhase::Running, _) => {
            let list = |names: &std::collections::BTreeSet<String>| {
                names.iter().cloned().collect::<Vec<_>>().join(",")
            };
            format!(
                "on {} (leaf {})",
                list(&seen.nodes_now),
                list(&seen.leaves_now)
            )
        }
        _ => String::new(),
    }
}
