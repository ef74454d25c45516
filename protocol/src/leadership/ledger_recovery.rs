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
//! back, after this leader decided on a context without it (S1). In the protocol an intent says which objects to write
//! before anything is taken back; here nothing says so, so **every Gang that can carry anything and every
//! `NodeDevices` is written, with this leader's epoch and no other change, before the first commit**. What an older
//! leader sends afterwards is conditional on versions that are gone. What it got through before is seen, since a write
//! of ours conflicts with it and is repeated on what the watch shows then.
//!
//! Gangs that ended cannot carry anything any more. Intents name Gangs
//! by UID, so that Gangs made later are not concerned. Pods need no stamp: they are ungated only by what their Gang
//! carries, and that stands.

use muster_api::{Gang, Intent};

use crate::{
    ApiRequest,
    admission::plan::Plan,
    injected_bug::InjectedBug,
    objects::{gang_object, is_gated, ledger},
    outward::gang_status,
    poll_context::PollContext,
};
use muster_cluster::formed::{GangKey, has_ended};

/// Whether nothing was committed to this Ledger yet.
fn is_owed(context: PollContext<'_>) -> bool {
    ledger(context.index).is_some_and(|ledger| ledger.sequence == 0)
}

/// Whether older leaders are to be kept from writing, too.
pub(crate) fn is_fence_owed(context: PollContext<'_>) -> bool {
    // Without epochs such a write changes nothing, and would be owed for ever.
    let broken = [InjectedBug::LostLedgerUnfenced, InjectedBug::NoFence];
    is_owed(context) && !broken.into_iter().any(|rule| context.bugs.has(rule))
}

/// The write of a Gang, if it is one that an older leader could still write to. `NodeDevices` are written with what else
/// they need ([`crate::outward::permits`]).
pub(crate) fn write(context: PollContext<'_>, key: &GangKey, gang: &Gang) -> Option<ApiRequest> {
    let owed =
        is_fence_owed(context) && is_older(context, gang) && !context.busy(&gang_object(key));
    owed.then(|| gang_status::under_own_epoch(context, key, gang))?
}

/// Whether something may be committed: nothing that an older leader still sends is taken any more. Asked only until the
/// first commit; from then on it is true.
pub(crate) fn is_fenced(context: PollContext<'_>) -> bool {
    let index = context.index;
    !is_fence_owed(context)
        || (index.gangs().all(|(_, gang)| !is_older(context, gang))
            && index
                .all_node_devices()
                .all(|(_, devices)| devices.spec.leader_epoch >= context.epoch)
            // One that is made late, by an older leader, must not be the first.
            && index.nodes().all(|(name, _)| index.node_devices(name).is_some()))
}

fn is_older(context: PollContext<'_>, gang: &Gang) -> bool {
    !has_ended(gang)
        && gang
            .status
            .as_ref()
            .is_none_or(|status| status.leader_epoch < context.epoch)
}

/// The intents that are made again, in the order in which they were committed.
///
/// Together they are no larger than the Ledger that was lost: each of them stood there, since an Admit leaves the
/// Ledger only when no pod of it is gated any more.
pub(crate) fn intents(context: PollContext<'_>) -> Vec<Intent> {
    if !is_owed(context) || context.bugs.has(InjectedBug::LostIntentsForgotten) {
        return Vec::new();
    }
    let mut intents: Vec<Intent> = context
        .plans
        .all_carried()
        .filter(|plan| is_lost(context, plan))
        .map(|plan| plan.to_intent(context))
        .collect();
    intents.sort_by_key(|intent| intent.sequence);
    intents
}

/// Whether the Ledger must have had an intent for the plan, and has none.
fn is_lost(context: PollContext<'_>, plan: &Plan) -> bool {
    let waits = plan.ranks.iter().any(|rank| {
        let pod = context.index.pod_by_uid(&rank.pod);
        pod.is_some_and(is_gated)
    });
    !plan.adopted && waits && context.intent_of(&plan.key).is_none()
}

/// The highest sequence that any commit is known to have had, so that the next one is above it: pods are released in
/// the order of commitment.
pub(crate) fn last_sequence(context: PollContext<'_>) -> i64 {
    let committed = context
        .plans
        .all_committed()
        .map(|(_, it)| it.plan.sequence);
    let carried = context.plans.all_carried().map(|plan| plan.sequence);
    committed.chain(carried).max().unwrap_or(0)
}
