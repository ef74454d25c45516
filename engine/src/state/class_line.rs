//! The gangs of one class, in the order in which they are served.

use std::collections::BTreeMap;

use super::{ids::GangId, namespace_line::NamespaceLine};
use crate::{
    fairness::WeightedUse,
    names::NamespaceName,
    queue::{Place, Standing},
};

/// The gangs of one class.
#[derive(Clone, Debug)]
pub(super) enum ClassLine {
    /// By place alone.
    ByPlace(BTreeMap<Place, GangId>),
    /// By what their namespaces used, then by place.
    ByUse(NamespaceLine),
}

impl ClassLine {
    /// The first gang.
    pub(super) fn first(&self) -> Option<GangId> {
        match self {
            Self::ByPlace(gangs) => gangs.values().next().copied(),
            Self::ByUse(line) => line.first().map(|(_, gang)| gang),
        }
    }

    /// Where it stands.
    pub(super) fn standing(&self) -> Option<Standing> {
        match self {
            Self::ByPlace(gangs) => {
                let (place, _) = gangs.first_key_value()?;
                Some(Standing::new(WeightedUse::NOTHING, place.clone()))
            }
            Self::ByUse(line) => line.first().map(|(standing, _)| standing.clone()),
        }
    }

    /// Its place, whatever was used.
    pub(super) fn place(&self) -> Option<&Place> {
        match self {
            Self::ByPlace(gangs) => gangs.keys().next(),
            Self::ByUse(line) => line.first().map(|(standing, _)| standing.place()),
        }
    }

    /// Puts a gang in line, whose namespace used so much.
    pub(super) fn insert(
        &mut self,
        (namespace, used): (&NamespaceName, WeightedUse),
        place: Place,
        gang: GangId,
    ) {
        match self {
            Self::ByPlace(gangs) => gangs.insert(place, gang),
            Self::ByUse(line) => line.insert(namespace, used, place, gang),
        };
    }

    /// Takes a gang out of line.
    pub(super) fn remove(&mut self, namespace: &NamespaceName, place: &Place) {
        match self {
            Self::ByPlace(gangs) => gangs.remove(place),
            Self::ByUse(line) => line.remove(namespace, place),
        };
    }

    /// A namespace used so much.
    pub(super) fn set_used(&mut self, namespace: &NamespaceName, used: WeightedUse) {
        if let Self::ByUse(line) = self {
            line.set_used(namespace, used);
        }
    }

    /// Whether a namespace has a gang here, where that matters.
    pub(super) fn has(&self, namespace: &NamespaceName) -> bool {
        match self {
            Self::ByPlace(_) => false,
            Self::ByUse(line) => line.used_by(namespace).is_some(),
        }
    }

    /// How many gangs there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::ByPlace(gangs) => gangs.len(),
            Self::ByUse(line) => line.len(),
        }
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All gangs, in whatever order.
    pub(super) fn gangs(&self) -> Vec<GangId> {
        match self {
            Self::ByPlace(gangs) => gangs.values().copied().collect(),
            Self::ByUse(line) => line.gangs().collect(),
        }
    }
}
