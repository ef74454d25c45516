//! What time is, where the clock of the caller goes back.
//!
//! Time is told with each decision, by a clock that somebody may set back, by hours perhaps. What is to last for so long from a decision on
//! lasts no longer by that: what is kept for a preemptor or for a gang that recovers, the time until somebody goes for a limit, and the one between two samples of use.
//! What is told as a point in time (the end of a minimum run time, say) is meant by the clock as it is, and stays.
//! A clock that is corrected a little moves nothing: these times are shown, and each of them that moves costs a write.
//!
//! Who has a place kept counts otherwise ([`super::backfill`]): there time stands still until it is as late as it was.

use super::State;
use crate::names::Timestamp;

/// By so many seconds a clock may be behind the latest time that it told, and nothing moves.
const MOST_SECONDS_BEHIND: i64 = 60;

impl State {
    /// Takes in the time of a decision.
    pub(super) fn note_time(&mut self, now: Timestamp) {
        let latest = *self.latest.get_or_insert(now);
        let behind = latest.0.saturating_sub(now.0);
        if (1..=MOST_SECONDS_BEHIND).contains(&behind) {
            return;
        }
        self.latest = Some(now);
        if behind > 0 {
            self.reservations.end_earlier(behind);
            self.keeps.end_earlier(behind);
            self.shrinking.count_from_earlier(behind);
            self.namespaces.count_from_earlier(behind);
        }
    }
}

/// So many seconds earlier.
pub(super) fn earlier(at: Timestamp, seconds: i64) -> Timestamp {
    Timestamp(at.0.saturating_sub(seconds))
}
