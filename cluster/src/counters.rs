//! Shared counters: what several devices of a pool draw from, so that not all of them can be given out at a time.
//!
//! A GPU that can be partitioned is published as itself and as each of its possible slices; all of them draw from one set of counters.
//! Sets are found by their names, in any slice of the pool, so what a device draws is known only once the pool is complete. It is the
//! same on every node of one build: what was worked out for a pool of these sets is kept ([`Layouts`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use k8s_openapi::api::resource::v1::{Counter, CounterSet, Device};
use muster_engine::{self as engine, Amount, Consumption};

use crate::{charge::Slices, quantity};

/// Most counter sets of one ResourceSlice, as Kubernetes limits them.
const MAX_SETS_PER_SLICE: usize = 8;
/// Most counters of one set, and most that a device draws of one set, as Kubernetes limits them.
const MAX_COUNTERS_PER_SET: usize = 32;
/// From how many sets a device draws at most, as Kubernetes limits it.
const MAX_SETS_PER_DEVICE: usize = 2;
/// Most of one counter, in whole units: a pebibyte, if it counts bytes. So many that all devices of a pool together draw can be added up.
const MAX_COUNTER: i64 = 1 << 50;
/// Of how many devices it is remembered what they draw, and of how many counters what they are called. A few hundred differ in a cluster of a few builds of nodes; whoever publishes ever
/// other sets has them worked out again each time.
const MAX_REMEMBERED: usize = 65_536;
/// How the counters of a GPU's memory slices are called but for their number: `memory-slice-0`, ... Both our driver and NVIDIA's do so.
const MEMORY_SLICE: &str = "memory-slice-";
/// The counter of a GPU's compute slices, of our driver alone.
const COMPUTE_SLICES: &str = "compute-slices";
/// Memory slices of the largest GPU. A set with more is of something else.
const MAX_MEMORY_SLICES: i64 = 8;

/// Amounts by the name of the counter, in order.
type Amounts = Vec<(Box<str>, i64)>;

/// What a slice publishes, or a device draws: amounts by the name of the set, in the order in which they stand there. An error: they cannot
/// be counted with, and nothing of the pool is given out.
pub(crate) type NamedSets = Result<Vec<(Box<str>, Amounts)>, Box<str>>;

/// Something that is kept once, with a number. Numbers are never used twice.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    number: u64,
    value: T,
}

impl Numbered<NamedSets> {
    /// How many counters they are; none if they cannot be counted with.
    pub(crate) fn counters(&self) -> usize {
        let named = self.value.iter().flatten();
        named.map(|(_, amounts)| amounts.len()).sum()
    }
}

/// What slices publish and devices draw, each once. What nobody has any more is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    by_value: BTreeMap<NamedSets, Weak<Numbered<NamedSets>>>,
    last: u64,
    sweep_above: usize,
}

impl Sets {
    /// The counter sets that a slice publishes; `None`: none.
    pub(crate) fn published(
        &mut self,
        sets: Option<&Vec<CounterSet>>,
    ) -> Option<Arc<Numbered<NamedSets>>> {
        let sets = sets.filter(|sets| !sets.is_empty())?;
        Some(self.share(read_published(sets)))
    }

    /// What a device draws; `None`: nothing.
    pub(crate) fn drawn(&mut self, device: &Device) -> Option<Arc<Numbered<NamedSets>>> {
        let drawn = device.consumes_counters.as_ref();
        let drawn = drawn.filter(|drawn| !drawn.is_empty())?;
        let sets = drawn.iter().map(|of| (&of.counter_set, &of.counters));
        let field = "consumesCounters";
        Some(self.share(read(sets, field, MAX_SETS_PER_DEVICE, quantity::units)))
    }

    fn share(&mut self, value: NamedSets) -> Arc<Numbered<NamedSets>> {
        if let Some(known) = self.by_value.get(&value).and_then(Weak::upgrade) {
            return known;
        }
        if self.by_value.len() > self.sweep_above {
            self.by_value.retain(|_, known| known.strong_count() > 0);
            self.sweep_above = self.by_value.len() * 2 + 64;
        }
        self.last += 1;
        let shared = Arc::new(Numbered {
            number: self.last,
            value: value.clone(),
        });
        self.by_value.insert(value, Arc::downgrade(&shared));
        shared
    }
}

fn read_published(sets: &[CounterSet]) -> NamedSets {
    let named = sets.iter().map(|set| (&set.name, &set.counters));
    // Of what there is a part of a unit serves nobody, of what is drawn it takes a whole one: nothing is promised that is not there.
    read(
        named,
        "sharedCounters",
        MAX_SETS_PER_SLICE,
        quantity::whole_units,
    )
}

fn read<'a>(
    sets: impl ExactSizeIterator<Item = (&'a String, &'a BTreeMap<String, Counter>)>,
    field: &str,
    most: usize,
    amount: impl Fn(&str, &str) -> Result<i64, quantity::QuantityError>,
) -> NamedSets {
    if sets.len() > most {
        return Err(format!(
            "{field}: {} counter sets; at most {most} can be",
            sets.len()
        )
        .into());
    }
    let mut names = BTreeSet::new();
    let mut read = Vec::with_capacity(sets.len());
    for (name, counters) in sets {
        let field = format!("{field}[{name}]");
        if !names.insert(name) {
            return Err(format!("{field}: stands there twice").into());
        }
        if counters.len() > MAX_COUNTERS_PER_SET {
            let count = counters.len();
            return Err(format!(
                "{field}: {count} counters; at most {MAX_COUNTERS_PER_SET} can be"
            )
            .into());
        }
        let amounts = counters.iter().map(|(counter, value)| {
            let field = format!("{field}.counters[{counter}]");
            let amount = amount(&value.value.0, &field).map_err(|error| error.to_string())?;
            if amount > MAX_COUNTER {
                return Err(format!(
                    "{field}: is {amount}; at most {MAX_COUNTER} can be"
                ));
            }
            Ok((counter.as_str().into(), amount))
        });
        let amounts: Amounts = amounts.collect::<Result<_, String>>()?;
        read.push((name.as_str().into(), amounts));
    }
    Ok(read)
}

/// What a device takes of the counter sets of its pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// By set and counter, as their places in the pool.
    pub(crate) consumes: Arc<[Consumption]>,
    /// Thousandths of a GPU that it is, should it be one; `None`: the counters do not say.
    pub(crate) gpus: Option<Amount>,
}

/// The counter sets of one pool, and what devices draw from them.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// As the engine is told, as of the first pool of the node.
    sets: Arc<[engine::CounterSet]>,
    places: BTreeMap<Box<str>, u32>,
    /// Names of the counters, set by set and in order.
    counters: Vec<Vec<Box<str>>>,
    fault: Option<Box<str>>,
    drawn: BTreeMap<u64, Result<Drawn, Box<str>>>,
}

/// The layouts of all pools, by the numbers of what their slices publish.
#[derive(Debug, Default)]
pub(crate) struct Layouts {
    known: BTreeMap<Vec<u64>, Layout>,
    /// Of how many devices it is remembered what they draw, and how many layouts and counters there are.
    remembered: usize,
}

/// A layout that is being asked.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    layout: &'a mut Layout,
    remembered: &'a mut usize,
}

impl Layouts {
    /// The layout of a pool whose slices publish these sets.
    pub(crate) fn of(&mut self, published: &[&Numbered<NamedSets>]) -> Asked<'_> {
        if self.remembered > MAX_REMEMBERED {
            self.known.clear();
            self.remembered = 0;
        }
        let numbers = published.iter().map(|sets| sets.number).collect();
        let remembered = &mut self.remembered;
        let layout = self.known.entry(numbers).or_insert_with(|| {
            *remembered += 1 + published.iter().map(|sets| sets.counters()).sum::<usize>();
            Layout::of(published)
        });
        Asked { layout, remembered }
    }
}

impl Asked<'_> {
    /// Why nothing can be drawn from it.
    pub(crate) fn fault(&self) -> Option<&str> {
        self.layout.fault.as_deref()
    }

    /// Its sets, as of the first pool of a node.
    pub(crate) fn sets(&self) -> &Arc<[engine::CounterSet]> {
        &self.layout.sets
    }

    /// What a device draws. An error: a set or a counter that the pool does not have.
    pub(crate) fn draw(&mut self, drawn: &Numbered<NamedSets>) -> Result<Drawn, Box<str>> {
        if let Some(known) = self.layout.drawn.get(&drawn.number) {
            return known.clone();
        }
        let found = self.layout.resolve(&drawn.value);
        self.layout.drawn.insert(drawn.number, found.clone());
        *self.remembered += 1;
        found
    }
}

impl Layout {
    fn of(published: &[&Numbered<NamedSets>]) -> Self {
        let mut layout = Self::default();
        let mut sets = Vec::new();
        for numbered in published {
            let named = match &numbered.value {
                Ok(named) => named,
                Err(fault) => {
                    layout.fault = Some(fault.clone());
                    return layout;
                }
            };
            for (name, amounts) in named {
                let place = u32::try_from(sets.len()).unwrap_or(u32::MAX);
                if layout.places.insert(name.clone(), place).is_some() {
                    let fault = format!("sharedCounters[{name}]: two slices of the pool have it");
                    layout.fault = Some(fault.into());
                    return layout;
                }
                sets.push(engine::CounterSet {
                    pool: 0,
                    counters: amounts.iter().map(|(_, amount)| *amount).collect(),
                });
                let names = amounts.iter().map(|(counter, _)| counter.clone());
                layout.counters.push(names.collect());
            }
        }
        layout.sets = sets.into();
        layout
    }

    fn resolve(&self, drawn: &NamedSets) -> Result<Drawn, Box<str>> {
        let mut consumes = Vec::new();
        let mut gpus = Some(Amount::ZERO);
        for (name, amounts) in drawn.as_ref().map_err(Clone::clone)? {
            let lacks = |what: &str| -> Box<str> {
                format!("consumesCounters[{name}]{what}: the pool has none of that name").into()
            };
            let set = *self.places.get(name).ok_or_else(|| lacks(""))?;
            let place = set as usize;
            let (Some(names), Some(of)) = (self.counters.get(place), self.sets.get(place)) else {
                return Err(lacks(""));
            };
            let mut taken = Vec::with_capacity(amounts.len());
            for (counter, amount) in amounts {
                let at = names.binary_search(counter);
                let at = at.map_err(|_| lacks(&format!(".counters[{counter}]")))?;
                taken.push((u32::try_from(at).unwrap_or(u32::MAX), *amount));
            }
            let all = names.iter().zip(&of.counters);
            let all = slices(all.map(|(counter, amount)| (&**counter, *amount)));
            let own = slices(
                amounts
                    .iter()
                    .map(|(counter, amount)| (&**counter, *amount)),
            );
            let share = own
                .share_of(all)
                .filter(|_| all.memory <= MAX_MEMORY_SLICES);
            gpus = gpus
                .zip(share)
                .map(|(sum, share)| Amount(sum.0.saturating_add(share.0)));
            consumes.push(Consumption {
                set,
                amounts: taken.into(),
            });
        }
        Ok(Drawn {
            consumes: consumes.into(),
            gpus,
        })
    }
}

/// The same in a pool before whose sets the node has so many others.
pub(crate) fn after(consumes: &Arc<[Consumption]>, sets: u32) -> Arc<[Consumption]> {
    if sets == 0 || consumes.is_empty() {
        return Arc::clone(consumes);
    }
    let later = consumes.iter().map(|of| Consumption {
        set: of.set.saturating_add(sets),
        amounts: Arc::clone(&of.amounts),
    });
    later.collect()
}

/// How many slices of a GPU these counters are.
fn slices<'a>(counters: impl Iterator<Item = (&'a str, i64)>) -> Slices {
    let mut slices = Slices::default();
    for (name, amount) in counters {
        if name.starts_with(MEMORY_SLICE) {
            slices.memory = slices.memory.saturating_add(amount);
        } else if name == COMPUTE_SLICES {
            slices.compute = slices.compute.saturating_add(amount);
        }
    }
    slices
}
