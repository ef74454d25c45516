//! Which nodes are told that they may reset GPUs.
//!
//! A driver resets what has a fault of the class Reset, and nothing worse, once nothing uses it, and only while the NodeDevices of its node says so
//! (`spec.remediation`). Such a fault says what NVIDIA's driver asks for, too: a GPU for which it asks for a reset is given one. A reset that was
//! not needed costs no attempt, but a false alarm on all nodes would reset all that is idle, and after two tries in vain all of it would have to be
//! seen to by a person. So nodes that want a reset count for the circuit breaker as those do that are to be evacuated ([`super::breaker`]): where it
//! would be too many, it opens before the first. And no more than [`crate::ResetLimits::most_nodes`] are at it at a time.
//!
//! **Who would reset nothing, whatever it may, does not count.** A driver says so of a GPU (`resetHindered` of its fault): it has no command for it, or
//! somebody has had it open for a while. A node where that holds of all such GPUs has no leave, and is not among those that want a reset; else two of
//! them would keep the breaker of a small cluster open, and with it the recovery of all others. A word of before that is not said any more counts from
//! the moment at which it is seen: the node waits anew, and is judged before it has leave. A fault of which nothing is said, as by earlier drivers, counts.
//!
//! **Order.** A node that is next is chosen; the write of the Ledger that its nodes are judged for names it; once that is seen the node has its place,
//! and its NodeDevices is told. It has its place until nothing can be under way there, and counts for the window from then on.
//!
//! **Who else writes, and what if it comes twice, late, or never.**
//!
//! * The record is written conditional on the Ledger that was judged. Of two leaders one conflicts, and gives no leave. A person who closes the
//!   breaker has all of it forgotten; who was chosen and is not named by what is seen waits again, and who has leave is recorded anew.
//! * `spec.remediation` is the leader's alone, conditional on the NodeDevices that was seen. A late write of a former leader can land: it is of a node
//!   that the Ledger names. So whoever takes over takes all nodes that want a reset, and that the Ledger names or that were told anything, to have
//!   their place, until whatever was begun there must have ended; and one that is told that it may has its place for as long as it is told so.
//! * A node that would reset nothing is told nothing any more once whatever was begun there must have ended. Else what it was told once would give it a place
//!   with whoever takes over, months later: two such nodes would fill the window of a small cluster, and the next fault would open the breaker.
//! * Leave that is withdrawn late, or is never heard of, lets a driver begin a reset meanwhile. It reads the object anew before each, so that is no
//!   longer than the write takes. A command that runs is not broken off, since that would leave a GPU half reset: the place is kept for as long.
//! * A node that is silent wants nothing: its driver does not ask. It keeps its place as long as a reset may go on. So does one whose GPU gets worse
//!   while it is reset: it is told that it may not any more, and the command goes on.
//!
//! No read confirms what is told before leave is given, as is done before an eviction: a driver that does not see the fault any more does nothing.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use muster_api::{NodeDevices, Remediation};
use muster_engine::{
    NodeName,
    recovery::{FaultClass, ResetSeen, ResetWish},
};

use super::held_back;
use crate::{Machine, Now, poll_context::PollContext};

/// Whether a reset may mend a GPU of the node: the worst that it has is a fault of the class Reset; and if so, whether its driver would reset any, as far
/// as it has not said otherwise. Nobody can tell where no driver has said what there is, or each GPU that was to be reset has something worse by now: it
/// may not be begun any more, and whether one that was begun has ended is not known. A GPU falls off the bus in the middle of its reset, say, and the
/// command goes on.
fn wish(devices: &NodeDevices) -> ResetWish {
    let status = devices.status.as_ref();
    let Some(told) = status.and_then(|status| status.faults.as_ref()) else {
        return ResetWish::Unknown;
    };
    // The worst of each GPU, and whether its driver would reset it for any fault that a reset may mend.
    let mut gpus: BTreeMap<&str, (FaultClass, bool)> = BTreeMap::new();
    let mut awaits_reset = false;
    for fault in told {
        let class = FaultClass::named(&fault.class);
        let is_meant = class == FaultClass::Reset;
        awaits_reset |= is_meant;
        let (worst, would) = gpus.entry(&fault.gpu).or_insert((class, false));
        *worst = class.max(*worst);
        *would |= is_meant && !fault.reset_hindered;
    }
    let wanted = gpus.values();
    let wanted = wanted.filter(|(worst, _)| *worst == FaultClass::Reset);
    let would: Vec<bool> = wanted.map(|(_, would)| *would).collect();
    if would.contains(&true) {
        ResetWish::Reset
    } else if !would.is_empty() {
        ResetWish::Hindered
    } else if awaits_reset {
        ResetWish::Unknown
    } else {
        ResetWish::Nothing
    }
}

/// What the driver of a node is told about resets of its GPUs. A node that wants none, or that waits and was never told that it may, is told nothing: so
/// neither the mode nor the order of waiting costs a write. Nor is one told anything that would reset nothing, once nothing can be under way there.
pub(crate) fn remediation(
    context: PollContext<'_>,
    node: &str,
    devices: &NodeDevices,
) -> Option<Remediation> {
    if !wish(devices).is_wanted() {
        return None;
    }
    let node = NodeName::from(node);
    if context.resets.waits_in_vain(&node) {
        return None;
    }
    if context.resets.has_leave(&node) && held_back(context).is_none() {
        return Some(Remediation::Allowed);
    }
    devices.spec.remediation.map(|_| Remediation::Withheld)
}

/// The nodes that want a reset and would do it, as far as anything is reset at all.
pub(crate) fn wanting(context: PollContext<'_>) -> BTreeSet<NodeName> {
    if context.config.recovery.resets.most_nodes == 0 || !super::acts(context) {
        return BTreeSet::new();
    }
    context.resets.wanting().cloned().collect()
}

/// Whether it is to be judged now how many nodes want a reset.
pub(crate) fn are_to_be_judged(context: PollContext<'_>) -> bool {
    let limits = context.config.recovery.resets;
    let now = context.now.monotonic_seconds;
    context.resets.is_to_be_judged(limits, now) && held_back(context).is_none()
}

/// Whether a node has leave that the record does not name: a person has closed the breaker since, or a former leader's write came late. It is recorded then
/// before anything else, or whatever it does would not count once it is done.
pub(crate) fn is_any_unrecorded(context: PollContext<'_>) -> bool {
    let mut allowed = context.resets.with_leave();
    allowed.any(|node| !context.breaker.has_recorded(node)) && held_back(context).is_none()
}

/// The nodes that are next to have leave.
pub(crate) fn due(context: PollContext<'_>) -> BTreeSet<NodeName> {
    let limits = context.config.recovery.resets;
    context.resets.due(limits, context.now.monotonic_seconds)
}

impl Machine {
    /// Notes whether a node wants a reset, and what it is told.
    pub(crate) fn note_reset(&mut self, node: &str, now: Now) {
        let devices: Option<&NodeDevices> = self.index.node_devices(node).map(AsRef::as_ref);
        let is_ready = self.health.not_ready_since(node).is_none();
        let told = devices.and_then(|devices| devices.spec.remediation);
        let seen = ResetSeen {
            wish: devices
                .filter(|_| is_ready)
                .map_or(ResetWish::Unknown, wish),
            leave: told.map(|told| told == Remediation::Allowed),
        };
        // Nearly always, for nearly all.
        let is_nothing = !seen.wish.is_wanted() && seen.leave != Some(true);
        if is_nothing && self.resets.is_empty() {
            return;
        }
        self.resets.note(&node.into(), seen, now.monotonic_seconds);
    }

    /// Gives nodes their turns, as far as that is recorded, and takes them; whoever has one, loses it, or must have ended what it began is looked at.
    pub(crate) fn give_turns(&mut self, epoch: i64, now: Now) {
        let wake = Cell::new(None);
        let is_held_back = held_back(self.context(epoch, now, &wake)).is_some();
        let (limits, second) = (self.config.recovery.resets, now.monotonic_seconds);
        let breaker = &self.breaker;
        let is_recorded = |node: &NodeName| breaker.has_recorded(node);
        let news = self
            .resets
            .advance(limits, is_held_back, is_recorded, second);
        for node in &news.ended {
            self.breaker.renew(node, second);
            self.agenda.node(node.as_str());
        }
        for node in &news.changed {
            self.agenda.node(node.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_api::{GpuFault, NodeDevicesSpec, NodeDevicesStatus};

    use super::*;

    #[test]
    fn a_node_wants_a_reset_where_that_is_the_worst_that_a_gpu_has() {
        type Case = (&'static [(&'static str, &'static str)], ResetWish);
        let cases: [Case; 11] = [
            (&[], ResetWish::Nothing),
            (&[("a", "Reset")], ResetWish::Reset),
            (&[("a", "Info"), ("a", "App")], ResetWish::Nothing),
            (
                &[("a", "Contained"), ("b", "Link"), ("c", "Unknown")],
                ResetWish::Nothing,
            ),
            (&[("a", "Reset"), ("a", "Contained")], ResetWish::Reset),
            (&[("a", "Retire")], ResetWish::Nothing),
            (&[("a", "Reboot"), ("b", "Info")], ResetWish::Nothing),
            // Whether a reset that was begun before is under way still is not told by this.
            (&[("a", "Retire"), ("a", "Reset")], ResetWish::Unknown),
            (&[("a", "Reset"), ("a", "Reboot")], ResetWish::Unknown),
            (
                &[("a", "Reboot"), ("a", "Reset"), ("b", "Reset")],
                ResetWish::Reset,
            ),
            (
                &[("a", "Reset"), ("a", "NewInALaterVersion")],
                ResetWish::Reset,
            ),
        ];
        for (told, expected) in cases {
            let fault = |(gpu, class): &(&str, &str)| GpuFault {
                gpu: (*gpu).to_owned(),
                class: (*class).to_owned(),
                ..GpuFault::default()
            };
            let mut devices = NodeDevices::new("n0", NodeDevicesSpec::default());
            assert_eq!(wish(&devices), ResetWish::Unknown, "it has not said");
            devices.status = Some(NodeDevicesStatus::default());
            assert_eq!(wish(&devices), ResetWish::Unknown, "it has not said");
            devices.status = Some(NodeDevicesStatus {
                faults: Some(told.iter().map(fault).collect()),
                ..NodeDevicesStatus::default()
            });
            assert_eq!(wish(&devices), expected, "{told:?}");
        }
    }

    #[test]
    fn a_node_would_reset_a_gpu_unless_it_says_of_each_such_fault_of_all_of_them_that_it_would_not()
    {
        type Case = (&'static [(&'static str, &'static str, bool)], ResetWish);
        let cases: [Case; 7] = [
            (&[("a", "Reset", true)], ResetWish::Hindered),
            (
                &[("a", "Reset", true), ("b", "Reset", true)],
                ResetWish::Hindered,
            ),
            (
                &[("a", "Reset", true), ("b", "Reset", false)],
                ResetWish::Reset,
            ),
            // A second fault of the same GPU, of which nothing is said yet.
            (
                &[("a", "Reset", true), ("a", "Reset", false)],
                ResetWish::Reset,
            ),
            // Of others it is not said.
            (
                &[("a", "Reset", true), ("a", "Contained", false)],
                ResetWish::Hindered,
            ),
            (
                &[("a", "Reset", true), ("b", "Link", false)],
                ResetWish::Hindered,
            ),
            (
                &[
                    ("a", "Reset", true),
                    ("b", "Reset", false),
                    ("b", "Retire", false),
                ],
                ResetWish::Hindered,
            ),
        ];
        for (told, expected) in cases {
            let fault = |(gpu, class, reset_hindered): &(&str, &str, bool)| GpuFault {
                gpu: (*gpu).to_owned(),
                class: (*class).to_owned(),
                reset_hindered: *reset_hindered,
                ..GpuFault::default()
            };
            let mut devices = NodeDevices::new("n0", NodeDevicesSpec::default());
            devices.status = Some(NodeDevicesStatus {
                faults: Some(told.iter().map(fault).collect()),
                ..NodeDevicesStatus::default()
            });
            assert_eq!(wish(&devices), expected, "{told:?}");
        }
    }

    #[test]
    fn of_a_fault_of_which_an_earlier_driver_or_definition_says_nothing_a_reset_would_be_made() {
        let earlier = serde_json::json!({
            "device": "gpu-0", "gpu": "a", "class": "Reset", "causes": [], "since": "",
        });
        let fault: GpuFault = serde_json::from_value(earlier.clone()).unwrap();
        assert!(!fault.reset_hindered);
        assert_eq!(serde_json::to_value(&fault).unwrap(), earlier);
    }
}
