//! Which of the gangs that recover and wait is asked when: before anybody else, in the order of their places, and no more of them by one call than that
//! an event costs the same however many there are.
//!
//! A gang is asked again only if something came free since it was asked last, on any node (be it what is kept there already, see
//! [`Cluster::free_beneath`](crate::placement::Cluster::free_beneath)), or in the tree of its Team; or if somebody came whom it may
//! preempt ([`super::comers`]; both are [`AskedAt`]); or once it may preempt
//! others by time alone whom it could not ask then, since a minimum run time ended, say ([`Judged`]). That it was
//! asked itself frees nothing and lets nobody be preempted, though what is kept for it is given up for the question and kept again. Nobody is looked at while none of
//! these happened.
//!
//! | who is asked by a call, if anything or anybody came, or is due | how many in vain at most |
//! |---|---|
//! | the first in order | [`MOST_OF_THE_FIRST`] |
//! | those that began to wait, that an obstacle keeps from it no more, or that may preempt others by now, in order | [`MOST_SINGLY`], and as many as [`MOST_PASSED`] are passed over |
//! | the others, from where the last call ended, in order | [`MOST_IN_PASSING`], and as many as [`MOST_PASSED`] are passed over |
//!
//! None of the three asks on once it took as many looks in vain as one decision may. Whoever is asked and has room costs what its admission costs, and counts for nothing here.
//! Passed over is for whom nothing came free, and for whom another one was asked that is like it ([`super::alike`]): of thousands that lost the same
//! and ask for the same a call asks one, and a pass over 10,000 of them takes ten calls.
//!
//! **Order.** What comes free is offered to the first of all in each call, whatever was left by the one before. So up to so many gangs nobody is asked
//! before whoever is before it. Of more, one that stands far behind may be served with what one before it would have had, if that came free between their
//! turns.
//!
//! **Nobody starves.** The *pass* over all of them begins at the first, goes on where the last call ended, and begins anew only once it was through, if anything has come
//! free since it began. Each call gets on by one at least in each of the three, even where searches in vain have taken enough, so whatever comes free, and
//! how often, each is asked after at most two passes. A gang that begins to wait is part of them as well: where more began than are
//! asked singly, a pass reaches the last.
//!
//! **What is left** is asked by the next call ([`Keeps::due_next`](super::Keeps::due_next)), which is due a second later, if nothing is observed before. Others have their
//! turn meanwhile: they take nothing of what is kept, and are not held up by whoever cannot be served.

use super::judging::Judgement;
use crate::{
    decision::{Budget, CommitRoom, Decisions},
    names::{GangUid, Timestamp},
    placement::Effort,
    queue::Place,
    state::{State, ids::GangId, work::Work},
};

/// How many of the first in order one turn looks at and leaves waiting.
const MOST_OF_THE_FIRST: usize = 64;
/// How many a call asks in vain that began to wait.
const MOST_SINGLY: usize = 32;
/// How many a call asks in vain in its pass.
const MOST_IN_PASSING: usize = 64;
/// How many a call passes over in its pass, and of those that began to wait, since nothing came free for them, or another one was asked that is like them.
const MOST_PASSED: usize = 1024;

/// What has come so far for gangs that recover. While it is the same, nobody is asked who was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// How often something came free on nodes, or a Topology changed.
    nodes: u64,
    /// How often something came free in any tree.
    freed: u64,
    /// How often somebody came whom any of them may ask to give way.
    came: u64,
    /// How often all that was found out ceased to hold.
    all: u64,
}

/// As of when a gang was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskedAt {
    /// See [`News`].
    nodes: u64,
    /// How often something had come free in the tree of its Team.
    freed: u64,
    /// How often somebody had come whom it may ask to give way.
    came: u64,
}

/// What came of asking a gang in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) as_of: AskedAt,
    /// When it may preempt others by time alone: then that does not hold any more.
    pub(super) more_at: Option<Timestamp>,
}

/// Who was asked of those that wait, and who is next.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    news: News,
    /// What came of the first in order was found out as of then.
    first_as_of: Option<News>,
    /// When the pass began that is under way, or the last one.
    pass_as_of: Option<News>,
    /// The pass that is under way.
    pass: Option<Pass>,
}

/// A pass over all that wait.
#[derive(Clone, Debug)]
struct Pass {
    /// The last one that it has come to.
    after: Option<Place>,
}

impl Turns {
    /// What was found out does not hold any more, for anybody.
    pub(super) fn begin_anew(&mut self) {
        self.news.all += 1;
    }
}

/// How much of one turn is left.
struct Left {
    in_vain: usize,
    passed: usize,
    /// Looks of asking in vain.
    looks: u64,
    /// Whether anybody was asked: each turn gets on by one at least.
    is_any_asked: bool,
}

impl Left {
    fn of(in_vain: usize, passed: usize) -> Self {
        Self {
            in_vain,
            passed,
            looks: Effort::ONE_DECISION,
            is_any_asked: false,
        }
    }

    fn is_over(&self, work: &Work) -> bool {
        let is_enough = self.looks == 0 || work.is_enough();
        self.in_vain == 0 || self.passed == 0 || (self.is_any_asked && is_enough)
    }
}

/// What a turn came to.
enum Turn {
    /// Somebody was admitted, or waits no longer among these.
    Settled,
    /// All that were looked at wait on.
    InVain,
    /// It asks no more.
    Over,
    /// The next commit is to go on.
    NextCommit,
}

impl State {
    /// Judges those that recover and wait, before anybody else.
    pub(in crate::state) fn settle_recovering(
        &mut self,
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) {
        self.keeps.is_any_left = false;
        self.ask_again_who_may_ask_more(work.now);
        self.forget_kinds_that_left();
        if self.keeps.parked.is_empty() {
            // Who begins to wait is asked for itself, whoever came before.
            self.keeps.comers.forget_all();
            return;
        }
        let mut of_call = [
            Left::of(MOST_OF_THE_FIRST, usize::MAX),
            Left::of(MOST_SINGLY, MOST_PASSED),
            Left::of(MOST_IN_PASSING, MOST_PASSED),
        ];
        // What was kept for one that got something else, or stands in line from now on, may help another one that was judged before it. That one waits no
        // more, so this ends.
        loop {
            let turn = self.settle_recovering_in_turn(&mut of_call, budget, left, decisions, work);
            match turn {
                Turn::Settled => {}
                Turn::InVain | Turn::Over => break,
                Turn::NextCommit => {
                    self.forget_asked_in_vain();
                    decisions.exhausted = true;
                    return;
                }
            }
        }
        self.forget_asked_in_vain();
        let turns = &self.keeps.turns;
        let is_pass_due = turns.pass.is_some() || turns.pass_as_of != Some(turns.news);
        let is_first_due = turns.first_as_of != Some(turns.news);
        let parked = &self.keeps.parked;
        let is_any_due = is_pass_due || is_first_due || parked.is_anybody_unasked();
        self.keeps.is_any_left = is_any_due && !parked.is_empty();
    }

    /// What was found out about those does not hold any more that may preempt others by now whom they could not ask. Of very many the next call
    /// looks at the others, a second later.
    fn ask_again_who_may_ask_more(&mut self, now: Timestamp) {
        for uid in self.keeps.may_ask_more(now, MOST_PASSED) {
            self.cluster.note_visits(1);
            match self.waiting.id(&uid) {
                Some(id) => self.keeps.judge_again(&uid, id),
                None => self.keeps.set_judged(&uid, None),
            }
        }
    }

    /// Asks the first, those that are to be asked singly, and those whose turn it is by the pass. Whether they are to be asked again.
    fn settle_recovering_in_turn(
        &mut self,
        [first, singly, passing]: &mut [Left; 3],
        budget: &Budget,
        left: &mut CommitRoom,
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> Turn {
        let news = self.news_of_recovering();
        let mut is_any_settled = false;
        let is_any_unasked = self.keeps.parked.is_anybody_unasked();
        if is_any_unasked || self.keeps.turns.first_as_of != Some(news) {
            self.keeps.turns.first_as_of = None;
            let (mut after, mut looked) = (None, 0);
            let is_through = loop {
                if looked == MOST_OF_THE_FIRST {
                    break true;
                }
                let Some((place, id)) = self.keeps.parked.next_after(after.as_ref()) else {
                    break true;
                };
                match self.look_at(id, &place, first, (budget, &mut *left), decisions, work) {
                    Turn::Settled => is_any_settled = true,
                    Turn::InVain => looked += 1,
                    Turn::Over => break false,
                    Turn::NextCommit => return Turn::NextCommit,
                }
                after = Some(place);
            };
            if is_through {
                self.keeps.turns.first_as_of = Some(news);
            }
        }
        let mut after = None;
        while singly.passed > 0 {
            let Some((place, id)) = self.keeps.parked.next_unasked_after(after.as_ref()) else {
                break;
            };
            match self.look_at(id, &place, singly, (budget, &mut *left), decisions, work) {
                Turn::Settled => is_any_settled = true,
                Turn::InVain => {}
                Turn::Over => break,
                Turn::NextCommit => return Turn::NextCommit,
            }
            after = Some(place);
        }
        let is_any_unasked = self.keeps.parked.is_anybody_unasked();
        let turns = &mut self.keeps.turns;
        if turns.pass.is_none() && (is_any_unasked || turns.pass_as_of != Some(news)) {
            turns.pass = Some(Pass { after: None });
            turns.pass_as_of = Some(news);
        }
        while passing.passed > 0
            && let Some(pass) = &self.keeps.turns.pass
        {
            let Some((place, id)) = self.keeps.parked.next_after(pass.after.as_ref()) else {
                self.keeps.turns.pass = None;
                break;
            };
            match self.look_at(id, &place, passing, (budget, &mut *left), decisions, work) {
                Turn::Settled => is_any_settled = true,
                Turn::InVain => {}
                // It is the next to be asked still.
                Turn::Over => break,
                Turn::NextCommit => return Turn::NextCommit,
            }
            let after = Some(place);
            self.keeps.turns.pass = Some(Pass { after });
        }
        let is_over = [first, singly, passing].iter().all(|it| it.is_over(work));
        self.news_of_recovering();
        if is_any_settled && !is_over {
            Turn::Settled
        } else {
            Turn::InVain
        }
    }

    /// Looks at one, and asks it whether it has room, if it is to be asked, and the turn is not over.
    fn look_at(
        &mut self,
        id: GangId,
        place: &Place,
        turn: &mut Left,
        commit: (&Budget, &mut CommitRoom),
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> Turn {
        match self.due_to_be_asked(id, place, turn, work) {
            None => Turn::InVain,
            Some(_) if turn.is_over(work) => Turn::Over,
            Some(uid) => self.ask_recovering((&uid, id, place), turn, commit, decisions, work),
        }
    }

    /// The UID of one, if it is to be asked whether it has room. It is not if something is in its way, if what came of asking it last holds still, or if
    /// another one was asked for it since.
    fn due_to_be_asked(
        &mut self,
        id: GangId,
        place: &Place,
        turn: &mut Left,
        work: &mut Work,
    ) -> Option<GangUid> {
        work.visited.recovering += 1;
        self.cluster.note_visits(1);
        let waiting = self.waiting.get(id);
        // It is asked as soon as what is in its way is not.
        let waiting = waiting.filter(|waiting| waiting.obstacle().is_none());
        let uid = waiting.map(|waiting| waiting.gang.uid.clone());
        let uid = uid.filter(|uid| self.keeps.has(uid));
        self.note_free_nodes();
        let now = self.asked_now(id);
        let keep = uid.as_ref().and_then(|uid| self.keeps.by_gang.get(uid));
        let judged = keep.and_then(|keep| keep.judged);
        let is_in_vain = judged.is_some_and(|judged| judged.as_of == now);
        if let Some(uid) = uid.filter(|_| !is_in_vain) {
            let Some(judged) = self.asked_for(&uid, id, place, now) else {
                return Some(uid);
            };
            self.keeps.set_judged(&uid, Some(judged));
        }
        self.keeps.parked.note_asked(place);
        turn.passed = turn.passed.saturating_sub(1);
        None
    }

    /// Asks one whether it has room.
    fn ask_recovering(
        &mut self,
        (uid, id, place): (&GangUid, GangId, &Place),
        turn: &mut Left,
        (budget, left): (&Budget, &mut CommitRoom),
        decisions: &mut Decisions,
        work: &mut Work,
    ) -> Turn {
        turn.is_any_asked = true;
        let before = self.cluster.visited();
        let judgement = self.judge_recovering(uid, id, budget, left, decisions, work);
        let looks = self.keeps.comers.end_question();
        self.cluster.note_visits(looks);
        match judgement {
            Judgement::Settled => Turn::Settled,
            Judgement::InVain { more_at, lacks } => {
                if let Some(kind) = self.kind_of_asking(id) {
                    self.keeps.comers.note_lacks(kind, lacks);
                }
                turn.in_vain = turn.in_vain.saturating_sub(1);
                let looks = self.cluster.visited().wrapping_sub(before);
                turn.looks = turn.looks.saturating_sub(looks);
                let as_of = self.asked_now(id);
                let judged = Judged { as_of, more_at };
                self.keeps.set_judged(uid, Some(judged));
                self.note_asked_in_vain(uid, id, place, judged);
                self.keeps.parked.note_asked(place);
                Turn::InVain
            }
            Judgement::NextCommit => {
                self.keeps.judge_again(uid, id);
                Turn::NextCommit
            }
        }
    }

    /// What has come so far.
    fn news_of_recovering(&mut self) -> News {
        self.note_free_nodes();
        self.keeps.turns.news.freed = self.moments.freed_in_all();
        self.keeps.turns.news.came = self.keeps.comers.in_all();
        self.keeps.turns.news
    }

    /// Something may have come free on nodes since that was asked last, or been taken.
    fn note_free_nodes(&mut self) {
        let seen = std::mem::replace(&mut self.keeps.nodes_seen, self.cluster.version());
        if seen == self.keeps.nodes_seen {
            return;
        }
        if self.cluster.grown_since(seen).next().is_some()
            || self.cluster.topologies_changed_since(seen)
        {
            self.keeps.turns.news.nodes += 1;
        }
        let looks = self.keeps.comers.note_taken();
        self.cluster.note_visits(looks);
    }

    /// A gang is asked as things are now.
    fn asked_now(&mut self, id: GangId) -> AskedAt {
        AskedAt {
            nodes: self.keeps.turns.news.nodes,
            freed: self.freed_for(id),
            came: self.came_for(id),
        }
    }

    /// What is kept for a gang is about to be given up for a question: what had come free by then in the tree of its Team.
    pub(super) fn begin_question(&mut self, id: GangId) -> u64 {
        self.note_free_nodes();
        self.keeps.comers.begin_question();
        self.freed_for(id)
    }

    /// What was given up for a question is kept again: by that nothing came free, and nobody can be asked, for whoever recovers or waits for victims.
    pub(super) fn undo_question(&mut self, id: GangId, freed: u64) {
        let root = self.waiting.get(id).and_then(|it| self.root_of(it.team));
        if let Some(root) = root {
            self.moments.forget_freed_since(root, freed);
        }
        self.keeps.comers.undo_question();
        self.keeps.nodes_seen = self.cluster.version();
    }
}
