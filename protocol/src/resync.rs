//! The slow look at everything: in slices, every ten minutes, for what no observation told.

use muster_cluster::formed::GangKey;

/// How long after the end of one look the next begins, in seconds.
pub(crate) const EVERY_SECONDS: u64 = 600;
/// Gangs that are looked at in one slice.
pub(crate) const GANGS_PER_SLICE: usize = 256;
/// Nodes that are looked at in one slice.
pub(crate) const NODES_PER_SLICE: usize = 64;

/// How far the look has come.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    /// When the next one begins.
    at: Option<u64>,
    /// The gang that was looked at last.
    pub(crate) gang: Option<GangKey>,
    pub(crate) nodes: Vec<String>,
    under_way: bool,
}

impl Resync {
    /// Whether a slice is due at that second. The first look is long after the takeover, which has looked at everything.
    pub(crate) fn is_due(&mut self, second: u64) -> bool {
        let at = *self.at.get_or_insert(second + EVERY_SECONDS);
        self.under_way || at <= second
    }

    /// Whether this is the first slice of a look.
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Everything was looked at.
    pub(crate) fn end(&mut self, second: u64) {
        *self = Self {
            at: Some(second + EVERY_SECONDS),
            ..Self::default()
        };
    }

    /// When the next slice is due.
    pub(crate) fn next_due(&self, second: u64) -> u64 {
        if self.under_way {
            return second + 1;
        }
        self.at.unwrap_or(second + EVERY_SECONDS)
    }
}
