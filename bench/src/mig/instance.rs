//! Random clusters and requests: everything about one follows from its seed.

use std::fmt;

use anyhow::{Result, ensure};
use muster_sim::random::Random;
use serde::Serialize;

use super::{
    ask::Ask,
    card::{A30, A100, Card, H100, H200},
    fleet::Fleet,
};

/// Clusters by what GPUs they have.
const CLUSTERS: [(&str, &[Card]); 5] = [
    ("a30", &[A30]),
    ("a100-80gb", &[A100]),
    ("h100-80gb", &[H100]),
    ("h200", &[H200]),
    ("mixed", &[A30, A100, H100, H200]),
];
/// GPUs of a cluster.
const SIZES: [usize; 5] = [4, 8, 16, 32, 64];
/// GPUs of a node of a cluster of several products.
const PER_MIXED_NODE: usize = 4;
/// How much is asked for, in percent of what there is.
const LOADS: [u64; 6] = [60, 70, 80, 90, 100, 115];
/// Up to this load who is placed is a matter of packing. Beyond it is one of choice: whoever knows all that will come places more by
/// leaving out those who ask for much.
pub(super) const JUDGED_UP_TO_PERCENT: u64 = 100;

/// Which requests are frequent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mix {
    /// Any weights, drawn for the instance.
    Random,
    /// Each profile as often as each other.
    Even,
    /// The smaller the more often: each profile takes an equal part of the GPUs.
    Small,
    /// Alibaba's production trace of 2023 (`openb`), each share of a GPU as the smallest slice with so much compute.
    Openb,
    /// The same with more shares of GPUs.
    OpenbGpuShare40,
}

const MIXES: [Mix; 5] = [
    Mix::Random,
    Mix::Even,
    Mix::Small,
    Mix::Openb,
    Mix::OpenbGpuShare40,
];

/// How requests say what they need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Style {
    /// By profile, and whole GPUs.
    Profile,
    /// By memory, as the shorthand does: a ladder of alternatives.
    Memory,
}

/// Requests of the pod lists `default` and `gpushare40` of `openb`, where each that asks for a part of a GPU or for one of them gets the
/// smallest of 1, 2, 3, 4 or 7 sevenths that is not less (`hkust-adsl/kubernetes-scheduler-simulator` @8f3d6417).
const OPENB: [(u32, u64); 5] = [(1, 32), (2, 280), (3, 389), (4, 971), (7, 1_406)];
const OPENB_GPU_SHARE_40: [(u32, u64); 5] = [(1, 48), (2, 345), (3, 489), (4, 1_252), (7, 1_867)];
/// Compute slices of the cards for which these are counted.
const SEVENTHS: u32 = 7;

/// What an instance is, before anything arrives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Facts {
    pub(super) seed: u64,
    pub(super) cluster: &'static str,
    pub(super) gpus: usize,
    pub(super) mix: Mix,
    pub(super) style: Style,
    pub(super) load_percent: u64,
}

impl fmt::Display for Facts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            cluster,
            gpus,
            mix,
            style,
            load_percent,
        } = self;
        write!(
            formatter,
            "seed {seed}: {gpus} GPUs of {cluster}, {mix:?}, by {style:?}, load {load_percent} %"
        )
    }
}

/// A cluster, and what arrives.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) facts: Facts,
    pub(super) fleet: Fleet,
    /// By place in the fleet's requests, in the order in which they arrive.
    pub(super) arrivals: Vec<usize>,
}

impl Instance {
    /// The instance of a seed. Clusters, mixes, styles and loads take turns, so that so many seeds in a row have all of them.
    pub(super) fn new(seed: u64) -> Result<Self> {
        let mut random = Random::new(seed);
        let turn = usize::try_from(seed)?;
        let (cluster, cards) = CLUSTERS[turn % CLUSTERS.len()];
        let turn = turn / CLUSTERS.len();
        let mix = MIXES[turn % MIXES.len()];
        let style = if random.one_in(2) {
            Style::Profile
        } else {
            Style::Memory
        };
        let load_percent = LOADS[random.index(LOADS.len())];
        let nodes = nodes(cards, &mut random);
        let weighted = weighted(cards, mix, style, &mut random)?;
        let (asks, weights): (Vec<Ask>, Vec<u64>) = weighted.into_iter().unzip();
        let fleet = Fleet::new(&nodes, &asks)?;
        let arrivals = arrivals(&fleet, &asks, &weights, load_percent, &mut random)?;
        Ok(Self {
            facts: Facts {
                seed,
                cluster,
                gpus: fleet.gpus(),
                mix,
                style,
                load_percent,
            },
            fleet,
            arrivals,
        })
    }

    /// How many arrive of each.
    pub(super) fn asked(&self) -> Vec<u32> {
        let mut asked = vec![0; self.fleet.requests.len()];
        for ask in &self.arrivals {
            asked[*ask] += 1;
        }
        asked
    }
}

/// Nodes of one product, or small ones of several that take turns. There are at least two of those.
fn nodes(cards: &[Card], random: &mut Random) -> Vec<(Card, usize)> {
    let size = SIZES[random.index(SIZES.len())];
    let first = random.index(cards.len());
    let size = if cards.len() > 1 {
        size.max(2 * PER_MIXED_NODE)
    } else {
        size
    };
    let mut nodes = Vec::new();
    let mut left = size;
    while left > 0 {
        let card = cards[(first + nodes.len()) % cards.len()];
        let most = if cards.len() > 1 {
            PER_MIXED_NODE
        } else {
            card.per_node
        };
        let gpus = left.min(most);
        nodes.push((card, gpus));
        left -= gpus;
    }
    nodes
}

/// What is asked for, each with its weight. A profile with media engines, of which a GPU has one, is asked for by nobody.
fn weighted(
    cards: &[Card],
    mix: Mix,
    style: Style,
    random: &mut Random,
) -> Result<Vec<(Ask, u64)>> {
    let mut all: Vec<(Ask, u64)> = Vec::new();
    let mut add = |ask: Ask, weight: u64| match all.iter_mut().find(|(known, _)| *known == ask) {
        Some((_, known)) => *known += weight,
        None => all.push((ask, weight)),
    };
    for card in cards {
        let table = card.table()?;
        let plain = || {
            let profiles = table.profiles.iter();
            profiles.filter(|profile| !profile.name.ends_with("+me"))
        };
        for profile in plain() {
            // Of an openb request for so many sevenths, the slice of least compute, then of least memory, with so much.
            let of_openb = |counts: &[(u32, u64)]| -> u64 {
                let served = counts.iter().filter(|(sevenths, _)| {
                    let enough = plain().filter(|other| {
                        other.compute_slices * SEVENTHS >= sevenths * table.compute_slices
                    });
                    let least = enough.min_by_key(|it| (it.compute_slices, it.memory_slices));
                    least.is_some_and(|least| least.id == profile.id)
                });
                served.map(|(_, count)| count).sum()
            };
            let weight = match mix {
                // Squared, so that few are frequent.
                Mix::Random => random.between(1, 32).pow(2),
                Mix::Even => 1,
                Mix::Small => u64::from(840 / profile.memory_slices),
                Mix::Openb => of_openb(&OPENB),
                Mix::OpenbGpuShare40 => of_openb(&OPENB_GPU_SHARE_40),
            };
            let ask = match style {
                Style::Profile => Some(Ask::Profile(profile.name)),
                Style::Memory => card.sold_as(profile.memory_bytes()).map(Ask::Memory),
            };
            if let Some(ask) = ask.filter(|_| weight > 0) {
                add(ask, weight);
            }
        }
        if style == Style::Profile && card.is_offered_whole() {
            let weight = match mix {
                Mix::Random => random.between(1, 32).pow(2),
                Mix::Even => 1,
                Mix::Small => u64::from(840 / table.memory_slices),
                // Those are slices of all compute.
                Mix::Openb | Mix::OpenbGpuShare40 => 0,
            };
            if weight > 0 {
                add(Ask::Whole, weight);
            }
        }
    }
    Ok(all)
}

/// Requests one after the other, until what the cheapest devices for them are charged as is the load of the cluster.
fn arrivals(
    fleet: &Fleet,
    asks: &[Ask],
    weights: &[u64],
    load_percent: u64,
    random: &mut Random,
) -> Result<Vec<usize>> {
    let mut charges = Vec::with_capacity(asks.len());
    let mut offered = Vec::with_capacity(asks.len());
    for ((at, request), weight) in fleet.requests.iter().enumerate().zip(weights) {
        // A small cluster may lack a product.
        if let Some(charge) = fleet.least_charge(request) {
            charges.push(u64::try_from(charge)?);
            offered.push((at, *weight));
        }
    }
    ensure!(!offered.is_empty(), "the cluster has nothing of {asks:?}");
    let all: u64 = offered.iter().map(|(_, weight)| weight).sum();
    let most = u64::try_from(fleet.gpus())? * 1_000 * load_percent / 100;
    let mut arrivals = Vec::new();
    let mut charged = 0_u64;
    loop {
        let mut drawn = random.below(all);
        let chosen = offered.iter().zip(&charges).find(|((_, weight), _)| {
            let is_chosen = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_chosen
        });
        let Some(((ask, _), charge)) = chosen else {
            continue;
        };
        charged += *charge;
        if charged > most {
            return Ok(arrivals);
        }
        arrivals.push(*ask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openb_is_what_its_counts_say_on_cards_of_seven_and_of_four_parts() {
        let weights = |card: Card, style| {
            let mut random = Random::new(1);
            weighted(&[card], Mix::Openb, style, &mut random).unwrap()
        };
        assert_eq!(
            weights(H100, Style::Profile),
            [
                (Ask::Profile("1g.10gb"), 32),
                (Ask::Profile("2g.20gb"), 280),
                (Ask::Profile("3g.40gb"), 389),
                (Ask::Profile("4g.40gb"), 971),
                (Ask::Profile("7g.80gb"), 1_406),
            ]
        );
        assert_eq!(
            weights(H100, Style::Memory),
            [
                (Ask::Memory(10), 32),
                (Ask::Memory(20), 280),
                (Ask::Memory(40), 389 + 971),
                (Ask::Memory(80), 1_406),
            ]
        );
        assert_eq!(
            weights(A30, Style::Profile),
            [
                (Ask::Profile("1g.6gb"), 32),
                (Ask::Profile("2g.12gb"), 280 + 389),
                (Ask::Profile("4g.24gb"), 971 + 1_406),
            ]
        );
    }

    #[test]
    fn a_seed_is_always_the_same_instance_and_its_load_is_what_it_says() {
        for seed in 0..10 {
            let instance = Instance::new(seed).unwrap();
            let again = Instance::new(seed).unwrap();
            assert_eq!(instance.facts, again.facts);
            assert_eq!(instance.arrivals, again.arrivals);
            let fleet = &instance.fleet;
            let charges = instance.arrivals.iter().map(|ask| {
                let charge = fleet.least_charge(&fleet.requests[*ask]).unwrap();
                u64::try_from(charge).unwrap()
            });
            let charged: u64 = charges.sum();
            let load = instance.facts.load_percent * 10 * fleet.gpus() as u64;
            // One more, of at most one GPU, would be too much.
            assert!(
                charged <= load && charged + 1_000 > load,
                "{}",
                instance.facts
            );
        }
    }
}
