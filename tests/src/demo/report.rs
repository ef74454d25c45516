//! What was observed, as a table for people and as JSON for programs.

use std::fmt;

use serde::Serialize;

/// What the demonstration observed.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// Every gang.
    pub gangs: Vec<GangReport>,
    /// Version of the API server.
    pub kubernetes: String,
    /// Duration of the story, builds and start of the cluster not included.
    pub seconds: f64,
}

/// What was observed of a gang.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GangReport {
    /// `namespace/name`.
    pub name: String,
    /// The Team that is charged.
    pub team: String,
    /// Phase at the end.
    pub phase: String,
    /// Nodes that its pods ran on.
    pub nodes: Vec<String>,
    /// Leaf switches of these nodes.
    pub leaves: Vec<String>,
    /// UUIDs of the GPUs that its claims were allocated.
    pub gpus: Vec<String>,
    /// From its last pod created until all its pods ran; absent if they never did.
    pub wait_seconds: Option<f64>,
}

impl fmt::Display for DemoReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{:<16} {:<10} {:<9} {:<16} {:<8} {:>7}  GPUS",
            "GANG", "TEAM", "PHASE", "NODES", "LEAF", "WAIT"
        )?;
        for gang in &self.gangs {
            let wait = gang
                .wait_seconds
                .map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"));
            writeln!(
                formatter,
                "{:<16} {:<10} {:<9} {:<16} {:<8} {wait:>7}  {}",
                gang.name,
                gang.team,
                gang.phase,
                gang.nodes.join(","),
                gang.leaves.join(","),
                gang.gpus.first().map_or("-", String::as_str),
            )?;
            for gpu in gang.gpus.iter().skip(1) {
                writeln!(formatter, "{:<72}  {gpu}", "")?;
            }
        }
        Ok(())
    }
}
