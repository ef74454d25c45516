//! How a GPU is brought to a declared layout, or out of MIG mode: step by step, as a state machine without IO.
//!
//! What is there is looked at before each step, and the step follows from that and from the layout alone. So a crash at any step loses
//! nothing: the next look goes on from what is there. What fits the layout already stays.
//!
//! **While idle.** A step is taken only after its GPU carries a taint in what is published, for as long as kube-scheduler may still write an
//! allocation by what it knew before, and while no record, no claim and no process has any part of it (what is had for administrative access is taken
//! from nobody, and does not count). A GPU that is used is not
//! tainted: the layout waits until it is idle, and takes no capacity meanwhile.
//!
//! **Claims that wait for it.** After a reboot the slices of a layout are gone, and pods that restart in place have claims for them, which nobody
//! prepares before they are there. So a claim whose devices are slices of the layout keeps no step from being taken, and the layout is laid so that these
//! are where they were. Nor does who uses one slice keep another one from being made beside it: nothing that is published is any other for that.
//!
//! **Two instances** during an update take each step under the lock of the GPU, by what they find then; the second finds it done.
//! If they are told different layouts, the one that stays has the last step.

use std::collections::{BTreeMap, BTreeSet};

use muster_device::{MigFacts, MigInstance, MigProfile, Placement};

use super::settings::Cut;
use crate::{
    prepare::Milliseconds,
    slices::{board::placements_in_order, others::AFTERMATH},
};

/// Shortest and longest pause after a step that failed.
const RETRY_MILLISECONDS: (u64, u64) = (10_000, 600_000);
/// How long a GPU is left alone of which a claim was found, before it is tainted again.
const LEFT_ALONE_MILLISECONDS: u64 = 60_000;

/// One change of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Switch its MIG mode on.
    SwitchOn,
    /// Switch its MIG mode off.
    SwitchOff,
    /// Remove a slice that the layout does not have, or that is not whole.
    Destroy {
        /// Number of its GPU instance.
        gpu_instance: u32,
        /// Where it lies.
        placement: Placement,
    },
    /// Make a slice.
    Create {
        /// What kind.
        profile: MigProfile,
        /// Where.
        placement: Placement,
    },
}

/// What a GPU is to become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Cut like this.
    Cut(Cut),
    /// Whole, out of MIG mode. No slice is removed for that.
    Whole,
}

impl Goal {
    /// The steps from what is there to the goal; none: it is there. An error says why they cannot lead there.
    pub fn steps(
        &self,
        mig: &MigFacts,
        live: &[MigInstance],
        awaited: &[Part],
        may_toggle: bool,
    ) -> Result<Vec<Step>, String> {
        match self {
            Self::Cut(cut) => steps(mig, live, cut, awaited, may_toggle),
            Self::Whole => steps_to_whole(mig, live, may_toggle),
        }
    }
}

/// A slice by NVML's number of its profile, and where it lies.
pub type Part = (u32, Placement);

/// A claim that has a part of a GPU, by the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocated {
    /// Which claim it is, for people.
    pub claim: String,
    /// Its slices of the GPU; `None`: it has the whole GPU.
    pub slices: Option<Vec<Part>>,
    /// Whether it has them for administrative access: it takes them from nobody then, and they may go while it looks at them.
    pub is_for_admin: bool,
}

/// A GPU with slices stays as it is: whoever made them wants them.
fn steps_to_whole(
    mig: &MigFacts,
    live: &[MigInstance],
    may_toggle: bool,
) -> Result<Vec<Step>, String> {
    if !mig.current {
        return Ok(Vec::new());
    }
    if !live.is_empty() {
        return Err(format!("{} slices are on it", live.len()));
    }
    if !may_toggle {
        return Err(
            "driver.mig.toggle is not WhenIdle, or it would have to be reset (Ampere)".to_owned(),
        );
    }
    Ok(vec![Step::SwitchOff])
}

/// The steps from what is there to the layout; none: it is there. An error says why they cannot lead there.
fn steps(
    mig: &MigFacts,
    live: &[MigInstance],
    cut: &Cut,
    awaited: &[Part],
    may_toggle: bool,
) -> Result<Vec<Step>, String> {
    if !mig.current {
        return match (cut.values().all(|count| *count == 0), mig.pending, may_toggle) {
            (true, _, _) => Ok(Vec::new()),
            (_, true, _) => Err("its MIG mode is on after the next reset only".to_owned()),
            (_, false, true) => Ok(vec![Step::SwitchOn]),
            (_, false, false) => Err(
                "it is not in MIG mode, and nothing switches that: driver.mig.toggle is not WhenIdle, or it would have to be reset (Ampere)"
                    .to_owned(),
            ),
        };
    }
    let target = target(mig, live, cut, awaited)?;
    let is_wanted = |instance: &MigInstance| {
        let is_same = |(profile, placement): &(&MigProfile, Placement)| {
            profile.gpu_instance_profile == instance.profile && *placement == instance.placement
        };
        !instance.is_divided && target.iter().any(is_same)
    };
    let destroy = live.iter().filter(|instance| !is_wanted(instance));
    let destroy = destroy.map(|instance| Step::Destroy {
        gpu_instance: instance.gpu_instance,
        placement: instance.placement,
    });
    let is_there = |profile: &MigProfile, placement: Placement| {
        live.iter().any(|instance| {
            instance.compute_instance.is_some()
                && !instance.is_divided
                && instance.profile == profile.gpu_instance_profile
                && instance.placement == placement
        })
    };
    let create = target
        .iter()
        .filter(|(profile, placement)| !is_there(profile, *placement));
    let create = create.map(|(profile, placement)| Step::Create {
        profile: (*profile).clone(),
        placement: *placement,
    });
    Ok(destroy.chain(create).collect())
}

/// Where the slices of a layout lie: what exists of it, and then what claims wait for, stays as far as the rest finds a place beside it.
fn target<'a>(
    mig: &'a MigFacts,
    live: &[MigInstance],
    cut: &Cut,
    awaited: &[Part],
) -> Result<Vec<(&'a MigProfile, Placement)>, String> {
    let mut wanted: Vec<&MigProfile> = Vec::new();
    for (name, &count) in cut {
        let Some(profile) = mig.profile(name) else {
            let known: Vec<&str> = mig.profiles.iter().map(|it| it.name.as_str()).collect();
            let known = muster_cluster::text::listed(known);
            return Err(format!("it has no profile {name}, but {known}"));
        };
        if count > profile.max_instances {
            return Err(format!(
                "it can have {} slices {name} at most, and the layout has {count}",
                profile.max_instances
            ));
        }
        wanted.extend((0..count).map(|_| profile));
    }
    let compute: u32 = wanted.iter().map(|profile| profile.compute_slices).sum();
    if compute > mig.compute_slices() {
        return Err(format!(
            "the layout takes {compute} compute slices, and it has {}",
            mig.compute_slices()
        ));
    }
    wanted.sort_by_key(|profile| {
        std::cmp::Reverse((
            profile.memory_slices,
            profile.compute_slices,
            profile.gpu_instance_profile,
        ))
    });
    let candidates: BTreeMap<u32, Vec<Placement>> = wanted
        .iter()
        .map(|profile| {
            let number = profile.gpu_instance_profile;
            let there = live.iter().filter(|instance| instance.profile == number);
            let mut places: Vec<Placement> = there.map(|instance| instance.placement).collect();
            for placement in placements_in_order(mig, profile) {
                if !places.contains(&placement) {
                    places.push(placement);
                }
            }
            (number, places)
        })
        .collect();
    let with = |(mut fixed, rest): (Vec<(&'a MigProfile, Placement)>, Vec<&'a MigProfile>)| {
        let mut chosen = Vec::with_capacity(rest.len());
        place(&rest, &candidates, &fixed, &mut chosen).then(|| {
            fixed.append(&mut chosen);
            fixed
        })
    };
    with(fixed(&wanted, live, awaited))
        .or_else(|| with((Vec::new(), wanted)))
        .ok_or_else(|| "no way to lay the slices of the layout side by side".to_owned())
}

/// Of a layout what is there and what claims wait for, as far as it does not overlap; and the rest of it.
fn fixed<'a>(
    wanted: &[&'a MigProfile],
    live: &[MigInstance],
    awaited: &[Part],
) -> (Vec<(&'a MigProfile, Placement)>, Vec<&'a MigProfile>) {
    let mut rest = wanted.to_vec();
    let mut fixed: Vec<(&MigProfile, Placement)> = Vec::new();
    let there = live.iter().filter(|instance| !instance.is_divided);
    let there = there.map(|instance| (instance.profile, instance.placement));
    for (number, placement) in there.chain(awaited.iter().copied()) {
        let mut left = rest.iter();
        let found = left.position(|profile| {
            profile.gpu_instance_profile == number && profile.placements.contains(&placement)
        });
        let is_free = !fixed.iter().any(|(_, other)| other.overlaps(placement));
        if let Some(position) = found.filter(|_| is_free) {
            fixed.push((rest.remove(position), placement));
        }
    }
    (fixed, rest)
}

/// Finds a place for each: slices of one profile in the order of their candidates, so that no set of places is tried twice.
fn place<'a>(
    wanted: &[&'a MigProfile],
    candidates: &BTreeMap<u32, Vec<Placement>>,
    fixed: &[(&'a MigProfile, Placement)],
    chosen: &mut Vec<(&'a MigProfile, Placement)>,
) -> bool {
    let Some((profile, rest)) = wanted.split_first() else {
        return true;
    };
    let number = profile.gpu_instance_profile;
    let places = candidates.get(&number).map(Vec::as_slice);
    let places = places.unwrap_or_default();
    let before = chosen
        .last()
        .filter(|(it, _)| it.gpu_instance_profile == number);
    let first = before.and_then(|(_, last)| places.iter().position(|place| place == last));
    let first = first.map_or(0, |position| position + 1);
    for &placement in places.iter().skip(first) {
        let mut taken = fixed.iter().chain(chosen.iter());
        if taken.any(|(_, other)| other.overlaps(placement)) {
            continue;
        }
        chosen.push((profile, placement));
        if place(rest, candidates, fixed, chosen) {
            return true;
        }
        chosen.pop();
    }
    false
}

/// Who has a part of a GPU, as far as this node can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Nobody.
    Idle,
    /// Somebody; who it is, for people.
    Used(String),
    /// The same, and each of them has slices that are there, and no more.
    UsedInSlices(String),
}

impl Usage {
    /// Who keeps a step from being taken. A slice is made where nothing lies.
    pub fn forbids(&self, step: &Step) -> Option<&str> {
        match (self, step) {
            (Self::Idle, _) | (Self::UsedInSlices(_), Step::Create { .. }) => None,
            (Self::Used(who) | Self::UsedInSlices(who), _) => Some(who),
        }
    }
}

/// What is seen of a GPU that is to become something.
#[derive(Clone, Debug)]
pub struct Sight<'a> {
    /// What it can be cut into.
    pub mig: &'a MigFacts,
    /// Its slices, as they are now.
    pub live: &'a [MigInstance],
    /// Its slices, as what is published has them.
    pub published: &'a [MigInstance],
    /// Who has a part of it, by records and processes.
    pub usage: Usage,
    /// Which claims have a part of it, by the API server; `None`: it was not asked.
    pub allocated: Option<Vec<Allocated>>,
    /// Whether its taint is published.
    pub is_fenced: bool,
    /// What it is to become.
    pub goal: &'a Goal,
    /// Whether its mode may be switched.
    pub may_toggle: bool,
}

impl Sight<'_> {
    /// The claim that keeps the GPU as it is: one that has a part of it which it will not have any more.
    fn keeps_from<'b>(&self, allocated: &'b [Allocated]) -> Option<&'b str> {
        let target = match self.goal {
            Goal::Cut(cut) => target(self.mig, self.live, cut, &awaited(allocated)),
            Goal::Whole => Ok(Vec::new()),
        };
        let target = target.unwrap_or_default();
        let has = |(number, at): &Part| {
            let is_it = |(profile, placement): &(&MigProfile, Placement)| {
                profile.gpu_instance_profile == *number && placement == at
            };
            target.iter().any(is_it)
        };
        let is_kept = |it: &&Allocated| {
            let slices = it.slices.as_ref();
            it.is_for_admin || slices.is_some_and(|slices| slices.iter().all(has))
        };
        let claim = allocated.iter().find(|it| !is_kept(it))?;
        Some(&claim.claim)
    }
}

/// The slices that claims have been given, whether they are there or not; those for administrative access last.
pub fn awaited(allocated: &[Allocated]) -> Vec<Part> {
    let of = |is_for_admin: bool| {
        let claims = allocated.iter();
        let claims = claims.filter(move |it| it.is_for_admin == is_for_admin);
        claims.filter_map(|it| it.slices.as_ref())
    };
    of(false).chain(of(true)).flatten().copied().collect()
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::fixtures::{a30, h100};

    fn cut(slices: &[(&str, u32)]) -> Cut {
        let slices = slices.iter();
        slices
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    /// A GPU as hardware: it refuses what does not fit.
    #[derive(Clone)]
    struct Card {
        mig: MigFacts,
        live: Vec<MigInstance>,
        next: u32,
    }

    impl Card {
        fn new(mig: MigFacts) -> Self {
            Self {
                mig,
                live: Vec::new(),
                next: 1,
            }
        }

        fn instance(&mut self, profile: u32, placement: Placement, whole: bool) -> MigInstance {
            self.next += 1;
            MigInstance {
                placement,
                gpu_instance: self.next,
                compute_instance: whole.then_some(0),
                is_divided: false,
                profile,
                uuid: whole.then(|| format!("MIG-{}", self.next)),
            }
        }

        /// `half`: it breaks off in the middle.
        fn take(&mut self, step: &Step, half: bool) {
            match step {
                Step::SwitchOn => {
                    self.mig.current = true;
                    self.mig.pending = true;
                }
                Step::SwitchOff => {
                    assert!(self.live.is_empty(), "a GPU with slices is left as it is");
                    self.mig.current = false;
                    self.mig.pending = false;
                }
                Step::Destroy {
                    gpu_instance,
                    placement,
                } => {
                    let position = self
                        .live
                        .iter()
                        .position(|it| it.gpu_instance == *gpu_instance)
                        .expect("what is not there is not destroyed");
                    assert_eq!(self.live[position].placement, *placement);
                    if half {
                        self.live[position].compute_instance = None;
                        self.live[position].uuid = None;
                    } else {
                        self.live.remove(position);
                    }
                }
                Step::Create { profile, placement } => {
                    let number = profile.gpu_instance_profile;
                    self.live.retain(|it| {
                        let is_begun = it.profile == number && it.compute_instance.is_none();
                        !(is_begun && it.placement == *placement)
                    });
                    let taken = |it: &MigInstance| it.placement.overlaps(*placement);
                    assert!(!self.live.iter().any(taken), "the place is taken");
                    let made = self.instance(number, *placement, !half);
                    self.live.push(made);
                }
            }
        }

        fn counts(&self) -> Cut {
            let mut counts = Cut::new();
            for it in &self.live {
                assert!(it.compute_instance.is_some() && !it.is_divided);
                let profile = self.mig.profiles.iter();
                let mut profile = profile.filter(|p| p.gpu_instance_profile == it.profile);
                *counts
                    .entry(profile.next().unwrap().name.clone())
                    .or_default() += 1;
            }
            counts
        }
    }

    fn layouts() -> Vec<Cut> {
        vec![
            cut(&[]),
            cut(&[("1g.10gb", 7)]),
            cut(&[("1g.10gb", 6), ("1g.10gb+me", 1)]),
            cut(&[("1g.10gb", 2), ("2g.20gb", 1), ("3g.40gb", 1)]),
            cut(&[("1g.20gb", 4)]),
            cut(&[("3g.40gb", 2)]),
            cut(&[("3g.40gb", 1), ("4g.40gb", 1)]),
            cut(&[("7g.80gb", 1)]),
        ]
    }

    #[test]
    fn every_layout_is_reached_from_every_other_whatever_breaks_off() {
        for before in layouts() {
            for after in layouts() {
                // At which step it breaks off, if at all.
                for broken in [None, Some(0), Some(1), Some(3), Some(7), Some(11)] {
                    let mut card = Card::new(h100(true));
                    for layout in [&before, &after] {
                        let mut taken = 0;
                        loop {
                            let steps = steps(&card.mig, &card.live, layout, &[], false).unwrap();
                            let Some(step) = steps.first() else {
                                break;
                            };
                            card.take(step, broken == Some(taken));
                            taken += 1;
                            assert!(taken < 40, "{before:?} to {after:?}");
                        }
                        assert_eq!(card.counts(), *layout);
                    }
                }
            }
        }
    }

    #[test]
    fn what_fits_the_layout_stays() {
        let mut card = Card::new(h100(true));
        let at = |start, size| Placement { start, size };
        let large = card.instance(9, at(0, 4), true);
        let small = card.instance(19, at(6, 1), true);
        card.live = vec![large.clone(), small.clone()];
        let layout = cut(&[("3g.40gb", 1), ("2g.20gb", 1), ("1g.10gb", 1)]);
        let steps = steps(&card.mig, &card.live, &layout, &[], false).unwrap();
        let [Step::Create { profile, placement }] = &steps[..] else {
            panic!("{steps:?}");
        };
        assert_eq!((profile.name.as_str(), *placement), ("2g.20gb", at(4, 2)));
        // One of which somebody divided the compute is no slice.
        card.live[1].is_divided = true;
        let again = super::steps(&card.mig, &card.live, &layout, &[], false).unwrap();
        assert_eq!(again.len(), 3, "{again:?}");
    }

    #[test]
    fn a_layout_that_cannot_be_is_refused_with_what_could() {
        let refused = |mig: &MigFacts, slices: &[(&str, u32)], may_toggle: bool| {
            steps(mig, &[], &cut(slices), &[], may_toggle).unwrap_err()
        };
        for (slices, cause) in [
            (vec![("1g.5gb", 1)], "1g.10gb"),
            (vec![("1g.10gb", 8)], "7 slices 1g.10gb at most"),
            (
                vec![("4g.40gb", 1), ("3g.40gb", 1), ("1g.10gb", 1)],
                "8 compute",
            ),
            (vec![("3g.40gb", 2), ("1g.10gb", 1)], "side by side"),
        ] {
            let why = refused(&h100(true), &slices, true);
            assert!(why.contains(cause), "{why}");
        }
        assert!(refused(&a30(false), &[("1g.6gb", 1)], false).contains("mig.toggle"));
        let off = h100(false);
        assert_eq!(
            steps(&off, &[], &cut(&[("1g.10gb", 1)]), &[], true),
            Ok(vec![Step::SwitchOn])
        );
        assert_eq!(steps(&off, &[], &cut(&[]), &[], false), Ok(Vec::new()));
        let pending = MigFacts {
            pending: true,
            ..off
        };
        assert!(refused(&pending, &[("1g.10gb", 1)], true).contains("reset"));
    }

    #[test]
    fn a_gpu_is_taken_out_of_mig_mode_if_it_has_no_slice_and_may_be_switched() {
        let mut card = Card::new(h100(true));
        let slice = card.instance(19, Placement { start: 0, size: 1 }, true);
        let refused = |live: &[MigInstance], may_toggle: bool| {
            Goal::Whole
                .steps(&h100(true), live, &[], may_toggle)
                .unwrap_err()
        };
        assert!(refused(&[slice], true).contains("1 slices"));
        assert!(refused(&[], false).contains("mig.toggle"));
        let steps = Goal::Whole.steps(&card.mig, &card.live, &[], true).unwrap();
        assert_eq!(steps, [Step::SwitchOff]);
        card.take(&steps[0], false);
        assert_eq!(
            Goal::Whole.steps(&card.mig, &card.live, &[], true),
            Ok(Vec::new())
        );
    }

    /// The claim that has the whole GPU, if one has.
    fn of_whole(claim: &str) -> Vec<Allocated> {
        let claim = (!claim.is_empty()).then(|| Allocated {
            claim: claim.to_owned(),
            slices: None,
            is_for_admin: false,
        });
        claim.into_iter().collect()
    }

    /// What is asked at a second, of a GPU of which nothing is cut yet.
    fn asked(applier: &mut Applier, second: u64, usage: &str, claim: &str, fenced: bool) -> Next {
        let usage_of = |who: &str| match who {
            "" => Usage::Idle,
            who => Usage::Used(who.to_owned()),
        };
        let mig = h100(true);
        let goal = Goal::Cut(cut(&[("7g.80gb", 1)]));
        let sight = Sight {
            mig: &mig,
            live: &[],
            published: &[],
            usage: usage_of(usage),
            allocated: (claim != "?").then(|| of_whole(claim)),
            is_fenced: fenced,
            goal: &goal,
            may_toggle: false,
        };
        applier.next(Milliseconds(second * 1_000), "GPU-0", &sight)
    }

    #[test]
    fn a_step_is_taken_30_s_after_the_taint_and_only_while_nobody_has_a_part_of_the_gpu() {
        let is_fenced = |applier: &Applier| applier.fenced().contains("GPU-0");
        let mut applier = Applier::default();
        let waits = |who: &str| Next::Waits(who.to_owned());
        assert_eq!(asked(&mut applier, 0, "job", "?", false), waits("job"));
        assert!(!is_fenced(&applier), "what is used is not tainted");
        assert_eq!(asked(&mut applier, 1, "", "?", false), Next::Fence);
        assert!(is_fenced(&applier));
        assert_eq!(asked(&mut applier, 5, "", "?", true), Next::Fence);
        assert_eq!(asked(&mut applier, 34, "", "?", true), Next::Fence);
        assert_eq!(asked(&mut applier, 35, "", "?", true), Next::Ask);
        let step = asked(&mut applier, 35, "", "", true);
        assert!(matches!(step, Next::Step(Step::Create { .. })), "{step:?}");
        // It fails: it stays tainted, and is tried again later each time.
        applier.stepped(Milliseconds(35_000), "GPU-0", false);
        assert_eq!(asked(&mut applier, 44, "", "", true), Next::Fence);
        assert!(matches!(
            asked(&mut applier, 45, "", "", true),
            Next::Step(_)
        ));
        applier.stepped(Milliseconds(45_000), "GPU-0", false);
        assert_eq!(asked(&mut applier, 64, "", "", true), Next::Fence);
        assert!(is_fenced(&applier));
        // A claim was allocated before the taint was seen.
        assert_eq!(asked(&mut applier, 65, "", "claim", true), waits("claim"));
        assert!(!is_fenced(&applier));
        assert!(matches!(
            asked(&mut applier, 124, "", "?", false),
            Next::Waits(_)
        ));
        assert_eq!(asked(&mut applier, 125, "", "?", false), Next::Fence);
        assert!(is_fenced(&applier));
        // The taint is lost: the time begins anew.
        assert_eq!(asked(&mut applier, 126, "", "", true), Next::Fence);
        assert_eq!(asked(&mut applier, 150, "", "", false), Next::Fence);
        assert_eq!(asked(&mut applier, 160, "", "", true), Next::Fence);
        assert_eq!(asked(&mut applier, 189, "", "", true), Next::Fence);
        assert!(matches!(
            asked(&mut applier, 190, "", "", true),
            Next::Step(_)
        ));
        applier.keep(&BTreeSet::new());
        assert!(!is_fenced(&applier));
    }

    #[test]
    fn a_gpu_stays_tainted_until_what_is_published_shows_its_slices() {
        let mut card = Card::new(h100(true));
        let goal = Goal::Cut(cut(&[("7g.80gb", 1)]));
        let mut applier = Applier::default();
        let mut next = |card: &Card, published: &[MigInstance], second: u64| {
            let sight = Sight {
                mig: &card.mig,
                live: &card.live,
                published,
                usage: Usage::Idle,
                allocated: Some(Vec::new()),
                is_fenced: true,
                goal: &goal,
                may_toggle: false,
            };
            let next = applier.next(Milliseconds(second * 1_000), "GPU-0", &sight);
            (next, applier.fenced().len())
        };
        assert_eq!(next(&card, &[], 0), (Next::Fence, 1));
        let (Next::Step(step), 1) = next(&card, &[], 30) else {
            panic!("a step is due");
        };
        card.take(&step, false);
        assert_eq!(next(&card, &[], 31), (Next::Shows, 1));
        let live = card.live.clone();
        assert_eq!(next(&card, &live, 32), (Next::Done, 0));
    }

    /// After a reboot nothing is there, and pods that restart in place wait for slices that they were given before.
    #[test]
    fn claims_for_slices_of_a_layout_do_not_keep_it_from_being_applied_and_find_them_where_they_were()
     {
        let at = |start, size| Placement { start, size };
        let goal = Goal::Cut(cut(&[("1g.10gb", 2), ("3g.40gb", 1)]));
        let of = |slices: Option<&[Part]>| Allocated {
            claim: "ml/train".to_owned(),
            slices: slices.map(<[Part]>::to_vec),
            is_for_admin: false,
        };
        let watching = |slices: Option<&[Part]>| Allocated {
            is_for_admin: true,
            ..of(slices)
        };
        for (what, allocated, is_applied) in [
            ("nobody", vec![], true),
            ("a slice", vec![of(Some(&[(19, at(2, 1))]))], true),
            (
                "all of them, in several claims",
                vec![
                    of(Some(&[(9, at(4, 4)), (19, at(0, 1))])),
                    of(Some(&[(19, at(3, 1))])),
                ],
                true,
            ),
            ("the whole GPU", vec![of(None)], false),
            (
                "the whole GPU, for administrative access",
                vec![watching(None)],
                true,
            ),
            (
                "a slice for administrative access, and another one",
                vec![
                    watching(Some(&[(19, at(2, 1))])),
                    of(Some(&[(19, at(3, 1))])),
                ],
                true,
            ),
            (
                "a slice that it has not",
                vec![of(Some(&[(14, at(0, 2))]))],
                false,
            ),
            (
                "more slices than it has",
                vec![of(Some(&[(19, at(0, 1)), (19, at(1, 1)), (19, at(2, 1))]))],
                false,
            ),
        ] {
            let mut card = Card::new(h100(true));
            let mut applier = Applier::default();
            let mut second = 0;
            let next = loop {
                let sight = Sight {
                    mig: &card.mig,
                    live: &card.live,
                    published: &card.live,
                    usage: Usage::Idle,
                    allocated: Some(allocated.clone()),
                    is_fenced: true,
                    goal: &goal,
                    may_toggle: false,
                };
                match applier.next(Milliseconds(second * 1_000), "GPU-0", &sight) {
                    Next::Step(step) => card.take(&step, false),
                    Next::Fence => {}
                    next => break next,
                }
                second += 30;
                assert!(second < 1_000, "{what}");
            };
            assert_eq!(next == Next::Done, is_applied, "{what}: {next:?}");
            assert_eq!(card.live.is_empty(), !is_applied, "{what}");
            if is_applied {
                let has = |(profile, placement): &Part| {
                    let mut live = card.live.iter();
                    live.any(|it| it.profile == *profile && it.placement == *placement)
                };
                assert!(awaited(&allocated).iter().all(has), "{what}");
            }
        }
    }

    /// The first pod has its slice by now, and the next one waits for its own.
    #[test]
    fn who_uses_a_slice_keeps_no_other_from_being_made_and_every_other_step_from_being_taken() {
        let at = |start, size| Placement { start, size };
        let mut card = Card::new(h100(true));
        let first = card.instance(19, at(0, 1), true);
        let unwanted = card.instance(14, at(4, 2), true);
        let goal = Goal::Cut(cut(&[("1g.10gb", 2)]));
        for (live, usage, is_taken) in [
            (
                vec![first.clone()],
                Usage::UsedInSlices("job".to_owned()),
                true,
            ),
            (vec![first.clone()], Usage::Used("job".to_owned()), false),
            (
                vec![first, unwanted],
                Usage::UsedInSlices("job".to_owned()),
                false,
            ),
        ] {
            let sight = Sight {
                mig: &card.mig,
                live: &live,
                published: &live,
                usage,
                allocated: Some(Vec::new()),
                is_fenced: false,
                goal: &goal,
                may_toggle: false,
            };
            let mut applier = Applier::default();
            let next = applier.next(Milliseconds(0), "GPU-0", &sight);
            let is_step = matches!(next, Next::Step(Step::Create { .. }));
            assert_eq!(is_step, is_taken, "{next:?}");
            assert_eq!(next == Next::Waits("job".to_owned()), !is_taken, "{next:?}");
            assert!(applier.fenced().is_empty(), "what is used is not tainted");
        }
    }

    /// Before claims are asked for it is not known that the large slice is awaited where nobody would lay it first. What lies in its usual place is
    /// in use, and is of the layout: it is no reason to wait.
    #[test]
    fn a_slice_of_the_layout_that_is_in_use_stays_and_the_rest_is_laid_around_it() {
        let at = |start, size| Placement { start, size };
        let mig = h100(true);
        let usual = placements_in_order(&mig, mig.profile("3g.40gb").unwrap());
        assert_eq!(usual, [at(4, 4), at(0, 4)]);
        let mut card = Card::new(mig);
        card.live = vec![card.instance(19, at(4, 1), true)];
        let goal = Goal::Cut(cut(&[("1g.10gb", 2), ("3g.40gb", 1)]));
        let allocated = vec![Allocated {
            claim: "ml/train".to_owned(),
            slices: Some(vec![(9, at(0, 4)), (19, at(5, 1))]),
            is_for_admin: false,
        }];
        let mut applier = Applier::default();
        let mut next = |card: &Card, allocated: Option<Vec<Allocated>>| {
            let sight = Sight {
                mig: &card.mig,
                live: &card.live,
                published: &card.live,
                usage: Usage::UsedInSlices("job".to_owned()),
                allocated,
                is_fenced: false,
                goal: &goal,
                may_toggle: false,
            };
            applier.next(Milliseconds(0), "GPU-0", &sight)
        };
        for _ in 0..2 {
            assert_eq!(next(&card, None), Next::Ask);
            let Next::Step(step @ Step::Create { .. }) = next(&card, Some(allocated.clone()))
            else {
                panic!("what is awaited is made");
            };
            card.take(&step, false);
        }
        assert_eq!(next(&card, None), Next::Done);
        let lies: BTreeSet<Placement> = card.live.iter().map(|it| it.placement).collect();
        assert_eq!(lies, BTreeSet::from([at(0, 4), at(4, 1), at(5, 1)]));
    }

    /// All claims of the cluster are listed each time.
    #[test]
    fn beside_who_uses_a_gpu_claims_are_asked_for_once_in_a_minute_and_a_step_that_fails_waits_as_long()
     {
        let mut card = Card::new(h100(true));
        let live = vec![card.instance(19, Placement { start: 0, size: 1 }, true)];
        let goal = Goal::Cut(cut(&[("1g.10gb", 2)]));
        let mut applier = Applier::default();
        let next = |applier: &mut Applier, second: u64, allocated: Option<Vec<Allocated>>| {
            let sight = Sight {
                mig: &card.mig,
                live: &live,
                published: &live,
                usage: Usage::UsedInSlices("job".to_owned()),
                allocated,
                is_fenced: false,
                goal: &goal,
                may_toggle: false,
            };
            applier.next(Milliseconds(second * 1_000), "GPU-0", &sight)
        };
        assert_eq!(next(&mut applier, 0, None), Next::Ask);
        let waits = next(&mut applier, 0, Some(of_whole("claim")));
        assert_eq!(waits, Next::Waits("claim".to_owned()));
        assert!(matches!(next(&mut applier, 59, None), Next::Waits(_)));
        assert_eq!(next(&mut applier, 60, None), Next::Ask);
        let step = next(&mut applier, 60, Some(Vec::new()));
        assert!(matches!(step, Next::Step(Step::Create { .. })), "{step:?}");
        applier.stepped(Milliseconds(60_000), "GPU-0", false);
        assert!(matches!(next(&mut applier, 119, None), Next::Waits(_)));
        assert_eq!(next(&mut applier, 120, None), Next::Ask);
        assert!(applier.fenced().is_empty());
    }
}
