//! Evictions and preemption (S4, S14, S15), and a tally of what happened in a run.
//!
//! * A gang keeps its place in the queue: since when it queues never changes.
//! * Who gives way to another gang of its Team is of a lower tier.
//! * Nobody is evicted for another, or for a limit, before its Gang has said so for as long as its notice says, or it wrote a checkpoint.
//! * Nobody is evicted for a limit of whose Team does not say `shrink: Evict`, nor where it was never told that it was for that.
//! * An attempt is evicted whole; and once nothing goes wrong any more, nobody gives way in vain, or goes for a limit, time and again
//!   ([`given_way`](super::given_way)).

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use muster_api::{
    Gang, Intent, IntentKind, Ledger, PriorityTier, Reason, Team, gang::PreemptionNotice, keys,
    team::Shrink,
};

use super::{Violation, given_way::GivenWay, namespace_use::is_any_recorded};
use crate::{
    api_server::{ApiServer, has_ended},
    clock::Margin,
    owners::is_gated,
    scenario::{Scenario, TeamShape},
};

/// How long after the last fault some pods of an attempt may be left alone though others of it were deleted.
const PARTLY_ENDED_SECONDS: i64 = 60;

/// What was seen of it so far.
#[derive(Debug, Default)]
pub(super) struct Preemptions {
    queued_at: BTreeMap<String, Timestamp>,
    /// The last notice of a Gang, by its UID, whether or not it still stands.
    notices: BTreeMap<String, Notice>,
    /// Attempts of which an intent was seen that evicts them.
    evicted: BTreeSet<(String, i64)>,
    /// Attempts that are evicted and whose pods are not all being ended: their numbers, and UIDs of their pods.
    ending: Vec<(i64, Vec<String>)>,
    /// When one pod of such an attempt was seen to be deleted first, by UID of its first pod.
    ending_since: BTreeMap<String, Timestamp>,
    /// Gangs for whom others were evicted, by their name.
    preemptors: BTreeSet<String>,
    epoch: i64,
    healed_at: Option<Timestamp>,
    given_way: GivenWay,
    pub(super) margin: Margin,
    /// The Team of each namespace, whether or not it has left it for a while.
    team_of: BTreeMap<String, String>,
    tally: BTreeMap<String, u64>,
}

#[derive(Clone, Debug)]
struct Notice {
    attempt: i64,
    preemptor: String,
    since: Timestamp,
    seconds: i64,
    stands: bool,
    /// What its pods told of checkpoints before it was given, by UID of the pod.
    checkpoints: BTreeMap<String, String>,
}

impl Preemptions {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let of = |team: &TeamShape| {
            let name = team.name.clone();
            let namespaces = team.namespaces.clone().into_iter();
            namespaces.map(move |namespace| (namespace, name.clone()))
        };
        Self {
            team_of: scenario.teams.iter().flat_map(of).collect(),
            ..Self::default()
        }
    }

    /// How often each thing happened.
    pub(super) fn tally(&self) -> &BTreeMap<String, u64> {
        &self.tally
    }

    pub(super) fn count(&mut self, what: impl Into<String>) {
        *self.tally.entry(what.into()).or_default() += 1;
    }

    /// Nothing goes wrong from now on.
    pub(super) fn heal(&mut self, now: Timestamp) {
        self.healed_at = Some(now);
    }

    /// What a Gang says now.
    pub(super) fn check_gang(&mut self, api: &ApiServer, gang: &Gang) -> Result<(), Violation> {
        let uid = gang.metadata.uid.clone().unwrap_or_default();
        let name = name_of(gang);
        let Some(status) = &gang.status else {
            return Ok(());
        };
        let before = self.queued_at.get(&uid);
        let now = status.queued_at.as_ref().map(|at| at.0);
        if let Some(before) = before.filter(|before| Some(**before) != now) {
            let what = format!("{name} queues since {now:?}, and had queued since {before}");
            return Err(Violation::new("S14", what));
        }
        if let Some(at) = now {
            self.queued_at.insert(uid.clone(), at);
        }
        let notice = status.preemption.as_ref();
        let notice = notice.filter(|notice| notice.attempt == status.attempt);
        self.check_notice(api, gang, &uid, notice)
    }

    fn check_notice(
        &mut self,
        api: &ApiServer,
        gang: &Gang,
        uid: &str,
        notice: Option<&PreemptionNotice>,
    ) -> Result<(), Violation> {
        let Some(notice) = notice else {
            let stood = self.notices.get_mut(uid).filter(|before| before.stands);
            if let Some(before) = stood {
                before.stands = false;
                let evicted = self.evicted.contains(&(uid.to_owned(), before.attempt));
                if !evicted {
                    self.count("notices taken back");
                }
            }
            return Ok(());
        };
        let known = self.notices.get_mut(uid);
        if let Some(known) = known.filter(|it| it.stands && it.attempt == notice.attempt) {
            known.preemptor.clone_from(&notice.preemptor);
            return Ok(());
        }
        let seconds = notice.preempt_at.0.as_second() - notice.noticed_at.0.as_second();
        let new = Notice {
            attempt: notice.attempt,
            preemptor: notice.preemptor.clone(),
            since: api.time(),
            seconds,
            stands: true,
            checkpoints: checkpoints(api, gang),
        };
        self.notices.insert(uid.to_owned(), new);
        self.count("notices");
        let preemptor = gang_named(api, &notice.preemptor);
        if let Some(preemptor) = preemptor
            && let (Some(low), Some(high)) = (steady_tier(api, gang), steady_tier(api, preemptor))
            && self.team_of(gang) == self.team_of(preemptor)
            && low >= high
        {
            let what = format!(
                "{} of value {low} is to give way to {} of value {high}",
                name_of(gang),
                notice.preemptor
            );
            return Err(Violation::new("S14", what));
        }
        Ok(())
    }

    fn team_of(&self, gang: &Gang) -> Option<&String> {
        self.team_of.get(gang.metadata.namespace.as_deref()?)
    }

    /// What the Ledger commits now. `entered`: the intents that admit attempts which were not committed before.
    pub(super) fn check_ledger(
        &mut self,
        api: &ApiServer,
        ledger: &Ledger,
        entered: &[&Intent],
    ) -> Result<(), Violation> {
        if ledger.spec.leader_epoch != self.epoch {
            self.epoch = ledger.spec.leader_epoch;
            self.count("takeovers");
            if self.notices.values().any(|notice| notice.stands) {
                self.count("takeovers while somebody is to give way");
            }
            if is_any_recorded(api) {
                self.count("takeovers while use is recorded");
            }
            let mut intents = ledger.spec.intents.iter();
            if intents.any(|intent| intent.kind == IntentKind::Evict) {
                self.count("takeovers while an attempt is evicted");
            }
        }
        for intent in &ledger.spec.intents {
            let attempt = (intent.gang_uid.clone(), intent.attempt);
            if intent.kind == IntentKind::Evict && self.evicted.insert(attempt) {
                self.check_eviction(api, intent)?;
            }
        }
        for intent in entered {
            let name = format!("{}/{}", intent.namespace, intent.name);
            if self.preemptors.remove(&name) {
                self.count("admitted after others gave way");
            }
        }
        Ok(())
    }

    fn check_eviction(&mut self, api: &ApiServer, intent: &Intent) -> Result<(), Violation> {
        let cause = intent.cause.map_or("?", Reason::as_str);
        self.count(format!("evicted: {cause}"));
        let gang = api.get::<Gang>(&intent.namespace, &intent.name);
        let status = gang.and_then(|gang| gang.status.as_ref());
        let admission = status.and_then(|status| status.admission.as_ref());
        let pods = admission.iter().flat_map(|admission| &admission.pods);
        let pods = pods.map(|pod| pod.uid.clone()).collect();
        self.ending.push((intent.attempt, pods));
        let for_quota = match intent.cause {
            Some(Reason::Preempted) => false,
            Some(Reason::QuotaShrunk) => true,
            _ => return Ok(()),
        };
        // No Team of a scenario says another word about it later on.
        let team = api.get::<Team>("", &intent.team);
        if for_quota && team.is_none_or(|team| team.spec.shrink != Shrink::Evict) {
            let what = format!(
                "{} is evicted for a limit of {}, which keeps its gangs",
                intent.name, intent.team
            );
            return Err(Violation::new("S14", what));
        }
        if self.healed_at.is_some() {
            let told = self.notices.get(&intent.gang_uid);
            let preemptor = told.map(|notice| notice.preemptor.clone());
            let preemptor = preemptor.unwrap_or_default();
            self.given_way.check(api, intent, preemptor)?;
        }
        let now = api.time();
        let notice = self.notices.get(&intent.gang_uid).cloned();
        let notice = notice.filter(|notice| notice.attempt == intent.attempt);
        let notice = notice.filter(|notice| notice.preemptor.is_empty() == for_quota);
        // In the order of the API server's versions, whatever dates they have.
        let has_checkpoint = notice.as_ref().zip(gang).is_some_and(|(notice, gang)| {
            let mut told = checkpoints(api, gang).into_iter();
            told.any(|(pod, at)| notice.checkpoints.get(&pod) != Some(&at))
        });
        if has_checkpoint {
            self.count("preempted at a checkpoint");
        }
        let told = notice.as_ref().is_some_and(|notice| {
            // A leader counts from when it saw what was stored, and one second more.
            has_checkpoint || notice.since + self.margin.at_least(notice.seconds) <= now
        });
        if !told {
            let what = format!(
                "{} is evicted at {now} by {cause}, and was told {notice:?}",
                intent.name
            );
            return Err(Violation::new("S14", what));
        }
        if let Some(notice) = notice.filter(|_| !for_quota) {
            self.preemptors.insert(notice.preemptor);
        }
        Ok(())
    }

    /// S4: of an attempt that is evicted not only some pods are ended.
    pub(super) fn check_ending(&mut self, api: &ApiServer) -> Result<(), Violation> {
        let (Some(healed_at), false) = (self.healed_at, self.ending.is_empty()) else {
            return Ok(());
        };
        let now = api.time();
        // Of a Gang that was deleted before any of its pods were told to end, the next one takes up what is left again.
        let gangs = api.list::<Gang>().filter_map(|gang| gang.status.as_ref());
        let admissions = gangs.filter_map(|status| status.admission.as_ref());
        let adopted = admissions.filter(|admission| admission.adopted);
        let adopted: BTreeSet<&str> = adopted
            .flat_map(|admission| &admission.pods)
            .map(|pod| pod.uid.as_str())
            .collect();
        let mut left = Vec::new();
        for (attempt, pods) in std::mem::take(&mut self.ending) {
            let there = pods.iter().filter_map(|uid| api.pod_by_uid(uid));
            // What was still gated may be let go in a later attempt.
            let living = there.filter(|pod| {
                let is_deleted = pod.metadata.deletion_timestamp.is_some();
                let is_taken_up = pod
                    .metadata
                    .uid
                    .as_ref()
                    .is_some_and(|uid| adopted.contains(uid.as_str()));
                !is_deleted
                    && !is_taken_up
                    && !has_ended(pod)
                    && !is_gated(pod)
                    && attempt_of(pod) == Some(attempt)
            });
            let living: Vec<&str> = living
                .filter_map(|pod| pod.metadata.uid.as_deref())
                .collect();
            if living.is_empty() {
                continue;
            }
            let is_partly_ended = living.len() < pods.len();
            let id = pods.first().cloned().unwrap_or_default();
            if is_partly_ended {
                let since = *self.ending_since.entry(id).or_insert(now);
                let since = since.max(healed_at);
                if since + SignedDuration::from_secs(PARTLY_ENDED_SECONDS) < now {
                    let what =
                        format!("pods {living:?} of {pods:?} go on, and others were evicted");
                    return Err(Violation::new("S4", what));
                }
            }
            left.push((attempt, pods));
        }
        self.ending = left;
        Ok(())
    }
}

fn name_of(gang: &Gang) -> String {
    let namespace = gang.metadata.namespace.as_deref().unwrap_or_default();
    let name = gang.metadata.name.as_deref().unwrap_or_default();
    format!("{namespace}/{name}")
}

fn gang_named<'a>(api: &'a ApiServer, name: &str) -> Option<&'a Gang> {
    let (namespace, name) = name.split_once('/')?;
    api.get::<Gang>(namespace, name)
}

/// The attempt that a pod was let go for.
fn attempt_of(pod: &Pod) -> Option<i64> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(keys::ATTEMPT)?.parse().ok()
}

/// The last checkpoint that each pod of the attempt that a Gang carries tells of, by UID of the pod.
fn checkpoints(api: &ApiServer, gang: &Gang) -> BTreeMap<String, String> {
    let admission = gang.status.as_ref().and_then(|it| it.admission.as_ref());
    let pods = admission.iter().flat_map(|admission| &admission.pods);
    let told = pods.filter_map(|pod| {
        let annotations = api.pod_by_uid(&pod.uid)?.metadata.annotations.as_ref()?;
        let at = annotations.get(keys::CHECKPOINTED_AT)?;
        Some((pod.uid.clone(), at.clone()))
    });
    told.collect()
}

/// The value of the tier of a Gang whose spec was never changed.
fn steady_tier(api: &ApiServer, gang: &Gang) -> Option<i32> {
    let is_steady = gang.metadata.generation == Some(1);
    let tier = gang.status.as_ref()?.tier.as_ref()?;
    let tier = api.get::<PriorityTier>("", tier).filter(|_| is_steady)?;
    Some(tier.spec.value)
}

#[cfg(test)]
mod tests {
    use muster_api::{
        GangSpec,
        gang::{Admission, AdmittedPod},
    };
    use serde_json::json;

    use super::*;
    use crate::api_server::Precondition;

    #[test]
    fn s4_what_is_left_of_an_evicted_attempt_goes_on_only_in_a_gang_that_took_it_up_again() {
        for (adopted, is_allowed) in [(true, true), (false, false)] {
            let mut api = ApiServer::default();
            let healed_at = Timestamp::from_second(1_000).unwrap();
            api.set_time(healed_at);
            let pod = json!({
                "metadata": {"name": "train-0", "namespace": "ml", "annotations": {keys::ATTEMPT: "1"}},
                "status": {"phase": "Running"},
            });
            let pod: Pod = serde_json::from_value(pod).unwrap();
            api.create(pod).unwrap();
            let pod = api.get::<Pod>("ml", "train-0").unwrap();
            let uid = pod.metadata.uid.clone().unwrap();
            let mut gang = Gang::new("train", GangSpec::default());
            gang.metadata.namespace = Some("ml".to_owned());
            api.create(gang).unwrap();
            let admitted = AdmittedPod {
                uid: uid.clone(),
                ..AdmittedPod::default()
            };
            let any = Precondition::default();
            api.update::<Gang>("ml", "train", any, |gang| {
                gang.status.get_or_insert_default().admission = Some(Admission {
                    pods: vec![admitted],
                    adopted,
                    ..Admission::default()
                });
            })
            .unwrap();
            let mut preemptions = Preemptions {
                healed_at: Some(healed_at),
                ending: vec![(1, vec![uid, "gone".to_owned()])],
                ..Preemptions::default()
            };
            let mut broken = |api: &ApiServer| {
                let judged = preemptions.check_ending(api);
                judged.err().map(|violation| violation.invariant)
            };
            assert_eq!(broken(&api), None, "adopted: {adopted}");
            api.set_time(healed_at + SignedDuration::from_secs(PARTLY_ENDED_SECONDS + 1));
            let expected = (!is_allowed).then_some("S4");
            assert_eq!(broken(&api), expected, "adopted: {adopted}");
        }
    }
}
