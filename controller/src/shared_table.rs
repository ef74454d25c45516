//! What a keeper goes by: a table that watches tell of changes, and that wakes it.
//!
//! A keeper is a task that keeps objects of one kind as they should be ([`crate::claim_templates`], [`crate::node_conditions`],
//! [`crate::disruption_budgets`]). The leader tells the table, which never waits for a call; the keeper writes what follows from the table as it is
//! when it looks. Changes are not queued: one that is told twice, or with others, costs one look.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_cluster::object::Change;
use tokio::{
    sync::Notify,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

/// A table that is told of changes.
pub trait Observe {
    /// Takes a change in, if it concerns the table. Whether the keeper is to look.
    fn observe(&mut self, change: &Change) -> bool;
}

/// A table, shared by its keeper and by who tells it of changes.
#[derive(Debug, Default)]
pub struct SharedTable<T>(Arc<Shared<T>>);

#[derive(Debug, Default)]
struct Shared<T> {
    table: Mutex<T>,
    changed: Notify,
}

impl<T> Clone for SharedTable<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Observe> SharedTable<T> {
    /// Takes a change in, and wakes the keeper if it is to look.
    pub fn observe(&self, change: &Change) {
        let is_to_look = self.table().observe(change);
        if is_to_look {
            self.0.changed.notify_one();
        }
    }
}

impl<T> SharedTable<T> {
    /// The table. Whoever tells it of a change waits while it is held.
    pub(crate) fn table(&self) -> MutexGuard<'_, T> {
        let table = self.0.table.lock();
        table.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the keeper is to look: the table has changed, a call has ended, or the time has come. What came of the call, if it is that. What
    /// changes while nobody waits ends the next wait at once.
    pub(crate) async fn wait<D: 'static>(
        &self,
        under_way: &mut JoinSet<D>,
        until: Instant,
    ) -> Option<D> {
        tokio::select! {
            () = self.0.changed.notified() => None,
            Some(ended) = under_way.join_next() => result(ended),
            () = sleep_until(until) => None,
        }
    }
}

/// What a call came to. If its task broke off the keeper breaks off as well, and with it the program: what the call was to see to would never be
/// seen to again, and everything would look well. `None`: it was dropped, which nobody does who waits.
fn result<D>(ended: Result<D, JoinError>) -> Option<D> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(result) => Some(result),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None,
    }
}
