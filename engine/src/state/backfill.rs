//! A place is kept for a large gang that waits at the head, and others run there meanwhile as long as they are gone in time.
//!
//! Without that, small gangs start wherever a few GPUs come free, and those that a large gang needs are never free together.
//! In the words of batch schedulers: the head has a *reservation*, and what fits beside it is *backfilled*. It has nothing to do
//! with what is kept for preemptors ([`super::reservations`]): nobody gives way here, and no quota is charged ahead.
//!
//! * **Who.** A gang of at least two devices that has quota and lacks a place, [`HEAD_WAITS_SECONDS`] after it did first. Of a
//!   Team the first in its order. A Flavor keeps a place for one gang at a time, so what stands idle never adds up to more than
//!   one gang's; Teams take turns, the one whose turn is longest ago first, so a place that is kept is never the right of one Team.
//! * **Where.** On the nodes that are free soonest ([`super::soonest`]).
//! * **Who is let in** ([`State::may_enter`]): the gang itself; who goes before it, by its tier or in its own Team's line; who is
//!   gone by the time that the place is free, by the most that it runs; and whom the gang may preempt in its own Team by then. To everybody
//!   else these nodes are full ([`crate::placement::View`]).
//! * **At what cost.** What stands idle there is counted, in GPU-seconds. Where it is known when the place is free, and the Team has the
//!   quota of its own, that is all: it ends by itself. Where it is not known, or quota is borrowed, no more stands idle than the gang's own GPUs for
//!   [`IDLE_SECONDS`]: then the place is given up, and the Flavor keeps none for as long as it had.
//!   A gang that does not end in time makes a time unknown that was known. It counts what is idle, whether or not somebody
//!   else would use it: that is simple, and errs on the side of those who are kept out.
//! * **How long.** Until the gang is admitted, wherever, or others give way to it. A place that is given up for any other reason,
//!   be it that the gang was withdrawn, is not kept for another one before as much time has passed.
//!
//! Time is told with each decision, and the latest that was told counts: a clock that goes back stands still. After a restart
//! everything here is found again from what is told: for how long a gang lacks a place comes with it
//! ([`crate::Gang::lacks_place_since`]), and until everybody was judged once a place is kept at once, so that those who are judged
//! later do not take it. What stood idle before is not known: the account begins anew.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    State,
    ids::{ClassId, GangId, TeamId},
    team::Refusing,
    waiting::WaitingGang,
    waits::Group,
    work::Work,
};
use crate::{
    amount::Amount,
    decision::{HeadReservation, Why},
    names::{FlavorName, GangUid, NodeName, TeamName, Timestamp},
    placement::{Effort, Fits, Refusal, View, fits, may_fit_since},
    queue::Place,
    quota::Rank,
};

/// For how many seconds a gang lacks a place before one is kept for it.
pub(super) const HEAD_WAITS_SECONDS: i64 = 600;

/// Where it is not known when a place is free, its gang's own GPUs may stand idle for so many seconds.
pub(super) const IDLE_SECONDS: i64 = 600;

/// An end that is further away than a day says as little as none.
pub(super) const FORESEEABLE_SECONDS: i64 = 86_400;

/// For how many heads a place is looked for at most before everybody was judged once.
const MOST_LOOKED_FOR: usize = 8;

/// How many devices a gang needs at least for a place to be kept for it: for one device, whatever comes free is enough.
const FEWEST_DEVICES: usize = 2;

/// What is kept for one gang.
#[derive(Clone, Debug)]
struct Kept {
    told: HeadReservation,
    team: TeamId,
    team_name: TeamName,
    place: Place,
    rank: Rank,
    /// What stands idle on each node now.
    idle_now: BTreeMap<NodeName, i128>,
    counted_at: Timestamp,
    /// Whether the gang borrows nothing, and so has a right to preempt, as of the last time that nobody was awake any more.
    stays_within_nominal: bool,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Backfill {
    /// The latest time that was told.
    now: Timestamp,
    kept: BTreeMap<FlavorName, Kept>,
    /// Until when a Flavor keeps no place.
    rests: BTreeMap<FlavorName, Timestamp>,
    /// When it was the turn of a Team last: a number that grows.
    turns: BTreeMap<(FlavorName, TeamName), u64>,
    turns_given: u64,
    /// Classes that lack a place only, and on which Flavors.
    lacking: BTreeMap<ClassId, BTreeSet<FlavorName>>,
    /// Those that do not long enough yet, by when they do.
    due: BTreeSet<(Timestamp, ClassId)>,
    due_of: BTreeMap<ClassId, Timestamp>,
    /// The others.
    heads: BTreeMap<FlavorName, BTreeMap<TeamId, BTreeSet<(Place, ClassId)>>>,
    /// Whether some are left that no place was looked for.
    is_more_to_look_for: bool,
    /// Whether everybody was judged once. Before, for so many heads a place was looked for.
    has_settled: bool,
    looked_for: usize,
    /// Whether a place was given up since somebody asked.
    gave_up_a_place: bool,
}

/// Who a place may be kept for, and where that is.
pub(super) struct Found {
    pub(super) nodes: BTreeSet<NodeName>,
    pub(super) domain: Vec<String>,
    /// When it is free, if that is known.
    pub(super) starts_at: Option<Timestamp>,
    /// Thousandths of a GPU that the gang would get there.
    pub(super) gpus: Amount,
}

impl Kept {
    /// Counts what stood idle until now.
    fn count(&mut self, now: Timestamp) {
        let seconds = i128::from(now.0) - i128::from(self.counted_at.0);
        let idle: i128 = self.idle_now.values().sum();
        self.told.idle_gpu_seconds += idle * seconds.max(0);
        self.counted_at = now;
        if self.told.starts_at.is_some_and(|at| at <= now) {
            // Somebody did not end in time.
            self.told.starts_at = None;
            self.limit(self.told.idle_gpu_seconds);
        }
    }

    /// No more may stand idle than the gang's own, for a while.
    fn limit(&mut self, from: i128) {
        let own = i128::from(self.told.gpus.0) * i128::from(IDLE_SECONDS);
        let most = self.told.most_idle_gpu_seconds.unwrap_or(from + own);
        self.told.most_idle_gpu_seconds = Some(most);
    }

    fn is_used_up(&self) -> bool {
        let most = self.told.most_idle_gpu_seconds;
        most.is_some_and(|most| self.told.idle_gpu_seconds >= most)
    }

    /// When something is due by time: it is used up, or should be free.
    fn due_at(&self) -> Option<Timestamp> {
        let idle: i128 = self.idle_now.values().sum();
        let used_up = self.told.most_idle_gpu_seconds.filter(|_| idle > 0);
        let used_up = used_up.map(|most| {
            let left = (most - self.told.idle_gpu_seconds).max(1);
            let seconds = (left + idle - 1) / idle;
            after(self.counted_at, i64::try_from(seconds).unwrap_or(i64::MAX))
        });
        [used_up, self.told.starts_at].into_iter().flatten().min()
    }
}

impl Backfill {
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// A class does not lack a place any more, or is about to be judged.
    pub(super) fn forget(&mut self, class: ClassId, team: TeamId, place: Option<&Place>) {
        let Some(flavors) = self.lacking.remove(&class) else {
            return;
        };
        if let Some(at) = self.due_of.remove(&class) {
            self.due.remove(&(at, class));
        }
        for flavor in flavors {
            self.leave(&flavor, team, class, place);
        }
    }

    /// A class is to be thought of again then.
    fn put_off(&mut self, class: ClassId, at: Timestamp) {
        if let Some(known) = self.due_of.insert(class, at) {
            self.due.remove(&(known, class));
        }
        self.due.insert((at, class));
    }

    /// There is no such Team any more.
    pub(super) fn forget_team(&mut self, name: &TeamName) {
        self.turns.retain(|(_, team), _| team != name);
    }

    fn leave(&mut self, flavor: &FlavorName, team: TeamId, class: ClassId, place: Option<&Place>) {
        let Some(teams) = self.heads.get_mut(flavor) else {
            return;
        };
        if let Some(classes) = teams.get_mut(&team) {
            if let Some(place) = place {
                classes.remove(&(place.clone(), class));
            } else {
                classes.retain(|(_, other)| *other != class);
            }
            if classes.is_empty() {
                teams.remove(&team);
            }
        }
        if teams.is_empty() {
            self.heads.remove(flavor);
        }
    }

    /// The first gang of a class is another one, or stands elsewhere.
    pub(super) fn move_class(
        &mut self,
        class: ClassId,
        team: TeamId,
        (before, after): (&Place, &Place),
    ) {
        let flavors = self.lacking.get(&class).into_iter().flatten();
        for flavor in flavors {
            let teams = self.heads.get_mut(flavor);
            if let Some(classes) = teams.and_then(|teams| teams.get_mut(&team))
                && classes.remove(&(before.clone(), class))
            {
                classes.insert((after.clone(), class));
            }
        }
    }

    /// The nodes that are kept, by what is told of them.
    pub(super) fn told(&self) -> impl Iterator<Item = &HeadReservation> {
        self.kept.values().map(|kept| &kept.told)
    }

    /// When something is due by time alone.
    pub(super) fn due_next(&self) -> Option<Timestamp> {
        let due = self.due.first().map(|(at, _)| *at);
        let kept = self.kept.values().filter_map(Kept::due_at).min();
        let waited_for = self.rests.iter();
        let waited_for = waited_for.filter(|(flavor, _)| self.heads.contains_key(*flavor));
        let rested = waited_for.map(|(_, until)| *until).min();
        let soon = self.is_more_to_look_for.then(|| after(self.now, 1));
        [due, kept, rested, soon].into_iter().flatten().min()
    }
}

/// So many seconds later.
pub(super) fn after(at: Timestamp, seconds: i64) -> Timestamp {
    Timestamp(at.0.saturating_add(seconds))
}

/// The same where the seconds come from outside.
pub(super) fn end_after(at: Timestamp, seconds: u64) -> Timestamp {
    after(at, i64::try_from(seconds).unwrap_or(i64::MAX))
}

impl State {
    /// The places that are kept for gangs that waited long, by Flavor.
    pub fn head_reservations(&self) -> impl Iterator<Item = &HeadReservation> {
        self.backfill.told()
    }

    /// A class was refused: whether it lacks a place only, and since when, decides whether one is kept for it one day.
    pub(super) fn note_lacks_place(&mut self, id: ClassId, refusals: &[Refusing]) {
        let Some(class) = self.classes.get(id) else {
            return;
        };
        let gang = class.line.values().next();
        let waiting = gang.and_then(|gang| self.waiting.get(*gang));
        let Some((waiting, entry)) = waiting.zip(self.teams.get(class.team)) else {
            return;
        };
        if waiting.demand.open_devices() < FEWEST_DEVICES {
            return;
        }
        let flavors = entry.assignments.iter().zip(refusals);
        let flavors = flavors
            .filter(|(_, refusing)| matches!(refusing, Refusing::NoPlace { gave_up: false, .. }));
        let flavors: BTreeSet<FlavorName> = flavors
            .map(|(assignment, _)| assignment.flavor.clone())
            .collect();
        if flavors.is_empty() {
            return;
        }
        let now = self.backfill.now;
        if let Some(class) = self.classes.get_mut(id) {
            class.lacks_place_since.get_or_insert(now);
        }
        self.backfill.lacking.insert(id, flavors);
        self.backfill.put_off(id, self.waits_long_at(id));
        // Whoever led before kept a place for it, perhaps: those who are judged after it do not get that first.
        if !self.backfill.has_settled && self.backfill.looked_for < MOST_LOOKED_FOR {
            let kept = self.backfill.kept.len();
            self.look_for_places();
            let is_kept = self.backfill.kept.len() > kept;
            let has_looked = is_kept || self.backfill.is_more_to_look_for;
            self.backfill.looked_for += usize::from(has_looked);
        }
    }

    /// When the first gang of a class has lacked a place for long.
    fn waits_long_at(&self, id: ClassId) -> Timestamp {
        let class = self.classes.get(id);
        let gang = class.and_then(|class| class.line.values().next());
        let waiting = gang.and_then(|gang| self.waiting.get(*gang));
        let Some((class, waiting)) = class.zip(waiting) else {
            return self.backfill.now;
        };
        // Whoever came later was not refused before it came.
        let refused = class.lacks_place_since.unwrap_or(self.backfill.now);
        let seen = refused.max(waiting.gang.queued_at);
        let since = waiting
            .gang
            .lacks_place_since
            .map_or(seen, |told| told.min(seen));
        after(since, HEAD_WAITS_SECONDS)
    }

    /// Takes in the time and what happened where places are kept, and gives those up that are not to be kept any longer.
    pub(super) fn settle_backfill(&mut self, now: Timestamp) {
        let now = now.max(self.backfill.now);
        self.backfill.now = now;
        for kept in self.backfill.kept.values_mut() {
            kept.count(now);
        }
        let mut over = self.note_changes_where_kept();
        let kept = self.backfill.kept.values();
        let used_up = kept.filter(|kept| kept.is_used_up());
        over.extend(used_up.map(|kept| kept.told.gang.clone()));
        for gang in over {
            self.end_head_reservation(&gang, false);
        }
        let rests = &mut self.backfill.rests;
        rests.retain(|_, until| *until > now);
        self.backfill.gave_up_a_place = false;
    }

    /// Nobody is awake any more: gives up the places of those who have no quota by now, and lets in whoever may be preempted by those
    /// who have it without borrowing. Whether that, or a place that was given up meanwhile, may help anybody: nothing else would
    /// wake them.
    pub(super) fn settle_places(&mut self) -> bool {
        let flavors: Vec<FlavorName> = self.backfill.kept.keys().cloned().collect();
        let mut lets_in = false;
        for flavor in flavors {
            let level = self.backfill.kept.get(&flavor).and_then(|kept| {
                let id = self.waiting.id(&kept.told.gang)?;
                self.borrow_level_on(id, &flavor)
            });
            let Some(kept) = self.backfill.kept.get_mut(&flavor) else {
                continue;
            };
            let Some(level) = level else {
                let gang = kept.told.gang.clone();
                self.end_head_reservation(&gang, false);
                continue;
            };
            let within = level == 0;
            if !within {
                kept.limit(kept.told.idle_gpu_seconds);
            }
            if within && !kept.stays_within_nominal {
                self.cluster.note_let_in(&kept.told.nodes);
                lets_in = true;
            }
            kept.stays_within_nominal = within;
        }
        std::mem::take(&mut self.backfill.gave_up_a_place) || lets_in
    }

    /// Takes in what changed on nodes that are held back; for whom a place is kept on a node that is not there any more, or is
    /// blocked.
    fn note_changes_where_kept(&mut self) -> Vec<GangUid> {
        let changes = self.cluster.take_held_back_changes();
        let mut broken = Vec::new();
        if changes.is_empty() {
            return broken;
        }
        let mut all = std::mem::take(&mut self.backfill.kept);
        for kept in all.values_mut() {
            let mut is_broken = false;
            for node in &changes {
                if kept.told.nodes.contains(node) {
                    kept.idle_now.insert(node.clone(), self.idle_on(node));
                    let slot = self.cluster.slot_of(node);
                    let record = slot.and_then(|slot| self.cluster.record(slot));
                    is_broken |= record.is_none_or(|record| record.node.block.is_some());
                }
            }
            if is_broken {
                broken.push(kept.told.gang.clone());
            }
        }
        self.backfill.kept = all;
        broken
    }

    /// What stands idle on a node that is held back, in thousandths of a GPU.
    fn idle_on(&self, node: &NodeName) -> i128 {
        let slot = self.cluster.slot_of(node);
        let record = slot.and_then(|slot| self.cluster.record(slot));
        let Some((record, free)) = record.zip(self.cluster.free_on_held_back(node)) else {
            return 0;
        };
        let charges = free.free.iter().filter_map(|at| record.kind.charge_of(at));
        charges.map(|charge| i128::from(charge.gpus.0)).sum()
    }

    /// How far up the quota tree a gang reaches at least that is to be judged, if it has quota for a Flavor.
    fn borrow_level_on(&self, id: GangId, flavor: &FlavorName) -> Option<usize> {
        let waiting = self.waiting.get(id)?;
        waiting.class?;
        let entry = self.teams.get(waiting.team)?;
        let mut all = entry.assignments.iter();
        let at = all.position(|assignment| assignment.flavor == *flavor)?;
        let (node, assignments) = (Some(entry.node?), &entry.assignments);
        let candidate = self.candidate(waiting.shape, id, node, assignments, at)?;
        self.may_be_charged(&candidate, &self.tree).ok()
    }

    /// A place is kept for a gang no longer. Unless it was `served`, its Flavor keeps none for as long as it was kept.
    pub(super) fn end_head_reservation(&mut self, gang: &GangUid, served: bool) {
        let mut kept = self.backfill.kept.iter();
        let of_gang = kept.find(|(_, kept)| kept.told.gang == *gang);
        let Some(flavor) = of_gang.map(|(flavor, _)| flavor.clone()) else {
            return;
        };
        let Some(kept) = self.backfill.kept.remove(&flavor) else {
            return;
        };
        let now = self.backfill.now;
        if !served {
            let stood = now.0.saturating_sub(kept.told.since.0).max(1);
            self.backfill
                .rests
                .insert(flavor.clone(), after(now, stood));
        }
        for node in &kept.told.nodes {
            self.cluster.end_hold_back(node);
        }
        self.backfill.gave_up_a_place = true;
        // Whoever runs there can be asked to give way again.
        self.note_rights();
        self.note_reasons_on(&flavor);
    }

    /// Who waits for a place on a Flavor may be told something else about it.
    fn note_reasons_on(&mut self, flavor: &FlavorName) {
        let groups = self.waits.groups();
        let groups = groups.filter(|(_, group)| group.flavor() == Some(flavor));
        let teams: BTreeSet<TeamId> = groups.flat_map(|(_, group)| group.teams()).collect();
        self.changed_teams.extend(teams);
    }

    /// Nobody fits any more who is awake: keeps places for those who lack one for long enough. It looks for one place in each call.
    pub(super) fn keep_places(&mut self) {
        self.backfill.has_settled = true;
        self.look_for_places();
    }

    fn look_for_places(&mut self) {
        let now = self.backfill.now;
        while let Some((at, class)) = self.backfill.due.first().copied()
            && at <= now
        {
            self.backfill.due.pop_first();
            self.backfill.due_of.remove(&class);
            let Some((team, place)) = self.classes.get(class).and_then(|class| {
                let place = class.line.keys().next()?;
                Some((class.team, place.clone()))
            }) else {
                continue;
            };
            for flavor in self
                .backfill
                .lacking
                .get(&class)
                .cloned()
                .unwrap_or_default()
            {
                let teams = self.backfill.heads.entry(flavor).or_default();
                let classes = teams.entry(team).or_default();
                classes.insert((place.clone(), class));
            }
        }
        self.backfill.is_more_to_look_for = false;
        let mut has_looked = false;
        let flavors: Vec<FlavorName> = self.backfill.heads.keys().cloned().collect();
        for flavor in flavors {
            let is_taken = self.backfill.kept.contains_key(&flavor)
                || self.backfill.rests.contains_key(&flavor);
            if is_taken {
                continue;
            }
            if has_looked {
                self.backfill.is_more_to_look_for = true;
                return;
            }
            has_looked = self.keep_place_on(&flavor);
        }
    }

    /// Keeps a place of a Flavor for whose turn it is; whether it looked for one.
    fn keep_place_on(&mut self, flavor: &FlavorName) -> bool {
        let now = self.backfill.now;
        while let Some((team, class)) = self.head_on(flavor) {
            let line = self.classes.get(class).map(|class| &class.line);
            let first = line.and_then(|line| line.iter().next());
            let Some((place, id)) = first.map(|(place, id)| (place.clone(), *id)) else {
                return false;
            };
            let long_at = self.waits_long_at(class);
            let level = self.borrow_level_on(id, flavor).filter(|_| long_at <= now);
            let found = level.and_then(|_| self.soonest(id, flavor));
            if let Some((level, found)) = level.zip(found) {
                self.keep_place(id, flavor, found, level);
                return true;
            }
            // It is looked for again later, and for others meanwhile.
            self.backfill.leave(flavor, team, class, Some(&place));
            let later = after(now, HEAD_WAITS_SECONDS);
            let again_at = if long_at > now { long_at } else { later };
            self.backfill.put_off(class, again_at);
            if level.is_some() {
                self.backfill.is_more_to_look_for = self.backfill.heads.contains_key(flavor);
                return true;
            }
        }
        false
    }

    fn keep_place(&mut self, id: GangId, flavor: &FlavorName, found: Found, level: usize) {
        let now = self.backfill.now;
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let told = HeadReservation {
            gang: waiting.gang.uid.clone(),
            gang_name: waiting.gang.name.clone(),
            flavor: flavor.clone(),
            domain: found.domain,
            nodes: found.nodes,
            since: now,
            starts_at: found.starts_at,
            gpus: found.gpus,
            idle_gpu_seconds: 0,
            most_idle_gpu_seconds: None,
        };
        let mut kept = Kept {
            team: waiting.team,
            team_name: waiting.gang.team.clone(),
            place: waiting.place.clone(),
            rank: rank(waiting),
            idle_now: BTreeMap::new(),
            counted_at: now,
            stays_within_nominal: level == 0,
            told,
        };
        if level > 0 || kept.told.starts_at.is_none() {
            kept.limit(0);
        }
        self.backfill.turns_given += 1;
        let turn = (flavor.clone(), kept.team_name.clone());
        self.backfill.turns.insert(turn, self.backfill.turns_given);
        self.changed_gangs.insert(id);
        for node in &kept.told.nodes {
            self.cluster.hold_back(node);
            kept.idle_now.insert(node.clone(), self.idle_on(node));
        }
        self.backfill.kept.insert(flavor.clone(), kept);
        self.note_reasons_on(flavor);
    }

    /// Whose turn it is to have a place kept: the first of the Team that had none for longest.
    fn head_on(&self, flavor: &FlavorName) -> Option<(TeamId, ClassId)> {
        let teams = self.backfill.heads.get(flavor)?;
        self.cluster.note_visits(teams.len() as u64);
        let is_kept_for = |class: ClassId| {
            let gang = self
                .classes
                .get(class)
                .and_then(|class| class.line.values().next());
            let waiting = gang.and_then(|gang| self.waiting.get(*gang));
            waiting.is_some_and(|waiting| {
                let mut told = self.backfill.told();
                told.any(|told| told.gang == waiting.gang.uid)
            })
        };
        let heads = teams.iter().filter_map(|(team, classes)| {
            let mut classes = classes.iter();
            let (place, class) = classes.find(|(_, class)| !is_kept_for(*class))?;
            let key = (flavor.clone(), self.teams.get(*team)?.name.clone());
            let turn = self.backfill.turns.get(&key).copied().unwrap_or(0);
            Some(((turn, place), (*team, *class)))
        });
        Some(heads.min()?.1)
    }

    /// Whether a gang may be planned where a place is kept for another one, or for itself.
    fn may_enter(&self, kept: &Kept, waiting: &WaitingGang) -> bool {
        let gang = &waiting.gang;
        if gang.uid == kept.told.gang || gang.priority > kept.rank.priority {
            return true;
        }
        let now = self.backfill.now;
        let by = |seconds: Option<u64>| {
            let ends = seconds.map(|seconds| end_after(now, seconds));
            ends.zip(kept.told.starts_at)
                .is_some_and(|(end, starts)| end <= starts)
        };
        if by(gang.run_time.max_seconds) {
            return true;
        }
        if waiting.team != kept.team {
            return false;
        }
        if waiting.place < kept.place {
            return true;
        }
        let node = self.teams.get(kept.team).and_then(|entry| entry.node);
        let policy = node.map(|node| self.tree.policy_of(node));
        let may_preempt = policy.is_some_and(|it| it.may_preempt(kept.rank, rank(waiting), true));
        let after = gang.run_time.preemptable_after_seconds;
        may_preempt && kept.stays_within_nominal && (after == Some(0) || by(after))
    }

    /// The nodes that are kept and on which a gang may be planned all the same.
    pub(super) fn opened_for(&self, waiting: &WaitingGang) -> BTreeSet<NodeName> {
        let kept = self.backfill.kept.values();
        let open = kept.filter(|kept| self.may_enter(kept, waiting));
        let nodes = open.flat_map(|kept| &kept.told.nodes);
        nodes.cloned().collect()
    }

    /// What a gang may use that may be planned where places are kept; `None` if it is what all may use.
    pub(super) fn view_for(&self, waiting: &WaitingGang) -> Option<View> {
        if self.backfill.kept.is_empty() {
            return None;
        }
        let opened = self.opened_for(waiting);
        (!opened.is_empty()).then(|| self.cluster.opened(&opened, &BTreeMap::new()))
    }

    /// Whether what came free since a group closed last, together with what is free where places are kept, may help some member.
    pub(super) fn may_backfill(&self, group: &Group, work: &mut Work) -> bool {
        let now = self.backfill.now;
        let may_enter = |kept: &&Kept| {
            let ends = group
                .shortest_seconds()
                .map(|seconds| end_after(now, seconds));
            let in_time = ends
                .zip(kept.told.starts_at)
                .is_some_and(|(end, starts)| end <= starts);
            in_time || group.highest > kept.rank.priority || group.has_team(kept.team)
        };
        let kept = self.backfill.kept.values().filter(may_enter);
        let nodes: BTreeSet<NodeName> = kept.flat_map(|kept| &kept.told.nodes).cloned().collect();
        let (cluster, request) = (&self.cluster, group.request());
        if nodes.is_empty() || !cluster.has_changed_since(group.closed.as_of) {
            return false;
        }
        let view = cluster.opened(&nodes, &BTreeMap::new());
        may_fit_since(cluster, &view, &request, group.closed)
            && work.may_help(cluster, |effort: &mut Effort| {
                fits(cluster, &view, &request, effort) != Fits::No
            })
    }

    /// Whether what came free since helps a gang that may be planned where places are kept.
    pub(super) fn may_help_inside(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        since: Refusal,
    ) -> bool {
        if !self.cluster.has_changed_since(since.as_of) {
            return false;
        }
        let flavor = flavor.and_then(|name| self.flavors.get(name));
        self.view_for(waiting).is_some_and(|view| {
            let request = super::judge::request(waiting, flavor);
            may_fit_since(&self.cluster, &view, &request, since)
        })
    }

    /// What is idle from now on: whoever was admitted where places are kept runs there.
    pub(super) fn note_backfilled(&mut self) {
        self.note_changes_where_kept();
    }

    /// That a place is kept for a gang, if it is.
    pub(super) fn why_head(&self, gang: &GangUid) -> Option<Why> {
        let mut all = self.backfill.kept.values();
        let kept = all.find(|kept| kept.told.gang == *gang)?;
        let mut kept = kept.clone();
        kept.count(self.backfill.now);
        Some(Why::PlaceKept {
            reservation: kept.told,
            now: self.backfill.now,
        })
    }

    /// That a gang would have a place if none were kept for others there.
    pub(super) fn why_held_off(
        &self,
        waiting: &WaitingGang,
        flavor: Option<&FlavorName>,
        effort: &mut Effort,
    ) -> Option<Why> {
        if self.backfill.kept.is_empty() {
            return None;
        }
        let all = self.backfill.told().flat_map(|told| &told.nodes);
        let view = self
            .cluster
            .opened(&all.cloned().collect(), &BTreeMap::new());
        let flavor = flavor.and_then(|name| self.flavors.get(name));
        let request = super::judge::request(waiting, flavor);
        if fits(&self.cluster, &view, &request, effort) != Fits::Yes {
            return None;
        }
        let shut = self.backfill.kept.values();
        let first = shut
            .filter(|kept| !self.may_enter(kept, waiting))
            .max_by_key(|kept| {
                // The one that would let it in, rather than another.
                (
                    flavor.map(|flavor| &flavor.name) == Some(&kept.told.flavor),
                    kept.told.starts_at,
                )
            })?;
        let now = self.backfill.now;
        Some(Why::HeldOff {
            behind: first.told.gang_name.clone(),
            seconds: first
                .told
                .starts_at
                .map(|at| at.0.saturating_sub(now.0))
                .and_then(|seconds| u64::try_from(seconds).ok()),
        })
    }
}

fn rank(waiting: &WaitingGang) -> Rank {
    Rank {
        priority: waiting.gang.priority,
        queued_at: waiting.gang.queued_at,
    }
}
