//! Classes that nobody could give way to, and after what they are asked again whether somebody could now.
//!
//! A gang that may preempt needs less than a gang that may not: what is there, and what others would give up for it, need only
//! suffice together. So it is not enough to wake it when all that it lacks comes free. When it searched for victims in vain, it
//! is worked out how much it would lack at a node of the quota tree even if everybody were gone who could be asked. It is asked
//! again once so much has come at that node since, summed up. What comes is
//! * what will be charged no longer: somebody ended, or something is kept for a gang no longer;
//! * what somebody holds who can be asked from now on: it was told as running, or as another one; it gives way to nobody any more;
//! * what a Team or Cohort uses that begins to borrow: all of it may be asked for from now on, and all that it uses of other
//!   resources, since who lacks several is given way to by whoever borrows one of them.
//!
//! What can be asked comes only if somebody who waits may ask for it ([`Asks`]): what runs is mostly as important as who waits.
//!
//! Who asks for several resources and lacks one of them counts on those, too, who could be asked if it lacked all.
//!
//! The sum never falls, so that one may be asked too early, and never too late. Who lacks no quota in that case waits for what
//! may help it ([`Lacking`]), and is asked in turn then: a few of those in each call ([`MOST_ASKED`]), and more as long as that
//! is cheap.
//!
//! The end of a minimum run time is an event of its own ([`State::wake_whoever_may_preempt`]), and so is a change of limits.

use std::collections::{BTreeMap, BTreeSet};

use super::{State, ids::ClassId};
use crate::{
    names::{GangUid, Timestamp},
    placement::Version,
    quota::{NodeId, PairId, PreemptionPolicy, ReclaimWithinCohort, Sharing, WithinTeam},
};

/// How many classes that do not lack quota are asked again at once.
const MOST_ASKED: usize = 2;

/// Where so much has to come before a class is asked again.
pub(super) type Hope = (NodeId, PairId, i128);

/// What came at a node since somebody waits for it, and who waits until how much came.
#[derive(Clone, Debug, Default)]
struct Sum {
    came: i128,
    until: BTreeSet<(i128, ClassId)>,
}

/// What a class lacks that would have enough quota without everybody who can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lacking {
    /// Somebody of its own Team who can be asked: then it is asked again at once. Besides it waits for another share to be as large as its own would be
    /// ([`super::share_waits`]).
    Share,
    /// Somebody who can be asked. Whoever came free or moved elsewhere is no help.
    Somebody,
    /// A place, or a right: besides, what comes free helps.
    Place,
    /// Only that the victims of others are gone. What is taken meanwhile may be what it waits for: then it has to ask. And where others
    /// would have to have more for it to have a right: the larger share, or more of what it would lack then. And where others would have
    /// to go first.
    Time,
}

/// Who can be asked by a class: gangs whose priority is less than these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asks {
    /// Its Team, and gangs of that.
    own: (NodeId, i64),
    /// The root of its tree, and gangs of Teams in that tree that borrow.
    others: (NodeId, i64),
}

impl Asks {
    /// As the policy of a Team says; of gangs of equal priority perhaps too many.
    pub(super) fn of(policy: PreemptionPolicy, priority: i32, team: NodeId, root: NodeId) -> Self {
        let priority = i64::from(priority);
        let own = match policy.within_team {
            WithinTeam::Never => i64::MIN,
            WithinTeam::LowerPriority => priority,
            WithinTeam::LowerOrNewerEqualPriority => priority + 1,
        };
        let others = match policy.reclaim_within_cohort {
            // There is nobody else.
            _ if team == root => i64::MIN,
            ReclaimWithinCohort::Never => i64::MIN,
            ReclaimWithinCohort::LowerPriority => priority,
            ReclaimWithinCohort::Any => i64::MAX,
        };
        Self {
            own: (team, own),
            others: (root, others),
        }
    }

    /// Its own Team, and the root of its tree: gangs there whose priority is less than these.
    pub(super) fn sides(self) -> [(NodeId, i64); 2] {
        [self.own, self.others]
    }

    /// Of those, the gangs of its own Team.
    pub(super) fn only_its_own(self) -> Self {
        let (root, _) = self.others;
        Self {
            others: (root, i64::MIN),
            ..self
        }
    }
}

/// Classes by whom they ask.
#[derive(Clone, Debug, Default)]
struct Asking(BTreeMap<NodeId, BTreeSet<(i64, ClassId)>>);

impl Asking {
    fn enter(&mut self, class: ClassId, asks: Asks) {
        for (node, below) in [asks.own, asks.others] {
            if below > i64::MIN {
                self.0.entry(node).or_default().insert((below, class));
            }
        }
    }

    fn leave(&mut self, class: ClassId, asks: Asks) {
        for (node, below) in [asks.own, asks.others] {
            if let Some(asking) = self.0.get_mut(&node) {
                asking.remove(&(below, class));
                if asking.is_empty() {
                    self.0.remove(&node);
                }
            }
        }
    }

    /// Who asks gangs of this priority at a node: its own Team's, or those who borrow in its tree.
    fn of(&self, node: NodeId, priority: i32) -> impl Iterator<Item = ClassId> {
        let asking = self.0.get(&node).into_iter().flatten().rev();
        let asking = asking.take_while(move |(below, _)| *below > i64::from(priority));
        asking.map(|(_, class)| *class)
    }
}

/// A class that lacks no quota, and what it waits for.
#[derive(Clone, Copy, Debug)]
struct Turn {
    asks: Asks,
    lacking: Lacking,
    number: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Hopes {
    sums: BTreeMap<(NodeId, PairId), Sum>,
    of_class: BTreeMap<ClassId, (Asks, Vec<Hope>)>,
    /// The same by whom they ask.
    hoping: Asking,
    /// Classes that do not lack quota alone.
    turns: BTreeMap<ClassId, Turn>,
    /// The same by whom they ask.
    asking: Asking,
    /// Those that are helped by what comes free, and those that are concerned by any change, by the root of their tree.
    by_root: BTreeMap<(Lacking, NodeId), BTreeSet<ClassId>>,
    /// Those for which something happened, who searched first first.
    ready: BTreeMap<u64, ClassId>,
    /// How many turns were given.
    given: u64,
    /// As of when what happened to nodes was looked at.
    nodes_seen: Version,
    /// Classes by when somebody's minimum run time ends.
    later: BTreeSet<(Timestamp, ClassId)>,
    later_of: BTreeMap<ClassId, Timestamp>,
}

impl Hopes {
    /// A class is asked again once so much came.
    pub(super) fn hope(&mut self, class: ClassId, asks: Asks, (node, pair, lacking): Hope) {
        let sum = self.sums.entry((node, pair)).or_default();
        let until = sum.came + lacking.max(1);
        sum.until.insert((until, class));
        let of_class = self.of_class.entry(class);
        let (_, hopes) = of_class.or_insert_with(|| (asks, Vec::new()));
        hopes.push((node, pair, until));
        self.hoping.enter(class, asks);
    }

    /// A class is asked again at a time.
    pub(super) fn ask_at(&mut self, class: ClassId, at: Timestamp) {
        if let Some(known) = self.later_of.insert(class, at) {
            self.later.remove(&(known, class));
        }
        self.later.insert((at, class));
    }

    /// The first time at which somebody is asked again.
    pub(super) fn next_at(&self) -> Option<(Timestamp, ClassId)> {
        self.later.first().copied()
    }

    /// A class is asked again in its turn, once something happened that may help it.
    pub(super) fn take_turns(&mut self, class: ClassId, asks: Asks, lacking: Lacking) {
        self.given += 1;
        let number = self.given;
        self.asking.enter(class, asks);
        if matches!(lacking, Lacking::Place | Lacking::Time) {
            let root = (lacking, asks.others.0);
            self.by_root.entry(root).or_default().insert(class);
        }
        let turn = Turn {
            asks,
            lacking,
            number,
        };
        self.turns.insert(class, turn);
    }

    /// Whether nobody waits for a turn.
    fn takes_no_turns(&self) -> bool {
        self.turns.is_empty()
    }

    /// Somebody can be asked, by its Team or by those who ask for what is borrowed. Returns those that are asked again at once: they may lack
    /// no more than this, and somebody whose share is larger than theirs is then.
    fn can_be_asked(&mut self, at: NodeId, priority: i32) -> Vec<ClassId> {
        let asking = self.asking.of(at, priority);
        let lacks_share = |class: &ClassId| {
            let turn = self.turns.get(class);
            turn.is_some_and(|turn| turn.lacking == Lacking::Share)
        };
        let (at_once, in_turn) = asking.partition(lacks_share);
        self.happened_for(in_turn);
        at_once
    }

    /// Those who can be asked go in another order: whoever lacks no more than others that would have to take more is asked again in turn.
    fn go_in_another_order(&mut self, root: NodeId, priority: i32) {
        let asking = self.asking.of(root, priority);
        let lacks_time = |class: &ClassId| {
            let turn = self.turns.get(class);
            turn.is_some_and(|turn| turn.lacking == Lacking::Time)
        };
        let classes = asking.filter(lacks_time).collect();
        self.happened_for(classes);
    }

    /// Something happened in the tree of a root to those who lack this.
    fn happened(&mut self, lacking: Lacking, root: NodeId) {
        if let Some(classes) = self.by_root.get(&(lacking, root)) {
            let classes = classes.iter().copied().collect();
            self.happened_for(classes);
        }
    }

    /// Something happened in any tree to those who lack this.
    fn happened_everywhere(&mut self, concerns: impl Fn(Lacking) -> bool) {
        let classes = self.by_root.iter();
        let classes = classes.filter(|((lacking, _), _)| concerns(*lacking));
        let classes = classes.flat_map(|(_, classes)| classes).copied().collect();
        self.happened_for(classes);
    }

    /// These are asked in turn. They wait for nothing else then, so that no event looks at them again.
    fn happened_for(&mut self, classes: Vec<ClassId>) {
        for class in classes {
            if let Some(turn) = self.turns.get(&class).copied() {
                self.stop_waiting(class, &turn);
                self.ready.insert(turn.number, class);
            }
        }
    }

    fn stop_waiting(&mut self, class: ClassId, turn: &Turn) {
        self.asking.leave(class, turn.asks);
        let root = (turn.lacking, turn.asks.others.0);
        if let Some(classes) = self.by_root.get_mut(&root) {
            classes.remove(&class);
            if classes.is_empty() {
                self.by_root.remove(&root);
            }
        }
    }

    /// A class waits for nothing of this any more.
    pub(super) fn forget(&mut self, class: ClassId) {
        if let Some(turn) = self.turns.remove(&class) {
            self.stop_waiting(class, &turn);
            self.ready.remove(&turn.number);
        }
        if let Some(at) = self.later_of.remove(&class) {
            self.later.remove(&(at, class));
        }
        let Some((asks, hopes)) = self.of_class.remove(&class) else {
            return;
        };
        self.hoping.leave(class, asks);
        for (node, pair, until) in hopes {
            if let Some(sum) = self.sums.get_mut(&(node, pair)) {
                sum.until.remove(&(until, class));
                if sum.until.is_empty() {
                    self.sums.remove(&(node, pair));
                }
            }
        }
    }

    /// So much came at a node; who has waited for it.
    fn come(&mut self, node: NodeId, pair: PairId, amount: i128) -> Vec<ClassId> {
        let Some(sum) = self.sums.get_mut(&(node, pair)) else {
            return Vec::new();
        };
        sum.came = sum.came.saturating_add(amount);
        let came = sum.came;
        let until = sum.until.iter().take_while(|(until, _)| *until <= came);
        until.map(|(_, class)| *class).collect()
    }

    /// Whether somebody is to be asked in turn.
    pub(super) fn is_anybody_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Who may find victims once something happened.
    pub(super) fn waiting(&self) -> impl Iterator<Item = ClassId> + '_ {
        let waiting = self.of_class.keys().chain(self.turns.keys());
        waiting.copied()
    }

    /// Everybody who waits: the numbers of nodes are about to change.
    pub(super) fn everybody(&self) -> Vec<ClassId> {
        self.waiting().collect()
    }
}

impl State {
    /// So much came at a node and at those above it.
    pub(super) fn note_came(&mut self, from: NodeId, pair: PairId, amount: i128) {
        if self.hopes.sums.is_empty() {
            return;
        }
        let path: Vec<NodeId> = self.tree.path(from).collect();
        for node in path {
            for class in self.hopes.come(node, pair, amount) {
                self.wake(class);
            }
        }
    }

    /// A gang can be asked to give way from now on, that could not before or by others only.
    pub(super) fn note_can_be_asked(&mut self, gang: &GangUid) {
        let does_nobody_wait = self.hopes.sums.is_empty()
            && self.hopes.takes_no_turns()
            && self.keeps.comers.are_awaited_by_nobody();
        if does_nobody_wait || self.tree_is_stale {
            return;
        }
        for delta in self.charges_of(gang) {
            let node = self.tree.node_of(&delta.team);
            if let Some((node, pair)) = node.zip(self.tree.known_pair(&delta.of)) {
                self.note_candidate(gang, (node, pair, delta.amount));
            }
        }
    }

    /// Of those who can be asked others may go first from now on, or this gang is not one of them any more. Who goes first decides whether the
    /// Team of the next one borrows still: whoever searched in vain for no other cause may find enough in another order.
    pub(super) fn note_other_order(&mut self, gang: &GangUid) {
        let does_nobody_wait =
            self.hopes.takes_no_turns() && self.keeps.comers.are_awaited_by_nobody();
        if does_nobody_wait || self.tree_is_stale {
            return;
        }
        let Some(priority) = self.running.get(gang).map(|told| told.priority) else {
            return;
        };
        let tree = &self.moments.afterwards;
        let charges = self.charges_of(gang).into_iter();
        let teams = charges.filter_map(|delta| tree.node_of(&delta.team));
        // Who goes first of the preemptor's own Team decides nothing but which of equal shares counts as the larger one.
        let matters = |team: &NodeId| {
            let is_fair = matches!(tree.sharing_of(*team), Sharing::Fair(_));
            is_fair || tree.pairs_at(*team).any(|pair| tree.borrows(*team, pair))
        };
        let in_cohorts = teams.filter(|team| tree.parent_of(*team).is_some());
        let roots = in_cohorts.filter(matters).map(|team| tree.root_of(team));
        for root in roots.collect::<BTreeSet<NodeId>>() {
            self.hopes.go_in_another_order(root, priority);
            let looks = self.keeps.comers.go_in_another_order(root, priority);
            self.cluster.note_visits(looks);
        }
    }

    /// A gang can be asked for so much of something, if it was told as running.
    pub(super) fn note_candidate(&mut self, gang: &GangUid, (team, pair, amount): Hope) {
        let Some(priority) = self.running.get(gang).map(|told| told.priority) else {
            return;
        };
        let tree = &self.moments.afterwards;
        // Whoever lacks several is given way to by those, too, whose Team borrows another one of these.
        let borrows = tree.pairs_at(team).any(|pair| tree.borrows(team, pair));
        let others = borrows.then(|| tree.root_of(team));
        let (mut is_asked, mut at_once) = (false, Vec::new());
        for at in [Some(team), others].into_iter().flatten() {
            is_asked |= self.hopes.hoping.of(at, priority).next().is_some();
            at_once.extend(self.hopes.can_be_asked(at, priority));
        }
        let looks = self.keeps.comers.can_be_asked(team, others, priority, pair);
        self.cluster.note_visits(looks);
        if is_asked {
            self.note_came(team, pair, amount);
        }
        for class in at_once {
            self.wake(class);
        }
    }

    /// Below a node somebody begins to borrow: whoever it is can be asked for what the node uses, by those above.
    pub(super) fn note_borrows(&mut self, (node, pair, amount): Hope) {
        let tree = &self.moments.afterwards;
        let (root, above) = (tree.root_of(node), tree.parent_of(node));
        let at_once = self.hopes.can_be_asked(root, i32::MIN);
        let looks = self.keeps.comers.begin_to_borrow(node, root, pair);
        self.cluster.note_visits(looks);
        if let Some(above) = above
            && self.hopes.hoping.of(root, i32::MIN).next().is_some()
        {
            // Whoever lacks several is given way to by those, too, who borrow only one of them.
            let others = tree.pairs_at(node).filter(|other| *other != pair);
            let others = others.map(|other| (other, tree.usage_and_headroom(node, other).0));
            let others: Vec<_> = others.collect();
            self.note_came(above, pair, amount);
            for (other, amount) in others {
                self.note_came(above, other, amount);
            }
        }
        for class in at_once {
            self.wake(class);
        }
    }

    /// What is charged at a node afterwards changes.
    pub(super) fn note_charged(&mut self, node: NodeId, amount: i128) {
        let root = self.moments.afterwards.root_of(node);
        // What is charged no longer is noticed by those that recover as what came free.
        if amount > 0 {
            let looks = self.keeps.comers.note_charged(root);
            self.cluster.note_visits(looks);
        }
        if self.hopes.takes_no_turns() {
            return;
        }
        self.hopes.happened(Lacking::Time, root);
        if amount < 0 {
            self.hopes.happened(Lacking::Place, root);
        }
    }

    /// Who lacked a right may have it.
    pub(super) fn note_rights(&mut self) {
        self.hopes
            .happened_everywhere(|lacking| lacking >= Lacking::Place);
        let looks = self.keeps.comers.note_rights();
        self.cluster.note_visits(looks);
    }

    /// Has those who wait for it notice what happened to nodes.
    pub(super) fn note_nodes(&mut self) {
        let seen = std::mem::replace(&mut self.hopes.nodes_seen, self.cluster.version());
        if seen == self.cluster.version() || self.hopes.takes_no_turns() {
            return;
        }
        let came = self.cluster.grown_since(seen).next().is_some()
            || self.cluster.topologies_changed_since(seen);
        self.hopes.happened_everywhere(|lacking| match lacking {
            Lacking::Somebody | Lacking::Share => false,
            Lacking::Place => came,
            Lacking::Time => true,
        });
    }

    /// Asks some of those again who do not lack quota alone; whether there were any.
    pub(super) fn wake_in_turn(&mut self) -> bool {
        self.note_nodes();
        let ready = self.hopes.ready.values().take(MOST_ASKED);
        let ready: Vec<ClassId> = ready.copied().collect();
        for class in &ready {
            self.wake(*class);
        }
        !ready.is_empty()
    }
}
