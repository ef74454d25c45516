//! A fault as it is remembered.

mod merge;
mod proof;
mod resets;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(super) use self::merge::Numbers;
use self::proof::LinksWork;
use super::{
    class::FaultClass,
    condition::Errors,
    observation::{Observation, Scope},
    occurrences::Occurrences,
};
use crate::mig::Placement;

/// Most different causes that a fault keeps; further ones are counted together.
const MOST_CAUSES: usize = 16;
/// What those are called.
const OTHER_CAUSES: &str = "other causes";
/// Most slices that the faults of a GPU tell apart: far more than can lie on one. Beyond it a fault is of the whole GPU.
const MOST_SLICES: usize = 32;
/// How often it is noted that what lasts is still so: each time would be a write to the disk for nothing.
const STILL_SO_SECONDS: i64 = 3_600;
/// For how long NVLinks are to be down until that is a fault. They are for a moment, by design, while they are set up anew: after a reset, when MIG
/// mode is switched off, when the fabric manager starts. What breaks in earnest the driver tells at once, by an XID.
pub(super) const LINKS_SETTLE_SECONDS: i64 = 30;

/// All that was seen of one class in one part of a GPU, since that was last mended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    /// How bad it is.
    pub class: FaultClass,
    /// What it is about.
    pub scope: Scope,
    /// What was seen, and how often. At most a few, however much is seen.
    pub causes: BTreeMap<String, u64>,
    /// Number of the newest observation, in the order of [`super::FaultState`]: a recovery that is not newer does not mend it.
    pub newest: u64,
    /// When it was first seen, in seconds since 1970, for people.
    pub first_seen_unix_seconds: i64,
    /// When it was last seen; of what lasts, within an hour.
    pub last_seen_unix_seconds: i64,
    /// How often the GPU was reset for it, since it was last mended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resets: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Fault {
    /// Its causes in a line, the most frequent first: `XID 48 (3 times), XID 63`.
    pub fn message(&self) -> String {
        let mut causes: Vec<_> = self.causes.iter().collect();
        causes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let causes: Vec<String> = causes
            .into_iter()
            .map(|(cause, count)| match count {
                1 => cause.clone(),
                count => format!("{cause} ({count} times)"),
            })
            .collect();
        causes.join(", ")
    }

    fn add(&mut self, cause: String, count: u64) {
        let is_new = !self.causes.contains_key(&cause);
        let cause = if is_new && self.causes.len() >= MOST_CAUSES {
            OTHER_CAUSES.to_owned()
        } else {
            cause
        };
        let counted = self.causes.entry(cause).or_default();
        *counted = counted.saturating_add(count);
    }
}

/// What an observation changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// Nothing: it was so before.
    None,
    /// It was seen once more.
    Again,
    /// There is a fault, or an anomaly, that was not there before.
    New,
}

/// The faults of one GPU. Bounded: a fault for each class and slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuFaults {
    #[serde(default)]
    faults: Vec<Fault>,
    /// How many NVLinks were active at best since the machine was started.
    #[serde(default)]
    best_links: Option<u32>,
    /// Since when there have been fewer, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    links_down_since_unix_seconds: Option<i64>,
    /// Since when nobody could tell, while there were fewer. Not kept.
    #[serde(skip)]
    links_untold_since_unix_seconds: Option<i64>,
    /// For how long all have been active, and had no errors. Not kept: who starts anew watches anew.
    #[serde(skip)]
    links_work: Option<LinksWork>,
    /// Errors that it had counted when it was looked at last.
    #[serde(default)]
    errors: Errors,
    /// How often something came for which there is a rule.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    occurrences: BTreeMap<String, Occurrences>,
    /// Number of the last observation when the GPU was last found to need a reset, if it has not been found without that need since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    needs_reset_mark: Option<u64>,
    /// Number of the last observation before a reset that this driver had done, if that has not been taken for a proof yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reset_done_mark: Option<u64>,
    /// Whether a row of memory was to be replaced with the next reset when that was told last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    awaits_row_remap: bool,
}

impl GpuFaults {
    /// Its faults and anomalies.
    pub fn all(&self) -> &[Fault] {
        &self.faults
    }

    /// The worst of what reaches a device, the whole GPU or a slice of it, and fulfils a condition.
    pub(super) fn worst(
        &self,
        part: Option<Placement>,
        is_meant: impl Fn(FaultClass) -> bool,
    ) -> Option<&Fault> {
        let faults = self.faults.iter();
        faults
            .filter(|fault| is_meant(fault.class) && fault.scope.reaches(part))
            .max_by_key(|fault| fault.class)
    }

    /// How many NVLinks were active at best since the machine was started.
    pub fn best_links(&self) -> Option<u32> {
        self.best_links
    }

    pub(super) fn note_links(&mut self, active: Option<u32>) {
        self.best_links = self.best_links.max(active);
    }

    /// The machine was started anew, or a person found the GPU in order: what is connected may be other.
    pub(super) fn forget_links(&mut self) {
        self.best_links = None;
        self.links_down_since_unix_seconds = None;
        self.links_untold_since_unix_seconds = None;
        self.links_work = None;
    }

    /// The machine was started anew: so were all counters, and the GPU was reset with it.
    pub(super) fn begin_boot(&mut self) {
        self.forget_links();
        self.errors = Errors::default();
        self.forget_need_of_reset();
        self.awaits_row_remap = false;
    }

    /// A person found it in order: it begins anew.
    pub(super) fn forget_occurrences(&mut self) {
        self.occurrences.clear();
    }

    /// A clock that was set back makes nothing be told for longer.
    pub(super) fn seen_by(&mut self, now_unix_seconds: i64) {
        for fault in &mut self.faults {
            fault.last_seen_unix_seconds = fault.last_seen_unix_seconds.min(now_unix_seconds);
        }
    }

    /// Forgets what no rule can ask for any more.
    pub(super) fn fade_occurrences(&mut self, now_unix_seconds: i64) {
        self.occurrences
            .retain(|_, occurrences| !occurrences.is_old(now_unix_seconds));
    }

    /// Whether fewer NVLinks are active than at best, and have been for so long that it is a fault. That nobody can tell begins it anew only if it
    /// lasts, as in MIG mode: links that fail do not always answer.
    pub(super) fn links_stay_down(&mut self, active: Option<u32>, now_unix_seconds: i64) -> bool {
        let now = now_unix_seconds;
        // A clock that was set back does not put it off for longer.
        let begun = |since: Option<i64>| since.map_or(now, |since| since.min(now));
        let is_long = |since: i64| now.saturating_sub(since) >= LINKS_SETTLE_SECONDS;
        let down = self.links_down_since_unix_seconds;
        let Some((best, active)) = self.best_links.zip(active) else {
            let untold = begun(self.links_untold_since_unix_seconds);
            let goes_on = down.is_some() && !is_long(untold);
            self.links_down_since_unix_seconds = down.filter(|_| goes_on);
            self.links_untold_since_unix_seconds = goes_on.then_some(untold);
            return false;
        };
        self.links_untold_since_unix_seconds = None;
        let down = (active < best).then(|| begun(down));
        self.links_down_since_unix_seconds = down;
        down.is_some_and(is_long)
    }

    /// Adds what was seen, as number `sequence`.
    pub(super) fn observe(
        &mut self,
        observation: Observation,
        sequence: u64,
        now_unix_seconds: i64,
    ) -> Change {
        let cause = observation.cause.to_string();
        let lasts = observation.cause.lasts();
        let scope = self.bounded(observation.scope);
        let mut faults = self.faults.iter_mut();
        let same = faults.find(|fault| fault.class == observation.class && fault.scope == scope);
        if let Some(fault) = same {
            if lasts && fault.causes.contains_key(&cause) {
                let ago = now_unix_seconds.saturating_sub(fault.last_seen_unix_seconds);
                if ago >= STILL_SO_SECONDS {
                    fault.last_seen_unix_seconds = now_unix_seconds;
                }
                return Change::None;
            }
            fault.add(cause, 1);
            fault.newest = sequence;
            fault.last_seen_unix_seconds = now_unix_seconds;
            return Change::Again;
        }
        self.faults.push(Fault {
            class: observation.class,
            scope,
            causes: BTreeMap::from([(cause, 1)]),
            newest: sequence,
            first_seen_unix_seconds: now_unix_seconds,
            last_seen_unix_seconds: now_unix_seconds,
            resets: 0,
        });
        Change::New
    }

    /// Adds what was remembered of the same GPU under another name.
    pub(super) fn merge(&mut self, other: Self) {
        for fault in other.faults {
            let scope = self.bounded(fault.scope);
            let mut faults = self.faults.iter_mut();
            match faults.find(|one| one.class == fault.class && one.scope == scope) {
                Some(one) => {
                    one.newest = one.newest.max(fault.newest);
                    one.resets = one.resets.max(fault.resets);
                    one.first_seen_unix_seconds = one
                        .first_seen_unix_seconds
                        .min(fault.first_seen_unix_seconds);
                    one.last_seen_unix_seconds =
                        one.last_seen_unix_seconds.max(fault.last_seen_unix_seconds);
                    for (cause, count) in fault.causes {
                        one.add(cause, count);
                    }
                }
                None => self.faults.push(Fault { scope, ..fault }),
            }
        }
        self.note_links(other.best_links);
        for (subject, occurrences) in other.occurrences {
            self.occurrences.entry(subject).or_insert(occurrences);
        }
    }

    /// The same as anomalies: what was seen is over, and was of interest.
    pub(super) fn into_earlier(self) -> Self {
        let mut earlier = Self::default();
        for fault in self.faults {
            let causes = fault.causes.into_iter();
            let fault = Fault {
                class: if fault.class.is_fault() {
                    FaultClass::Info
                } else {
                    fault.class
                },
                causes: causes
                    .map(|(cause, count)| (format!("{cause}, earlier"), count))
                    .collect(),
                ..fault
            };
            let one = Self {
                faults: vec![fault],
                ..Self::default()
            };
            earlier.merge(one);
        }
        earlier
    }

    /// Keeps the faults for which this holds; how many went.
    pub(super) fn retain(&mut self, stays: impl FnMut(&Fault) -> bool) -> usize {
        let before = self.faults.len();
        self.faults.retain(stays);
        before - self.faults.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.faults.is_empty()
            && self.best_links.is_none()
            && self.errors == Errors::default()
            && self.occurrences.is_empty()
            && self.needs_reset_mark.is_none()
            && self.reset_done_mark.is_none()
            && !self.awaits_row_remap
    }

    fn bounded(&self, scope: Scope) -> Scope {
        let mut slices: Vec<Scope> = self.faults.iter().map(|fault| fault.scope).collect();
        slices.sort_unstable();
        slices.dedup();
        if slices.contains(&scope) || slices.len() < MOST_SLICES {
            scope
        } else {
            Scope::Gpu
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Cause, *};

    fn seen(class: FaultClass, scope: Scope, cause: Cause) -> Observation {
        Observation {
            class,
            scope,
            cause,
        }
    }

    #[test]
    fn however_much_is_seen_there_is_a_fault_for_each_class_and_slice_and_no_more() {
        let mut faults = GpuFaults::default();
        for number in 0..20_000_u32 {
            let start = number % 1_000;
            let scope = Scope::Slice(Placement { start, size: 1 });
            let classes = FaultClass::ALL;
            let class = classes[(number % 8) as usize];
            let _ = faults.observe(seen(class, scope, Cause::Xid(number)), number.into(), 0);
        }
        let bound = FaultClass::ALL.len() * (MOST_SLICES + 1);
        assert!(faults.all().len() <= bound, "{}", faults.all().len());
        let mut counted = 0;
        for fault in faults.all() {
            assert!(fault.causes.len() <= MOST_CAUSES + 1);
            counted += fault.causes.values().sum::<u64>();
        }
        assert_eq!(counted, 20_000, "each was counted");
        // Of the last, which had no place of its own, the whole GPU is told.
        let last = faults.worst(
            Some(Placement {
                start: 999,
                size: 1,
            }),
            |_| true,
        );
        assert_eq!(last.unwrap().class, FaultClass::Retire);
    }

    #[test]
    fn what_lasts_is_new_once() {
        let mut faults = GpuFaults::default();
        let lasting = seen(FaultClass::Retire, Scope::Gpu, Cause::RowRemapFailure);
        assert_eq!(faults.observe(lasting, 1, 10), Change::New);
        assert_eq!(faults.observe(lasting, 2, 20), Change::None);
        assert_eq!(
            (
                faults.all()[0].newest,
                faults.all()[0].last_seen_unix_seconds
            ),
            (1, 10)
        );
        let event = seen(FaultClass::Retire, Scope::Gpu, Cause::Xid(1));
        assert_eq!(faults.observe(event, 3, 30), Change::Again);
        assert_eq!(faults.observe(event, 4, 40), Change::Again);
        assert_eq!(faults.all()[0].newest, 4);
        assert_eq!(
            faults.all()[0].message(),
            "XID 1 (2 times), row remap failure"
        );
    }

    #[test]
    fn what_was_remembered_elsewhere_makes_nothing_milder() {
        let mut one = GpuFaults::default();
        let mut other = GpuFaults::default();
        let reset = seen(FaultClass::Reset, Scope::Gpu, Cause::Xid(48));
        let _ = one.observe(reset, 5, 50);
        let _ = other.observe(reset, 7, 40);
        let _ = other.observe(seen(FaultClass::Reboot, Scope::Gpu, Cause::Xid(79)), 8, 40);
        one.merge(other);
        assert_eq!(one.all().len(), 2);
        let first = &one.all()[0];
        assert_eq!((first.newest, first.first_seen_unix_seconds), (7, 40));
        assert_eq!(first.message(), "XID 48 (2 times)");
    }
}
