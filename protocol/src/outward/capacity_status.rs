//! What the status of Cohorts, Flavors and PriorityTiers shows. Nothing is ever decided by what is written there.
//!
//! Only the leader writes it, each object as a whole and without a precondition, as the status of Teams: what a superseded leader still
//! writes is seen by the one that leads, which looks at the object again. Written twice or late it is the same or is corrected; a
//! write that is not answered is found wanting, or not, once the object is seen.
//!
//! A Flavor is looked at when its object changed or other devices count; a Cohort when its object did, or anything was admitted or
//! released anywhere: some of each each second. A Cohort that was written rests as a Team does ([`PUBLISHED_EVERY_SECONDS`]).
//! PriorityTiers are looked at when one of them changed, since another may be the default then.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use muster_api::{CohortLimit, CohortStatus, FlavorOverlap, FlavorStatus, PriorityTierStatus};
use muster_engine as engine;

use super::{
    queue_status::{PUBLISHED_EVERY_SECONDS, thousandths},
    quota_conditions::{self, Stands},
};
use crate::{ApiRequest, poll_context::PollContext};
use muster_cluster::quantity;

/// How many Cohorts, how many Flavors, and how many PriorityTiers are looked at in one second.
pub(crate) const LOOKS_PER_SECOND: usize = 32;

/// Which of them may have to be written.
#[derive(Debug, Default)]
pub(crate) struct Capacity {
    cohorts: Turns,
    /// Those of them that were noted with all others, since what was admitted or released anywhere may change what they show. Apart from
    /// the rest: our own writes are noted, too, once they are seen, so that something is as good as always.
    affected: BTreeSet<String>,
    /// Until when Cohorts rest that were written.
    rests: BTreeMap<String, u64>,
    /// Cohorts whose turn came while they rested, by when that is over.
    postponed: BTreeMap<u64, BTreeSet<String>>,
    flavors: Turns,
    tiers: Turns,
    /// Whether what all Cohorts have and use may be another since those were noted.
    is_use_changed: bool,
    /// By which limits the engine decided last.
    limits_version: u64,
    /// In which second of the monotonic clock they were looked at last.
    looked_at: Option<u64>,
}

/// Objects that are to be looked at, in turns: one that is noted all the time keeps nobody from theirs.
#[derive(Debug, Default)]
struct Turns {
    names: BTreeSet<String>,
    /// The one that was looked at last.
    last: String,
}

impl Turns {
    /// The next ones, which are looked at now.
    fn take(&mut self) -> Vec<String> {
        let after = (Bound::Excluded(&self.last), Bound::Unbounded);
        let up_to = (Bound::Unbounded, Bound::Included(&self.last));
        let first = self.names.range::<String, _>(after);
        let turns = first.chain(self.names.range::<String, _>(up_to));
        let turns: Vec<String> = turns.take(LOOKS_PER_SECOND).cloned().collect();
        for name in &turns {
            self.names.remove(name);
        }
        if let Some(last) = turns.last() {
            self.last.clone_from(last);
        }
        turns
    }
}

impl Capacity {
    /// A Cohort may be another now.
    pub(crate) fn note_cohort(&mut self, cohort: &str) {
        self.cohorts.names.insert(cohort.to_owned());
    }

    /// A Flavor may be another now, or count other devices.
    pub(crate) fn note_flavor(&mut self, flavor: &str) {
        self.flavors.names.insert(flavor.to_owned());
    }

    /// A PriorityTier may be another now, or be the default now, or no longer.
    pub(crate) fn note_tier(&mut self, tier: &str) {
        self.tiers.names.insert(tier.to_owned());
    }

    /// What some Team uses changed, or what some Cohort names may exist by now, or not any more.
    pub(crate) fn note_use(&mut self) {
        self.is_use_changed = true;
    }

    /// The engine decides by these limits.
    pub(crate) fn note_limits(&mut self, version: u64) {
        self.is_use_changed |= self.limits_version != version;
        self.limits_version = version;
    }

    /// The second in which there is something to look at.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let turns = [&self.cohorts, &self.flavors, &self.tiers];
        let are_noted = turns.iter().any(|turns| !turns.names.is_empty());
        let idle = !are_noted && !self.is_use_changed;
        let next = (!idle).then(|| self.looked_at.map_or(0, |at| at + 1));
        let rested = self.postponed.keys().next().copied();
        next.into_iter().chain(rested).min()
    }

    /// Those whose status is to be written. Looked at once a second, as Teams are.
    pub(crate) fn writes(
        &mut self,
        context: PollContext<'_>,
        engine: &engine::State,
    ) -> Vec<ApiRequest> {
        let second = context.now.monotonic_seconds;
        if self.looked_at == Some(second) || self.next_due().is_none_or(|due| due > second) {
            return Vec::new();
        }
        self.looked_at = Some(second);
        self.rests.retain(|_, until| *until > second);
        while let Some(rested) = self
            .postponed
            .first_entry()
            .filter(|it| *it.key() <= second)
        {
            self.cohorts.names.extend(rested.remove());
        }
        if self.affected.is_empty() && std::mem::take(&mut self.is_use_changed) {
            let all = context.index.cohorts().map(|(name, _)| name.clone());
            self.affected = all.collect();
            self.cohorts.names.extend(self.affected.iter().cloned());
        }
        let mut writes = Vec::new();
        for cohort in self.cohorts.take() {
            self.affected.remove(&cohort);
            if let Some(until) = self.rests.get(&cohort) {
                self.postponed.entry(*until).or_default().insert(cohort);
                continue;
            }
            let write = of_cohort(context, engine, &cohort);
            if write.is_some() {
                self.rests.insert(cohort, second + PUBLISHED_EVERY_SECONDS);
            }
            writes.extend(write);
        }
        for flavor in self.flavors.take() {
            writes.extend(of_flavor(context, &flavor));
        }
        for tier in self.tiers.take() {
            writes.extend(of_tier(context, &tier));
        }
        writes
    }
}

fn of_cohort(context: PollContext<'_>, engine: &engine::State, name: &str) -> Option<ApiRequest> {
    let object = context.index.cohort(name)?;
    let stands = Stands {
        generation: object.metadata.generation,
        conditions: object.status.as_ref().map(|status| &status.conditions),
    };
    let references = context.index.references_of_cohort(name);
    let cohort = name.into();
    let usage = engine.cohort_usage(&cohort);
    let status = CohortStatus {
        limits: usage.iter().map(limit).collect(),
        weighted_share: engine.cohort_fair_share(&cohort).as_ref().map(thousandths),
        conditions: quota_conditions::of_cohort(context, &stands, &references),
    };
    (object.status.as_ref() != Some(&status)).then(|| ApiRequest::PublishCohort {
        cohort: name.to_owned(),
        status: Box::new(status),
    })
}

fn limit(usage: &engine::quota::CohortUsage) -> CohortLimit {
    let quantity = |amount: engine::Amount| quantity::written(&usage.of.resource, amount);
    CohortLimit {
        flavor: usage.of.flavor.to_string(),
        resource: usage.of.resource.to_string(),
        nominal: quantity(usage.nominal),
        subtree_quota: quantity(usage.subtree_quota),
        used: quantity(usage.used),
        borrowed: quantity(usage.borrowed),
        available: quantity(usage.available),
    }
}

fn of_flavor(context: PollContext<'_>, name: &str) -> Option<ApiRequest> {
    let object = context.index.flavor(name)?;
    let count = context.index.flavor_count(name);
    let references = context.index.references_of_flavor(name);
    let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let overlaps = count.shared_with.iter();
    let mut overlaps: Vec<FlavorOverlap> = overlaps
        .map(|(flavor, devices)| FlavorOverlap {
            flavor: flavor.to_string(),
            devices: number(*devices),
        })
        .collect();
    // The sort is stable: of equals the first by name.
    overlaps.sort_by_key(|overlap| std::cmp::Reverse(overlap.devices));
    overlaps.truncate(FlavorStatus::OVERLAPS_NAMED);
    let status = FlavorStatus {
        nodes: number(count.nodes),
        ready_nodes: number(count.ready_nodes),
        devices: number(count.devices),
        healthy_devices: number(count.healthy_devices),
        overlaps,
        conditions: quota_conditions::of_flavor(context, object, count.devices, &references),
    };
    (object.status.as_ref() != Some(&status)).then(|| ApiRequest::PublishFlavor {
        flavor: name.to_owned(),
        status: Box::new(status),
    })
}

fn of_tier(context: PollContext<'_>, name: &str) -> Option<ApiRequest> {
    let object = context.index.tier(name)?;
    let status = PriorityTierStatus {
        conditions: quota_conditions::of_tier(context, name, object),
    };
    (object.status.as_ref() != Some(&status)).then(|| ApiRequest::PublishPriorityTier {
        tier: name.to_owned(),
        status: Box::new(status),
    })
}
