//! Tasks that somebody waits for.

use tokio::task::JoinError;

/// What a task came to. If it broke off, whoever waits for it breaks off as well, and with it the program: what it was to see to would never
/// be seen to again, and everything would look well. `None`: it was dropped, which nobody does who waits.
pub(crate) fn result<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(result) => Some(result),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None,
    }
}
