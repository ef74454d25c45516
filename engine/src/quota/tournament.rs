//! Whose turn it is where shares are fair: a tournament below one root Cohort. The rules are Kueue's.
//!
//! At every Cohort its children compete: a Team with the gang that is first in its line, an inner Cohort with the gang that
//! has won there. A child wins that borrows none of what its gang asks for, once that is charged, before one that does; then the
//! one with the smaller share, the gang counted; then the gang of higher priority, the one that waits longer, and the smaller
//! UID. Who wins at the root is served, its Team is charged, and all compete again.
//!
//! What a child stands for depends on what is charged at and below it alone, so a charge moves the nodes on its way up and no
//! others: the children of a Cohort stay in order, and a turn costs one look at each node on the way.
//!
//! What the gang of a Team asks for may be known by a lower bound only, and finding it out is expensive. A Team then competes by
//! that bound, and is told as [`Next::Unknown`] as soon as it would win in its Cohort: whoever is behind it is found out about
//! later, or never.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    preemption::charged,
    share::{InOrder, Lendable},
    tree::{NodeId, PairId, QuotaTree},
};
use crate::{
    amount::ResourceCharge,
    names::{CohortName, GangUid, TeamName, Timestamp},
    queue::Place,
};

/// What is asked for, by Flavor and resource.
pub(crate) type Asked = BTreeMap<PairId, i128>;

/// The first gang of a Team's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrant {
    /// Which one.
    pub gang: GangUid,
    /// Its Team.
    pub team: TeamName,
    /// Its priority.
    pub priority: i32,
    /// Since when it is in its queue.
    pub queued_at: Timestamp,
    /// What its Team would be charged for it. What is listed twice counts twice.
    pub charges: Vec<ResourceCharge>,
}

/// In which order gangs below a root Cohort are served, each charged before the next is chosen. They are named by their positions.
///
/// Of a Team with several gangs the first takes part; nor do those that are not below the Cohort. The tree is as before then.
pub fn fair_order(tree: &mut QuotaTree, root: &CohortName, gangs: &[Entrant]) -> Vec<usize> {
    let Some(root) = tree.node_of_cohort(root) else {
        return Vec::new();
    };
    let mut first: BTreeMap<NodeId, (Place, usize)> = BTreeMap::new();
    for (position, gang) in gangs.iter().enumerate() {
        let Some(team) = tree.node_of(&gang.team) else {
            continue;
        };
        if tree.root_of(team) != root {
            continue;
        }
        let place = Place::new(gang.priority, gang.queued_at, gang.gang.clone());
        let entry = (place, position);
        let known = first.entry(team).or_insert_with(|| entry.clone());
        if entry < *known {
            *known = entry;
        }
    }
    let mut tournament = Tournament::new(root);
    for (team, (place, position)) in &first {
        let asked = charged(tree, &gangs[*position].charges);
        tournament.enter(
            tree,
            *team,
            asked.into_iter().collect(),
            place.clone(),
            true,
        );
    }
    let mut order = Vec::new();
    let mut served = Vec::new();
    while let Next::Winner(team) = tournament.next(tree) {
        for (pair, amount) in tournament.leave(tree, team) {
            tree.change(team, pair, amount, |_, _| {});
            served.push((team, pair, amount));
        }
        tournament.note_charged(tree, team);
        order.extend(first.get(&team).map(|(_, position)| *position));
    }
    for (team, pair, amount) in served.into_iter().rev() {
        tree.change(team, pair, -amount, |_, _| {});
    }
    order
}

/// Who is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The gang of this Team.
    Winner(NodeId),
    /// It depends on what the gang of this Team asks for.
    Unknown(NodeId),
    /// Nobody is left.
    Nobody,
}

/// A Team with the gang that competes for it.
#[derive(Clone, Debug)]
struct Competing {
    /// What the gang asks for, or no more than that.
    asked: Asked,
    place: Place,
    is_known: bool,
}

/// By what the children of a Cohort compete; the least wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Standing {
    borrows: bool,
    share: InOrder,
    /// `None` while it is not known who has won there: before all others.
    place: Option<Place>,
}

/// The children of a Cohort that compete.
#[derive(Clone, Debug, Default)]
struct Bracket {
    order: BTreeSet<(Standing, NodeId)>,
    standings: BTreeMap<NodeId, Standing>,
    /// Whose gang has won here, once that is known.
    winner: Option<Winner>,
    /// The most that the Cohort could ever have, of all that its root has an account of.
    potential: Asked,
    /// What its children can be lent: the same by resource.
    lendable: Lendable,
}

/// Who comes first in a Cohort.
enum First {
    /// That is known.
    Known(Next),
    /// A Team, and what it says.
    Team(NodeId, Next),
    /// A Cohort, which is to be asked first.
    Cohort(NodeId),
}

/// A Team whose gang has won at a Cohort.
#[derive(Clone, Debug)]
struct Winner {
    team: NodeId,
    /// What of the gang is charged to the Cohort, after what those below it keep for themselves.
    asked: Asked,
}

impl Bracket {
    fn place(&mut self, child: NodeId, standing: Standing) {
        self.remove(child);
        self.order.insert((standing.clone(), child));
        self.standings.insert(child, standing);
    }

    fn remove(&mut self, child: NodeId) {
        if let Some(standing) = self.standings.remove(&child) {
            self.order.remove(&(standing, child));
        }
    }
}

/// See the module. It holds as long as the limits of the tree do.
#[derive(Clone, Debug)]
pub(crate) struct Tournament {
    root: NodeId,
    competing: BTreeMap<NodeId, Competing>,
    brackets: BTreeMap<NodeId, Bracket>,
}

impl Tournament {
    /// Below a root Cohort; nobody competes.
    pub(crate) fn new(root: NodeId) -> Self {
        Self {
            root,
            competing: BTreeMap::new(),
            brackets: BTreeMap::new(),
        }
    }

    /// A Team below the root competes with a gang, instead of any that did before. If it `is_known`, so much is asked for; else no
    /// less, by nobody before that place.
    pub(crate) fn enter(
        &mut self,
        tree: &QuotaTree,
        team: NodeId,
        asked: Asked,
        place: Place,
        is_known: bool,
    ) {
        let competing = Competing {
            asked,
            place,
            is_known,
        };
        self.competing.insert(team, competing);
        self.move_team(tree, team);
    }

    /// A Team competes no longer. What its gang asked for.
    pub(crate) fn leave(&mut self, tree: &QuotaTree, team: NodeId) -> Asked {
        let competing = self.competing.remove(&team);
        self.move_team(tree, team);
        competing.map(|it| it.asked).unwrap_or_default()
    }

    /// What is charged to a Team changed.
    pub(crate) fn note_charged(&mut self, tree: &QuotaTree, team: NodeId) {
        self.move_team(tree, team);
    }

    /// Who is next. Asked again it says the same, until something is changed. From the root down to whoever is asked, one after the
    /// other, since a tree may be deeper than a stack.
    pub(crate) fn next(&mut self, tree: &QuotaTree) -> Next {
        let mut path = vec![self.root];
        while let Some(cohort) = path.last().copied() {
            let (child, next) = match self.first_of(tree, cohort) {
                First::Cohort(child) => {
                    path.push(child);
                    continue;
                }
                First::Team(child, next) => (child, next),
                First::Known(next) => {
                    path.pop();
                    (cohort, next)
                }
            };
            let Some(above) = path.last().copied() else {
                return next;
            };
            if let Next::Unknown(team) = next {
                return Next::Unknown(team);
            }
            self.take_in(tree, above, child, next);
        }
        Next::Nobody
    }

    /// What a Cohort knows of who is next in it, or else who of its children is to be asked.
    fn first_of(&self, tree: &QuotaTree, cohort: NodeId) -> First {
        let Some(bracket) = self.brackets.get(&cohort) else {
            return First::Known(Next::Nobody);
        };
        if let Some(winner) = &bracket.winner {
            return First::Known(Next::Winner(winner.team));
        }
        let Some((_, child)) = bracket.order.first() else {
            return First::Known(Next::Nobody);
        };
        if !tree.is_team(*child) {
            return First::Cohort(*child);
        }
        let next = match self.competing.get(child) {
            Some(competing) if competing.is_known => Next::Winner(*child),
            _ => Next::Unknown(*child),
        };
        First::Team(*child, next)
    }

    /// A Cohort takes in who is next in its first child.
    fn take_in(&mut self, tree: &QuotaTree, cohort: NodeId, child: NodeId, next: Next) {
        let standings = &self.bracket(tree, cohort).standings;
        let is_settled = standings.get(&child).is_some_and(|it| it.place.is_some());
        match next {
            Next::Winner(team) if is_settled => {
                let mut asked = self.asked_of(child, team);
                for (pair, amount) in &mut asked {
                    let covered = tree.account(child, *pair).local_available();
                    *amount = (*amount - covered).max(0);
                }
                self.bracket(tree, cohort).winner = Some(Winner { team, asked });
            }
            // Now it is known by what this Cohort competes: it may be behind others.
            Next::Winner(team) => {
                let standing = self.standing(tree, cohort, child, Some(team));
                self.bracket(tree, cohort).place(child, standing);
            }
            Next::Unknown(_) => {}
            Next::Nobody => self.bracket(tree, cohort).remove(child),
        }
    }

    /// Puts a Team where it belongs now, and has those above it compete anew.
    fn move_team(&mut self, tree: &QuotaTree, team: NodeId) {
        let is_there = self.competing.contains_key(&team);
        let mut child = team;
        while let Some(cohort) = tree.parent_of(child) {
            if child == team && !is_there {
                self.bracket(tree, cohort).remove(team);
            } else {
                let winner = (child == team).then_some(team);
                let standing = self.standing(tree, cohort, child, winner);
                self.bracket(tree, cohort).place(child, standing);
            }
            self.bracket(tree, cohort).winner = None;
            child = cohort;
        }
    }

    /// By what a child competes with the gang of that Team; with none, by no more than with any.
    fn standing(
        &mut self,
        tree: &QuotaTree,
        cohort: NodeId,
        child: NodeId,
        winner: Option<NodeId>,
    ) -> Standing {
        let added = winner.map_or_else(Asked::new, |team| self.asked_of(child, team));
        let borrows =
            |(pair, added): (&PairId, &i128)| *added > tree.account(child, *pair).headroom();
        let borrows = added.iter().any(borrows);
        let competing = winner.and_then(|team| self.competing.get(&team));
        let place = competing.map(|competing| competing.place.clone());
        let lendable = &self.bracket(tree, cohort).lendable;
        Standing {
            borrows,
            share: InOrder(tree.share_with(child, Some(lendable), &added)),
            place,
        }
    }

    /// What of the gang of a Team is charged to a child that it stands for: to the Team itself, or to a Cohort where it has won.
    fn asked_of(&self, child: NodeId, team: NodeId) -> Asked {
        let asked = if child == team {
            self.competing.get(&team).map(|competing| &competing.asked)
        } else {
            let winner = self.brackets.get(&child).and_then(|it| it.winner.as_ref());
            winner.map(|winner| &winner.asked)
        };
        asked.cloned().unwrap_or_default()
    }

    fn bracket(&mut self, tree: &QuotaTree, cohort: NodeId) -> &mut Bracket {
        if !self.brackets.contains_key(&cohort) {
            let path: Vec<NodeId> = tree.path(cohort).collect();
            for node in path.into_iter().rev() {
                self.open(tree, node);
            }
        }
        self.brackets.entry(cohort).or_default()
    }

    /// Nobody competes at a Cohort yet; the one above it is open.
    fn open(&mut self, tree: &QuotaTree, cohort: NodeId) {
        if self.brackets.contains_key(&cohort) {
            return;
        }
        let above = tree.parent_of(cohort);
        let above = above.and_then(|above| self.brackets.get(&above));
        let mut bracket = Bracket::default();
        for pair in tree.pairs_at(tree.root_of(cohort)) {
            let of_parent = above.and_then(|above| above.potential.get(&pair).copied());
            let potential = tree.account(cohort, pair).potential(of_parent);
            bracket.potential.insert(pair, potential);
            let resource = tree.named(pair).resource.clone();
            *bracket.lendable.entry(resource).or_default() += potential;
        }
        self.brackets.insert(cohort, bracket);
    }
}
