//! What somebody could do who knows all requests beforehand: an integer program over the ways to cut each GPU, solved to proof.
//!
//! How many GPUs of a product are cut in which way is one whole number for each way ([`super::packings`]); how many requests of a kind get
//! which kind of device is another. GPUs of a product are alike whatever node they are on, for a request asks for one device. Kinds of devices
//! that satisfy the same requests count as one, and a way to cut that gives no more of any than another is left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::{Result, bail, ensure};
use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, Variable};

use super::{
    card::Card,
    fleet::{Fleet, satisfies},
    packings::{Cuts, Kind, Packing},
};

/// Which requests a kind of device satisfies, by their place.
type Serves = BTreeSet<usize>;

/// The GPUs of one product.
#[derive(Debug)]
struct Product {
    gpus: i32,
    /// Kinds of devices, each by what it serves.
    classes: Vec<Serves>,
    /// Ways to cut one: how many of each class.
    packings: Vec<Vec<u32>>,
}

/// A cluster, and which requests its devices satisfy.
#[derive(Debug)]
pub(super) struct Optimum {
    products: Vec<Product>,
    time_limit: Duration,
}

/// What came of the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// It is the optimum.
    Optimal(u32),
    /// Nothing was proved within the time.
    None,
}

/// What is asked of the integer program.
#[derive(Clone, Copy, Debug)]
enum Goal {
    MostPlaced,
    FewestGpus,
}

impl Optimum {
    /// Of a cluster; each question is given up after so long.
    pub(super) fn of(fleet: &Fleet, cuts: &mut Cuts, time_limit: Duration) -> Result<Self> {
        let mut gpus: BTreeMap<Card, usize> = BTreeMap::new();
        let mut serves: BTreeMap<(Card, Kind), Serves> = BTreeMap::new();
        for node in &fleet.nodes {
            *gpus.entry(node.card).or_default() += node.gpus;
            for (device, part) in node.node.devices.iter().zip(&node.parts) {
                let requests = fleet.requests.iter().enumerate();
                let served = requests.filter(|(_, request)| satisfies(device, request));
                let served = served.map(|(at, _)| at);
                let kind = (node.card, Kind::of(*part));
                serves.entry(kind).or_default().extend(served);
            }
        }
        let products = gpus.into_iter().map(|(card, gpus)| {
            let of_kind = |kind: Kind| serves.get(&(card, kind)).filter(|it| !it.is_empty());
            Product::new(gpus, cuts.of(card)?, &of_kind)
        });
        Ok(Self {
            products: products.collect::<Result<_>>()?,
            time_limit,
        })
    }

    /// How many requests can be placed at the most, of so many of each.
    pub(super) fn most_placed(&self, requests: &[u32]) -> Result<Proof> {
        self.solve(requests, Goal::MostPlaced)
    }

    /// How many GPUs it takes at the least to place all of these, which can be placed.
    pub(super) fn fewest_gpus(&self, requests: &[u32]) -> Result<Proof> {
        self.solve(requests, Goal::FewestGpus)
    }

    fn solve(&self, requests: &[u32], goal: Goal) -> Result<Proof> {
        if requests.iter().all(|count| *count == 0) {
            return Ok(Proof::Optimal(0));
        }
        let (direction, of_gpu, of_request, placed) = match goal {
            Goal::MostPlaced => (OptimizationDirection::Maximize, 0.0, 1.0, ComparisonOp::Le),
            Goal::FewestGpus => (OptimizationDirection::Minimize, 1.0, 0.0, ComparisonOp::Eq),
        };
        let mut problem = Problem::new(direction);
        problem.set_time_limit(self.time_limit);
        let mut placements: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); requests.len()];
        for product in &self.products {
            let cut: Vec<Variable> = product
                .packings
                .iter()
                .map(|_| problem.add_integer_var(of_gpu, (0, product.gpus)))
                .collect();
            let all = cut.iter().map(|packing| (*packing, 1.0));
            problem.add_constraint(all, ComparisonOp::Le, f64::from(product.gpus));
            for (class, serves) in product.classes.iter().enumerate() {
                let made = cut.iter().zip(&product.packings);
                let made = made.map(|(packing, counts)| (*packing, f64::from(counts[class])));
                let mut terms: Vec<(Variable, f64)> =
                    made.filter(|(_, count)| *count > 0.0).collect();
                for request in serves {
                    let most = i32::try_from(requests[*request])?;
                    let given = problem.add_integer_var(of_request, (0, most));
                    terms.push((given, -1.0));
                    placements[*request].push((given, 1.0));
                }
                // No more is given out than there is.
                problem.add_constraint(terms, ComparisonOp::Ge, 0.0);
            }
        }
        for (terms, count) in placements.into_iter().zip(requests) {
            if terms.is_empty() {
                ensure!(*count == 0, "{count} requests that no device satisfies");
                continue;
            }
            problem.add_constraint(terms, placed, f64::from(*count));
        }
        let outcome = match problem.solve() {
            Ok(outcome) => outcome,
            Err(Error::InternalError(why)) => {
                eprintln!("  the solver gave up: {why}");
                return Ok(Proof::None);
            }
            Err(error) => bail!("the integer program of {requests:?} has no answer: {error}"),
        };
        let optimal = outcome.solution().filter(|_| outcome.is_optimal());
        Ok(optimal.map_or(Proof::None, |solution| {
            Proof::Optimal(whole(solution.objective()))
        }))
    }
}

impl Product {
    /// So many GPUs that can be cut in these ways; `of_kind` says what a kind of device serves.
    fn new<'a>(
        gpus: usize,
        cuts: &BTreeSet<Packing>,
        of_kind: &dyn Fn(Kind) -> Option<&'a Serves>,
    ) -> Result<Self> {
        let kinds = cuts.iter().flat_map(BTreeMap::keys);
        let classes: BTreeSet<&Serves> = kinds.filter_map(|kind| of_kind(*kind)).collect();
        let count = |class: &Serves, packing: &Packing| {
            let kinds = packing.iter();
            let counted = kinds.filter(|(kind, _)| of_kind(**kind) == Some(class));
            counted.map(|(_, count)| *count).sum::<u32>()
        };
        let counted: BTreeSet<Vec<u32>> = cuts
            .iter()
            .map(|packing| classes.iter().map(|class| count(class, packing)).collect())
            .collect();
        let gives_more = |one: &Vec<u32>, other: &Vec<u32>| {
            one != other && one.iter().zip(other).all(|(one, other)| one >= other)
        };
        let kept = counted
            .iter()
            .filter(|packing| !counted.iter().any(|other| gives_more(other, packing)));
        Ok(Self {
            gpus: i32::try_from(gpus)?,
            packings: kept.cloned().collect(),
            classes: classes.into_iter().cloned().collect(),
        })
    }
}

/// A count that a solver tells, which is off by its tolerance.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it counts GPUs or requests of one cluster"
)]
fn whole(objective: f64) -> u32 {
    objective.round().max(0.0) as u32
}

#[cfg(test)]
mod tests {
    use super::super::{
        ask::Ask,
        card::{A30, H100},
    };
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn it_knows_how_slices_fit_beside_each_other() {
        let asks = [
            Ask::Profile("1g.10gb"),
            Ask::Profile("1g.20gb"),
            Ask::Profile("2g.20gb"),
            Ask::Profile("3g.40gb"),
            Ask::Profile("4g.40gb"),
            Ask::Whole,
        ];
        let fleet = Fleet::new(&[(H100, 4)], &asks).unwrap();
        let optimum = Optimum::of(&fleet, &mut Cuts::default(), LIMIT).unwrap();
        for (requests, gpus) in [
            ([0, 0, 0, 0, 0, 0], 0),
            ([7, 0, 0, 0, 0, 0], 1),
            ([8, 0, 0, 0, 0, 0], 2),
            ([0, 4, 0, 0, 0, 0], 1),
            ([1, 0, 3, 0, 0, 0], 1),
            ([0, 1, 3, 0, 0, 0], 1),
            ([0, 0, 0, 2, 0, 0], 1),
            ([1, 0, 0, 2, 0, 0], 2),
            ([0, 0, 0, 1, 1, 0], 1),
            ([0, 0, 0, 0, 2, 0], 2),
            ([1, 1, 0, 0, 1, 0], 1),
            ([0, 0, 0, 2, 2, 1], 3),
            ([0, 0, 0, 0, 0, 4], 4),
        ] {
            let found = optimum.fewest_gpus(&requests).unwrap();
            assert_eq!(found, Proof::Optimal(gpus), "{requests:?}");
            let all = requests.iter().sum();
            let placed = optimum.most_placed(&requests).unwrap();
            assert_eq!(placed, Proof::Optimal(all), "{requests:?}");
        }
        // It knows what comes, and leaves out who takes most.
        let most = optimum.most_placed(&[28, 0, 0, 0, 0, 4]).unwrap();
        assert_eq!(most, Proof::Optimal(28));
    }

    #[test]
    fn memory_may_come_from_any_product_that_has_it() {
        let asks = [Ask::Memory(6), Ask::Memory(24)];
        let fleet = Fleet::new(&[(A30, 1), (H100, 1)], &asks).unwrap();
        let optimum = Optimum::of(&fleet, &mut Cuts::default(), LIMIT).unwrap();
        for (requests, gpus) in [
            ([4, 0], 1),
            ([7, 0], 1),
            ([8, 0], 2),
            ([0, 2], 1),
            ([0, 3], 2),
            ([4, 2], 2),
        ] {
            let found = optimum.fewest_gpus(&requests).unwrap();
            assert_eq!(found, Proof::Optimal(gpus), "{requests:?}");
        }
        let most = optimum.most_placed(&[20, 0]).unwrap();
        assert_eq!(most, Proof::Optimal(11));
    }
}
