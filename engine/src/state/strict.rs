//! What holds up a line in strict order: a gang that does not fit and may fit one day. One that can never start as
//! things are (larger than its quota or than the empty cluster) holds up nobody.

use super::{
    State,
    ids::{ClassId, ShapeId, TeamId},
    judge::request,
    shapes::OnEmpty,
    team::Refusing,
};
use crate::{
    names::FlavorName,
    placement::{Effort, Verdict, View, plan},
};

impl State {
    /// Whether a refused gang holds up those behind it. What the empty cluster could hold is a decision of its own, with one
    /// [`Effort`] for all Flavors.
    pub(super) fn holds_up(
        &mut self,
        team: TeamId,
        shape: ShapeId,
        class: ClassId,
        refusals: &[Refusing],
    ) -> bool {
        let assignments = self.teams.get(team).map(|entry| entry.assignments.clone());
        let mut effort = Effort::default();
        for (at, refusing) in refusals.iter().enumerate() {
            let flavor = assignments.as_ref().and_then(|all| all.get(at));
            let flavor = flavor.map(|assignment| assignment.flavor.clone());
            let may_fit = match refusing {
                Refusing::NoPlace { gave_up: true, .. }
                | Refusing::QuotaForDevices { .. }
                | Refusing::Nominal {
                    lesser: Some(_), ..
                } => true,
                // What is used now must not matter: it may be another amount by the time that the next gang is judged.
                Refusing::Quota { .. } | Refusing::Nominal { .. } | Refusing::NoPlace { .. } => {
                    self.strict_by_inventory.insert(team);
                    let ways = refusals.len();
                    !self.is_impossible(shape, class, flavor, ways, &mut effort)
                }
                Refusing::TooFewDevices(_) => {
                    self.strict_by_inventory.insert(team);
                    false
                }
                Refusing::ExceedsMax { .. }
                | Refusing::Unnamed
                | Refusing::UnknownFlavor
                | Refusing::ExcludedFlavor
                | Refusing::Overflow => false,
            };
            if may_fit {
                return true;
            }
        }
        false
    }

    /// Whether it is certain that a shape has no place on the empty cluster: on one of so many Flavors that may be asked
    /// about. Remembered for as long as the inventory is the same.
    fn is_impossible(
        &mut self,
        shape: ShapeId,
        class: ClassId,
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
        let gang = self
            .classes
            .get(class)
            .and_then(|class| class.line.values().next());
        let Some(waiting) = gang.and_then(|gang| self.waiting.get(*gang)) else {
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
