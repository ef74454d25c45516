//! What is free on a node beneath what is kept there.
//!
//! What an attempt held is kept for its gang by a hold like any other, on the same devices, and from the moment on in which it is proved released. By then its
//! claim may be allocated still, until the API server has forgotten it, or its driver taint the devices still. When that ends, nothing comes free on the node
//! ([`NodeRecord::now`](super::NodeRecord)): what comes free is kept. But whoever may have what is kept has room by it who had none: the gang itself, and those who may
//! preempt it. They wait for what comes free, so it is noted as that.
//!
//! To everybody else the node is as full as before, and one look at it says so.

use std::collections::BTreeSet;

use super::{
    cluster::Cluster,
    node::{Occupancy, Released},
};
use crate::names::{NodeName, PodUid};

impl Cluster {
    /// What is free on a node as if nobody held what is kept there under these names, and all else were as it is; `None`: nothing is.
    pub(crate) fn free_beneath(
        &self,
        node: &NodeName,
        kept: &BTreeSet<PodUid>,
    ) -> Option<Occupancy> {
        if kept.is_empty() {
            return None;
        }
        let slot = self.slot_of(node)?;
        let record = self.record(slot)?;
        let mut holds = self.holds_in(slot);
        let others = holds.clone().filter(|hold| !kept.contains(&hold.pod));
        holds
            .any(|hold| kept.contains(&hold.pod))
            .then(|| record.occupancy(others, &Released::new()))
    }

    /// A node is as given, which changes at most what is free there. Something came free there, if it did beneath what is kept: `before` is what was free so.
    pub(crate) fn note_free_beneath(
        &mut self,
        node: &NodeName,
        kept: &BTreeSet<PodUid>,
        before: &Occupancy,
    ) {
        let now = self.free_beneath(node, kept);
        if now.is_some_and(|now| !now.lies_within(before))
            && let Some(slot) = self.slot_of(node)
        {
            self.note_changed_inside(slot, true);
        }
    }
}
