//! How a plan is recorded: as an intent of the Ledger, as the admission and placement that a Gang carries, and as the
//! proposal that a Gang carries where the intent only names it.
//!
//! The only place that knows both the fields and the plan, in either direction.

use std::{collections::BTreeMap, sync::Arc};

use muster_api::{
    Admission, Charge, Gang, GangPlacement, Intent, IntentKind, IntentPod, NodeRanks, Proposal,
    gang::AdmittedPod,
};
use muster_engine as engine;

use crate::{
    admission::charge,
    admission::plan::{Plan, PlannedNode, Rank},
    injected_bug::{InjectedBug, InjectedBugs},
    jobs,
    objects::gang_key,
    poll_context::PollContext,
};
use muster_cluster::{formed::GangKey, pod::PodFields};

/// The plan of an engine's admission, committed by a write of that sequence. `None`: an object that it names is gone.
pub(crate) fn of_admission(
    context: PollContext<'_>,
    admission: &engine::Admission,
    sequence: i64,
) -> Option<Plan> {
    let gang = context.index.gang_by_uid(admission.gang.as_str())?;
    let mut pods = Vec::with_capacity(admission.pods.len());
    let mut runs = Vec::new();
    for pod in &admission.pods {
        let node = context.index.node(pod.node.as_str())?;
        run(&mut runs, pod.node.as_str(), node.metadata.uid.as_deref()?);
        let mut claims: Vec<String> = pod.claims.iter().map(|it| it.uid.to_string()).collect();
        claims.sort();
        claims.dedup();
        pods.push((pod.uid.to_string(), claims));
    }
    let (ranks, places) = lay_out(pods, &runs);
    let key = GangKey::new(
        gang.metadata.namespace.clone()?,
        gang.metadata.name.clone()?,
    );
    Some(Plan {
        gang_uid: admission.gang.to_string(),
        attempt: admission.attempt,
        sequence,
        team: admission.team.to_string(),
        team_generation: admission.team_generation,
        charge: charge::of_admission(&admission.pods),
        gang_size: (admission.pods.len() < admission.gang_pods)
            .then(|| i32::try_from(admission.gang_pods).unwrap_or(i32::MAX)),
        done_before: jobs::done(context.index, &key, gang),
        tier: context.formed(&key).and_then(|formed| formed.tier.clone()),
        ranks,
        places,
        level: admission.level.as_ref().map(ToString::to_string),
        domain: admission.domain.clone(),
        adopted: false,
        key,
    })
}

/// The plan that an intent commits. `None`: it names a proposal by its digest, and its Gang carries no such one.
///
/// Once the Gang carries an admission of the attempt, that is what was committed: nobody writes one but by carrying out
/// the intent.
pub(crate) fn of_intent(intent: &Intent, gang: Option<&Gang>) -> Option<Plan> {
    let Some(digest) = &intent.digest else {
        return Some(of_whole_intent(intent));
    };
    let key = gang_key(intent);
    let gang = gang.filter(|gang| gang.metadata.uid.as_deref() == Some(&intent.gang_uid))?;
    let carried = of_gang(&key, gang).filter(|plan| plan.attempt == intent.attempt);
    let proposal = || gang.status.as_ref()?.proposal.as_ref();
    let plan = carried.or_else(|| {
        let plan = of_proposal(&key, &intent.gang_uid, proposal()?);
        let is_meant = plan.attempt == intent.attempt && plan.digest() == *digest;
        is_meant.then_some(plan)
    })?;
    Some(Plan {
        attempt: intent.attempt,
        sequence: intent.sequence,
        ..plan
    })
}

/// What is known of an intent whose proposal is gone: which Gang, which attempt, which nodes.
pub(crate) fn of_lost_intent(intent: &Intent, bugs: InjectedBugs) -> Plan {
    let nodes = intent.nodes.iter();
    let nodes = nodes.filter(|_| !bugs.has(InjectedBug::ProposedNodesForgotten));
    Plan {
        places: nodes.map(|node| (node.clone(), Vec::new())).collect(),
        ..of_whole_intent(intent)
    }
}

fn of_whole_intent(intent: &Intent) -> Plan {
    let pods = intent.pods.iter();
    let (ranks, places) = lay_out(
        pods.map(|pod| (pod.uid.clone(), pod.claims.clone()))
            .collect(),
        &intent.plan,
    );
    Plan {
        key: gang_key(intent),
        gang_uid: intent.gang_uid.clone(),
        attempt: intent.attempt,
        sequence: intent.sequence,
        team: intent.team.clone(),
        team_generation: intent.team_generation,
        charge: intent.charge.clone(),
        gang_size: intent.gang_size,
        done_before: intent.done_before,
        tier: intent.tier.clone(),
        ranks,
        places,
        level: intent.level.clone(),
        domain: intent.domain.clone(),
        adopted: false,
    }
}

/// The plan that a Gang carries, if it is admitted.
pub(crate) fn of_gang(key: &GangKey, gang: &Gang) -> Option<Plan> {
    let status = gang.status.as_ref()?;
    let carried = (status.admission.as_ref()?, status.placement.as_ref()?);
    let uid = gang.metadata.uid.as_deref()?;
    Some(of_carried(key, uid, status.attempt, carried))
}

/// The plan of an attempt that its Gang carries as a proposal while it recovers: of the one that ended, or of the next one.
pub(crate) fn of_proposed_attempt(key: &GangKey, gang: &Gang, attempt: i64) -> Option<Plan> {
    let proposal = gang.status.as_ref()?.proposal.as_ref()?;
    let uid = gang.metadata.uid.as_deref()?;
    (proposal.attempt == attempt).then(|| of_proposal(key, uid, proposal))
}

/// The plan that is proposed to a Gang.
fn of_proposal(key: &GangKey, gang_uid: &str, proposal: &Proposal) -> Plan {
    let carried = (&proposal.admission, &proposal.placement);
    of_carried(key, gang_uid, proposal.attempt, carried)
}

fn of_carried(
    key: &GangKey,
    gang_uid: &str,
    attempt: i64,
    (admission, placement): (&Admission, &GangPlacement),
) -> Plan {
    let pods = admission.pods.iter();
    let (ranks, places) = lay_out(
        pods.map(|pod| (pod.uid.clone(), pod.claims.clone()))
            .collect(),
        &placement.nodes,
    );
    Plan {
        key: key.clone(),
        gang_uid: gang_uid.to_owned(),
        attempt,
        sequence: admission.ledger_sequence,
        team: admission.team.clone(),
        team_generation: admission.team_generation,
        charge: admission.charge.clone(),
        gang_size: admission.gang_size,
        done_before: admission.done_before,
        tier: admission.tier.clone(),
        ranks,
        places,
        level: placement.level.clone(),
        domain: placement.domain.clone(),
        adopted: admission.adopted,
    }
}

impl Plan {
    /// A plan for pods that run already, each with its claims and its node's name and UID.
    pub(crate) fn adopted(
        key: &GangKey,
        gang_uid: &str,
        attempt: i64,
        (team, team_generation): (String, i64),
        charge: muster_api::Charge,
        pods: Vec<(String, Vec<String>, PlannedNode)>,
    ) -> Self {
        let mut runs = Vec::new();
        for (_, _, node) in &pods {
            run(&mut runs, &node.name, &node.uid);
        }
        let pods = pods.into_iter().map(|(pod, claims, _)| (pod, claims));
        let (ranks, places) = lay_out(pods.collect(), &runs);
        Self {
            key: key.clone(),
            gang_uid: gang_uid.to_owned(),
            attempt,
            sequence: 0,
            team,
            team_generation,
            charge,
            gang_size: None,
            done_before: None,
            tier: None,
            ranks,
            places,
            level: None,
            domain: Vec::new(),
            adopted: true,
        }
    }

    /// The intent that commits it, by the leader of that epoch: whole, or, where that is too large, by the digest of its
    /// proposal.
    pub(crate) fn to_intent(&self, context: PollContext<'_>) -> Intent {
        let whole = self.to_whole_intent(context);
        if bytes(&whole) <= context.config.whole_intent_bytes {
            return whole;
        }
        Intent {
            digest: Some(self.digest()),
            nodes: self.nodes().cloned().collect(),
            charge: Charge::default(),
            pods: Vec::new(),
            gang_size: None,
            done_before: None,
            tier: None,
            plan: Vec::new(),
            level: None,
            domain: Vec::new(),
            ..whole
        }
    }

    /// What its Gang carries before the Ledger names it.
    pub(crate) fn to_proposal(&self) -> Proposal {
        let (admission, placement) = self.to_admission();
        Proposal {
            attempt: self.attempt,
            digest: self.digest(),
            admission: Admission {
                ledger_sequence: 0,
                ..admission
            },
            placement,
        }
    }

    /// SHA-256, in hexadecimal, of all that is committed: the same plan of the same attempt gives the same digest,
    /// whichever write commits it.
    pub(crate) fn digest(&self) -> String {
        let (admission, placement) = self.to_admission();
        let admission = Admission {
            ledger_sequence: 0,
            ..admission
        };
        let content = (&self.gang_uid, self.attempt, admission, placement);
        let text = serde_json::to_vec(&content).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &text);
        let digits = digest.as_ref().iter();
        digits.map(|byte| format!("{byte:02x}")).collect()
    }

    fn to_whole_intent(&self, context: PollContext<'_>) -> Intent {
        let pods = self.ranks.iter().map(|rank| IntentPod {
            name: context
                .index
                .pod_by_uid(&rank.pod)
                .map(|pod| pod.name().to_owned())
                .unwrap_or_default(),
            uid: rank.pod.clone(),
            claims: rank.claims.clone(),
        });
        Intent {
            sequence: self.sequence,
            leader_epoch: context.epoch,
            kind: IntentKind::Admit,
            namespace: self.key.namespace.clone(),
            name: self.key.name.clone(),
            gang_uid: self.gang_uid.clone(),
            attempt: self.attempt,
            cause: None,
            fault: None,
            digest: None,
            nodes: Vec::new(),
            team: self.team.clone(),
            team_generation: self.team_generation,
            charge: self.charge.clone(),
            pods: pods.collect(),
            gang_size: self.gang_size,
            done_before: self.done_before,
            tier: self.tier.clone(),
            plan: self.runs(),
            level: self.level.clone(),
            domain: self.domain.clone(),
        }
    }

    /// What the Gang carries of it.
    pub(crate) fn to_admission(&self) -> (Admission, GangPlacement) {
        let pods = self.ranks.iter().map(|rank| AdmittedPod {
            uid: rank.pod.clone(),
            claims: rank.claims.clone(),
        });
        let admission = Admission {
            team: self.team.clone(),
            team_generation: self.team_generation,
            ledger_sequence: self.sequence,
            charge: self.charge.clone(),
            pods: pods.collect(),
            gang_size: self.gang_size,
            done_before: self.done_before,
            tier: self.tier.clone(),
            adopted: self.adopted,
        };
        let placement = GangPlacement {
            nodes: self.runs(),
            level: self.level.clone(),
            domain: self.domain.clone(),
        };
        (admission, placement)
    }

    /// Its nodes, run-length in the order of its places.
    fn runs(&self) -> Vec<NodeRanks> {
        let mut runs = Vec::new();
        for rank in &self.ranks {
            run(&mut runs, &rank.node.name, &rank.node.uid);
        }
        runs
    }
}

/// Bytes of a value as it is stored.
pub(crate) fn bytes<T: serde::Serialize>(value: &T) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX / 4, |text| text.len())
}

/// Adds one place to the runs of consecutive places on one node.
fn run(runs: &mut Vec<NodeRanks>, node: &str, node_uid: &str) {
    match runs.last_mut() {
        Some(run) if run.node == node => run.ranks += 1,
        _ => runs.push(NodeRanks {
            node: node.to_owned(),
            node_uid: node_uid.to_owned(),
            ranks: 1,
        }),
    }
}

/// Pods in their places, and the places by node. A record with more pods than places, or the reverse, has as many
/// ranks as the shorter: nobody but the controller writes it.
fn lay_out(
    pods: Vec<(String, Vec<String>)>,
    runs: &[NodeRanks],
) -> (Vec<Rank>, BTreeMap<String, Vec<usize>>) {
    let nodes = runs.iter().flat_map(|run| {
        let node = Arc::new(PlannedNode {
            name: run.node.clone(),
            uid: run.node_uid.clone(),
        });
        std::iter::repeat_n(node, usize::try_from(run.ranks).unwrap_or(0))
    });
    let ranks: Vec<Rank> = pods
        .into_iter()
        .zip(nodes)
        .map(|((pod, claims), node)| Rank { pod, claims, node })
        .collect();
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, rank) in ranks.iter().enumerate() {
        match places.get_mut(&rank.node.name) {
            Some(known) => known.push(place),
            None => {
                places.insert(rank.node.name.clone(), vec![place]);
            }
        }
    }
    (ranks, places)
}
