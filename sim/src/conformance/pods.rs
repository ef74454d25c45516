//! The pods of a workload, in the order in which they stand in a gang.
//!
//! The pods that a gang starts with, where it may start with fewer, are the first that it has. Kueue has each pod set shrink by one common
//! factor instead: after `step` steps `spare * step / (all that are spare)` pods of each set are left out, rounded down, and it takes the
//! least step at which the rest fits. So whoever is left out first stands last here, and the first pods of each step are what Kueue
//! would start. (Where pods of two sets are left out at one step, a gang may also stop between them.)

use anyhow::Context;
use muster_engine::{PodResources, Resource};

use super::queues::{self, PodSet};

/// The pods of a workload.
pub(super) struct Pods {
    /// The set of each, by its place among the sets.
    pub(super) sets: Vec<usize>,
    /// With how many of them it may start at the least, if not with all only.
    pub(super) least: Option<usize>,
}

impl Pods {
    /// Of these sets, some of which may shrink if `shrinks`.
    pub(super) fn of(sets: &[PodSet], shrinks: bool) -> anyhow::Result<Self> {
        let mut counts = Vec::new();
        for set in sets {
            let all = usize::try_from(set.count).context("a pod set has a count")?;
            let least = set.min_count.filter(|_| shrinks).unwrap_or(set.count);
            let least = usize::try_from(least).context("a pod set has a least count")?;
            anyhow::ensure!(
                least <= all,
                "a pod set has no more at the least than at the most"
            );
            counts.push((least, all - least));
        }
        let spare: usize = counts.iter().map(|(_, spare)| spare).sum();
        let mut left_out = Vec::new();
        for step in 1..=spare {
            for (set, (_, of_set)) in counts.iter().enumerate() {
                let until = |step: usize| of_set * step / spare;
                left_out.extend((until(step - 1)..until(step)).map(|_| set));
            }
        }
        let kept = counts.iter().enumerate();
        let kept = kept.flat_map(|(set, (least, _))| std::iter::repeat_n(set, *least));
        let mut sets: Vec<usize> = kept.collect();
        let least = sets.len();
        sets.extend(left_out.into_iter().rev());
        Ok(Self {
            sets,
            least: (spare > 0).then_some(least),
        })
    }
}

/// What one pod of a set asks for.
pub(super) fn resources(set: &PodSet) -> anyhow::Result<PodResources> {
    let mut resources = PodResources {
        pods: 1,
        ..PodResources::default()
    };
    for (name, text) in &set.requests {
        let resource = queues::resource(name);
        let amount = queues::amount(&resource, text)?.0;
        match resource {
            Resource::Cpu => resources.cpu_milli = amount,
            Resource::Memory => resources.memory_bytes = amount,
            _ => {
                resources.others.insert(name.as_str().into(), amount);
            }
        }
    }
    Ok(resources)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(count: i64, least: Option<i64>) -> PodSet {
        serde_json::from_value(json!({"count": count, "minCount": least})).expect("a pod set")
    }

    fn counts(pods: &[usize], sets: usize) -> Vec<usize> {
        let count = |set| pods.iter().filter(|it| **it == set).count();
        (0..sets).map(count).collect()
    }

    #[test]
    fn after_each_step_the_first_pods_are_those_of_sets_that_shrank_by_one_factor() {
        for shape in [
            &[(20, None), (30, Some(10)), (15, Some(5))][..],
            &[(50, Some(20))],
            &[(7, Some(1)), (5, Some(2)), (3, Some(3)), (11, Some(4))],
            &[(3, None), (2, Some(2))],
        ] {
            let sets: Vec<PodSet> = shape.iter().map(|(all, least)| set(*all, *least)).collect();
            let pods = Pods::of(&sets, true).expect("it can be told");
            let spare = |(all, least): (i64, Option<i64>)| all - least.unwrap_or(all);
            let all_spare: i64 = shape.iter().map(|it| spare(*it)).sum();
            for step in 0..=all_spare {
                let left = shape
                    .iter()
                    .map(|it| it.0 - spare(*it) * step / all_spare.max(1));
                let left: Vec<usize> = left.map(|it| usize::try_from(it).expect("some")).collect();
                let first = left.iter().sum();
                assert_eq!(
                    counts(&pods.sets[..first], sets.len()),
                    left,
                    "{shape:?} at {step}"
                );
            }
            let least: i64 = shape.iter().map(|(all, least)| least.unwrap_or(*all)).sum();
            let least = usize::try_from(least).ok().filter(|_| all_spare > 0);
            assert_eq!(pods.least, least, "{shape:?}");
        }
    }

    #[test]
    fn no_set_shrinks_where_that_is_switched_off() {
        let pods = Pods::of(&[set(4, Some(1)), set(2, None)], false).expect("it can be told");
        assert_eq!((pods.least, counts(&pods.sets, 2)), (None, vec![4, 2]));
    }

    #[test]
    fn a_set_with_more_at_the_least_than_at_the_most_is_no_set() {
        assert!(Pods::of(&[set(4, Some(5))], true).is_err());
    }
}
