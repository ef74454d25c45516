//! Placement against exhaustive search on small clusters, and on large ones with few kinds of nodes.

use std::collections::BTreeMap;

use crate::common::*;
use muster_engine::{
    Gang, HostPort, HostPortProtocol, LevelName, Node, NodeBlock, PodSelectorId, State, Update,
};
use proptest::prelude::*;

/// Levels of the Topology here, outermost first.
const LEVELS: [&str; 3] = ["core", "spine", "leaf"];

/// Stands for the level of what lies in no one domain of a level.
const EVERYWHERE: &str = "everywhere";

/// The extended resource that some nodes and pods have.
const EFA: &str = "vpc.amazonaws.com/efa";

/// A node as the search below sees it.
#[derive(Clone, Debug)]
struct Small {
    /// Domains, outermost first; `None` outside the Topology.
    path: Option<[u8; 3]>,
    gpus: usize,
    /// How many of them are taken.
    taken: usize,
    cores: i64,
    efa: i64,
    blocked: bool,
    /// Whether something binds the port there.
    port: bool,
}

/// A pod as the search below sees it.
#[derive(Clone, Debug)]
struct SmallPod {
    gpus: usize,
    cores: i64,
    efa: i64,
    /// Whether it binds the port.
    port: bool,
    /// Whether it may not share a node with others like it.
    apart: bool,
    /// Whether its claim is the one that all such pods of the gang share; of the first one's size.
    shares: bool,
}

fn small_node() -> impl Strategy<Value = Small> {
    let path = prop_oneof![
        1 => Just(None),
        6 => [0_u8..2, 0_u8..2, 0_u8..2].prop_map(Some),
    ];
    let amounts = (0_usize..6, 0_usize..3, 1_i64..6, 0_i64..3);
    let flags = (proptest::bool::weighted(0.1), proptest::bool::weighted(0.1));
    (path, amounts, flags).prop_map(|(path, (gpus, taken, cores, efa), (blocked, port))| Small {
        path,
        gpus,
        taken: taken.min(gpus),
        cores,
        efa,
        blocked,
        port,
    })
}

fn small_pod() -> impl Strategy<Value = SmallPod> {
    let flag = || proptest::bool::weighted(0.15);
    (0_usize..4, 0_i64..3, 0_i64..2, flag(), flag(), flag()).prop_map(
        |(gpus, cores, efa, port, apart, shares)| SmallPod {
            gpus,
            cores,
            efa,
            port,
            apart,
            shares: shares && gpus > 0,
        },
    )
}

fn small_gang() -> impl Strategy<Value = Vec<SmallPod>> {
    let unequal = proptest::collection::vec(small_pod(), 1..6);
    let equal = (small_pod(), 1_usize..6).prop_map(|(pod, count)| vec![pod; count]);
    prop_oneof![2 => unequal, 1 => equal]
}

fn build(at: usize, small: &Small) -> Node {
    let path = small.path.map_or_else(String::new, |[core, spine, leaf]| {
        format!("c{core}/s{spine}/l{leaf}")
    });
    let mut node = node(&format!("n{at:03}"), &path, small.gpus);
    node.allocatable.cpu_milli = small.cores * 1000;
    node.allocatable.others.insert(EFA.into(), small.efa);
    node.block = small.blocked.then_some(NodeBlock::NotReady);
    for device in node.devices.iter_mut().take(small.taken) {
        device.allocated_to = Some("other".into());
    }
    if small.port {
        node.used.host_ports.insert(port());
    }
    node
}

fn port() -> HostPort {
    HostPort {
        protocol: HostPortProtocol::Tcp,
        ip: None,
        port: 29_500,
    }
}

fn build_gang(pods: &[SmallPod]) -> Gang {
    let shared = pods.iter().find(|pod| pod.shares).map(|pod| pod.gpus);
    let pods = pods.iter().enumerate().map(|(rank, small)| {
        let uid = format!("p{rank}");
        let count = |gpus: usize| u32::try_from(gpus).expect("few");
        let claims = match (small.shares, small.gpus) {
            (true, _) => vec![claim("shared", count(shared.unwrap_or(0)))],
            (false, 0) => Vec::new(),
            (false, gpus) => vec![claim(&uid, count(gpus))],
        };
        let mut pod = pod(&uid, claims);
        pod.resources.cpu_milli = small.cores * 1000;
        pod.resources.others.insert(EFA.into(), small.efa);
        if small.port {
            pod.resources.host_ports.insert(port());
        }
        if small.apart {
            pod.resources.repels.insert(PodSelectorId(0));
            pod.resources.matched_by.insert(PodSelectorId(0));
        }
        pod
    });
    gang_of("g", "research", pods.collect())
}

/// What is left of a node, and what the gang has put there.
#[derive(Clone, Debug)]
struct Left {
    gpus: usize,
    cores: i64,
    efa: i64,
    port: bool,
    apart: bool,
    shared: bool,
}

impl Left {
    fn of(node: &Small) -> Self {
        Self {
            gpus: node.gpus - node.taken,
            cores: node.cores,
            efa: node.efa,
            port: node.port,
            apart: false,
            shared: false,
        }
    }

    /// What is left after a pod, whose claim brings so many GPUs.
    fn after(&self, pod: &SmallPod, gpus: usize) -> Option<Self> {
        if (pod.port && self.port) || (pod.apart && self.apart) {
            return None;
        }
        Some(Self {
            gpus: self.gpus.checked_sub(gpus)?,
            cores: Some(self.cores - pod.cores).filter(|cores| *cores >= 0)?,
            efa: Some(self.efa - pod.efa).filter(|efa| *efa >= 0)?,
            port: self.port || pod.port,
            apart: self.apart || pod.apart,
            shared: self.shared || pod.shares,
        })
    }
}

/// Whether the pods fit on what is left, tried in every way.
fn fits(left: &mut [Left], pods: &[SmallPod], shared_gpus: usize) -> bool {
    let Some((pod, rest)) = pods.split_first() else {
        return true;
    };
    let placed = left.iter().position(|node| node.shared);
    for at in 0..left.len() {
        let elsewhere = pod.shares && placed.is_some_and(|placed| placed != at);
        let gpus = match (pod.shares, placed) {
            (true, Some(_)) => 0,
            (true, None) => shared_gpus,
            (false, _) => pod.gpus,
        };
        let Some(after) = left[at].after(pod, gpus).filter(|_| !elsewhere) else {
            continue;
        };
        let before = std::mem::replace(&mut left[at], after);
        let fit = fits(left, rest, shared_gpus);
        left[at] = before;
        if fit {
            return true;
        }
    }
    false
}

fn fits_on<'a>(nodes: impl Iterator<Item = &'a Small>, pods: &[SmallPod]) -> bool {
    let open = nodes.filter(|node| !node.blocked);
    let mut left: Vec<Left> = open.map(Left::of).collect();
    let shared = pods.iter().find(|pod| pod.shares);
    fits(&mut left, pods, shared.map_or(0, |pod| pod.gpus))
}

/// The narrowest level whose one domain holds the pods, as [`muster_engine::Admission::level`] gives it.
fn narrowest(nodes: &[Small], pods: &[SmallPod], required: Option<usize>) -> Option<&'static str> {
    // A level that is required leaves out who is not part of the Topology.
    let eligible = |node: &&Small| required.is_none_or(|level| level == 3 || node.path.is_some());
    let nodes: Vec<&Small> = nodes.iter().filter(eligible).collect();
    if nodes.iter().any(|node| fits_on([*node].into_iter(), pods)) {
        return Some("node");
    }
    for level in (required.unwrap_or(0)..3).rev() {
        let mut domains: BTreeMap<&[u8], Vec<&Small>> = BTreeMap::new();
        for node in &nodes {
            if let Some(path) = &node.path {
                domains.entry(&path[..=level]).or_default().push(node);
            }
        }
        if domains
            .into_values()
            .any(|domain| fits_on(domain.into_iter(), pods))
        {
            return Some(LEVELS[level]);
        }
    }
    let anywhere = required.is_none() && fits_on(nodes.into_iter(), pods);
    anywhere.then_some(EVERYWHERE)
}

/// Whether the placement takes nothing twice.
fn is_sound(nodes: &[Small], pods: &[SmallPod], placed: &[String]) -> bool {
    let shared = pods.iter().find(|pod| pod.shares).map_or(0, |pod| pod.gpus);
    let mut left: Vec<Left> = nodes.iter().map(Left::of).collect();
    pods.iter().zip(placed).all(|(pod, name)| {
        let at: usize = name[1..].parse().expect("n and a number");
        let gpus = match (pod.shares, left[at].shared) {
            (true, true) => 0,
            (true, false) => shared,
            (false, _) => pod.gpus,
        };
        let after = left[at].after(pod, gpus).filter(|_| !nodes[at].blocked);
        let fits = after.is_some();
        left[at] = after.unwrap_or_else(|| left[at].clone());
        fits
    })
}

/// A state that knew the nodes as they were and was then told what they are.
fn state_of(before: &[Small], nodes: &[Small]) -> State {
    let mut state = open_state(Vec::new());
    state.apply(Update::Topology(topology(&LEVELS)));
    for (at, node) in before.iter().enumerate() {
        state.apply(Update::Node(build(at, node)));
    }
    // Somebody who can never be placed asks first, so that something is remembered.
    submit(
        &mut state,
        [
            gang("never", "research", 1, 1),
            gang("nor", "research", 90, 2),
        ],
    );
    decide(&mut state);
    for gang in ["never", "nor"] {
        state.apply(Update::NotWaiting(gang.into()));
        state.undo(&gang.into());
    }
    for (at, node) in nodes.iter().enumerate() {
        state.apply(Update::Node(build(at, node)));
    }
    for (at, gone) in before.iter().enumerate().skip(nodes.len()) {
        state.apply(Update::NodeGone(build(at, gone).name));
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A gang is placed exactly if there is a way, in a domain of the narrowest level that has one, and nothing is
    /// taken twice; on whatever way the nodes became what they are.
    #[test]
    fn the_engine_finds_a_narrowest_placement_exactly_if_there_is_one(
        before in proptest::collection::vec(small_node(), 0..6),
        nodes in proptest::collection::vec(small_node(), 1..6),
        pods in small_gang(),
        required in proptest::option::of(0_usize..4),
    ) {
        let mut state = state_of(&before, &nodes);
        let mut gang = build_gang(&pods);
        gang.topology.required = required.map(|level| {
            LevelName::from(LEVELS.get(level).copied().unwrap_or("node"))
        });
        state.apply(Update::Waiting(gang));
        let decisions = decide(&mut state);
        let admission = decisions.admissions.first();
        let level = admission.map(|admission| {
            let level = admission.level.as_ref();
            level.map_or(EVERYWHERE, LevelName::as_str)
        });
        prop_assert_eq!(level, narrowest(&nodes, &pods, required));
        if let Some(admission) = admission {
            let placed: Vec<String> =
                admission.pods.iter().map(|pod| pod.node.to_string()).collect();
            prop_assert!(is_sound(&nodes, &pods, &placed), "{:?}", placed);
        }
    }

    /// Devices taken by holds count like those that the API server calls allocated.
    #[test]
    fn holds_and_allocations_count_alike(
        nodes in proptest::collection::vec(small_node(), 1..5),
        pods in small_gang(),
    ) {
        let allocated = nodes_of(&mut state_of(&[], &nodes), build_gang(&pods));
        let free: Vec<Small> = nodes.iter().map(|node| Small { taken: 0, ..node.clone() }).collect();
        let mut state = state_of(&[], &free);
        for (at, node) in nodes.iter().enumerate() {
            let devices: Vec<usize> = (0..node.taken).collect();
            let mut hold = hold(&format!("h{at}"), "research", &format!("n{at:03}"), &devices);
            hold.resources = muster_engine::PodResources::default();
            state.apply(Update::Hold(hold));
        }
        prop_assert_eq!(nodes_of(&mut state, build_gang(&pods)), allocated);
    }

    /// Whatever devices are held, in the allocator's eyes or only promised, nothing is granted twice: what the
    /// engine placed, it never places again.
    #[test]
    fn what_is_placed_is_taken(
        nodes in proptest::collection::vec(small_node(), 1..5),
        gangs in proptest::collection::vec(small_gang(), 1..5),
    ) {
        let mut state = state_of(&[], &nodes);
        let mut left: Vec<Left> = nodes.iter().map(Left::of).collect();
        for (at, pods) in gangs.iter().enumerate() {
            let mut gang = build_gang(pods);
            gang.uid = format!("g{at}").as_str().into();
            for (rank, pod) in gang.pods.iter_mut().enumerate() {
                pod.uid = format!("g{at}-{rank}").as_str().into();
                for claim in &mut pod.claims {
                    claim.uid = format!("g{at}-{}", claim.uid).as_str().into();
                }
            }
            let Some(placed) = nodes_of(&mut state, gang) else { continue };
            let shared = pods.iter().find(|pod| pod.shares).map_or(0, |pod| pod.gpus);
            for node in &mut left {
                node.shared = false;
            }
            for (pod, name) in pods.iter().zip(&placed) {
                let at: usize = name[1..].parse().expect("n and a number");
                let gpus = match (pod.shares, left[at].shared) {
                    (true, true) => 0,
                    (true, false) => shared,
                    (false, _) => pod.gpus,
                };
                let after = left[at].after(pod, gpus);
                prop_assert!(after.is_some(), "{} after {:?}", name, placed);
                left[at] = after.expect("checked");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same on up to 600 nodes of a few kinds each, for gangs of unequal pods.
    #[test]
    fn a_few_unequal_pods_find_their_nodes_among_hundreds(
        kinds in proptest::collection::vec((small_node(), 1_usize..200), 1..4),
        pods in proptest::collection::vec(small_pod(), 1..4),
    ) {
        let mut nodes: Vec<Small> = Vec::new();
        let mut few: Vec<Small> = Vec::new();
        for (kind, count) in &kinds {
            for at in 0..*count {
                // Everywhere in the Topology; no more of a kind are needed than there are pods.
                let [core, spine, leaf] = [at % 2, at / 2 % 2, at / 4 % 2];
                let digit = |value| u8::try_from(value).expect("0 or 1");
                let path = kind.path.map(|_| [digit(core), digit(spine), digit(leaf)]);
                let node = Small { path, ..kind.clone() };
                if at < pods.len() {
                    few.push(node.clone());
                }
                nodes.push(node);
            }
        }
        let mut state = state_of(&[], &nodes);
        let placed = nodes_of(&mut state, build_gang(&pods));
        prop_assert_eq!(placed.is_some(), fits_on(few.iter(), &pods));
        if let Some(placed) = placed {
            prop_assert!(is_sound(&nodes, &pods, &placed));
        }
    }
}
