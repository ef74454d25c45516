//! From one layout to another, on a GPU that refuses what does not fit.

mod applier;

use muster_device::{MigFacts, MigInstance, Placement};

use super::{steps::steps as steps_to, *};
use crate::{
    inventory::fixtures::{a30, h100},
    mig::settings::Cut,
};

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
                        let steps = steps_to(&card.mig, &card.live, layout, &[], false).unwrap();
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
    let steps = steps_to(&card.mig, &card.live, &layout, &[], false).unwrap();
    let [Step::Create { profile, placement }] = &steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!((profile.name.as_str(), *placement), ("2g.20gb", at(4, 2)));
    // One of which somebody divided the compute is no slice.
    card.live[1].is_divided = true;
    let again = steps_to(&card.mig, &card.live, &layout, &[], false).unwrap();
    assert_eq!(again.len(), 3, "{again:?}");
}

#[test]
fn a_layout_that_cannot_be_is_refused_with_what_could() {
    let refused = |mig: &MigFacts, slices: &[(&str, u32)], may_toggle: bool| {
        steps_to(mig, &[], &cut(slices), &[], may_toggle).unwrap_err()
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
        steps_to(&off, &[], &cut(&[("1g.10gb", 1)]), &[], true),
        Ok(vec![Step::SwitchOn])
    );
    assert_eq!(steps_to(&off, &[], &cut(&[]), &[], false), Ok(Vec::new()));
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
