//! Admission: one compare-and-swap of the Ledger commits a batch, then each Gang carries its part.

use muster_api::{
    Admission, GangPlacement, Intent, IntentKind, IntentPod, LedgerSpec, Reason, gang::AdmittedPod,
};
use muster_engine as engine;

use crate::{
    ApiRequest,
    admission::charge,
    admission::intent_state::{IntentState, fate},
    admission::plan::{Plan, run_lengths},
    admission::void,
    leadership::ledger_recovery,
    objects::gang_key,
    outward::gang_status,
    poll_context::PollContext,
};
use muster_cluster::formed::PendingReason;

/// The commit: what is settled leaves the Ledger, what was decided enters it.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    /// The write, if anything changes.
    pub(crate) write: Option<ApiRequest>,
    /// Gangs whose admission is not in it, by UID: to be undone in the engine.
    pub(crate) left_out: Vec<engine::GangUid>,
    /// Of these, the ones that no batch can ever carry.
    pub(crate) too_large: Vec<(engine::GangUid, PendingReason)>,
    /// Gangs whose admission is in it.
    pub(crate) committed: Vec<engine::GangUid>,
}

/// Builds the commit of what was decided. The batch is bounded; what does not fit into it is decided again.
pub(crate) fn commit(picture: PollContext<'_>, admissions: &[engine::Admission]) -> Commit {
    let mut commit = Commit::default();
    let Some(ledger) = picture.index.ledger() else {
        return commit;
    };
    let before = &ledger.spec;
    let again = ledger_recovery::intents(picture);
    let last = if before.sequence == 0 {
        ledger_recovery::last_sequence(picture)
    } else {
        before.sequence
    };
    let sequence = last + 1;
    let standing = before
        .intents
        .iter()
        .filter(|intent| !void::is_settled(picture, intent));
    let mut after = LedgerSpec {
        leader_epoch: picture.epoch,
        sequence: if again.is_empty() {
            before.sequence
        } else {
            sequence
        },
        intents: standing.cloned().chain(again).collect(),
    };
    let limit = picture.config.ledger_bytes;
    let empty = bytes(&LedgerSpec {
        intents: Vec::new(),
        ..after.clone()
    });
    let mut size = bytes(&after);
    for admission in admissions {
        let intent = intent(picture, admission, sequence);
        let Some(intent) = intent else {
            commit.left_out.push(admission.gang.clone());
            continue;
        };
        let own = bytes(&intent) + 1;
        if empty + own > limit {
            let details = format!(
                "the commit of {} pods takes {own} bytes, more than the {limit} that one may have; split the gang",
                intent.pods.len()
            );
            let reason = Reason::GangTooLarge;
            let wait = PendingReason { reason, details };
            commit.too_large.push((admission.gang.clone(), wait));
            commit.left_out.push(admission.gang.clone());
        } else if size + own > limit {
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

fn bytes<T: serde::Serialize>(value: &T) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 4, |text| text.len())
}

fn intent(
    picture: PollContext<'_>,
    admission: &engine::Admission,
    sequence: i64,
) -> Option<Intent> {
    let gang = picture.index.gang_by_uid(admission.gang.as_str())?;
    let mut pods = Vec::new();
    let mut places = Vec::new();
    for pod in &admission.pods {
        let node = picture.index.node(pod.node.as_str())?;
        places.push((pod.node.as_str(), node.metadata.uid.as_deref()?));
        let mut claims: Vec<String> = pod.claims.iter().map(|it| it.uid.to_string()).collect();
        claims.sort();
        claims.dedup();
        pods.push(IntentPod {
            name: picture
                .index
                .pod_by_uid(pod.uid.as_str())?
                .metadata
                .name
                .clone()?,
            uid: pod.uid.to_string(),
            claims,
        });
    }
    Some(Intent {
        sequence,
        leader_epoch: picture.epoch,
        kind: IntentKind::Admit,
        namespace: gang.metadata.namespace.clone()?,
        name: gang.metadata.name.clone()?,
        gang_uid: admission.gang.to_string(),
        attempt: admission.attempt,
        cause: None,
        team: admission.team.to_string(),
        team_generation: admission.team_generation,
        charge: charge::of_admission(&admission.pods),
        pods,
        plan: run_lengths(places.into_iter()),
        level: admission.level.as_ref().map(ToString::to_string),
        domain: admission.domain.clone(),
    })
}

/// Gangs that are to carry what the Ledger says.
pub(crate) fn carry(picture: PollContext<'_>) -> Vec<ApiRequest> {
    picture
        .intents()
        .iter()
        .filter(|intent| fate(picture, intent) == IntentState::Carry)
        .filter_map(|intent| carried(picture, intent))
        .collect()
}

fn carried(picture: PollContext<'_>, intent: &Intent) -> Option<ApiRequest> {
    let gang = picture.gang_of(intent)?;
    let mut status = gang.status.clone().unwrap_or_default();
    status.admission = Some(Admission {
        team: intent.team.clone(),
        team_generation: intent.team_generation,
        ledger_sequence: intent.sequence,
        charge: intent.charge.clone(),
        pods: intent
            .pods
            .iter()
            .map(|pod| AdmittedPod {
                uid: pod.uid.clone(),
                claims: pod.claims.clone(),
            })
            .collect(),
        adopted: false,
    });
    status.placement = Some(GangPlacement {
        nodes: intent.plan.clone(),
        level: intent.level.clone(),
        domain: intent.domain.clone(),
    });
    let plan = Plan::of_intent(intent);
    gang_status::tell_admitted(picture, gang, &plan, &mut status);
    gang_status::write(picture, &gang_key(intent), gang, status)
}
