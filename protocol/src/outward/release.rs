//! The one proof of release.
//!
//! A permit goes when it is withdrawn, the driver has acknowledged the generation that says so **for this
//! very object**, and does not list one of its claims as held. Before it acknowledges, the driver has that
//! generation on disk, and no instance of it prepares by an older one: so from then on nothing can be
//! prepared by the permit, and what was is listed.
//!
//! A pod that was let go on this node and lives keeps its permit all the same, withdrawn as it is: no driver prepares
//! anything for it, but kube-scheduler may give it devices at any time, or has. Planned for another gang, they would be
//! missing there.
//!
//! A permit without ResourceClaims only charges (cpu, memory, what a device plugin hands out), and one of another DRA driver's devices
//! alone is none of our driver's business: neither has a driver of ours a say about. Both go once their pod is terminal or gone; withdrawn
//! ones also while it is still gated, or bound to another node. What is over stays so, whoever finds it, twice or late: so that takes one
//! write, and no permit is withdrawn first for nobody to acknowledge. Whoever still leads by an older epoch and sees fewer pods sees
//! the epoch of whoever wrote the permit with it, and ends (`docs/adr/0046-one-proof-each-of-release-and-of-leadership.md`).
//!
//! Not a proof: that the pod is gone (its container may live on after a force delete), that the claim is
//! gone or deallocated, that time has passed.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::{Charge, ClaimByName, Held, NodeDevices, Permit, keys};
use muster_cluster::flavor::Scope;

use crate::{
    injected_bug::InjectedBug,
    objects::{bound_node, is_gated, is_over, is_terminal},
    poll_context::PollContext,
};

/// Most claims that a driver may list as held. A node of 16 GPUs has at most 112 slices; whoever lists more than this is
/// no driver of ours, and has acknowledged nothing: its node keeps what it has, and costs nobody else more than a glance.
pub(crate) const HELD_AT_MOST: usize = 1_024;

/// What the driver of a node lists as held, as far as it counts. Of two entries for a claim the first does.
pub(crate) fn held(devices: Option<&NodeDevices>) -> impl DoubleEndedIterator<Item = &Held> {
    let status = devices.and_then(|devices| devices.status.as_ref());
    let held = status.map_or(&[][..], |status| &status.held);
    held[..held.len().min(HELD_AT_MOST)].iter()
}

/// The devices of each claim that the driver of a node lists as held.
pub(crate) fn listed(devices: Option<&NodeDevices>) -> BTreeMap<&str, &[String]> {
    held(devices)
        .rev()
        .map(|held| (held.claim_uid.as_str(), held.devices.as_slice()))
        .collect()
}

/// What the driver of a node has answered, and to what.
#[derive(Debug)]
pub(crate) struct DriverAnswer<'a> {
    node: &'a str,
    /// Whether it is about the object as it is now: what is listed is all that is held without a live permit.
    acknowledges: bool,
    /// UIDs of the claims that it lists as held.
    held: BTreeSet<&'a str>,
    /// UIDs of the pods that have a live permit on the node.
    permitted: BTreeSet<&'a str>,
}

impl<'a> DriverAnswer<'a> {
    /// What the driver has answered to the object as it is seen.
    pub(crate) fn of(context: PollContext<'_>, devices: &'a NodeDevices) -> Self {
        let held = devices.status.iter().flat_map(|status| &status.held);
        let permits = devices.spec.permits.iter();
        Self {
            node: devices.metadata.name.as_deref().unwrap_or_default(),
            acknowledges: has_acknowledged(context, devices),
            held: held.map(|held| held.claim_uid.as_str()).collect(),
            permitted: permits
                .filter(|permit| !permit.withdrawn)
                .map(|permit| permit.pod_uid.as_str())
                .collect(),
        }
    }

    /// Whether what a permit covers is proved released: devices of our driver those of a withdrawn one alone.
    pub(crate) fn proves_released(&self, context: PollContext<'_>, permit: &Permit) -> bool {
        let over = is_over(context.index, &permit.pod_uid);
        if over && is_nothing_to_our_driver(permit) {
            return true;
        }
        if !permit.withdrawn {
            return false;
        }
        if context.bugs.has(InjectedBug::ReleaseOnVanished) && over {
            return true;
        }
        let mut claims = permit.claim_uids.iter();
        let listed = claims.any(|claim| self.held.contains(claim.as_str()));
        if context
            .bugs
            .has(InjectedBug::ReleaseWithdrawnUnacknowledged)
        {
            return !listed;
        }
        if is_nothing_to_our_driver(permit) {
            return self.takes_nothing(context, &permit.pod_uid);
        }
        self.acknowledges && !listed && !self.is_let_go(context, &permit.pod_uid)
    }

    /// Whether a pod of which no driver of ours has a say takes nothing here: it was not let go, or is bound to another node. Whoever
    /// let it go by this permit did so before it was withdrawn, and that is seen: each pod that is still gated is stamped first.
    fn takes_nothing(&self, context: PollContext<'_>, pod_uid: &str) -> bool {
        context.index.pod_by_uid(pod_uid).is_some_and(|pod| {
            is_gated(pod) || bound_node(pod).is_some_and(|node| node != self.node)
        })
    }

    /// Whether kube-scheduler may bind the pod to this node, or has, and no live permit covers it.
    fn is_let_go(&self, context: PollContext<'_>, pod_uid: &str) -> bool {
        is_let_go(context, self.node, pod_uid) && !self.permitted.contains(pod_uid)
    }
}

/// Whether kube-scheduler may bind the pod to the node, or has.
pub(crate) fn is_let_go(context: PollContext<'_>, node: &str, pod_uid: &str) -> bool {
    context.index.pod_by_uid(pod_uid).is_some_and(|pod| {
        !is_gated(pod) && !is_terminal(pod) && bound_node(pod).is_none_or(|bound| bound == node)
    })
}

/// Whether the driver has answered for the object as it is now: what it lists is all that it holds
/// without a live permit.
pub(crate) fn has_acknowledged(context: PollContext<'_>, devices: &NodeDevices) -> bool {
    let Some(status) = &devices.status else {
        return false;
    };
    if status.held.len() > HELD_AT_MOST {
        return false;
    }
    let same = Some(&status.uid) == devices.metadata.uid.as_ref()
        || context.bugs.has(InjectedBug::NoUidInStatus);
    same && devices
        .metadata
        .generation
        .is_some_and(|generation| status.observed_generation >= generation)
}

/// Whether no driver of ours has a say about what the permit covers.
pub(crate) fn is_nothing_to_our_driver(permit: &Permit) -> bool {
    has_no_objects(permit) || permit.of_other_driver
}

/// Whether the permit names nothing that a driver prepares. What a device plugin handed out it takes back when the kubelet lets the pod
/// go; a claim that kube-scheduler makes for the pod our driver prepares, and lists by the name that stands in the permit.
fn has_no_objects(permit: &Permit) -> bool {
    let mut claims = permit.claim_uids.iter();
    !claims.any(|uid| ClaimByName::driver_prepares(uid))
}

/// Whether all that is charged is another driver's, which proves nothing: such devices are released with the pod, and a pod that was
/// not let go was given none.
///
/// Decided by the Flavors that are charged, not by the absence of answers or slices: our driver's silence must never look like its
/// absence. And asked once, when the permit is written, which carries the answer: a Flavor may be edited or deleted while the
/// devices are held, and whose they are does not change by that. Where it is written anew, since somebody deleted the object, the
/// Flavor may be gone: then it is said by what the claims are allocated.
pub(crate) fn is_of_other_driver(context: PollContext<'_>, charge: &Charge) -> bool {
    let charged = &charge.claims;
    !charged.is_empty()
        && charged
            .iter()
            .all(|group| match context.index.flavor(&group.flavor) {
                Some(flavor) => !Scope::of(&flavor.spec).is_of_our_driver(),
                None => are_of_other_driver(context, &group.uids),
            })
}

/// Whether all of these claims have devices, and none of our driver's.
fn are_of_other_driver(context: PollContext<'_>, claims: &[String]) -> bool {
    let is_of_other = |uid: &String| {
        let claim = context.index.claim_by_uid(uid);
        let allocated = claim.and_then(|claim| claim.allocated.as_ref());
        allocated.is_some_and(|devices| {
            !devices.is_empty() && devices.iter().all(|device| *device.driver != *keys::DRIVER)
        })
    };
    !claims.is_empty() && claims.iter().all(is_of_other)
}
