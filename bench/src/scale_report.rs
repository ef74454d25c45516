//! What the core costs by the size of the cluster, as it is written.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::report::Spread;

/// The report. Times are the machine's own, on the processor: what the world around it takes is not counted. The takeover's
/// are those of a clock on the wall.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) nodes: usize,
    pub(crate) gangs: usize,
    /// One event, from an observation to the writes that it leads to: the longest such step of each event.
    pub(crate) event_micros: Spread,
    /// All steps of one event together, without the waits between them.
    pub(crate) event_whole_micros: Spread,
    /// Objects that are looked at in all steps of one event.
    pub(crate) event_visited: Quantiles,
    /// The mean poll without news.
    pub(crate) idle_poll_micros: f64,
    /// A plan of the engine for a gang of a shape that it knows, by shape; null where the cluster has no such place.
    pub(crate) plan_micros: BTreeMap<String, Option<Quantiles>>,
    /// A plan for one pod whose requests are new: the 99th percentile.
    pub(crate) new_shape_micros: f64,
    /// A plan for one pod that asks for a number of devices that nobody asked for before, so that all nodes are looked at:
    /// the longest.
    pub(crate) new_request_micros: f64,
    /// A 64x8 gang of a new shape that finds no place, and why: the 99th percentile.
    pub(crate) infeasible_micros: f64,
    pub(crate) drain_seconds: Drain,
    /// From the lease to the first decision.
    pub(crate) takeover_seconds: f64,
    /// Heap of index, protocol and engine at rest, all gangs told why they wait.
    #[serde(rename = "memoryMiB")]
    pub(crate) memory_mib: f64,
    /// Resident memory at its highest during the takeover.
    #[serde(rename = "peakMemoryMiB")]
    pub(crate) peak_memory_mib: f64,
    /// Writes in the whole life of a gang, without Events and Queues, by shape.
    pub(crate) writes_per_gang: BTreeMap<String, u64>,
}

/// Gangs of one pod from an idle cluster.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Drain {
    /// Until all are planned.
    pub(crate) engine: f64,
    /// Until all run.
    pub(crate) protocol: f64,
}

/// Quantiles by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl From<Spread> for Quantiles {
    fn from(Spread { p50, p99, .. }: Spread) -> Self {
        Self { p50, p99 }
    }
}
