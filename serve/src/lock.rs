//! Reading a value behind a lock from a request, in bounded time.

use std::{
    sync::{RwLock, TryLockError},
    time::{Duration, Instant},
};

/// Pause between two looks whether the lock is free.
const PAUSE: Duration = Duration::from_micros(200);

/// Reads the value as soon as nobody writes it; `None` if that does not happen within `limit`.
///
/// To wait for the lock itself would hold up a thread of the runtime, and with it the limits of all requests on that
/// thread: a writer that is stuck would silence the whole server instead of making it refuse.
pub async fn read_within<T, R>(
    lock: &RwLock<T>,
    limit: Duration,
    read: impl FnOnce(&T) -> R,
) -> Option<R> {
    let until = Instant::now() + limit;
    loop {
        match lock.try_read() {
            Ok(value) => return Some(read(&value)),
            // Who panicked while writing has ended the program; until then the value is what it is.
            Err(TryLockError::Poisoned(poisoned)) => return Some(read(&poisoned.into_inner())),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[expect(
        clippy::await_holding_lock,
        reason = "that the lock is held is what is tested"
    )]
    async fn a_lock_that_is_never_let_go_costs_the_request_and_not_the_thread() {
        let lock = RwLock::new(7);
        let limit = Duration::from_millis(20);
        assert_eq!(read_within(&lock, limit, |value| *value).await, Some(7));
        let writing = lock.try_write().unwrap();
        // On this one thread the other task runs meanwhile.
        let other = tokio::spawn(async { 1 });
        assert_eq!(read_within(&lock, limit, |value| *value).await, None);
        assert!(other.is_finished());
        drop(writing);
        assert_eq!(read_within(&lock, limit, |value| *value).await, Some(7));
    }
}
