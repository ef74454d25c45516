//! Whether the API server's store was set back to an earlier state under a running leader.
//!
//! What is observed counts by its resourceVersion: an older version of an object is told late, by a list of an API server
//! that lags behind, and says nothing. Unless etcd was restored from a backup: then every version is older than what is
//! held, for as long as the store takes to count up to where it was, and this leader would see nothing new till then.
//!
//! Both look alike in a list, and differ in the store: so the first object that is told with an older version than the one
//! held is read, uncached. If the store has an older version than was held when the read was sent, this leader ends, and the next one reads everything
//! afresh; that its epoch is above all that was given is the takeover's part ([`super::takeover`]). etcd's own way to
//! restore (a revision that is set above all that were given) never comes to this.

use crate::{
    ApiRequest, Effect, EffectId, ExitReason, Machine, Now, Outcome, in_flight::version_of,
};
use muster_cluster::object::ObjectKey;

/// The read of an object that was told with an older version than the one held. One at a time.
#[derive(Debug, Default)]
pub(crate) struct StoreCheck {
    suspect: Option<ObjectKey>,
    under_way: Option<Read>,
    /// The second before which it is not sent.
    not_before: u64,
}

/// A read on its way.
#[derive(Debug)]
pub(crate) struct Read {
    effect: EffectId,
    key: ObjectKey,
    /// The version that was held when it was sent: what comes meanwhile may be later than the answer.
    held: Option<u64>,
}

impl StoreCheck {
    /// That object was told with an older version. The first of several counts.
    pub(crate) fn suspect(&mut self, key: ObjectKey) {
        self.suspect.get_or_insert(key);
    }

    /// The read that this is the answer of, if it is one.
    pub(crate) fn end(&mut self, effect: EffectId) -> Option<Read> {
        self.under_way.take_if(|read| read.effect == effect)
    }

    /// The second in which it is to be sent.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let is_owed = self.suspect.is_some() && self.under_way.is_none();
        is_owed.then_some(self.not_before)
    }
}

impl Machine {
    /// The read that a suspicion asks for, at most one in [`crate::Config::retry_seconds`].
    pub(crate) fn check_store(&mut self, now: Now) -> Option<Effect> {
        let second = now.monotonic_seconds;
        self.store_check.next_due().filter(|due| *due <= second)?;
        let key = self.store_check.suspect.take()?;
        let id = self.flights.number();
        self.store_check.under_way = Some(Read {
            effect: id,
            held: self.index.version(&key),
            key: key.clone(),
        });
        self.store_check.not_before = second + self.config.retry_seconds;
        Some(Effect::new(id, ApiRequest::ReadObject { key }))
    }

    /// What is read from the store is at least as new as all that was told, unless the store was set back. An object that is
    /// not there was deleted, which the watch tells.
    pub(crate) fn take_store_check(&mut self, read: Read, outcome: &Outcome) {
        let Read { key, held, .. } = read;
        match outcome {
            Outcome::Done(Some(stored)) => {
                let is_older = |(stored, held): (u64, u64)| stored < held;
                if version_of(stored).zip(held).is_some_and(is_older) {
                    self.exit = Some(ExitReason::StoreSetBack {
                        object: format!("{:?} {}", key.kind, key.name),
                    });
                }
            }
            Outcome::NotFound => {}
            _ => self.store_check.suspect(key),
        }
    }
}
