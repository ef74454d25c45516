//! Whether this machine still leads. A lease is not a fence; the epoch is, and the Ledger that carries it.

use muster_api::Ledger;

use crate::{
    ApiRequest, Effect, EffectId, InjectedBug, Machine, Now, Outcome, objects::ledger_object,
};
use muster_cluster::object::Object;

/// Why the controller must stop at once: it does not lead any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExitReason {
    /// Somebody else leads.
    #[error("{object} carries leader epoch {epoch}, above the own {own}: another controller leads")]
    HigherEpoch {
        /// The object that carries it.
        object: String,
        /// Its epoch.
        epoch: i64,
        /// The epoch of this machine.
        own: i64,
    },
    /// The Ledger that this machine raised is no more: nothing can be committed to it, and whoever makes another
    /// leads. A process that takes over again makes good what it held.
    #[error(
        "the Ledger that was raised to epoch {own} is gone, or another stands in its place: \
         the next takeover goes on from what Gangs and NodeDevices say"
    )]
    LedgerLost {
        /// The epoch of this machine.
        own: i64,
    },
    /// The API server's store has an older version of an object than was seen before: what is seen is of a state that is no
    /// more. A process that takes over again reads everything afresh.
    #[error(
        "the API server has an older version of {object} than it told before: its store was set back to an earlier state, \
         and everything is read afresh"
    )]
    StoreSetBack {
        /// The object.
        object: String,
    },
}

/// The read of the Ledger that a conflict asks for, or permits that wait for it.
///
/// One that succeeded counts for a second: whoever writes to an object all the time (a node's driver to the status of its
/// `NodeDevices`, say) must not keep the leader from committing. That costs nothing in safety, since the commit itself is
/// conditional on the Ledger that was seen.
#[derive(Debug, Default)]
pub(crate) struct LedgerCheck {
    /// The second before which it is not sent, if it is asked for.
    asked_for: Option<u64>,
    under_way: Option<EffectId>,
    counts_until: u64,
}

impl LedgerCheck {
    /// It is asked for, not to be sent before that second.
    pub(crate) fn ask(&mut self, second: u64) {
        let earliest = second.max(self.counts_until);
        self.asked_for.get_or_insert(earliest);
    }

    /// Whether it is to be sent.
    fn is_due(&self, second: u64) -> bool {
        self.under_way.is_none() && self.asked_for.is_some_and(|at| at <= second)
    }

    fn begin(&mut self, effect: EffectId) {
        self.asked_for = None;
        self.under_way = Some(effect);
    }

    /// Whether that was its answer.
    pub(crate) fn end(&mut self, effect: EffectId) -> bool {
        let is_answer = self.under_way == Some(effect);
        if is_answer {
            self.under_way = None;
        }
        is_answer
    }

    /// It said nothing: it is sent again, not before that second.
    fn failed(&mut self, second: u64) {
        self.asked_for = self.asked_for.max(Some(second));
    }

    fn succeeded(&mut self, until: u64) {
        self.counts_until = until;
        if let Some(at) = &mut self.asked_for {
            *at = until.max(*at);
        }
    }

    /// Whether nothing is to be committed before it.
    pub(crate) fn is_owed(&self, second: u64) -> bool {
        self.under_way.is_some() || (self.asked_for.is_some() && self.counts_until <= second)
    }

    /// The second in which it is to be sent.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.asked_for.filter(|_| self.under_way.is_none())
    }
}

impl Machine {
    /// Whether somebody else leads, as far as is observed.
    pub(crate) fn superseded(&self) -> Option<ExitReason> {
        let own = self.takeover.raised().map_or(0, |raised| raised.epoch);
        if self.takeover.is_superseded() {
            return Some(ExitReason::LedgerLost { own });
        }
        self.takeover.leading_epoch()?;
        if self.bugs.has(InjectedBug::NoFence) || !self.index.is_synced() {
            return None;
        }
        self.judge_ledger(self.index.ledger().map(AsRef::as_ref))
    }

    /// A higher epoch on what is about to be looked at. Whatever changed is: so none is overlooked, and nothing is written
    /// before.
    pub(crate) fn seen_above(&self, own: i64) -> Option<ExitReason> {
        if self.bugs.has(InjectedBug::NoFence) {
            return None;
        }
        let gangs = self.agenda.gangs().filter_map(|key| {
            let epoch = self.index.gang(key)?.status.as_ref()?.leader_epoch;
            (epoch > own).then(|| (epoch, format!("Gang {key}")))
        });
        let nodes = self.agenda.nodes().filter_map(|name| {
            let epoch = self.index.node_devices(name)?.spec.leader_epoch;
            (epoch > own).then(|| (epoch, format!("NodeDevices {name}")))
        });
        let (epoch, object) = gangs.chain(nodes).next()?;
        Some(ExitReason::HigherEpoch { object, epoch, own })
    }

    /// Why what is seen in the place of the own Ledger ends this leadership, if it does.
    fn judge_ledger(&self, seen: Option<&Ledger>) -> Option<ExitReason> {
        let raised = self.takeover.raised()?;
        let own = raised.epoch;
        match seen {
            Some(ledger) if raised.stands_in(ledger) => None,
            Some(ledger) if ledger.spec.leader_epoch > own => Some(ExitReason::HigherEpoch {
                object: "Ledger cluster".to_owned(),
                epoch: ledger.spec.leader_epoch,
                own,
            }),
            _ => Some(ExitReason::LedgerLost { own }),
        }
    }

    /// The highest epoch on any Gang or `NodeDevices`, and on which. A look at all of them: asked once, at the takeover.
    pub(crate) fn highest_epoch(&self) -> (i64, String) {
        let gangs = self.index.gangs().map(|(key, gang)| {
            let epoch = gang.status.as_ref().map_or(0, |status| status.leader_epoch);
            (epoch, key)
        });
        let gang = gangs
            .max_by_key(|(epoch, _)| *epoch)
            .map(|(epoch, key)| (epoch, format!("Gang {key}")));
        let devices = self
            .index
            .all_node_devices()
            .max_by_key(|(_, devices)| devices.spec.leader_epoch)
            .map(|(name, devices)| (devices.spec.leader_epoch, format!("NodeDevices {name}")));
        gang.max(devices).unwrap_or_default()
    }

    /// After a conflict nothing is committed before the Ledger was read again, uncached; nor is anything permitted by a
    /// `NodeDevices` that came into sight after it was known last that this machine leads ([`super::newest`]).
    pub(crate) fn check_ledger(&mut self, now: Now) -> Option<Effect> {
        if !self.ledger_check.is_due(now.monotonic_seconds) {
            return None;
        }
        let id = self.flights.number();
        self.ledger_check.begin(id);
        self.newest.begin(id);
        let key = ledger_object();
        let write = ApiRequest::ReadObject { key };
        Some(Effect::new(id, write))
    }

    /// Takes the answer of that read: whether it says that this machine leads.
    pub(crate) fn take_ledger_check(&mut self, outcome: &Outcome, now: Now) -> bool {
        let seen = match outcome {
            Outcome::Done(Some(Object::Ledger(ledger))) => Some(ledger.as_ref()),
            Outcome::NotFound => None,
            _ => {
                let second = now.monotonic_seconds + self.config.retry_seconds;
                self.ledger_check.failed(second);
                return false;
            }
        };
        self.ledger_check
            .succeeded(now.monotonic_seconds + self.config.retry_seconds);
        if !self.bugs.has(InjectedBug::NoFence) {
            self.exit = self.judge_ledger(seen);
        }
        self.exit.is_none()
    }
}
