//! What a record that is found prepared is worth to a Prepare.
//!
//! A record tells what **one** allocation of its claim gave. A claim that was made for a pod is allocated once. One that
//! its user made outlives its pods: it loses its allocation with the last pod in `reservedFor`, and is allocated again
//! for the next pod, perhaps here, and perhaps other devices, under the same UID. The kubelet unprepares it in between,
//! unless it has forgotten the claim ([`super::Orphan`] says how that comes about). So a record answers only for the
//! allocation that it was made for (rule 7):
//!
//! * **The same devices, and a pod of the record is still in `reservedFor`.** An allocation ends only with the last pod
//!   there, and no pod that ran returns to that list: it is that allocation. The call is answered from the record, whatever
//!   is permitted by now, and the CDI file is written again.
//!   Slices of GPUs are compared with those that are there first, by place, profile, numbers and UUID: while a GPU does not list its slices the
//!   call waits, and is refused in the end. Nothing that runs is touched by that: the kubelet asks when it makes a sandbox.
//! * **Anything else** is an earlier allocation, or cannot be told from one. What it gave is given back like what is
//!   unprepared: not while anything uses it (rule 6). Until then the call waits, and is refused in the end. After that
//!   the claim is judged as if it had never been prepared.
//!
//! # Who else may write the record
//!
//! The claim is read **after** the call has put its mark on the record. Every other Prepare of the claim replaces the
//! mark, and an Unprepare or the give-back of an orphan removes the record. A record under the call's own mark is
//! therefore the one that was there before the claim was read, and no allocation can be newer in it than in the claim.
//! Only such a record is given back: under another mark it may be of a later allocation, which that call has read. An
//! answer from the record needs no mark: it changes nothing but the pods that are known to share the claim, and the minor
//! numbers of GPUs that it does not hold, and tells what is on disk.
//!
//! If the claim is allocated once more after it was read, a Prepare for its new pod is still to come, and compares again. A
//! crash, or a disk that is full, between the writes of a give-back leaves the record `Unpreparing`: it holds, until the
//! next Prepare or Unprepare of the claim goes on with it.

use std::collections::BTreeSet;

use muster_api::Reason;

use super::{
    claim::Claim,
    disk::{Disk, Record, RecordState},
    effect::{Answer, CallId, InUse, LiveSlices, Refusal, Write},
    machine::{Machine, Stage},
    record::prepared,
    slices::{Removal, Then},
    task::{After, Decision},
};

/// What is prepared of a claim that a call has read.
pub(super) enum Earlier<'disk> {
    /// Something, by the allocation that was read.
    SameAllocation(&'disk Record),
    /// Something, by another, or something that was being given back; the mark on it is the call's own.
    OtherAllocation(&'disk Record),
    /// Nothing, nothing that is this call's to give back, or something half done that preparing it takes up.
    Nothing,
}

impl<'disk> Earlier<'disk> {
    /// Compares the claim with what is on disk, and that with the slices that are there.
    pub(super) fn of(claim: &Claim, mark: &str, disk: &'disk Disk, live: &LiveSlices) -> Self {
        let Some(record) = disk.records.get(&claim.reference.uid) else {
            return Self::Nothing;
        };
        let is_mine = record.call.as_deref() == Some(mark);
        let is_same = is_of_same_allocation(record, claim);
        match record.state {
            RecordState::Prepared if is_same && record.is_there(live) => {
                Self::SameAllocation(record)
            }
            // Its slices are gone (the GPU was reset, say), or may be there already: they are made once more, or taken up.
            RecordState::Prepared | RecordState::Preparing if is_same => Self::Nothing,
            RecordState::Prepared if is_mine => Self::OtherAllocation(record),
            RecordState::Preparing | RecordState::Unpreparing
                if is_mine && !record.removable().is_empty() =>
            {
                Self::OtherAllocation(record)
            }
            _ => Self::Nothing,
        }
    }
}

/// Where no pod is known on either side (something else than pods reserves the claim), the devices alone tell.
fn is_of_same_allocation(record: &Record, claim: &Claim) -> bool {
    let recorded = record.devices.iter().map(|device| {
        let names = (&device.request, &device.pool, &device.device);
        (names, device.admin_access)
    });
    let allocated = claim.devices.iter().flatten().map(|device| {
        let names = (&device.request, &device.pool, &device.device);
        (names, device.admin_access)
    });
    let is_reserved = |pod: &String| claim.pods.contains(pod);
    let no_pods = record.pods.is_empty() && claim.pods.is_empty();
    recorded.eq(allocated) && (no_pods || record.pods.iter().any(is_reserved))
}

impl Machine {
    /// Tells what is on disk. Pods that reserved the claim since are put into the record, for what they run holds its
    /// devices, too. The CDI file is written again: it may have been lost, and writing it twice does no harm.
    pub(super) fn answer_from(&self, id: CallId, record: &Record, claim: &Claim) -> Decision {
        let mut record = record.clone();
        for pod in self.pods_of(claim) {
            if !record.pods.contains(&pod) {
                record.pods.push(pod);
            }
        }
        self.number_anew(&mut record);
        let answer = Answer::Prepared(prepared(&record));
        let writes = vec![Write::PutRecord(record.clone()), Write::PutCdi(record)];
        (writes, After::Answer(id, answer))
    }

    /// Whoever administers a GPU does not hold it: its MIG mode may have been switched since, and the driver have numbered it anew. The number
    /// from before may be another GPU's by now. What the record holds nobody switches.
    fn number_anew(&self, record: &mut Record) {
        let held: BTreeSet<String> = record.units().map(|unit| unit.gpu.clone()).collect();
        let known = self.inventory.iter().flatten().map(|(_, facts)| facts);
        let known: Vec<_> = known.filter(|facts| !facts.silent).collect();
        for device in &mut record.devices {
            if !device.admin_access || held.contains(&device.unit.gpu) {
                continue;
            }
            let found = known.iter().find(|it| it.unit.gpu == device.unit.gpu);
            device.minor = found.map_or(device.minor, |facts| facts.minor);
        }
    }

    /// Gives back what an earlier allocation gave, and leaves the call's mark for the present one. `in_use` is about the
    /// record.
    pub(super) fn decide_earlier(
        &mut self,
        id: CallId,
        record: &Record,
        disk: &Disk,
        in_use: InUse,
    ) -> Decision {
        let why = match in_use {
            InUse::No => return self.give_back_earlier(id, record),
            InUse::Yes(who) => format!("is still in use: {who}"),
            InUse::Unknown(cause) => format!("may still be in use, which cannot be told: {cause}"),
        };
        let devices: Vec<&str> = record.devices.iter().map(|it| it.device.as_str()).collect();
        let refusal = Refusal {
            reason: Some(Reason::DeviceHeld),
            is_overlap: false,
            message: format!(
                "claim {} was allocated anew, and what it was prepared with before ({}) {why}",
                record.claim,
                devices.join(", ")
            ),
        };
        self.wait_or_give_up(id, &refusal, disk)
    }

    fn give_back_earlier(&mut self, id: CallId, record: &Record) -> Decision {
        let slices = record.removable();
        if let Some(call) = self.calls.get_mut(&id) {
            call.looks_at_record = false;
            if !slices.is_empty() {
                call.stage = Stage::Removing;
            }
        }
        let leaving = Record {
            state: RecordState::Unpreparing,
            ..record.clone()
        };
        let mut writes = vec![
            Write::PutRecord(leaving),
            Write::RemoveCdi(record.claim.uid.clone()),
        ];
        if slices.is_empty() {
            writes.push(Write::PutRecord(record.mark_alone()));
            return (writes, After::GivenBack);
        }
        let removal = Removal {
            claim: record.claim.clone(),
            call: record.call.clone(),
            then: Then::Earlier(id),
        };
        (writes, After::Remove { removal, slices })
    }
}
