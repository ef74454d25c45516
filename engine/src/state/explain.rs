//! Why a gang waits, with numbers and with who stands in the way. Worked out when somebody asks.

use std::collections::BTreeSet;

use super::{
    State,
    judge::{Candidate, request},
    team::{Refusing, TeamEntry},
    waiting::{Obstacle, WaitingGang},
    waits::Wait,
};
use crate::{
    amount::{Amount, FlavorResource, Resource},
    decision::{Blocker, CommitRoom, Explanation, Visited, Why},
    model::{Gang, Stop, Team},
    names::{FlavorName, GangUid},
    placement::{
        Effort, Fits, GaveUp, Plan, Refusal, Unfit, Verdict, View, equal_pods_fit, explain, fits,
        may_fit_since, plan,
    },
    quota::{
        NodeId, QuotaTree, TreeFault,
        charges::largest,
        request::{Assignment, assignments},
    },
};

/// How many gangs in line are counted in the time of a look at a node.
const GANGS_PER_LOOK: usize = 8;

/// What is left of the steps of an explanation. Each question has its own, so that what is told of one does not depend on
/// what was remembered of another.
struct Steps {
    /// To find out whether there is a place now: as many as the decision had, so that what it found is found again.
    now: Effort,
    /// Whether there would be one on the empty cluster.
    ever: Effort,
    /// How many pods have one.
    count: Effort,
    /// Into how many parts each is split.
    parts: usize,
}

impl Default for Steps {
    fn default() -> Self {
        let half = Effort::of(Effort::ONE_DECISION / 2);
        Self {
            now: Effort::default(),
            ever: half,
            count: half,
            parts: 1,
        }
    }
}

/// Where a Team stands in a quota tree.
#[derive(Clone, Copy)]
struct Standing<'a> {
    tree: &'a QuotaTree,
    node: Option<NodeId>,
    assignments: &'a [Assignment],
}

impl State {
    /// Why a gang waits, as things are now: with its place in the queue and with numbers. `None` if it does not wait, or
    /// its Team is not known.
    ///
    /// It counts the gangs before it in its Team's line and looks for a placement at most twice per Flavor, all of it
    /// with the steps of two decisions, about four milliseconds; where they run out, the reason says so. Who is to have what is being
    /// released is worked out with those of one, once for each change. Of a Team with several Flavors the reason that is nearest
    /// to admission is told.
    pub fn explain(&self, gang: &GangUid) -> Option<Explanation> {
        let waiting = self.waiting.get(self.waiting.id(gang)?)?;
        let entry = self.teams.get(waiting.team)?;
        let team = self.limits.teams.get(&entry.name)?;
        let before = entry.before(waiting);
        self.cluster.note_visits((before / GANGS_PER_LOOK) as u64);
        let kept = self.why_reserved(&waiting.gang.uid);
        let kept = kept.or_else(|| self.why_recovering(&waiting.gang.uid));
        if let Some(why) = kept.or_else(|| self.why_head(&waiting.gang.uid)) {
            return Some(Explanation {
                gang: gang.clone(),
                position: before + 1,
                why,
            });
        }
        if !entry.line.contains_key(&waiting.place) {
            return None;
        }
        let mut why = if self.tree_is_stale {
            let (mut tree, _) = self.built_trees();
            let assignments = assignments(team, &mut tree);
            let standing = Standing {
                node: tree.node_of(&team.name),
                assignments: &assignments,
                tree: &tree,
            };
            self.why(team, entry, waiting, &standing)
        } else {
            let standing = Standing {
                node: entry.node,
                assignments: &entry.assignments,
                tree: &self.tree,
            };
            self.why(team, entry, waiting, &standing)
        };
        self.name_recovering(&mut why);
        Some(Explanation {
            gang: gang.clone(),
            position: before + 1,
            why,
        })
    }

    fn why(
        &self,
        team: &Team,
        entry: &TeamEntry,
        waiting: &WaitingGang,
        standing: &Standing<'_>,
    ) -> Why {
        if team.stop == Stop::Hold {
            return Why::TeamStopped;
        }
        if let Err(TreeFault::Cycle(cohort)) = standing.tree.check(&team.name) {
            return Why::CohortCycle { cohort };
        }
        if let Some(why) = self.why_too_large(waiting) {
            return why;
        }
        if let Some(why) = self.why_obstacle(waiting) {
            return why;
        }
        if let Some(promise) = self.promise(&waiting.gang.uid) {
            return promise;
        }
        let class = waiting.class.and_then(|class| self.classes.get(class));
        if class.is_none_or(|class| class.waits.contains(&Wait::Ready)) {
            return Why::NextCommit;
        }
        self.nearest_reason(team, entry, waiting, standing)
    }

    fn why_too_large(&self, waiting: &WaitingGang) -> Option<Why> {
        let id = self.waiting.id(&waiting.gang.uid)?;
        let needs = *self.too_large.get(&id)?;
        let most = self.empty_commit.unwrap_or(CommitRoom::UNLIMITED);
        Some(Why::TooLarge { needs, most })
    }

    /// The gang that holds up those behind it on a Flavor, where the order is strict.
    fn head_before(
        &self,
        entry: &TeamEntry,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
    ) -> Option<&Gang> {
        // The Flavors that are told of may be in another order than those by which it was decided last.
        let at = match flavor {
            Some(flavor) => entry
                .assignments
                .iter()
                .position(|it| it.flavor == *flavor)?,
            None => 0,
        };
        let standing = entry.standing_of(waiting);
        let head = entry.discipline.first_before(at, &standing)?;
        let head = self.waiting.get(entry.gang_at(head.place())?)?;
        Some(&head.gang)
    }

    /// What is told of a Flavor on which a gang is behind another: that it is, unless it could not run there anyway.
    fn why_behind(
        &self,
        team: &Team,
        head: &Gang,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        steps: &mut Steps,
    ) -> Why {
        let flavor = candidate.assignments.get(candidate.at).map(|it| &it.flavor);
        if flavor.is_some()
            && let Err(refusing) = self.may_be_placed(candidate, tree)
            && !matches!(refusing, Refusing::Quota { .. } | Refusing::Nominal { .. })
        {
            return self.why_not(team, candidate, &refusing, tree, steps);
        }
        let waiting = candidate.waiting;
        let wanted = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
        let parts = steps.parts;
        let on_empty = |effort: &mut Effort| fits(&self.cluster, &View::Empty, &wanted, effort);
        if steps.ever.part(parts, on_empty) == Fits::No {
            return impossible(waiting, self.unfit(waiting, flavor, &View::Empty, steps));
        }
        Why::BehindHead {
            head: head.name.clone(),
            flavor: flavor.cloned(),
        }
    }

    /// What stands in the way, whatever is free.
    pub(super) fn why_obstacle(&self, waiting: &WaitingGang) -> Option<Why> {
        let gang = &waiting.gang;
        let obstacle = waiting.obstacle()?;
        let mut claims = gang.pods.iter().flat_map(|pod| &pod.claims);
        if obstacle == Obstacle::Shared {
            return claims.find_map(|claim| {
                let holder = self.charges.other_holder(&claim.uid, &gang.uid)?;
                Some(Why::ClaimShared {
                    claim: claim.uid.clone(),
                    holder: holder.to_owned(),
                })
            });
        }
        Some(Why::Release {
            pods: waiting
                .earlier_pods
                .max(self.charges.pods_holding(&gang.uid, claims)),
            blocker: Blocker {
                gangs: vec![gang.name.clone()],
                ..Blocker::default()
            },
            behind: None,
        })
    }

    /// What the Flavor that comes closest lacks.
    fn nearest_reason(
        &self,
        team: &Team,
        entry: &TeamEntry,
        waiting: &WaitingGang,
        standing: &Standing<'_>,
    ) -> Why {
        let Standing {
            tree,
            node,
            assignments,
        } = *standing;
        let Some(totals) = self.shapes.get(waiting.shape).map(|shape| &shape.totals) else {
            return Why::NextCommit;
        };
        let candidate = |at| Candidate {
            waiting,
            demand: &waiting.demand,
            totals,
            node,
            assignments,
            at,
        };
        let mut steps = Steps::default();
        if assignments.is_empty() && totals.claims == 0 {
            if let Some(head) = self.head_before(entry, waiting, None) {
                return self.why_behind(team, head, &candidate(0), tree, &mut steps);
            }
            return match self.placed_again(waiting, None, &mut steps.now) {
                Ok(_) => Why::NextCommit,
                Err(gave_up) => self.why_no_place(waiting, None, gave_up, &mut steps),
            };
        }
        let ways =
            (0..assignments.len()).filter(|at| self.may_be_placed(&candidate(*at), tree).is_ok());
        steps.parts = waiting.demand.shares(ways.count());
        let reasons = (0..assignments.len()).map(|at| {
            let candidate = candidate(at);
            let flavor = assignments.get(at).map(|it| &it.flavor);
            if let Some(head) = self.head_before(entry, waiting, flavor) {
                return self.why_behind(team, head, &candidate, tree, &mut steps);
            }
            match self.judge_again(&candidate, tree, &mut steps) {
                Ok(()) => Why::NextCommit,
                Err(refusing) => self.why_not(team, &candidate, &refusing, tree, &mut steps),
            }
        });
        reasons
            .min_by_key(distance)
            .unwrap_or_else(|| no_quota(team))
    }

    /// What [`State::judge`] found, without remembering anything.
    fn judge_again(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        steps: &mut Steps,
    ) -> Result<(), Refusing> {
        self.may_be_placed(candidate, tree)?;
        let parts = steps.parts;
        steps
            .now
            .part(parts, |effort| self.place_again(candidate, tree, effort))
    }

    fn place_again(
        &self,
        candidate: &Candidate<'_>,
        tree: &QuotaTree,
        effort: &mut Effort,
    ) -> Result<(), Refusing> {
        let refusal = Refusal {
            as_of: self.cluster.version(),
        };
        let name = candidate.assignments.get(candidate.at).map(|it| &it.flavor);
        let placed = self.placed_again(candidate.waiting, name, effort);
        let plan = placed.map_err(|gave_up| Refusing::NoPlace { refusal, gave_up })?;
        let Err(refusing) = self.cost(candidate, plan, tree) else {
            return Ok(());
        };
        let (Refusing::Quota { pair, asked, .. }
        | Refusing::Nominal { pair, asked, .. }
        | Refusing::ExceedsMax { pair, asked, .. }) = refusing
        else {
            return Err(refusing);
        };
        let visited = &mut Visited::default();
        let gave_up = match self.place_lesser(candidate, pair, tree, &View::Now, effort, visited) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => false,
            Err(GaveUp) => true,
        };
        if candidate.lacks_nominal(&refusing) {
            let lesser = Some((refusal, gave_up));
            return Err(Refusing::Nominal {
                pair,
                asked,
                lesser,
            });
        }
        let lack = candidate.node.and_then(|node| tree.lack(node, pair, asked));
        Err(Refusing::QuotaForDevices {
            pair,
            asked,
            lack: lack.ok_or(Refusing::Overflow)?,
            refusal,
            gave_up,
        })
    }

    /// The place that there is now; `Err` with whether the search gave up.
    fn placed_again(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        effort: &mut Effort,
    ) -> Result<Plan, bool> {
        let key = flavor.cloned();
        let shape = self.shapes.get(waiting.shape);
        let known = shape.and_then(|shape| shape.refused.get(&key));
        let request = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
        // What came free since it was refused is more than one count, if that was long ago.
        let fit = equal_pods_fit(&self.cluster, &View::Now, &request);
        if fit != Some(true)
            && let Some(view) = self.view_for(waiting)
            && let Verdict::Placed(plan) = plan(&self.cluster, &view, &request, effort)
        {
            return Ok(plan);
        }
        if fit == Some(false) {
            return Err(false);
        }
        if fit.is_none()
            && let Some(known) = known.filter(|known| known.holds_with(effort.steps()))
            && !may_fit_since(&self.cluster, &View::Now, &request, known.refusal)
        {
            return Err(known.gave_up_after.is_some());
        }
        match plan(&self.cluster, &View::Now, &request, effort) {
            Verdict::Placed(plan) => Ok(plan),
            Verdict::NoPlace(_) => Err(false),
            Verdict::GaveUp(_) => Err(true),
        }
    }

    fn why_not(
        &self,
        team: &Team,
        candidate: &Candidate<'_>,
        refusing: &Refusing,
        tree: &QuotaTree,
        steps: &mut Steps,
    ) -> Why {
        let waiting = candidate.waiting;
        let flavor = candidate.assignments.get(candidate.at).map(|it| &it.flavor);
        match *refusing {
            // Who is behind another is not judged.
            Refusing::Overflow | Refusing::BehindHead => Why::Overflow,
            Refusing::Unnamed => no_quota(team),
            Refusing::UnknownFlavor => {
                let mut unfit = self.unfit(waiting, flavor, &View::Empty, steps);
                let name = flavor.map_or("", FlavorName::as_str);
                unfit.excluded = vec![(format!("there is no Flavor {name}"), unfit.nodes)];
                unfit.fit = 0;
                unfit.is_fit_partial = false;
                impossible(waiting, unfit)
            }
            Refusing::ExcludedFlavor => {
                let mut unfit = self.unfit(waiting, flavor, &View::Empty, steps);
                let name = flavor.map_or("", FlavorName::as_str);
                let text = format!("what the pods say about nodes excludes the Flavor {name}");
                unfit.excluded = vec![(text, unfit.nodes)];
                unfit.fit = 0;
                unfit.is_fit_partial = false;
                impossible(waiting, unfit)
            }
            Refusing::TooFewDevices(_) => {
                impossible(waiting, self.unfit(waiting, flavor, &View::Empty, steps))
            }
            Refusing::ExceedsMax { pair, asked, most } => Why::ExceedsMaxQuota {
                of: tree.named(pair).clone(),
                asked,
                most,
                may_borrow: waiting.gang.may_borrow,
            },
            Refusing::QuotaForDevices {
                pair,
                asked,
                gave_up,
                ..
            } => {
                let most = candidate.node.map(|node| tree.potential_at(node, pair));
                if most.is_some_and(|most| asked > most) {
                    // Only a place with lesser devices can help.
                    return self.why_placement(waiting, flavor, gave_up, steps);
                }
                self.why_quota(team, tree.named(pair).clone(), asked, tree, true)
            }
            Refusing::Nominal {
                pair,
                asked,
                lesser: Some((_, gave_up)),
            } if tree
                .nominal(&team.name, tree.named(pair))
                .is_ok_and(|own| own < asked) =>
            {
                // Only a place with lesser devices can help.
                self.why_placement(waiting, flavor, gave_up, steps)
            }
            Refusing::Quota { pair, asked, .. } | Refusing::Nominal { pair, asked, .. } => {
                let of = tree.named(pair).clone();
                self.why_quota(team, of, asked, tree, waiting.gang.may_borrow)
            }
            Refusing::NoPlace { gave_up, .. } => self.why_no_place(waiting, flavor, gave_up, steps),
        }
    }

    fn unfit(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        view: &View,
        steps: &mut Steps,
    ) -> Unfit {
        let wanted = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
        let parts = steps.parts;
        steps.count.part(parts, |effort| {
            explain(&self.cluster, view, &wanted, effort)
        })
    }

    fn why_quota(
        &self,
        team: &Team,
        of: FlavorResource,
        asked: Amount,
        tree: &QuotaTree,
        may_borrow: bool,
    ) -> Why {
        let around = tree.teams_around(&team.name);
        self.cluster.note_visits(around.len() as u64);
        Why::Quota {
            asked,
            available: tree.available(&team.name, &of).unwrap_or_default(),
            borrowable: tree.borrowable(&team.name, &of).unwrap_or_default(),
            may_borrow,
            blocker: self.charges.blocker(&of, Some(&around)),
            of,
        }
    }

    /// That there is no place, and whether there is one on the empty cluster. A search that gave up never says that
    /// there is none.
    fn why_no_place(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        gave_up: bool,
        steps: &mut Steps,
    ) -> Why {
        let wanted = request(waiting, flavor.and_then(|name| self.flavors.get(name)));
        let parts = steps.parts;
        let held_off = |effort: &mut Effort| self.why_held_off(waiting, flavor, effort);
        if let Some(why) = steps.ever.part(parts, held_off) {
            return why;
        }
        let on_empty = |effort: &mut Effort| fits(&self.cluster, &View::Empty, &wanted, effort);
        let ever = if gave_up {
            Fits::GaveUp
        } else {
            steps.ever.part(parts, on_empty)
        };
        if ever == Fits::No {
            return impossible(waiting, self.unfit(waiting, flavor, &View::Empty, steps));
        }
        self.why_placement(waiting, flavor, ever == Fits::GaveUp, steps)
    }

    /// That there is no place now, with who has it.
    fn why_placement(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        gave_up: bool,
        steps: &mut Steps,
    ) -> Why {
        let unfit = self.unfit(waiting, flavor, &View::Now, steps);
        let draws = self
            .shapes
            .get(waiting.shape)
            .is_some_and(|shape| shape.totals.draws_devices());
        let gpus = flavor.filter(|_| draws).map(|flavor| FlavorResource {
            flavor: flavor.clone(),
            resource: Resource::Gpus,
        });
        Why::Placement {
            pods: waiting.demand.pods,
            fit: unfit.fit,
            is_fit_partial: unfit.is_fit_partial,
            gave_up,
            level: waiting.gang.topology.required.clone(),
            nodes: unfit.nodes,
            excluded: unfit.excluded,
            blocker: match unfit.occupants {
                Some(occupants) => {
                    let gangs = occupants.gangs.iter();
                    Blocker {
                        is_partial: occupants.is_partial,
                        ..largest(gangs.map(|(name, has)| (*has, name.as_str())))
                    }
                }
                None => gpus.map_or_else(Blocker::default, |of| self.charges.blocker(&of, None)),
            },
        }
    }
}

fn impossible(waiting: &WaitingGang, unfit: Unfit) -> Why {
    Why::PlacementImpossible {
        pods: waiting.demand.pods,
        fit: unfit.fit,
        is_fit_partial: unfit.is_fit_partial,
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
        Why::NextCommit => 0,
        Why::Placement { .. } | Why::HeldOff { .. } => 1,
        Why::Quota { .. } => 2,
        Why::BehindHead { .. } => 3,
        Why::ExceedsMaxQuota { .. } => 4,
        Why::PlacementImpossible { .. } => 5,
        Why::NoQuotaForResource { .. } => 6,
        _ => 7,
    }
}
