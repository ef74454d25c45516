//! Whether this machine still leads. A lease is not a fence; the epoch is, and the Ledger that carries it.

use muster_api::Ledger;

use crate::{ApiRequest, Effect, InjectedBug, Machine, Now, Outcome, objects::ledger_object};
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
    /// leads. A process that takes over anew makes good what it held.
    #[error(
        "the Ledger that was raised to epoch {own} is gone, or another stands in its place: \
         the next takeover goes on from what Gangs and NodeDevices say"
    )]
    LedgerLost {
        /// The epoch of this machine.
        own: i64,
    },
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
            let status = self.index.gang(key)?.status.as_ref()?;
            Some((status.leader_epoch, format!("Gang {key}")))
        });
        let nodes = self.agenda.nodes().filter_map(|name| {
            let devices = self.index.node_devices(name)?;
            Some((devices.spec.leader_epoch, format!("NodeDevices {name}")))
        });
        let mut seen = gangs.chain(nodes).filter(|(epoch, _)| *epoch > own);
        let (epoch, object) = seen.next()?;
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

    /// After a conflict nothing is committed before the Ledger was read again, uncached.
    pub(crate) fn check_ledger(&mut self, now: Now) -> Option<Effect> {
        if self.checking.is_some() || self.check_ledger? > now.monotonic_seconds {
            return None;
        }
        self.check_ledger = None;
        let id = self.flights.number();
        self.checking = Some(id);
        let key = ledger_object();
        let write = ApiRequest::ReadObject { key };
        Some(Effect { id, write })
    }

    pub(crate) fn take_ledger_check(&mut self, outcome: &Outcome, now: Now) {
        let seen = match outcome {
            Outcome::Done(Some(Object::Ledger(ledger))) => Some(ledger.as_ref()),
            Outcome::NotFound => None,
            _ => {
                self.check_ledger = Some(now.monotonic_seconds + self.config.retry_seconds);
                return;
            }
        };
        if !self.bugs.has(InjectedBug::NoFence) {
            self.exit = self.judge_ledger(seen);
        }
    }
}
