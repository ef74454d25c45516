//! What is asked for on the command line.

use std::path::PathBuf;

use clap::Parser;

use crate::hardware::Shape;

/// Plays many GPU nodes against a real API server.
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    /// A kubeconfig that may impersonate nodes and the driver's ServiceAccount, and write Nodes.
    #[arg(long)]
    pub kubeconfig: PathBuf,
    /// How many nodes.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub nodes: u32,
    /// GPUs of each node.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub gpus: u32,
    /// Names are PREFIX-0000 and so on.
    #[arg(long, default_value = "fake")]
    pub prefix: String,
    /// Nodes of a leaf of the fabric.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub leaf_nodes: u32,
    /// Leaves of a spine of the fabric.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub spine_leaves: u32,
    /// `NAMESPACE/NAME` of the driver's ServiceAccount.
    #[arg(long, default_value = "muster-system/muster-dra-driver")]
    pub driver_service_account: String,
    /// Nodes without the driver, for a cluster in which Muster is not installed.
    #[arg(long)]
    pub without_driver: bool,
    /// How often each node renews its lease. Must lie well below the node monitor's grace period.
    #[arg(long, default_value_t = 20)]
    pub lease_renewal_seconds: u64,
    /// After how long a failed Prepare is repeated. (A real kubelet takes 60 to 90 s.)
    #[arg(long, default_value_t = 60)]
    pub prepare_retry_seconds: u64,
    /// Most calls under way at the API server, watches not counted.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub calls_at_once: u32,
    /// How often a line of statistics is printed.
    #[arg(long, default_value_t = 5)]
    pub report_seconds: u64,
}

impl Arguments {
    /// The nodes that are asked for.
    pub fn shapes(&self) -> Vec<Shape> {
        (0..self.nodes)
            .map(|number| {
                let leaf = number / self.leaf_nodes;
                Shape {
                    name: format!("{}-{number:04}", self.prefix),
                    leaf: format!("leaf-{leaf:04}"),
                    spine: format!("spine-{:03}", leaf / self.spine_leaves),
                    gpus: self.gpus,
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_stand_in_leaves_and_spines_of_the_size_asked_for() {
        let arguments = Arguments::parse_from([
            "fake-nodes",
            "--kubeconfig=k",
            "--nodes=5",
            "--leaf-nodes=2",
            "--spine-leaves=2",
        ]);
        let places: Vec<(String, String, String)> = arguments
            .shapes()
            .into_iter()
            .map(|shape| (shape.name, shape.leaf, shape.spine))
            .collect();
        let expected = [
            ("fake-0000", "leaf-0000", "spine-000"),
            ("fake-0001", "leaf-0000", "spine-000"),
            ("fake-0002", "leaf-0001", "spine-000"),
            ("fake-0003", "leaf-0001", "spine-000"),
            ("fake-0004", "leaf-0002", "spine-001"),
        ]
        .map(|(name, leaf, spine)| (name.to_owned(), leaf.to_owned(), spine.to_owned()));
        assert_eq!(places, expected);
    }
}
