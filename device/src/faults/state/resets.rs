//! Resets of GPUs that this driver has done.

use super::{FaultState, GpuFaults};

impl FaultState {
    /// Notes that this is the `number`th reset of a GPU for what is wrong with it. Whether that was not noted before.
    pub fn count_reset(&mut self, uuid: &str, number: u32) -> bool {
        let faults = self.gpus.get_mut(uuid);
        faults.is_some_and(|faults| faults.count_reset(number))
    }

    /// A reset of a GPU was done, which was begun when the observations had reached this number ([`FaultState::mark`]): a proof, once the GPU is
    /// found in order ([`FaultState::proved`]).
    pub fn note_reset(&mut self, uuid: &str, mark: u64) {
        if let Some(faults) = self.gpus.get_mut(uuid) {
            faults.note_reset(mark);
        }
    }

    /// How often a GPU was reset already for what it is to be reset for; `None`: it is not to be reset ([`GpuFaults::wants_reset`]).
    pub fn wants_reset(&self, uuid: &str, recovery_action: Option<u32>) -> Option<u32> {
        self.gpus.get(uuid)?.wants_reset(recovery_action)
    }

    /// Whether a GPU was reset after all that was seen of it, and was not found in order yet.
    pub fn awaits_proof_of_reset(&self, uuid: &str) -> bool {
        let faults = self.gpus.get(uuid);
        faults.is_some_and(GpuFaults::awaits_proof_of_reset)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::{
            Catalogue, Cause, Condition, Device, FaultClass, KnownAddresses, Observation, Proof,
            Recovery, Scope, Validation,
        },
        *,
    };
    use crate::mig::Placement;

    const GPU: &str = "GPU-0";

    fn see(state: &mut FaultState, class: FaultClass, scope: Scope) {
        let known = KnownAddresses([(GPU.to_owned(), None)].into());
        let observation = Observation {
            class,
            scope,
            cause: Cause::Xid(1),
        };
        let _ = state.observe(&Device::Uuid(GPU.to_owned()), observation, &known, 0);
    }

    fn recover(state: &mut FaultState, recovery: &Recovery) -> usize {
        let validation = Validation {
            condition: &Condition::default(),
            has_fabric: true,
            best_links: None,
        };
        state.recover(GPU, recovery, &validation).unwrap()
    }

    #[test]
    fn a_gpu_is_to_be_reset_for_what_a_reset_is_the_end_of() {
        use FaultClass::{Contained, Info, Link, Reboot, Reset, Retire, Unknown};
        let slice = Scope::Slice(Placement { start: 0, size: 2 });
        for (classes, action, expected) in [
            (&[][..], Some(1), None),
            (&[Info], Some(1), None),
            (&[Reset], None, Some(0)),
            (&[Reset], Some(0), Some(0)),
            (&[Contained], Some(0), None),
            (&[Contained], None, None),
            (&[Contained], Some(4), Some(0)),
            (&[Link], Some(6), Some(0)),
            (&[Link], Some(3), None),
            (&[Unknown], Some(1), None),
            (&[Unknown, Reset], None, Some(0)),
            (&[Reset, Reboot], Some(2), None),
            (&[Reset, Retire], Some(1), None),
        ] {
            let mut state = FaultState::default();
            for class in classes {
                see(&mut state, *class, slice);
            }
            assert_eq!(
                state.wants_reset(GPU, action),
                expected,
                "{classes:?} {action:?}"
            );
        }
    }

    #[test]
    fn resets_are_counted_once_each_until_the_fault_is_mended() {
        let mut state = FaultState::default();
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        for (number, is_news) in [(1, true), (1, false), (2, true), (1, false)] {
            assert_eq!(state.count_reset(GPU, number), is_news, "{number}");
        }
        assert_eq!(state.wants_reset(GPU, None), Some(2));
        // Seen once more it is the same fault.
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        assert_eq!(state.wants_reset(GPU, None), Some(2));
        let text = serde_json::to_string(&state).unwrap();
        let kept: FaultState = serde_json::from_str(&text).unwrap();
        assert_eq!(kept.wants_reset(GPU, None), Some(2), "over a restart");
        let mark = state.mark();
        state.note_reset(GPU, mark);
        let proved = state.proved(GPU, &Condition::default(), 0);
        assert_eq!(recover(&mut state, &proved[0]), 1);
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        assert_eq!(state.wants_reset(GPU, None), Some(0), "another fault");
    }

    /// Whoever validates bounds the proof by what was seen when that was begun.
    #[test]
    fn a_reset_that_was_taken_up_for_what_is_older_is_still_a_proof_for_the_rest() {
        let known = KnownAddresses([(GPU.to_owned(), None)].into());
        let mut state = FaultState::default();
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        let begun = state.mark();
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        let needs_one = Condition {
            recovery_action: Some(1),
            ..Condition::default()
        };
        let needs_none = Condition {
            recovery_action: Some(0),
            ..Condition::default()
        };
        for condition in [&needs_one, &needs_none] {
            let _ = state.look(&Catalogue::shipped(), GPU, condition, &known, 0);
        }
        let whole = state.proved(GPU, &needs_none, 0);
        let bounded = Recovery {
            mark: begun,
            ..whole[0]
        };
        assert_eq!(recover(&mut state, &bounded), 0, "it is newer");
        assert_eq!(state.proved(GPU, &needs_none, 0), whole);
        assert_eq!(recover(&mut state, &whole[0]), 1);
        assert!(state.proved(GPU, &needs_none, 0).is_empty());
        assert!(state.gpus().is_empty(), "nothing is left to remember");
    }

    /// S7.
    #[test]
    fn a_reset_proves_nothing_about_what_was_seen_after_it_was_begun() {
        let mut state = FaultState::default();
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        let mark = state.mark();
        see(&mut state, FaultClass::Reset, Scope::Gpu);
        state.note_reset(GPU, mark);
        assert!(!state.awaits_proof_of_reset(GPU));
        assert!(state.proved(GPU, &Condition::default(), 0).is_empty());
        let mark = state.mark();
        state.note_reset(GPU, mark);
        assert!(state.awaits_proof_of_reset(GPU));
        let proved = state.proved(GPU, &Condition::default(), 0);
        let expected = Recovery {
            proof: Proof::Reset,
            scope: Scope::Gpu,
            mark,
        };
        assert_eq!(proved, [expected]);
        state.begin_boot("two");
        assert!(!state.awaits_proof_of_reset(GPU), "a reboot is more");
    }
}
