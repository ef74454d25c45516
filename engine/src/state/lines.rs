//! Who goes before whom in a `StrictFifo` Team: one line per Flavor.
//!
//! A class stands in the line of each Flavor on which its gangs could run one day, at the place of its first gang, and is judged
//! only on the Flavors of whose line it is the first. So a gang that waits holds up those behind it on every Flavor that it could
//! use, and on no other: who waits for H100 does not hold up who asks for A100, and who could use both holds up both.
//!
//! Whether a class could run on a Flavor is found out when it is first in line there, and not before. Until then it stands in
//! the line like any other. That is enough: whoever is behind it is behind those before it, too. Once it is found that it can
//! never run there as things are, it leaves that line, and the next one is judged. So an event costs the classes that
//! come to be first by it, and those behind them are not looked at.
//!
//! A gang that asks for no device is no exception. It is charged to a Flavor of its Team and runs on the nodes of that Flavor like
//! any other, so it takes quota, cores and memory that those behind it could have. It could run wherever its Team has quota for
//! what it asks for and the empty nodes hold it; there it waits in line, and there it holds up others. In a Team without Flavors
//! nothing tells one node from the other, and all gangs stand in one line.
//!
//! A gang to which others give way stands in line, too, until it is admitted: it does not fit yet. Like one of which an earlier
//! attempt holds something it is not judged meanwhile. Such gangs stand *aside*.
//!
//! What makes the answer another one, limits, Flavors and the inventory, puts those back in line who left. Again only those are
//! judged who are first then.

use std::collections::BTreeSet;

use super::{
    State,
    ids::{GangId, TeamId},
    judge::Candidate,
    team::{Discipline, Refusing},
    waiting::Obstacle,
};
use crate::{fairness::WeightedUse, names::NamespaceName, placement::Effort, queue::Standing};

/// The lines of a Team.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// By Flavor in the order of the Team's. A Team without any has one line.
    by_flavor: Vec<Line>,
    /// Gangs that stand in line and are not judged: an earlier attempt of them holds something still, or others give way to them.
    aside: BTreeSet<Standing>,
}

/// The line of a Flavor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Line {
    /// Who could run there, as far as is known.
    places: BTreeSet<Standing>,
    /// Who can never run there as things are.
    left: BTreeSet<Standing>,
}

impl Lines {
    /// For so many Flavors.
    pub(super) fn new(flavors: usize) -> Self {
        Self {
            by_flavor: vec![Line::default(); flavors.max(1)],
            aside: BTreeSet::new(),
        }
    }

    /// The place of the first in the line of a Flavor, if that is before this place.
    fn first_before(&self, at: usize, place: &Standing) -> Option<&Standing> {
        let first = self.by_flavor.get(at)?.places.first()?;
        (first < place).then_some(first)
    }

    fn enter(&mut self, place: &Standing) {
        for line in &mut self.by_flavor {
            line.places.insert(place.clone());
        }
    }

    fn leave(&mut self, place: &Standing) {
        for line in &mut self.by_flavor {
            line.places.remove(place);
            line.left.remove(place);
        }
        self.aside.remove(place);
    }

    /// A class has another first gang: it stands where it stood, at the place of that.
    fn replace(&mut self, before: &Standing, after: &Standing) {
        for line in &mut self.by_flavor {
            for places in [&mut line.places, &mut line.left] {
                if places.remove(before) {
                    places.insert(after.clone());
                }
            }
        }
    }

    /// Who left a line stands in it again.
    fn return_all(&mut self) {
        for line in &mut self.by_flavor {
            line.places.append(&mut line.left);
        }
    }

    fn firsts(&self) -> Vec<Option<Standing>> {
        let lines = self.by_flavor.iter();
        lines.map(|line| line.places.first().cloned()).collect()
    }

    /// Who came to be first in some line, and who was and still stands in it.
    fn changed_since(&self, before: &[Option<Standing>]) -> BTreeSet<Standing> {
        let mut changed = BTreeSet::new();
        for (line, before) in self.by_flavor.iter().zip(before) {
            let first = line.places.first();
            if first != before.as_ref() {
                changed.extend(first.cloned());
                changed.extend(before.clone().filter(|it| line.places.contains(it)));
            }
        }
        changed
    }
}

impl Discipline {
    /// Who is before a place in the line of a Flavor, where the order is strict: nobody at that place is admitted there.
    pub(super) fn first_before(&self, at: usize, place: &Standing) -> Option<&Standing> {
        match self {
            Self::StrictFifo(lines) => lines.first_before(at, place),
            Self::BestEffort => None,
        }
    }
}

impl State {
    /// A class has another first gang. Without one before, it is new; without one after, it is gone.
    pub(super) fn move_in_lines(
        &mut self,
        team: TeamId,
        before: Option<&Standing>,
        after: Option<&Standing>,
    ) {
        let changed = self.change_lines(team, |lines| match (before, after) {
            (Some(before), Some(after)) => lines.replace(before, after),
            (Some(before), None) => lines.leave(before),
            (None, Some(after)) => lines.enter(after),
            (None, None) => {}
        });
        // It may have been the first, and be so no longer.
        if changed && let Some(after) = after {
            self.judge_at(team, after);
        }
    }

    /// A gang that is not judged stands in line all the same, or does so no longer.
    pub(super) fn stand_aside(&mut self, id: GangId, stands: bool) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let team = waiting.team;
        let Some(entry) = self.teams.get(team) else {
            return;
        };
        let place = entry.standing_aside(waiting);
        self.change_lines(team, |lines| {
            if stands {
                lines.enter(&place);
                lines.aside.insert(place);
            } else if lines.aside.contains(&place) {
                lines.leave(&place);
            }
        });
        if stands {
            self.unsettled_aside.insert(id);
        }
    }

    /// Those of a namespace that are not judged stand where it does. It looks at all of the Team that are not judged: each of them
    /// holds something still, so they are few.
    pub(super) fn move_aside(
        &mut self,
        team: TeamId,
        namespace: &NamespaceName,
        used: WeightedUse,
    ) {
        let Some(entry) = self.teams.get(team) else {
            return;
        };
        let Discipline::StrictFifo(lines) = &entry.discipline else {
            return;
        };
        let of_namespace = lines.aside.iter().filter(|standing| {
            let gang = entry.line.get(standing.place());
            let waiting = gang.and_then(|gang| self.waiting.get(*gang));
            waiting.is_some_and(|waiting| waiting.namespace == *namespace)
        });
        let before: Vec<Standing> = of_namespace.cloned().collect();
        for before in before {
            let after = Standing::new(used, before.place().clone());
            self.change_lines(team, |lines| {
                lines.replace(&before, &after);
                lines.aside.remove(&before);
                lines.aside.insert(after);
            });
        }
    }

    /// Finds out where those stand in line who are not judged.
    pub(super) fn settle_aside(&mut self) {
        for id in std::mem::take(&mut self.unsettled_aside) {
            let Some(waiting) = self.waiting.get(id) else {
                continue;
            };
            let team = waiting.team;
            let Some(entry) = self.teams.get(team) else {
                continue;
            };
            let place = entry.standing_aside(waiting);
            let is_aside = match &entry.discipline {
                Discipline::StrictFifo(lines) => lines.aside.contains(&place),
                Discipline::BestEffort => false,
            };
            let waits_aside =
                waiting.is_reserved_for || waiting.obstacle() == Some(Obstacle::OwnRelease);
            if !is_aside || !waits_aside {
                continue;
            }
            let ways = entry.assignments.len().max(1);
            let mut effort = Effort::default();
            for at in 0..ways {
                if self.can_never_run(id, at, &mut effort) {
                    self.leave_line(team, at, &place);
                }
            }
        }
    }

    /// Finds out of those before a gang whether they could run at all. Who is first is judged first, but for gangs that are
    /// settled before anybody is judged: after limits changed everybody stands in line again.
    pub(super) fn settle_before(&mut self, id: GangId) {
        let Some(waiting) = self.waiting.get(id) else {
            return;
        };
        let team = waiting.team;
        let Some(entry) = self.teams.get(team) else {
            return;
        };
        let (mine, ways) = (entry.standing_of(waiting), entry.assignments.len().max(1));
        for at in 0..ways {
            while let Some(first) = self.first_in_line(team, at, &mine) {
                let gang = self
                    .teams
                    .get(team)
                    .and_then(|it| it.gang_at(first.place()));
                if !gang.is_some_and(|gang| self.can_never_run(gang, at, &mut Effort::default())) {
                    break;
                }
                self.leave_line(team, at, &first);
            }
        }
    }

    fn first_in_line(&self, team: TeamId, at: usize, before: &Standing) -> Option<Standing> {
        let discipline = &self.teams.get(team)?.discipline;
        discipline.first_before(at, before).cloned()
    }

    /// Whether a gang can never run on a Flavor of its Team, as things are.
    fn can_never_run(&mut self, id: GangId, at: usize, effort: &mut Effort) -> bool {
        let Some(waiting) = self.waiting.get(id) else {
            return true;
        };
        let (team, shape) = (waiting.team, waiting.shape);
        let Some(entry) = self.teams.get(team) else {
            return true;
        };
        let (node, assignments) = (entry.node, entry.assignments.clone());
        let totals = self.shapes.get(shape).map(|shape| &shape.totals);
        let needs_quota = totals.is_none_or(|totals| totals.claims > 0);
        let flavor = assignments.get(at).map(|it| it.flavor.clone());
        let is_excluded = match self.candidate(shape, id, node, &assignments, at) {
            _ if assignments.is_empty() => needs_quota,
            Some(candidate) => self.is_excluded(&candidate),
            None => true,
        };
        self.strict_by_inventory.insert(team);
        let ways = assignments.len().max(1);
        is_excluded || self.is_impossible(shape, id, flavor, ways, effort)
    }

    /// Whether a gang is refused on a Flavor for good, whatever its nodes would hold.
    pub(super) fn is_excluded(&self, candidate: &Candidate<'_>) -> bool {
        let judged = self.may_be_placed(candidate, &self.tree);
        judged.is_err_and(|refusing| {
            !matches!(refusing, Refusing::Quota { .. } | Refusing::Nominal { .. })
        })
    }

    /// Who stands at a place can never run on a Flavor, as things are.
    pub(super) fn leave_line(&mut self, team: TeamId, at: usize, place: &Standing) {
        self.change_lines(team, |lines| {
            if let Some(line) = lines.by_flavor.get_mut(at)
                && line.places.remove(place)
            {
                line.left.insert(place.clone());
            }
        });
    }

    /// The Flavors of a Team are others: everybody stands in the line of each.
    pub(super) fn change_flavors(&mut self, team: TeamId) {
        let Some(entry) = self.teams.get_mut(team) else {
            return;
        };
        let Discipline::StrictFifo(lines) = &mut entry.discipline else {
            return;
        };
        let aside = std::mem::take(&mut lines.aside);
        *lines = Lines::new(entry.assignments.len());
        for place in &aside {
            lines.enter(place);
        }
        lines.aside = aside;
        for class in entry.classes.values() {
            let class = self.classes.get(*class);
            if let Some(standing) = class.and_then(|class| class.line.standing()) {
                lines.enter(&standing);
            }
        }
    }

    /// Puts everybody back in every line of a Team, and has those judged again who are first.
    pub(super) fn line_up_anew(&mut self, team: TeamId) {
        self.change_lines(team, Lines::return_all);
        let Some(entry) = self.teams.get(team) else {
            return;
        };
        let Discipline::StrictFifo(lines) = &entry.discipline else {
            return;
        };
        let aside = lines.aside.iter();
        let aside = aside.filter_map(|standing| entry.gang_at(standing.place()));
        self.unsettled_aside.extend(aside);
        let firsts = lines.firsts().into_iter().flatten();
        let gangs: BTreeSet<GangId> = firsts
            .filter_map(|standing| entry.line.get(standing.place()).copied())
            .collect();
        for gang in gangs {
            self.wake_class_of(gang);
        }
    }

    /// Changes lines, and has those judged again for whom it matters. Whether anybody else is first in some line.
    fn change_lines(&mut self, team: TeamId, change: impl FnOnce(&mut Lines)) -> bool {
        let Some(entry) = self.teams.get_mut(team) else {
            return false;
        };
        let Discipline::StrictFifo(lines) = &mut entry.discipline else {
            return false;
        };
        let before = lines.firsts();
        change(lines);
        let is_changed = lines.firsts() != before;
        for place in lines.changed_since(&before) {
            self.judge_at(team, &place);
        }
        is_changed
    }

    /// Has the class of the gang at a place judged again; or the gang, if something is kept for it.
    fn judge_at(&mut self, team: TeamId, standing: &Standing) {
        let entry = self.teams.get(team);
        let gang = entry.and_then(|entry| entry.gang_at(standing.place()));
        let Some(gang) = gang else { return };
        self.changed_gangs.insert(gang);
        self.wake_class_of(gang);
        if let Some(waiting) = self.waiting.get(gang) {
            self.reservations.judge_again(&waiting.gang.uid);
        }
    }
}
