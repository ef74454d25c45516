//! Admission: rounds with one head per Team, until nothing more can be admitted.
//!
//! In a round the heads go in Kueue's order: who stays within the own quota before who borrows, and the less
//! far up the tree the better; then the higher tier, then who waits longest, then the smaller UID. A head that
//! does not fit is passed over for this time (`BestEffort`) or ends its Team's part (`StrictFifo`). As long as
//! gangs are only admitted, what did not fit once does not fit later: every gang is judged once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    State, WaitingGang,
    judge::{Fitting, World},
};
use crate::{
    amount::{Amount, Resource},
    decision::{Admission, AdmittedClaim, AdmittedPod},
    model::{HeldClaim, Hold, Pod, PodResources, Queueing, QuotaLimit, Stop, Team},
    names::{ClaimUid, FlavorName, GangUid, NodeName, PodUid, TeamName},
    placement::{Signature, View, claims_of},
    queue::Place,
};

/// Demands that were refused already, by Team.
type Refused = BTreeMap<TeamName, BTreeSet<Signature>>;

impl State {
    /// Admits what can be admitted.
    pub(super) fn admit_all(&mut self) -> Vec<Admission> {
        let mut lines = self.lines();
        let mut refused = Refused::new();
        let mut admissions = Vec::new();
        while !lines.is_empty() {
            for (_, place, name) in self.heads(&mut lines, &refused) {
                let Some(line) = lines.get_mut(&name) else {
                    continue;
                };
                line.pop_front();
                let Some(team) = self.teams.get(&name) else {
                    continue;
                };
                let Some(waiting) = self.waiting.get(&place.gang) else {
                    continue;
                };
                if let Some(fitting) = self.fitting(team, waiting, &refused) {
                    admissions.push(self.admit(&place.gang, &fitting));
                } else {
                    if self.obstacle(waiting).is_none() {
                        let of_team = refused.entry(name.clone()).or_default();
                        of_team.insert(waiting.signature.clone());
                    }
                    if team.queueing == Queueing::StrictFifo && self.holds_up(team, waiting) {
                        line.clear();
                    }
                }
            }
            lines.retain(|_, line| !line.is_empty());
        }
        admissions.into_iter().flatten().collect()
    }

    /// The gangs of each Team that may be admitted, first to be served first.
    fn lines(&self) -> BTreeMap<TeamName, VecDeque<Place>> {
        self.unsettled
            .among(self.waiting.teams(), &self.tree)
            .into_iter()
            .filter(|name| {
                let team = self.teams.get(name);
                team.is_some_and(|team| team.stop == Stop::None) && self.tree.check(name).is_ok()
            })
            .map(|name| {
                let gangs = self.waiting.queued(&name);
                let places = gangs.map(|waiting| Place::of(&waiting.gang)).collect();
                (name, places)
            })
            .collect()
    }

    /// The next gang of each Team, in the order of the round. Gangs whose like was refused are passed over.
    fn heads(
        &self,
        lines: &mut BTreeMap<TeamName, VecDeque<Place>>,
        refused: &Refused,
    ) -> Vec<(usize, Place, TeamName)> {
        let mut heads = Vec::new();
        for (name, line) in lines {
            let Some(team) = self.teams.get(name) else {
                continue;
            };
            while let Some(place) = line.front() {
                let waiting = self.waiting.get(&place.gang);
                let Some(waiting) = waiting.filter(|waiting| !is_refused(waiting, refused)) else {
                    line.pop_front();
                    continue;
                };
                heads.push((
                    self.borrow_level(team, waiting),
                    place.clone(),
                    name.clone(),
                ));
                break;
            }
        }
        heads.sort_unstable();
        heads
    }

    fn fitting(&self, team: &Team, waiting: &WaitingGang, refused: &Refused) -> Option<Fitting> {
        if is_refused(waiting, refused) || self.obstacle(waiting).is_some() {
            return None;
        }
        let world = World {
            tree: &self.tree,
            view: &View::Now,
        };
        self.judge(team, waiting, &world).ok()
    }

    /// Commits to an admission: it is held from now on.
    fn admit(&mut self, uid: &GangUid, fitting: &Fitting) -> Option<Admission> {
        let waiting = self.waiting.get(uid)?;
        let team = self.teams.get(&waiting.gang.team)?;
        let pods = self.admitted_pods(team, waiting, fitting);
        let admission = Admission {
            gang: uid.clone(),
            attempt: waiting.gang.attempt,
            team: team.name.clone(),
            team_generation: team.generation,
            pods,
            topology: fitting.topology(self),
            level: fitting.plan.level.clone(),
            domain: fitting.plan.domain.clone(),
        };
        let holds = provisional_holds(waiting, &admission);
        let pods = holds.iter().map(|hold| hold.pod.clone());
        let pods: BTreeSet<PodUid> = pods.collect();
        for hold in holds {
            self.set_hold(hold);
        }
        self.provisional.insert(uid.clone(), pods);
        self.refresh();
        Some(admission)
    }

    /// The gang's pods, rank by rank, with their nodes and charges.
    fn admitted_pods(
        &self,
        team: &Team,
        waiting: &WaitingGang,
        fitting: &Fitting,
    ) -> Vec<AdmittedPod> {
        let none = BTreeMap::new();
        let flavor = fitting.flavor.as_ref();
        let quota = team.quota.iter().find(|(name, _)| Some(name) == flavor);
        let named = quota.map_or(&none, |(_, named)| named);
        let mut charges: BTreeMap<&ClaimUid, (Amount, Amount)> = BTreeMap::new();
        let mut nodes: BTreeMap<usize, &NodeName> = BTreeMap::new();
        for (placed, granted) in fitting.plan.units.iter().zip(&fitting.claims) {
            let class = waiting.demand.classes.get(placed.class);
            let unit = class.and_then(|class| class.units.get(placed.unit));
            let pods = unit.into_iter().flatten();
            let claims = claims_of(pods.clone().filter_map(|at| waiting.gang.pods.get(*at)));
            charges.extend(
                claims
                    .into_iter()
                    .map(|claim| &claim.uid)
                    .zip(granted.iter().copied()),
            );
            if let Some(record) = self.cluster.record(placed.slot) {
                nodes.extend(pods.map(|at| (*at, &record.node.name)));
            }
        }
        let admitted = waiting
            .gang
            .pods
            .iter()
            .enumerate()
            .filter_map(|(at, pod)| {
                Some(AdmittedPod {
                    uid: pod.uid.clone(),
                    node: (*nodes.get(&at)?).clone(),
                    claims: admitted_claims(pod, flavor, &charges, named),
                    charged: charged_besides(pod, flavor, named),
                })
            });
        admitted.collect()
    }
}

impl Fitting {
    fn topology(&self, state: &State) -> Option<crate::names::TopologyName> {
        let flavor = state.flavors.get(self.flavor.as_ref()?)?;
        flavor.topology.clone()
    }
}

/// Whether a gang of the same Team that asks for the same was refused.
fn is_refused(waiting: &WaitingGang, refused: &Refused) -> bool {
    let of_team = refused.get(&waiting.gang.team);
    of_team.is_some_and(|of_team| of_team.contains(&waiting.signature))
}

fn admitted_claims(
    pod: &Pod,
    flavor: Option<&FlavorName>,
    charges: &BTreeMap<&ClaimUid, (Amount, Amount)>,
    named: &BTreeMap<Resource, QuotaLimit>,
) -> Vec<AdmittedClaim> {
    let charges_vram = named.contains_key(&Resource::Vram);
    pod.claims
        .iter()
        .filter_map(|claim| {
            let (gpus, vram) = charges.get(&claim.uid).copied()?;
            Some(AdmittedClaim {
                uid: claim.uid.clone(),
                flavor: flavor?.clone(),
                gpus,
                vram: if charges_vram { vram } else { Amount::ZERO },
            })
        })
        .collect()
}

/// Cores and memory, where the Flavor's quota names them.
fn charged_besides(
    pod: &Pod,
    flavor: Option<&FlavorName>,
    named: &BTreeMap<Resource, QuotaLimit>,
) -> Vec<(FlavorName, Resource, Amount)> {
    let PodResources {
        cpu_milli,
        memory_bytes,
        ..
    } = &pod.resources;
    let parts = [(Resource::Cpu, cpu_milli), (Resource::Memory, memory_bytes)];
    parts
        .into_iter()
        .filter(|(resource, amount)| **amount > 0 && named.contains_key(resource))
        .filter_map(|(resource, amount)| Some((flavor?.clone(), resource, Amount(*amount))))
        .collect()
}

/// What stands for the gang until its holds are told.
fn provisional_holds(waiting: &WaitingGang, admission: &Admission) -> Vec<Hold> {
    let gang = &waiting.gang;
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
