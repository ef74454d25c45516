//! Records that the kubelet will not ask to have given back.
//!
//! The kubelet unprepares what it prepared, also when the claim's object is gone, for ever. But it may forget a claim:
//!
//! * it loses its own checkpoint;
//! * it unprepares a claim for one pod while another pod that shares it asks for it, and is deleted before that Prepare is
//!   answered. The Unprepare makes it forget the claim, for both pods (before Kubernetes 1.37, which refuses that other pod);
//! * a Prepare reaches its record after the Unprepare, in another instance (`unprepare`).
//!
//! A claim that was made for one pod goes soon after it. One that its user made outlives its pods, so that its existence
//! proves nothing; but as long as a pod may use it here, it is allocated here: the claim controller clears the allocation
//! with the last pod in `reservedFor`, and no pod starts without. So a record is an orphan once its claim is gone **or
//! has no device of this node**, in two looks in a row. It is given back like one that is unprepared: not while anything
//! uses it.
//!
//! # Who else may write
//!
//! Between a look and the turn at the lock minutes may pass, and the claim may be allocated here again, and prepared, or
//! be about to be. So in that turn everything is looked at once more, under the lock:
//!
//! * **The record**: every Prepare puts its own call into it, also where it finds it prepared. What is given back is only
//!   what was looked at.
//! * **The claim**, uncached: it must still say that no pod may use it here. If it is allocated here right after it was
//!   read, a Prepare for its new pod is still to come: it waits for the lock, and finds no record. What cannot be read says
//!   nothing: the orphans that wait behind it are left to the next look, too, so that a silent API server holds the lock
//!   once and not once for each.
//! * **The hardware**: what is in use stays. It is looked at before that turn, since the mark that is on the record was left (`looks`).
//!
//! Given back twice, the second finds nothing to remove.

use super::{
    claim::{Claim, ClaimRef},
    disk::{Disk, Record},
    effect::{InUse, Read},
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
        is_unusable(&record.claim, node, read).then(|| Self {
            claim: record.claim.clone(),
            call: record.call.clone(),
        })
    }

    /// Whether it still is one: `record` is what is on disk about its claim now, and `read` what the API server has now.
    fn is_still(&self, record: Option<&Record>, node: &str, read: &Read<Claim>) -> bool {
        match record {
            Some(record) => Self::of(record, node, read).as_ref() == Some(self),
            // Only a CDI file is left of it.
            None => is_unusable(&self.claim, node, read),
        }
    }
}

/// Whether no pod on `node` may use the claim. What could not be read says nothing.
fn is_unusable(claim: &ClaimRef, node: &str, read: &Read<Claim>) -> bool {
    match read {
        Read::Failed(_) => false,
        Read::Absent => true,
        Read::Found(found) => {
            let mut devices = found.devices.iter().flatten();
            found.reference.uid != claim.uid || !devices.any(|device| device.pool == node)
        }
    }
}

impl Machine {
    /// Gives back what was looked at, if it is still that, and still an orphan.
    pub(super) fn decide_orphan(
        &mut self,
        orphan: &Orphan,
        disk: &Disk,
        in_use: InUse,
        read: &Read<Claim>,
    ) -> Decision {
        if matches!(read, Read::Failed(_)) {
            self.queue.orphans.clear();
            self.looks.forget_orphans();
        }
        let record = disk.records.get(&orphan.claim.uid);
        if !orphan.is_still(record, &self.config.node, read) {
            return (Vec::new(), After::Done);
        }
        self.decide_unprepare(None, &orphan.claim, disk, in_use)
    }
}
