//! Clocks of machines, which may be wrong. Virtual time itself is true: the API server and kubelets go by it, and so do all checks.
//!
//! A machine has one oscillator. Its monotonic clock counts that, and so does its time of day, which somebody sets besides: so the time of
//! day is off by what it was set to, and by what the oscillator has counted too much or too little since. It is set in whole seconds. So both clocks begin
//! a second at the same moment, whatever their rate: what is to come after so many seconds is as far away by either.

use jiff::{SignedDuration, Timestamp};
use muster_protocol::Now;

use crate::random::Random;

/// By how much a time of day is off at the most when it is set, in seconds, ahead or behind.
pub(crate) const MOST_SKEW_SECONDS: i64 = 240;
/// Milliseconds of a second, which is what a true clock counts in one.
const TRUE_RATE: u64 = 1_000;
/// How many milliseconds a clock counts too many or too few in a second at the most: a tenth of it.
const MOST_DRIFT: u64 = 100;
/// When runs begin, for ever.
const BEGINNING_SECONDS: i64 = 1_790_000_000;

/// The true time of day.
pub(crate) fn wall(now: u64) -> Timestamp {
    let beginning = Timestamp::from_second(BEGINNING_SECONDS).unwrap_or_default();
    beginning + SignedDuration::from_millis(signed(now))
}

fn signed(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds).unwrap_or(i64::MAX)
}

/// The clocks of a machine. By default they are true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Since when it has its rate, in milliseconds of the run.
    since: u64,
    /// What the monotonic clock showed then, in milliseconds.
    shown: u64,
    /// Milliseconds that it counts in a second.
    rate: u64,
    /// What is to be added to it for the milliseconds that the run lasts by the time of day: whole seconds.
    set: i64,
}

impl Default for Clock {
    fn default() -> Self {
        Self::started(0, 0)
    }
}

impl Clock {
    /// A clock of the true rate whose monotonic clock shows so many seconds when the run begins, and whose time of day is so many seconds ahead.
    pub(crate) fn started(shown_seconds: u64, ahead_seconds: i64) -> Self {
        let mut clock = Self {
            since: 0,
            shown: shown_seconds * TRUE_RATE,
            rate: TRUE_RATE,
            set: 0,
        };
        clock.set_ahead(0, ahead_seconds);
        clock
    }

    /// What the monotonic clock shows, in milliseconds.
    fn monotonic(&self, now: u64) -> u64 {
        self.shown + now.saturating_sub(self.since) * self.rate / TRUE_RATE
    }

    /// The second that the monotonic clock shows.
    pub(crate) fn second(&self, now: u64) -> u64 {
        self.monotonic(now) / TRUE_RATE
    }

    /// By how many milliseconds the time of day is ahead; behind, if negative.
    fn ahead(&self, now: u64) -> i64 {
        self.set + signed(self.monotonic(now)) - signed(now)
    }

    /// By how many whole seconds the time of day is ahead; behind, if negative.
    pub(crate) fn ahead_seconds(&self, now: u64) -> i64 {
        self.ahead(now) / signed(TRUE_RATE)
    }

    /// The time of day that it shows.
    pub(crate) fn time_of_day(&self, now: u64) -> Timestamp {
        let truth = wall(now);
        let ahead = SignedDuration::from_millis(self.ahead(now));
        truth.saturating_add(ahead).unwrap_or(truth)
    }

    /// Both.
    pub(crate) fn now(&self, now: u64) -> Now {
        Now {
            monotonic_seconds: self.second(now),
            wall: self.time_of_day(now),
        }
    }

    /// Somebody sets the time of day: ahead by so many seconds, or by less than one less.
    pub(crate) fn set_ahead(&mut self, now: u64, seconds: i64) {
        let second = signed(TRUE_RATE);
        let set = seconds * second + signed(now) - signed(self.monotonic(now));
        self.set = set.div_euclid(second) * second;
    }

    /// It counts so many milliseconds in a second from now on. Neither clock jumps by that.
    pub(crate) fn set_rate(&mut self, now: u64, rate: u64) {
        self.shown = self.monotonic(now);
        self.since = now;
        self.rate = rate;
    }

    /// It counts true seconds from now on. What it shows is as wrong as before.
    pub(crate) fn mend(&mut self, now: u64) {
        self.set_rate(now, TRUE_RATE);
    }

    /// Somebody sets the time of day forwards, or backwards, by minutes at the most: where it is not off by too much. By how many seconds.
    pub(crate) fn jump(&mut self, now: u64, random: &mut Random) -> i64 {
        let ahead = self.ahead_seconds(now);
        let room = |to: i64| u64::try_from((to - ahead).saturating_mul(to.signum())).unwrap_or(0);
        let forwards = room(MOST_SKEW_SECONDS);
        let backwards = room(-MOST_SKEW_SECONDS);
        let is_forwards = backwards == 0 || forwards > 0 && random.one_in(2);
        let by = if is_forwards {
            signed(random.between(1, forwards.max(1)))
        } else {
            -signed(random.between(1, backwards))
        };
        self.set_ahead(now, ahead + by);
        by
    }
}

/// How wrong a clock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    /// By how many seconds its time of day is ahead; behind, if negative.
    pub(crate) ahead_seconds: i64,
    /// How many milliseconds it counts in a second.
    pub(crate) rate: u64,
}

impl Skew {
    /// Any.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let most = MOST_SKEW_SECONDS.unsigned_abs();
        Self {
            ahead_seconds: signed(random.between(0, 2 * most)) - MOST_SKEW_SECONDS,
            rate: random.between(TRUE_RATE - MOST_DRIFT, TRUE_RATE + MOST_DRIFT),
        }
    }

    /// As wrong the other way round.
    pub(crate) fn mirrored(self) -> Self {
        Self {
            ahead_seconds: -self.ahead_seconds,
            rate: 2 * TRUE_RATE - self.rate,
        }
    }

    /// A clock is as wrong as that from now on.
    pub(crate) fn befall(self, clock: &mut Clock, now: u64) {
        clock.set_rate(now, self.rate);
        clock.set_ahead(now, self.ahead_seconds);
    }
}

/// How much sooner than by true time something may be done by a clock that runs fast, and how far ahead it may be dated. As long as no clock ran
/// fast there is none, so that runs with true clocks are judged as strictly as can be.
///
/// It only grows: what is done now may have been begun by a clock that was mended since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Margin {
    /// The highest rate that any clock had.
    fastest: u64,
}

impl Default for Margin {
    fn default() -> Self {
        Self { fastest: TRUE_RATE }
    }
}

impl Margin {
    /// A clock has that rate.
    pub(crate) fn note(&mut self, rate: u64) {
        self.fastest = self.fastest.max(rate);
    }

    /// The true time that has passed at the least where a monotonic clock counted so many seconds.
    ///
    /// A clock shows whole seconds. Between two looks at it that are so many seconds apart it counted less than one second less. It counts at most the
    /// highest rate, at any time in between, so at least that much divided by it passed.
    pub(crate) fn at_least(self, seconds: i64) -> SignedDuration {
        if self.fastest == TRUE_RATE {
            return SignedDuration::from_secs(seconds);
        }
        let second = signed(TRUE_RATE);
        let counted = (seconds - 1).max(0) * second;
        SignedDuration::from_millis(counted * second / signed(self.fastest))
    }

    /// The latest time of day that any clock can show at this true time.
    ///
    /// It was ahead by the most when it was set, and gained on true time since by the highest rate: since the run began at the most. A leader that counts on
    /// by its monotonic clock from the time of day at which it began is no further ahead: its time of day was ahead by no more then.
    pub(crate) fn latest(self, now: Timestamp) -> Timestamp {
        let elapsed = (now.as_millisecond() - wall(0).as_millisecond()).max(0);
        let gained = elapsed * signed(self.fastest - TRUE_RATE) / signed(TRUE_RATE);
        now + SignedDuration::from_secs(MOST_SKEW_SECONDS) + SignedDuration::from_millis(gained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True milliseconds between two looks.
    const STEP: u64 = 97;

    #[test]
    fn a_clock_that_nobody_touched_is_true() {
        let clock = Clock::default();
        for now in [0, 999, 1_000, 123_456] {
            assert_eq!(clock.time_of_day(now), wall(now));
            assert_eq!(clock.second(now), now / 1_000);
        }
        let other = Clock::started(1_000_000, 240);
        assert_eq!(other.second(1_999), 1_000_001);
        assert_eq!(
            other.time_of_day(1_999),
            wall(1_999) + SignedDuration::from_secs(240)
        );
    }

    #[test]
    fn whatever_befalls_a_clock_the_monotonic_one_never_goes_back_nor_jumps_and_both_begin_seconds_together()
     {
        let mut random = Random::new(1);
        let mut clock = Clock::started(7, -3);
        let mut before = clock.monotonic(0);
        for step in 1..20_000 {
            let now = step * STEP;
            let shown = clock.monotonic(now);
            let most = STEP * (TRUE_RATE + MOST_DRIFT) / TRUE_RATE + 1;
            assert!((before..=before + most).contains(&shown), "at {now}");
            let subsecond = |milliseconds: i64| milliseconds.rem_euclid(1_000);
            assert_eq!(
                subsecond(clock.time_of_day(now).as_millisecond()),
                subsecond(signed(shown)),
                "at {now}"
            );
            match random.below(30) {
                0 => {
                    let skew = Skew::draw(&mut random);
                    skew.befall(&mut clock, now);
                    let ahead = clock.ahead(now);
                    let set = skew.ahead_seconds * 1_000;
                    assert!((set - 999..=set).contains(&ahead), "{skew:?}: {ahead}");
                }
                1 => {
                    let ahead = clock.ahead_seconds(now);
                    let by = clock.jump(now, &mut random);
                    assert_ne!(by, 0);
                    let is_near = clock.ahead_seconds(now).abs_diff(ahead + by) <= 1;
                    assert!(is_near, "by {by} from {ahead}");
                }
                2 => clock.mend(now),
                _ => {}
            }
            assert_eq!(clock.monotonic(now), shown, "the monotonic clock jumps");
            before = shown;
        }
    }

    #[test]
    fn clocks_are_skewed_against_each_other_within_their_bounds() {
        let mut random = Random::new(1);
        let mut rates = std::collections::BTreeSet::new();
        for _ in 0..5_000 {
            let one = Skew::draw(&mut random);
            let other = one.mirrored();
            for skew in [one, other] {
                assert!((900..=1_100).contains(&skew.rate), "{skew:?}");
                assert!(skew.ahead_seconds.abs() <= MOST_SKEW_SECONDS, "{skew:?}");
            }
            assert_eq!(other.mirrored(), one);
            rates.insert(one.rate);
        }
        assert!(rates.contains(&900) && rates.contains(&1_100));
    }

    #[test]
    fn the_margin_is_what_the_fastest_clock_needs_and_none_without_one() {
        let mut margin = Margin::default();
        margin.note(900);
        assert_eq!(margin.at_least(60), SignedDuration::from_secs(60));
        let latest = |margin: Margin| margin.latest(wall(100_000));
        let ahead = |milliseconds| wall(100_000) + SignedDuration::from_millis(milliseconds);
        assert_eq!(latest(margin), ahead(240_000));
        margin.note(1_100);
        margin.note(1_000);
        assert_eq!(margin.at_least(0), SignedDuration::ZERO);
        assert_eq!(margin.at_least(56), SignedDuration::from_secs(50));
        assert_eq!(latest(margin), ahead(250_000));
        // As a leader counts: never sooner than that.
        for begins in (0..2_000).step_by(37) {
            let mut clock = Clock::default();
            clock.set_rate(0, 1_100);
            let first = clock.second(begins);
            let mut comes = begins..;
            let comes = comes.find(|now| clock.second(*now) >= first + 56);
            let passed = comes.map(|comes| signed(comes - begins));
            assert!(passed >= Some(50_000), "{begins}: {passed:?}");
        }
    }
}
