//! What is due about a GPU that is to be reset. Without IO: what a crash leaves is in the facts, so that whoever starts next goes on from there.
//!
//! At most two resets for a fault: each is counted before the mark that it was begun under is gone ([`crate::store::marks`]), and a mark that was left
//! is counted by whoever finds it. Then the GPU is one to be exchanged, which only a person takes back.

use std::time::Duration;

/// Resets for one fault.
pub const MOST_RESETS: u32 = 2;

/// What is known of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// How often it was reset for what is wrong with it; `None`: it is not to be reset.
    pub resets: Option<u32>,
    /// How long ago the last reset ended; of one before the program was started, how long ago that was: nobody has looked at the GPU any longer.
    pub since_last: Option<Duration>,
    /// It was reset, and the command that checks it was not run since.
    pub awaits_check: bool,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing, or not yet.
    Nothing,
    /// A reset, as the first or second for the fault.
    Reset(u32),
    /// It was reset so often in vain, and is to be exchanged.
    Retire(u32),
}

/// What is due about a GPU. `settle`: for how long one that was reset is given to be found in order.
pub fn due(facts: Facts, settle: Duration) -> Due {
    let is_settling = facts.since_last.is_some_and(|since| since < settle);
    match facts.resets {
        None => Due::Nothing,
        Some(_) if is_settling || facts.awaits_check => Due::Nothing,
        Some(resets) if resets >= MOST_RESETS => Due::Retire(resets),
        Some(resets) => Due::Reset(resets + 1),
    }
}

#[cfg(test)]
mod tests {
    use muster_device::faults::{
        Cause, Device, FaultClass, FaultState, KnownAddresses, Observation, Scope,
    };

    use super::*;

    const GPU: &str = "GPU-0";
    const SETTLE: Duration = Duration::from_mins(1);

    fn facts(resets: Option<u32>, since_last: Option<u64>, awaits_check: bool) -> Facts {
        Facts {
            resets,
            since_last: since_last.map(Duration::from_secs),
            awaits_check,
        }
    }

    #[test]
    fn a_reset_is_given_time_and_the_third_is_none() {
        for (facts, expected) in [
            (facts(None, None, false), Due::Nothing),
            (facts(Some(0), None, false), Due::Reset(1)),
            (facts(Some(1), Some(59), false), Due::Nothing),
            (facts(Some(1), Some(60), false), Due::Reset(2)),
            (facts(Some(1), Some(60), true), Due::Nothing),
            (facts(Some(1), None, false), Due::Reset(2)),
            (facts(Some(2), Some(59), false), Due::Nothing),
            (facts(Some(2), Some(60), false), Due::Retire(2)),
            (facts(Some(2), None, false), Due::Retire(2)),
            (facts(Some(7), None, false), Due::Retire(7)),
        ] {
            assert_eq!(due(facts, SETTLE), expected, "{facts:?}");
        }
    }

    fn see(state: &mut FaultState, class: FaultClass) {
        let known = KnownAddresses([(GPU.to_owned(), None)].into());
        let observation = Observation {
            class,
            scope: Scope::Gpu,
            cause: Cause::Xid(95),
        };
        let _ = state.observe(&Device::Uuid(GPU.to_owned()), observation, &known, 0);
    }

    /// S17: whatever step the driver ends at, and however often, two resets are the most. The disk holds the mark and what is known of faults; each run
    /// takes the steps of `resetting` and ends after so many of them.
    #[test]
    fn however_often_the_driver_ends_in_the_middle_there_are_two_resets_for_a_fault() {
        for crashes in 0..256_u32 {
            let mut disk = FaultState::default();
            see(&mut disk, FaultClass::Reset);
            let mut mark: Option<u32> = None;
            let mut begun = 0;
            for run in 0..16 {
                // Two bits say after how many steps this run ends; the last runs end at no step.
                let ends_after = if run < 4 {
                    (crashes >> (2 * run)) & 3
                } else {
                    99
                };
                let mut steps = 0..ends_after;
                let mut goes_on = || steps.next().is_some();
                if let Some(number) = mark {
                    disk.count_reset(GPU, number);
                    if !goes_on() {
                        continue;
                    }
                }
                let facts = facts(disk.wants_reset(GPU, None), None, false);
                let Due::Reset(number) = due(facts, SETTLE) else {
                    break;
                };
                mark = Some(number);
                if !goes_on() {
                    // The command may or may not have begun.
                    begun += 1;
                    continue;
                }
                begun += 1;
                disk.count_reset(GPU, number);
                if !goes_on() {
                    continue;
                }
                mark = None;
            }
            assert!(begun <= MOST_RESETS, "{crashes:08b}: {begun}");
            let facts = facts(disk.wants_reset(GPU, None), None, false);
            let due = due(facts, SETTLE);
            assert_eq!(due, Due::Retire(MOST_RESETS), "{crashes:08b}");
        }
    }
}
