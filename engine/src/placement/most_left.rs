//! The most that is left, besides devices, on any node of a domain: what no node there can have is told without a look at each.
//!
//! A change of one node makes only what holds that node be found again: its innermost domain and those around it, each from its
//! parts. Nodes without a domain, all of them where there is no Topology, are taken together by [`STRETCH`] slots.

use super::{
    room::Largest,
    tree::{DomainId, ROOT, Tree},
};

/// Slots whose nodes without a domain are looked at together. Of some thousand nodes there are about as many stretches as slots in one.
const STRETCH: usize = 64;

/// Some nodes of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Those of a domain, and of all in it.
    Domain(DomainId),
    /// Those without a domain among so many slots from this one on.
    Stretch(usize),
}

impl Part {
    /// The stretch with a slot.
    pub(super) fn stretch_of(slot: usize) -> Self {
        Self::Stretch(slot / STRETCH * STRETCH)
    }
}

/// What was found of each part, until one of its nodes changes.
#[derive(Clone, Debug, Default)]
pub(super) struct MostLeft {
    domains: Vec<Option<Largest>>,
    /// By the number of the stretch.
    stretches: Vec<Option<Largest>>,
}

impl MostLeft {
    /// As many domains and slots as there are now. Nothing is known of what is new.
    pub(super) fn resize(&mut self, domains: usize, slots: usize) {
        self.domains.resize(domains, None);
        self.stretches.resize(slots.div_ceil(STRETCH), None);
    }

    /// The node of a slot, which has this innermost domain, changes.
    pub(super) fn forget(&mut self, tree: &Tree, slot: usize, domain: DomainId) {
        for around in tree.upwards(domain) {
            if let Some(known) = self.domains.get_mut(around) {
                *known = None;
            }
        }
        if domain == ROOT
            && let Some(known) = self.stretches.get_mut(slot / STRETCH)
        {
            *known = None;
        }
    }

    /// What is known of a part.
    pub(super) fn get(&self, part: Part) -> Option<&Largest> {
        match part {
            Part::Domain(domain) => self.domains.get(domain)?.as_ref(),
            Part::Stretch(first) => self.stretches.get(first / STRETCH)?.as_ref(),
        }
    }

    /// Keeps what was found of a part.
    pub(super) fn keep(&mut self, part: Part, most: Largest) {
        let known = match part {
            Part::Domain(domain) => self.domains.get_mut(domain),
            Part::Stretch(first) => self.stretches.get_mut(first / STRETCH),
        };
        if let Some(known) = known {
            *known = Some(most);
        }
    }

    /// The stretches of nodes without a domain, by their first slots.
    pub(super) fn stretches(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.stretches.len()).map(|number| number * STRETCH)
    }

    /// The slots of a stretch.
    pub(super) fn slots(first: usize) -> std::ops::Range<usize> {
        first..first + STRETCH
    }
}
