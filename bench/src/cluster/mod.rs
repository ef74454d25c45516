//! The cluster that is measured: any object of it is made when it is asked for, by its number, and nothing is kept.
//!
//! Of every 40 nodes, 32 are **large** (2 TiB) and have no free GPU; of the 8 **small** ones (512 GiB) three are full, two
//! half full and three empty: nine tenths of all GPUs are held. Teams alternate. Those with an even number have more quota
//! than there are GPUs, but each pod of their waiting gangs asks for more memory than a small node has: they wait for a
//! **place**. Those with an odd number have among them exactly the quota that their running gangs use: they wait for
//! **quota**, on nodes that would have room. Either kind has a tree of Cohorts of its own, three deep.

#[cfg(test)]
mod jobs;
mod objects;
mod pods;
mod quota;

use muster_cluster::object::Kind;
use serde_json::Value;

#[cfg(test)]
pub(crate) use jobs::{JobGang, job, rank_pod};
pub(crate) use objects::{LEDGERS, device_name, ledger_spec, node_name, object};
pub(crate) use pods::{BEGIN_SECONDS, allocated, arriving, running_key};
pub(crate) use quota::team_name;

/// GPUs of a node.
pub(crate) const GPUS_PER_NODE: usize = 8;
/// Nodes after which the mixture of full and free ones repeats.
pub(crate) const NODES_OF_MIXTURE: usize = 40;
/// Waiting gangs of a Team.
const GANGS_PER_TEAM: usize = 50;
/// Gangs after which the mixture of shapes repeats.
const GANGS_OF_MIXTURE: usize = 1000;
const LARGE_NODES_OF_MIXTURE: usize = 32;
const GIB: i64 = 1 << 30;
const LARGE_NODE_BYTES: i64 = 2048 * GIB;
const SMALL_NODE_BYTES: i64 = 512 * GIB;
/// What no two gangs ask for alike differs by a page.
const PAGE_BYTES: i64 = 4096;

/// Makes the object of that number.
pub(crate) type Make = Box<dyn Fn(&Cluster, usize) -> Value + Send + Sync>;

/// All objects of a kind.
pub(crate) struct Collection {
    pub(crate) kind: Kind,
    /// Where the API server has them, over all namespaces.
    pub(crate) path: &'static str,
    pub(crate) count: usize,
    pub(crate) make: Make,
}

/// What the waiting gangs of a Team lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Place,
    Quota,
}

/// The pods of a gang, and the GPUs of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) pods: usize,
    pub(crate) gpus: usize,
}

impl Shape {
    pub(crate) const fn new(pods: usize, gpus: usize) -> Self {
        Self { pods, gpus }
    }

    /// The shape of the gang of that number: of a thousand, 800 are 1x1, 150 1x8, 40 8x8, 8 64x8 and 2 512x1. (The factor
    /// has no divisor in common with a thousand, so shapes and Teams mix.)
    pub(crate) fn of_number(number: usize) -> Self {
        match number.wrapping_mul(7919) % GANGS_OF_MIXTURE {
            0..800 => Self::new(1, 1),
            800..950 => Self::new(1, 8),
            950..990 => Self::new(8, 8),
            990..998 => Self::new(64, 8),
            _ => Self::new(512, 1),
        }
    }
}

/// A gang that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingGang {
    pub(crate) number: usize,
    pub(crate) team: usize,
    pub(crate) shape: Shape,
    /// What each of its pods asks for.
    pub(crate) memory_bytes: i64,
}

impl WaitingGang {
    /// The gang of that number and its Team; it asks for memory of its own.
    pub(crate) fn of_team(number: usize, team: usize, shape: Shape) -> Self {
        let base = match lack_of_team(team) {
            Lack::Place => SMALL_NODE_BYTES + GIB,
            Lack::Quota => 8 * GIB,
        };
        let own = PAGE_BYTES * i64::try_from(number).unwrap_or(0);
        Self {
            number,
            team,
            shape,
            memory_bytes: base + own,
        }
    }
}

/// A gang of one that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningPod {
    pub(crate) number: usize,
    pub(crate) team: usize,
    pub(crate) node: usize,
    /// The first of its GPUs.
    pub(crate) first_gpu: usize,
    pub(crate) gpus: usize,
}

/// The cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) nodes: usize,
    pub(crate) teams: usize,
    pub(crate) running: Vec<RunningPod>,
    pub(crate) waiting: Vec<WaitingGang>,
    /// How many pods the waiting gangs before each have.
    pods_before: Vec<usize>,
    /// GPUs of each Team's quota.
    nominal: Vec<usize>,
}

/// What the gangs of a Team wait for.
pub(crate) fn lack_of_team(team: usize) -> Lack {
    if team.is_multiple_of(2) {
        Lack::Place
    } else {
        Lack::Quota
    }
}

/// Whether the node has 2 TiB.
fn is_large(node: usize) -> bool {
    node % NODES_OF_MIXTURE < LARGE_NODES_OF_MIXTURE
}

impl Cluster {
    /// Nine tenths full, with so many gangs that wait.
    pub(crate) fn busy(nodes: usize, gangs: usize) -> Self {
        let teams = (gangs / GANGS_PER_TEAM).max(2);
        let running = running(nodes, teams);
        let waiting = (0..gangs)
            .map(|number| WaitingGang::of_team(number, number % teams, Shape::of_number(number)));
        Self::new(nodes, teams, running, waiting.collect())
    }

    /// With nothing on it but these gangs that wait, and nobody who lacks quota.
    pub(crate) fn idle(nodes: usize, teams: usize, waiting: Vec<WaitingGang>) -> Self {
        Self {
            nominal: vec![nodes * GPUS_PER_NODE; teams],
            ..Self::new(nodes, teams, Vec::new(), waiting)
        }
    }

    fn new(
        nodes: usize,
        teams: usize,
        running: Vec<RunningPod>,
        waiting: Vec<WaitingGang>,
    ) -> Self {
        let mut before = 0;
        let pods_before = waiting.iter().map(|gang| {
            before += gang.shape.pods;
            before - gang.shape.pods
        });
        Self {
            nodes,
            teams,
            pods_before: pods_before.collect(),
            nominal: quota::nominal(nodes, teams, &running),
            running,
            waiting,
        }
    }

    /// All GPUs.
    pub(crate) fn gpus(&self) -> usize {
        self.nodes * GPUS_PER_NODE
    }

    /// The share of all GPUs that is held, in percent.
    pub(crate) fn full_percent(&self) -> f64 {
        let held: usize = self.running.iter().map(|pod| pod.gpus).sum();
        percent(held, self.gpus())
    }

    /// Everything there is, kind by kind.
    pub(crate) fn collections(&self) -> Vec<Collection> {
        let mut collections = self.objects_of_nodes();
        collections.extend(self.objects_of_quota());
        collections.extend(self.objects_of_gangs());
        collections
    }
}

/// A share in percent.
#[expect(
    clippy::cast_precision_loss,
    reason = "numbers of objects are far below 2^52"
)]
pub(crate) fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole as f64
}

/// What runs: on every fourth large node eight gangs with a GPU each, on the others one with all eight; on small nodes gangs
/// with a GPU each.
fn running(nodes: usize, teams: usize) -> Vec<RunningPod> {
    let mut running: Vec<RunningPod> = Vec::new();
    let mut of_lack = [0, 0];
    for node in 0..nodes {
        let (lack, pods, gpus) = match node % NODES_OF_MIXTURE {
            at if at < LARGE_NODES_OF_MIXTURE && at % 4 == 0 => (Lack::Place, GPUS_PER_NODE, 1),
            at if at < LARGE_NODES_OF_MIXTURE => (Lack::Place, 1, GPUS_PER_NODE),
            32..35 => (Lack::Quota, GPUS_PER_NODE, 1),
            35..37 => (Lack::Quota, GPUS_PER_NODE / 2, 1),
            _ => continue,
        };
        for pod in 0..pods {
            let (parity, teams) = match lack {
                Lack::Place => (0, teams.div_ceil(2)),
                Lack::Quota => (1, teams / 2),
            };
            let team = of_lack[parity] % teams * 2 + parity;
            of_lack[parity] += 1;
            running.push(RunningPod {
                number: running.len(),
                team,
                node,
                first_gpu: pod * gpus,
                gpus,
            });
        }
    }
    running
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn nine_tenths_of_all_gpus_are_held_each_by_one_gang() {
        let cluster = Cluster::busy(400, 1_000);
        assert!((cluster.full_percent() - 90.0).abs() < 1e-9);
        let mut holders: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for pod in &cluster.running {
            for gpu in pod.first_gpu..pod.first_gpu + pod.gpus {
                assert!(gpu < GPUS_PER_NODE);
                assert_eq!(holders.insert((pod.node, gpu), pod.number), None);
            }
        }
    }

    #[test]
    fn of_a_thousand_gangs_800_150_40_8_and_2_have_the_five_shapes() {
        let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for number in 0..1_000 {
            let shape = Shape::of_number(number);
            *counts.entry((shape.pods, shape.gpus)).or_default() += 1;
        }
        let expected = [
            ((1, 1), 800),
            ((1, 8), 150),
            ((8, 8), 40),
            ((64, 8), 8),
            ((512, 1), 2),
        ];
        assert_eq!(counts, BTreeMap::from(expected));
    }

    #[test]
    fn half_of_the_gangs_lack_a_place_and_no_two_ask_for_the_same_memory() {
        let cluster = Cluster::busy(400, 1_000);
        assert_eq!(cluster.teams, 20);
        let of_place = cluster
            .waiting
            .iter()
            .filter(|gang| lack_of_team(gang.team) == Lack::Place);
        assert_eq!(of_place.count(), 500);
        let memory = cluster.waiting.iter().map(|gang| gang.memory_bytes);
        assert_eq!(memory.collect::<BTreeSet<_>>().len(), 1_000);
    }

    #[test]
    fn teams_that_lack_quota_have_together_exactly_what_they_use() {
        let cluster = Cluster::busy(400, 2_000);
        let lacking = |team: &usize| lack_of_team(*team) == Lack::Quota;
        let nominal: usize = (0..cluster.teams)
            .filter(lacking)
            .map(|team| cluster.nominal[team])
            .sum();
        let running = cluster.running.iter().filter(|pod| lacking(&pod.team));
        assert_eq!(nominal, running.map(|pod| pod.gpus).sum::<usize>());
    }

    #[test]
    fn every_object_can_be_read_and_none_is_made_twice() {
        let cluster = Cluster::busy(NODES_OF_MIXTURE, 200);
        let mut keys = std::collections::BTreeSet::new();
        for collection in cluster.collections() {
            for number in 0..collection.count {
                let value = (collection.make)(&cluster, number);
                let object = object(collection.kind, value).unwrap();
                assert!(keys.insert(object.key()), "{:?}", object.key());
            }
        }
    }
}
