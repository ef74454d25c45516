//! When a step towards a layout is taken: what is tainted for it, asked, waited for and tried again.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    steps::Step,
    usage::{Sight, Usage, awaited},
};
use crate::{prepare::Milliseconds, slices::others::AFTERMATH};

/// Shortest and longest pause after a step that failed.
const RETRY_MILLISECONDS: (u64, u64) = (10_000, 600_000);
/// How long a GPU is left alone of which a claim was found, before it is tainted again.
const LEFT_ALONE_MILLISECONDS: u64 = 60_000;

/// What is to be done with a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is as declared, and so it is published.
    Done,
    /// Nothing: it is as declared, and what is published is not yet.
    Shows,
    /// Nothing: it cannot be as declared, and why.
    CannotBe(String),
    /// Nothing: it is used, and by whom.
    Waits(String),
    /// Publish its taint, or wait until that was long enough ago.
    Fence,
    /// Ask the API server which claims have a part of it.
    Ask,
    /// Take this step, if all is still so under the lock.
    Step(Step),
}

/// Brings GPUs to their layouts. In memory only: after a crash each GPU is looked at anew.
#[derive(Clone, Debug, Default)]
pub struct Applier {
    fences: BTreeMap<String, Fence>,
}

/// A GPU that is being brought to its layout.
#[derive(Clone, Debug, Default)]
struct Fence {
    /// Since when its taint is published.
    published: Option<Milliseconds>,
    /// It is left alone until then.
    left_alone: Option<Milliseconds>,
    /// No step is taken before.
    not_before: Milliseconds,
    failures: u32,
}

impl Fence {
    fn left_alone(until: Milliseconds) -> Self {
        Self {
            left_alone: Some(until),
            ..Self::default()
        }
    }

    fn left_alone_from(now: Milliseconds) -> Self {
        Self::left_alone(Milliseconds(now.0.saturating_add(LEFT_ALONE_MILLISECONDS)))
    }
}

impl Applier {
    /// What is to be done with a GPU now.
    pub fn next(&mut self, now: Milliseconds, gpu: &str, sight: &Sight<'_>) -> Next {
        let awaited = awaited(sight.allocated.as_deref().unwrap_or_default());
        let steps = sight
            .goal
            .steps(sight.mig, sight.live, &awaited, sight.may_toggle);
        let steps = match steps {
            Ok(steps) => steps,
            Err(why) => {
                self.fences.remove(gpu);
                return Next::CannotBe(why);
            }
        };
        let Some(step) = steps.into_iter().next() else {
            if sight.live == sight.published {
                self.fences.remove(gpu);
                return Next::Done;
            }
            // Until what is published follows, it names slices that are gone. Where nothing was changed nothing is to be hidden.
            return if self.fences.contains_key(gpu) {
                Next::Shows
            } else {
                Next::Done
            };
        };
        if let Some(who) = sight.usage.forbids(&step) {
            self.fences.remove(gpu);
            return Next::Waits(who.to_owned());
        }
        if sight.usage != Usage::Idle {
            return self.beside(now, gpu, sight, step);
        }
        let fence = self.fences.entry(gpu.to_owned()).or_default();
        if let Some(until) = fence.left_alone {
            if now < until {
                return Next::Waits("a claim had a part of it".to_owned());
            }
            fence.left_alone = None;
        }
        if !sight.is_fenced {
            fence.published = None;
            return Next::Fence;
        }
        let published = *fence.published.get_or_insert(now);
        let aftermath = u64::try_from(AFTERMATH.as_millis()).unwrap_or(u64::MAX);
        if now.0 < published.0.saturating_add(aftermath) || now < fence.not_before {
            return Next::Fence;
        }
        let Some(allocated) = &sight.allocated else {
            return Next::Ask;
        };
        let Some(claim) = sight.keeps_from(allocated) else {
            return Next::Step(step);
        };
        *fence = Fence::left_alone_from(now);
        Next::Waits(claim.to_owned())
    }

    /// A step on a GPU that is in use. Nothing of it is hidden: what is published stays as it is.
    fn beside(&mut self, now: Milliseconds, gpu: &str, sight: &Sight<'_>, step: Step) -> Next {
        let fence = self.fences.remove(gpu);
        let left_alone = fence.and_then(|fence| fence.left_alone);
        if let Some(until) = left_alone.filter(|until| now < *until) {
            self.fences.insert(gpu.to_owned(), Fence::left_alone(until));
            return Next::Waits("a claim had a part of it, or a step failed".to_owned());
        }
        let Some(allocated) = &sight.allocated else {
            return Next::Ask;
        };
        let Some(claim) = sight.keeps_from(allocated) else {
            return Next::Step(step);
        };
        let fence = Fence::left_alone_from(now);
        self.fences.insert(gpu.to_owned(), fence);
        Next::Waits(claim.to_owned())
    }

    /// A step was taken, or failed. After a failure its GPU stays tainted if it was, and the step is tried again later.
    pub fn stepped(&mut self, now: Milliseconds, gpu: &str, is_done: bool) {
        let Some(fence) = self.fences.get_mut(gpu) else {
            if !is_done {
                let fence = Fence::left_alone_from(now);
                self.fences.insert(gpu.to_owned(), fence);
            }
            return;
        };
        if is_done {
            fence.failures = 0;
            return;
        }
        let (shortest, longest) = RETRY_MILLISECONDS;
        let pause = shortest.saturating_mul(1_u64.checked_shl(fence.failures).unwrap_or(u64::MAX));
        fence.failures = fence.failures.saturating_add(1);
        fence.not_before = Milliseconds(now.0.saturating_add(pause.min(longest)));
    }

    /// Only these GPUs have a layout.
    pub fn keep(&mut self, gpus: &BTreeSet<String>) {
        self.fences.retain(|gpu, _| gpus.contains(gpu));
    }

    /// UUIDs of the GPUs that are to be tainted.
    pub fn fenced(&self) -> BTreeSet<String> {
        let fenced = self.fences.iter();
        let fenced = fenced.filter(|(_, fence)| fence.left_alone.is_none());
        fenced.map(|(gpu, _)| gpu.clone()).collect()
    }
}
