//! Giving a claim back.
//!
//! # An Unprepare voids what was asked before it
//!
//! The kubelet unprepares a claim when it wants nothing of it any more, and never again once that has succeeded: what
//! a Prepare records after its Unprepare is nobody's. The two meet where the kubelet has restarted, or has waited its
//! 45 s, while the Prepare was under way: the call does not end with the kubelet's interest in it. Where the Unprepare
//! may find it:
//!
//! * **Here, on its way to the lock** (for its mark, or to record) or reading its claim: it is answered at once. Its
//!   turn, which may have been asked for already, then finds no call and writes nothing. If it has left its mark, the
//!   Unprepare's turn takes that.
//! * **Here, decided**: its writes are under way and cannot be called back. They end before the lock is free for the
//!   Unprepare, which finds on disk what they left, and takes it: the mark, or the whole record.
//! * **In another instance**, which only the disk reaches: with its mark taken it records nothing. A call that has not
//!   left its mark yet cannot be there: one instance serves the kubelet at a time (`kubelet::sockets`), and one that
//!   stops drops its calls before another can be called. Should it be there all the same, what it records is given
//!   back once no pod may use the claim here (`orphan`).
//!
//! Before that mark is taken the hardware is looked at, without the lock. A mark that another instance leaves meanwhile is of a call that came
//! after the Unprepare, and may have been answered by then: the Unprepare is refused, and the kubelet repeats it if it wants nothing
//! of the claim still.
//!
//! An Unprepare that is repeated finds no call the second time. One that is refused, because of a device in use or of
//! the disk, has voided the calls all the same: the kubelet repeats it until it succeeds.
//!
//! * **Making slices**: the call is answered at once, and the record says from the Unprepare's turn on that they go. What is
//!   made before that is removed by the Unprepare, what comes after it is not made (`slice`).
//!
//! A Prepare that comes after the Unprepare is a new wish. It is not voided, and its turn is later: Unprepares go first.

use muster_api::Reason;

use super::{
    claim::ClaimRef,
    disk::{Disk, Record, RecordState},
    effect::{Answer, CallId, Effect, InUse, Refusal, Write},
    injected_bug::InjectedBug,
    machine::Machine,
    queue::Turn,
    slices::{Removal, Then},
    task::{After, Decision, plain},
};

impl Machine {
    /// Takes the call in, and answers the Prepare calls that it voids.
    pub(super) fn unprepare_called(
        &mut self,
        call: CallId,
        claim: ClaimRef,
        effects: &mut Vec<Effect>,
    ) {
        let committing = self.turn.as_ref().and_then(Turn::committing);
        let voided: Vec<CallId> = self
            .calls
            .iter()
            .filter(|(id, waiting)| waiting.claim.uid == claim.uid && committing != Some(**id))
            .map(|(id, _)| *id)
            .collect();
        for id in voided {
            let message = format!("claim {claim} was unprepared while this call waited");
            self.answer(id, Answer::Refused(plain(message)), effects);
        }
        self.queue.unprepares.push_back((call, claim));
    }

    /// Refused while something uses the hardware (rule 6). What is unknown is given back already.
    pub(super) fn decide_unprepare(
        &mut self,
        call: Option<CallId>,
        claim: &ClaimRef,
        disk: &Disk,
        in_use: InUse,
    ) -> Decision {
        let refused = |reason, message: String| {
            let answer = Answer::Refused(Refusal {
                reason,
                message,
                is_overlap: false,
            });
            call.map_or(After::Done, |call| After::Answer(call, answer))
        };
        let known = disk.records.get(&claim.uid);
        if disk.acknowledged.is_none() && !known.is_some_and(Record::holds) {
            // A mark says nothing about what was prepared before the loss (rule 5). It is taken all the same.
            self.request_rebuild();
            let message =
                format!("claim {claim}: the driver's records were lost and are being rebuilt");
            let mark = known.map(|_| Write::RemoveRecord(claim.uid.clone()));
            return (mark.into_iter().collect(), refused(None, message));
        }
        let Some(record) = known else {
            let after = call.map_or(After::Done, |call| After::Answer(call, Answer::Unprepared));
            return (vec![Write::RemoveCdi(claim.uid.clone())], after);
        };
        let done = After::Changed(call.map(|call| (call, Answer::Unprepared)));
        if !record.holds() {
            return (vec![Write::RemoveRecord(claim.uid.clone())], done);
        }
        match in_use {
            InUse::No => {}
            InUse::Yes(_) | InUse::Unknown(_) if self.broken(InjectedBug::UnprepareWithProcess) => {
            }
            InUse::Yes(who) => {
                let message = format!("claim {claim} is still in use: {who}");
                return (Vec::new(), refused(Some(Reason::DeviceHeld), message));
            }
            InUse::Unknown(cause) => {
                let message =
                    format!("claim {claim}: whether it is still in use cannot be told: {cause}");
                return (Vec::new(), refused(Some(Reason::DeviceHeld), message));
            }
        }
        let leaving = Record {
            state: RecordState::Unpreparing,
            ..record.clone()
        };
        let mut writes = vec![
            Write::PutRecord(leaving),
            Write::RemoveCdi(claim.uid.clone()),
        ];
        let slices = record.removable();
        let is_last = slices.is_empty() || self.broken(InjectedBug::RecordGoesBeforeSlice);
        if is_last {
            writes.push(Write::RemoveRecord(claim.uid.clone()));
        }
        if slices.is_empty() {
            return (writes, done);
        }
        let removal = Removal {
            claim: claim.clone(),
            call: record.call.clone(),
            then: Then::Gone(call),
        };
        (writes, After::Remove { removal, slices })
    }
}
