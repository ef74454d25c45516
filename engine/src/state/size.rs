//! With how many of its pods a gang is admitted that may start with fewer than all.
//!
//! It waits as the smallest that it may be: so it is refused, woken, told why, kept a place for and given way to exactly as
//! a gang of so many pods is, and shares what is found out with all others that ask for the same. Only when its turn
//! comes and that many fit it grows: to all of its pods if they fit, else to the most that do. The pods are the first by rank.
//!
//! Growing takes what is free. Nobody gives way so that a gang is larger, and it uses no node that it avoids to be larger.

use std::sync::Arc;

use super::{
    State,
    ids::{GangId, ShapeId},
    judge::{Fitting, request},
    team::Refusing,
    waiting::WaitingGang,
};
use crate::{
    decision::{CommitRoom, Visited},
    names::FlavorName,
    placement::{Demand, Effort, Plan, Request, Verdict, View, equal_pods_fit, plan},
    quota::request::Totals,
    state::work::Work,
};

/// What a gang asks for with more of its pods than it starts with at the least.
#[derive(Clone, Debug)]
pub(super) struct Size {
    demand: Demand,
    totals: Totals,
}

/// With how many of its pods a gang is judged.
#[derive(Clone, Copy)]
pub(super) enum Asking<'a> {
    /// With as few as it may have. What is found out is remembered with the shape.
    Least(ShapeId),
    /// With more. Nothing is remembered of it.
    More(&'a Size),
}

impl<'a> Asking<'a> {
    pub(super) fn demand(self, waiting: &'a WaitingGang) -> &'a Demand {
        match self {
            Self::Least(_) => &waiting.demand,
            Self::More(size) => &size.demand,
        }
    }
}

impl Fitting {
    /// What it was judged with, of a gang of that shape.
    pub(super) fn asking(&self, shape: ShapeId) -> Asking<'_> {
        match &self.size {
            Some(size) => Asking::More(size),
            None => Asking::Least(shape),
        }
    }

    /// What its plan is for.
    pub(super) fn demand<'a>(&'a self, waiting: &'a WaitingGang) -> &'a Demand {
        self.asking(waiting.shape).demand(waiting)
    }
}

/// How many sizes are tried at most, one after the other, if so many are not ruled out.
fn tries(sizes: usize) -> usize {
    sizes.checked_ilog2().map_or(0, |log| log as usize + 1)
}

impl State {
    pub(super) fn totals<'a>(&'a self, asking: Asking<'a>) -> Option<&'a Totals> {
        match asking {
            Asking::Least(shape) => Some(&self.shapes.get(shape)?.totals),
            Asking::More(size) => Some(&size.totals),
        }
    }

    /// What a gang gets that fits with as few pods as it may have: the same, or more of its pods. All pods are tried first, then
    /// half of those that are left each time, all of it with the [`Effort`] of one more decision. Where that runs out the size
    /// counts as one that does not fit: so a gang may get fewer pods than there is room for, never fewer than its least.
    pub(super) fn grow(
        &mut self,
        gang: GangId,
        least: Fitting,
        empty: &CommitRoom,
        work: &mut Work,
    ) -> Fitting {
        let Some(waiting) = self.waiting.get(gang) else {
            return least;
        };
        let (mut fits, mut most) = (waiting.demand.pods, waiting.gang.pods.len());
        if fits >= most {
            return least;
        }
        let view = self.view_of(gang, &least);
        let (mut best, mut effort) = (least, Effort::default());
        let mut next = most;
        while fits < most {
            let left = tries(most - fits);
            let larger = self.judge_with_pods(gang, next, (&view, left), empty, &mut effort, work);
            match larger {
                Some(larger) => (best, fits) = (larger, next),
                None => most = next - 1,
            }
            next = fits + (most - fits).div_ceil(2);
        }
        best
    }

    /// What a gang would get with so many of its pods, if they fit, and one commit can carry them.
    fn judge_with_pods(
        &mut self,
        gang: GangId,
        pods: usize,
        (view, left): (&View, usize),
        empty: &CommitRoom,
        effort: &mut Effort,
        work: &mut Work,
    ) -> Option<Fitting> {
        let demand = Demand::of_first(&self.waiting.get(gang)?.gang, pods);
        let totals = Totals::of(&demand);
        let size = Arc::new(Size { demand, totals });
        if !empty.holds(&size.needs()) {
            return None;
        }
        let asking = Asking::More(&size);
        let shares = size.demand.shares(left);
        let judged = effort.share(shares, |effort| {
            self.judge_with(asking, gang, view, effort, &mut work.visited)
        });
        let fitting = Fitting {
            size: Some(Arc::clone(&size)),
            ..judged.ok()?
        };
        let needs = self.needs_of(gang, &fitting)?;
        empty.holds(&needs).then_some(fitting)
    }

    /// The nodes on which a gang may grow: without those that it avoids, unless it has one of them anyway.
    fn view_of(&self, gang: GangId, least: &Fitting) -> View {
        let avoided = self.waiting.get(gang).map(|it| &it.gang.topology.avoided);
        let mut avoided = avoided.into_iter().flatten();
        let slots = least.plan.slots();
        let has_one = avoided.any(|node| {
            let slot = self.cluster.slot_of(node);
            slot.is_some_and(|slot| slots.contains(&slot))
        });
        let elsewhere = (!has_one).then(|| self.view_elsewhere(gang)).flatten();
        elsewhere.unwrap_or(View::Now)
    }

    /// What a commit needs for a gang that fits.
    pub(super) fn needs_of(&self, gang: GangId, fitting: &Fitting) -> Option<CommitRoom> {
        let needs = match &fitting.size {
            Some(size) => size.needs(),
            None => self.needs(gang)?,
        };
        let nodes = fitting.plan.slots().len();
        Some(CommitRoom { nodes, ..needs })
    }

    /// Places a gang with so many of its pods as are asked for.
    pub(super) fn place_asking(
        &mut self,
        asking: Asking<'_>,
        gang: GangId,
        flavor: Option<&FlavorName>,
        view: &View,
        effort: &mut Effort,
        visited: &mut Visited,
    ) -> Result<Plan, Refusing> {
        let size = match asking {
            Asking::Least(shape) => {
                return self.place_unless_refused(shape, gang, flavor, view, effort, visited);
            }
            Asking::More(size) => size,
        };
        let waiting = self.waiting.get(gang).ok_or(Refusing::Overflow)?;
        let request = Request {
            demand: &size.demand,
            ..request(waiting, flavor.and_then(|name| self.flavors.get(name)))
        };
        let inside = match view {
            View::Now => self.view_for(waiting),
            _ => None,
        };
        let mut gave_up = false;
        for view in std::iter::once(view).chain(&inside) {
            // Equal pods are counted, which is cheaper than a search in vain.
            if equal_pods_fit(&self.cluster, view, &request) == Some(false) {
                continue;
            }
            visited.plans += 1;
            match plan(&self.cluster, view, &request, effort) {
                Verdict::Placed(plan) => return Ok(plan),
                Verdict::NoPlace(_) => {}
                Verdict::GaveUp(_) => gave_up = true,
            }
        }
        let refusal = self.refusal();
        Err(Refusing::NoPlace { refusal, gave_up })
    }
}

impl Size {
    /// What a commit needs for it, as far as that is known without a placement.
    fn needs(&self) -> CommitRoom {
        CommitRoom {
            gangs: 1,
            pods: self.totals.pods,
            claims: self.totals.claims,
            nodes: 0,
        }
    }
}
