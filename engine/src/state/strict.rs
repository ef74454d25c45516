//! What holds up a line in strict order: a gang that does not fit and may fit one day. One that can never run on a Flavor
//! as things are (there it is larger than its quota or than the empty cluster) holds up nobody there.

use super::{
    State,
    ids::{ClassId, GangId, ShapeId, TeamId},
    judge::request,
    shapes::OnEmpty,
    team::Refusing,
};
use crate::{
    names::FlavorName,
    placement::{Effort, Verdict, View, plan},
    queue::Standing,
};

impl State {
    /// A class was refused: it leaves the lines of the Flavors on which it can never run. What the empty cluster could hold is a
    /// decision of its own, with one [`Effort`] for all Flavors.
    pub(super) fn leave_lines(
        &mut self,
        team: TeamId,
        class: ClassId,
        standing: &Standing,
        refusals: &[Refusing],
    ) {
        let class = self.classes.get(class);
        let gang = class.and_then(|class| Some((class.shape, class.line.first()?)));
        let assignments = self.teams.get(team).map(|entry| entry.assignments.clone());
        let Some(((shape, gang), assignments)) = gang.zip(assignments) else {
            return;
        };
        self.strict_by_inventory.insert(team);
        let mut effort = Effort::default();
        let ways = refusals.len();
        for at in 0..assignments.len().max(1) {
            let flavor = assignments
                .get(at)
                .map(|assignment| assignment.flavor.clone());
            let may_fit = match refusals.get(at) {
                Some(
                    Refusing::BehindHead
                    | Refusing::QuotaForDevices { .. }
                    | Refusing::Nominal {
                        lesser: Some(_), ..
                    },
                ) => true,
                // What is used now must not matter: it may be another amount by the time that the next gang is judged.
                Some(
                    Refusing::Quota { .. } | Refusing::Nominal { .. } | Refusing::NoPlace { .. },
                ) => !self.is_impossible(shape, gang, flavor, ways, &mut effort),
                Some(
                    Refusing::TooFewDevices(_)
                    | Refusing::ExceedsMax { .. }
                    | Refusing::Unnamed
                    | Refusing::UnknownFlavor
                    | Refusing::ExcludedFlavor
                    | Refusing::Overflow,
                )
                | None => false,
            };
            if !may_fit {
                self.leave_line(team, at, standing);
            }
        }
    }

    /// Whether it is certain that a shape has no place on the empty cluster: on one of so many Flavors that may be asked
    /// about. Remembered for as long as the inventory is the same.
    pub(super) fn is_impossible(
        &mut self,
        shape: ShapeId,
        gang: GangId,
        flavor: Option<FlavorName>,
        ways: usize,
        effort: &mut Effort,
    ) -> bool {
        let known = self
            .shapes
            .get(shape)
            .and_then(|shape| shape.on_empty.get(&flavor));
        let known = known
            .filter(|known| known.inventory == self.inventory)
            .copied();
        let Some(waiting) = self.waiting.get(gang) else {
            return false;
        };
        let wanted = flavor.as_ref().and_then(|name| self.flavors.get(name));
        let request = request(waiting, wanted);
        let searched = effort.part(request.demand.shares(ways), |effort| {
            let steps = effort.steps();
            if let Some(known) = known
                && known.gave_up_after.is_none_or(|had| had >= steps)
            {
                return Err(known.impossible);
            }
            Ok((plan(&self.cluster, &View::Empty, &request, effort), steps))
        });
        let (verdict, steps) = match searched {
            Ok(searched) => searched,
            Err(impossible) => return impossible,
        };
        let impossible = matches!(verdict, Verdict::NoPlace(_));
        let inventory = self.inventory;
        if let Some(shape) = self.shapes.get_mut(shape) {
            let on_empty = OnEmpty {
                inventory,
                impossible,
                gave_up_after: matches!(verdict, Verdict::GaveUp(_)).then_some(steps),
            };
            shape.on_empty.insert(flavor, on_empty);
        }
        impossible
    }
}
