//! How many nodes gangs were evicted for, or were given leave to reset GPUs, within a window, as the Ledger records it, and whether that was too
//! much.
//!
//! **One write.** What is evacuated is recorded by the very write that commits the evictions, conditional on the Ledger as it was seen. So of
//! two leaders one conflicts, with its evictions and with its count; nothing is evacuated that is not counted, and nothing counted twice. Leave to
//! reset GPUs is given after the record of it was seen ([`super::resets`]).
//!
//! **Who else writes**: a person, by `muster-controller reset-breaker`, conditional on the same version. Whoever comes second sees what the
//! other wrote.
//!
//! **Gangs that make no progress** are counted apart, and open nothing: what they tell, and how long that may stay, their users say. One that could
//! open the breaker by that would end the recovery of all others. As many nodes as for faults may be concerned within the window; who is beyond
//! that waits until it has passed.
//!
//! **Time** is the leader's monotonic clock: an entry counts from when this leader saw it first, whatever time it names
//! ([`muster_engine::recovery::BreakerWindow`]).

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{Breaker, EvacuatedNode, Ledger, Reason};
use muster_engine::{
    self as engine, NodeName,
    recovery::{BreakerWindow, TooManyNodes, WantedNodes},
};

use crate::{
    Now,
    admission::plan::Plan,
    faults::{held, resets},
    injected_bug::InjectedBug,
    nodes::loss,
    poll_context::PollContext,
};

/// Entries that are older by the wall clock are left over from another time, in seconds.
const LEFT_OVER_SECONDS: i64 = 86_400;

/// What is other than when the Ledger was read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BreakerNews {
    /// It was opened or closed.
    pub(crate) is_opened_or_closed: bool,
    /// On how many nodes gangs made no progress.
    pub(crate) is_stalled_changed: bool,
}

/// The breaker as the Ledger says it.
#[derive(Debug, Default)]
pub(crate) struct BreakerView {
    version: Option<String>,
    record: Breaker,
    window: BreakerWindow,
    /// The same of gangs that make no progress.
    stalled: BreakerWindow,
    /// Whether the API server drops what is recorded.
    is_dropped: bool,
}

impl BreakerView {
    /// Reads the Ledger, if it is another one than last time. What is news of it.
    pub(crate) fn read(&mut self, ledger: Option<&Ledger>, now: Now) -> BreakerNews {
        let version = ledger.and_then(|ledger| ledger.metadata.resource_version.as_deref());
        if self.version.as_deref() == version {
            return BreakerNews::default();
        }
        self.version = version.map(str::to_owned);
        let record = ledger.map(|ledger| ledger.spec.breaker.clone());
        let record = record.unwrap_or_default();
        if record == self.record {
            return BreakerNews::default();
        }
        let was_open = self.is_open();
        let oldest = now.wall.as_second().saturating_sub(LEFT_OVER_SECONDS);
        for (window, entries) in [
            (&mut self.window, &record.drained),
            (&mut self.stalled, &record.stalled),
        ] {
            // What this leader counts already is not left over, whatever became of its clock since.
            let entries = entries.iter().map(entry);
            let entries = entries.filter(|entry| entry.1.0 >= oldest || window.has(entry));
            let entries: Vec<_> = entries.collect();
            window.read(entries, now.monotonic_seconds);
        }
        let is_stalled_changed = record.stalled != self.record.stalled;
        self.record = record;
        BreakerNews {
            is_opened_or_closed: was_open != self.is_open(),
            is_stalled_changed,
        }
    }

    /// Whether it is open.
    pub(crate) fn is_open(&self) -> bool {
        self.record.opened_at.is_some()
    }

    /// Notes that the API server drops what is recorded; whether that is news. So it stays while this leader leads.
    pub(crate) fn note_dropped(&mut self) -> bool {
        !std::mem::replace(&mut self.is_dropped, true)
    }

    /// Why nothing is evicted without proof, and nothing reset, whatever the mode, for people: it is open, or nobody could say how many nodes were
    /// evacuated.
    pub(crate) fn halt_text(&self) -> Option<String> {
        if self.is_dropped {
            return Some(
                "nothing is evicted, as the definition of the Ledger is older than this program and does not store for which nodes gangs were evicted: bring the CustomResourceDefinitions up to date, and start the controller anew"
                    .to_owned(),
            );
        }
        let since = self.record.opened_at.as_ref()?;
        let why = self.record.message.as_deref().unwrap_or("too many nodes");
        Some(format!(
            "nothing is evicted while the circuit breaker is open, since {}: {why}; `muster-controller reset-breaker` closes it",
            since.0
        ))
    }

    /// The nodes that were evacuated, or were given leave to reset GPUs, within so many seconds.
    pub(crate) fn evacuated(&self, window_seconds: u64, now: u64) -> BTreeSet<NodeName> {
        self.window.evacuated(window_seconds, now)
    }

    /// Whether the record names the node.
    pub(crate) fn has_recorded(&self, node: &NodeName) -> bool {
        let mut recorded = self.record.drained.iter();
        recorded.any(|recorded| recorded.node == node.as_str())
    }

    /// What the record says of the node counts from now on: a reset may have been under way until now. The next leader counts it from when it sees
    /// the record first.
    pub(crate) fn renew(&mut self, node: &NodeName, now: u64) {
        let recorded = self.record.drained.iter();
        for recorded in recorded.filter(|recorded| recorded.node == node.as_str()) {
            self.window.renew(entry(recorded), now);
        }
    }
}

/// How many nodes gangs may still be evicted on since they make no progress.
#[derive(Debug)]
pub(crate) struct StalledRoom {
    counted: BTreeSet<NodeName>,
    most: usize,
}

impl StalledRoom {
    /// Beside those that were within the window.
    pub(crate) fn of(context: PollContext<'_>) -> Self {
        let recovery = &context.config.recovery;
        let now = context.now.monotonic_seconds;
        let stalled = &context.breaker.stalled;
        Self {
            counted: stalled.evacuated(recovery.breaker_window_seconds, now),
            most: recovery
                .breaker
                .most_nodes(context.health.nodes_with_devices()),
        }
    }

    /// Whether there is room for that node.
    pub(crate) fn has(&self, node: &str) -> bool {
        self.counted.len() < self.most || self.counted.contains(&NodeName::from(node))
    }

    /// One that is evicted on it takes its place.
    pub(crate) fn take(&mut self, node: &str) {
        self.counted.insert(node.into());
    }
}

/// That there is no room for another node on which a gang makes no progress, for people; it is looked at again when there may be.
pub(crate) fn no_room_for_stalled(context: PollContext<'_>, node: &str) -> Option<String> {
    let room = StalledRoom::of(context);
    if room.has(node) {
        return None;
    }
    let window = context.config.recovery.breaker_window_seconds;
    let now = context.now.monotonic_seconds;
    if let Some(end) = context.breaker.stalled.first_end(window, now) {
        context.has_come(end);
    }
    Some(format!(
        "it waits, as gangs on {} nodes were evicted for that within {window} s, and at most {} may be",
        room.counted.len(),
        room.most
    ))
}

fn entry(evacuated: &EvacuatedNode) -> (NodeName, engine::Timestamp) {
    let at = engine::Timestamp(evacuated.at.0.as_second());
    (evacuated.node.as_str().into(), at)
}

/// The nodes that are evacuated by evicting the attempt for that reason; `None`: the breaker has no say.
pub(crate) fn evacuates(
    context: PollContext<'_>,
    plan: &Plan,
    reason: Reason,
) -> Option<BTreeSet<String>> {
    match reason {
        Reason::DeviceFault => Some(held::faulty_nodes(context, plan)),
        Reason::NodeLost if context.bugs.has(InjectedBug::SilentNotCounted) => None,
        Reason::NodeLost => loss::evacuated_without_proof(context, plan),
        _ => None,
    }
}

/// The node that counts if the attempt is evicted since it makes no progress: that of its first rank, which tells so. Nobody knows which it
/// is, if it is any.
pub(crate) fn stalls_on(plan: &Plan, reason: Reason) -> Option<&str> {
    let first = plan.ranks.first()?;
    (reason == Reason::NoProgress).then_some(first.node.name.as_str())
}

/// Whether these nodes may be evacuated, and all reset that want it, beside those that were and those that are at it.
pub(crate) fn judge(
    context: PollContext<'_>,
    wanted: &BTreeSet<String>,
) -> Result<(), TooManyNodes> {
    let recovery = &context.config.recovery;
    let now = context.now.monotonic_seconds;
    let mut evacuated = context
        .breaker
        .evacuated(recovery.breaker_window_seconds, now);
    if context.bugs.has(InjectedBug::EvacuatedNotCounted) {
        evacuated.clear();
    }
    evacuated.extend(context.resets.under_way().cloned());
    let wanted = WantedNodes {
        evacuated: wanted.iter().map(|node| node.as_str().into()).collect(),
        reset: resets::wanting(context),
    };
    let nodes = context.health.nodes_with_devices();
    recovery.breaker.judge(nodes, &evacuated, &wanted)
}

/// Whether the store is being asked about so many more nodes that it would be too many, if it confirmed them all: about faults, and about nodes whose
/// silence has lasted until what runs there is evicted for it, some of which may have to be marked as lost first. A read is under way for as long as a
/// call may take, once its turn has come, and is waited for once, and so is a mark, for as long as that usually takes: so this does not last.
pub(crate) fn awaits_answers(context: PollContext<'_>, wanted: &BTreeSet<String>) -> bool {
    if wanted.is_empty() {
        return false;
    }
    let faulty = context.fault_checks.nodes_being_asked();
    let asked = faulty.chain(loss::nodes_being_asked(context));
    let all: BTreeSet<String> = wanted.iter().chain(asked).cloned().collect();
    all.len() > wanted.len() && judge(context, &all).is_err()
}

/// The record without what does not count any more: with whatever is written besides, so that no later leader counts anew what is long over.
pub(crate) fn pruned(context: PollContext<'_>) -> Breaker {
    let none = BTreeSet::new();
    after(context, &none, &none, None)
}

/// The record as it is after gangs were evicted for these nodes or they were given leave to reset GPUs, and it was opened perhaps. What does not
/// count any more is left out, but for nodes on which a reset may be under way: they are in it for as long as that may be.
pub(crate) fn after(
    context: PollContext<'_>,
    evacuated: &BTreeSet<String>,
    stalled: &BTreeSet<String>,
    opens: Option<TooManyNodes>,
) -> Breaker {
    let view = context.breaker;
    let (window, now) = (
        context.config.recovery.breaker_window_seconds,
        context.now.monotonic_seconds,
    );
    // The API server keeps whole seconds.
    let wall = Timestamp::from_second(context.now.wall.as_second());
    let wall = Time(wall.unwrap_or(context.now.wall));
    let under_way: BTreeSet<&str> = context.resets.under_way().map(NodeName::as_str).collect();
    let added = |counted: &BreakerWindow,
                 known: &[EvacuatedNode],
                 nodes: &BTreeSet<String>,
                 standing: &BTreeSet<&str>| {
        let known = known.iter().filter(|known| {
            let stands = standing.contains(known.node.as_str());
            let counts = stands || counted.counts(&entry(known), window, now);
            counts && !nodes.contains(&known.node)
        });
        let new = nodes.iter().map(|node| EvacuatedNode {
            node: node.clone(),
            at: wall.clone(),
        });
        let mut entries: Vec<EvacuatedNode> = known.cloned().chain(new).collect();
        entries.sort_by(|one, other| one.node.cmp(&other.node));
        entries
    };
    let record = &view.record;
    let recorded: BTreeSet<&str> = record.drained.iter().map(|it| it.node.as_str()).collect();
    // Whoever led before gave them leave, and a person had the record forgotten since.
    let unrecorded = under_way.iter().filter(|node| !recorded.contains(*node));
    let unrecorded = unrecorded.map(|node| (*node).to_owned());
    let evacuated: BTreeSet<String> = evacuated.iter().cloned().chain(unrecorded).collect();
    let opened_at = record.opened_at.clone();
    let message = record.message.clone();
    Breaker {
        drained: added(&view.window, &record.drained, &evacuated, &under_way),
        stalled: added(&view.stalled, &record.stalled, stalled, &BTreeSet::new()),
        message: message.or_else(|| opens.map(|too_many| format!("{too_many} within {window} s"))),
        opened_at: opened_at.or_else(|| opens.map(|_| wall)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_api::LedgerSpec;

    const WALL: i64 = 1_800_000_000;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ledger(version: &str, evacuated: &[(&str, i64)]) -> Ledger {
        let evacuated = evacuated.iter().map(|(node, at)| EvacuatedNode {
            node: (*node).to_owned(),
            at: Time(time(*at)),
        });
        let breaker = Breaker {
            drained: evacuated.collect(),
            ..Breaker::default()
        };
        let spec = LedgerSpec {
            breaker,
            ..LedgerSpec::default()
        };
        let mut ledger = Ledger::new("cluster", spec);
        ledger.metadata.resource_version = Some(version.to_owned());
        ledger
    }

    #[test]
    fn s9_a_clock_that_is_set_by_days_makes_nothing_left_over_that_this_leader_counts() {
        let later = WALL + 2 * LEFT_OVER_SECONDS;
        let now = |monotonic_seconds, wall| Now {
            monotonic_seconds,
            wall: time(wall),
        };
        let mut view = BreakerView::default();
        view.read(Some(&ledger("1", &[("n0", WALL)])), now(1_000, WALL));
        let both = ledger("2", &[("n0", WALL), ("n1", later)]);
        view.read(Some(&both), now(1_001, later));
        assert_eq!(view.evacuated(600, 1_001).len(), 2);
        assert_eq!(view.evacuated(600, 1_600).len(), 1);
        // Of what was recorded days before a leader began it knows nothing.
        let mut view = BreakerView::default();
        view.read(Some(&both), now(1_001, later));
        assert_eq!(view.evacuated(600, 1_001).len(), 1);
    }
}
