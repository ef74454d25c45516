//! Nodes in the order of a Topology, so that every domain is one stretch of that order.

use std::{collections::BTreeMap, ops::Range};

use super::node::NodeRecord;
use crate::{
    model::{Node, Topology},
    names::{LevelName, NodeName, TopologyName},
};

/// Name of the innermost level, which every Topology has.
pub(crate) const NODE_LEVEL: &str = "node";

/// A level and its domains.
#[derive(Clone, Debug)]
pub(crate) struct FabricLevel {
    pub(crate) name: LevelName,
    /// In order, without gaps.
    domains: Vec<Range<usize>>,
    /// For each place inside the Topology, which domain it lies in.
    domain_at: Vec<usize>,
}

/// How wide a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// One node.
    Node,
    /// One domain of the level at this index.
    Level(usize),
    /// All nodes, those outside the Topology included.
    Everything,
}

/// All nodes by their place in a Topology.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fabric {
    pub(crate) topology: Option<TopologyName>,
    /// Slots of the nodes: by path and name; then those outside the Topology, by name.
    pub(crate) order: Vec<usize>,
    /// How many are part of the Topology.
    inside: usize,
    /// Outermost first.
    pub(crate) levels: Vec<FabricLevel>,
    /// For each place the accelerator domain, numbered in the order of names.
    pub(crate) accelerators: Vec<Option<usize>>,
}

impl Fabric {
    /// The fabric of these nodes, which come by name.
    pub(crate) fn new<'a>(
        topology: Option<&Topology>,
        nodes: impl Iterator<Item = (usize, &'a NodeRecord)>,
    ) -> Self {
        let levels = topology.map_or(&[][..], |topology| &topology.levels);
        let mut inside: Vec<(&[String], &NodeName, usize, &Node)> = Vec::new();
        let mut outside: Vec<(usize, &Node)> = Vec::new();
        for (slot, record) in nodes {
            let node = &record.node;
            let path = topology.and_then(|topology| node.fabric.get(&topology.name));
            match path {
                Some(path) if path.len() == levels.len() && !levels.is_empty() => {
                    inside.push((path, &node.name, slot, node));
                }
                _ => outside.push((slot, node)),
            }
        }
        inside.sort_by(|one, other| (one.0, one.1).cmp(&(other.0, other.1)));
        let levels = levels
            .iter()
            .enumerate()
            .map(|(depth, name)| FabricLevel::new(name, depth, &inside))
            .collect();
        let ordered: Vec<(usize, &Node)> = inside
            .iter()
            .map(|(_, _, slot, node)| (*slot, *node))
            .chain(outside)
            .collect();
        Self {
            topology: topology.map(|topology| topology.name.clone()),
            inside: inside.len(),
            levels,
            accelerators: accelerators(topology, &ordered),
            order: ordered.into_iter().map(|(slot, _)| slot).collect(),
        }
    }

    /// How wide the domains are that may hold a gang, narrowest first; `None` if the required level
    /// is unknown.
    pub(crate) fn widths(&self, required: Option<&LevelName>) -> Option<Vec<Width>> {
        let mut widths = vec![Width::Node];
        let outermost = match required {
            None => 0,
            Some(level) if level.as_str() == NODE_LEVEL => return Some(widths),
            Some(level) => self.levels.iter().position(|known| known.name == *level)?,
        };
        widths.extend((outermost..self.levels.len()).rev().map(Width::Level));
        if required.is_none() {
            widths.push(Width::Everything);
        }
        Some(widths)
    }

    /// How many places count when a level is required: a node outside the Topology lies in no domain.
    pub(crate) fn eligible(&self, required: Option<&LevelName>) -> usize {
        match required {
            Some(level) if level.as_str() != NODE_LEVEL => self.inside,
            _ => self.order.len(),
        }
    }

    /// The domains of a width, in order.
    pub(crate) fn domains(&self, width: Width) -> Vec<Range<usize>> {
        let all = self.order.len();
        match width {
            Width::Node => (0..all).map(|at| at..at + 1).collect(),
            Width::Level(level) => self.levels[level].domains.clone(),
            Width::Everything => vec![Range { start: 0, end: all }],
        }
    }

    /// The parts of an area that are domains of a level; a place outside the Topology is one by itself.
    pub(crate) fn parts(&self, area: &Range<usize>, level: usize) -> Vec<Range<usize>> {
        let domains = &self.levels[level].domains;
        let first = domains.partition_point(|domain| domain.start < area.start);
        let inside = domains[first..]
            .iter()
            .take_while(|domain| domain.end <= area.end);
        let outside = (area.start.max(self.inside)..area.end).map(|at| at..at + 1);
        inside.cloned().chain(outside).collect()
    }

    /// The domains around a place, innermost first.
    pub(crate) fn around(&self, at: usize, width: Width) -> impl Iterator<Item = &Range<usize>> {
        let inner = match width {
            Width::Node => self.levels.len(),
            Width::Level(level) => level,
            Width::Everything => 0,
        };
        self.levels[..inner].iter().rev().filter_map(move |level| {
            let domain = level.domain_at.get(at)?;
            level.domains.get(*domain)
        })
    }

    /// The narrowest level whose one domain holds all these places, and how long its path is.
    pub(crate) fn narrowest(&self, places: &[usize]) -> Option<(LevelName, usize)> {
        let (first, rest) = places.split_first()?;
        if rest.iter().all(|place| place == first) {
            return Some((LevelName::from(NODE_LEVEL), self.levels.len() + 1));
        }
        let holds_all = |level: &FabricLevel| {
            let domain = level.domain_at.get(*first);
            domain.is_some()
                && rest
                    .iter()
                    .all(|place| level.domain_at.get(*place) == domain)
        };
        let depth = self.levels.iter().rposition(holds_all)?;
        Some((self.levels[depth].name.clone(), depth + 1))
    }
}

impl FabricLevel {
    fn new(
        name: &LevelName,
        depth: usize,
        inside: &[(&[String], &NodeName, usize, &Node)],
    ) -> Self {
        let mut domains: Vec<Range<usize>> = Vec::new();
        let mut domain_at = Vec::with_capacity(inside.len());
        for (at, (path, ..)) in inside.iter().enumerate() {
            let same = at > 0 && inside[at - 1].0[..=depth] == path[..=depth];
            match domains.last_mut() {
                Some(domain) if same => domain.end = at + 1,
                _ => domains.push(at..at + 1),
            }
            domain_at.push(domains.len() - 1);
        }
        Self {
            name: name.clone(),
            domains,
            domain_at,
        }
    }
}

fn accelerators(topology: Option<&Topology>, ordered: &[(usize, &Node)]) -> Vec<Option<usize>> {
    let name = |node: &'_ Node| {
        topology.and_then(|topology| node.accelerator.get(&topology.name).cloned())
    };
    let mut numbers: BTreeMap<String, usize> = ordered
        .iter()
        .filter_map(|(_, node)| Some((name(node)?, 0)))
        .collect();
    for (number, value) in numbers.values_mut().enumerate() {
        *value = number;
    }
    ordered
        .iter()
        .map(|(_, node)| numbers.get(&name(node)?).copied())
        .collect()
}
