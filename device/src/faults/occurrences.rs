//! How often something came, for rules that count.

use serde::{Deserialize, Serialize};

use super::catalogue::Repeat;

/// Occurrences of one signal on one GPU: as many as a rule can ask for, whatever comes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Occurrences {
    /// When each began, in seconds since 1970, the oldest first.
    began: Vec<i64>,
    /// When it was last seen.
    last: i64,
}

impl Occurrences {
    /// It was seen. Whether there are as many now as the rule asks for.
    pub(super) fn note(&mut self, repeat: &Repeat, now_unix_seconds: i64) -> bool {
        let now = now_unix_seconds;
        let quiet = now.saturating_sub(self.last);
        let is_new = self.began.is_empty() || quiet >= i64::from(repeat.burst_seconds);
        // A clock that was set back ends no occurrence, nor does it make old ones of it that never end.
        self.last = now;
        for began in &mut self.began {
            *began = (*began).min(now);
        }
        if is_new {
            self.began.push(now);
        }
        let within = i64::from(repeat.within_seconds);
        self.began
            .retain(|began| now.saturating_sub(*began) < within);
        let count = usize::try_from(repeat.count).unwrap_or(usize::MAX);
        let more = self.began.len().saturating_sub(count.max(1));
        drop(self.began.drain(..more));
        self.began.len() >= count
    }

    /// Whether no rule can ask for it any more.
    pub(super) fn is_old(&self, now_unix_seconds: i64) -> bool {
        let quiet = now_unix_seconds.saturating_sub(self.last);
        quiet > i64::from(Repeat::WITHIN_SECONDS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::class::FaultClass, *};

    const RULE: Repeat = Repeat {
        count: 3,
        within_seconds: 1_000,
        class: FaultClass::Retire,
        burst_seconds: 100,
    };

    fn noted(times: &[i64]) -> Vec<bool> {
        let mut occurrences = Occurrences::default();
        let times = times.iter();
        times.map(|now| occurrences.note(&RULE, *now)).collect()
    }

    #[test]
    fn what_comes_together_is_one_occurrence() {
        assert_eq!(noted(&[0, 1, 2, 3, 99, 150]), [false; 6]);
        assert_eq!(noted(&[0, 100, 200]), [false, false, true]);
        // It goes on, and each time is one more proof of it.
        assert_eq!(noted(&[0, 100, 200, 201]), [false, false, true, true]);
    }

    #[test]
    fn what_is_longer_ago_than_the_rule_says_counts_no_more() {
        assert_eq!(noted(&[0, 500, 1_000]), [false; 3]);
        assert_eq!(noted(&[0, 500, 999]), [false, false, true]);
        assert_eq!(noted(&[0, 500, 999, 5_000]), [false, false, true, false]);
    }

    #[test]
    fn a_clock_that_was_set_back_makes_nothing_more_nor_less() {
        assert_eq!(
            noted(&[1_000_000, 10, 110, 210]),
            [false, false, false, true]
        );
        assert_eq!(noted(&[0, 1_000_000, 5, 150]), [false; 4]);
    }

    #[test]
    fn however_much_comes_no_more_is_kept_than_a_rule_can_ask_for() {
        let mut occurrences = Occurrences::default();
        for now in 0..20_000 {
            let _ = occurrences.note(&RULE, now);
        }
        assert!(occurrences.began.len() <= 3);
        assert!(!occurrences.is_old(20_000));
        assert!(occurrences.is_old(20_000 + 2_592_001));
    }
}
