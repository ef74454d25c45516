//! What would help gangs at the head of their lines, as it was worked out last.
//!
//! To work it out takes as long as several decisions. Those at the head of their lines are explained anew again and again while
//! anything is released, since it may be promised to them, and mostly nothing came of that for them. So for one gang it is worked
//! out once in [`EVERY_SECONDS`]; asked in between, what is known is told, with the reason that it was worked out for, and the gang
//! is explained once more afterwards. A reason of another kind is never told with it.
//!
//! In a second it is worked out anew for so many gangs ([`RENEWED_PER_SECOND`]), or for a sixteenth of all if that is more: many Teams
//! have many heads, and what is told of them is written once in half a minute. For whom it was worked out waits until it could be so for
//! all others: else those who come first in each second would have it anew again and again, and the last ones never. For whom nothing is
//! known it is worked out at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem::discriminant,
};

use muster_cluster::table::Table;
use muster_engine as engine;

/// How often it is worked out for a gang at most, in seconds. A reason is told no earlier than that
/// ([`crate::outward::gang_status`]).
const EVERY_SECONDS: u64 = 2;

/// For how many gangs of which it is known it is worked out anew in a second.
const RENEWED_PER_SECOND: usize = 16;
/// In how many seconds it is worked out anew for all, however many they are.
const RENEWED_WITHIN_SECONDS: usize = 16;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Help {
    known: Table<engine::GangUid, Known>,
    /// Which gangs are to be explained again in which second.
    again: BTreeMap<u64, BTreeSet<engine::GangUid>>,
    /// For how many it was worked out anew, and in which second.
    renewed: usize,
    renewed_in: u64,
}

/// What would help a gang.
#[derive(Debug)]
pub(super) struct Known {
    /// Why it waited then: the two are told together, or the one may contradict the other.
    pub(super) why: engine::Why,
    pub(super) remedies: engine::Remedies,
    worked_out_at: u64,
}

impl Help {
    /// What would help the gang that is explained so; `None`: nothing is told of such a reason.
    pub(super) fn of(
        &mut self,
        explanation: &engine::Explanation,
        second: u64,
        work_out: impl FnOnce(&engine::Explanation) -> engine::Remedies,
    ) -> Option<&Known> {
        if !explanation.why.may_have_remedies() {
            return None;
        }
        let gang = &explanation.gang;
        let is_alike = |known: &&Known| discriminant(&known.why) == discriminant(&explanation.why);
        let known = self.known.get(gang).filter(is_alike);
        if self.renewed_in != second {
            (self.renewed, self.renewed_in) = (0, second);
        }
        let most = RENEWED_PER_SECOND.max(self.known.len() / RENEWED_WITHIN_SECONDS);
        let round_seconds = u64::try_from(self.known.len().div_ceil(most)).unwrap_or(u64::MAX);
        let every_seconds = EVERY_SECONDS.max(round_seconds);
        let until = known.map(|known| known.worked_out_at.saturating_add(every_seconds));
        let until = until.map(|until| {
            if self.renewed < most {
                until
            } else {
                until.max(self.next_with_room(second, most))
            }
        });
        if let Some(until) = until.filter(|until| second < *until) {
            self.again.entry(until).or_default().insert(gang.clone());
        } else {
            self.renewed += usize::from(until.is_some());
            let known = Known {
                why: explanation.why.clone(),
                remedies: work_out(explanation),
                worked_out_at: second,
            };
            self.known.insert(gang.clone(), known);
        }
        self.known.get(gang)
    }

    /// The first second after this one in which no more than so many are to be explained again, by now: to explain all in each second until
    /// it is their turn would cost more than what it is for.
    fn next_with_room(&self, second: u64, most: usize) -> u64 {
        let mut next = second.saturating_add(1);
        for (at, gangs) in self.again.range(next..) {
            if *at > next || gangs.len() < most {
                break;
            }
            next = next.saturating_add(1);
        }
        next
    }

    /// The gang does not wait any more.
    pub(super) fn forget(&mut self, gang: &engine::GangUid) {
        self.known.remove(gang);
    }

    /// The gangs that are to be explained again by now.
    pub(super) fn take_due(&mut self, second: u64) -> BTreeSet<engine::GangUid> {
        let later = self.again.split_off(&second.saturating_add(1));
        let due = std::mem::replace(&mut self.again, later);
        due.into_values().flatten().collect()
    }

    /// The second in which a gang is to be explained again.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.again.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explanation(why: engine::Why) -> engine::Explanation {
        engine::Explanation {
            gang: "g".into(),
            position: 1,
            why,
        }
    }

    fn lacks_quota() -> engine::Explanation {
        lacks(engine::Resource::Gpus)
    }

    fn lacks(resource: engine::Resource) -> engine::Explanation {
        explanation(engine::Why::ExceedsMaxQuota {
            of: engine::FlavorResource {
                flavor: "gpu".into(),
                resource,
            },
            asked: engine::Amount::ONE_GPU,
            most: engine::Amount::ZERO,
            may_borrow: false,
        })
    }

    fn remedies(gave_up: bool) -> engine::Remedies {
        engine::Remedies {
            gave_up,
            ..engine::Remedies::default()
        }
    }

    #[test]
    fn what_would_help_is_worked_out_once_in_two_seconds_and_again_after_it_was_asked_for_in_between()
     {
        let mut help = Help::default();
        let mut times = 0;
        for (second, worked_out, again) in [
            (10, 1, None),
            (10, 1, Some(12)),
            (11, 1, Some(12)),
            (12, 2, None),
            (20, 3, None),
        ] {
            let due = help.take_due(second);
            assert_eq!(due.len(), usize::from(second == 12), "{second}");
            help.of(&lacks_quota(), second, |_| {
                times += 1;
                remedies(false)
            });
            // Of a reason without remedies none is told, and none is forgotten.
            let other = explanation(engine::Why::NextCommit);
            let told = help.of(&other, second, |_| panic!("there is none"));
            assert!(told.is_none());
            assert_eq!((times, help.next_due()), (worked_out, again), "{second}");
        }
        help.forget(&"g".into());
        let told = help.of(&lacks_quota(), 20, |_| remedies(true)).unwrap();
        assert_eq!(told.remedies, remedies(true));
    }

    #[test]
    fn in_a_second_it_is_worked_out_anew_for_so_many_and_at_once_for_whom_it_is_not_known() {
        let mut help = Help::default();
        let gangs = RENEWED_PER_SECOND + 3;
        let worked_out = |help: &mut Help, second| {
            let mut times = 0;
            for gang in 0..gangs {
                let explained = engine::Explanation {
                    gang: format!("g{gang}").as_str().into(),
                    ..lacks_quota()
                };
                let known = help.of(&explained, second, |_| {
                    times += 1;
                    remedies(false)
                });
                assert!(known.is_some(), "{gang}");
            }
            times
        };
        assert_eq!(worked_out(&mut help, 10), gangs);
        assert_eq!(worked_out(&mut help, 12), RENEWED_PER_SECOND);
        assert_eq!(help.take_due(12).len(), 0);
        assert_eq!(help.take_due(13).len(), 3, "the others are asked again");
        assert_eq!(worked_out(&mut help, 13), 3);
    }

    /// A defect once: of whoever came after the first thirty-two it was told for ever what had been worked out first.
    #[test]
    fn it_is_worked_out_anew_for_each_gang_however_often_all_are_asked() {
        for gangs in [2, 40, 64, 300] {
            let mut help = Help::default();
            let (mut renewed, mut most_in_a_second) = (vec![0; gangs], 0);
            let seconds = 2 * RENEWED_WITHIN_SECONDS + 4;
            for second in 0..seconds {
                let mut now = 0;
                for (gang, renewed) in renewed.iter_mut().enumerate() {
                    let explained = engine::Explanation {
                        gang: format!("g{gang:03}").as_str().into(),
                        ..lacks_quota()
                    };
                    let second = u64::try_from(second).unwrap();
                    let known = help.of(&explained, second, |_| {
                        *renewed += 1;
                        now += 1;
                        remedies(false)
                    });
                    assert!(known.is_some(), "{gang} of {gangs}");
                }
                if second > 0 {
                    most_in_a_second = now.max(most_in_a_second);
                }
            }
            // Once when it was not known, and in each of two rounds.
            let least = renewed.iter().min();
            assert!(least >= Some(&2), "{gangs}: {renewed:?}");
            let most = RENEWED_PER_SECOND.max(gangs / RENEWED_WITHIN_SECONDS);
            assert!(most_in_a_second <= most, "{most_in_a_second} of {gangs}");
        }
    }

    #[test]
    fn whoever_is_to_be_asked_again_is_asked_once_it_is_worked_out_anew_and_not_in_each_second_until_then()
     {
        let gangs = 4 * RENEWED_PER_SECOND;
        let mut help = Help::default();
        let ask = |help: &mut Help, gang: engine::GangUid, second| {
            let explained = engine::Explanation {
                gang,
                ..lacks_quota()
            };
            let known = help.of(&explained, second, |_| remedies(false));
            assert!(known.is_some(), "{second}");
        };
        for second in [0, 1] {
            for gang in 0..gangs {
                ask(&mut help, format!("g{gang:02}").as_str().into(), second);
            }
        }
        let mut asked = Vec::new();
        for second in 2..12 {
            let due = help.take_due(second);
            asked.push(due.len());
            for gang in due {
                ask(&mut help, gang, second);
            }
        }
        let most = RENEWED_PER_SECOND;
        assert_eq!(asked, [0, 0, gangs, most, most, most, 0, 0, 0, 0]);
        assert_eq!(help.next_due(), None);
    }

    #[test]
    fn what_would_help_is_told_with_the_reason_that_it_was_worked_out_for() {
        let mut help = Help::default();
        let (gpus, cores) = (lacks_quota(), lacks(engine::Resource::Cpu));
        for (second, explained, told) in [
            (10, &gpus, &gpus),
            (11, &cores, &gpus),
            (12, &cores, &cores),
            (13, &gpus, &cores),
        ] {
            let known = help.of(explained, second, |_| remedies(false)).unwrap();
            assert_eq!(known.why, told.why, "{second}");
        }
    }
}
