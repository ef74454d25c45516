//! What is kept for gangs that recover.
//!
//! An attempt that ended by a fault, a lost node or the like gives back what it held pod by pod, and its gang asks for the same again a
//! minute later. In between everybody would be served with it. So what a pod gives back is held on in its place: by the same gang, of the
//! same Team, on the same devices. Such a *keep* is a [`Hold`] like any other. It is charged (S1), it is in the way of others, who are told so, it can be
//! lent quota that comes back, and whoever may preempt the gang while it runs may have it while it recovers. Only that nobody has to be told
//! to go: what is kept is given up in the same moment.
//!
//! | of what an attempt held | quota | place |
//! |---|---|---|
//! | what stands on healthy devices of a node that may be planned on | kept | kept |
//! | what stands elsewhere, or on a node that the gang is not to have again | kept | not kept |
//! | what was released before anybody told of it | kept as far as it is free | kept as far as it is free |
//!
//! **For how long**: until the gang is admitted (what of it nobody has by then is kept again, should that be undone), is told to recover no more, asks
//! for more than it held, its time is over, or others preempt it. Where limits changed so that a Team has not enough for all that is kept, just so many pods' is
//! given up: first what has no place. That is found out once all of its pods have released theirs, so that it does not depend on their order.
//!
//! **Who is judged when.** Once the gang waits again it does not stand in line, but is judged before anybody else, as if nothing were kept for
//! it: in the domain in which it was, then in those around it, then anywhere; nor does a strict order hold it up, which did not while it ran. What it gets
//! need not be what is kept, but is no more than it held: for more it stands in line. If it has no room, that is not asked
//! again before something came free. For each event that costs one search for each gang that recovers and waits, and no more. Where nobody's leaving
//! helps but that of somebody who may be preempted, others give way to it, as to any gang that waits, and what was kept becomes part of what is kept then
//! ([`super::reservations`]).
//!
//! **Twice, late, never.** For each attempt something is kept once: told again after it was given up it changes nothing. What
//! is told after its time is over ends with the next decision. A new process is told who recovers before it decides first; what is held still goes
//! over as it is released, and what is released already is kept as far as nobody has it.

mod judging;
mod place;
mod telling;
mod trimming;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{CLASS_NAMED, State, clock::earlier, ids::GangId, reservations::Judged};
use crate::{
    amount::{Amount, FlavorResource, Resource},
    model::{HeldClaim, Hold, PodResources, Recovering, Running},
    names::{ClaimUid, GangUid, NodeName, PodUid, TeamName, Timestamp},
};

/// What is kept for one gang.
#[derive(Clone, Debug)]
struct Keep {
    /// As it was told, without what was held.
    told: Recovering,
    until: Timestamp,
    /// What each pod of the attempt held, as it was told.
    parts: BTreeMap<PodUid, Hold>,
    /// Pods that hold theirs still.
    held: BTreeSet<PodUid>,
    /// Pods that held nothing any more when it was told, and for which nobody looked yet.
    missing: BTreeSet<PodUid>,
    /// What is kept, by the pod that held it.
    kept: BTreeMap<PodUid, Arc<Hold>>,
    /// The same of a gang whose admission was taken back, and for which nobody looked yet.
    to_keep_again: BTreeMap<PodUid, Arc<Hold>>,
    /// How many pods that name a claim have not released it yet: it is charged once.
    claims: BTreeMap<ClaimUid, usize>,
    /// As of when it was judged last, in vain.
    judged: Option<Judged>,
}

impl Keep {
    fn of(mut told: Recovering) -> Self {
        let parts = std::mem::take(&mut told.held).into_iter();
        let parts: BTreeMap<PodUid, Hold> = parts.map(|hold| (hold.pod.clone(), hold)).collect();
        let mut claims: BTreeMap<ClaimUid, usize> = BTreeMap::new();
        for claim in parts.values().flat_map(|part| &part.claims) {
            *claims.entry(claim.uid.clone()).or_default() += 1;
        }
        Self {
            until: told.until,
            told,
            parts,
            held: BTreeSet::new(),
            missing: BTreeSet::new(),
            kept: BTreeMap::new(),
            to_keep_again: BTreeMap::new(),
            claims,
            judged: None,
        }
    }

    fn team(&self) -> Option<&TeamName> {
        self.parts.values().next().map(|part| &part.team)
    }

    /// Whether its attempt held as much of each resource.
    fn held_as_much(&self, asked: &BTreeMap<Resource, i128>) -> bool {
        let held = sum_by_resource(self.parts.values());
        let mut asked = asked.iter();
        asked.all(|(resource, amount)| *amount <= held.get(resource).copied().unwrap_or(0))
    }

    /// The gang as if it ran: by this others may preempt it.
    fn running(&self) -> Option<Running> {
        Some(Running {
            uid: self.told.gang.clone(),
            team: self.team()?.clone(),
            priority: self.told.priority,
            queued_at: self.told.queued_at,
            admitted_at: self.told.since,
            checkpointed_at: None,
            is_made_again: true,
            protected_until: None,
            ending_since: None,
            notice_seconds: 0,
            may_be_preempted: self.told.may_be_preempted,
            is_told_over_quota: false,
        })
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Keeps {
    by_gang: BTreeMap<GangUid, Keep>,
    by_end: BTreeSet<(Timestamp, GangUid)>,
    /// The pods by whose names something is kept.
    pods: BTreeSet<PodUid>,
    /// Gangs of which something was released before anybody told, or whose admission was taken back.
    with_missing: BTreeSet<GangUid>,
    /// Gangs that have released all, of which more may be kept than the limits let their Teams have.
    to_trim: BTreeSet<GangUid>,
    /// Gangs that wait, and do not stand in line.
    parked: BTreeSet<GangId>,
    /// What was kept for gangs that were admitted, until it is known that the admission was committed.
    admitted: BTreeMap<GangUid, Keep>,
    /// Attempts for which nothing is kept any more though it is told that the gang recovers.
    over: BTreeMap<GangUid, i64>,
    /// Whether the last call searched enough before each was judged.
    is_any_left: bool,
}

impl Keeps {
    /// Whether something is kept for a gang.
    pub(super) fn has(&self, gang: &GangUid) -> bool {
        self.by_gang.contains_key(gang)
    }

    /// Whether it is by this name that something is kept.
    pub(super) fn is_kept(&self, pod: &PodUid) -> bool {
        self.pods.contains(pod)
    }

    /// Whether a pod holds something that is kept once it is released.
    pub(super) fn goes_on(&self, gang: &GangUid, pod: &PodUid) -> bool {
        let keep = self.by_gang.get(gang);
        keep.is_some_and(|keep| keep.held.contains(pod))
    }

    /// When something is due by time alone.
    pub(super) fn due_next(&self, now: Timestamp) -> Option<Timestamp> {
        let soon = Timestamp(now.0.saturating_add(1));
        let soon = self.is_any_left.then_some(soon);
        let ends = self.by_end.first().map(|(at, _)| *at);
        [soon, ends].into_iter().flatten().min()
    }

    /// What was found out about them does not hold any more.
    pub(super) fn judge_all_again(&mut self) {
        for keep in self.by_gang.values_mut() {
            keep.judged = None;
        }
    }

    /// What was found out about a gang does not hold any more.
    pub(super) fn judge_again(&mut self, gang: &GangUid) {
        if let Some(keep) = self.by_gang.get_mut(gang) {
            keep.judged = None;
        }
    }

    /// An admission cannot be taken back any more.
    pub(super) fn note_committed(&mut self, gang: &GangUid) {
        self.admitted.remove(gang);
    }

    /// The clock went back by so much: nothing is kept for longer by that.
    pub(super) fn end_earlier(&mut self, seconds: i64) {
        let kept = self.by_gang.values_mut().chain(self.admitted.values_mut());
        for keep in kept {
            keep.until = earlier(keep.until, seconds);
        }
        let by_end = self.by_gang.iter();
        self.by_end = by_end
            .map(|(gang, keep)| (keep.until, gang.clone()))
            .collect();
    }

    fn ended(&self, now: Timestamp) -> Vec<GangUid> {
        let ended = self.by_end.iter().take_while(|(at, _)| *at <= now);
        ended.map(|(_, gang)| gang.clone()).collect()
    }
}

impl State {
    /// A gang recovers.
    pub(super) fn set_recovering(&mut self, told: Recovering) {
        let uid = told.gang.clone();
        if self.keeps.over.get(&uid) == Some(&told.attempt) {
            return;
        }
        let known = self.keeps.by_gang.get(&uid);
        if known.is_some_and(|known| known.told.attempt == told.attempt) {
            return;
        }
        if known.is_some() {
            self.end_keep(&uid);
        }
        let keep = Keep::of(told);
        let own = self.waiting.id(&uid);
        let holds_anew = self.provisional.contains_key(&uid)
            || own
                .and_then(|id| self.waiting.get(id))
                .is_some_and(|waiting| waiting.pods_that_hold > 0);
        // It holds something by a later attempt, or goes for somebody who has a right to what it held.
        if keep.parts.is_empty() || holds_anew || self.reservations.gives_way(&uid) {
            self.keeps.over.insert(uid.clone(), keep.told.attempt);
            self.note_preemption_changed(uid);
            return;
        }
        self.begin_keep(keep);
    }

    fn begin_keep(&mut self, mut keep: Keep) {
        let uid = keep.told.gang.clone();
        let pods: Vec<PodUid> = keep.parts.keys().cloned().collect();
        for pod in pods {
            let hold = self.holds.get(&pod);
            if hold.is_some_and(|hold| hold.gang == uid && !hold.charged_to_node) {
                keep.held.insert(pod);
            } else {
                keep.missing.insert(pod);
            }
        }
        if !keep.missing.is_empty() {
            self.keeps.with_missing.insert(uid.clone());
        }
        self.enter_keep(keep);
    }

    /// From now on it counts as one that runs, not as one that ends by itself: what it held does not come free.
    fn enter_keep(&mut self, keep: Keep) {
        let uid = keep.told.gang.clone();
        let (running, team) = (keep.running(), keep.team().cloned());
        self.keeps.over.remove(&uid);
        self.keeps.by_end.insert((keep.until, uid.clone()));
        self.keeps.by_gang.insert(uid.clone(), keep);
        self.running.remove(&uid);
        if let Some(running) = running {
            self.set_running(running);
        }
        if let Some(id) = self.waiting.id(&uid) {
            self.park(id);
        }
        self.note_heads(team.as_ref());
        self.note_preemption_changed(uid);
    }

    /// Those of its Team at the head of a line who may wait for what is kept are told otherwise than before who has it. Those of other Teams are once
    /// they are told anything else: one event costs what it touches.
    fn note_heads(&mut self, team: Option<&TeamName>) {
        let id = team.and_then(|team| self.team_ids.get(team)).copied();
        let Some((id, entry)) = id.and_then(|id| Some((id, self.teams.get(id)?))) else {
            return;
        };
        if entry.classes.len() > CLASS_NAMED {
            self.changed_teams.insert(id);
            return;
        }
        let classes = entry.classes.values();
        let classes = classes.filter_map(|class| self.classes.get(*class));
        let heads: Vec<GangId> = classes.filter_map(|class| class.line.first()).collect();
        self.cluster.note_visits(heads.len() as u64);
        self.changed_gangs.extend(heads);
    }

    /// It is told that a gang does not recover any more.
    pub(super) fn set_not_recovering(&mut self, gang: &GangUid) {
        self.end_keep(gang);
        self.keeps.over.remove(gang);
        // Should its admission be undone, it is held back.
        self.keeps.admitted.remove(gang);
    }

    /// Keeps nothing for a gang any longer. What its pods hold still comes free by itself.
    pub(super) fn end_keep(&mut self, gang: &GangUid) {
        if let Some(keep) = self.lift_keep(gang) {
            self.keeps.over.insert(gang.clone(), keep.told.attempt);
            self.note_heads(keep.team());
            if let (false, Some(running)) = (self.running.is_released(gang), keep.running()) {
                self.set_running(running);
                self.set_ending(gang);
            }
            self.note_preemption_changed(gang.clone());
        }
    }

    /// What is kept for a gang is free from now on, and the gang waits as any other, if it does.
    fn lift_keep(&mut self, gang: &GangUid) -> Option<Keep> {
        let keep = self.keeps.by_gang.remove(gang)?;
        self.keeps.by_end.remove(&(keep.until, gang.clone()));
        self.keeps.with_missing.remove(gang);
        self.keeps.to_trim.remove(gang);
        self.note_other_order(gang);
        for hold in keep.kept.values() {
            self.remove_hold(&hold.pod);
            self.keeps.pods.remove(&hold.pod);
        }
        self.running.remove(gang);
        self.note_shrinking_of(gang);
        if let Some(id) = self.waiting.id(gang) {
            self.unpark(id);
        }
        Some(keep)
    }

    /// What was given up to judge its gang is kept again: nobody else had a turn since.
    fn keep_on(&mut self, keep: Keep) {
        let holds: Vec<Arc<Hold>> = keep.kept.values().cloned().collect();
        self.keeps
            .pods
            .extend(holds.iter().map(|hold| hold.pod.clone()));
        let (uid, is_any_missing) = (keep.told.gang.clone(), !keep.missing.is_empty());
        for hold in holds {
            self.set_hold(Arc::unwrap_or_clone(hold));
        }
        if is_any_missing {
            self.keeps.with_missing.insert(uid);
        }
        self.enter_keep(keep);
    }

    /// An admission was taken back. Others were asked since, and may have what was kept: what nobody has is kept again before anybody is asked by the
    /// next decision (S1), be it by then that their admissions were taken back as well.
    pub(super) fn keep_for_recovery_again(&mut self, gang: &GangUid) {
        let Some(mut keep) = self.keeps.admitted.remove(gang) else {
            return;
        };
        keep.to_keep_again.append(&mut keep.kept);
        keep.judged = None;
        self.keeps.with_missing.insert(gang.clone());
        self.enter_keep(keep);
    }

    /// It is told what a pod holds: if it is of the attempt that ended, nothing is kept for it beside that; if it is of a later one, the gang
    /// recovers no more.
    pub(super) fn note_held_again(&mut self, hold: &Hold) {
        let own = self.waiting.id(&hold.gang);
        let is_later = own.is_some() && self.waiting.of_pod(&hold.pod) == own;
        let Some(keep) = self.keeps.by_gang.get_mut(&hold.gang) else {
            return;
        };
        let Some(part) = keep.parts.get(&hold.pod) else {
            if is_later {
                self.end_keep(&hold.gang);
            }
            return;
        };
        if hold.charged_to_node || keep.held.contains(&hold.pod) {
            return;
        }
        if !keep.missing.remove(&hold.pod) {
            for claim in &part.claims {
                *keep.claims.entry(claim.uid.clone()).or_default() += 1;
            }
        }
        keep.held.insert(hold.pod.clone());
        keep.to_keep_again.remove(&hold.pod);
        self.give_up_part(&hold.gang, &hold.pod);
    }

    /// A pod gave back what it held, or its node bears that from now on: it is kept, if its gang recovers.
    pub(super) fn keep_released(&mut self, known: &Hold) {
        if self.keeps.goes_on(&known.gang, &known.pod) {
            self.keep_part(&known.gang, &known.pod, Some(known));
            // Limits may have changed while it was held.
            let keep = self.keeps.by_gang.get(&known.gang);
            if keep.is_some_and(|keep| keep.held.is_empty()) {
                self.keeps.to_trim.insert(known.gang.clone());
            }
        }
    }

    /// Keeps what a pod held. `known`: that was until now; else it is kept as far as it is free.
    fn keep_part(&mut self, gang: &GangUid, pod: &PodUid, known: Option<&Hold>) {
        let Some(keep) = self.keeps.by_gang.get_mut(gang) else {
            return;
        };
        keep.held.remove(pod);
        keep.missing.remove(pod);
        let Some(part) = keep.parts.get(pod) else {
            return;
        };
        let mut hold = Hold {
            team: part.team.clone(),
            charged_to_node: false,
            releasing: false,
            ..known.unwrap_or(part).clone()
        };
        // Whoever releases a claim last keeps it.
        let claims = &mut keep.claims;
        hold.claims.retain(|claim| {
            let Some(others) = claims.get_mut(&claim.uid) else {
                return false;
            };
            *others = others.saturating_sub(1);
            *others == 0
        });
        let left = keep.told.left.contains(&hold.node);
        if left || !self.find_place(&mut hold, known.is_none()) {
            take_place(&mut hold);
        }
        if known.is_none() && !self.is_available(&hold) {
            return;
        }
        hold.pod = format!("{pod}/kept").into();
        for claim in &mut hold.claims {
            claim.uid = format!("{}/kept", claim.uid).into();
        }
        self.keep_as(gang, pod, hold);
    }

    /// Keeps what was kept until its gang was admitted, which came to nothing, as far as it is free.
    fn keep_part_again(&mut self, gang: &GangUid, pod: &PodUid, hold: Arc<Hold>) {
        let mut hold = Arc::unwrap_or_clone(hold);
        if !self.find_place(&mut hold, true) {
            take_place(&mut hold);
        }
        if self.is_available(&hold) {
            self.keep_as(gang, pod, hold);
        }
    }

    fn keep_as(&mut self, gang: &GangUid, pod: &PodUid, hold: Hold) {
        self.keeps.pods.insert(hold.pod.clone());
        if let Some(keep) = self.keeps.by_gang.get_mut(gang) {
            keep.kept.insert(pod.clone(), Arc::new(hold.clone()));
        }
        self.set_hold(hold);
    }

    /// Whether the Team may be charged that much more.
    fn is_available(&self, hold: &Hold) -> bool {
        let Some(node) = self.tree.node_of(&hold.team) else {
            return false;
        };
        let sums = sum_of(std::iter::once(hold));
        sums.iter().all(|(of, amount)| {
            let pair = self.tree.known_pair(of);
            let available = pair.map(|pair| self.tree.available_at(node, pair));
            available.is_some_and(|available| *amount <= i128::from(available.0))
        })
    }

    /// A node, or what is wrong with its devices, is another: what is kept there may have its place there no longer.
    pub(super) fn note_kept_on(&mut self, node: &NodeName) {
        if self.keeps.pods.is_empty() {
            return;
        }
        let pods = self.cluster.pods_on(node);
        let kept: Vec<PodUid> = pods
            .filter(|pod| self.keeps.is_kept(pod))
            .cloned()
            .collect();
        for pod in kept {
            let Some(hold) = self.holds.get(&pod).cloned() else {
                continue;
            };
            let mut hold = Arc::unwrap_or_clone(hold);
            if self.find_place(&mut hold, false) {
                continue;
            }
            take_place(&mut hold);
            let keep = self.keeps.by_gang.get_mut(&hold.gang);
            let mut kept = keep.into_iter().flat_map(|keep| keep.kept.values_mut());
            if let Some(kept) = kept.find(|kept| kept.pod == pod) {
                *kept = Arc::new(hold.clone());
            }
            self.set_hold(hold);
        }
    }

    /// Ends what is over by time, keeps what was released before anybody told or was kept before an admission that came to nothing, the first that
    /// recovered first, and gives up what limits do not let Teams have.
    pub(super) fn settle_keeps(&mut self, now: Timestamp) {
        for gang in self.keeps.ended(now) {
            self.end_keep(&gang);
        }
        self.end_keeps_of_recorded_victims(now);
        let with_missing = std::mem::take(&mut self.keeps.with_missing);
        let gangs = with_missing.into_iter().filter_map(|gang| {
            let keep = self.keeps.by_gang.get_mut(&gang)?;
            let again = std::mem::take(&mut keep.to_keep_again);
            Some((keep.told.since, gang, keep.missing.clone(), again))
        });
        let mut gangs: Vec<_> = gangs.collect();
        gangs.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        for (_, gang, missing, again) in gangs {
            for (pod, hold) in again {
                self.keep_part_again(&gang, &pod, hold);
            }
            for pod in &missing {
                self.keep_part(&gang, pod, None);
            }
            self.end_keep_of_nothing(&gang);
        }
        if !self.keeps.to_trim.is_empty() {
            let gangs = std::mem::take(&mut self.keeps.to_trim);
            self.trim(gangs);
        }
    }

    /// Whoever was told by a former leader to go for another gang goes for that, however its attempt ended.
    fn end_keeps_of_recorded_victims(&mut self, now: Timestamp) {
        let recorded = self.recorded.values();
        let recorded = recorded.filter(|reserved| now < reserved.until);
        let victims = recorded.flat_map(|reserved| reserved.victims.keys());
        let victims = victims.filter(|victim| self.keeps.has(victim));
        let victims: Vec<GangUid> = victims.cloned().collect();
        for victim in victims {
            self.end_keep(&victim);
        }
    }

    /// A gang for which nothing is kept after all waits as any other.
    fn end_keep_of_nothing(&mut self, gang: &GangUid) {
        let keep = self.keeps.by_gang.get(gang);
        if keep.is_some_and(|keep| {
            keep.kept.is_empty()
                && keep.held.is_empty()
                && keep.missing.is_empty()
                && keep.to_keep_again.is_empty()
        }) {
            self.end_keep(gang);
        }
    }

    fn give_up_part(&mut self, gang: &GangUid, pod: &PodUid) {
        let keep = self.keeps.by_gang.get_mut(gang);
        if let Some(hold) = keep.and_then(|keep| keep.kept.remove(pod)) {
            self.remove_hold(&hold.pod);
            self.keeps.pods.remove(&hold.pod);
        }
    }

    /// A gang that recovers waits again: it does not stand in line, as one does not to which others give way.
    pub(super) fn park(&mut self, id: GangId) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let uid = waiting.gang.uid.clone();
        if !self.keeps.has(&uid) || waiting.is_reserved_for || waiting.pods_that_hold > 0 {
            return;
        }
        let (team, place) = (waiting.team, waiting.place.clone());
        self.keeps.judge_again(&uid);
        self.end_head_reservation(&uid, true);
        let led = self.drop_out(id);
        self.ask_next(led);
        if let Some(waiting) = self.waiting.get_mut(id) {
            waiting.is_reserved_for = true;
        }
        if let Some(entry) = self.teams.get_mut(team) {
            entry.given_way.insert(place, id);
        }
        self.keeps.parked.insert(id);
        self.stand_aside(id, true);
        self.settle_aside();
        self.changed_gangs.insert(id);
    }

    /// It stands in line like any other.
    pub(super) fn unpark(&mut self, id: GangId) {
        if !self.keeps.parked.remove(&id) {
            return;
        }
        self.stand_aside(id, false);
        let Some(waiting) = self.waiting.get_mut(id) else {
            return;
        };
        waiting.is_reserved_for = false;
        let holds = waiting.pods_that_hold > 0;
        if let Some(entry) = self.teams.get_mut(waiting.team) {
            entry.given_way.remove(&waiting.place);
        }
        if !holds {
            self.line_up(id);
        }
    }
}

/// What a hold is charged, claim by claim.
fn charges_of(hold: &Hold) -> impl Iterator<Item = (FlavorResource, i128)> {
    let claims = hold.claims.iter().flat_map(|claim: &HeldClaim| {
        let of = |resource| FlavorResource {
            flavor: claim.flavor.clone(),
            resource,
        };
        [
            (of(Resource::Gpus), claim.gpus),
            (of(Resource::Vram), claim.vram),
        ]
    });
    let besides = hold.charged.iter().map(|it| (it.of.clone(), it.amount));
    let charged = claims.chain(besides);
    charged
        .filter(|(_, amount)| *amount > Amount::ZERO)
        .map(|(of, amount)| (of, i128::from(amount.0)))
}

/// What holds are charged, by Flavor and resource.
fn sum_of<'a>(holds: impl Iterator<Item = &'a Hold>) -> BTreeMap<FlavorResource, i128> {
    let mut sums: BTreeMap<FlavorResource, i128> = BTreeMap::new();
    for (of, amount) in holds.flat_map(charges_of) {
        *sums.entry(of).or_default() += amount;
    }
    sums
}

/// What holds are charged in all, each claim once, whatever Flavors that is of.
fn sum_by_resource<'a>(holds: impl Iterator<Item = &'a Hold>) -> BTreeMap<Resource, i128> {
    let mut sums: BTreeMap<Resource, i128> = BTreeMap::new();
    let mut seen: BTreeSet<&ClaimUid> = BTreeSet::new();
    for hold in holds {
        let claims = hold.claims.iter();
        let claims = claims.filter(|claim| seen.insert(&claim.uid));
        let claims =
            claims.flat_map(|claim| [(Resource::Gpus, claim.gpus), (Resource::Vram, claim.vram)]);
        let besides = hold.charged.iter();
        let besides = besides.map(|it| (it.of.resource.clone(), it.amount));
        for (resource, amount) in claims.chain(besides) {
            *sums.entry(resource).or_default() += i128::from(amount.0);
        }
    }
    sums
}

/// Whether it is known where something is kept.
fn has_place(hold: &Hold) -> bool {
    !hold.node.as_str().is_empty()
}

/// What is kept is quota alone.
fn take_place(hold: &mut Hold) {
    hold.node = "".into();
    hold.resources = PodResources::default();
    for claim in &mut hold.claims {
        claim.request = None;
        claim.devices = Some(Vec::new());
    }
}
