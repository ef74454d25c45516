//! What an admission says, and what stands for it until its holds are told.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::GangId,
    judge::{ClaimCost, Fitting},
    waiting::WaitingGang,
};
use crate::{
    amount::{Amount, ResourceCharge},
    decision::{Admission, AdmittedClaim, AdmittedPod},
    model::{HeldClaim, Hold, Pod},
    names::{ClaimUid, FlavorName, NodeName, PodUid},
    placement::claims_of,
    quota::request::{Assignment, amount_of},
};

impl State {
    /// Commits to an admission: it is held from now on.
    pub(super) fn admit(&mut self, id: GangId, fitting: &Fitting) -> Option<Admission> {
        let admission = self.admission(id, fitting)?;
        let waiting = self.waiting.get(id)?;
        let namespace = waiting.namespace.clone();
        let holds = provisional_holds(waiting, &admission);
        let pods = holds.iter().map(|hold| hold.pod.clone());
        let pods: BTreeSet<PodUid> = pods.collect();
        self.provisional.insert(admission.gang.clone(), pods);
        self.note_begun(&admission.gang);
        for hold in holds {
            self.set_hold(hold);
        }
        self.note_admitted_use(&admission, &namespace);
        Some(admission)
    }

    /// What a gang would hold if it were admitted so.
    pub(super) fn would_hold(&self, id: GangId, fitting: &Fitting) -> Option<Vec<Hold>> {
        let admission = self.admission(id, fitting)?;
        Some(provisional_holds(self.waiting.get(id)?, &admission))
    }

    fn admission(&self, id: GangId, fitting: &Fitting) -> Option<Admission> {
        let waiting = self.waiting.get(id)?;
        let team = self.limits.teams.get(&waiting.gang.team)?;
        let entry = self.teams.get(waiting.team)?;
        let assignment = fitting.assignment.and_then(|at| entry.assignments.get(at));
        let flavor = assignment.and_then(|it| self.flavors.get(&it.flavor));
        Some(Admission {
            gang: waiting.gang.uid.clone(),
            attempt: waiting.gang.attempt,
            team: team.name.clone(),
            team_generation: team.generation,
            pods: self.admitted_pods(waiting, assignment, fitting),
            gang_pods: waiting.gang.pods.len(),
            topology: flavor.and_then(|flavor| flavor.topology.clone()),
            level: fitting.plan.level.clone(),
            domain: fitting.plan.domain.clone(),
        })
    }

    /// The gang's pods that are placed, rank by rank, with their nodes and charges.
    fn admitted_pods(
        &self,
        waiting: &WaitingGang,
        assignment: Option<&Assignment>,
        fitting: &Fitting,
    ) -> Vec<AdmittedPod> {
        let mut costs: BTreeMap<&ClaimUid, &ClaimCost> = BTreeMap::new();
        let mut nodes: BTreeMap<usize, &NodeName> = BTreeMap::new();
        for (placed, of_unit) in fitting.plan.units.iter().zip(&fitting.claims) {
            let class = fitting.demand(waiting).classes.get(placed.class);
            let unit = class.and_then(|class| class.units.get(placed.unit));
            let pods = unit.into_iter().flatten();
            let claims = claims_of(pods.clone().filter_map(|at| waiting.gang.pods.get(*at)));
            costs.extend(claims.into_iter().map(|claim| &claim.uid).zip(of_unit));
            if let Some(record) = self.cluster.record(placed.slot) {
                nodes.extend(pods.map(|at| (*at, &record.node.name)));
            }
        }
        let pods = waiting.gang.pods.iter().enumerate();
        pods.filter_map(|(at, pod)| {
            Some(AdmittedPod {
                uid: pod.uid.clone(),
                node: (*nodes.get(&at)?).clone(),
                claims: self.admitted_claims(waiting, pod, &costs),
                charged: self.charged_besides(pod, assignment),
            })
        })
        .collect()
    }

    /// Bytes of devices are charged where the Team's quota for their Flavor names them.
    fn admitted_claims(
        &self,
        waiting: &WaitingGang,
        pod: &Pod,
        costs: &BTreeMap<&ClaimUid, &ClaimCost>,
    ) -> Vec<AdmittedClaim> {
        let team = self.teams.get(waiting.team);
        let charges_vram = |flavor: &FlavorName| {
            let mut all = team.into_iter().flat_map(|team| team.assignments.iter());
            all.any(|assignment| assignment.flavor == *flavor && assignment.vram.is_some())
        };
        let claims = pod.claims.iter().filter_map(|claim| {
            let cost = costs.get(&claim.uid)?;
            Some(AdmittedClaim {
                uid: claim.uid.clone(),
                flavor: cost.flavor.clone(),
                gpus: cost.charge.gpus,
                vram: if charges_vram(&cost.flavor) {
                    cost.charge.vram
                } else {
                    Amount::ZERO
                },
            })
        });
        claims.collect()
    }

    /// Cores, memory and extended resources, where the Team's quota names them.
    fn charged_besides(&self, pod: &Pod, assignment: Option<&Assignment>) -> Vec<ResourceCharge> {
        let besides = assignment.into_iter().flat_map(|it| &it.besides);
        besides
            .filter_map(|(resource, pair)| {
                let amount = amount_of(&pod.resources, resource);
                (amount > Amount::ZERO).then(|| ResourceCharge {
                    of: self.tree.named(*pair).clone(),
                    amount,
                })
            })
            .collect()
    }
}

/// What stands for the gang until its holds are told.
fn provisional_holds(waiting: &WaitingGang, admission: &Admission) -> Vec<Hold> {
    let gang = &waiting.gang;
    // Those that are admitted are the first.
    let pods = gang.pods.iter().zip(&admission.pods);
    pods.map(|(pod, admitted)| Hold {
        pod: pod.uid.clone(),
        gang: gang.uid.clone(),
        gang_name: gang.name.clone(),
        team: gang.team.clone(),
        node: admitted.node.clone(),
        charged_to_node: false,
        resources: pod.resources.clone(),
        charged: admitted.charged.clone(),
        claims: admitted
            .claims
            .iter()
            .map(|claim| {
                let request = pod.claims.iter().find(|asked| asked.uid == claim.uid);
                let allocated = request.and_then(|request| request.allocated.clone());
                HeldClaim {
                    uid: claim.uid.clone(),
                    flavor: claim.flavor.clone(),
                    gpus: claim.gpus,
                    vram: claim.vram,
                    request: request.cloned(),
                    devices: allocated.map(|(_, devices)| devices),
                }
            })
            .collect(),
        releasing: false,
    })
    .collect()
}
