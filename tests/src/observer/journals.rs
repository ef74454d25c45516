//! What tests did to the GPUs of all nodes, read as it grows.

use anyhow::Result;

use crate::faults::journal::{Injected, Journal};

/// The journals of the nodes, each with how much of it was read.
#[derive(Debug)]
pub(super) struct Journals {
    nodes: Vec<Read>,
}

#[derive(Debug)]
struct Read {
    node: String,
    journal: Journal,
    lines: usize,
    bytes: u64,
}

impl Journals {
    /// Those of these nodes, from their first lines.
    pub(super) fn new(nodes: impl Iterator<Item = (String, Journal)>) -> Self {
        let nodes = nodes.map(|(node, journal)| Read {
            node,
            journal,
            lines: 0,
            bytes: 0,
        });
        Self {
            nodes: nodes.collect(),
        }
    }

    /// What was done since the last call, each with its node; of one node in its order.
    pub(super) fn news(&mut self) -> Result<Vec<(String, Injected)>> {
        let mut news = Vec::new();
        for read in &mut self.nodes {
            let bytes = read.journal.bytes();
            if bytes == read.bytes {
                continue;
            }
            let lines = read.journal.read()?;
            let number = lines.len();
            let new = lines.into_iter().skip(read.lines);
            news.extend(new.map(|line| (read.node.clone(), line)));
            read.lines = number;
            // A line that was half written is longer at the next look.
            read.bytes = bytes;
        }
        Ok(news)
    }
}
