//! Gangs that are started anew since they make no progress, by what their pods tell alone.
//!
//! * **stalled** a gang is only if the pod of its first rank told the same for as long as the gang declared that it may, at any time;
//! * **S10** and once for each time that it stood still: the next attempt has its own.
//!
//! A leader waits for a minute more. By a clock that is a tenth too fast that is longer still than what is declared here, which is far below ten minutes.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use muster_api::{Gang, Intent, IntentKind, Ledger, Reason, keys};

use super::Violation;
use crate::{api_server::ApiServer, fixtures, scenario::Scenario};

/// What a pod tells.
#[derive(Clone, Debug)]
struct Told {
    text: String,
    since: Timestamp,
    /// For how long it told the same at the most before, in milliseconds.
    longest: i64,
    /// For how long it may, in milliseconds, if its gang says so.
    deadline: Option<i64>,
}

impl Told {
    /// For how long it told the same at the most, in milliseconds.
    fn longest(&self, now: Timestamp) -> i64 {
        let lasts = now.as_millisecond() - self.since.as_millisecond();
        lasts.max(self.longest)
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// Seconds that gangs declare, by the name of their Job or the value of their label.
    deadlines: BTreeMap<String, u64>,
    /// By UID of the pod.
    told: BTreeMap<String, Told>,
    /// Attempts of which an intent was seen that evicts them for that.
    evicted: BTreeSet<(String, i64)>,
    /// UIDs of the Gangs of which any was.
    restarted: BTreeSet<String>,
}

impl Stalls {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let deadlines = scenario.gangs.iter().filter_map(|gang| {
            let progress = gang.ranks.progress?;
            Some((gang.name.clone(), progress.deadline_seconds))
        });
        Self {
            deadlines: deadlines.collect(),
            ..Self::default()
        }
    }

    /// What a pod tells now.
    pub(super) fn note_pod(&mut self, pod: &Pod, now: Timestamp) {
        let annotations = pod.metadata.annotations.as_ref();
        let Some(text) = annotations.and_then(|annotations| annotations.get(keys::PROGRESS)) else {
            return;
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let before = self.told.get(&uid);
        if before.is_some_and(|before| before.text == *text) {
            return;
        }
        let told = Told {
            text: text.clone(),
            since: now,
            longest: before.map_or(0, |before| before.longest(now)),
            deadline: self.deadline_of(pod),
        };
        self.told.insert(uid, told);
    }

    fn deadline_of(&self, pod: &Pod) -> Option<i64> {
        let labels = pod.metadata.labels.as_ref()?;
        let gang = labels
            .get(fixtures::JOB_NAME)
            .or_else(|| labels.get(keys::GANG))?;
        let seconds = self.deadlines.get(gang)?;
        i64::try_from(seconds * 1_000).ok()
    }

    /// What the Ledger commits now.
    pub(super) fn check_ledger(
        &mut self,
        api: &ApiServer,
        ledger: &Ledger,
    ) -> Result<(), Violation> {
        for intent in &ledger.spec.intents {
            let attempt = (intent.gang_uid.clone(), intent.attempt);
            let stalls =
                intent.kind == IntentKind::Evict && intent.cause == Some(Reason::NoProgress);
            if stalls && self.evicted.insert(attempt) {
                self.check_eviction(api, intent)?;
            }
        }
        Ok(())
    }

    fn check_eviction(&mut self, api: &ApiServer, intent: &Intent) -> Result<(), Violation> {
        let Some(first) = first_pod(api, intent) else {
            return Ok(());
        };
        let told = self.told.get(first);
        let stood_still = told.is_some_and(|told| {
            let deadline = told.deadline;
            deadline.is_some_and(|deadline| told.longest(api.time()) >= deadline)
        });
        let is_again = !self.restarted.insert(intent.gang_uid.clone());
        if stood_still {
            return Ok(());
        }
        let what = format!(
            "attempt {} of {} is evicted at {} since it makes no progress, and {first} tells {told:?}",
            intent.attempt,
            intent.name,
            api.time()
        );
        let invariant = if is_again { "S10" } else { "stalled" };
        Err(Violation::new(invariant, what))
    }
}

/// UID of the pod of the first rank of the attempt that the Gang of an intent carries.
fn first_pod<'a>(api: &'a ApiServer, intent: &Intent) -> Option<&'a str> {
    let gang = api.get::<Gang>(&intent.namespace, &intent.name)?;
    let is_meant = gang.metadata.uid.as_ref() == Some(&intent.gang_uid);
    let status = gang.status.as_ref().filter(|_| is_meant)?;
    let first = status.admission.as_ref()?.pods.first()?;
    Some(&first.uid)
}

#[cfg(test)]
mod tests {
    use muster_api::{
        GangSpec, LedgerSpec,
        gang::{Admission, AdmittedPod},
    };
    use serde_json::json;

    use super::*;
    use crate::api_server::Precondition;

    const DEADLINE_SECONDS: u64 = 10;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    struct Stage {
        api: ApiServer,
        stalls: Stalls,
    }

    impl Stage {
        fn new() -> Self {
            let mut gang = Gang::new("train", GangSpec::default());
            gang.metadata.namespace = Some("ml".to_owned());
            let mut api = ApiServer::default();
            api.create(gang).unwrap();
            let deadlines = BTreeMap::from([("train".to_owned(), DEADLINE_SECONDS)]);
            Self {
                api,
                stalls: Stalls {
                    deadlines,
                    ..Stalls::default()
                },
            }
        }

        fn tell(&mut self, uid: &str, text: &str, second: i64) {
            let pod = json!({
                "metadata": {
                    "uid": uid, "labels": {keys::GANG: "train"}, "annotations": {keys::PROGRESS: text},
                },
            });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            self.stalls.note_pod(&pod, time(second));
        }

        /// The invariant that breaks where the attempt of that pod is evicted then.
        fn evicted(&mut self, attempt: i64, first: &str, second: i64) -> Option<&'static str> {
            let any = Precondition::default();
            let done = self.api.update::<Gang>("ml", "train", any, |gang| {
                let pod = AdmittedPod {
                    uid: first.to_owned(),
                    ..AdmittedPod::default()
                };
                gang.status.get_or_insert_default().admission = Some(Admission {
                    pods: vec![pod],
                    ..Admission::default()
                });
            });
            let mut ledger = Ledger::new(keys::LEDGER_NAME, LedgerSpec::default());
            ledger.spec.intents.push(Intent {
                kind: IntentKind::Evict,
                namespace: "ml".to_owned(),
                name: "train".to_owned(),
                gang_uid: done.unwrap().metadata().uid.clone().unwrap(),
                attempt,
                cause: Some(Reason::NoProgress),
                ..Intent::default()
            });
            self.api.set_time(time(second));
            let checked = self.stalls.check_ledger(&self.api, &ledger);
            checked.err().map(|violation| violation.invariant)
        }
    }

    #[test]
    fn whoever_is_evicted_in_time_is_seen() {
        for (told, second, breaks) in [
            (vec![("1", 0)], 10, None),
            (vec![("1", 0)], 9, Some("stalled")),
            (vec![("1", 0), ("2", 9)], 18, Some("stalled")),
            (vec![("1", 0), ("1", 9)], 10, None),
            (vec![("1", 0), ("2", 10)], 11, None),
            (vec![], 100, Some("stalled")),
        ] {
            let mut stage = Stage::new();
            for (text, at) in &told {
                stage.tell("first", text, *at);
            }
            assert_eq!(
                stage.evicted(1, "first", second),
                breaks,
                "{told:?} {second}"
            );
        }
    }

    #[test]
    fn what_the_attempt_before_told_counts_for_no_other() {
        let mut stage = Stage::new();
        stage.tell("first", "1", 0);
        assert_eq!(stage.evicted(1, "first", 10), None);
        assert_eq!(stage.evicted(1, "first", 10), None, "it is told of again");
        stage.tell("next", "1", 20);
        assert_eq!(stage.evicted(2, "next", 25), Some("S10"));
        stage.tell("third", "1", 30);
        assert_eq!(stage.evicted(3, "third", 40), None);
    }
}
