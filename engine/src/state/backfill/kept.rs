//! What is kept for whom: from when it is kept until it is given up, and what stands idle meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use super::{FORESEEABLE_SECONDS, Found, IDLE_SECONDS, STANDS_STILL_SECONDS, after, rank};
use crate::{
    decision::{HeadReservation, Why},
    names::{FlavorName, GangUid, NamespaceName, NodeName, Timestamp},
    placement::units_if_empty,
    queue::{Place, Standing},
    quota::Rank,
    state::{
        State,
        ids::{GangId, TeamId},
        judge::request,
        team::TeamEntry,
    },
};

/// What a node is good for, whatever runs there.
#[derive(Clone, Debug)]
pub(super) struct Worth {
    /// Where it stands.
    path: Option<Vec<String>>,
    /// How many units of each class of the gang it holds if it is empty.
    units: Vec<usize>,
}

impl Worth {
    /// Whether it is good for as much as before.
    fn covers(&self, before: &Self) -> bool {
        let mut units = self.units.iter().zip(&before.units);
        self.path == before.path
            && self.units.len() == before.units.len()
            && units.all(|(now, before)| now >= before)
    }
}

/// What is kept for one gang.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) told: HeadReservation,
    pub(super) team: TeamId,
    pub(super) namespace: NamespaceName,
    pub(super) place: Place,
    pub(super) rank: Rank,
    /// What stands idle on each node now.
    pub(super) idle_now: BTreeMap<NodeName, i128>,
    /// What each node was good for when the place was found.
    worth: BTreeMap<NodeName, Worth>,
    /// The most that stood idle there at once, and since when: more came free at that time.
    most_idle: (i128, Timestamp),
    pub(super) counted_at: Timestamp,
    /// Whether the gang borrows nothing, and so has a right to preempt, as of the last time that nobody was awake any more.
    pub(super) stays_within_nominal: bool,
}

impl Kept {
    /// Where the gang stands in the line of its Team, which is this one.
    pub(super) fn standing(&self, team: &TeamEntry) -> Standing {
        Standing::new(team.used_by(&self.namespace), self.place.clone())
    }

    /// Counts what stood idle until now.
    fn count(&mut self, now: Timestamp) {
        let seconds = i128::from(now.0) - i128::from(self.counted_at.0);
        self.told.idle_gpu_seconds += self.idle() * seconds.max(0);
        self.counted_at = now;
        if self.told.starts_at.is_some_and(|at| at <= now) {
            // Somebody did not end in time.
            self.told.starts_at = None;
            self.limit(self.told.idle_gpu_seconds);
            self.most_idle.1 = now;
        }
    }

    /// What stands idle now.
    fn idle(&self) -> i128 {
        self.idle_now.values().sum()
    }

    /// What stands idle on some nodes is another amount.
    fn note_idle(&mut self) {
        let idle = self.idle();
        if idle > self.most_idle.0 {
            self.most_idle = (idle, self.counted_at);
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

    /// Until when it is kept though nothing more comes free, where it is not known when that ends.
    fn stands_still_until(&self) -> Option<Timestamp> {
        let is_known = self.told.starts_at.is_some();
        (!is_known).then(|| after(self.most_idle.1, STANDS_STILL_SECONDS))
    }

    /// Whether it is kept in vain.
    fn is_in_vain(&self) -> bool {
        let until = self.stands_still_until();
        self.is_used_up() || until.is_some_and(|until| until <= self.counted_at)
    }

    /// When something is due by time: it is used up, stands still for too long, or should be free.
    pub(super) fn due_at(&self) -> Option<Timestamp> {
        let idle = self.idle();
        let used_up = self.told.most_idle_gpu_seconds.filter(|_| idle > 0);
        let used_up = used_up.map(|most| {
            let left = (most - self.told.idle_gpu_seconds).max(1);
            let seconds = (left + idle - 1) / idle;
            after(self.counted_at, i64::try_from(seconds).unwrap_or(i64::MAX))
        });
        let due = [used_up, self.stands_still_until(), self.told.starts_at];
        due.into_iter().flatten().min()
    }
}

impl State {
    /// Takes in the time and what happened where places are kept, and gives those up that are not to be kept any longer.
    pub(in crate::state) fn settle_backfill(&mut self, now: Timestamp) {
        let now = now.max(self.backfill.now);
        self.backfill.now = now;
        for kept in self.backfill.kept.values_mut() {
            kept.count(now);
        }
        for gang in self.note_changes_where_kept() {
            self.keep_elsewhere(&gang);
        }
        let kept = self.backfill.kept.values();
        let in_vain = kept.filter(|kept| kept.is_in_vain());
        let in_vain: Vec<HeadReservation> = in_vain.map(|kept| kept.told.clone()).collect();
        self.note_outlasted(&in_vain);
        for told in in_vain {
            self.end_head_reservation(&told.gang, false);
        }
        let rests = &mut self.backfill.rests;
        rests.retain(|_, until| *until > now);
        self.backfill.gave_up_a_place = false;
    }

    /// Places were kept in vain: who runs there, and does not say how long, or should have ended, is counted on less from now on.
    fn note_outlasted(&mut self, in_vain: &[HeadReservation]) {
        let nodes = in_vain.iter().flat_map(|told| &told.nodes);
        let slots = nodes.filter_map(|node| self.cluster.slot_of(node));
        let holds = slots.flat_map(|slot| self.cluster.holds_in(slot));
        let gangs: BTreeSet<GangUid> = holds
            .map(|hold| hold.gang.clone())
            .filter(|gang| self.end_of(gang).is_none_or(|end| end <= self.backfill.now))
            .collect();
        if gangs.is_empty() {
            return;
        }
        let (outlasted, running) = (&mut self.backfill.outlasted, &self.running);
        outlasted.retain(|gang, _| !running.is_released(gang));
        for gang in gangs {
            let times: &mut u32 = outlasted.entry(gang).or_default();
            *times = times.saturating_add(1);
        }
    }

    /// Nobody is awake any more: gives up the places of those who have no quota by now, and lets in whoever may be preempted by those
    /// who have it without borrowing. Whether that, or a place that was given up meanwhile, may help anybody: nothing else would
    /// wake them.
    pub(in crate::state) fn settle_places(&mut self) -> bool {
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

    /// Takes in what changed on nodes that are held back; for whom a place is kept on a node that is not there any more, is
    /// blocked, or is not good any more for what it was when the place was found.
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
                    let worth = kept.worth.get(node);
                    is_broken |= worth.is_some_and(|before| {
                        let now = self.worth_of(&kept.told, node);
                        now.is_some_and(|now| !now.covers(before))
                    });
                }
            }
            kept.note_idle();
            if is_broken {
                broken.push(kept.told.gang.clone());
            }
        }
        self.backfill.kept = all;
        broken
    }

    /// What a node is good for by what is told of a place there; `None`: its gang waits no more.
    fn worth_of(&self, told: &HeadReservation, node: &NodeName) -> Option<Worth> {
        let waiting = self.waiting.get(self.waiting.id(&told.gang)?)?;
        let record = self.cluster.record(self.cluster.slot_of(node)?)?;
        self.cluster.note_visits(1);
        let request = request(waiting, self.flavors.get(&told.flavor));
        let path = request
            .topology
            .and_then(|topology| record.node.fabric.get(topology).cloned());
        let units = units_if_empty(record, &request);
        Some(Worth { path, units })
    }

    /// What stands idle on a node that is held back, in thousandths of a GPU.
    fn idle_on(&self, node: &NodeName) -> i128 {
        let slot = self.cluster.slot_of(node);
        let record = slot.and_then(|slot| self.cluster.record(slot));
        let Some((record, free)) = record.zip(self.cluster.free_on_held_back(node)) else {
            return 0;
        };
        record.kind.idle_in(&free.free, &free.left)
    }

    /// How far up the quota tree a gang reaches at least that is to be judged, if it has quota for a Flavor.
    pub(super) fn borrow_level_on(&self, id: GangId, flavor: &FlavorName) -> Option<usize> {
        let waiting = self.waiting.get(id)?;
        waiting.class?;
        let entry = self.teams.get(waiting.team)?;
        let mut all = entry.assignments.iter();
        let at = all.position(|assignment| assignment.flavor == *flavor)?;
        let standing = entry.standing_of(waiting);
        if entry.discipline.first_before(at, &standing).is_some() {
            return None;
        }
        let (node, assignments) = (Some(entry.node?), &entry.assignments);
        let candidate = self.candidate(waiting.shape, id, node, assignments, at)?;
        self.may_be_charged(&candidate, &self.tree).ok()
    }

    pub(super) fn keep_place(
        &mut self,
        id: GangId,
        flavor: &FlavorName,
        found: Found,
        level: usize,
    ) {
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
            namespace: waiting.namespace.clone(),
            place: waiting.place.clone(),
            rank: rank(waiting),
            idle_now: BTreeMap::new(),
            worth: BTreeMap::new(),
            most_idle: (0, now),
            counted_at: now,
            stays_within_nominal: level == 0,
            told,
        };
        if level > 0 || kept.told.starts_at.is_none() {
            kept.limit(0);
        }
        self.changed_gangs.insert(id);
        for node in &kept.told.nodes {
            self.cluster.hold_back(node);
            kept.idle_now.insert(node.clone(), self.idle_on(node));
            let worth = self.worth_of(&kept.told, node);
            kept.worth.extend(worth.map(|worth| (node.clone(), worth)));
        }
        kept.note_idle();
        self.backfill.kept.insert(flavor.clone(), kept);
        self.note_reasons_on(flavor);
    }

    /// A place is kept for a gang no longer. Unless it was `served`, its Flavor keeps none until as much could have been used as stood
    /// idle for it.
    pub(in crate::state) fn end_head_reservation(&mut self, gang: &GangUid, served: bool) {
        if let Some(kept) = self.open_place(gang)
            && !served
        {
            self.rest_after(&kept);
        }
    }

    /// A Flavor rests for as long as all that the gang would have got would have stood idle to come to what did.
    fn rest_after(&mut self, kept: &Kept) {
        let own = i128::from(kept.told.gpus.0).max(1);
        let seconds = kept.told.idle_gpu_seconds / own;
        let seconds = i64::try_from(seconds).map_or(IDLE_SECONDS, |it| it.min(IDLE_SECONDS));
        if seconds > 0 {
            let until = after(self.backfill.now, seconds);
            self.backfill.rests.insert(kept.told.flavor.clone(), until);
        }
    }

    /// Opens the nodes that are kept for a gang to all.
    fn open_place(&mut self, gang: &GangUid) -> Option<Kept> {
        let mut all = self.backfill.kept.values();
        let of_gang = all.find(|kept| kept.told.gang == *gang)?;
        let flavor = of_gang.told.flavor.clone();
        let kept = self.backfill.kept.remove(&flavor)?;
        for node in &kept.told.nodes {
            self.cluster.end_hold_back(node);
        }
        self.backfill.gave_up_a_place = true;
        let id = self.waiting.id(gang);
        let waiting = id.and_then(|id| self.waiting.get(id));
        if let Some(class) = waiting.and_then(|waiting| waiting.class) {
            self.backfill.put_off(class, self.backfill.now);
        }
        // Whoever runs there can be asked to give way again.
        self.note_rights();
        self.note_reasons_on(&flavor);
        Some(kept)
    }

    /// Some node that is kept for a gang is not to be had any more: looks for another place at once, and goes on counting what stands
    /// idle.
    fn keep_elsewhere(&mut self, gang: &GangUid) {
        let Some(before) = self.open_place(gang) else {
            return;
        };
        let flavor = &before.told.flavor;
        let found = self.waiting.id(gang).and_then(|id| {
            let level = self.borrow_level_on(id, flavor)?;
            Some((id, level, self.soonest(id, flavor)?))
        });
        let Some((id, level, found)) = found else {
            self.rest_after(&before);
            return;
        };
        self.keep_place(id, flavor, found, level);
        if let Some(kept) = self.backfill.kept.get_mut(flavor) {
            kept.told.since = before.told.since;
            kept.told.idle_gpu_seconds = before.told.idle_gpu_seconds;
            // That another node is looked at instead is nothing that came free.
            if before.told.starts_at.is_none() && kept.idle() <= before.most_idle.0 {
                kept.most_idle = before.most_idle;
            }
            // Place after place may each be free within a day, and the gang in none of them.
            let first_day = after(kept.told.since, FORESEEABLE_SECONDS);
            let is_put_off = kept.told.starts_at.is_some_and(|at| at > first_day);
            if kept.told.most_idle_gpu_seconds.take().is_some() || is_put_off {
                kept.told.most_idle_gpu_seconds = before.told.most_idle_gpu_seconds;
                kept.limit(kept.told.idle_gpu_seconds);
            }
        }
    }

    /// A gang was told anew for which a place is kept: it stays so, unless a node of it is closed to the gang by now. Then another one is looked
    /// for when its time is taken in ([`State::settle_backfill`]).
    pub(in crate::state) fn keep_still(&mut self, id: GangId) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let mut all = self.backfill.kept.values_mut();
        let Some(kept) = all.find(|kept| kept.told.gang == waiting.gang.uid) else {
            return;
        };
        kept.team = waiting.team;
        kept.namespace = waiting.namespace.clone();
        kept.told.gang_name.clone_from(&waiting.gang.name);
        let rank = rank(waiting);
        if (&kept.place, kept.rank) != (&waiting.place, rank) {
            kept.place = waiting.place.clone();
            kept.rank = rank;
            // Others may go before it now.
            self.cluster.note_let_in(&kept.told.nodes);
        }
        // A node that was closed to it meanwhile is none that it gets, though nothing else changed there.
        let closed = &waiting.gang.topology.closed;
        for node in kept.told.nodes.intersection(closed) {
            self.cluster.note_other_worth(node);
        }
    }

    /// Who of a Team goes before whom is another question: others may go before the gang now for which a place is kept.
    pub(in crate::state) fn let_in_by_use(&mut self, team: TeamId) {
        let of_team = self.backfill.kept.values().filter(|it| it.team == team);
        for kept in of_team {
            self.cluster.note_let_in(&kept.told.nodes);
        }
    }

    /// Who waits for a place on a Flavor may be told something else about it.
    fn note_reasons_on(&mut self, flavor: &FlavorName) {
        let groups = self.waits.groups();
        let groups = groups.filter(|(_, group)| group.flavor() == Some(flavor));
        let teams: BTreeSet<TeamId> = groups.flat_map(|(_, group)| group.teams()).collect();
        self.changed_teams.extend(teams);
    }

    /// What is idle from now on: whoever was admitted where places are kept runs there.
    pub(in crate::state) fn note_backfilled(&mut self) {
        self.note_changes_where_kept();
    }

    /// That a place is kept for a gang, if it is.
    pub(in crate::state) fn why_head(&self, gang: &GangUid) -> Option<Why> {
        let mut all = self.backfill.kept.values();
        let kept = all.find(|kept| kept.told.gang == *gang)?;
        let mut kept = kept.clone();
        kept.count(self.backfill.now);
        Some(Why::PlaceKept {
            reservation: kept.told,
            now: self.backfill.now,
        })
    }
}
