//! What Kueue's own runs of these scenarios gave.
//!
//! The means stand in the comments of `rangespec.yaml` (kubernetes-sigs/kueue @ff69552e). They were measured against an API server
//! that a client may write to 50 times a second (bursts of 100), without any pod: they say how fast Kueue *and that client* are. The
//! time on the processor is of that revision's own runner on two cores, once (baseline: the mean of two runs, 15,000 gangs; large-scale
//! was cut at 1,197 s, with 49,657 admitted); it includes Kueue's controllers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::scenario::Name;

/// See the module.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    pub(super) gangs: usize,
    pub(super) makespan_ms: u64,
    pub(super) quota_use_percent: f64,
    pub(super) time_to_admission_mean_ms: BTreeMap<&'static str, u64>,
    pub(super) processor_seconds: f64,
    pub(super) peak_memory_mebibytes: f64,
    pub(super) client_writes_per_second: u32,
    pub(super) creates_pods: bool,
}

pub(super) fn of(name: Name) -> Published {
    let classes = |large, medium, small| {
        BTreeMap::from([("large", large), ("medium", medium), ("small", small)])
    };
    match name {
        Name::Baseline => Published {
            gangs: 15_000,
            makespan_ms: 351_116,
            quota_use_percent: 55.9,
            time_to_admission_mean_ms: classes(16_501, 76_768, 215_468),
            processor_seconds: 79.15,
            peak_memory_mebibytes: 668.5,
            client_writes_per_second: 50,
            creates_pods: false,
        },
        Name::LargeScale => Published {
            gangs: 50_000,
            makespan_ms: 1_179_411,
            quota_use_percent: 38.64,
            time_to_admission_mean_ms: classes(105_604, 256_413, 700_379),
            processor_seconds: 345.0,
            peak_memory_mebibytes: 2_457.6,
            client_writes_per_second: 50,
            creates_pods: false,
        },
    }
}
