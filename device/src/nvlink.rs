//! NVLink groups, worked out from what each link leads to.

use std::collections::BTreeMap;

use crate::gpu::NvlinkGroups;

/// Where an active link leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// Straight to another GPU, named by PCI bus id.
    Gpu(String),
    /// To a switch, named by PCI bus id; all GPUs on it reach one another.
    Switch(String),
}

/// One active link of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index of the GPU.
    pub gpu: u32,
    /// What is at the other end.
    pub peer: Peer,
}

/// The groups of each GPU. `gpus` gives the PCI bus id of each index.
///
/// Pairs are made greedily in index order, the most links first; quads of pairs, where each of the four is linked
/// to each. Behind switches all are linked to all, so pairs and quads are neighbours in PCI order, which is
/// also the order in which GPUs are handed out.
pub fn groups(gpus: &BTreeMap<u32, String>, links: &[Link]) -> BTreeMap<u32, NvlinkGroups> {
    let weights = weights(gpus, links);
    let pairs = pairs(gpus, &weights);
    let quads = quads(&pairs, &weights);
    let groups = components(gpus, &weights);
    let first = |sets: &[Vec<u32>], index: u32| {
        let set = sets.iter().find(|set| set.contains(&index));
        set.and_then(|set| set.first()).copied().unwrap_or(index)
    };
    gpus.keys()
        .map(|&index| {
            let of = NvlinkGroups {
                pair: first(&pairs, index),
                quad: first(&quads, index),
                group: first(&groups, index),
            };
            (index, of)
        })
        .collect()
}

/// How many links two GPUs share; lower index first.
type Weights = BTreeMap<(u32, u32), u32>;

fn linked(weights: &Weights, one: u32, other: u32) -> bool {
    weights.contains_key(&(one.min(other), one.max(other)))
}

fn weights(gpus: &BTreeMap<u32, String>, links: &[Link]) -> Weights {
    let mut weights = Weights::new();
    let mut add = |one: u32, other: u32| {
        if one != other {
            *weights.entry((one.min(other), one.max(other))).or_default() += 1;
        }
    };
    for link in links {
        match &link.peer {
            // Counted from the lower end only: each end reports the link.
            Peer::Gpu(bus) => gpus
                .iter()
                .filter(|(index, peer)| *peer == bus && link.gpu < **index)
                .for_each(|(&index, _)| add(link.gpu, index)),
            Peer::Switch(_) => links
                .iter()
                .filter(|other| other.peer == link.peer && link.gpu < other.gpu)
                .for_each(|other| add(link.gpu, other.gpu)),
        }
    }
    weights
}

fn pairs(gpus: &BTreeMap<u32, String>, weights: &Weights) -> Vec<Vec<u32>> {
    let mut pairs: Vec<Vec<u32>> = Vec::new();
    for &index in gpus.keys() {
        if pairs.iter().any(|pair| pair.contains(&index)) {
            continue;
        }
        let partner = gpus
            .keys()
            .filter(|&&other| other > index && !pairs.iter().any(|pair| pair.contains(&other)))
            .filter_map(|&other| Some((*weights.get(&(index, other))?, other)))
            // Of equally many links the lowest index.
            .max_by_key(|&(links, other)| (links, std::cmp::Reverse(other)));
        if let Some((_, other)) = partner {
            pairs.push(vec![index, other]);
        }
    }
    pairs
}

fn quads(pairs: &[Vec<u32>], weights: &Weights) -> Vec<Vec<u32>> {
    let mut quads: Vec<Vec<u32>> = Vec::new();
    let taken = |quads: &[Vec<u32>], pair: &[u32]| {
        let first = pair.first();
        first.is_some_and(|first| quads.iter().any(|quad| quad.contains(first)))
    };
    for (position, pair) in pairs.iter().enumerate() {
        if taken(&quads, pair) {
            continue;
        }
        let all_linked = |other: &&Vec<u32>| {
            pair.iter()
                .all(|&one| other.iter().all(|&two| linked(weights, one, two)))
        };
        let partner = pairs
            .iter()
            .skip(position + 1)
            .filter(|other| !taken(&quads, other))
            .find(all_linked);
        if let Some(other) = partner {
            quads.push([pair.as_slice(), other.as_slice()].concat());
        }
    }
    quads
}

fn components(gpus: &BTreeMap<u32, String>, weights: &Weights) -> Vec<Vec<u32>> {
    let mut components: Vec<Vec<u32>> = Vec::new();
    for &index in gpus.keys() {
        let (connected, mut rest): (Vec<_>, Vec<_>) = components
            .into_iter()
            .partition(|set| set.iter().any(|&member| linked(weights, member, index)));
        let mut merged: Vec<u32> = connected.concat();
        merged.push(index);
        merged.sort_unstable();
        rest.push(merged);
        components = rest;
    }
    components
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bus(index: u32) -> String {
        format!("0000:{index:02x}:00.0")
    }

    fn gpus(count: u32) -> BTreeMap<u32, String> {
        (0..count).map(|index| (index, bus(index))).collect()
    }

    fn direct(edges: &[(u32, u32, u32)]) -> Vec<Link> {
        let both = |&(one, other, count): &(u32, u32, u32)| {
            let there = (0..count).map(move |_| (one, other));
            let back = (0..count).map(move |_| (other, one));
            there.chain(back).collect::<Vec<_>>()
        };
        let link = |(gpu, peer)| Link {
            gpu,
            peer: Peer::Gpu(bus(peer)),
        };
        edges.iter().flat_map(both).map(link).collect()
    }

    fn values(of: &BTreeMap<u32, NvlinkGroups>) -> Vec<(u32, u32, u32)> {
        of.values()
            .map(|groups| (groups.pair, groups.quad, groups.group))
            .collect()
    }

    #[test]
    fn without_links_each_gpu_is_alone() {
        let of = groups(&gpus(2), &[]);
        assert_eq!(values(&of), [(0, 0, 0), (1, 1, 1)]);
    }

    #[test]
    fn behind_switches_pairs_and_quads_are_neighbours_and_all_are_one_group() {
        let links: Vec<_> = (0..8)
            .flat_map(|gpu| {
                (0..4).map(move |switch| Link {
                    gpu,
                    peer: Peer::Switch(format!("switch-{switch}")),
                })
            })
            .collect();
        assert_eq!(
            values(&groups(&gpus(8), &links)),
            [
                (0, 0, 0),
                (0, 0, 0),
                (2, 0, 0),
                (2, 0, 0),
                (4, 4, 0),
                (4, 4, 0),
                (6, 4, 0),
                (6, 4, 0)
            ]
        );
    }

    #[test]
    fn bridged_pairs_have_no_quad() {
        let links = direct(&[(0, 2, 12), (1, 3, 12)]);
        assert_eq!(
            values(&groups(&gpus(4), &links)),
            [(0, 0, 0), (1, 1, 1), (0, 2, 0), (1, 3, 1)]
        );
    }

    #[test]
    fn a_pair_is_where_the_most_links_are() {
        // The first quad of a V100 hybrid cube mesh: double links 0-3 and 1-2.
        let links = direct(&[
            (0, 1, 1),
            (0, 2, 1),
            (0, 3, 2),
            (1, 2, 2),
            (1, 3, 1),
            (2, 3, 1),
        ]);
        assert_eq!(
            values(&groups(&gpus(4), &links)),
            [(0, 0, 0), (1, 0, 0), (1, 0, 0), (0, 0, 0)]
        );
    }
}
