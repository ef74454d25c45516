//! Two instances of the driver during an update: both watch, and both write.
//!
//! Each write raises the generation by one, and is made only over the generation that its writer knows. Who was overtaken takes in what the other
//! has written since, and writes again. Compared are three states: what both knew, what the other has written, what is known here. So one that only
//! either has seen is not lost (S7), and a fault that one of them has mended does not come back by the other, unless that has seen it since both knew it:
//! whether it saw that before or after the recovery nobody can tell.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::fault::{Change, Numbers},
    FaultState, GpuFaults,
};

impl FaultState {
    /// How often what is remembered was written.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The same, as it is written for the time of this number.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// Takes in what another instance has written since both knew `base`. What that says of an earlier boot is older than all that is known here.
    pub fn take_in(&mut self, base: &Self, theirs: &Self) -> Change {
        if theirs.boot_id != self.boot_id {
            return Change::None;
        }
        let mut numbers = Numbers {
            own: self.sequence,
            last: self.sequence.max(theirs.sequence),
        };
        let maps = [
            (&mut self.gpus, &base.gpus, &theirs.gpus),
            (&mut self.waiting, &base.waiting, &theirs.waiting),
            (
                &mut self.unconfirmed,
                &base.unconfirmed,
                &theirs.unconfirmed,
            ),
        ];
        let mut change = Change::None;
        for (own, base, theirs) in maps {
            change = change.max(take_in(own, base, theirs, &mut numbers));
        }
        self.sequence = numbers.last;
        // Who has read further has told what was there.
        let reached = |log: Option<super::LogPosition>| log.map(|log| log.sequence);
        if reached(theirs.log) > reached(self.log) {
            self.log = theirs.log;
        }
        self.is_log_old &= theirs.is_log_old;
        self.forget_empty();
        change
    }
}

fn take_in(
    own: &mut BTreeMap<String, GpuFaults>,
    base: &BTreeMap<String, GpuFaults>,
    theirs: &BTreeMap<String, GpuFaults>,
    numbers: &mut Numbers,
) -> Change {
    let none = GpuFaults::default();
    let names: BTreeSet<&String> = base.keys().chain(theirs.keys()).collect();
    let mut change = Change::None;
    for name in names {
        let (base, theirs) = (base.get(name), theirs.get(name));
        if base == theirs {
            continue;
        }
        let faults = own.entry(name.clone()).or_default();
        let (base, theirs) = (base.unwrap_or(&none), theirs.unwrap_or(&none));
        change = change.max(faults.take_in(base, theirs, numbers));
    }
    change
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            super::{
                Catalogue, Cause, Condition, Device, FaultClass, KnownAddresses, Observation,
                Proof, Recovery, Scope, Validation,
            },
            LogPosition,
        },
        *,
    };

    fn see(state: &mut FaultState, gpu: &str, xid: u32) {
        let known = KnownAddresses([(gpu.to_owned(), None)].into());
        let observation = Observation {
            class: FaultClass::Reset,
            scope: Scope::Gpu,
            cause: Cause::Xid(xid),
        };
        let _ = state.observe(&Device::Uuid(gpu.to_owned()), observation, &known, 0);
    }

    fn mend(state: &mut FaultState, gpu: &str, mark: u64) -> usize {
        let recovery = Recovery {
            proof: Proof::Reset,
            scope: Scope::Gpu,
            mark,
        };
        let validation = Validation {
            condition: &Condition::default(),
            has_fabric: true,
            best_links: None,
        };
        state.recover(gpu, &recovery, &validation).unwrap()
    }

    fn base() -> FaultState {
        let mut base = FaultState::default();
        base.begin_boot("one");
        see(&mut base, "GPU-0", 48);
        base
    }

    #[test]
    fn what_either_has_seen_or_mended_holds_and_both_come_to_the_same() {
        let base = base();
        let (mut one, mut other) = (base.clone(), base.clone());
        see(&mut one, "GPU-1", 95);
        let mark = other.mark();
        assert_eq!(mend(&mut other, "GPU-0", mark), 1);
        see(&mut other, "GPU-2", 79);
        assert_eq!(one.take_in(&base, &other), Change::New);
        let names: Vec<&str> = one.gpus().keys().map(String::as_str).collect();
        assert_eq!(names, ["GPU-1", "GPU-2"]);
        // Each takes in what the other has written, and writes: soon neither has anything to say any more.
        let (mut by_one, mut by_other) = (one.clone(), other.clone());
        for _ in 0..2 {
            let _ = other.take_in(&by_other, &by_one);
            by_other = other.clone();
            let _ = one.take_in(&by_one, &by_other);
            by_one = one.clone();
        }
        assert_eq!(one.gpus(), other.gpus());
        assert_eq!(other.take_in(&by_other, &by_one), Change::None);
    }

    /// S7.
    #[test]
    fn what_only_the_other_saw_is_newer_than_every_recovery_that_was_begun_here() {
        let base = base();
        let (mut one, mut other) = (base.clone(), base.clone());
        for _ in 0..5 {
            see(&mut one, "GPU-1", 95);
        }
        let mark = one.mark();
        see(&mut other, "GPU-0", 48);
        see(&mut other, "GPU-2", 48);
        let _ = one.take_in(&base, &other);
        for gpu in ["GPU-0", "GPU-2"] {
            assert_eq!(mend(&mut one, gpu, mark), 0, "{gpu}");
            let mark = one.mark();
            assert_eq!(mend(&mut one, gpu, mark), 1, "{gpu}");
        }
    }

    /// S7: both have seen the same kind of fault, each by itself and under the same number, and one of them has mended what it saw.
    #[test]
    fn what_both_saw_is_not_over_by_the_recovery_of_one_that_knew_nothing_of_what_the_other_saw() {
        let mut base = FaultState::default();
        base.begin_boot("one");
        let (mut one, mut other) = (base.clone(), base.clone());
        see(&mut other, "GPU-0", 48);
        let by_other = other.clone();
        see(&mut one, "GPU-0", 95);
        assert_eq!(one.mark(), other.mark());
        let mark = other.mark();
        assert_eq!(mend(&mut other, "GPU-0", mark), 1);
        // What the other wrote before it mended it is taken in, and written.
        assert_eq!(one.take_in(&base, &by_other), Change::Again);
        let by_one = one.clone();
        // The other takes that in, and writes; the first takes in what is there then.
        assert_eq!(other.take_in(&by_other, &by_one), Change::New);
        let _ = one.take_in(&by_one, &other);
        for state in [&one, &other] {
            let faults = state.gpus()["GPU-0"].all();
            assert!(faults[0].message().contains("XID 95"), "{faults:?}");
        }
        assert_eq!(mend(&mut one, "GPU-0", mark), 0, "nor by what is as old");
    }

    #[test]
    fn a_fault_that_came_anew_after_it_was_mended_begins_with_no_resets() {
        let mut base = base();
        assert!(base.count_reset("GPU-0", 2));
        for own in [0, 3] {
            let (mut one, mut other) = (base.clone(), base.clone());
            let mark = other.mark();
            assert_eq!(mend(&mut other, "GPU-0", mark), 1);
            see(&mut other, "GPU-0", 48);
            let _ = one.count_reset("GPU-0", own);
            let _ = one.take_in(&base, &other);
            assert_eq!(one.wants_reset("GPU-0", None), Some(own), "counted here");
        }
    }

    #[test]
    fn links_that_a_person_has_said_are_fewer_do_not_come_back_by_the_other() {
        let known = KnownAddresses([("GPU-0".to_owned(), None)].into());
        let links = |state: &mut FaultState, active| {
            let condition = Condition {
                active_links: Some(active),
                ..Condition::default()
            };
            let catalogue = Catalogue::shipped();
            let _ = state.look(&catalogue, "GPU-0", &condition, &known, 0);
        };
        let mut base = base();
        links(&mut base, 18);
        let (mut one, mut other) = (base.clone(), base.clone());
        let recovery = Recovery {
            proof: Proof::Operator,
            scope: Scope::Gpu,
            mark: other.mark(),
        };
        let validation = Validation {
            condition: &Condition::default(),
            has_fabric: true,
            best_links: None,
        };
        assert_eq!(other.recover("GPU-0", &recovery, &validation), Ok(1));
        links(&mut other, 17);
        let by_other = other.clone();
        let _ = one.take_in(&base, &by_other);
        let _ = other.take_in(&by_other, &one);
        for state in [&one, &other] {
            assert_eq!(state.gpus()["GPU-0"].best_links(), Some(17));
        }
    }

    #[test]
    fn what_was_mended_here_comes_back_only_if_the_other_has_seen_it_again() {
        let base = base();
        for again in [false, true] {
            let (mut one, mut other) = (base.clone(), base.clone());
            let mark = one.mark();
            assert_eq!(mend(&mut one, "GPU-0", mark), 1);
            if again {
                see(&mut other, "GPU-0", 48);
            }
            other.read_log(LogPosition { sequence: 7 });
            let _ = one.take_in(&base, &other);
            assert_eq!(one.gpus().contains_key("GPU-0"), again);
            assert_eq!(one.log(), Some(LogPosition { sequence: 7 }));
        }
    }

    #[test]
    fn what_was_written_before_the_machine_was_started_anew_is_older_than_all_that_is_known() {
        let base = base();
        let (mut one, mut other) = (base.clone(), base.clone());
        see(&mut other, "GPU-1", 95);
        one.begin_boot("two");
        assert_eq!(one.take_in(&base, &other), Change::None);
        assert!(!one.gpus().contains_key("GPU-1"));
    }
}
