//! What is left of a node besides devices: amounts, host ports, and whom its pods repel.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::Cause;
use crate::{
    model::{HostPort, PodResources},
    names::{PodSelectorId, ResourceName},
};

/// More units of one gang than any node holds; stands for "no limit".
pub(crate) const NO_LIMIT: usize = 1 << 16;

/// What is left of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Room {
    /// Thousandths of cores; negative, as everything here, where more is used than there is.
    cpu_milli: i64,
    memory_bytes: i64,
    pods: i64,
    others: BTreeMap<ResourceName, i64>,
    host_ports: BTreeSet<HostPort>,
    repels: BTreeSet<PodSelectorId>,
    matched_by: BTreeSet<PodSelectorId>,
}

/// Binary digits after the first by which amounts of cpu, memory and resources are told apart: those of a
/// [cell](Room::cell) differ by less than a sixteenth. (Pods are not told apart within a power of two.)
const CELL_STEPS: u32 = 4;

/// The least and the most of the amounts that agree with this one in the first digit and in so many after it.
fn cell_of(amount: i64, steps: u32) -> (i64, i64) {
    let amount = amount.max(0);
    let digits = amount.checked_ilog2().unwrap_or(0).saturating_sub(steps);
    let least = amount >> digits << digits;
    (least, least + ((1 << digits) - 1))
}

fn conflict(one: &HostPort, other: &HostPort) -> bool {
    one.port == other.port
        && one.protocol == other.protocol
        && (one.ip.is_none() || other.ip.is_none() || one.ip == other.ip)
}

fn ports_conflict(ones: &BTreeSet<HostPort>, others: &BTreeSet<HostPort>) -> bool {
    ones.iter()
        .any(|one| others.iter().any(|other| conflict(one, other)))
}

/// Whether pods that ask for these may not run on one node, however large it is.
pub(crate) fn exclude_each_other(one: &PodResources, other: &PodResources) -> bool {
    ports_conflict(&one.host_ports, &other.host_ports)
        || !one.repels.is_disjoint(&other.matched_by)
        || !other.repels.is_disjoint(&one.matched_by)
}

impl Room {
    /// An empty node.
    pub(crate) fn of(allocatable: &PodResources) -> Self {
        Self {
            cpu_milli: allocatable.cpu_milli,
            memory_bytes: allocatable.memory_bytes,
            pods: allocatable.pods,
            others: allocatable.others.clone(),
            ..Self::default()
        }
    }

    /// Takes what a pod asks for, whether it is there or not.
    pub(crate) fn take(&mut self, asked: &PodResources) {
        self.cpu_milli = self.cpu_milli.saturating_sub(asked.cpu_milli);
        self.memory_bytes = self.memory_bytes.saturating_sub(asked.memory_bytes);
        self.pods = self.pods.saturating_sub(asked.pods);
        for (name, amount) in &asked.others {
            match self.others.get_mut(name) {
                Some(left) => *left = left.saturating_sub(*amount),
                None => {
                    self.others
                        .insert(name.clone(), 0_i64.saturating_sub(*amount));
                }
            }
        }
        self.host_ports.extend(asked.host_ports.iter().cloned());
        self.repels.extend(&asked.repels);
        self.matched_by.extend(&asked.matched_by);
    }

    /// What is left if one pod is there in place of another. `None` if amounts do not tell it: host ports and whom pods repel may
    /// be another pod's, too; what is missing in an empty node is listed for as long as somebody asks for it; and what
    /// overflowed once is forgotten.
    pub(crate) fn replaced(
        &self,
        empty: &Self,
        before: Option<&PodResources>,
        after: Option<&PodResources>,
    ) -> Option<Self> {
        let mut left = self.clone();
        if let Some(before) = before {
            left.exchange(empty, before, i64::checked_add)?;
        }
        if let Some(after) = after {
            left.exchange(empty, after, i64::checked_sub)?;
        }
        Some(left)
    }

    /// Gives back or takes all amounts of a pod that asks for nothing else.
    fn exchange(
        &mut self,
        empty: &Self,
        asked: &PodResources,
        by: impl Fn(i64, i64) -> Option<i64>,
    ) -> Option<()> {
        let is_told_by_amounts =
            asked.host_ports.is_empty() && asked.repels.is_empty() && asked.matched_by.is_empty();
        if !is_told_by_amounts {
            return None;
        }
        let exchange = |left: &mut i64, amount: i64| {
            let is_exact = *left != i64::MIN && *left != i64::MAX;
            *left = by(*left, amount).filter(|_| is_exact)?;
            Some(())
        };
        exchange(&mut self.cpu_milli, asked.cpu_milli)?;
        exchange(&mut self.memory_bytes, asked.memory_bytes)?;
        exchange(&mut self.pods, asked.pods)?;
        for (name, amount) in &asked.others {
            empty.others.get(name)?;
            exchange(self.others.get_mut(name)?, *amount)?;
        }
        Some(())
    }

    /// How many times what is asked for is left, at least once; otherwise what lacks first.
    pub(crate) fn times(&self, asked: &PodResources) -> Result<usize, Cause> {
        let mut most = NO_LIMIT;
        let mut limit = |left: i64, asked: i64, cause: Cause| {
            if asked <= 0 {
                return Ok(());
            }
            let times = usize::try_from(left / asked).unwrap_or(0);
            if times == 0 {
                return Err(cause);
            }
            most = most.min(times);
            Ok(())
        };
        limit(self.cpu_milli, asked.cpu_milli, Cause::Cpu)?;
        limit(self.memory_bytes, asked.memory_bytes, Cause::Memory)?;
        limit(self.pods, asked.pods, Cause::Pods)?;
        for (name, amount) in &asked.others {
            let left = self.others.get(name).copied().unwrap_or(0);
            limit(left, *amount, Cause::Resource(name.clone()))?;
        }
        if ports_conflict(&self.host_ports, &asked.host_ports) {
            return Err(Cause::HostPort);
        }
        if !self.repels.is_disjoint(&asked.matched_by)
            || !asked.repels.is_disjoint(&self.matched_by)
        {
            return Err(Cause::AntiAffinity);
        }
        if exclude_each_other(asked, asked) {
            most = 1;
        }
        Ok(most)
    }

    /// The least and the most of all rooms that are much the same as this one. Of what is overdrawn nothing is left.
    pub(crate) fn cell(&self) -> (Self, Self) {
        let (mut least, mut most) = (self.clone(), self.clone());
        let around = |amount: i64, (least, most): (&mut i64, &mut i64), steps: u32| {
            (*least, *most) = cell_of(amount, steps);
        };
        let ends = (&mut least.cpu_milli, &mut most.cpu_milli);
        around(self.cpu_milli, ends, CELL_STEPS);
        let ends = (&mut least.memory_bytes, &mut most.memory_bytes);
        around(self.memory_bytes, ends, CELL_STEPS);
        around(self.pods, (&mut least.pods, &mut most.pods), 0);
        let others = least.others.values_mut().zip(most.others.values_mut());
        for (amount, ends) in self.others.values().zip(others) {
            around(*amount, ends, CELL_STEPS);
        }
        (least, most)
    }

    /// Whether nothing that fits here would not fit into the other.
    pub(crate) fn lies_within(&self, other: &Self) -> bool {
        let amounts = |name| self.others.get(name) <= other.others.get(name);
        self.cpu_milli <= other.cpu_milli
            && self.memory_bytes <= other.memory_bytes
            && self.pods <= other.pods
            && self.others.keys().all(amounts)
            && self.host_ports.is_superset(&other.host_ports)
            && self.repels.is_superset(&other.repels)
            && self.matched_by.is_superset(&other.matched_by)
    }
}

/// The most that is left of each amount on any of several nodes: an upper bound for each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Largest {
    cpu_milli: i64,
    memory_bytes: i64,
    pods: i64,
    others: BTreeMap<ResourceName, i64>,
}

impl Largest {
    /// Takes a node in.
    pub(crate) fn raise(&mut self, room: &Room) {
        self.raise_to(room.cpu_milli, room.memory_bytes, room.pods, &room.others);
    }

    /// Takes the nodes of another bound in.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.raise_to(
            other.cpu_milli,
            other.memory_bytes,
            other.pods,
            &other.others,
        );
    }

    fn raise_to(
        &mut self,
        cpu_milli: i64,
        memory_bytes: i64,
        pods: i64,
        others: &BTreeMap<ResourceName, i64>,
    ) {
        self.cpu_milli = self.cpu_milli.max(cpu_milli);
        self.memory_bytes = self.memory_bytes.max(memory_bytes);
        self.pods = self.pods.max(pods);
        for (name, amount) in others {
            match self.others.get_mut(name) {
                Some(most) => *most = (*most).max(*amount),
                None => {
                    self.others.insert(name.clone(), *amount);
                }
            }
        }
    }

    /// Whether some node may have what is asked for; `false` is certain.
    pub(crate) fn may_hold(&self, asked: &PodResources) -> bool {
        let others = |(name, amount): (&ResourceName, &i64)| {
            *amount <= self.others.get(name).copied().unwrap_or(0).max(0)
        };
        asked.cpu_milli <= self.cpu_milli.max(0)
            && asked.memory_bytes <= self.memory_bytes.max(0)
            && asked.pods <= self.pods.max(0)
            && asked.others.iter().all(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::HostPortProtocol;

    fn asking(others: &[(&str, i64)]) -> PodResources {
        PodResources {
            others: others
                .iter()
                .map(|(name, amount)| ((*name).into(), *amount))
                .collect(),
            ..PodResources::default()
        }
    }

    fn port(ip: Option<[u8; 4]>, port: u16, protocol: HostPortProtocol) -> PodResources {
        PodResources {
            host_ports: BTreeSet::from([HostPort {
                protocol,
                ip: ip.map(Into::into),
                port,
            }]),
            ..PodResources::default()
        }
    }

    #[test]
    fn every_listed_resource_is_counted_and_an_unlisted_one_is_not_there() {
        let efa = "vpc.amazonaws.com/efa";
        let node = Room::of(&asking(&[(efa, 32), ("hugepages-2Mi", 1 << 30)]));
        let table = [
            (asking(&[(efa, 8)]), Ok(4)),
            (asking(&[(efa, 32)]), Ok(1)),
            (asking(&[(efa, 33)]), Err(Cause::Resource(efa.into()))),
            (asking(&[(efa, 8), ("hugepages-2Mi", 1 << 29)]), Ok(2)),
            (
                asking(&[("rdma/hca", 1)]),
                Err(Cause::Resource("rdma/hca".into())),
            ),
            (asking(&[("rdma/hca", 0)]), Ok(NO_LIMIT)),
        ];
        for (asked, expected) in table {
            assert_eq!(node.times(&asked), expected, "{asked:?}");
        }
    }

    #[test]
    fn more_units_than_any_node_holds_count_as_so_many() {
        let most = i64::try_from(NO_LIMIT).unwrap();
        for (pods, expected) in [
            (most - 1, NO_LIMIT - 1),
            (most, NO_LIMIT),
            (2 * most, NO_LIMIT),
        ] {
            let node = Room::of(&PodResources {
                pods,
                ..PodResources::default()
            });
            let one = PodResources {
                pods: 1,
                ..PodResources::default()
            };
            assert_eq!(node.times(&one), Ok(expected));
        }
    }

    #[test]
    fn a_cell_holds_the_amount_and_its_neighbours() {
        let table = [
            (-7, (0, 0)),
            (0, (0, 0)),
            (31, (31, 31)),
            (32, (32, 33)),
            (190_000, (188_416, 196_607)),
            (i64::MAX, (31 << 58, i64::MAX)),
        ];
        for (amount, expected) in table {
            assert_eq!(cell_of(amount, CELL_STEPS), expected, "{amount}");
        }
        assert_eq!(cell_of(250, 0), (128, 255));
    }

    #[test]
    fn host_ports_conflict_as_for_kube_scheduler() {
        use HostPortProtocol::{Tcp, Udp};
        let one = Some([10, 0, 0, 1]);
        let other = Some([10, 0, 0, 2]);
        let table = [
            (port(None, 80, Tcp), port(None, 80, Tcp), true),
            (port(None, 80, Tcp), port(None, 81, Tcp), false),
            (port(None, 80, Tcp), port(None, 80, Udp), false),
            (port(one, 80, Tcp), port(other, 80, Tcp), false),
            (port(one, 80, Tcp), port(one, 80, Tcp), true),
            (port(one, 80, Tcp), port(None, 80, Tcp), true),
        ];
        for (there, asked, conflict) in table {
            let mut node = Room::default();
            node.take(&there);
            assert_eq!(node.times(&asked).is_err(), conflict, "{there:?} {asked:?}");
            assert_eq!(exclude_each_other(&there, &asked), conflict);
            assert_eq!(exclude_each_other(&asked, &there), conflict);
        }
    }

    #[test]
    fn anti_affinity_works_both_ways_and_against_copies() {
        let selector = PodSelectorId(7);
        let matched = PodResources {
            matched_by: BTreeSet::from([selector]),
            ..PodResources::default()
        };
        let repelling = PodResources {
            repels: BTreeSet::from([selector]),
            ..PodResources::default()
        };
        let both = PodResources {
            repels: BTreeSet::from([selector]),
            ..matched.clone()
        };
        assert_eq!(Room::default().times(&both), Ok(1));
        assert_eq!(Room::default().times(&matched), Ok(NO_LIMIT));
        assert_eq!(Room::default().times(&repelling), Ok(NO_LIMIT));
        for (there, asked) in [(&matched, &repelling), (&repelling, &matched)] {
            let mut node = Room::default();
            node.take(there);
            assert_eq!(node.times(asked), Err(Cause::AntiAffinity));
        }
    }
}
