//! In which order the GPUs stand that have a slice of their own, and when one of them may move.
//!
//! kube-scheduler takes the first device that fits, of slices in the order of their names, which begin with their position. So GPUs that are
//! cut stand before pristine ones, which stay whole as long as there is room elsewhere; and among these, the neighbours in `NVLink` of
//! a GPU that is cut before those of a group that is still whole, and the members of one group together.
//!
//! A move changes two slices, so it gives all slices a new generation, and until the last of them is written kube-scheduler finds the pool
//! incomplete and passes over it. Therefore [`Moves`]: one at a time, at most once a minute, and not while a pod that was let go to this
//! node lacks its devices. It is let go only after its permit stands in `NodeDevices`, which names its claims, and a claim that was prepared is
//! on disk; so a live permit for a claim without a record says that its allocation may be under way. What it does not see is a permit that
//! the watch has yet to show: for that pod the pool is incomplete for as long as a few writes take, and kube-scheduler tries it again when the
//! slices change.
//!
//! Where permits are not enforced (in Observe, or while nobody has said so yet) pods need none, so nobody can tell who waits, and **no GPU
//! moves** ([`tells_who_waits`]). kube-scheduler still takes the first device that fits, in the order that was right when the slices were
//! published anew. The price: a GPU that is cut stays behind whole ones that stand before it, so claims may cut more GPUs than they need.
//!
//! No move takes a device out of the pool or renames it: what is allocated stays allocated.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use k8s_openapi::api::resource::v1::ResourceSlice;
use muster_api::{ClaimByName, NodeDevices, keys};

use super::{desired::Offering, plan};
use crate::{
    inventory::{KnownGpu, KnownGpus},
    mig::Policy,
};

/// Shortest time between two moves.
const APART: Duration = Duration::from_mins(1);

/// What a GPU's place depends on, ascending: how far its surroundings are cut, then which group it belongs to. Equal ones stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    kind: Surroundings,
    group: u32,
    quad: u32,
    pair: u32,
}

/// The nearest surroundings of a GPU that are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Surroundings {
    Itself,
    Pair,
    Quad,
    Group,
    Nothing,
}

/// The GPUs that have a slice of their own, with their rank, by index.
fn ranked<'a>(known: &'a KnownGpus, policy: &Policy) -> Vec<(&'a KnownGpu, Rank)> {
    let own: Vec<&KnownGpu> = known
        .gpus
        .iter()
        .filter(|gpu| match Offering::of(gpu, policy) {
            Offering::Whole => false,
            // Without a slice it has nothing to show.
            Offering::Existing => gpu.existing().next().is_some(),
            Offering::Every { .. } => true,
        })
        .collect();
    let cut: Vec<&KnownGpu> = own
        .iter()
        .copied()
        .filter(|gpu| !gpu.instances.is_empty())
        .collect();
    let rank = |gpu: &KnownGpu| {
        let links = &gpu.gpu.nvlink;
        let any = |is_near: &dyn Fn(&KnownGpu) -> bool| cut.iter().any(|other| is_near(other));
        let kind = if !gpu.instances.is_empty() {
            Surroundings::Itself
        } else if any(&|other| other.gpu.nvlink.pair == links.pair) {
            Surroundings::Pair
        } else if any(&|other| other.gpu.nvlink.quad == links.quad) {
            Surroundings::Quad
        } else if any(&|other| other.gpu.nvlink.group == links.group) {
            Surroundings::Group
        } else {
            Surroundings::Nothing
        };
        Rank {
            kind,
            group: links.group,
            quad: links.quad,
            pair: links.pair,
        }
    };
    own.into_iter().map(|gpu| (gpu, rank(gpu))).collect()
}

/// All GPUs that have a slice of their own, by UUID: those that stand somewhere keep their order, the others follow by their rank.
pub fn arranged(known: &KnownGpus, policy: &Policy, standing: &[String]) -> Vec<String> {
    let mut ranked = ranked(known, policy);
    ranked.sort_by_key(|(_, rank)| *rank);
    let all: BTreeSet<&str> = ranked
        .iter()
        .map(|(gpu, _)| gpu.gpu.uuid.as_str())
        .collect();
    let mut standing: Vec<&str> = standing.iter().map(String::as_str).collect();
    standing.retain(|uuid| all.contains(uuid));
    let mut seen = BTreeSet::new();
    standing.retain(|uuid| seen.insert(*uuid));
    let new = ranked.iter().map(|(gpu, _)| gpu.gpu.uuid.as_str());
    let new: Vec<&str> = new.filter(|uuid| !seen.contains(uuid)).collect();
    standing.extend(new);
    standing.into_iter().map(str::to_owned).collect()
}

/// The move that brings a GPU to where it should stand: the two that change places. `None`: all stand right.
pub fn next_move(
    known: &KnownGpus,
    policy: &Policy,
    standing: &[String],
) -> Option<(usize, usize)> {
    let ranks: BTreeMap<&str, Rank> = ranked(known, policy)
        .into_iter()
        .map(|(gpu, rank)| (gpu.gpu.uuid.as_str(), rank))
        .collect();
    let rank = |position: usize| {
        let uuid = standing.get(position)?;
        ranks.get(uuid.as_str()).copied()
    };
    (0..standing.len()).find_map(|position| {
        let here = rank(position)?;
        // Of equals the nearest.
        let better = (position + 1..standing.len())
            .filter_map(|other| Some((rank(other)?, other)))
            .min()?;
        (better.0 < here).then_some((position, better.1))
    })
}

/// In which order the GPUs stand in these slices, by UUID.
pub fn standing<'a>(slices: impl Iterator<Item = &'a ResourceSlice>) -> Vec<String> {
    let mut found: Vec<(usize, String)> = slices
        .filter_map(|slice| {
            let device = slice.spec.devices.as_ref()?.first()?;
            let attributes = device.attributes.as_ref()?;
            let uuid = attributes.get("parentUUID")?.string.clone()?;
            Some((plan::position(slice)?, uuid))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, uuid)| uuid).collect()
}

/// Whether permits say which pods may be waiting for devices of this node: elsewhere pods need none.
pub fn tells_who_waits(node_devices: &NodeDevices) -> bool {
    node_devices.spec.enforce
}

/// The claims that a live permit of this node names and that have no record: their pods may be waiting for devices. What kube-scheduler makes for
/// a pod that asks by the name of a resource is named, and recorded, by what it is permitted as.
pub fn awaited<'a>(
    node_devices: &'a NodeDevices,
    recorded: &BTreeSet<String>,
) -> BTreeSet<&'a str> {
    let permits = node_devices.spec.permits.iter();
    let live = permits.filter(|permit| !permit.withdrawn && !permit.of_other_driver);
    live.flat_map(|permit| &permit.claim_uids)
        // What a device plugin hands out is no claim.
        .filter(|uid| {
            let name = ClaimByName::parse(uid);
            name.is_none_or(|name| name.device_class() == Some(keys::DEVICE_CLASS_GPU))
        })
        .filter(|uid| !recorded.contains(*uid))
        .map(String::as_str)
        .collect()
}

/// When GPUs moved.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    last: Instant,
}

impl Moves {
    /// What an earlier instance did is not known: the first move waits a minute.
    pub fn new(now: Instant) -> Self {
        Self { last: now }
    }

    /// Whether a GPU may move by now.
    pub fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= APART
    }

    /// One moved.
    pub fn moved(&mut self, now: Instant) {
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use muster_api::{NodeDevicesSpec, Permit};
    use muster_device::{Listed, ListedGpu, MigInstance, NvlinkGroups, Placement};

    use super::*;
    use crate::{
        inventory::fixtures::{gpu, h100},
        mig::{Mode, Toggle},
    };

    fn policy() -> Policy {
        Policy {
            mode: Mode::Dynamic,
            toggle: Toggle::WhenIdle,
            ..Policy::default()
        }
    }

    /// Eight GPUs behind switches, of which these are cut.
    fn board(cut: &[u32]) -> KnownGpus {
        let listed = |index: u32| {
            let mut gpu = gpu(&format!("GPU-{index}"), index, &format!("{index}"));
            gpu.nvlink = NvlinkGroups {
                pair: index & !1,
                quad: index & !3,
                group: 0,
            };
            gpu.mig = Some(h100(cut.contains(&index)));
            ListedGpu { gpu, silent: None }
        };
        let listed = Listed {
            gpus: (0..8).map(listed).collect(),
            unidentified: Vec::new(),
        };
        let slice = MigInstance {
            placement: Placement { start: 6, size: 1 },
            gpu_instance: 1,
            compute_instance: Some(0),
            is_divided: false,
            profile: 19,
            uuid: Some("MIG-1".to_owned()),
        };
        let instances = (0..8)
            .map(|index| {
                let slices = cut.iter().filter(|it| **it == index);
                let slices = slices.map(|_| slice.clone()).collect();
                (format!("GPU-{index}"), slices)
            })
            .collect();
        KnownGpus::default()
            .after("boot", &listed)
            .with_instances(&instances, |_, _| false)
    }

    fn numbers(standing: &[String]) -> Vec<u32> {
        let number = |uuid: &String| uuid.trim_start_matches("GPU-").parse().unwrap();
        standing.iter().map(number).collect()
    }

    fn settled(cut: &[u32], standing: &mut Vec<String>) -> usize {
        let known = board(cut);
        let mut moves = 0;
        while let Some((one, other)) = next_move(&known, &policy(), standing) {
            standing.swap(one, other);
            moves += 1;
            assert!(moves <= 8, "{standing:?}");
        }
        moves
    }

    #[test]
    fn gpus_that_are_cut_come_first_then_their_neighbours_and_whole_groups_last() {
        let mut standing = arranged(&board(&[]), &policy(), &[]);
        assert_eq!(numbers(&standing), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(settled(&[], &mut standing), 0);
        settled(&[5], &mut standing);
        assert_eq!(numbers(&standing)[..2], [5, 4]);
        let quad: BTreeSet<u32> = numbers(&standing)[2..4].iter().copied().collect();
        assert_eq!(quad, BTreeSet::from([6, 7]));
        // The other quad is whole, and its pairs stand together.
        let rest = numbers(&standing)[4..].to_vec();
        assert!(rest.iter().all(|number| *number < 4), "{rest:?}");
        assert_eq!(rest[0] / 2, rest[1] / 2, "{rest:?}");
        // Whatever is published anew is arranged at once.
        let fresh = arranged(&board(&[5]), &policy(), &[]);
        assert_eq!(numbers(&fresh), [5, 4, 6, 7, 0, 1, 2, 3]);
    }

    #[test]
    fn whatever_is_cut_and_freed_the_moves_come_to_rest_and_lose_nobody() {
        let mut standing = arranged(&board(&[]), &policy(), &[]);
        // All sets of up to three GPUs, one after the other.
        for first in 0..8 {
            for second in 0..8 {
                for third in [0, 3, 6] {
                    let cut = [first, second, third];
                    settled(&cut, &mut standing);
                    let mut all = numbers(&standing);
                    let is_cut = |number: &u32| cut.contains(number);
                    let count = (0..8).filter(is_cut).count();
                    assert!(all[..count].iter().all(is_cut), "{cut:?}: {all:?}");
                    all.sort_unstable();
                    assert_eq!(all, (0..8).collect::<Vec<u32>>());
                }
            }
        }
    }

    #[test]
    fn a_gpu_in_mig_mode_without_slices_has_no_place_and_moves_nobody() {
        let mut known = board(&[5]);
        known.gpus[2].gpu.mig = Some(h100(true));
        let policy = Policy::default();
        let standing = arranged(&known, &policy, &[]);
        assert_eq!(numbers(&standing), [5]);
        assert_eq!(next_move(&known, &policy, &standing), None);
    }

    #[test]
    fn who_stands_stays_and_only_the_new_take_what_is_free() {
        let uuid = |number: u32| format!("GPU-{number}");
        let standing = [uuid(3), uuid(9), uuid(1), uuid(3)];
        let arranged = arranged(&board(&[5]), &policy(), &standing);
        assert_eq!(numbers(&arranged), [3, 1, 5, 4, 6, 7, 0, 2]);
    }

    #[test]
    fn a_move_waits_for_a_minute_and_for_claims_that_are_permitted_and_not_recorded() {
        let now = Instant::now();
        let mut moves = Moves::new(now);
        for (second, is_due) in [(0, false), (59, false), (60, true), (61, true)] {
            assert_eq!(moves.is_due(now + Duration::from_secs(second)), is_due);
        }
        moves.moved(now + Duration::from_secs(60));
        assert!(!moves.is_due(now + Duration::from_secs(119)));
        assert!(moves.is_due(now + Duration::from_secs(120)));

        let by_name =
            |pod: &str| format!("{pod}/deviceclass.resource.kubernetes.io/gpu.muster.dev");
        let permit = |uids: &[&str], withdrawn: bool| Permit {
            claim_uids: uids.iter().map(|uid| (*uid).to_owned()).collect(),
            withdrawn,
            ..Permit::default()
        };
        let spec = NodeDevicesSpec {
            permits: vec![
                permit(&["prepared", "pending"], false),
                permit(&["withdrawn"], true),
                permit(&["p-1/nvidia.com/gpu"], false),
                permit(&[&by_name("p-2"), &by_name("p-3")], false),
                Permit {
                    of_other_driver: true,
                    ..permit(&["other"], false)
                },
            ],
            ..NodeDevicesSpec::default()
        };
        let object = NodeDevices::new("node", spec);
        let recorded = BTreeSet::from(["prepared".to_owned(), by_name("p-2")]);
        assert_eq!(
            awaited(&object, &recorded),
            BTreeSet::from(["pending", by_name("p-3").as_str()])
        );
    }
}
