//! What is held and what waits, and the sums of both over time.

use super::Rules;

/// What one Team held, from its first event to its last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TeamUse {
    /// Charge times ticks.
    pub(crate) held: u128,
    pub(crate) first_event_at: Option<u64>,
    pub(crate) last_event_at: Option<u64>,
    now: u64,
}

impl TeamUse {
    /// Something happens to a gang of it: until now it held what it holds.
    pub(crate) fn note_event(&mut self, now: u64) {
        let since = self.last_event_at.replace(now).unwrap_or(now);
        self.held += u128::from(now - since) * u128::from(self.now);
        self.first_event_at.get_or_insert(now);
    }

    /// So much more is held from now on.
    pub(crate) fn hold(&mut self, size: u64, now: u64) {
        self.note_event(now);
        self.now += size;
    }

    /// So much less is held from now on.
    pub(crate) fn give_back(&mut self, size: u64, now: u64) {
        self.note_event(now);
        self.now -= size;
    }
}

/// Sums over time, up to the horizon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    /// For how long was measured.
    pub(crate) ticks: u64,
    pub(crate) held: u128,
    /// What was asked for and not held.
    pub(crate) pending: u128,
    /// What was free although it was asked for.
    pub(crate) idle_while_pending: u128,
    pub(crate) teams: Vec<TeamUse>,
}

pub(super) struct Gauges {
    capacity: u64,
    horizon: u64,
    held: u64,
    pending: u64,
    held_in_all: u128,
    measured: Measured,
}

impl Gauges {
    pub(super) fn new(rules: Rules, teams: usize) -> Self {
        Self {
            capacity: rules.capacity,
            horizon: rules.horizon.unwrap_or(u64::MAX),
            held: 0,
            pending: 0,
            held_in_all: 0,
            measured: Measured {
                teams: vec![TeamUse::default(); teams],
                ..Measured::default()
            },
        }
    }

    /// From a moment to a later one nothing changes.
    pub(super) fn advance(&mut self, from: u64, to: u64) {
        self.held_in_all += u128::from(to - from) * u128::from(self.held);
        let ticks = to.min(self.horizon).saturating_sub(from);
        let sum = |amount: u64| u128::from(ticks) * u128::from(amount);
        let idle = self.capacity.saturating_sub(self.held);
        self.measured.held += sum(self.held);
        self.measured.pending += sum(self.pending);
        self.measured.idle_while_pending += sum(idle.min(self.pending));
    }

    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn held_in_all(&self) -> u128 {
        self.held_in_all
    }

    pub(super) fn waits(&mut self, size: u64) {
        self.pending += size;
    }

    pub(super) fn starts(&mut self, team: usize, size: u64, now: u64) {
        self.pending -= size;
        self.held += size;
        self.measured.teams[team].hold(size, now);
    }

    pub(super) fn release(&mut self, team: usize, size: u64, now: u64) {
        self.held -= size;
        self.measured.teams[team].give_back(size, now);
    }

    /// Something happens to a gang of a Team.
    pub(super) fn note_event(&mut self, team: usize, now: u64) {
        self.measured.teams[team].note_event(now);
    }

    pub(super) fn measured(mut self, now: u64) -> Measured {
        self.measured.ticks = now.min(self.horizon);
        self.measured
    }
}
