//! A Ledger to which nothing was committed yet: the first of an installation, or one in the place of a lost one.
//!
//! Its `sequence` is 0, and every commit makes it greater. Whoever finds 0 cannot know what an older leader had
//! committed to another Ledger and is still writing: an administrator deleted that one, or it came back from a backup.
//! What that means for what was owed by it:
//!
//! * **Admissions and permits stand.** They are on Gangs and `NodeDevices`, charged from there, and carried on with.
//! * **An Admit that only the lost Ledger named is no admission**: its Gang is pending, and charged nothing.
//! * **An admitted Gang of which a pod is still gated gets its intent back**, made again from what the Gang carries, so
//!   that it is completed, or voided in the order that voiding needs.
//!
//! The danger is a late write of an older leader: it carries an Admit of the lost Ledger, or permits what was taken
//! back, after this leader decided on a picture without it (S1). In the protocol an intent says which objects to write
//! before anything is taken back; here nothing says so, so **every Gang that can carry anything and every
//! `NodeDevices` is written, with this leader's epoch and no other change, before the first commit**. What an older
//! leader sends afterwards is conditional on versions that are gone. What it got through before is seen, since a write
//! of ours conflicts with it and is repeated on what the watch shows then.
//!
//! Gangs that ended cannot carry anything any more, and one without a status was never asked about. Intents name Gangs
//! by UID, so that Gangs made later are not concerned. Pods need no stamp: they are ungated only by what their Gang
//! carries, and that stands.

use muster_api::{Gang, Intent, IntentKind, IntentPod};

use crate::{
    ApiRequest,
    admission::plan::Plan,
    injected_bug::InjectedBug,
    objects::{gang_object, is_gated, ledger},
    outward::gang_status,
    poll_context::{PollContext, has_ended},
};
use muster_cluster::formed::GangKey;

/// Whether nothing was committed to this Ledger yet.
fn is_owed(picture: PollContext<'_>) -> bool {
    ledger(picture.index).is_some_and(|ledger| ledger.sequence == 0)
}

/// Whether older leaders are to be kept from writing, too.
pub(crate) fn is_fence_owed(picture: PollContext<'_>) -> bool {
    // Without epochs such a write changes nothing, and would be owed for ever.
    let broken = [InjectedBug::LostLedgerUnfenced, InjectedBug::NoFence];
    is_owed(picture) && !broken.into_iter().any(|rule| picture.bugs.has(rule))
}

/// The Gangs that are to be written. `NodeDevices` are written with what else they need
/// ([`crate::admission::void::voided`]).
pub(crate) fn writes(picture: PollContext<'_>) -> Vec<ApiRequest> {
    if !is_fence_owed(picture) {
        return Vec::new();
    }
    picture
        .index
        .gangs()
        .filter(|(key, gang)| is_older(picture, gang) && !picture.busy(&gang_object(key)))
        .filter_map(|(key, gang)| gang_status::under_own_epoch(picture, key, gang))
        .collect()
}

/// Whether something may be committed: nothing that an older leader still sends is taken any more.
pub(crate) fn is_fenced(picture: PollContext<'_>) -> bool {
    let index = picture.index;
    !is_fence_owed(picture)
        || (index.gangs().all(|(_, gang)| !is_older(picture, gang))
            && index
                .all_node_devices()
                .all(|(_, devices)| devices.spec.leader_epoch >= picture.epoch)
            // One that is made late, by an older leader, must not be the first.
            && index.nodes().all(|(name, _)| index.node_devices(name).is_some()))
}

fn is_older(picture: PollContext<'_>, gang: &Gang) -> bool {
    !has_ended(gang)
        && gang
            .status
            .as_ref()
            .is_some_and(|status| status.leader_epoch < picture.epoch)
}

/// The intents that are made again, in the order in which they were committed.
///
/// Together they are no larger than the Ledger that was lost: each of them stood there, since an Admit leaves the
/// Ledger only when no pod of it is gated any more.
pub(crate) fn intents(picture: PollContext<'_>) -> Vec<Intent> {
    if !is_owed(picture) || picture.bugs.has(InjectedBug::LostIntentsForgotten) {
        return Vec::new();
    }
    let mut intents: Vec<Intent> = picture
        .index
        .gangs()
        .filter_map(|(key, gang)| intent(picture, key, gang))
        .collect();
    intents.sort_by_key(|intent| intent.sequence);
    intents
}

fn intent(picture: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<Intent> {
    let plan = Plan::of_gang(key, gang)?;
    let pod = |uid: &str| picture.index.pod_by_uid(uid);
    let waits = plan
        .ranks
        .iter()
        .any(|rank| pod(rank.pod).is_some_and(|pod| is_gated(pod)));
    if plan.adopted || !waits || picture.intent_of(key).is_some() {
        return None;
    }
    let status = gang.status.as_ref()?;
    let admission = status.admission.as_ref()?;
    let placement = status.placement.as_ref()?;
    let pods = admission.pods.iter().map(|admitted| IntentPod {
        name: pod(&admitted.uid)
            .and_then(|pod| pod.metadata.name.clone())
            .unwrap_or_default(),
        uid: admitted.uid.clone(),
        claims: admitted.claims.clone(),
    });
    Some(Intent {
        sequence: admission.ledger_sequence,
        leader_epoch: picture.epoch,
        kind: IntentKind::Admit,
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        gang_uid: plan.gang_uid.to_owned(),
        attempt: plan.attempt,
        cause: None,
        team: admission.team.clone(),
        team_generation: admission.team_generation,
        charge: admission.charge.clone(),
        pods: pods.collect(),
        plan: placement.nodes.clone(),
        level: placement.level.clone(),
        domain: placement.domain.clone(),
    })
}

/// The highest sequence that any commit is known to have had, so that the next one is above it: pods are released in
/// the order of commitment.
pub(crate) fn last_sequence(picture: PollContext<'_>) -> i64 {
    let known = picture.intents().iter().map(|intent| intent.sequence);
    let carried = picture.index.gangs().filter_map(|(_, gang)| {
        let admission = gang.status.as_ref()?.admission.as_ref()?;
        Some(admission.ledger_sequence)
    });
    known.chain(carried).max().unwrap_or(0)
}
