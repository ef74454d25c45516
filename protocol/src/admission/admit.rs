//! Admission: one compare-and-swap of the Ledger commits a batch, then each Gang carries its part.

use muster_api::{Intent, LedgerSpec, Reason};
use muster_engine as engine;

use crate::{
    ApiRequest, admission::plan::Plan, admission::record, leadership::ledger_recovery,
    objects::gang_key, outward::gang_status, poll_context::PollContext,
};
use muster_cluster::formed::PendingReason;

/// Bytes of the shortest intent, without its pods, claims and nodes.
const LEAST_INTENT_BYTES: usize = 128;
/// Bytes of a pod in an intent: its UID, which has 36 characters in a real cluster, is one of them.
const LEAST_POD_BYTES: usize = 8;
/// Bytes of a claim in an intent: claims are named by a digest.
const LEAST_CLAIM_BYTES: usize = 1;
/// Bytes of a run of ranks on a node in an intent.
const LEAST_NODE_BYTES: usize = 32;

/// The commit: what is settled leaves the Ledger, what was decided enters it.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    /// The write, if anything changes.
    pub(crate) write: Option<ApiRequest>,
    /// Gangs whose admission is not in it: to be undone in the engine.
    pub(crate) left_out: Vec<engine::GangUid>,
    /// Of these, the ones that no batch can ever carry.
    pub(crate) too_large: Vec<(engine::GangUid, PendingReason)>,
    /// Gangs whose admission is in it.
    pub(crate) committed: Vec<engine::GangUid>,
    /// Whether an admission waits for room: until the Ledger shrinks nothing is decided.
    pub(crate) is_full: bool,
}

/// Builds the commit of what was decided, in that order. The batch is bounded: what does not fit into it waits for room,
/// and nothing behind it is committed before it, so that a large gang is not overtaken for ever by small ones.
pub(crate) fn commit(
    context: PollContext<'_>,
    admissions: &[engine::Admission],
    again: Vec<Intent>,
) -> Commit {
    let mut commit = Commit::default();
    let Some(ledger) = context.index.ledger() else {
        return commit;
    };
    if admissions.is_empty() && again.is_empty() && !context.views.is_any_settled() {
        return commit;
    }
    let before = &ledger.spec;
    let last = if before.sequence == 0 {
        ledger_recovery::last_sequence(context)
    } else {
        before.sequence
    };
    let sequence = last + 1;
    let standing = before
        .intents
        .iter()
        .filter(|intent| !context.views.is_settled(&gang_key(intent)));
    let mut after = LedgerSpec {
        leader_epoch: context.epoch,
        sequence: if again.is_empty() {
            before.sequence
        } else {
            sequence
        },
        intents: standing.cloned().chain(again).collect(),
    };
    let limit = context.config.ledger_bytes;
    let empty = bytes(&LedgerSpec {
        intents: Vec::new(),
        ..after.clone()
    });
    let mut size = bytes(&after);
    for admission in admissions {
        let plan = (!commit.is_full)
            .then(|| record::of_admission(context, admission, sequence))
            .flatten();
        let Some(plan) = plan else {
            commit.left_out.push(admission.gang.clone());
            continue;
        };
        let intent = plan.to_intent(context);
        let own = bytes(&intent) + 1;
        if empty + own > limit {
            let wait = too_large(&plan, own, limit);
            commit.too_large.push((admission.gang.clone(), wait));
            commit.left_out.push(admission.gang.clone());
        } else if size + own > limit {
            commit.is_full = true;
            commit.left_out.push(admission.gang.clone());
        } else {
            size += own;
            after.sequence = sequence;
            after.intents.push(intent);
            commit.committed.push(admission.gang.clone());
        }
    }
    if after.intents != before.intents {
        commit.write = ledger
            .metadata
            .resource_version
            .clone()
            .map(|resource_version| ApiRequest::ReplaceLedger {
                resource_version,
                spec: after,
            });
    }
    commit
}

/// The room of the next commit, in what the engine counts. It knows no bytes: each number alone is what would fill the
/// room at the least that one such thing takes, so what the engine admits may still not fit. Then [`commit`] keeps the
/// order and leaves out what is too much.
pub(crate) fn budget(context: PollContext<'_>) -> engine::Budget {
    let limit = context.config.ledger_bytes;
    let used = context.index.ledger().map_or(0, |ledger| {
        let standing = ledger.spec.intents.iter();
        let standing = standing.filter(|intent| !context.views.is_settled(&gang_key(intent)));
        standing.map(|intent| bytes(intent) + 1).sum()
    });
    let room = |bytes: usize| engine::decision::CommitRoom {
        gangs: bytes / LEAST_INTENT_BYTES,
        pods: bytes / LEAST_POD_BYTES,
        claims: bytes / LEAST_CLAIM_BYTES,
        nodes: bytes / LEAST_NODE_BYTES,
    };
    engine::Budget {
        left: room(limit.saturating_sub(used)),
        empty: room(limit),
    }
}

fn too_large(plan: &Plan, own: usize, limit: usize) -> PendingReason {
    PendingReason {
        reason: Reason::GangTooLarge,
        details: format!(
            "the commit of {} pods takes {own} bytes, more than the {limit} that one may have; split the gang",
            plan.ranks.len()
        ),
    }
}

fn bytes<T: serde::Serialize>(value: &T) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 4, |text| text.len())
}

/// The write by which the Gang carries what the Ledger commits.
pub(crate) fn carry(context: PollContext<'_>, plan: &Plan) -> Option<ApiRequest> {
    let gang = context.gang_of(plan)?;
    let mut status = gang.status.clone().unwrap_or_default();
    let (admission, placement) = plan.to_admission();
    status.admission = Some(admission);
    status.placement = Some(placement);
    gang_status::tell_admitted(context, gang, plan, &mut status);
    gang_status::write(context, &plan.key, gang, status)
}
