//! What goes wrong with what a driver asks for.
//!
//! Each history aims at one pair of effect and mishap, and consecutive seeds at different ones; besides that anything may happen to
//! anything, seldom. A view that is older than its object needs nobody to bring it about.

use muster_sim::{
    drivers::Step,
    matrix::{self, DRIVER_EFFECTS, EffectKind, MISHAPS, Mishap},
};

use super::History;

/// How often what a history aims at happens, at most.
const MOST_AIMED: u64 = 3;
/// In one of so many steps of slices NVML refuses.
const REFUSAL_ODDS: u64 = 8;
/// In one of so many writes the disk is full.
const FULL_DISK_ODDS: u64 = 20;
/// In one of so many steps anything else goes wrong.
const ANYTHING_ODDS: u64 = 150;

/// What is to meet what in a history, and how often it still may.
#[derive(Debug)]
pub(super) struct Aim {
    pair: Option<(EffectKind, Mishap)>,
    left: u64,
}

impl Aim {
    pub(super) fn of(seed: u64) -> Self {
        let mut pairs = matrix::pairs_of(DRIVER_EFFECTS);
        pairs.retain(|(_, mishap)| *mishap != Mishap::StaleRead);
        let number = usize::try_from(seed).map_or(0, |seed| seed % pairs.len());
        Self {
            pair: pairs.get(number).copied(),
            left: MOST_AIMED,
        }
    }

    /// Whether it is met only where permits are asked for, and seldom there.
    pub(super) fn needs_permits(&self) -> bool {
        matches!(self.pair, Some((EffectKind::DriverReadNodeDevices, _)))
    }
}

impl History {
    /// What goes wrong with what the step asks for, if anything does.
    pub(super) fn draw_mishap(&mut self, step: &Step) -> Option<Mishap> {
        let effect = self.drivers.effect(step)?;
        let can_fail = self.drivers.can_fail(step);
        let can_be = |mishap: &Mishap| {
            let is_crash = matches!(mishap, Mishap::CrashBefore | Mishap::CrashAfter);
            let is_drawn = *mishap != Mishap::StaleRead && effect.meets(*mishap);
            is_drawn && (is_crash || can_fail)
        };
        let drawn = self.draw(effect).filter(can_be)?;
        match (effect, drawn) {
            (EffectKind::DriverSlices, Mishap::Refused) => self.report.refusals += 1,
            (EffectKind::DriverCommit, Mishap::Refused) => self.report.full_disks += 1,
            _ => {}
        }
        if self.aim.pair == Some((effect, drawn)) {
            self.aim.left = self.aim.left.saturating_sub(1);
        }
        Some(drawn)
    }

    fn draw(&mut self, effect: EffectKind) -> Option<Mishap> {
        if let Some((aim, mishap)) = self.aim.pair
            && aim == effect
            && self.aim.left > 0
            && (self.aim.needs_permits() || self.random.one_in(2))
        {
            return Some(mishap);
        }
        let refusal_odds = match effect {
            EffectKind::DriverSlices => Some(REFUSAL_ODDS),
            EffectKind::DriverCommit => Some(FULL_DISK_ODDS),
            _ => None,
        };
        if refusal_odds.is_some_and(|odds| self.random.one_in(odds)) {
            return Some(Mishap::Refused);
        }
        if !self.random.one_in(ANYTHING_ODDS) {
            return None;
        }
        let mishaps = MISHAPS.into_iter().filter(|it| effect.meets(*it));
        self.random.pick(mishaps.collect())
    }

    /// Notes what the step asks for, and what goes wrong with it.
    pub(super) fn note_met(&mut self, step: &Step, mishap: Option<Mishap>) {
        let Some(effect) = self.drivers.effect(step) else {
            return;
        };
        let is_stale = self.drivers.is_stale(step, &self.api, super::NODE);
        let met = mishap
            .into_iter()
            .chain(is_stale.then_some(Mishap::StaleRead));
        for mishap in met {
            self.report.matrix.note(effect, mishap);
        }
    }
}
