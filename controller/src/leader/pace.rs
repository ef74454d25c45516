//! How many calls a second the leader sends to the API server.
//!
//! A bucket of tokens, as client-go's `qps` and `burst`: a call takes one. What has to wait for one keeps its place, which
//! its lane gave it; while it waits nothing else is sent, so a bound delays everything and turns nothing around.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock, DefaultClock},
};
use tokio::time::Instant;

/// See the module.
#[derive(Debug)]
pub struct Pace {
    tokens: Option<DefaultDirectRateLimiter>,
    /// How many there are in a second, if that is bounded.
    qps: Option<NonZeroU32>,
    clock: DefaultClock,
    again_at: Option<Instant>,
}

impl Pace {
    /// So many calls a second, and at most `burst` at once; as many as there are where `qps` is 0.
    pub fn new(qps: u32, burst: u32) -> Self {
        let qps = NonZeroU32::new(qps);
        let tokens = qps.map(|qps| {
            let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
            RateLimiter::direct(Quota::per_second(qps).allow_burst(burst))
        });
        Self {
            tokens,
            qps,
            clock: DefaultClock::default(),
            again_at: None,
        }
    }

    /// Takes a token for one call; if there is none, [`Self::again_at`] says when there is.
    pub(super) fn take(&mut self) -> bool {
        let Some(Err(not_until)) = self.tokens.as_ref().map(RateLimiter::check) else {
            self.again_at = None;
            return true;
        };
        self.again_at = Some(Instant::now() + not_until.wait_time_from(self.clock.now()));
        false
    }

    /// In which time there are tokens for so many calls; `None`: calls are not bounded.
    pub(super) fn time_for(&self, calls: u32) -> Option<Duration> {
        let qps = self.qps?;
        Some(Duration::from_secs(u64::from(calls)) / qps.get())
    }

    /// When there is a token again for a call that did not get one.
    pub(super) fn again_at(&self) -> Option<Instant> {
        self.again_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_bound_every_call_may_be_sent() {
        let mut pace = Pace::new(0, 0);
        assert!((0..10_000).all(|_| pace.take()));
        assert_eq!(pace.again_at(), None);
    }

    #[test]
    fn after_a_burst_the_next_call_waits_and_says_how_long() {
        let mut pace = Pace::new(1, 3);
        assert!((0..3).all(|_| pace.take()));
        assert!(!pace.take());
        let wait = pace.again_at().unwrap() - Instant::now();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
    }

    #[test]
    fn a_burst_of_nothing_is_one_call_at_a_time() {
        let mut pace = Pace::new(1, 0);
        assert!(pace.take());
        assert!(!pace.take());
    }
}
