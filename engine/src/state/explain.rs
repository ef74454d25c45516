//! Why each gang waits, with numbers and with who stands in the way.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    mem::discriminant,
};

use super::{
    State, WaitingGang, change_tree,
    judge::{Refusal, World, request},
};
use crate::{
    amount::{Amount, FlavorResource, Resource},
    decision::{Blocker, Explanation, Why},
    model::{Hold, Queueing, Stop, Team},
    names::{FlavorName, PodUid, TeamName},
    placement::{Effort, Signature, Unfit, Verdict, View, explain, plan},
    quota::{QuotaTree, TreeFault, charges::largest},
};

/// How many gangs of a Team are told every change of their numbers and places. Of those further back only
/// a change of the reason is told: else each admission would rewrite the status of the whole queue.
const CLOSELY_TOLD: usize = 100;

/// The world in which everything that only waits for the proof of its release were gone; `None` if
/// nothing does. Made when first asked for.
#[derive(Default)]
pub(super) struct Released(OnceCell<Option<(QuotaTree, View)>>);

impl State {
    /// What has to be told because it changed.
    pub(super) fn explain_all(&mut self) -> Vec<Explanation> {
        let released = Released::default();
        let mut news = Vec::new();
        for name in self.unsettled.among(self.waiting.teams(), &self.tree) {
            let Some(team) = self.teams.get(&name) else {
                continue;
            };
            let (of_team, by_nodes) = self.news_of(team, &released);
            self.unsettled.waits_for_nodes(&name, by_nodes);
            for explanation in &of_team {
                self.told
                    .insert(explanation.gang.clone(), explanation.clone());
            }
            news.extend(of_team);
        }
        news
    }

    /// What has to be told to the gangs of one Team, and whether some reason depends on nodes.
    fn news_of(&self, team: &Team, released: &Released) -> (Vec<Explanation>, bool) {
        let fault = self.fault_of(team);
        let mut known: BTreeMap<&Signature, Why> = BTreeMap::new();
        let mut behind: Option<Why> = None;
        let mut news = Vec::new();
        let mut by_nodes = false;
        for (at, waiting) in self.waiting.queued(&team.name).enumerate() {
            let obstacle;
            let why = if let Some(why) = fault.as_ref().or(behind.as_ref()) {
                why
            } else if let Some(why) = {
                obstacle = self.obstacle(waiting);
                &obstacle
            } {
                why
            } else {
                known
                    .entry(&waiting.signature)
                    .or_insert_with(|| self.why(team, waiting, released))
            };
            by_nodes |= self.depends_on_nodes(why);
            let gang = &waiting.gang.uid;
            let position = at + 1;
            if self
                .told
                .get(gang)
                .is_none_or(|told| is_news(told, position, why))
            {
                news.push(Explanation {
                    gang: gang.clone(),
                    position,
                    why: why.clone(),
                });
            }
            if team.queueing == Queueing::StrictFifo && may_pass(why) {
                let head = waiting.gang.name.clone();
                behind = Some(Why::BehindHead { head });
            }
        }
        (news, by_nodes)
    }

    /// Whether a reason may change by what is held or free on nodes, also outside the Team's tree. That quota
    /// waits for a release is known only by trying where the gang would then be placed.
    fn depends_on_nodes(&self, why: &Why) -> bool {
        match why {
            Why::Placement { .. } | Why::PlacementImpossible { .. } | Why::Release { .. } => true,
            Why::Quota { .. } => !self.releasing.is_empty(),
            _ => false,
        }
    }

    /// Why nothing of a Team is admitted.
    fn fault_of(&self, team: &Team) -> Option<Why> {
        if team.stop == Stop::Hold {
            return Some(Why::TeamStopped);
        }
        match self.tree.check(&team.name) {
            Ok(()) | Err(TreeFault::UnknownTeam) => None,
            Err(TreeFault::Cycle(cohort)) => Some(Why::CohortCycle { cohort }),
            Err(TreeFault::Overflow(_)) => Some(Why::Overflow),
        }
    }

    /// A claim by name that stands in the way, whatever is free.
    pub(super) fn obstacle(&self, waiting: &WaitingGang) -> Option<Why> {
        let gang = &waiting.gang;
        // An earlier attempt of the gang itself may still hold a claim.
        let mut own = 0;
        for claim in gang.pods.iter().flat_map(|pod| &pod.claims) {
            for (holder, name) in self.charges.holders(&claim.uid) {
                if *holder != gang.uid {
                    return Some(Why::ClaimShared {
                        claim: claim.uid.clone(),
                        holder: name.to_owned(),
                    });
                }
                own += 1;
            }
        }
        (own > 0).then(|| Why::Release {
            pods: own,
            blocker: Blocker {
                gangs: vec![gang.name.clone()],
                more: 0,
            },
        })
    }

    /// Whether a gang that does not fit holds up those behind it where the order is strict: not if
    /// waiting does not help it.
    pub(super) fn holds_up(&self, team: &Team, waiting: &WaitingGang) -> bool {
        let obstacle = self.obstacle(waiting);
        let why = obstacle.unwrap_or_else(|| self.why(team, waiting, &Released::default()));
        may_pass(&why)
    }

    /// What the Flavor that comes closest lacks.
    fn why(&self, team: &Team, waiting: &WaitingGang, released: &Released) -> Why {
        let world = World {
            tree: &self.tree,
            view: &View::Now,
        };
        let refusals = match self.judge(team, waiting, &world) {
            Err(refusals) => refusals,
            // Refused while less was taken: only a search that ran out of effort does that.
            Ok(fitting) => {
                let flavor = fitting.flavor.unwrap_or_else(|| FlavorName::from(""));
                let request = request(waiting, self.flavors.get(&flavor));
                let unfit = explain(&self.cluster, &View::Now, &request);
                vec![(flavor, Refusal::NoPlace(unfit))]
            }
        };
        let reasons = refusals
            .into_iter()
            .map(|(flavor, refusal)| self.why_not(team, waiting, &flavor, refusal, released));
        let closest = reasons.min_by_key(distance);
        closest.unwrap_or_else(|| no_quota(team))
    }

    fn why_not(
        &self,
        team: &Team,
        waiting: &WaitingGang,
        flavor: &FlavorName,
        refusal: Refusal,
        released: &Released,
    ) -> Why {
        let wanted = request(waiting, self.flavors.get(flavor));
        match refusal {
            Refusal::Overflow => Why::Overflow,
            Refusal::Unnamed => no_quota(team),
            Refusal::Unknown => {
                let mut unfit = explain(&self.cluster, &View::Empty, &wanted);
                unfit.excluded = vec![(format!("there is no Flavor {flavor}"), unfit.nodes)];
                impossible(waiting, Unfit { fit: 0, ..unfit })
            }
            Refusal::TooFewDevices => {
                impossible(waiting, explain(&self.cluster, &View::Empty, &wanted))
            }
            Refusal::ExceedsMax { of, asked, most } => Why::ExceedsMaxQuota { of, asked, most },
            Refusal::Quota { of, asked } => self
                .release(team, waiting, flavor, released)
                .unwrap_or_else(|| self.quota(team, of, asked)),
            Refusal::NoPlace(unfit) => {
                if let Some(release) = self.release(team, waiting, flavor, released) {
                    return release;
                }
                match plan(&self.cluster, &View::Empty, &wanted, &mut Effort::default()) {
                    Verdict::NoPlace(_) => {
                        impossible(waiting, explain(&self.cluster, &View::Empty, &wanted))
                    }
                    Verdict::Placed(_) | Verdict::GaveUp(_) => {
                        self.placement(waiting, flavor, unfit)
                    }
                }
            }
        }
    }

    fn quota(&self, team: &Team, of: FlavorResource, asked: Amount) -> Why {
        let in_tree = |other: &TeamName| self.tree.share_a_tree(&team.name, other);
        Why::Quota {
            asked,
            available: self.tree.available(&team.name, &of).unwrap_or_default(),
            borrowable: self.tree.borrowable(&team.name, &of).unwrap_or_default(),
            blocker: self.charges.blocker(&of, in_tree),
            of,
        }
    }

    fn placement(&self, waiting: &WaitingGang, flavor: &FlavorName, unfit: Unfit) -> Why {
        let gpus = FlavorResource {
            flavor: flavor.clone(),
            resource: Resource::Gpus,
        };
        Why::Placement {
            pods: waiting.demand.pods,
            fit: unfit.fit,
            level: waiting.gang.topology.required.clone(),
            nodes: unfit.nodes,
            excluded: unfit.excluded,
            blocker: self.charges.blocker(&gpus, |_| true),
        }
    }

    /// That the gang waits for a release, if it would fit once those on the way are proved.
    fn release(
        &self,
        team: &Team,
        waiting: &WaitingGang,
        flavor: &FlavorName,
        released: &Released,
    ) -> Option<Why> {
        let (tree, view) = released.0.get_or_init(|| self.released()).as_ref()?;
        let world = World { tree, view };
        let (_, named) = team.quota.iter().find(|(name, _)| name == flavor)?;
        self.judge_flavor(team, waiting, flavor, named, &world)
            .ok()?;
        let uses = |hold: &&Hold| hold.claims.iter().any(|claim| claim.flavor == *flavor);
        let mut pods = 0;
        let mut gangs: BTreeMap<&str, i128> = BTreeMap::new();
        for hold in self.releasing().into_values().filter(uses) {
            pods += 1;
            *gangs.entry(&hold.gang_name).or_default() += 1;
        }
        Some(Why::Release {
            pods,
            blocker: largest(gangs.into_iter().map(|(name, pods)| (pods, name))),
        })
    }

    fn releasing(&self) -> BTreeMap<PodUid, &Hold> {
        self.releasing
            .iter()
            .filter_map(|pod| Some((pod.clone(), &**self.holds.get(pod)?)))
            .collect()
    }

    fn released(&self) -> Option<(QuotaTree, View)> {
        let gone = self.releasing();
        if gone.is_empty() {
            return None;
        }
        let mut tree = self.tree.clone();
        change_tree(&mut tree, &self.charges.without(&gone));
        Some((tree, self.cluster.without(&gone)))
    }
}

fn impossible(waiting: &WaitingGang, unfit: Unfit) -> Why {
    Why::PlacementImpossible {
        pods: waiting.demand.pods,
        fit: unfit.fit,
        level: waiting.gang.topology.required.clone(),
        nodes: unfit.nodes,
        excluded: unfit.excluded,
    }
}

fn no_quota(team: &Team) -> Why {
    let mut seen = BTreeSet::new();
    Why::NoQuotaForResource {
        resource: Resource::Gpus,
        flavors: team
            .quota
            .iter()
            .map(|(flavor, _)| flavor.clone())
            .filter(|flavor| seen.insert(flavor.clone()))
            .collect(),
    }
}

/// How far from admission a reason is: of several Flavors the one that comes closest is told.
fn distance(why: &Why) -> u8 {
    match why {
        Why::Release { .. } => 0,
        Why::Placement { .. } => 1,
        Why::Quota { .. } => 2,
        Why::ExceedsMaxQuota { .. } => 3,
        Why::PlacementImpossible { .. } => 4,
        Why::NoQuotaForResource { .. } => 5,
        _ => 6,
    }
}

/// Whether a reason can pass while the gang itself stays as it is and no limit or node changes.
fn may_pass(why: &Why) -> bool {
    matches!(
        why,
        Why::Release { .. } | Why::Placement { .. } | Why::Quota { .. }
    )
}

fn is_news(told: &Explanation, position: usize, why: &Why) -> bool {
    if told.position.min(position) <= CLOSELY_TOLD {
        told.position != position || told.why != *why
    } else {
        discriminant(&told.why) != discriminant(why)
    }
}
