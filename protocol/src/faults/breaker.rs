//! How many nodes gangs were evicted for within a window, as the Ledger records it, and whether that was too much.
//!
//! **One write.** What is drained is recorded by the very write that commits the evictions, conditional on the Ledger as it was seen. So of
//! two leaders one conflicts, with its evictions and with its count; nothing is drained that is not counted, and nothing counted twice.
//!
//! **Who else writes**: a person, by `muster-controller reset-breaker`, conditional on the same version. Whoever comes second sees what the
//! other wrote.
//!
//! **Time** is the leader's monotonic clock: an entry counts from when this leader saw it first, whatever time it names
//! ([`muster_engine::recovery::BreakerWindow`]).

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use muster_api::{Breaker, DrainedNode, Ledger, Reason};
use muster_engine::{
    self as engine, NodeName,
    recovery::{BreakerWindow, TooManyNodes},
};

use crate::{Now, admission::plan::Plan, faults::held, nodes::loss, poll_context::PollContext};

/// Entries that are older by the wall clock are left over from another time, in seconds.
const LEFT_OVER_SECONDS: i64 = 86_400;

/// The breaker as the Ledger says it.
#[derive(Debug, Default)]
pub(crate) struct BreakerView {
    version: Option<String>,
    record: Breaker,
    window: BreakerWindow,
}

impl BreakerView {
    /// Reads the Ledger, if it is another one than last time. Whether the breaker was opened or closed by that.
    pub(crate) fn read(&mut self, ledger: Option<&Ledger>, now: Now) -> bool {
        let version = ledger.and_then(|ledger| ledger.metadata.resource_version.as_deref());
        if self.version.as_deref() == version {
            return false;
        }
        self.version = version.map(str::to_owned);
        let record = ledger.map(|ledger| ledger.spec.breaker.clone());
        let record = record.unwrap_or_default();
        if record == self.record {
            return false;
        }
        let was_open = self.is_open();
        let oldest = now.wall.as_second().saturating_sub(LEFT_OVER_SECONDS);
        let entries = record.drained.iter().map(entry);
        let entries = entries.filter(|(_, at)| at.0 >= oldest);
        self.window.read(entries, now.monotonic_seconds);
        self.record = record;
        was_open != self.is_open()
    }

    /// Whether it is open.
    pub(crate) fn is_open(&self) -> bool {
        self.record.opened_at.is_some()
    }

    /// That it is open, for people.
    pub(crate) fn open_text(&self) -> Option<String> {
        let since = self.record.opened_at.as_ref()?;
        let why = self.record.message.as_deref().unwrap_or("too many nodes");
        Some(format!(
            "nothing is evicted while the circuit breaker is open, since {}: {why}; `muster-controller reset-breaker` closes it",
            since.0
        ))
    }

    /// The nodes that were drained within so many seconds.
    pub(crate) fn drained(&self, window_seconds: u64, now: u64) -> BTreeSet<NodeName> {
        self.window.drained(window_seconds, now)
    }
}

fn entry(drained: &DrainedNode) -> (NodeName, engine::Timestamp) {
    let at = engine::Timestamp(drained.at.0.as_second());
    (drained.node.as_str().into(), at)
}

/// The nodes that are drained by evicting the attempt for that reason; `None`: the breaker has no say.
pub(crate) fn drains(
    context: PollContext<'_>,
    plan: &Plan,
    reason: Reason,
) -> Option<BTreeSet<String>> {
    match reason {
        Reason::DeviceFault => Some(held::faulty_nodes(context, plan)),
        Reason::NodeLost => loss::drains_without_proof(context, plan),
        // Nobody knows which of its nodes it is, if it is any. Many gangs at once that do not go on are what counts.
        Reason::NoProgress => plan
            .ranks
            .first()
            .map(|rank| BTreeSet::from([rank.node.name.clone()])),
        _ => None,
    }
}

/// Whether these nodes may be drained beside those that were.
pub(crate) fn judge(
    context: PollContext<'_>,
    wanted: &BTreeSet<String>,
) -> Result<(), TooManyNodes> {
    let recovery = &context.config.recovery;
    let now = context.now.monotonic_seconds;
    let drained = context
        .breaker
        .drained(recovery.breaker_window_seconds, now);
    let wanted = wanted.iter().map(|node| node.as_str().into()).collect();
    let nodes = context.health.nodes_with_devices();
    recovery.breaker.judge(nodes, &drained, &wanted)
}

/// The record as it is after these were drained, and it was opened perhaps. What does not count any more is left out.
pub(crate) fn after(
    context: PollContext<'_>,
    drained: &BTreeSet<String>,
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
    let known = view.record.drained.iter();
    let known = known.filter(|known| {
        view.window.counts(&entry(known), window, now) && !drained.contains(&known.node)
    });
    let new = drained.iter().map(|node| DrainedNode {
        node: node.clone(),
        at: wall.clone(),
    });
    let mut entries: Vec<DrainedNode> = known.cloned().chain(new).collect();
    entries.sort_by(|one, other| one.node.cmp(&other.node));
    let opened_at = view.record.opened_at.clone();
    let message = view.record.message.clone();
    Breaker {
        drained: entries,
        message: message.or_else(|| opens.map(|too_many| format!("{too_many} within {window} s"))),
        opened_at: opened_at.or_else(|| opens.map(|_| wall)),
    }
}
