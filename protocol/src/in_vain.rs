//! Writes that change nothing: the API server does not store all that they say, or finds nothing to store it in.
//!
//! A CustomResourceDefinition that is older than this program lacks fields. The API server takes a write of such an object,
//! answers that it is done, and drops what the definition does not name. What is seen then differs from what is wanted for
//! ever, and would be written again each time that it is seen. So what was written is compared with what is seen of it, in the version
//! that the answer named. Likewise where there is nothing at that path: a status that the
//! definition does not know, or an object that is gone and of which the watch has not said so yet.
//!
//! So what was written in vain is not written again before [`AGAIN_SECONDS`] have passed, or [`NOT_FOUND_SECONDS`] where there
//! was nothing to write to. Then its object is looked at again. Whatever says something else is written at once: an object that
//! lacks a field is kept up to date in all others.
//!
//! Nothing becomes less safe by a write that waits: the machine goes by what is seen alone, and takes such a write for one
//! that was not made.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use muster_api::{CohortStatus, FlavorStatus, GangStatus, TeamStatus};
use serde::Serialize;
use serde_json::Value;

use crate::{ApiRequest, Outcome};
use muster_cluster::object::{Kind, Object, ObjectKey};

/// How long the same is not written again, in seconds: as long as an administrator takes to bring the definitions up to
/// date, and so rarely that ten thousand objects cost twenty writes a second.
pub(crate) const AGAIN_SECONDS: u64 = 600;

/// The same where the answer was that there is nothing at that path. That may be a proxy's word, or true for the moment in
/// which a definition is replaced.
pub(crate) const NOT_FOUND_SECONDS: u64 = 60;

/// A field that the API server does not store as it is written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldNotStored {
    /// The kind of the object.
    pub kind: Kind,
    /// The path of the field, with `[]` for any element of a list.
    pub field: String,
}

/// What was written in vain.
#[derive(Debug, Default)]
pub(crate) struct WritesInVain {
    by_object: BTreeMap<ObjectKey, WriteInVain>,
    /// When objects are looked at again.
    due: BTreeSet<(u64, ObjectKey)>,
    /// Every field that was found not to be stored: no more than the kinds have.
    fields: BTreeSet<FieldNotStored>,
    /// Those of them that nobody asked for yet.
    news: Vec<FieldNotStored>,
}

#[derive(Debug)]
struct WriteInVain {
    write: Arc<ApiRequest>,
    until: u64,
}

impl WritesInVain {
    /// Notes that a write was not done. One that was is compared once its object is seen ([`Self::compare`]): until then nothing
    /// else is written to it.
    pub(crate) fn note_not_done(
        &mut self,
        key: &ObjectKey,
        write: &Arc<ApiRequest>,
        outcome: &Outcome,
        second: u64,
    ) {
        let held_back_seconds = match (outcome, &**write) {
            // A Queue that is not there is made; whatever is decided by an object has a precondition, and conflicts.
            (
                Outcome::NotFound,
                ApiRequest::PublishQueue { .. }
                | ApiRequest::PublishTeam { .. }
                | ApiRequest::PublishCohort { .. }
                | ApiRequest::PublishFlavor { .. }
                | ApiRequest::PublishPriorityTier { .. },
            ) => Some(NOT_FOUND_SECONDS),
            // Somebody wrote in between, perhaps this program: what is stored is not what was written in vain.
            (Outcome::NotFound | Outcome::Conflict, _) => None,
            _ => return,
        };
        self.set(key, write, held_back_seconds, second);
    }

    /// Compares what a write says with what it stored; `None`: somebody has written since, and that is not known.
    pub(crate) fn compare(
        &mut self,
        key: &ObjectKey,
        write: &Arc<ApiRequest>,
        stored: Option<&Object>,
        second: u64,
    ) {
        let fields = stored.map_or_else(BTreeSet::new, |stored| not_stored(write, stored));
        let held_back_seconds = (!fields.is_empty()).then_some(AGAIN_SECONDS);
        let kind = key.kind;
        for field in fields {
            let field = FieldNotStored { kind, field };
            if self.fields.insert(field.clone()) {
                self.news.push(field);
            }
        }
        self.set(key, write, held_back_seconds, second);
    }

    /// Notes for how long a write is held back that was made at that second, if it is.
    fn set(
        &mut self,
        key: &ObjectKey,
        write: &Arc<ApiRequest>,
        held_back_seconds: Option<u64>,
        second: u64,
    ) {
        self.forget(key);
        if let Some(seconds) = held_back_seconds {
            let write = Arc::clone(write);
            let until = second + seconds;
            self.due.insert((until, key.clone()));
            let in_vain = WriteInVain { write, until };
            self.by_object.insert(key.clone(), in_vain);
        }
    }

    /// The objects that are to be looked at again, since what was written in vain may be written again.
    pub(crate) fn take_due(&mut self, second: u64) -> Vec<ObjectKey> {
        let mut due = Vec::new();
        while self.due.first().is_some_and(|(until, _)| *until <= second) {
            let first = self.due.pop_first();
            due.extend(first.map(|(_, key)| key));
        }
        for key in &due {
            self.by_object.remove(key);
        }
        due
    }

    /// The second in which the next object is to be looked at again.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// Whether a write would say again what was said in vain a short while ago.
    pub(crate) fn holds_back(&self, key: &ObjectKey, write: &ApiRequest, second: u64) -> bool {
        self.by_object
            .get(key)
            .is_some_and(|before| second < before.until && says_the_same(&before.write, write))
    }

    /// An object is gone: one that is made again under its name is another.
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        if let Some(known) = self.by_object.remove(key) {
            self.due.remove(&(known.until, key.clone()));
        }
    }

    /// Whether a field of a kind, or one within it, was found not to be stored.
    pub(crate) fn lacks(&self, kind: Kind, field: &str) -> bool {
        let mut fields = self.fields.iter().filter(|it| it.kind == kind);
        fields.any(|it| {
            let rest = it.field.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// The fields that were found not to be stored; each is told once.
    pub(crate) fn take_news(&mut self) -> Vec<FieldNotStored> {
        std::mem::take(&mut self.news)
    }
}

/// Whether two writes of an object say the same, whatever their preconditions.
fn says_the_same(one: &ApiRequest, other: &ApiRequest) -> bool {
    use ApiRequest::{
        PublishCohort, PublishFlavor, PublishPriorityTier, PublishQueue, PublishTeam,
        ReplaceGangStatus, ReplaceLedger, ReplaceNodeDevices,
    };
    match (one, other) {
        (
            ReplaceGangStatus { uid, status, .. },
            ReplaceGangStatus {
                uid: other_uid,
                status: other,
                ..
            },
        ) => uid == other_uid && facts(status) == facts(other),
        (ReplaceLedger { spec, .. }, ReplaceLedger { spec: other, .. }) => spec == other,
        (
            ReplaceNodeDevices {
                spec, finalizer, ..
            },
            ReplaceNodeDevices {
                spec: other,
                finalizer: other_finalizer,
                ..
            },
        ) => spec == other && finalizer == other_finalizer,
        (PublishQueue { status, .. }, PublishQueue { status: other, .. }) => status == other,
        (PublishTeam { status, .. }, PublishTeam { status: other, .. }) => {
            let facts = |status: &TeamStatus| TeamStatus {
                conditions: without_times(&status.conditions),
                ..status.clone()
            };
            facts(status) == facts(other)
        }
        (PublishCohort { status, .. }, PublishCohort { status: other, .. }) => {
            let facts = |status: &CohortStatus| CohortStatus {
                conditions: without_times(&status.conditions),
                ..status.clone()
            };
            facts(status) == facts(other)
        }
        (PublishFlavor { status, .. }, PublishFlavor { status: other, .. }) => {
            let facts = |status: &FlavorStatus| FlavorStatus {
                conditions: without_times(&status.conditions),
                ..status.clone()
            };
            facts(status) == facts(other)
        }
        (PublishPriorityTier { status, .. }, PublishPriorityTier { status: other, .. }) => {
            without_times(&status.conditions) == without_times(&other.conditions)
        }
        _ => false,
    }
}

/// Conditions without times, which are taken anew where the last ones were not stored.
fn without_times(conditions: &[Condition]) -> Vec<Condition> {
    let mut conditions = conditions.to_vec();
    for condition in &mut conditions {
        condition.last_transition_time.0 = jiff::Timestamp::UNIX_EPOCH;
    }
    conditions
}

/// A status without times, which are taken anew where the last ones were not stored, and without texts, whose numbers change
/// all the time.
fn facts(status: &GangStatus) -> GangStatus {
    let mut facts = status.clone();
    facts.queued_at = None;
    facts.finished_at = None;
    facts.requeue_at = None;
    if let Some(notice) = &mut facts.preemption {
        notice.noticed_at.0 = jiff::Timestamp::UNIX_EPOCH;
        notice.preempt_at.0 = jiff::Timestamp::UNIX_EPOCH;
    }
    if let Some(recovery) = &mut facts.recovery {
        recovery.since.0 = jiff::Timestamp::UNIX_EPOCH;
        recovery.until.0 = jiff::Timestamp::UNIX_EPOCH;
    }
    for eviction in &mut facts.evictions {
        eviction.at.0 = jiff::Timestamp::UNIX_EPOCH;
    }
    if let Some(queue) = &mut facts.queue {
        queue.details.clear();
    }
    for condition in &mut facts.conditions {
        condition.message.clear();
        condition.last_transition_time.0 = jiff::Timestamp::UNIX_EPOCH;
    }
    facts
}

/// The fields of a write that are stored otherwise than they were written. What the API server adds is none of them.
fn not_stored(write: &ApiRequest, stored: &Object) -> BTreeSet<String> {
    match (write, stored) {
        (ApiRequest::ReplaceGangStatus { status, .. }, Object::Gang(gang)) => {
            differences("status", &**status, gang.status.as_ref())
        }
        (ApiRequest::ReplaceLedger { spec, .. }, Object::Ledger(ledger)) => {
            differences("spec", spec, Some(&ledger.spec))
        }
        (
            ApiRequest::CreateNodeDevices { spec, .. }
            | ApiRequest::ReplaceNodeDevices { spec, .. },
            Object::NodeDevices(devices),
        ) => differences("spec", spec, Some(&devices.spec)),
        (ApiRequest::PublishQueue { status, .. }, Object::Queue(queue)) => {
            differences("status", &**status, queue.status.as_ref())
        }
        (ApiRequest::PublishTeam { status, .. }, Object::Team(team)) => {
            differences("status", &**status, team.status.as_ref())
        }
        (ApiRequest::PublishCohort { status, .. }, Object::Cohort(cohort)) => {
            differences("status", &**status, cohort.status.as_ref())
        }
        (ApiRequest::PublishFlavor { status, .. }, Object::Flavor(flavor)) => {
            differences("status", &**status, flavor.status.as_ref())
        }
        (ApiRequest::PublishPriorityTier { status, .. }, Object::PriorityTier(tier)) => {
            differences("status", &**status, tier.status.as_ref())
        }
        _ => BTreeSet::new(),
    }
}

fn differences<T: PartialEq + Serialize>(
    path: &str,
    written: &T,
    stored: Option<&T>,
) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    if stored != Some(written) {
        // As it is sent: a time has whole seconds, say.
        let json = |value| serde_json::to_value(value).unwrap_or_default();
        let stored = serde_json::to_value(stored).unwrap_or_default();
        compare(path, &json(written), &stored, &mut fields);
    }
    fields
}

fn compare(path: &str, written: &Value, stored: &Value, fields: &mut BTreeSet<String>) {
    match (written, stored) {
        (Value::Object(written), Value::Object(stored)) => {
            for (name, value) in written {
                let stored = stored.get(name).unwrap_or(&Value::Null);
                compare(&format!("{path}.{name}"), value, stored, fields);
            }
        }
        (Value::Array(written), Value::Array(stored)) if written.len() == stored.len() => {
            for (value, stored) in written.iter().zip(stored) {
                compare(&format!("{path}[]"), value, stored, fields);
            }
        }
        _ if written == stored => {}
        _ => {
            fields.insert(path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_dropped_or_changed_is_named_by_its_path_and_what_is_added_is_not() {
        let written = json!({
            "attempt": 2, "tier": "low",
            "conditions": [{"type": "A", "message": "x"}, {"type": "B"}],
        });
        for (stored, expected) in [
            (written.clone(), vec![]),
            (
                json!({"attempt": 2, "conditions": [{"type": "A"}, {"type": "B"}], "tier": "low"}),
                vec!["status.conditions[].message"],
            ),
            (
                json!({"attempt": 1, "conditions": [{"type": "A", "message": "x"}], "tier": "low", "more": 1}),
                vec!["status.attempt", "status.conditions"],
            ),
            (Value::Null, vec!["status"]),
        ] {
            let fields = differences("status", &written, Some(&stored));
            assert!(
                fields.iter().eq(expected.iter()),
                "{fields:?}, {expected:?}"
            );
        }
    }
}
