//! An area as far as devices are counted: who of those who run there has to end for so many to be free, and when the last of them does.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    model::DeviceRequest,
    names::{GangUid, Timestamp},
    placement::Roomy,
    state::State,
};

/// Somebody who runs in an area: when it ends, or after all whose end is known how many places it outlasted, and how large it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Known(Timestamp),
    Unknown {
        outlasted: u32,
        size: Reverse<usize>,
        gang: GangUid,
    },
}

/// When an area is free, as far as devices go: how many places those of unknown end outlasted who have to go, one of them at most,
/// and how many devices they hold; and when the last of the others ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Free {
    outlasted: u32,
    unknown: usize,
    at: Timestamp,
}

/// An area as far as devices are counted.
pub(super) struct Sketch<'a> {
    pub(super) free: Free,
    /// Its nodes, those that hold most by then first.
    pub(super) slots: Vec<usize>,
    /// How many of them hold the gang together.
    pub(super) needed: usize,
    /// Who is gone by then.
    pub(super) gone: BTreeSet<&'a GangUid>,
    /// How many run there.
    pub(super) run: usize,
}

impl State {
    /// When an area has room for so many units of so many devices, and so many of those who run there are gone at least.
    pub(super) fn sketch<'a>(
        &'a self,
        area: &[Roomy],
        (each, needed): (usize, usize),
        at_least: usize,
    ) -> Option<Sketch<'a>> {
        let mut free: BTreeMap<usize, usize> = BTreeMap::new();
        let mut runs: BTreeMap<&GangUid, BTreeMap<usize, usize>> = BTreeMap::new();
        for node in area {
            let record = self.cluster.record(node.slot)?;
            free.insert(node.slot, record.now.free.len());
            for hold in self.cluster.holds_in(node.slot) {
                self.cluster.note_visits(1);
                let claims = hold.claims.iter();
                let devices = claims.map(|claim| match (&claim.devices, &claim.request) {
                    (Some(devices), _) => devices.len(),
                    (None, Some(request)) => {
                        let requests = request.requests.iter();
                        requests.map(DeviceRequest::least).sum()
                    }
                    (None, None) => 0,
                });
                let on_node = runs.entry(&hold.gang).or_default();
                *on_node.entry(node.slot).or_default() += devices.sum::<usize>();
            }
        }
        let most: BTreeMap<usize, u64> = area.iter().map(|node| (node.slot, node.units)).collect();
        let units = |slot: usize, devices: usize| {
            let most = most.get(&slot).copied().unwrap_or(0);
            (devices / each).min(usize::try_from(most).unwrap_or(usize::MAX))
        };
        let mut ends: Vec<(End, &GangUid)> = Vec::with_capacity(runs.len());
        for (gang, on) in &runs {
            let end = match self.end_of(gang) {
                Some(at) => End::Known(at),
                None => End::Unknown {
                    outlasted: self.backfill.outlasted_by(gang),
                    size: Reverse(on.values().sum()),
                    gang: (*gang).clone(),
                },
            };
            ends.push((end, gang));
        }
        ends.sort();
        let mut held: usize = free
            .iter()
            .map(|(slot, devices)| units(*slot, *devices))
            .sum();
        let mut when = Free {
            outlasted: 0,
            unknown: 0,
            at: self.backfill.now(),
        };
        let mut gone = BTreeSet::new();
        for (end, gang) in ends {
            if held >= needed && gone.len() >= at_least {
                break;
            }
            match end {
                End::Known(at) => when.at = when.at.max(at),
                End::Unknown {
                    outlasted, size, ..
                } => {
                    when.outlasted = when.outlasted.max(outlasted);
                    when.unknown += size.0;
                }
            }
            gone.insert(gang);
            for (slot, devices) in runs.get(gang).into_iter().flatten() {
                if let Some(known) = free.get_mut(slot) {
                    held -= units(*slot, *known);
                    *known += devices;
                    held += units(*slot, *known);
                }
            }
        }
        if held < needed {
            return None;
        }
        let mut slots: Vec<(Reverse<usize>, usize, usize)> = Vec::with_capacity(area.len());
        for (order, node) in area.iter().enumerate() {
            let devices = free.get(&node.slot).copied().unwrap_or(0);
            slots.push((Reverse(units(node.slot, devices)), order, node.slot));
        }
        slots.sort_unstable();
        let mut sum = 0;
        let at_least = slots.iter().take_while(|(Reverse(units), ..)| {
            let is_enough = sum >= needed;
            sum += units;
            !is_enough
        });
        Some(Sketch {
            needed: at_least.count(),
            free: when,
            slots: slots.iter().map(|(.., slot)| *slot).collect(),
            gone,
            run: runs.len(),
        })
    }
}
