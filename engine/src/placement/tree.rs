//! The nodes in the order of a Topology, as a tree of domains that is changed node by node.
//!
//! Every node has a place in one order: by path and name, then the nodes outside the Topology by name. Every domain
//! is one stretch of that order. Places are labels with gaps between them, so that a node can come between two
//! others without moving them.

use std::collections::{BTreeMap, BTreeSet};

use super::version::Version;
use crate::{
    model::{Node, Topology},
    names::{LevelName, NodeName, TopologyName},
};

/// Name of the innermost level, which every Topology has.
pub(crate) const NODE_LEVEL: &str = "node";

/// Distance of the labels of two nodes that come one after the other.
const GAP: u64 = 1 << 40;

/// A place in the order of a tree. Only the order of labels means anything.
pub(crate) type Label = u64;

/// A domain of a tree. A number is not used for a second domain as long as the tree keeps its version.
pub(crate) type DomainId = usize;

/// The domain of all nodes, those outside the Topology included.
pub(crate) const ROOT: DomainId = 0;

/// How wide an area is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// One node.
    Node,
    /// One domain of this depth: 0 is everything, 1 the outermost level.
    Depth(usize),
}

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) label: Label,
    /// The innermost domain; [`ROOT`] outside the Topology.
    pub(crate) domain: DomainId,
    /// The accelerator domain.
    pub(crate) accelerator: Option<String>,
    key: PlaceKey,
}

impl Place {
    /// Whether a gang that requires a level may use the node: one outside the Topology lies in no domain.
    pub(crate) fn is_eligible(&self, required: Option<&LevelName>) -> bool {
        match required {
            Some(level) if level.as_str() != NODE_LEVEL => self.domain != ROOT,
            _ => true,
        }
    }
}

/// What the order is made of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PlaceKey {
    outside: bool,
    path: Vec<String>,
    name: NodeName,
}

#[derive(Clone, Debug)]
struct Domain {
    parent: DomainId,
    depth: usize,
    children: BTreeMap<String, DomainId>,
    /// Labels of the nodes for which it is the innermost domain.
    labels: BTreeSet<Label>,
}

/// The tree of one Topology, or the flat one where there is none.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) topology: Option<TopologyName>,
    /// Outermost first, **without** the node itself.
    pub(crate) levels: Vec<LevelName>,
    domains: Vec<Domain>,
    /// How many domains have no node any more.
    dead: usize,
    /// By slot.
    places: Vec<Option<Place>>,
    order: BTreeMap<PlaceKey, usize>,
    /// How many nodes are part of an accelerator domain.
    accelerated: usize,
    /// When labels and domains were numbered.
    numbered: Version,
}

impl Tree {
    /// A tree without nodes.
    pub(crate) fn new(topology: Option<&Topology>, now: Version) -> Self {
        Self {
            topology: topology.map(|topology| topology.name.clone()),
            levels: topology.map_or_else(Vec::new, |topology| topology.levels.clone()),
            domains: vec![Domain::new(ROOT, 0)],
            dead: 0,
            places: Vec::new(),
            order: BTreeMap::new(),
            accelerated: 0,
            numbered: now,
        }
    }

    /// Puts a node at the place that its labels give it. `now` is the moment of this change.
    pub(crate) fn set(&mut self, slot: usize, node: &Node, now: Version) {
        let topology = self.topology.as_ref();
        let path = topology
            .and_then(|topology| node.fabric.get(topology))
            .filter(|path| path.len() == self.levels.len() && !path.is_empty());
        let accelerator = topology.and_then(|topology| node.accelerator.get(topology));
        let key = PlaceKey {
            outside: path.is_none(),
            path: path.cloned().unwrap_or_default(),
            name: node.name.clone(),
        };
        if self
            .place(slot)
            .is_some_and(|place| place.key == key && place.accelerator.as_ref() == accelerator)
        {
            return;
        }
        self.remove(slot);
        let Some(label) = self.label_for(&key) else {
            self.order.insert(key.clone(), slot);
            self.put(slot, key, accelerator.cloned(), 0);
            self.number_again(now);
            return;
        };
        self.order.insert(key.clone(), slot);
        self.put(slot, key, accelerator.cloned(), label);
        if self.dead > 64 + self.domains.len() / 2 {
            self.number_again(now);
        }
    }

    /// Takes a node out.
    pub(crate) fn remove(&mut self, slot: usize) {
        let Some(place) = self.places.get_mut(slot).and_then(Option::take) else {
            return;
        };
        self.order.remove(&place.key);
        self.accelerated -= usize::from(place.accelerator.is_some());
        self.domains[place.domain].labels.remove(&place.label);
        let mut at = place.domain;
        let mut path = place.key.path;
        while at != ROOT && self.domains[at].is_empty() {
            let parent = self.domains[at].parent;
            if let Some(name) = path.pop() {
                self.domains[parent].children.remove(&name);
            }
            self.dead += 1;
            at = parent;
        }
    }

    fn put(&mut self, slot: usize, key: PlaceKey, accelerator: Option<String>, label: Label) {
        let mut domain = ROOT;
        for name in &key.path {
            let next = self.domains.len();
            let known = self.domains[domain].children.get(name).copied();
            domain = known.unwrap_or_else(|| {
                let depth = self.domains[domain].depth + 1;
                self.domains.push(Domain::new(domain, depth));
                self.domains[domain].children.insert(name.clone(), next);
                next
            });
        }
        self.domains[domain].labels.insert(label);
        self.accelerated += usize::from(accelerator.is_some());
        if self.places.len() <= slot {
            self.places.resize(slot + 1, None);
        }
        self.places[slot] = Some(Place {
            label,
            domain,
            accelerator,
            key,
        });
    }

    /// A label between those of the neighbours; `None` if there is none left.
    fn label_for(&self, key: &PlaceKey) -> Option<Label> {
        let label = |(_, slot): (&PlaceKey, &usize)| self.place(*slot).map(|place| place.label);
        let before = self.order.range(..key).next_back().and_then(label);
        let after = self.order.range(key..).next().and_then(label);
        match (before, after) {
            (None, None) => Some(1 << 63),
            (Some(before), None) => before.checked_add(GAP),
            (None, Some(after)) => after.checked_sub(GAP),
            (Some(before), Some(after)) => {
                let label = before + (after - before) / 2;
                (label != before).then_some(label)
            }
        }
    }

    /// Numbers labels and domains from the beginning.
    fn number_again(&mut self, now: Version) {
        self.domains = vec![Domain::new(ROOT, 0)];
        self.dead = 0;
        self.accelerated = 0;
        self.numbered = now;
        let slots: Vec<usize> = self.order.values().copied().collect();
        for (at, slot) in (1_u64..).zip(slots) {
            if let Some(place) = self.places[slot].take() {
                self.put(slot, place.key, place.accelerator, at * GAP);
            }
        }
    }

    /// The moment since which labels and domains have kept their numbers.
    pub(crate) fn numbered(&self) -> Version {
        self.numbered
    }

    pub(crate) fn place(&self, slot: usize) -> Option<&Place> {
        self.places.get(slot)?.as_ref()
    }

    /// How many nodes there are.
    pub(crate) fn nodes(&self) -> usize {
        self.order.len()
    }

    /// Every slot with a node, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.order.values().copied()
    }

    /// Whether any node is part of an accelerator domain.
    pub(crate) fn has_accelerators(&self) -> bool {
        self.accelerated > 0
    }

    /// How many domain numbers have been given out.
    pub(crate) fn domains(&self) -> usize {
        self.domains.len()
    }

    pub(crate) fn depth(&self, domain: DomainId) -> usize {
        self.domains.get(domain).map_or(0, |domain| domain.depth)
    }

    /// A domain and those around it, innermost first, the root last.
    pub(crate) fn upwards(&self, from: DomainId) -> impl Iterator<Item = DomainId> + '_ {
        let up = move |at: &DomainId| (*at != ROOT).then(|| self.domains[*at].parent);
        std::iter::successors(Some(from), up)
    }

    /// The domain of a depth in which a node lies.
    pub(crate) fn domain_at(&self, slot: usize, depth: usize) -> Option<DomainId> {
        let innermost = self.place(slot)?.domain;
        self.upwards(innermost)
            .find(|domain| self.domains[*domain].depth == depth)
    }

    /// The first and the last place of a domain.
    pub(crate) fn stretch(&self, domain: DomainId) -> Option<(Label, Label)> {
        if domain == ROOT {
            let end = |slot: Option<&usize>| Some(self.place(*slot?)?.label);
            let first = end(self.order.values().next())?;
            return Some((first, end(self.order.values().next_back())?));
        }
        Some((self.end(domain, false)?, self.end(domain, true)?))
    }

    fn end(&self, mut domain: DomainId, last: bool) -> Option<Label> {
        loop {
            let at = self.domains.get(domain)?;
            let mut children = at.children.values();
            let child = if last {
                children.next_back()
            } else {
                children.next()
            };
            let mut labels = at.labels.iter();
            match child {
                Some(child) => domain = *child,
                None if last => return labels.next_back().copied(),
                None => return labels.next().copied(),
            }
        }
    }

    /// The inner domains of a domain.
    pub(crate) fn children(&self, domain: DomainId) -> impl Iterator<Item = DomainId> + '_ {
        let domain = self.domains.get(domain).into_iter();
        domain.flat_map(|domain| domain.children.values().copied())
    }

    /// How wide the domains are that may hold a gang, narrowest first; `None` if the required level
    /// is unknown.
    pub(crate) fn widths(&self, required: Option<&LevelName>) -> Option<Vec<Width>> {
        let mut widths = vec![Width::Node];
        let outermost = match required {
            None => 0,
            Some(level) if level.as_str() == NODE_LEVEL => return Some(widths),
            Some(level) => 1 + self.levels.iter().position(|known| known == level)?,
        };
        widths.extend((outermost..=self.levels.len()).rev().map(Width::Depth));
        Some(widths)
    }

    /// The same without those that hold no more than a narrower one: a single domain with all nodes is as good as all that
    /// lies around it.
    pub(crate) fn different_widths(&self, required: Option<&LevelName>) -> Option<Vec<Width>> {
        let mut widths = self.widths(required)?;
        let is_anybody_outside = self.order.keys().next_back().is_some_and(|key| key.outside);
        let sole_child = |domain: &DomainId| {
            let mut children = self.children(*domain);
            children.next().filter(|_| children.next().is_none())
        };
        if !is_anybody_outside {
            let alone = std::iter::successors(Some(ROOT), sole_child).count() - 1;
            widths.retain(|width| !matches!(width, Width::Depth(depth) if *depth < alone));
        }
        Some(widths)
    }

    /// The narrowest level whose one domain holds all these nodes, and how long its path is.
    pub(crate) fn narrowest(&self, slots: &[usize]) -> Option<(LevelName, usize)> {
        let (first, rest) = slots.split_first()?;
        if rest.iter().all(|slot| slot == first) {
            return Some((LevelName::from(NODE_LEVEL), self.levels.len() + 1));
        }
        let depth = (1..=self.levels.len()).rev().find(|depth| {
            let domain = self.domain_at(*first, *depth);
            let holds = |slot: &usize| self.domain_at(*slot, *depth) == domain;
            domain.is_some() && rest.iter().all(holds)
        })?;
        Some((self.levels[depth - 1].clone(), depth))
    }

    /// The names of the domains around a node, outermost first; empty outside the Topology.
    pub(crate) fn path(&self, slot: usize) -> &[String] {
        self.place(slot).map_or(&[], |place| &place.key.path)
    }
}

impl Domain {
    fn new(parent: DomainId, depth: usize) -> Self {
        Self {
            parent,
            depth,
            children: BTreeMap::new(),
            labels: BTreeSet::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.children.is_empty() && self.labels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::fixtures;

    fn topology() -> Topology {
        Topology {
            name: "fabric".into(),
            levels: vec!["spine".into(), "leaf".into()],
        }
    }

    fn node(name: &str, path: &str) -> Node {
        let mut node = fixtures::node(name, 0);
        if !path.is_empty() {
            let path = path.split('/').map(str::to_owned).collect();
            node.fabric.insert("fabric".into(), path);
        }
        node
    }

    /// Names in order, and every domain with the labels of its stretch in order of the tree.
    fn picture(tree: &Tree, names: &[String]) -> (Vec<String>, Vec<Vec<String>>) {
        let name = |slot: usize| names[slot].clone();
        let order: Vec<usize> = tree.slots().collect();
        let mut stack = vec![ROOT];
        let mut domains = Vec::new();
        while let Some(domain) = stack.pop() {
            if let Some((first, last)) = tree.stretch(domain) {
                let inside = order.iter().filter(|slot| {
                    let label = tree.place(**slot).unwrap().label;
                    (first..=last).contains(&label)
                });
                domains.push(inside.map(|slot| name(*slot)).collect());
            }
            stack.extend(tree.children(domain));
        }
        (order.into_iter().map(name).collect(), domains)
    }

    /// A tree that is built step by step, with nodes that move and go, equals one that is built at once.
    #[test]
    fn step_by_step_equals_at_once() {
        let mut random: u64 = 7;
        let mut draw = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        let topology = topology();
        let names: Vec<String> = (0..40).map(|at| format!("n{at:02}")).collect();
        let mut now = Version::default();
        let mut tree = Tree::new(Some(&topology), now);
        let mut known: BTreeMap<usize, Node> = BTreeMap::new();
        for step in 0..4_000 {
            let slot = draw(names.len());
            now.advance();
            if draw(4) == 0 {
                known.remove(&slot);
                tree.remove(slot);
            } else {
                let path = match draw(8) {
                    0 => String::new(),
                    at => format!("s{}/l{}", at % 3, draw(30)),
                };
                let node = node(&names[slot], &path);
                tree.set(slot, &node, now);
                known.insert(slot, node);
            }
            if step % 50 == 0 {
                let mut fresh = Tree::new(Some(&topology), now);
                for (slot, node) in &known {
                    fresh.set(*slot, node, now);
                }
                assert_eq!(picture(&tree, &names), picture(&fresh, &names));
                assert!(
                    tree.domains() <= 64 + 2 * (1 + 3 + 90),
                    "dead domains are swept"
                );
            }
        }
    }

    #[test]
    fn where_no_gap_is_left_labels_are_given_again() {
        let mut tree = Tree::new(None, Version::default());
        let mut now = Version::default();
        // Each comes directly before the last one: halves the gap each time.
        tree.set(0, &node("a", ""), now.advance());
        tree.set(1, &node("z", ""), now.advance());
        let before = tree.numbered();
        for slot in 2..60 {
            let name = format!("y{:02}", 99 - slot);
            tree.set(slot, &node(&name, ""), now.advance());
        }
        assert!(tree.numbered() > before);
        let labels: Vec<Label> = tree
            .slots()
            .map(|slot| tree.place(slot).unwrap().label)
            .collect();
        assert_eq!(labels.len(), 60);
        assert!(labels.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn a_width_whose_one_domain_is_all_there_is_in_a_narrower_one_is_left_out() {
        let depth = Width::Depth;
        let table: [(&[&str], Vec<Width>); 6] = [
            (&[], vec![Width::Node, depth(2), depth(1), depth(0)]),
            (&["s/l", "s/l"], vec![Width::Node, depth(2)]),
            (&["s/l", "s/k"], vec![Width::Node, depth(2), depth(1)]),
            (
                &["s/l", "t/l"],
                vec![Width::Node, depth(2), depth(1), depth(0)],
            ),
            (
                &["s/l", ""],
                vec![Width::Node, depth(2), depth(1), depth(0)],
            ),
            (&["", ""], vec![Width::Node, depth(2), depth(1), depth(0)]),
        ];
        for (paths, expected) in table {
            let mut now = Version::default();
            let mut tree = Tree::new(Some(&topology()), now);
            for (slot, path) in paths.iter().enumerate() {
                tree.set(slot, &node(&format!("n{slot}"), path), now.advance());
            }
            assert_eq!(tree.different_widths(None), Some(expected), "{paths:?}");
        }
        let mut now = Version::default();
        let mut tree = Tree::new(Some(&topology()), now);
        tree.set(0, &node("n", "s/l"), now.advance());
        let within = |level: &str| tree.different_widths(Some(&level.into()));
        assert_eq!(within("spine"), Some(vec![Width::Node, depth(2)]));
        assert_eq!(within("leaf"), Some(vec![Width::Node, depth(2)]));
    }

    #[test]
    fn a_level_is_found_by_name_and_no_width_exceeds_it() {
        let tree = Tree::new(Some(&topology()), Version::default());
        let depth = Width::Depth;
        let table: [(Option<&str>, Option<Vec<Width>>); 5] = [
            (None, Some(vec![Width::Node, depth(2), depth(1), depth(0)])),
            (Some("spine"), Some(vec![Width::Node, depth(2), depth(1)])),
            (Some("leaf"), Some(vec![Width::Node, depth(2)])),
            (Some("node"), Some(vec![Width::Node])),
            (Some("rack"), None),
        ];
        for (required, widths) in table {
            assert_eq!(tree.widths(required.map(LevelName::from).as_ref()), widths);
        }
    }
}
