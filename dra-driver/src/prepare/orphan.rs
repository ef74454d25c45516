//! Records that the kubelet will not ask to have given back.
//!
//! The kubelet unprepares what it prepared, also when the claim's object is gone, for ever. But it may forget a claim:
//!
//! * it loses its own checkpoint;
//! * it unprepares a claim for one pod while another pod that shares it asks for it, and is deleted before that Prepare is
//!   answered. The Unprepare makes it forget the claim, for both pods;
//! * a Prepare reaches its record after the Unprepare, in another instance (`unprepare`).
//!
//! A claim that was made for one pod goes soon after it. One that its user made outlives its pods, so that its existence
//! proves nothing; but as long as a pod may use it here, it is allocated here: the claim controller clears the allocation
//! with the last pod in `reservedFor`, and no pod starts without. So a record is an orphan once its claim is gone **or
//! has no device of this node**, in two looks in a row. It is given back like one that is unprepared: not while anything
//! uses it.
//!
//! Between a look and the turn at the lock the claim may be allocated here again, and prepared. That Prepare has put
//! its own call into the record, also where it found it prepared; what is given back is only what was looked at.

use super::{
    claim::{Claim, ClaimRef},
    disk::{Disk, Record},
    effect::{Effect, InUse, Read},
    machine::Machine,
    task::{After, Decision},
};

/// A record that the kubelet seems to have forgotten.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Orphan {
    /// Its claim.
    pub claim: ClaimRef,
    /// The call that it was made or answered for last, as it was recorded.
    pub call: Option<String>,
}

impl Orphan {
    /// The record as an orphan, if `read` (what the API server has now under the claim's name) says that no pod on `node`
    /// may use its claim. What could not be read says nothing.
    pub fn of(record: &Record, node: &str, read: &Read<Claim>) -> Option<Self> {
        let is_usable = match read {
            Read::Failed(_) => true,
            Read::Absent => false,
            Read::Found(claim) => {
                let mut devices = claim.devices.iter().flatten();
                claim.reference.uid == record.claim.uid && devices.any(|device| device.pool == node)
            }
        };
        (!is_usable).then(|| Self {
            claim: record.claim.clone(),
            call: record.call.clone(),
        })
    }
}

impl Machine {
    /// Gives back what was looked at, if it is still that.
    pub(super) fn decide_orphan(
        &mut self,
        orphan: &Orphan,
        disk: &Disk,
        in_use: InUse,
        effects: &mut Vec<Effect>,
    ) -> Decision {
        let known = disk.records.get(&orphan.claim.uid);
        if known.is_some_and(|record| record.call != orphan.call) {
            return (Vec::new(), After::Done);
        }
        self.decide_unprepare(None, &orphan.claim, disk, in_use, effects)
    }
}
