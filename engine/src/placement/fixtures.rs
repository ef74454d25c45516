//! Small clusters and gangs for the tests of this module.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Cluster, Demand, Effort, Request, Verdict, View, plan};
use crate::{
    amount::Amount,
    model::{
        Claim, Device, DeviceRequest, Gang, HeldClaim, Hold, Node, Pod, PodResources, Topology,
        TopologyRequest,
    },
    names::{ClaimUid, DeviceName, FlavorName, NodeFilterId, SelectorId, Timestamp, TopologyName},
};

/// The Topology `fabric`.
pub(super) fn fabric() -> TopologyName {
    "fabric".into()
}

/// The Flavor of all devices.
pub(super) fn h100() -> FlavorName {
    "h100".into()
}

/// A Topology called `fabric`, its levels outermost first.
pub(super) fn topology(levels: &[&str]) -> Topology {
    Topology {
        name: fabric(),
        levels: levels.iter().map(|level| (*level).into()).collect(),
    }
}

/// A GPU that matches selector 0 and belongs to the Flavor `h100`.
pub(super) fn device(at: usize) -> Device {
    Device {
        name: DeviceName::from(format!("d{at}")),
        flavors: BTreeSet::from([h100()]),
        gpus: Amount::ONE_GPU,
        vram: Amount::ZERO,
        selectors: BTreeSet::from([SelectorId(0)]).into(),
        attributes: Arc::default(),
        own_attributes: Arc::default(),
        nvlink_group: None,
        usable: true,
        healthy: true,
        allocated_to: None,
        consumes: Arc::default(),
    }
}

/// A node outside every Topology with 64 cores, 512 GiB and 110 pods, which filter 0 passes.
pub(super) fn node(name: &str, devices: usize) -> Node {
    Node {
        name: name.into(),
        uid: format!("uid-{name}"),
        block: None,
        allocatable: PodResources {
            cpu_milli: 64_000,
            memory_bytes: 512 << 30,
            pods: 110,
            ..PodResources::default()
        },
        used: PodResources::default(),
        fabric: BTreeMap::new(),
        accelerator: BTreeMap::new(),
        filters: BTreeSet::from([NodeFilterId(0)]).into(),
        devices: (0..devices).map(device).collect(),
        counter_sets: Arc::default(),
    }
}

/// A node at a path of `fabric`, outside of it for an empty path.
pub(super) fn node_at(name: &str, path: &str, devices: usize) -> Node {
    let mut node = node(name, devices);
    if !path.is_empty() {
        let path = path.split('/').map(str::to_owned).collect();
        node.fabric.insert(fabric(), path);
    }
    node
}

/// A claim for any devices.
pub(super) fn claim(uid: &str, count: u32) -> Claim {
    Claim {
        uid: uid.into(),
        requests: vec![DeviceRequest::exactly("gpus", SelectorId(0), count)],
        constraints: Vec::new(),
        allocated: None,
    }
}

/// A pod that asks for a core, a GiB and a number of devices.
pub(super) fn pod(uid: &str, devices: u32) -> Pod {
    Pod {
        uid: uid.into(),
        resources: PodResources {
            cpu_milli: 1000,
            memory_bytes: 1 << 30,
            pods: 1,
            ..PodResources::default()
        },
        filter: NodeFilterId(0),
        claims: match devices {
            0 => Vec::new(),
            count => vec![claim(uid, count)],
        },
    }
}

/// A gang of these pods.
pub(super) fn gang(pods: Vec<Pod>) -> Gang {
    Gang {
        uid: "gang".into(),
        name: "team/gang".into(),
        attempt: 1,
        team: "team".into(),
        priority: 0,
        queued_at: Timestamp(0),
        may_borrow: true,
        topology: TopologyRequest::default(),
        run_time: crate::model::RunTime::default(),
        lacks_place_since: None,
        min_count: None,
        pods,
    }
}

/// A gang of equal pods.
pub(super) fn equal_pods(pods: usize, devices: u32) -> Gang {
    let pods = (0..pods).map(|rank| pod(&format!("p{rank}"), devices));
    gang(pods.collect())
}

/// A gang that requires a level.
pub(super) fn requiring(level: &str, mut gang: Gang) -> Gang {
    gang.topology.required = Some(level.into());
    gang
}

/// A hold of one claim by a pod of that name, its devices by number.
pub(super) fn hold(pod: &str, node: &str, devices: &[usize]) -> Hold {
    Hold {
        pod: pod.into(),
        gang: format!("gang-of-{pod}").into(),
        gang_name: format!("team/{pod}"),
        team: "team".into(),
        node: node.into(),
        charged_to_node: false,
        resources: PodResources {
            cpu_milli: 1000,
            memory_bytes: 1 << 30,
            pods: 1,
            ..PodResources::default()
        },
        charged: Vec::new(),
        claims: vec![HeldClaim {
            uid: ClaimUid::from(format!("claim-of-{pod}")),
            flavor: h100(),
            gpus: Amount::ZERO,
            vram: Amount::ZERO,
            request: None,
            devices: Some(devices.iter().map(|at| device(*at).name).collect()),
        }],
        releasing: false,
    }
}

/// A cluster of these nodes under a Topology of `spine` and `leaf`.
pub(super) fn cluster(nodes: impl IntoIterator<Item = Node>) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.set_topology(topology(&["spine", "leaf"]));
    for node in nodes {
        cluster.set_node(node);
    }
    cluster
}

/// Tells a cluster a hold.
pub(super) fn add(cluster: &mut Cluster, hold: Hold) {
    cluster.add_hold(&Arc::new(hold));
}

/// Asks with the request of a gang on the Flavor `h100` and the Topology `fabric`.
pub(super) fn asking<T>(gang: &Gang, ask: impl FnOnce(&Request<'_>) -> T) -> T {
    let demand = Demand::new(gang);
    ask(&Request {
        demand: &demand,
        flavor: Some(&h100()),
        most_per_device: None,
        topology: Some(&fabric()),
        wish: &gang.topology,
    })
}

/// The verdict on a gang in a view.
pub(super) fn judged(cluster: &Cluster, view: &View, gang: &Gang) -> Verdict {
    asking(gang, |request| {
        plan(cluster, view, request, &mut Effort::default())
    })
}

/// What can be said of a verdict without slots and versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Nodes rank by rank, and the domain.
    Placed(Vec<String>, Vec<String>),
    NoPlace,
    GaveUp,
}

/// A verdict in names.
pub(super) fn said(cluster: &Cluster, gang: &Gang, verdict: &Verdict) -> Said {
    let plan = match verdict {
        Verdict::Placed(plan) => plan,
        Verdict::NoPlace(_) => return Said::NoPlace,
        Verdict::GaveUp(_) => return Said::GaveUp,
    };
    let demand = Demand::new(gang);
    let mut nodes = vec![String::new(); gang.pods.len()];
    for placed in &plan.units {
        let name = &cluster.record(placed.slot).unwrap().node.name;
        for pod in &demand.classes[placed.class].units[placed.unit] {
            nodes[*pod] = name.to_string();
        }
    }
    Said::Placed(nodes, plan.domain.clone())
}

/// What is said of a gang as things are.
pub(super) fn now(cluster: &Cluster, gang: &Gang) -> Said {
    said(cluster, gang, &judged(cluster, &View::Now, gang))
}
