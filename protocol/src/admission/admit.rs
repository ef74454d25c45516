//! Admission: one compare-and-swap of the Ledger commits a batch, then each Gang carries its part.
//!
//! An intent that is too large for the Ledger to have it whole is first proposed to its Gang. That write has no effect by
//! itself: nobody charges, permits or starts anything by it. The Ledger then names it by digest, together with its nodes.
//!
//! **Only a proposal that is seen is named.** Whoever writes a Gang's status does so conditional on its resourceVersion. So
//! once this leader sees its proposal, whatever an older leader still sends to that Gang conflicts, and a newer one has
//! raised the Ledger, so that the commit conflicts. Between the commit and the write that carries it nobody but this
//! leader writes the Gang: what the Ledger names stays what it was.
//!
//! **Twice, late, never.** The same plan proposed twice is the same digest. A proposal of an older attempt, or one whose
//! leader died before it committed, has another digest, or is named by no intent: it is written over, or committed if
//! the engine decides the very same again. One that conflicts is written again if its gang still waits for it; else the
//! admission is undone. One that is never answered keeps its gang's place and quota, and its room in the Ledger, until it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use muster_api::{Breaker, Gang, GangPhase, Intent, IntentKind, LedgerSpec, Proposal, Reason};
use muster_engine as engine;

use crate::{
    ApiRequest,
    admission::plan::Plan,
    admission::preempt,
    admission::record::{self, bytes},
    faults::{
        breaker::{self, StalledRoom},
        resets,
    },
    feed::waiting,
    leadership::ledger_recovery,
    objects::{gang_key, gang_object, key_of},
    outward::gang_status,
    outward::recovery,
    poll_context::PollContext,
    tables::plans::Taken,
};
use muster_cluster::formed::{GangKey, PendingReason};

/// Bytes of the shortest intent, without its pods, claims and nodes.
const LEAST_INTENT_BYTES: usize = 128;
/// Bytes of an intent of a gang of one pod, as names and UIDs are in a real cluster: most gangs take no less.
const USUAL_INTENT_BYTES: usize = 512;
/// Bytes of the list of intents without any: that field is left out of an empty Ledger.
const INTENTS_FIELD_BYTES: usize = r#","intents":[]"#.len();
/// Bytes of a node in the shortest intent that names it: its name, in quotes, and a comma.
const LEAST_NODE_BYTES: usize = 4;
/// Bytes of a pod in a proposal: its UID, which has 36 characters in a real cluster, is one of them.
const LEAST_POD_BYTES: usize = 12;
/// Bytes of a claim in a proposal: likewise.
const LEAST_CLAIM_BYTES: usize = 4;

/// Bytes of a proposal besides pods, claims and nodes: more than any takes.
const FIXED_BYTES: usize = 1024;

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
    pub(crate) committed: Vec<(GangKey, engine::GangUid)>,
    /// Admissions that are in it as soon as their Gangs carry what the Ledger is to name.
    pub(crate) proposing: Vec<Wanted>,
    /// The writes that propose these.
    pub(crate) proposals: Vec<ApiRequest>,
    /// Whether an admission waits for room, and all behind it with it.
    pub(crate) is_full: bool,
    /// Gangs whose eviction has to wait, and that are to be looked at again.
    pub(crate) held_back: Vec<GangKey>,
    /// The nodes that may reset GPUs once it is seen; `None`: it was not judged who may.
    pub(crate) to_reset: Option<BTreeSet<engine::NodeName>>,
}

/// An admission that is to be committed.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// What was decided.
    pub(crate) admission: engine::Admission,
    /// Bytes of the Ledger that are kept free for it: 0 until it was proposed.
    pub(crate) reserved_bytes: usize,
}

impl Wanted {
    /// What the engine decided just now.
    pub(crate) fn new(admission: engine::Admission) -> Self {
        Self {
            admission,
            reserved_bytes: 0,
        }
    }
}

/// Builds the commit of what was decided, in that order. The batch is bounded: what does not fit into it waits for room,
/// and nothing behind it is committed before it, so that a large gang is not overtaken for ever by small ones. One that
/// waits for its proposal lets others go first, and keeps its room.
pub(crate) fn commit(context: PollContext<'_>, wanted: Vec<Wanted>, again: Vec<Intent>) -> Commit {
    let mut commit = Commit::default();
    let Some(ledger) = context.index.ledger() else {
        commit.left_out = wanted.into_iter().map(|it| it.admission.gang).collect();
        return commit;
    };
    let Evicts {
        intents: mut evicts,
        breaker,
        held_back,
        to_reset,
    } = evicts(context);
    commit.held_back = held_back;
    commit.to_reset = to_reset;
    if wanted.is_empty()
        && again.is_empty()
        && evicts.is_empty()
        && breaker.is_none()
        && !context.views.is_any_settled()
    {
        return commit;
    }
    let before = &ledger.spec;
    let last = if before.sequence == 0 {
        ledger_recovery::last_sequence(context)
    } else {
        before.sequence
    };
    let sequence = last + 1;
    let settles = context.views.is_any_settled();
    let is_standing = |intent: &&Intent| !settles || !context.views.is_settled(&gang_key(intent));
    let standing = before.intents.iter().filter(is_standing);
    let again_bytes: usize = again.iter().map(|intent| bytes(intent) + 1).sum();
    let mut is_changed = !again.is_empty() || !evicts.is_empty();
    // Each takes the place of its gang's Admit, if that still stands.
    let mut standing: Vec<Intent> = standing.cloned().chain(again).collect();
    for intent in evicts.values_mut() {
        intent.sequence = sequence;
    }
    for intent in &mut standing {
        if let Some(evict) = evicts.remove(&gang_key(intent)) {
            *intent = evict;
        }
    }
    let mut after = LedgerSpec {
        leader_epoch: context.epoch,
        sequence: if is_changed {
            sequence
        } else {
            before.sequence
        },
        intents: standing.into_iter().chain(evicts.into_values()).collect(),
        breaker: breaker.clone().unwrap_or_else(|| breaker::pruned(context)),
    };
    let limit = context.config.ledger_bytes;
    is_changed |= settles || breaker.is_some();
    // Which nodes were evacuated takes no room of those that are to be given something.
    let empty = INTENTS_FIELD_BYTES
        + bytes(&LedgerSpec {
            leader_epoch: after.leader_epoch,
            sequence: after.sequence,
            ..LedgerSpec::default()
        });
    // Never less than what is written: each intent counts with a comma.
    let mut size = empty + standing_admits(context).bytes + again_bytes;
    for wanted in wanted {
        let gang = wanted.admission.gang.clone();
        if commit.is_full {
            commit.left_out.push(gang);
            continue;
        }
        match judge(context, &wanted, sequence, limit - empty.min(limit)) {
            Judgement::Void => commit.left_out.push(gang),
            Judgement::TooLarge(wait) => {
                commit.too_large.push((gang.clone(), wait));
                commit.left_out.push(gang);
            }
            Judgement::Propose { own, .. } | Judgement::Enter { own, .. } if size + own > limit => {
                commit.is_full = true;
                commit.left_out.push(gang);
            }
            Judgement::Propose { own, write } => {
                size += own;
                commit.proposals.extend(write.map(|write| *write));
                commit.proposing.push(Wanted {
                    reserved_bytes: own,
                    ..wanted
                });
            }
            Judgement::Enter { own, intent } => {
                let key = gang_key(&intent);
                size += own;
                after.sequence = sequence;
                is_changed = true;
                after.intents.push(*intent);
                commit.committed.push((key, gang));
            }
        }
    }
    if is_changed {
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

/// What is to become of an admission. `own`: the bytes that it takes of the Ledger.
enum Judgement {
    /// What it names is no more, or does not wait for it any more.
    Void,
    /// No commit can ever carry it.
    TooLarge(PendingReason),
    /// Its Gang does not carry what the Ledger is to name; the write, unless one of the Gang is under way.
    Propose {
        own: usize,
        write: Option<Box<ApiRequest>>,
    },
    /// It may be committed.
    Enter { own: usize, intent: Box<Intent> },
}

fn judge(context: PollContext<'_>, wanted: &Wanted, sequence: i64, room: usize) -> Judgement {
    let admission = &wanted.admission;
    let Some(gang) = context.index.gang_by_uid(admission.gang.as_str()) else {
        return Judgement::Void;
    };
    let is_busy = is_busy(context, gang);
    if is_busy && wanted.reserved_bytes > 0 {
        return Judgement::Propose {
            own: wanted.reserved_bytes,
            write: None,
        };
    }
    let Some(plan) = record::of_admission(context, admission, sequence) else {
        return Judgement::Void;
    };
    let intent = plan.to_intent(context);
    let own = bytes(&intent) + 1;
    if own > room {
        return Judgement::TooLarge(too_large_for_ledger(&plan, &intent, own, room));
    }
    let intent = Box::new(intent);
    if intent.digest.is_none() {
        return Judgement::Enter { own, intent };
    }
    let proposal = plan.to_proposal();
    let proposed = bytes(&proposal);
    if proposed > context.config.proposal_bytes {
        let most = context.config.proposal_bytes;
        return Judgement::TooLarge(too_large_for_gang(&plan, proposed, most));
    }
    if is_busy {
        return Judgement::Propose { own, write: None };
    }
    let seen = gang.status.as_ref().and_then(|it| it.proposal.as_ref());
    if seen == Some(&proposal) {
        return Judgement::Enter { own, intent };
    }
    let write = propose(context, &plan, gang, proposal).map(Box::new);
    Judgement::Propose { own, write }
}

/// Whether a write of the Gang is under way.
fn is_busy(context: PollContext<'_>, gang: &Gang) -> bool {
    key_of(gang).is_none_or(|key| context.busy(&gang_object(&key)))
}

/// Whether the gang may still be admitted as it was decided, with the same pods and claims: time passes while it is being
/// proposed.
fn still_waits(context: PollContext<'_>, gang: &Gang, admission: &engine::Admission) -> bool {
    let candidate = key_of(gang).and_then(|key| waiting::candidate(context, &key, gang));
    candidate.is_some_and(|candidate| {
        let count = admission.pods.len();
        let is_enough = (candidate.least_pods()..=candidate.pods.len()).contains(&count);
        let first = || candidate.pods.iter().take(count);
        let pods = first().map(|pod| &pod.uid);
        let decided = admission.pods.iter().map(|pod| &pod.uid);
        let claims = first().flat_map(|pod| &pod.claims);
        let decided_claims = admission.pods.iter().flat_map(|pod| &pod.claims);
        candidate.attempt == admission.attempt
            && candidate.pods.len() == admission.gang_pods
            && is_enough
            && pods.collect::<BTreeSet<_>>() == decided.collect::<BTreeSet<_>>()
            && claims.map(|claim| &claim.uid).collect::<BTreeSet<_>>()
                == decided_claims
                    .map(|claim| &claim.uid)
                    .collect::<BTreeSet<_>>()
    })
}

/// Parts the admissions that are being proposed into those that their gangs still wait for, on nodes that still exist, and
/// the gangs of the others.
/// To be asked before the engine decides, so that what is undone is decided again in the same poll.
pub(crate) fn still_wanted(
    context: PollContext<'_>,
    proposing: Vec<Wanted>,
) -> (Vec<Wanted>, Vec<engine::GangUid>) {
    let (wanted, stale): (Vec<_>, Vec<_>) = proposing.into_iter().partition(|wanted| {
        let gang = context.index.gang_by_uid(wanted.admission.gang.as_str());
        let mut pods = wanted.admission.pods.iter();
        let is_on_nodes = pods.all(|pod| context.index.node(pod.node.as_str()).is_some());
        is_on_nodes
            && gang.is_some_and(|gang| {
                is_busy(context, gang) || still_waits(context, gang, &wanted.admission)
            })
    });
    let stale = stale.into_iter().map(|wanted| wanted.admission.gang);
    (wanted, stale.collect())
}

/// The write by which the Gang carries what the Ledger is to name.
fn propose(
    context: PollContext<'_>,
    plan: &Plan,
    gang: &Gang,
    proposal: Proposal,
) -> Option<ApiRequest> {
    let mut status = gang_status::status_of(gang);
    status.proposal = Some(proposal);
    status.phase = GangPhase::Pending;
    status.team = Some(plan.team.clone());
    // What is proposed to one for which nothing is kept any more is not what is kept.
    recovery::tell(context, gang, &mut status);
    gang_status::write(context, &plan.key, gang, status)
}

/// What the Admits of the Ledger that is seen take of it, without what is settled. Evicts have room of their own.
fn standing_admits(context: PollContext<'_>) -> Taken {
    standing(context, IntentKind::Admit)
}

fn standing(context: PollContext<'_>, kind: IntentKind) -> Taken {
    let mut taken = context.plans.taken(kind);
    let settled = context.views.settled();
    let settled = settled.filter_map(|key| context.plans.committed(key));
    for intent in settled.filter(|intent| intent.kind == kind) {
        taken.bytes -= intent.bytes;
        taken.intents -= 1;
    }
    taken
}

/// The Evicts that enter the Ledger now.
#[derive(Debug, Default)]
struct Evicts {
    intents: BTreeMap<GangKey, Intent>,
    /// What the Ledger is to say of the circuit breaker, if something else than before.
    breaker: Option<Breaker>,
    /// Gangs that make no progress, on more nodes than may be concerned at a time.
    held_back: Vec<GangKey>,
    /// The nodes that may reset GPUs; `None`: that was not judged, or is too much.
    to_reset: Option<BTreeSet<engine::NodeName>>,
}

/// The Evicts that enter the Ledger now: those that their own room has room for, and one that is larger than all of it. Its nodes
/// are what it takes: 4,096 of them at most. None keeps another from entering that has room. Those of gangs that make no progress enter on as many
/// nodes as may be concerned at a time, Team by Team. Where the nodes that would be evacuated without proof are too
/// many, counted together, none of their evictions enters, and the circuit breaker opens; where that hangs on answers of the store, they are waited for.
/// Nodes that want a reset count with them, and those that may begin are recorded by the same write.
fn evicts(context: PollContext<'_>) -> Evicts {
    let room = context.config.evict_bytes;
    let mut evicts = Evicts::default();
    // Asked in each poll, and nearly always there is none.
    let are_resets_judged = resets::are_to_be_judged(context);
    let is_any_unrecorded = resets::is_any_unrecorded(context);
    if context.views.to_evict().next().is_none() && !are_resets_judged && !is_any_unrecorded {
        return evicts;
    }
    let due = evictions_in_turns(context);
    let evacuates =
        |cause: &PendingReason, plan: &Arc<Plan>| breaker::evacuates(context, plan, cause.reason);
    let governed = due
        .iter()
        .filter_map(|&(_, cause, plan)| evacuates(cause, plan));
    let wanted: BTreeSet<String> = governed.flatten().collect();
    let judged = breaker::judge(context, &wanted);
    let opens = judged.err();
    let opens = opens.filter(|_| !wanted.is_empty() || are_resets_judged);
    let is_halted = context.breaker.halt_text().is_some();
    let is_held_back = opens.is_some() || is_halted || breaker::awaits_answers(context, &wanted);
    let mut evacuated = BTreeSet::new();
    let mut stalled = BTreeSet::new();
    let mut stalled_room = StalledRoom::of(context);
    let standing = context
        .plans
        .all_committed()
        .filter(|(key, intent)| intent.kind == IntentKind::Evict && !context.views.is_settled(key));
    let (mut bytes, mut has_oversize) = (0, false);
    for (_, intent) in standing {
        if intent.bytes > room {
            has_oversize = true;
        } else {
            bytes += intent.bytes;
        }
    }
    for (key, cause, plan) in due {
        // The engine may have decided otherwise since that was looked at.
        if preempt::is_spared(context, cause.reason, &plan.gang_uid) {
            continue;
        }
        let evacuates = evacuates(cause, plan);
        let stalls_on = breaker::stalls_on(plan, cause.reason);
        // The breaker counts no drain by hand; it opens over none, and over whatever else it opens, nobody is moved.
        let is_moved = cause.reason == Reason::Drained;
        if is_held_back && (evacuates.is_some() || stalls_on.is_some() || is_moved) {
            continue;
        }
        if stalls_on.is_some_and(|node| !stalled_room.has(node)) {
            evicts.held_back.push(key.clone());
            continue;
        }
        // The sequence is not known yet; this one takes the most room.
        let intent = plan.to_eviction(context, cause.reason, i64::MAX);
        let own = record::bytes(&intent) + 1;
        if own > room {
            if std::mem::replace(&mut has_oversize, true) {
                continue;
            }
        } else if bytes + own > room {
            continue;
        } else {
            bytes += own;
        }
        evacuated.extend(evacuates.into_iter().flatten());
        if let Some(node) = stalls_on {
            stalled_room.take(node);
            stalled.insert(node.to_owned());
        }
        evicts.intents.insert(key.clone(), intent);
    }
    let opens = opens.filter(|_| !is_halted);
    if are_resets_judged && !is_held_back {
        let due = resets::due(context);
        evacuated.extend(due.iter().map(ToString::to_string));
        evicts.to_reset = Some(due);
    }
    let is_any_new = !evacuated.is_empty() || !stalled.is_empty() || is_any_unrecorded;
    if opens.is_some() || is_any_new {
        evicts.breaker = Some(breaker::after(context, &evacuated, &stalled, opens));
    }
    evicts
}

/// The evictions that are due and not in the Ledger, in the order in which they get its room: the Teams take turns, whatever
/// their gangs are named.
fn evictions_in_turns(context: PollContext<'_>) -> Vec<(&GangKey, &PendingReason, &Arc<Plan>)> {
    let due = context.views.to_evict().filter_map(|(key, cause)| {
        let committed = context.intent_of(key).map(|intent| intent.kind);
        let carried = context.plans.carried(key);
        let plan = carried.filter(|_| committed != Some(IntentKind::Evict))?;
        Some((key, cause, plan))
    });
    let mut due: Vec<_> = due.collect();
    let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
    due.sort_by_cached_key(|(_, _, plan)| {
        let turn = turns.entry(&plan.team).or_default();
        *turn += 1;
        *turn
    });
    due
}

/// Bytes of the Ledger that neither its intents nor what is being proposed take.
pub(crate) fn room(context: PollContext<'_>, proposing: &[Wanted]) -> usize {
    let standing = standing_admits(context).bytes;
    let reserved: usize = proposing.iter().map(|it| it.reserved_bytes).sum();
    let limit = context.config.ledger_bytes;
    limit.saturating_sub(standing + reserved)
}

/// The room of the next commit, in what the engine counts. It knows no bytes: each number alone is what would fill the
/// room at the least that one such thing takes, so what the engine admits may still not fit. Then [`commit`] keeps the
/// order and leaves out what is too much. What is left out was decided in vain; so of the gangs that fit, where one will
/// do in the next commit what another does not in this one, no more are asked for than would fit if they were like those
/// that stand in the Ledger. Pods and claims take no room of the Ledger where they are proposed, but of
/// their Gang.
pub(crate) fn budget(context: PollContext<'_>, proposing: &[Wanted]) -> engine::Budget {
    let limit = context.config.ledger_bytes;
    let left = room(context, proposing);
    let standing = standing_admits(context);
    let usual = standing
        .bytes
        .checked_div(standing.intents)
        .unwrap_or(LEAST_INTENT_BYTES)
        .clamp(LEAST_INTENT_BYTES, USUAL_INTENT_BYTES);
    let of_gang = context.config.proposal_bytes;
    let holds = |bytes: usize, gangs: usize| engine::decision::CommitRoom {
        gangs: bytes / LEAST_INTENT_BYTES,
        pods: gangs.saturating_mul(of_gang / LEAST_POD_BYTES),
        claims: gangs.saturating_mul(of_gang / LEAST_CLAIM_BYTES),
        nodes: bytes / LEAST_NODE_BYTES,
    };
    engine::Budget {
        left: engine::decision::CommitRoom {
            // A little more than fits, so that the room is filled.
            gangs: 1 + left / usual + left / usual / 8,
            ..holds(left, left / LEAST_INTENT_BYTES)
        },
        empty: holds(limit, 1),
        looks_in_vain: context.config.looks_in_vain,
    }
}

fn too_large_for_ledger(plan: &Plan, intent: &Intent, own: usize, room: usize) -> PendingReason {
    let (pods, nodes) = (plan.ranks.len(), plan.nodes().count());
    let fit = if intent.digest.is_some() {
        let names = bytes(&intent.nodes);
        let left = room.saturating_sub(own - names);
        format!("about {} nodes with such names fit", nodes * left / names)
    } else {
        format!("about {} such pods fit", pods * room / own)
    };
    PendingReason {
        reason: Reason::GangTooLarge,
        details: format!(
            "the commit of {pods} pods on {nodes} nodes takes {own} bytes, one may have {room}: {fit}; ask for more GPUs in \
             each pod, or split the gang"
        ),
    }
}

fn too_large_for_gang(plan: &Plan, proposed: usize, most: usize) -> PendingReason {
    let pods = plan.ranks.len();
    let claims: usize = plan.ranks.iter().map(|rank| rank.claims.len()).sum();
    let fit = pods * most.saturating_sub(FIXED_BYTES) / proposed;
    PendingReason {
        reason: Reason::GangTooLarge,
        details: format!(
            "the plan of {pods} pods with {claims} claims takes {proposed} bytes, a Gang may carry {most}: about {fit} \
             such pods fit; ask for several GPUs in one claim or split the gang",
        ),
    }
}

/// The write by which the Gang carries what the Ledger commits.
pub(crate) fn carry(context: PollContext<'_>, plan: &Plan) -> Option<ApiRequest> {
    let gang = context.gang_of(plan)?;
    let mut status = gang_status::status_of(gang);
    let (admission, placement) = plan.to_admission();
    status.admission = Some(admission);
    status.placement = Some(placement);
    status.proposal = None;
    gang_status::tell_admitted(context, gang, plan, &mut status);
    gang_status::write(context, &plan.key, gang, status)
}
