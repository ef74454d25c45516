//! Who came that gangs which recover may ask to give way, though nothing came free and no time passed: a gang of a lower tier that was admitted, one that may
//! be preempted from now on, one whose minimum run time was shortened, and whoever borrows from now on.
//!
//! Gangs in line wait for that class by class ([`crate::state::hopes`]). Gangs that recover are asked again if the number of those who came for their *kind* is
//! another one than when they were asked ([`AskedAt`](super::turns::AskedAt)): gangs of one Team and of the same priority, which may ask the same.
//!
//! | what happens | whose number moves |
//! |---|---|
//! | somebody can be asked for something: it was told as running, or as another one; holds more; gives way to nobody any more; ends by itself | the kinds that may ask it: by their priority, of its own Team, and of its tree if its Team borrows; and that want the same of the same Flavor |
//! | a Team or Cohort begins to borrow something | the kinds of its tree that may ask those who borrow, and want that |
//! | more is charged, where shares are fair | the kinds of the tree of which one had nobody to ask for its share |
//! | more is charged, or those who can be asked go in another order | the kinds of the tree of which one lacked just that ([`Lacking::Time`]) |
//! | somebody may ask whom it left alone (S15) | the kinds of which one lacked a right ([`Lacking::Place`]), or just that |
//! | something is taken on nodes | the kinds of any tree of which one lacked just that others are gone: what it waits for may be what was taken |
//!
//! **Bound.** An event moves as many numbers as there are kinds that it may matter to, however many gangs are of a kind; it looks at no gang. Where no kind's number
//! moves, nobody is looked at: most gangs that are admitted are of no lower tier than who recovers, or within the quota of another Team, or on other devices.
//! Where one moves, a call looks at as many, and asks as many, as after anything that came free (see [`super::turns`]). A kind is known while a gang of it recovers
//! and waits.
//!
//! **A question moves nothing.** To be asked, a gang gives up what is kept for it, and has it again: meanwhile somebody ceases to borrow and begins again,
//! say. What happens by that is put aside, and forgotten if the question was in vain: else two of them that may ask each other would be asked in turn for ever, and each
//! question would cost as much as there are kinds that it may matter to.
//!
//! **Too often, never too late.** That a gang came says not that it is enough. The numbers never fall. They start anew with the tree, when
//! nothing holds any more that was found out, and with the first gang of a kind, of which nothing is known.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    quota::{NodeId, PairId},
    state::{
        State,
        hopes::{Asks, Lacking},
        ids::{GangId, TeamId},
    },
};

/// Gangs of one Team and of this priority.
pub(super) type Kind = (TeamId, i32);

/// What those lacked who looked for victims in vain, besides quota.
#[derive(Clone, Copy, Debug)]
pub(in crate::state) struct Lacks {
    /// The last in the order of [`Lacking`], on any Flavor.
    pub(in crate::state) most: Option<Lacking>,
    /// Whether others were not asked since their shares are smaller.
    pub(in crate::state) larger_shares: bool,
}

impl Lacks {
    /// They wait for quota alone, or for what comes free.
    pub(super) const NOTHING: Self = Self {
        most: None,
        larger_shares: false,
    };

    fn or(self, other: Self) -> Self {
        Self {
            most: self.most.max(other.most),
            larger_shares: self.larger_shares || other.larger_shares,
        }
    }
}

/// What is known of a kind.
#[derive(Clone, Debug)]
struct Known {
    asks: Asks,
    /// What its Team may have of which Flavor.
    wants: BTreeSet<PairId>,
    /// What any of them lacked.
    lacks: Lacks,
    /// How often somebody came whom they may ask.
    came: u64,
}

impl Known {
    fn team(&self) -> NodeId {
        let [(team, _), _] = self.asks.sides();
        team
    }

    fn root(&self) -> NodeId {
        let [_, (root, _)] = self.asks.sides();
        root
    }
}

/// What may help kinds: see the table of the module.
#[derive(Clone, Copy, Debug)]
enum Event {
    CanBeAsked {
        team: NodeId,
        lent_by: Option<NodeId>,
        priority: i32,
        pair: PairId,
    },
    BeginsToBorrow {
        node: NodeId,
        root: NodeId,
        pair: PairId,
    },
    OtherOrder {
        root: NodeId,
        priority: i32,
    },
    Charged {
        root: NodeId,
    },
    Rights,
    Taken,
}

/// See the module. What is told that happened returns how many kinds were looked at for it.
#[derive(Clone, Debug, Default)]
pub(in crate::state) struct Comers {
    kinds: BTreeMap<Kind, Known>,
    /// The same by whom they ask: gangs at a node with priorities less than these.
    by_asked: BTreeMap<NodeId, BTreeSet<(i64, Kind)>>,
    /// Those that may be helped by that others have more, by the root of their tree.
    lacking: BTreeMap<NodeId, BTreeSet<Kind>>,
    came_in_all: u64,
    /// What happened by the question that is under way, if one is.
    by_question: Option<Vec<Event>>,
    /// Of which one waits no more: perhaps it was the last one.
    left: BTreeSet<Kind>,
}

impl Comers {
    /// Whether nobody waits who may be helped.
    pub(in crate::state) fn are_awaited_by_nobody(&self) -> bool {
        self.by_asked.is_empty()
    }

    /// How often somebody came for any kind.
    pub(super) fn in_all(&self) -> u64 {
        self.came_in_all
    }

    /// How often somebody came for a kind; `None`: it is not known.
    fn of(&self, kind: Kind) -> Option<u64> {
        self.kinds.get(&kind).map(|known| known.came)
    }

    fn enter(&mut self, kind: Kind, asks: Asks, wants: BTreeSet<PairId>) {
        for (node, below) in asks.sides() {
            if below > i64::MIN {
                let asking = self.by_asked.entry(node).or_default();
                asking.insert((below, kind));
            }
        }
        let known = Known {
            asks,
            wants,
            lacks: Lacks::NOTHING,
            came: 0,
        };
        self.kinds.insert(kind, known);
    }

    /// Nothing holds any more that was found out about anybody, or nobody waits.
    pub(super) fn forget_all(&mut self) {
        self.kinds.clear();
        self.by_asked.clear();
        self.lacking.clear();
        self.left.clear();
    }

    /// One of a kind waits no more.
    pub(super) fn note_left(&mut self, kind: Kind) {
        self.left.insert(kind);
    }

    /// Kinds of which one waits no more since this was asked last.
    pub(super) fn take_left(&mut self) -> BTreeSet<Kind> {
        std::mem::take(&mut self.left)
    }

    /// Nobody of a kind waits any more.
    pub(super) fn forget(&mut self, kind: Kind) {
        let Some(known) = self.kinds.remove(&kind) else {
            return;
        };
        for (node, below) in known.asks.sides() {
            if let Some(asking) = self.by_asked.get_mut(&node) {
                asking.remove(&(below, kind));
                if asking.is_empty() {
                    self.by_asked.remove(&node);
                }
            }
        }
        let root = known.root();
        if let Some(lacking) = self.lacking.get_mut(&root) {
            lacking.remove(&kind);
            if lacking.is_empty() {
                self.lacking.remove(&root);
            }
        }
    }

    /// One of a kind had nobody give way.
    pub(super) fn note_lacks(&mut self, kind: Kind, lacks: Lacks) {
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.lacks = known.lacks.or(lacks);
            if known.lacks.larger_shares || known.lacks.most == Some(Lacking::Time) {
                self.lacking.entry(known.root()).or_default().insert(kind);
            }
        }
    }

    /// A gang of this Team and priority can be asked for something, also by others of the tree with this root (`lent_by`), if its Team borrows.
    pub(in crate::state) fn can_be_asked(
        &mut self,
        team: NodeId,
        lent_by: Option<NodeId>,
        priority: i32,
        pair: PairId,
    ) -> u64 {
        self.happens(Event::CanBeAsked {
            team,
            lent_by,
            priority,
            pair,
        })
    }

    /// A Team or Cohort in the tree of a root begins to borrow: whoever it is can be asked for what it uses.
    pub(in crate::state) fn begin_to_borrow(
        &mut self,
        node: NodeId,
        root: NodeId,
        pair: PairId,
    ) -> u64 {
        self.happens(Event::BeginsToBorrow { node, root, pair })
    }

    /// Those who can be asked at the root of a tree go in another order.
    pub(in crate::state) fn go_in_another_order(&mut self, root: NodeId, priority: i32) -> u64 {
        self.happens(Event::OtherOrder { root, priority })
    }

    /// More is charged in the tree of a root.
    pub(in crate::state) fn note_charged(&mut self, root: NodeId) -> u64 {
        self.happens(Event::Charged { root })
    }

    /// Somebody may ask whom it left alone.
    pub(in crate::state) fn note_rights(&mut self) -> u64 {
        self.happens(Event::Rights)
    }

    /// Nodes changed: something may have been taken on them.
    pub(super) fn note_taken(&mut self) -> u64 {
        self.happens(Event::Taken)
    }

    /// Counts something for those to which it may matter; by a question once that is over.
    fn happens(&mut self, event: Event) -> u64 {
        if self.kinds.is_empty() {
            return 0;
        }
        if let Some(by_question) = &mut self.by_question {
            by_question.push(event);
            return 0;
        }
        let (looks, concerned) = self.concerned_by(event);
        for kind in concerned {
            if let Some(known) = self.kinds.get_mut(&kind) {
                known.came += 1;
                self.came_in_all += 1;
            }
        }
        looks
    }

    /// How many kinds are looked at for something that happens, and to which of them it may matter.
    fn concerned_by(&self, event: Event) -> (u64, Vec<Kind>) {
        let lacks_time = |known: &Known| known.lacks.most == Some(Lacking::Time);
        match event {
            Event::CanBeAsked {
                team,
                lent_by,
                priority,
                pair,
            } => {
                let (mut looks, mut concerned) = chosen(self.asking(team, priority), |known| {
                    known.team() == team && known.wants.contains(&pair)
                });
                if let Some(root) = lent_by {
                    let others = chosen(self.asking(root, priority), |known| {
                        known.team() != team && known.wants.contains(&pair)
                    });
                    looks += others.0;
                    concerned.extend(others.1);
                }
                (looks, concerned)
            }
            Event::BeginsToBorrow { node, root, pair } => {
                chosen(self.asking(root, i32::MIN), |known| {
                    known.team() != node && known.wants.contains(&pair)
                })
            }
            Event::OtherOrder { root, priority } => chosen(self.asking(root, priority), lacks_time),
            Event::Charged { root } => {
                let lacking = self.lacking.get(&root).into_iter().flatten();
                chosen(lacking.filter_map(|kind| self.known(*kind)), |_| true)
            }
            Event::Rights => {
                let kinds = self.kinds.iter().map(|(kind, known)| (*kind, known));
                chosen(kinds, |known| known.lacks.most >= Some(Lacking::Place))
            }
            Event::Taken => {
                let lacking = self.lacking.values().flatten();
                chosen(lacking.filter_map(|kind| self.known(*kind)), lacks_time)
            }
        }
    }

    fn known(&self, kind: Kind) -> Option<(Kind, &Known)> {
        self.kinds.get(&kind).map(|known| (kind, known))
    }

    /// The kinds that ask gangs of this priority at a node.
    fn asking(&self, at: NodeId, priority: i32) -> impl Iterator<Item = (Kind, &Known)> {
        let asking = self.by_asked.get(&at).into_iter().flatten().rev();
        let asking = asking.take_while(move |(below, _)| *below > i64::from(priority));
        asking.filter_map(move |(_, kind)| self.known(*kind))
    }

    /// What is kept for a gang is about to be given up for a question.
    pub(super) fn begin_question(&mut self) {
        self.by_question = Some(Vec::new());
    }

    /// All is as before the question.
    pub(super) fn undo_question(&mut self) {
        self.by_question = None;
    }

    /// If the question was not undone, what happened by it has happened.
    pub(super) fn end_question(&mut self) -> u64 {
        let events = self.by_question.take().into_iter().flatten();
        events.map(|event| self.happens(event)).sum()
    }
}

/// How many were looked at, and for which of them something holds.
fn chosen<'a>(
    all: impl Iterator<Item = (Kind, &'a Known)>,
    holds: impl Fn(&Known) -> bool,
) -> (u64, Vec<Kind>) {
    let (mut looks, mut chosen) = (0, Vec::new());
    for (kind, known) in all {
        looks += 1;
        if holds(known) {
            chosen.push(kind);
        }
    }
    (looks, chosen)
}

impl State {
    /// Kinds of which nobody waits any more are not told what happens.
    pub(super) fn forget_kinds_that_left(&mut self) {
        for kind in self.keeps.comers.take_left() {
            if !self.keeps.parked.is_any_of(kind) {
                self.keeps.comers.forget(kind);
            }
        }
    }

    /// The kind of a gang that waits.
    pub(super) fn kind_of_asking(&self, id: GangId) -> Option<Kind> {
        let waiting = self.waiting.get(id)?;
        Some((waiting.team, waiting.gang.priority))
    }

    /// How often somebody came whom a gang may ask that recovers and waits. From now on it is counted, if it was not.
    pub(super) fn came_for(&mut self, id: GangId) -> u64 {
        let Some(kind) = self.kind_of_asking(id) else {
            return 0;
        };
        if let Some(came) = self.keeps.comers.of(kind) {
            return came;
        }
        let (team, priority) = kind;
        let Some((entry, node)) = self.teams.get(team).and_then(|it| Some((it, it.node?))) else {
            return 0;
        };
        let (policy, root) = (self.tree.policy_of(node), self.tree.root_of(node));
        let wants = entry.assignments.iter().flat_map(|assignment| {
            let devices = assignment.gpus.into_iter().chain(assignment.vram);
            devices.chain(assignment.besides.values().copied())
        });
        let wants = wants.collect();
        let asks = Asks::of(policy, priority, node, root);
        self.keeps.comers.enter(kind, asks, wants);
        0
    }
}
