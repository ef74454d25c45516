//! What is known of a GPU that is to be reset, and has not been: why, when it is tried again, and what people and the controller are told of it.
//!
//! **What the controller is told.** A GPU that is refused for a while would not be reset, whatever the controller allows, and it does not let it count for
//! its circuit breaker: a monitor that nobody ends would keep that open for ever. One that was found free would be reset. In between nothing new is said, so
//! what was said before stands: who has the GPU open now and then costs two writes in 20 s at the most, and a driver that starts anew takes
//! nothing back before it has looked.
//!
//! That somebody has a GPU open is told sooner than the 30 s for which the controller has a node wait, so that such a node has no turn.

use std::time::{Duration, Instant};

/// How often it is looked whether a GPU would be reset that may not be. More often than the 30 s for which the controller has a node wait: what becomes free on many
/// nodes at once is counted on all of them before the first has leave.
const LOOK_AGAIN: Duration = Duration::from_secs(15);
/// How long after it was refused a reset is tried again.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);
/// The same if NVML was closed for it, and nothing came of that: all GPUs of the node felt it. Twice as long each time.
const CLOSED_PAUSE: Duration = Duration::from_mins(5);
/// Longest of these: each try counts for the circuit breaker for a quarter of an hour, which is a hundredth of it.
const LONGEST_CLOSED_PAUSE: Duration = Duration::from_hours(24);
/// For how long a GPU is refused its reset until the controller is told: whoever used it goes first, in an orderly way.
const HINDERED_FOR: Duration = Duration::from_secs(20);
/// The same until people are told.
const REFUSED_FOR: Duration = Duration::from_mins(1);
/// How often people are told anew why a GPU is refused its reset, if that is another reason: who has it open may be another process each time.
const TELL_EVERY: Duration = Duration::from_mins(10);

/// A GPU that is to be reset.
#[derive(Debug)]
pub struct Refused {
    /// Since when it is refused, whenever it is looked at; `None`: it was found free.
    since: Option<Instant>,
    /// When it is looked at again.
    again: Instant,
    /// How often in a row NVML was closed for it in vain.
    in_vain: u32,
    /// Why it is refused.
    why: String,
    /// What people were told last, and when.
    told: Option<(String, Instant)>,
}

/// What is new of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// It has another reason than the last one.
    pub is_other: bool,
    /// People are to be told.
    pub is_to_be_told: bool,
}

impl Refused {
    /// One of which nothing is known yet.
    pub fn new(now: Instant) -> Self {
        Self {
            since: None,
            again: now,
            in_vain: 0,
            why: String::new(),
            told: None,
        }
    }

    /// It was found free.
    pub fn found_free(&mut self, now: Instant) {
        self.since = None;
        self.again = now + LOOK_AGAIN;
    }

    /// It cannot be reset now.
    pub fn refuse(&mut self, why: &str, now: Instant) -> News {
        self.again = now + REFUSED_PAUSE;
        self.note(why, now)
    }

    /// It could not be reset, and NVML was closed for that.
    pub fn was_in_vain(&mut self, why: &str, now: Instant) -> News {
        let doublings = self.in_vain.min(16);
        self.in_vain = self.in_vain.saturating_add(1);
        let pause = CLOSED_PAUSE.saturating_mul(1 << doublings);
        self.again = now + pause.min(LONGEST_CLOSED_PAUSE);
        self.note(why, now)
    }

    /// Whether it is to be looked at now. One that was found free is as soon as the controller says that it may be reset.
    pub fn is_due(&self, is_told: bool, now: Instant) -> bool {
        self.again <= now || (self.since.is_none() && is_told)
    }

    /// Whether it would not be reset now, whatever the controller allows; `None`: that is not known yet, and what was said before stands.
    pub fn is_hindered(&self) -> Option<bool> {
        match self.since {
            None => Some(false),
            Some(since) if self.is_refused_for(HINDERED_FOR, since) => Some(true),
            Some(_) => None,
        }
    }

    fn note(&mut self, why: &str, now: Instant) -> News {
        let since = *self.since.get_or_insert(now);
        let is_other = self.why != why;
        if is_other {
            why.clone_into(&mut self.why);
        }
        let is_news =
            |(told, at): &(String, Instant)| told != why && now.duration_since(*at) >= TELL_EVERY;
        let is_to_be_told =
            self.is_refused_for(REFUSED_FOR, since) && self.told.as_ref().is_none_or(is_news);
        if is_to_be_told {
            self.told = Some((why.to_owned(), now));
        }
        News {
            is_other,
            is_to_be_told,
        }
    }

    /// Whether it will have been refused for so long when it is looked at again: what takes longer than that is told at once. No time counts in which
    /// nobody has looked.
    fn is_refused_for(&self, limit: Duration, since: Instant) -> bool {
        self.again.duration_since(since) >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begin: Instant, seconds: u64) -> Instant {
        begin + Duration::from_secs(seconds)
    }

    #[test]
    fn whoever_keeps_a_gpu_from_being_reset_is_told_after_a_minute_and_others_ten_minutes_later() {
        let begin = Instant::now();
        let mut refused = Refused::new(begin);
        for (why, seconds, is_other, is_to_be_told) in [
            ("process 1", 0, true, false),
            ("process 1", 50, false, false),
            ("process 1", 55, false, true),
            ("process 2", 60, true, false),
            ("process 1", 654, true, false),
            ("process 2", 654, true, false),
            ("process 2", 655, false, true),
            ("process 2", 5_000, false, false),
        ] {
            let news = refused.refuse(why, at(begin, seconds));
            let expected = News {
                is_other,
                is_to_be_told,
            };
            assert_eq!(news, expected, "{why} {seconds}");
        }
        let mut in_vain = Refused::new(begin);
        assert!(in_vain.was_in_vain("no program", begin).is_to_be_told);
    }

    #[test]
    fn a_gpu_that_is_refused_for_a_while_is_hindered_and_one_that_is_found_free_is_not() {
        let begin = Instant::now();
        let mut refused = Refused::new(begin);
        refused.found_free(begin);
        assert_eq!(refused.is_hindered(), Some(false));
        for (seconds, expected) in [(2, None), (10, None), (16, None), (17, Some(true))] {
            let _ = refused.refuse("process 1", at(begin, seconds));
            assert_eq!(refused.is_hindered(), expected, "{seconds}");
        }
        // Sooner than the controller gives a node its turn.
        assert!(HINDERED_FOR < Duration::from_secs(30) && LOOK_AGAIN < Duration::from_secs(30));
        refused.found_free(at(begin, 22));
        assert_eq!(refused.is_hindered(), Some(false));
        let _ = refused.refuse("process 1", at(begin, 37));
        assert_eq!(refused.is_hindered(), None, "it begins anew");
    }

    #[test]
    fn a_command_that_cannot_be_run_hinders_at_once_and_is_tried_again_after_five_minutes_up_to_a_day()
     {
        let begin = Instant::now();
        let mut refused = Refused::new(begin);
        let mut now = begin;
        let mut pauses = Vec::new();
        for _ in 0..40 {
            let _ = refused.was_in_vain("status 127", now);
            assert_eq!(refused.is_hindered(), Some(true));
            pauses.push((refused.again - now).as_secs() / 60);
            // Neither before that nor for the leave that it still has.
            let just_before = refused.again.checked_sub(Duration::from_secs(1)).unwrap();
            assert!(!refused.is_due(true, just_before));
            now = refused.again;
            assert!(refused.is_due(false, now));
            // Nobody has it open, and what the command says of it is known once it is run.
            refused.found_free(now);
        }
        let expected = [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 1_440, 1_440];
        assert_eq!(pauses[..11], expected);
        assert!(pauses[11..].iter().all(|pause| *pause == 1_440));
    }

    #[test]
    fn a_gpu_that_was_found_free_is_reset_as_soon_as_it_may_be() {
        let begin = Instant::now();
        let mut refused = Refused::new(begin);
        assert!(refused.is_due(false, begin));
        refused.found_free(begin);
        assert!(!refused.is_due(false, at(begin, 14)));
        assert!(refused.is_due(true, at(begin, 1)));
        assert!(refused.is_due(false, at(begin, 15)));
        let _ = refused.refuse("process 1", at(begin, 15));
        assert!(!refused.is_due(true, at(begin, 19)));
        assert!(refused.is_due(false, at(begin, 20)));
    }
}
