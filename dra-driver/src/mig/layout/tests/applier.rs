//! When steps are taken.

use std::collections::BTreeSet;

use super::*;
use crate::{prepare::Milliseconds, slices::board::placements_in_order};

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
fn claims_for_slices_of_a_layout_do_not_keep_it_from_being_applied_and_find_them_where_they_were() {
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
        let Next::Step(step @ Step::Create { .. }) = next(&card, Some(allocated.clone())) else {
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
