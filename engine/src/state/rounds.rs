//! Admission: whose turn it is, until nothing more can be admitted or the budget ends.
//!
//! A Team's *head* is the first gang of its line that fits; a gang that does not fit takes no turn, and where the order
//! is strict it holds up those behind it on the Flavors that it could use ([`super::lines`]). In a round every Team with a head has one gang admitted, in Kueue's order:
//! who stays within the own quota before who borrows, and the less far up the tree the better; then the higher
//! tier, then who waits longest, then the smaller UID; in trees with fair shares, by these ([`super::fair_turns`]). Then the next
//! round begins. A round that the budget cut
//! short goes on with the next budget, so that any slicing admits the same gangs in the same order. A call ends, too, once
//! searches were in vain for long enough: who was refused stays so, and the heads that were found are found again.
//!
//! Nobody is looked at who is not awake, and of those only as many as it takes to know who is first: queues list
//! Teams by a lower bound of their turn, and a Team is judged only when that bound is the least of all.

use std::collections::BTreeSet;

use super::{
    State,
    class_line::ClassLine,
    fair_turns::{FairTurn, FairTurns},
    ids::{ClassId, GangId, GroupId, TeamId},
    judge::{Fitting, request},
    known_heads::{KnownHeads, Served},
    preempt::Preempting,
    shapes::Refused,
    team::{Class, Reason, Refusing},
    wait_queue::{Precedence, Turn, WaitQueue},
    waits::{Group, QuotaNeed, Wait},
    work::Work,
};
use crate::{
    amount::Amount,
    decision::{Budget, CommitRoom, Decisions, TooLarge},
    names::Timestamp,
    placement::{Effort, Refusal, Request, Version, fits_since, holds_still},
    queue::{Place, Standing},
    quota::NodeId,
};

/// How often in one call some who searched for victims in vain are asked again.
const MOST_TIMES_ASKED: usize = 64;

/// The head of a Team, as things are at a moment.
pub(super) struct Head {
    pub(super) gang: GangId,
    pub(super) turn: What,
    moment: Moment,
}

impl Head {
    /// As of when nodes were when it was judged.
    pub(super) fn nodes_as_of(&self) -> Version {
        self.moment.nodes()
    }
}

/// What a head does when its turn comes.
pub(super) enum What {
    /// It is admitted.
    Fits {
        fitting: Box<Fitting>,
        needs: CommitRoom,
    },
    /// Others give way to it.
    Preempts(Preempting),
}

/// A state of nodes and charges. While it stands, so does every verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    nodes: Version,
    charges: u64,
}

impl Moment {
    /// As of when nodes were.
    pub(super) fn nodes(&self) -> Version {
        self.nodes
    }
}

/// Teams whose turn may be next, each at a lower bound of its turn, or at its turn if its head is known.
#[derive(Default)]
struct Contenders {
    order: BTreeSet<(Turn, TeamId)>,
    heads: KnownHeads,
    fair: FairTurns,
}

impl Contenders {
    fn next(&mut self) -> Option<(TeamId, Option<Head>)> {
        let (_, team) = self.order.pop_first()?;
        Some((team, self.heads.leave(team).map(|(_, head)| head)))
    }
}

impl State {
    /// Admits what can be admitted. Who has a place kept may lose it by that: then those are asked again who were kept out.
    pub(super) fn admit_all(&mut self, now: Timestamp, budget: &Budget, decisions: &mut Decisions) {
        let mut work = Work::within(budget, now);
        let mut left = budget.left;
        let mut is_room_freed = false;
        loop {
            let kept = is_room_freed.then(|| self.reservations.len());
            is_room_freed = self.admit_beside_places(budget, &mut left, decisions, &mut work, kept);
            if decisions.is_cut_short() || !(is_room_freed || self.settle_places()) {
                break;
            }
        }
        self.note_freed_by_turns();
        if !decisions.is_cut_short() {
            self.reservations.end_turns();
        }
        decisions.visited = work.visited;
    }

    /// Admits what can be admitted with the places kept that are. Whether it ended before that since a turn may have freed room for somebody
    /// for whom something is kept: it goes on as after a commit that ended there (`kept_before`: for how many gangs something was kept then).
    fn admit_beside_places(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
        kept_before: Option<usize>,
    ) -> bool {
        self.wake_whoever_may_preempt(work.now);
        self.settle_recovering(budget, left, decisions, work);
        if decisions.exhausted {
            return false;
        }
        self.settle_reservations(budget, left, decisions, work);
        // Nobody had room by that after all. All that contend are found anew for it, and so they would be after each turn.
        if kept_before == Some(self.reservations.len()) {
            work.note_anew_in_vain();
        }
        if decisions.exhausted {
            return false;
        }
        // Who was not judged yet when the last call was interrupted is judged before anybody is woken anew: else what
        // changes again and again would keep the first of them busy, and the last ones waiting.
        let mut goes_on =
            std::mem::take(&mut self.waits.was_interrupted) && self.waits.is_anybody_awake();
        // What was admitted may, in rare cases, make room for a gang with several claims per pod.
        self.note_nodes();
        let (mut asked, mut before) = (0, self.cluster.visited());
        loop {
            while std::mem::take(&mut goes_on) || self.open_groups(work) {
                if self.admit_awake(budget, left, decisions, work) {
                    return true;
                }
                if decisions.is_cut_short() {
                    self.waits.was_interrupted = decisions.interrupted;
                    break;
                }
                self.close_groups();
                if self.cluster.version() == self.groups_asked {
                    break;
                }
            }
            // At the end, so that it is the same however the budget cuts what comes before.
            let looks = self.cluster.visited().wrapping_sub(before);
            if decisions.is_cut_short()
                || asked == MOST_TIMES_ASKED
                || (asked > 0 && looks >= Effort::ONE_DECISION)
                || !self.wake_in_turn()
            {
                break;
            }
            if asked == 0 {
                before = self.cluster.visited();
            }
            asked += 1;
        }
        if !decisions.is_cut_short() {
            self.end_round();
        }
        false
    }

    /// Nobody is awake any more. That may be so from the beginning, if the last call was cut short after the last of them.
    fn end_round(&mut self) {
        for team in std::mem::take(&mut self.served) {
            self.list(team, true);
        }
        self.close_groups();
    }

    /// Admits those who are awake, until none of them fits or the budget ends; or until a turn, or that somebody stands in line no longer, may
    /// have freed room for somebody for whom something is kept: whether that is so.
    fn admit_awake(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> bool {
        let (mut contenders, mut is_room_freed) = (Contenders::default(), false);
        loop {
            let listed = self.first_listed(work);
            let first = contenders.order.first().map(|(turn, _)| turn);
            if let Some((turn, team)) = listed
                && first.is_none_or(|first| turn < *first)
            {
                work.visited.teams += 1;
                self.list(team, false);
                self.contend(&mut contenders, turn, team, None);
                continue;
            }
            let next = match contenders.fair.next(self) {
                FairTurn::Judge(team) => Some((team, contenders.fair.leave(self, team))),
                FairTurn::First(Some((turn, team)))
                    if contenders
                        .order
                        .first()
                        .is_none_or(|(first, _)| turn < *first) =>
                {
                    Some((team, contenders.fair.leave(self, team)))
                }
                FairTurn::First(_) => contenders.next(),
            };
            let Some((team, head)) = next else {
                if self.served.is_empty() {
                    // Whoever was refused, or is too large, may stand before somebody no longer.
                    is_room_freed =
                        self.reservations.is_any_to_judge_again && self.frees_room(decisions, work);
                    break;
                }
                for team in std::mem::take(&mut self.served) {
                    self.list(team, true);
                }
                continue;
            };
            let Some(head) = head.filter(|head| head.moment == self.moment()) else {
                match self.head(team, budget, decisions, work) {
                    Some((turn, head)) => self.contend(&mut contenders, turn, team, Some(head)),
                    None => self.list(team, true),
                }
                if decisions.interrupted {
                    break;
                }
                continue;
            };
            let served = Served {
                team,
                nodes_before: self.cluster.version(),
                by_preemption: matches!(head.turn, What::Preempts(_)),
            };
            match head.turn {
                What::Fits { needs, .. } if !left.holds(&needs) => {
                    decisions.exhausted = true;
                    self.list(team, true);
                    break;
                }
                What::Fits { fitting, needs } => {
                    *left = left.less(&needs);
                    decisions.admissions.extend(self.admit(head.gang, &fitting));
                }
                What::Preempts(preempting) => {
                    let preemption = self.preempt(head.gang, preempting, work.now);
                    decisions.preemptions.extend(preemption);
                }
            }
            self.served.insert(team);
            let may_free = served.by_preemption || self.reservations.is_any_to_judge_again;
            is_room_freed = may_free && self.frees_room(decisions, work);
            if is_room_freed || decisions.interrupted {
                break;
            }
            self.lower_heads(&mut contenders, &served, work);
            self.compete_anew(&mut contenders.fair, &served, work);
        }
        for (_, team) in contenders.order {
            self.list(team, true);
        }
        for team in contenders.fair.all() {
            self.list(team, true);
        }
        is_room_freed
    }

    /// Whether somebody for whom something is kept may have room by what was done just now. Once enough was searched in vain the call ends
    /// with that: whoever has room, and was not asked, is judged first by the next one.
    fn frees_room(&mut self, decisions: &mut Decisions, work: &mut Work) -> bool {
        let is_room_freed = self.frees_room_by_turn(work);
        decisions.interrupted |= !is_room_freed && work.is_enough();
        is_room_freed
    }

    /// A Team contends from now on: with others of its tree where shares are fair, else with all.
    fn contend(
        &mut self,
        contenders: &mut Contenders,
        turn: Turn,
        team: TeamId,
        head: Option<Head>,
    ) {
        if let Some(place) = self.fair_root_of(team) {
            let head = head.map(|head| (turn, head));
            self.compete(&mut contenders.fair, place, team, head);
            return;
        }
        contenders.order.insert((turn.clone(), team));
        if let Some(head) = head {
            let mut afterwards = std::mem::take(&mut self.moments.afterwards);
            let watch = self.watch_head(team, &turn, &head, &mut afterwards);
            self.moments.afterwards = afterwards;
            let root = self.root_of(team);
            contenders.heads.enter(team, root, (turn, head), watch);
        }
    }

    pub(super) fn moment(&self) -> Moment {
        Moment {
            nodes: self.cluster.version(),
            charges: self.charge_version,
        }
    }

    /// After the turn of a Team, another one whose head is known may come earlier than it did: if the head has lost its place or its
    /// quota, with a gang behind it or on another Flavor; if what was admitted has changed which devices suit it best, with others
    /// that are charged less. Who has others give way comes earlier if it borrows less without these by now. What is not looked at
    /// comes no earlier ([`super::known_heads`]).
    fn lower_heads(&mut self, contenders: &mut Contenders, served: &Served, work: &mut Work) {
        let mut afterwards = std::mem::take(&mut self.moments.afterwards);
        let concerned = contenders.heads.concerned(self, served, &mut work.visited);
        for (team, is_place_gone) in concerned.teams() {
            work.visited.heads += 1;
            let shares_place = contenders.heads.shares_place(team);
            let Some((turn, head)) = contenders.heads.leave(team) else {
                continue;
            };
            let may_come_earlier = match &head.turn {
                What::Preempts(preempting) => {
                    self.may_reach_less(team, preempting, &mut afterwards)
                }
                What::Fits { .. } => {
                    is_place_gone
                        || !self.still_fits(team, &head, shares_place)
                        || self.may_borrow_less(team, &head)
                }
            };
            if !may_come_earlier {
                let watch = self.watch_head(team, &turn, &head, &mut afterwards);
                let root = self.root_of(team);
                contenders.heads.enter(team, root, (turn, head), watch);
                continue;
            }
            // Its head is found anew when it is the next by what is listed here.
            if let Some(least) = self.least_turn(team).filter(|least| *least < turn) {
                contenders.order.remove(&(turn, team));
                contenders.order.insert((least, team));
            }
        }
        self.moments.afterwards = afterwards;
    }

    pub(super) fn root_of(&self, team: TeamId) -> Option<NodeId> {
        let node = self.teams.get(team)?.node?;
        Some(self.tree.root_of(node))
    }

    /// Whether a gang could have the place still that was found for it, with as many of its pods and at the same charge. Nothing came free since: then it has no
    /// better one either, and its turn is not earlier.
    fn has_its_place(&self, team: TeamId, gang: GangId, fitting: &Fitting, as_of: Moment) -> bool {
        let Some((entry, waiting)) = self.teams.get(team).zip(self.waiting.get(gang)) else {
            return false;
        };
        let assignment = fitting.assignment.and_then(|at| entry.assignments.get(at));
        let flavor = assignment.and_then(|it| self.flavors.get(&it.flavor));
        let request = Request {
            demand: fitting.demand(waiting),
            ..request(waiting, flavor)
        };
        holds_still(&self.cluster, &request, &fitting.plan, as_of.nodes)
    }

    /// Whether nothing was taken from under a head since it was judged; of one that is known to have a place, no quota.
    pub(super) fn still_fits(&self, team: TeamId, head: &Head, has_place: bool) -> bool {
        let What::Fits { fitting, .. } = &head.turn else {
            return false;
        };
        let plan = &fitting.plan;
        if !has_place && !self.has_its_place(team, head.gang, fitting, head.moment) {
            return false;
        }
        let Some(at) = fitting.assignment else {
            return true;
        };
        let Some((entry, waiting)) = self.teams.get(team).zip(self.waiting.get(head.gang)) else {
            return false;
        };
        let assignments = &entry.assignments;
        let asking = fitting.asking(waiting.shape);
        let candidate = self.candidate_asking(asking, head.gang, entry.node, assignments, at);
        candidate.is_some_and(|candidate| self.cost(&candidate, plan.clone(), &self.tree).is_ok())
    }

    /// Whether a head may borrow from less far up than it would with the devices that were found for it. On Flavors that it
    /// was refused, nothing has come free since.
    pub(super) fn may_borrow_less(&self, team: TeamId, head: &Head) -> bool {
        match &head.turn {
            What::Fits { fitting, .. } => self.may_be_had_for_less(team, head.gang, fitting),
            What::Preempts(_) => true,
        }
    }

    fn may_be_had_for_less(&self, team: TeamId, gang: GangId, fitting: &Fitting) -> bool {
        let Some((entry, waiting)) = self.teams.get(team).zip(self.waiting.get(gang)) else {
            return true;
        };
        let mut fits_on = fitting.fits_on.iter();
        fits_on.any(|at| {
            let all = &entry.assignments;
            let asking = fitting.asking(waiting.shape);
            let candidate = self.candidate_asking(asking, gang, entry.node, all, *at);
            let least = candidate.map(|it| self.may_be_charged(&it, &self.tree));
            matches!(least, Some(Ok(least)) if least < fitting.borrow_level)
        })
    }

    /// A lower bound of a Team's turn.
    fn least_turn(&self, team: TeamId) -> Option<Turn> {
        let queues = &self.teams.get(team)?.queues;
        let open = queues.iter().filter(|wait| self.waits.is_open(**wait));
        let turns = open.filter_map(|wait| {
            let place = self.waits.queue(*wait)?.earliest_of(team)?;
            Some((self.precedence(team, *wait), place))
        });
        let (precedences, places): (Vec<Precedence>, Vec<&Place>) = turns.unzip();
        Some((
            precedences.into_iter().min()?,
            places.into_iter().min()?.clone(),
        ))
    }

    /// The listed Team whose turn comes first, by a lower bound.
    fn first_listed(&mut self, work: &mut Work) -> Option<(Turn, TeamId)> {
        let mut first: Option<(Turn, TeamId)> = None;
        for wait in self.waits.open().collect::<Vec<_>>() {
            while let Some((turn, team)) = self.waits.queue(wait).and_then(WaitQueue::next).cloned()
            {
                if first.as_ref().is_some_and(|(least, _)| *least <= turn) {
                    break;
                }
                if !self.is_still_open(wait, work) {
                    break;
                }
                // The Team may borrow from further up by now than when it was listed.
                let precedence = self.precedence(team, wait);
                if precedence != turn.0 {
                    if let Some(queue) = self.waits.queue_mut(wait) {
                        queue.relist(team, Some(precedence));
                    }
                    continue;
                }
                first = Some((turn, team));
                break;
            }
        }
        first
    }

    /// Whether an open queue is so still; else it is shut.
    fn is_still_open(&mut self, wait: Wait, work: &mut Work) -> bool {
        match wait {
            Wait::Ready => true,
            Wait::Change => false,
            Wait::Quota(node, pair, need) => {
                let ceiling = self.tree.ceiling(node, pair);
                let open = ceiling.is_none_or(|ceiling| ceiling >= need);
                if !open {
                    self.waits.shut(wait);
                }
                open
            }
            Wait::Place(id) => {
                let version = self.cluster.version();
                let Some(group) = self.waits.group_of(id) else {
                    return false;
                };
                if !self.has_quota(group) {
                    self.shut_group(id);
                    return false;
                }
                if group.asked == version {
                    return true;
                }
                work.visited.groups += 1;
                let (request, closed) = (group.request(), group.closed);
                let cluster = &self.cluster;
                let open = work.may_help(cluster, |effort| {
                    fits_since(cluster, &request, closed, effort)
                }) || self.may_backfill(group, work);
                if open {
                    self.waits.note_asked(id, version);
                } else {
                    self.close_group(id, version);
                }
                open
            }
        }
    }

    /// Whether the quota that a group lacks is there.
    fn has_quota(&self, group: &Group) -> bool {
        group.quota().is_none_or(|quota| {
            let ceiling = self.tree.ceiling(quota.node, quota.pair);
            ceiling.is_none_or(|ceiling| ceiling >= quota.need)
        })
    }

    /// Finds out which groups what changed could help; whether anybody is awake.
    fn open_groups(&mut self, work: &mut Work) -> bool {
        let version = self.cluster.version();
        let nodes_changed = std::mem::replace(&mut self.groups_asked, version) != version;
        if nodes_changed || self.waits.has_quota_since() {
            self.waits.note_quota_asked();
            let mut opening = Vec::new();
            for id in self.waits.lacking_place() {
                let Some(group) = self.waits.group_of(id) else {
                    continue;
                };
                work.visited.groups += 1;
                if !self.has_quota(group) {
                    self.waits.quota_is_gone(id);
                    continue;
                }
                let (request, closed) = (group.request(), group.closed);
                let cluster = &self.cluster;
                if work.may_help(cluster, |effort| {
                    fits_since(cluster, &request, closed, effort)
                }) || self.may_backfill(group, work)
                {
                    opening.push(id);
                }
            }
            for id in opening {
                let passed = self.waits.open_group(id);
                self.waits.note_asked(id, version);
                self.step_back_in(id, passed);
            }
        }
        self.waits.is_anybody_awake()
    }

    /// Nothing that changed until then helps any member of a group.
    fn close_group(&mut self, id: GroupId, as_of: Version) {
        let passed = self.waits.close(id, Refusal { as_of });
        self.step_back_in(id, passed);
    }

    /// A group lacks quota again.
    fn shut_group(&mut self, id: GroupId) {
        self.waits.quota_is_gone(id);
        let passed = self.waits.shut_group(id);
        self.step_back_in(id, passed);
    }

    /// Everybody was judged whom what changed could help.
    fn close_groups(&mut self) {
        let as_of = self.groups_asked;
        for wait in self.waits.open().collect::<Vec<_>>() {
            match wait {
                Wait::Place(id) => {
                    let group = self.waits.group_of(id);
                    if group.is_some_and(|group| self.has_quota(group)) {
                        self.close_group(id, as_of);
                    } else {
                        self.shut_group(id);
                    }
                }
                Wait::Quota(..) => self.waits.shut(wait),
                Wait::Ready | Wait::Change => {}
            }
        }
    }

    /// The head of a Team, with its turn. Whoever is judged on the way and does not fit waits from then on.
    fn head(
        &mut self,
        team: TeamId,
        budget: &Budget,
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> Option<(Turn, Head)> {
        loop {
            let class = self.first_awake(team, work)?;
            let place = self.classes.get(class)?.line.place()?.clone();
            let gang = self.classes.get(class)?.line.first()?;
            let mut needs = self.needs(gang)?;
            if !budget.empty.holds(&needs) {
                self.set_too_large(class, needs, budget, decisions);
                continue;
            }
            match self.judge(class, gang, work) {
                Ok(fitting) => {
                    needs.nodes = fitting.plan.slots().len();
                    if !budget.empty.holds(&needs) {
                        self.set_too_large(class, needs, budget, decisions);
                        continue;
                    }
                    let preempting = self.find_victims_rather(gang, &fitting, work);
                    let fitting = match preempting {
                        Some(_) => fitting,
                        None => self.grow(gang, fitting, &budget.empty, work),
                    };
                    let needs = self.needs_of(gang, &fitting)?;
                    let (borrow_level, turn) = if let Some(preempting) = preempting {
                        (preempting.borrow_level, What::Preempts(preempting))
                    } else {
                        let (level, fitting) = (fitting.borrow_level, Box::new(fitting));
                        (level, What::Fits { fitting, needs })
                    };
                    let head = Head {
                        gang,
                        turn,
                        moment: self.moment(),
                    };
                    return Some(((Precedence::Reaching(borrow_level), place), head));
                }
                Err(refusals) => {
                    if let Some(preempting) = self.find_victims(class, gang, &refusals, work) {
                        let turn = (Precedence::Reaching(preempting.borrow_level), place);
                        let head = Head {
                            gang,
                            turn: What::Preempts(preempting),
                            moment: self.moment(),
                        };
                        return Some((turn, head));
                    }
                    self.refuse(class, &refusals);
                    if work.is_enough() {
                        decisions.interrupted = true;
                        return None;
                    }
                }
            }
        }
    }

    /// What a commit needs for a gang, as far as it is known without a placement.
    pub(super) fn needs(&self, gang: GangId) -> Option<CommitRoom> {
        let totals = &self.shapes.get(self.waiting.get(gang)?.shape)?.totals;
        Some(CommitRoom {
            gangs: 1,
            pods: totals.pods,
            claims: totals.claims,
            nodes: 0,
        })
    }

    fn set_too_large(
        &mut self,
        class: ClassId,
        needs: CommitRoom,
        budget: &Budget,
        decisions: &mut Decisions,
    ) {
        let Some(Class { line, .. }) = self.classes.get(class).cloned() else {
            return;
        };
        for id in line.gangs() {
            self.unseat(id);
            if let Some(waiting) = self.waiting.get_mut(id) {
                waiting.too_large = true;
                decisions.too_large.push(TooLarge {
                    gang: waiting.gang.uid.clone(),
                    attempt: waiting.gang.attempt,
                    needs,
                    most: budget.empty,
                });
            }
            self.too_large.insert(id, needs);
        }
    }

    /// The first class of a Team that may be judged: it is in an open queue, and if in a group's, what came free since it
    /// was refused may help it. Where that does not hold it is set aside.
    fn first_awake(&mut self, team: TeamId, work: &mut Work) -> Option<ClassId> {
        loop {
            let queues = self.teams.get(team)?.queues.clone();
            let mut first: Option<(Standing, ClassId, Wait)> = None;
            for wait in queues {
                if !self.waits.is_open(wait) || !self.is_still_open(wait, work) {
                    continue;
                }
                let queue = self.waits.queue(wait);
                let of_team = queue.and_then(|queue| queue.first_of(team));
                if let Some((standing, class)) = of_team
                    && first.as_ref().is_none_or(|(least, ..)| standing < least)
                {
                    first = Some((standing.clone(), *class, wait));
                }
            }
            let (_, class, wait) = first?;
            if self.may_help(class, wait) {
                return Some(class);
            }
            work.visited.classes += 1;
            self.set_aside(class, wait);
        }
    }

    /// Whether what came free may help a member of a group. No member had a place as of when the group closed last, even if
    /// it was refused itself long before.
    fn may_help(&mut self, class: ClassId, wait: Wait) -> bool {
        let Wait::Place(id) = wait else { return true };
        let group = self.waits.group_of(id);
        let Some((group, class)) = group.zip(self.classes.get(class)) else {
            return true;
        };
        let (flavor, shape) = (group.flavor().cloned(), class.shape);
        let Some(gang) = class.line.first() else {
            return true;
        };
        let waiting = self.waiting.get(gang);
        if waiting
            .is_some_and(|waiting| self.may_help_inside(waiting, flavor.as_ref(), group.closed))
        {
            return true;
        }
        let closed = group.closed.as_of;
        let amounts = self.shapes.get(shape).map(|shape| &shape.amounts);
        if amounts.is_some_and(|amounts| group.is_hopeless(amounts)) {
            return false;
        }
        if let Some(shape) = self.shapes.get_mut(shape)
            && let Some(refused) = shape.refused.get_mut(&flavor)
            && refused.gave_up_after.is_none()
        {
            let as_of = &mut refused.refusal.as_of;
            *as_of = closed.max(*as_of);
        }
        self.may_have_a_place(shape, gang, flavor.as_ref())
    }

    fn set_aside(&mut self, class: ClassId, wait: Wait) {
        let Wait::Place(group) = wait else { return };
        let Some(team) = self.classes.get(class).map(|class| class.team) else {
            return;
        };
        let class_line = self.classes.get(class).map(|class| &class.line);
        if let Some(standing) = class_line.and_then(ClassLine::standing) {
            self.step_out(class, wait, &standing);
            self.waits.pass(group, team, class);
        }
    }

    /// A class does not fit: it waits for what each Flavor lacks.
    fn refuse(&mut self, id: ClassId, refusals: &[Refusing]) {
        self.leave_all_queues(id);
        let Some(class) = self.classes.get(id) else {
            return;
        };
        let (team, shape) = (class.team, class.shape);
        let standing = class.line.standing();
        let assignments = self.teams.get(team).map(|entry| entry.assignments.clone());
        for (at, refusing) in refusals.iter().enumerate() {
            let flavor = assignments.as_ref().and_then(|all| all.get(at));
            let flavor = flavor.map(|assignment| assignment.flavor.clone());
            match refusing {
                Refusing::Quota { pair, lack, .. } => {
                    self.watch_for_quota(id, *pair, *lack);
                    let quota = QuotaNeed {
                        node: lack.node,
                        pair: *pair,
                        need: lack.need,
                    };
                    let shape = self.shapes.get(shape);
                    let refused = shape.and_then(|shape| shape.refused.get(&flavor)).copied();
                    match refused {
                        Some(Refused { refusal, .. }) => {
                            self.wait_for_place(id, flavor.as_ref(), Some(quota), refusal);
                        }
                        None => {
                            self.wait_for(id, Wait::Quota(quota.node, quota.pair, quota.need));
                        }
                    }
                }
                Refusing::Nominal {
                    pair,
                    asked,
                    lesser,
                } => {
                    self.wait_for_nominal(id, *pair, *asked);
                    if let Some((refusal, _)) = lesser {
                        self.wait_for_place(id, flavor.as_ref(), None, *refusal);
                    }
                }
                Refusing::QuotaForDevices {
                    pair,
                    lack,
                    refusal,
                    ..
                } => {
                    self.watch_for_quota(id, *pair, *lack);
                    self.wait_for(id, Wait::Quota(lack.node, *pair, lack.need));
                    self.wait_for_place(id, flavor.as_ref(), None, *refusal);
                }
                Refusing::TooFewDevices(refusal) | Refusing::NoPlace { refusal, .. } => {
                    let group = self.wait_for_place(id, flavor.as_ref(), None, *refusal);
                    let is_certain = matches!(refusing, Refusing::NoPlace { gave_up: false, .. });
                    if let Some((group, shape)) = group.zip(self.shapes.get(shape))
                        && is_certain
                    {
                        self.waits.note_failed(group, &shape.amounts);
                    }
                }
                Refusing::ExceedsMax { .. }
                | Refusing::Unnamed
                | Refusing::UnknownFlavor
                | Refusing::ExcludedFlavor
                | Refusing::Overflow => self.wait_for(id, Wait::Change),
                // It is judged there once it is the first in line.
                Refusing::BehindHead => {}
            }
        }
        if refusals.is_empty() {
            self.wait_for(id, Wait::Change);
        }
        self.wait_for_victims(id);
        self.note_lacks_place(id, refusals);
        self.note_reason(id, refusals);
        let strict = self
            .teams
            .get(team)
            .is_some_and(super::team::TeamEntry::is_strict);
        if let Some(standing) = standing
            && strict
        {
            self.leave_lines(team, id, &standing, refusals);
        }
    }

    fn note_reason(&mut self, id: ClassId, refusals: &[Refusing]) {
        let nearest = refusals.iter().map(Refusing::reason).min();
        let nearest = nearest.unwrap_or(Reason::Other);
        let alike = refusals.iter().filter(|it| it.reason() == nearest);
        let lacking = alike.filter_map(|it| Some(self.tree.named(it.lacking()?).clone()));
        let reason = (nearest, lacking.collect::<Vec<_>>());
        let Some(class) = self.classes.get_mut(id) else {
            return;
        };
        if class.reason.as_ref() != Some(&reason) {
            class.reason = Some(reason);
            self.changed_classes.insert(id);
        }
    }

    fn wait_for_nominal(&mut self, id: ClassId, pair: crate::quota::PairId, asked: Amount) {
        self.wait_for(id, Wait::Change);
        let class = self.classes.get_mut(id);
        let Some((class, teams)) = class.zip(Some(&self.teams)) else {
            return;
        };
        if let Some(node) = teams.get(class.team).and_then(|team| team.node) {
            let needs = (node, pair, i128::from(asked.0));
            class.within_nominal.push(needs);
            self.waits.wait_for_nominal(needs, id);
        }
    }

    fn watch_for_quota(
        &mut self,
        id: ClassId,
        pair: crate::quota::PairId,
        lack: crate::quota::Lack,
    ) {
        let team = self
            .classes
            .get(id)
            .and_then(|class| self.teams.get(class.team));
        let Some(node) = team.and_then(|team| team.node) else {
            return;
        };
        for keeping in self.tree.keeping(node, lack.node, pair) {
            self.waits.watch(keeping, pair, id);
            if let Some(class) = self.classes.get_mut(id) {
                class.watches.push((keeping, pair));
            }
        }
    }

    fn wait_for_place(
        &mut self,
        id: ClassId,
        flavor: Option<&crate::names::FlavorName>,
        quota: Option<QuotaNeed>,
        refusal: Refusal,
    ) -> Option<GroupId> {
        let class = self.classes.get(id)?;
        let shape = self.shapes.get(class.shape);
        let gang = class.line.first().and_then(|gang| self.waiting.get(gang));
        let (shape, waiting) = shape.zip(gang)?;
        let topology = flavor.and_then(|name| self.flavors.get(name)?.topology.as_ref());
        let group = self.waits.group(
            flavor,
            topology,
            (&shape.rounded, &waiting.demand),
            (&waiting.gang.topology, waiting.gang.priority),
            quota,
            refusal,
        );
        self.wait_for(id, Wait::Place(group));
        Some(group)
    }
}
