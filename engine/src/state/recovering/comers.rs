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
//!
//! **Bound.** An event moves as many numbers as there are kinds that it may matter to, however many gangs are of a kind; it looks at no gang. Where no kind's number
//! moves, nobody is looked at: most gangs that are admitted are of no lower tier than who recovers, or within the quota of another Team, or on other devices.
//! Where one moves, a call looks at as many, and asks as many, as after anything that came free (see [`super::turns`]). There are no kinds while nobody recovers and
//! waits.
//!
//! **A question moves nothing.** To be asked, a gang gives up what is kept for it, and has it again: meanwhile somebody ceases to borrow and begins again,
//! say. What moved by that is moved back. Else two of them that may ask each other would be asked in turn for ever.
//!
//! **Too often, never too late.** That a gang came says not that it is enough. The numbers never fall but by the end of a question, and start anew only with the tree, when
//! nothing holds any more that was found out.

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
    team: NodeId,
    root: NodeId,
    /// What its Team may have of which Flavor.
    wants: BTreeSet<PairId>,
    /// What any of them lacked.
    lacks: Lacks,
    /// How often somebody came whom they may ask.
    came: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(in crate::state) struct Comers {
    kinds: BTreeMap<Kind, Known>,
    /// The same by whom they ask: gangs at a node with priorities less than these.
    by_asked: BTreeMap<NodeId, BTreeSet<(i64, Kind)>>,
    /// Those that may be helped by that others have more, by the root of their tree.
    lacking: BTreeMap<NodeId, BTreeSet<Kind>>,
    came_in_all: u64,
    /// Whose numbers the question moved that is under way, if one is.
    moved_by_question: Option<Vec<Kind>>,
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
        let sides = asks.sides();
        for (node, below) in sides {
            if below > i64::MIN {
                let asking = self.by_asked.entry(node).or_default();
                asking.insert((below, kind));
            }
        }
        let [(team, _), (root, _)] = sides;
        let known = Known {
            team,
            root,
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
    }

    /// One of a kind had nobody give way.
    pub(super) fn note_lacks(&mut self, kind: Kind, lacks: Lacks) {
        if let Some(known) = self.kinds.get_mut(&kind) {
            known.lacks = known.lacks.or(lacks);
            if known.lacks.larger_shares || known.lacks.most == Some(Lacking::Time) {
                self.lacking.entry(known.root).or_default().insert(kind);
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
    ) {
        let mut kinds = self.asking(team, priority, |known| {
            known.team == team && known.wants.contains(&pair)
        });
        kinds.extend(lent_by.into_iter().flat_map(|root| {
            self.asking(root, priority, |known| {
                known.team != team && known.wants.contains(&pair)
            })
        }));
        self.come(kinds);
    }

    /// A Team or Cohort in the tree of a root begins to borrow: whoever it is can be asked for what it uses.
    pub(in crate::state) fn begin_to_borrow(&mut self, node: NodeId, root: NodeId, pair: PairId) {
        self.come(self.asking(root, i32::MIN, |known| {
            known.team != node && known.wants.contains(&pair)
        }));
    }

    /// Those who can be asked at the root of a tree go in another order.
    pub(in crate::state) fn go_in_another_order(&mut self, root: NodeId, priority: i32) {
        self.come(self.asking(root, priority, |known| {
            known.lacks.most == Some(Lacking::Time)
        }));
    }

    /// More is charged in the tree of a root.
    pub(in crate::state) fn note_charged(&mut self, root: NodeId) {
        let lacking = self.lacking.get(&root).into_iter().flatten();
        self.come(lacking.copied().collect());
    }

    /// Somebody may ask whom it left alone.
    pub(in crate::state) fn note_rights(&mut self) {
        let kinds = self.kinds.iter();
        let kinds = kinds.filter(|(_, known)| known.lacks.most >= Some(Lacking::Place));
        self.come(kinds.map(|(kind, _)| *kind).collect());
    }

    fn asking(&self, at: NodeId, priority: i32, concerns: impl Fn(&Known) -> bool) -> Vec<Kind> {
        let asking = self.by_asked.get(&at).into_iter().flatten().rev();
        let asking = asking.take_while(|(below, _)| *below > i64::from(priority));
        let kinds = asking.map(|(_, kind)| *kind);
        kinds
            .filter(|kind| self.kinds.get(kind).is_some_and(&concerns))
            .collect()
    }

    fn come(&mut self, kinds: Vec<Kind>) {
        for kind in kinds {
            if let Some(known) = self.kinds.get_mut(&kind) {
                known.came += 1;
                self.came_in_all += 1;
                if let Some(moved) = &mut self.moved_by_question {
                    moved.push(kind);
                }
            }
        }
    }

    /// What is kept for a gang is about to be given up for a question.
    pub(super) fn begin_question(&mut self) {
        self.moved_by_question = Some(Vec::new());
    }

    /// All is as before the question.
    pub(super) fn undo_question(&mut self) {
        for kind in self.moved_by_question.take().into_iter().flatten() {
            if let Some(known) = self.kinds.get_mut(&kind) {
                known.came = known.came.saturating_sub(1);
                self.came_in_all = self.came_in_all.saturating_sub(1);
            }
        }
    }

    /// If the question was not undone, what it changed stays.
    pub(super) fn end_question(&mut self) {
        self.moved_by_question = None;
    }
}

impl State {
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
