//! The one proof of release.
//!
//! A permit goes when it is withdrawn, the driver has acknowledged the generation that says so **for this
//! very object**, and does not list one of its claims as held. Before it acknowledges, the driver has that
//! generation on disk, and no instance of it prepares by an older one: so from then on nothing can be
//! prepared by the permit, and what was is listed.
//!
//! Not a proof: that the pod is gone (its container may live on after a force delete), that the claim is
//! gone or deallocated, that time has passed.

use muster_api::{NodeDevices, Permit, keys};

use crate::{injected_bug::InjectedBug, objects::is_over, poll_context::PollContext};

/// Whether the devices of a withdrawn permit are proved released.
pub(crate) fn is_proved(context: PollContext<'_>, devices: &NodeDevices, permit: &Permit) -> bool {
    if !permit.withdrawn {
        return false;
    }
    let over = is_over(context.index, &permit.pod_uid);
    if context.bugs.has(InjectedBug::ReleaseOnVanished) && over {
        return true;
    }
    let listed = holds_any(devices, &permit.claim_uids);
    if context
        .bugs
        .has(InjectedBug::ReleaseWithdrawnUnacknowledged)
    {
        return !listed;
    }
    if is_foreign(context, permit) {
        return over;
    }
    has_acknowledged(context, devices) && !listed
}

/// Whether the driver has answered for the object as it is now: what it lists is all that it holds
/// without a live permit.
pub(crate) fn has_acknowledged(context: PollContext<'_>, devices: &NodeDevices) -> bool {
    let Some(status) = &devices.status else {
        return false;
    };
    let same = Some(&status.uid) == devices.metadata.uid.as_ref()
        || context.bugs.has(InjectedBug::NoUidInStatus);
    same && devices
        .metadata
        .generation
        .is_some_and(|generation| status.observed_generation >= generation)
}

fn holds_any(devices: &NodeDevices, claims: &[String]) -> bool {
    devices.status.as_ref().is_some_and(|status| {
        status
            .held
            .iter()
            .any(|held| claims.contains(&held.claim_uid))
    })
}

/// Whether all that the permit covers is another driver's, which proves nothing: such devices are
/// released with the pod.
///
/// Decided by the Flavor that is charged, not by the absence of answers or slices: our driver's silence
/// must never look like its absence.
fn is_foreign(context: PollContext<'_>, permit: &Permit) -> bool {
    !permit.charge.claims.is_empty()
        && permit.charge.claims.iter().all(|group| {
            context
                .index
                .flavor(&group.flavor)
                .and_then(|flavor| flavor.spec.devices.as_ref())
                .is_some_and(|source| source.driver != keys::DRIVER)
        })
}
