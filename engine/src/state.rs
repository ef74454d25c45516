//! The engine's memory of the cluster, and the one place where a decision is made.
//!
//! Invariants: what was admitted counts as held, and charged, before anything else is decided. Whether a
//! gang may be admitted is derived from what is known, never remembered: a gang that is told as waiting
//! takes part as long as none of its pods holds anything. So updates may come twice, late and in any
//! order (S10), and asking again decides nothing again.
//!
//! Work follows change: an event costs what it touches, however many gangs wait. Gangs of a Team that ask for the same
//! are judged as one class; a class that was refused waits for what it lacks ([`waits`]) and is not looked at before
//! that changed; whose turn it is comes from queues that list Teams in order ([`rounds`]). Why a gang waits is
//! worked out when somebody asks ([`State::explain`]).

mod admit;
mod backfill;
mod circles;
mod class_line;
mod classes;
mod clock;
mod cohort;
mod elsewhere;
mod explain;
mod fair_turns;
mod holds;
mod hopes;
mod ids;
mod judge;
mod known_heads;
mod limits;
mod lines;
mod moments;
mod namespace_line;
mod namespaces;
mod preempt;
mod recovering;
mod release;
mod remedies;
mod repairs;
mod reservations;
mod restore;
mod rounds;
mod running;
mod settle;
mod shapes;
mod share_waits;
mod shrink;
mod size;
mod soonest;
mod strict;
mod team;
mod wait_queue;
mod waiting;
mod waits;
mod work;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use elsewhere::{Elsewhere, Nowhere};

use backfill::{Backfill, Looked};
use circles::Circles;
use hopes::Hopes;
use ids::{ClassId, GangId, Slab, TeamId};
use limits::Limits;
use moments::Moments;
use namespaces::Namespaces;
use preempt::InVain;
use recovering::Keeps;
use release::{Naming, Promises};
use reservations::Reservations;
use running::RunningGangs;
use shapes::Shapes;
use share_waits::ShareWaits;
use shrink::Shrinking;
use team::{Class, TeamEntry};
use waiting::{WaitingGang, WaitingRoom};
use waits::Waits;

use crate::{
    amount::{Amount, FlavorResource},
    decision::{Budget, CommitRoom, Decisions, ReasonsChanged},
    model::{Flavor, Gang, Hold, Reserved, Update},
    names::{FlavorName, GangUid, PodUid, TeamName, Timestamp},
    placement::{Cluster, Demand, NodeChange, Version},
    queue::Place,
    quota::{QuotaTree, Share, Sharing, charges::Charges},
};

/// Most gangs of one class that are named one by one when its reason changed; of more, the Team is named.
const CLASS_NAMED: usize = 16;

/// What a Team has and uses of one resource of one Flavor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The Flavor and resource.
    pub of: FlavorResource,
    /// Guaranteed to the Team.
    pub nominal: Amount,
    /// Charged to the Team, releasing holds included.
    pub used: Amount,
    /// Of `used`, what lies above `nominal`.
    pub borrowed: Amount,
    /// What the Team could get in addition now, borrowing included; nothing while its tree has a fault.
    pub available: Amount,
}

/// The engine's picture of the cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    limits: Limits,
    flavors: BTreeMap<FlavorName, Flavor>,
    cluster: Cluster,
    /// Moves when an answer about the empty cluster may change.
    inventory: u64,
    holds: BTreeMap<PodUid, Arc<Hold>>,
    /// Pods of gangs that were admitted here and whose holds were not told yet.
    provisional: BTreeMap<GangUid, BTreeSet<PodUid>>,
    charges: Charges,
    /// Moves with every charge.
    charge_version: u64,
    /// What counts for whoever is to be admitted.
    tree: QuotaTree,
    /// What is charged now, and what will be.
    moments: Moments,
    /// Whether limits changed since `tree` was built.
    tree_is_stale: bool,
    /// Moves whenever it is built anew.
    limits_version: u64,
    /// Teams that were told anew since.
    stale_teams: BTreeSet<TeamId>,
    inventory_changed: bool,
    /// Gangs that hold something, and what preemption goes by.
    running: RunningGangs,
    /// What is kept for gangs that others give way to.
    reservations: Reservations,
    /// What was kept by whoever decided before, by gang; taken up with the first decision that finds the gang waiting.
    recorded: BTreeMap<GangUid, Reserved>,
    /// What is kept for gangs that recover.
    keeps: Keeps,
    /// What is kept for gangs that waited long.
    backfill: Backfill,
    /// Who is to go since its Team uses more than it may.
    shrinking: Shrinking,
    /// What namespaces used, of Teams whose order goes by that.
    namespaces: Namespaces,
    /// Who went for whom.
    circles: Circles,
    /// Pods of gangs that give way, on nodes that are kept for nobody.
    going: BTreeSet<PodUid>,
    /// Classes that nobody could give way to, and after what they are asked again.
    hopes: Hopes,
    /// Of those, the ones that wait for another share to be as large as theirs would be.
    share_waits: ShareWaits,
    /// What the class that searched last waits for, if it was in vain.
    in_vain: Option<(ClassId, InVain)>,
    /// Pods whose holds only wait for the proof of release.
    releasing: BTreeSet<PodUid>,
    releasing_changed: bool,
    /// Those that were named last as ones to whom what is being released may be promised.
    promise_candidates: BTreeSet<GangId>,
    naming: Naming,
    /// Who was told since what is being released changed last that it waits for that.
    told_promises: RefCell<BTreeSet<GangUid>>,
    /// Who is to have what is being released, as of which change.
    promises: RefCell<Option<Promises>>,
    /// How often anything was told or decided.
    changes: u64,
    /// The latest time by the clock as it goes.
    latest: Option<Timestamp>,

    waiting: WaitingRoom,
    shapes: Shapes,
    classes: Slab<ClassId, Class>,
    teams: Slab<TeamId, TeamEntry>,
    team_ids: BTreeMap<TeamName, TeamId>,
    waits: Waits,
    /// Teams that had their turn in the round that is under way.
    served: BTreeSet<TeamId>,
    /// As of when every group was asked whether what came free helps it.
    groups_asked: Version,
    /// `StrictFifo` Teams of which some gang holds up others, or does not, by what the inventory is.
    strict_by_inventory: BTreeSet<TeamId>,
    /// Gangs that stand in line and are not judged, and of which it is not known where they hold up others.
    unsettled_aside: BTreeSet<GangId>,
    with_allocated_claims: BTreeSet<ClassId>,
    /// The kinds of devices by which requests were judged.
    kinds: u64,
    /// Gangs that no commit can carry, and the commit that was meant.
    too_large: BTreeMap<GangId, CommitRoom>,
    empty_commit: Option<CommitRoom>,

    /// Who may wait for another reason since the last decision.
    changed_gangs: BTreeSet<GangId>,
    changed_classes: BTreeSet<ClassId>,
    changed_teams: BTreeSet<TeamId>,
}

impl State {
    /// A state that has observed nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what was observed. Level-triggered: twice or late does no harm.
    pub fn apply(&mut self, update: Update) {
        self.changes += 1;
        match update {
            Update::Team(team) => {
                let team = self.limits.resolved_team(team);
                self.set_team(team);
            }
            Update::TeamGone(name) => self.remove_team(&name),
            Update::Cohort(cohort) => {
                let cohort = self.limits.resolved_cohort(cohort);
                self.tree_is_stale |= self.limits.set_cohort(cohort);
            }
            Update::CohortGone(name) => self.remove_cohort(&name),
            Update::Flavor(flavor) => {
                if self.flavors.get(&flavor.name) != Some(&flavor) {
                    self.flavors.insert(flavor.name.clone(), flavor);
                    self.judge_all_again();
                }
            }
            Update::FlavorGone(name) => {
                if self.flavors.remove(&name).is_some() {
                    self.judge_all_again();
                }
            }
            Update::Topology(topology) => {
                if self.limits.set_topology(&topology) {
                    self.cluster.set_topology(topology);
                    self.judge_all_again();
                }
            }
            Update::TopologyGone(name) => {
                if self.limits.topologies.remove(&name).is_some() {
                    self.cluster.remove_topology(&name);
                    self.judge_all_again();
                }
            }
            Update::Node(node) => {
                self.limits.automatic.note_node(&node);
                let name = node.name.clone();
                let change = self.set_node(node);
                if change == NodeChange::Inventory {
                    self.inventory_changed();
                    self.note_all_unseen_on(&name);
                }
                if change != NodeChange::None {
                    self.note_kept_on(&name);
                }
            }
            Update::NodeGone(name) => {
                self.limits.automatic.note_node_gone(&name);
                self.cluster.remove_node(&name);
                self.inventory_changed();
                self.note_kept_on(&name);
            }
            Update::Waiting(gang) => self.set_waiting(gang),
            Update::NotWaiting(uid) => {
                if let Some(id) = self.waiting.id(&uid) {
                    self.remove_waiting(id);
                }
            }
            Update::Running(running) => self.set_running(running),
            // One that recovers holds on to what it has, as one that runs.
            Update::NotRunning(uid) | Update::Ending(uid) if self.keeps.has(&uid) => {}
            Update::NotRunning(uid) => {
                self.note_other_order(&uid);
                self.running.remove(&uid);
                self.note_shrinking_of(&uid);
            }
            Update::Ending(uid) => self.set_ending(&uid),
            Update::Reserved(reserved) => {
                self.recorded.insert(reserved.gang.clone(), reserved);
            }
            Update::Hold(hold) => self.set_told_hold(hold),
            Update::HoldGone(pod) => self.remove_told_hold(&pod),
            Update::NamespaceUse(told) => self.namespaces.note_told(told),
            Update::Ends(gang, at) => self.running.set_end(gang, at),
            Update::Recovering(told) => self.set_recovering(told),
            Update::NotRecovering(gang) => self.set_not_recovering(&gang),
        }
    }

    /// Decides what can be decided now, within the budget. What it admits it counts as held from then on; asked
    /// again without new observations, it says nothing before [`Decisions::look_again_at`].
    ///
    /// What a call costs: it judges the heads that it admits, of which the budget bounds the number, and each class of gangs that
    /// something woke since and that does not fit, as a rule once. To judge one class, on all its Flavors, takes at most
    /// the steps of one decision, about two milliseconds; where these run out, the class counts as one of which it is not known
    /// whether it has a place, and it is told so. After [`Budget::looks_in_vain`] the call ends, and the next one goes on. So the sum
    /// is bounded by the budget and by what changed, never by how many wait.
    pub fn decide(&mut self, now: Timestamp, budget: &Budget) -> Decisions {
        let mut decisions = Decisions::default();
        self.changes += 1;
        self.reservations.forget_changes();
        self.note_time(now);
        self.refresh();
        self.sample_namespaces(now);
        self.settle_keeps(now);
        self.restore_reservations(now);
        if self.empty_commit.replace(budget.empty) != Some(budget.empty) {
            self.judge_too_large_again();
        }
        self.settle_backfill(now);
        self.admit_all(now, budget, &mut decisions);
        if !decisions.is_cut_short() {
            self.keep_places();
        }
        self.note_backfilled();
        self.settle_shrinking(now);
        if self.end_chosen_keeps() {
            self.settle_shrinking(now);
        }
        decisions.spared = self.reservations.take_spared();
        decisions
            .spared
            .retain(|victim| !self.running.is_released(victim));
        self.begin_namespaces(now);
        // Nothing is promised while somebody was not judged: it is told then.
        if decisions.is_cut_short() {
            self.releasing_changed |= !self.releasing.is_empty();
        } else {
            self.note_promises(now);
        }
        decisions.look_again_at = self.due_next(now);
        decisions.use_changed = self.namespaces.take_changed();
        decisions.reasons_changed = self.take_reasons_changed();
        decisions
    }

    /// Takes back an admission that could not be committed: what no hold was told for is held no longer,
    /// and the gang waits again, unless it was told that it does not.
    pub fn undo(&mut self, gang: &GangUid) {
        self.changes += 1;
        self.undo_use(gang);
        for pod in self.provisional.remove(gang).unwrap_or_default() {
            self.remove_hold(&pod);
        }
        self.keep_again(gang);
        self.keep_for_recovery_again(gang);
    }

    /// What a Team has and uses, by Flavor and resource: first what its quota names, in its order, then
    /// what it is charged besides. Empty for an unknown Team.
    pub fn usage(&self, team: &TeamName) -> Vec<Usage> {
        let Some(known) = self.limits.teams.get(team) else {
            return Vec::new();
        };
        let tree = self.current_tree();
        let used: BTreeMap<&FlavorResource, Amount> = self.charges.of_team(team).collect();
        let named: Vec<(FlavorResource, Amount)> = known
            .quota
            .iter()
            .flat_map(|(flavor, resources)| {
                resources.iter().map(|(resource, limit)| {
                    let of = FlavorResource {
                        flavor: flavor.clone(),
                        resource: resource.clone(),
                    };
                    (of, limit.nominal)
                })
            })
            .collect();
        let unnamed: Vec<(FlavorResource, Amount)> = used
            .keys()
            .filter(|of| !named.iter().any(|(known, _)| known == **of))
            .map(|of| ((*of).clone(), Amount::ZERO))
            .collect();
        named
            .into_iter()
            .chain(unnamed)
            .map(|(of, nominal)| {
                let used = used.get(&of).copied().unwrap_or_default();
                Usage {
                    nominal,
                    used,
                    borrowed: Amount(used.0.saturating_sub(nominal.0).max(0)),
                    available: tree.available(team, &of).unwrap_or_default(),
                    of,
                }
            })
            .collect()
    }

    /// Moves when a decision goes by other limits than the one before: what [`State::usage`] says of any Team may be another.
    pub fn limits_version(&self) -> u64 {
        self.limits_version
    }

    /// How much of what could be lent to it a Team borrows, where its tree shares fairly. `None` elsewhere, for an unknown
    /// Team, and for one that a cycle of Cohorts cuts off.
    pub fn fair_share(&self, team: &TeamName) -> Option<Share> {
        let tree = self.current_tree();
        let node = tree.node_of(team)?;
        match tree.sharing_of(node) {
            Sharing::ByPriority => None,
            Sharing::Fair(_) => tree.team_share(team),
        }
    }

    /// How many looks were taken at nodes and domains since the state was made, and for explanations at what costs as
    /// much: what decisions and explanations cost, in a measure that is the same on every machine.
    pub fn visited(&self) -> u64 {
        self.cluster.visited()
    }

    /// A gang as it was told as waiting last, if it was not told since that it waits no more.
    pub fn waiting(&self, gang: &GangUid) -> Option<&Gang> {
        Some(&self.waiting.get(self.waiting.id(gang)?)?.gang)
    }

    /// The gangs of a Team that wait, first to be served first; those to which others give way are among them.
    pub fn queue<'a>(&'a self, team: &TeamName) -> impl Iterator<Item = &'a Gang> + use<'a> {
        let entry = self.team_ids.get(team).and_then(|id| self.teams.get(*id));
        let waiting = entry.into_iter().flat_map(TeamEntry::waiting);
        waiting.filter_map(|id| Some(&self.waiting.get(id)?.gang))
    }

    fn set_waiting(&mut self, mut gang: Gang) {
        let known = self.waiting.id(&gang.uid);
        let mut kept = None;
        if let Some(id) = known
            && let Some(known) = self.waiting.get_mut(id)
        {
            // What was seen before is no news once it is known.
            gang.lacks_place_since = known.gang.lacks_place_since.or(gang.lacks_place_since);
            known.gang.lacks_place_since = gang.lacks_place_since;
            if known.gang == gang {
                return;
            }
            // Nothing that others give way for: what is kept for it is kept on, and its time goes on; unless that is on a node that it does not
            // get any more, where they would end in vain.
            if asks_for_the_same(&known.gang, &gang)
                && !self
                    .reservations
                    .is_on_any(&gang.uid, &gang.topology.closed)
            {
                kept = self.give_up_reservation(id);
            }
        }
        let before = known.and_then(|id| self.take_waiting(id));
        let demand = Demand::of_first(&gang, gang.least_pods());
        let pods = gang.pods.iter();
        let mut waiting = WaitingGang {
            shape: self.shapes.take(&demand, &gang.topology),
            demand,
            team: self.team_id(&gang.team),
            namespace: gang.namespace(),
            place: Place::of(&gang),
            class: None,
            lacked_place_since: None,
            looked: Looked::default(),
            pods_that_hold: pods.filter(|pod| self.holds.contains_key(&pod.uid)).count(),
            held_claims: self.held_claims(&gang),
            earlier_pods: self.earlier_pods(&gang),
            is_reserved_for: false,
            was_charged_ahead: false,
            has_again: None,
            too_large: false,
            gang,
        };
        let (holds, team) = (waiting.pods_that_hold > 0, waiting.team);
        let is_known = before.is_some();
        let before = before.filter(|before| waiting.asks_as_before(before));
        if let Some(before) = &before {
            waiting.lacked_place_since = before.lacked_place_since;
            waiting.looked = before.looked;
        } else if is_known && self.backfill.has_settled() {
            // What was seen before it asked for this says nothing.
            waiting.gang.lacks_place_since = Some(self.backfill.now());
        }
        let uid = waiting.gang.uid.clone();
        let id = self.waiting.enter(waiting);
        if let Some(entry) = self.teams.get_mut(team) {
            entry.gangs += 1;
        }
        if !holds {
            self.line_up(id);
            if let Some(kept) = kept {
                self.reserve(id, kept.never_judged());
            }
            self.park(id);
        }
        // It is admitted, by whomever, or waits for something else now: nothing is kept for it beside what it holds.
        if holds || before.is_none() {
            self.end_head_reservation(&uid, holds);
        } else {
            self.keep_still(id);
        }
    }

    fn remove_waiting(&mut self, id: GangId) {
        if let Some(waiting) = self.waiting.get(id) {
            let uid = waiting.gang.uid.clone();
            self.end_head_reservation(&uid, false);
        }
        self.take_waiting(id);
    }

    /// A gang is not told as waiting any more, or otherwise than before: a place that is kept for it is left to the caller.
    fn take_waiting(&mut self, id: GangId) -> Option<WaitingGang> {
        self.give_up_reservation(id);
        self.unpark(id);
        let led = self.drop_out(id);
        self.ask_next(led);
        self.too_large.remove(&id);
        let waiting = self.waiting.leave(id)?;
        // It may be undone until its holds are told.
        if !self.provisional.contains_key(&waiting.gang.uid) {
            self.reservations.note_committed(&waiting.gang.uid);
            self.keeps.note_committed(&waiting.gang.uid);
        }
        self.shapes.give_back(waiting.shape);
        if let Some(entry) = self.teams.get_mut(waiting.team) {
            entry.gangs -= 1;
        }
        self.forget_team_if_unused(waiting.team);
        Some(waiting)
    }

    /// What may be larger than a commit is another question with another commit.
    fn judge_too_large_again(&mut self) {
        for id in std::mem::take(&mut self.too_large).into_keys() {
            if let Some(waiting) = self.waiting.get_mut(id) {
                waiting.too_large = false;
                self.changed_gangs.insert(id);
                self.seat(id);
            }
        }
    }

    fn take_reasons_changed(&mut self) -> ReasonsChanged {
        let mut gangs = std::mem::take(&mut self.changed_gangs);
        let mut teams = std::mem::take(&mut self.changed_teams);
        for id in std::mem::take(&mut self.changed_classes) {
            let Some(class) = self.classes.get(id) else {
                continue;
            };
            if class.line.len() > CLASS_NAMED {
                teams.insert(class.team);
            } else {
                gangs.extend(class.line.gangs());
            }
        }
        let uids = gangs.into_iter().filter_map(|id| {
            let waiting = self.waiting.get(id)?;
            (waiting.pods_that_hold == 0 && !teams.contains(&waiting.team))
                .then(|| waiting.gang.uid.clone())
        });
        let mut gangs: Vec<GangUid> = uids.collect();
        gangs.sort_unstable();
        let names = teams.iter().filter_map(|id| self.teams.get(*id));
        let mut teams: Vec<TeamName> = names.map(|team| team.name.clone()).collect();
        teams.sort_unstable();
        ReasonsChanged { gangs, teams }
    }
}

/// Whether a gang asks for the same as before, in the same attempt and by the same right. Which nodes it would rather not have, its
/// age, and for how long it would run, are nothing to those that give way to it.
fn asks_for_the_same(before: &Gang, after: &Gang) -> bool {
    before.attempt == after.attempt
        && before.team == after.team
        && before.priority == after.priority
        && before.may_borrow == after.may_borrow
        && before.topology.required == after.topology.required
        && before.first_pods() == after.first_pods()
}
