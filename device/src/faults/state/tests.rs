//! The ways in which other drivers lose faults, and what must hold of any history.

use super::{
    super::{
        Cause, Condition, Errors, GpuEvent, GpuEventKind, Meaning, Repeat, Rule, RuleKey, Scope,
        fault::LINKS_SETTLE_SECONDS, observation::of_xid,
    },
    *,
};

const NOW: i64 = 1_790_000_000;
const FIRST: Placement = Placement { start: 0, size: 2 };
const SECOND: Placement = Placement { start: 2, size: 2 };

fn known(uuids: &[&str]) -> KnownAddresses {
    let address = |index: usize| PciAddress::parse(&format!("0000:{:02x}:00", index + 1));
    let known = uuids.iter().enumerate();
    KnownAddresses(
        known
            .map(|(index, uuid)| ((*uuid).to_owned(), address(index)))
            .collect(),
    )
}

fn gpu(uuid: &str) -> Device {
    Device::Uuid(uuid.to_owned())
}

fn xid(code: u32) -> Observation {
    of_xid(code, None, &Catalogue::shipped(), None, |_| None)
}

fn in_slice(code: u32, placement: Placement) -> Observation {
    of_xid(code, Some(1), &Catalogue::shipped(), None, |_| {
        Some(placement)
    })
}

fn class(state: &FaultState, uuid: &str, part: Option<Placement>) -> Option<FaultClass> {
    state.fault(uuid, part).map(|fault| fault.class)
}

fn recovered(
    state: &mut FaultState,
    uuid: &str,
    proof: Proof,
    mark: u64,
    condition: &Condition,
) -> Result<usize, NotValid> {
    let recovery = Recovery {
        proof,
        scope: Scope::Gpu,
        mark,
    };
    let validation = Validation {
        condition,
        has_fabric: true,
        best_links: None,
    };
    state.recover(uuid, &recovery, &validation)
}

/// As it comes back from the disk.
fn restarted(state: &FaultState) -> FaultState {
    serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap()
}

#[test]
fn a_milder_event_after_a_fault_lowers_nothing() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    assert_eq!(
        state.observe(&gpu("GPU-a"), xid(48), &known, NOW),
        Change::New
    );
    for milder in [43, 13, 31, 63, 45, 94] {
        let _ = state.observe(&gpu("GPU-a"), xid(milder), &known, NOW + 1);
        assert_eq!(
            class(&state, "GPU-a", None),
            Some(FaultClass::Reset),
            "{milder}"
        );
    }
    assert_eq!(
        state.observe(&gpu("GPU-a"), xid(79), &known, NOW),
        Change::New
    );
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reboot));
}

#[test]
fn the_first_fault_in_a_storm_of_others_is_not_dropped_and_the_storm_costs_no_memory() {
    let uuids = ["GPU-a", "GPU-b"];
    let known = known(&uuids);
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-b"), xid(79), &known, NOW);
    for number in 0..10_000 {
        let _ = state.observe(&gpu("GPU-a"), xid(number % 200), &known, NOW);
    }
    assert_eq!(class(&state, "GPU-b", None), Some(FaultClass::Reboot));
    let size = serde_json::to_string(&state).unwrap().len();
    for number in 0..10_000 {
        let _ = state.observe(&gpu("GPU-a"), xid(number % 200), &known, NOW);
    }
    let later = serde_json::to_string(&state).unwrap().len();
    assert!(later < size + 256, "{size} {later}");
}

#[test]
fn what_is_to_be_published_stays_until_it_is_mended_however_often_that_fails() {
    // A publication is made of the state, not of the event: who asks again is told again.
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-a"), xid(48), &known, NOW);
    for _ in 0..3 {
        assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reset));
    }
}

#[test]
fn a_gpu_that_is_not_available_and_one_that_nobody_knows_taint_no_other() {
    let known = known(&["GPU-a", "GPU-b"]);
    let mut state = FaultState::default();
    let unavailable = Observation {
        class: FaultClass::Reset,
        scope: Scope::Gpu,
        cause: Cause::Unavailable,
    };
    let _ = state.observe(&gpu("GPU-a"), unavailable, &known, NOW);
    let _ = state.observe(&gpu("GPU-unknown"), xid(79), &known, NOW);
    let elsewhere = PciAddress::parse("0000:ff:00").unwrap();
    let _ = state.observe(&Device::Address(elsewhere), xid(79), &known, NOW);
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reset));
    assert_eq!(class(&state, "GPU-b", None), None);
    assert_eq!(state.node_fault(|_| true), None);
    assert_eq!(state.waiting().len(), 2);
}

#[test]
fn a_gpu_that_the_machine_came_up_without_closes_the_node_no_longer() {
    let known = known(&["GPU-a", "GPU-b"]);
    let mut state = FaultState::default();
    state.begin_boot("one");
    let _ = state.observe(&gpu("GPU-a"), xid(79), &known, NOW);
    assert!(state.node_fault(|_| true).is_some());
    state.begin_boot("two");
    assert_eq!(state.node_fault(|uuid| uuid == "GPU-b"), None);
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reboot));
}

#[test]
fn a_gpu_that_is_to_be_exchanged_keeps_the_node_closed_until_the_reboot_and_no_longer() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    state.begin_boot("one");
    let _ = state.observe(&gpu("GPU-a"), xid(79), &known, NOW);
    state.begin_boot("two");
    let broken = Condition {
        row_remap_failure: Some(true),
        ..Condition::default()
    };
    let _ = state.look(&Catalogue::shipped(), "GPU-a", &broken, &known, NOW);
    let mark = state.boot_mark();
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Reboot, mark, &broken),
        Ok(1)
    );
    assert_eq!(state.node_fault(|_| true), None);
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Retire));
    let mark = state.mark();
    assert!(recovered(&mut state, "GPU-a", Proof::Operator, mark, &broken).is_err());
}

#[test]
fn an_event_of_a_whole_gpu_reaches_all_its_slices_and_one_of_a_slice_what_overlaps_it() {
    let known = known(&["GPU-a", "GPU-b"]);
    let mut whole = FaultState::default();
    let mut slice = FaultState::default();
    let _ = whole.observe(&gpu("GPU-a"), xid(95), &known, NOW);
    let _ = slice.observe(&gpu("GPU-a"), in_slice(94, FIRST), &known, NOW);
    let half = Placement { start: 0, size: 4 };
    for (part, of_slice) in [
        (None, Some(FaultClass::Contained)),
        (Some(FIRST), Some(FaultClass::Contained)),
        (Some(half), Some(FaultClass::Contained)),
        (Some(SECOND), None),
    ] {
        assert_eq!(class(&whole, "GPU-a", part), Some(FaultClass::Reset));
        assert_eq!(class(&slice, "GPU-a", part), of_slice, "{part:?}");
        assert_eq!(class(&whole, "GPU-b", part), None);
    }
}

#[test]
fn a_restart_and_a_reboot_forget_nothing() {
    let known = known(&["GPU-a", "GPU-b"]);
    let mut state = FaultState::default();
    state.begin_boot("one");
    let _ = state.observe(&gpu("GPU-a"), in_slice(94, FIRST), &known, NOW);
    let _ = state.observe(&gpu("GPU-b"), xid(79), &known, NOW);
    state.read_log(LogPosition { sequence: 77 });
    let mut state = restarted(&state);
    state.begin_boot("one");
    assert_eq!(state.log(), Some(LogPosition { sequence: 77 }));
    assert_eq!(
        class(&state, "GPU-a", Some(FIRST)),
        Some(FaultClass::Contained)
    );
    let mut state = restarted(&state);
    state.begin_boot("two");
    assert_eq!(state.log(), None, "the log begins anew");
    assert_eq!(
        class(&state, "GPU-a", Some(FIRST)),
        Some(FaultClass::Contained)
    );
    assert_eq!(class(&state, "GPU-b", None), Some(FaultClass::Reboot));
    let (mark, fine) = (state.boot_mark(), Condition::default());
    assert_eq!(
        recovered(&mut state, "GPU-b", Proof::Reboot, mark, &fine),
        Ok(1)
    );
    assert_eq!(class(&state, "GPU-b", None), None);
}

#[test]
fn faults_of_gpus_that_are_cut_anew_follow_the_hardware_and_not_the_number_of_the_instance() {
    // Where others exclude MIG, or look at a map of slices that was made once.
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let event = GpuEvent {
        gpu: Some("GPU-a".to_owned()),
        kind: GpuEventKind::Xid(94),
        gpu_instance: Some(1),
        compute_instance: Some(0),
    };
    for placement in [FIRST, SECOND] {
        let seen = event.observation(&Catalogue::shipped(), None, |_| Some(placement));
        let _ = state.observe(&gpu("GPU-a"), seen.unwrap(), &known, NOW);
    }
    assert_eq!(
        class(&state, "GPU-a", Some(FIRST)),
        Some(FaultClass::Contained)
    );
    assert_eq!(
        class(&state, "GPU-a", Some(SECOND)),
        Some(FaultClass::Contained)
    );
    // A recovery of one slice says nothing of the other.
    let recovery = Recovery {
        proof: Proof::Idle,
        scope: Scope::Slice(FIRST),
        mark: state.mark(),
    };
    let condition = Condition::default();
    let validation = Validation {
        condition: &condition,
        has_fabric: true,
        best_links: None,
    };
    assert_eq!(state.recover("GPU-a", &recovery, &validation), Ok(1));
    assert_eq!(class(&state, "GPU-a", Some(FIRST)), None);
    assert_eq!(
        class(&state, "GPU-a", Some(SECOND)),
        Some(FaultClass::Contained)
    );
}

#[test]
fn what_waits_for_a_gpu_is_its_own_once_it_is_known() {
    let mut state = FaultState::default();
    let none = KnownAddresses::default();
    let address = PciAddress::parse("0000:01:00").unwrap();
    let _ = state.observe(&Device::Address(address), xid(79), &none, NOW);
    let _ = state.observe(&gpu("GPU-b"), xid(94), &none, NOW);
    assert_eq!(state.node_fault(|_| true), None);
    let mut state = restarted(&state);
    assert_eq!(state.adopt(&none), Change::None);
    let known = known(&["GPU-a", "GPU-b"]);
    assert_eq!(state.adopt(&known), Change::New);
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reboot));
    assert_eq!(class(&state, "GPU-b", None), Some(FaultClass::Contained));
    assert_eq!(state.node_fault(|_| true).unwrap().0, "GPU-a");
    assert!(state.waiting().is_empty());
}

#[test]
fn so_many_gpus_wait_and_no_more() {
    let mut state = FaultState::default();
    for number in 0..=MOST_WAITING {
        let name = format!("GPU-{number}");
        let _ = state.observe(&gpu(&name), xid(79), &KnownAddresses::default(), NOW);
    }
    assert_eq!(
        (state.waiting().len(), state.unattributed()),
        (MOST_WAITING, 1)
    );
}

#[test]
fn a_fault_that_comes_during_its_recovery_stays_and_so_does_one_that_is_not_validated() {
    let known = known(&["GPU-a"]);
    let fine = Condition::default();
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-a"), xid(48), &known, NOW);
    let mark = state.mark();
    let _ = state.observe(&gpu("GPU-a"), xid(48), &known, NOW + 1);
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Reset, mark, &fine),
        Ok(0)
    );
    let mark = state.mark();
    let broken = Condition {
        recovery_action: Some(1),
        ..Condition::default()
    };
    assert!(recovered(&mut state, "GPU-a", Proof::Reset, mark, &broken).is_err());
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reset));
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Idle, mark, &fine),
        Ok(0)
    );
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Reset, mark, &fine),
        Ok(1)
    );
    assert_eq!(class(&state, "GPU-a", None), None);
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Reset, mark, &fine),
        Ok(0)
    );
}

#[test]
fn anomalies_taint_nobody_and_fade_and_faults_do_not() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-a"), xid(31), &known, NOW);
    assert_eq!(class(&state, "GPU-a", None), None);
    let _ = state.observe(&gpu("GPU-a"), xid(74), &known, NOW);
    assert_eq!(class(&state, "GPU-a", None), None);
    assert!(state.link_fault("GPU-a", None).is_some());
    assert_eq!(
        state.link_fault("GPU-a", Some(FIRST)),
        None,
        "a slice needs no NVLink"
    );
    assert_eq!(state.fade(NOW + ANOMALY_SECONDS - 1), 0);
    assert_eq!(state.fade(NOW + ANOMALY_SECONDS), 1);
    assert_eq!(state.fade(NOW + 1_000 * ANOMALY_SECONDS), 0);
    assert!(state.link_fault("GPU-a", None).is_some());
}

#[test]
fn nvlinks_that_were_active_and_are_not_any_more_are_a_fault_until_the_machine_is_started_anew() {
    let known = known(&["GPU-a"]);
    let links = |count| Condition {
        active_links: Some(count),
        ..Condition::default()
    };
    let mut state = FaultState::default();
    state.begin_boot("one");
    let _ = state.look(&Catalogue::shipped(), "GPU-a", &links(18), &known, NOW);
    assert_eq!(
        state.look(&Catalogue::shipped(), "GPU-a", &links(18), &known, NOW),
        Change::None
    );
    assert_eq!(state.link_fault("GPU-a", None), None);
    assert_eq!(
        state.look(&Catalogue::shipped(), "GPU-a", &links(16), &known, NOW),
        Change::None
    );
    let settled = NOW + LINKS_SETTLE_SECONDS;
    let look = |state: &mut FaultState| {
        state.look(&Catalogue::shipped(), "GPU-a", &links(16), &known, settled)
    };
    assert_eq!(look(&mut state), Change::New);
    assert_eq!(look(&mut state), Change::None);
    assert!(state.link_fault("GPU-a", None).is_some());
    state.begin_boot("two");
    assert!(state.link_fault("GPU-a", None).is_some());
    let _ = state.look(&Catalogue::shipped(), "GPU-a", &links(16), &known, NOW);
    assert_eq!(state.gpus()["GPU-a"].best_links(), Some(16));
}

#[test]
fn nvlinks_that_are_set_up_anew_are_no_fault() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let mut look = |links, now| {
        let condition = Condition {
            active_links: links,
            ..Condition::default()
        };
        let _ = state.look(&Catalogue::shipped(), "GPU-a", &condition, &known, now);
        state.link_fault("GPU-a", None).is_some()
    };
    assert!(!look(Some(18), NOW));
    for (links, now, is_fault) in [
        (Some(0), NOW + 10, false),
        (Some(17), NOW + 10 + LINKS_SETTLE_SECONDS - 1, false),
        // They are back, or nobody can tell for as long, as in MIG mode: it begins anew.
        (Some(18), NOW + 50, false),
        (Some(0), NOW + 60, false),
        (None, NOW + 70, false),
        (None, NOW + 70 + LINKS_SETTLE_SECONDS, false),
        (Some(17), NOW + 110, false),
        // The clock was set back.
        (Some(17), NOW - 1_000, false),
        (Some(17), NOW - 1_000 + LINKS_SETTLE_SECONDS - 1, false),
        (Some(17), NOW - 1_000 + LINKS_SETTLE_SECONDS, true),
    ] {
        assert_eq!(look(links, now), is_fault, "{links:?} {now}");
    }
}

#[test]
fn nvlinks_that_fail_and_do_not_always_answer_are_a_fault() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let mut is_fault = false;
    for (number, links) in [18, 17, 17, 17, 17].into_iter().enumerate() {
        let start = NOW + 20 * i64::try_from(number).unwrap();
        for (links, now) in [(Some(links), start), (None, start + 10)] {
            let condition = Condition {
                active_links: links,
                ..Condition::default()
            };
            let _ = state.look(&Catalogue::shipped(), "GPU-a", &condition, &known, now);
            is_fault = state.link_fault("GPU-a", None).is_some();
        }
        // They have been down for thirty seconds with the third look that finds them so.
        assert_eq!(is_fault, number >= 3, "{number}");
    }
    assert!(is_fault);
}

#[test]
fn what_a_person_found_in_order_is_over_whatever_its_class_and_its_links_are_what_they_are() {
    let known = known(&["GPU-a"]);
    let links = |count| Condition {
        active_links: Some(count),
        ..Condition::default()
    };
    let mut state = FaultState::default();
    let _ = state.look(&Catalogue::shipped(), "GPU-a", &links(18), &known, NOW);
    for class in FaultClass::ALL {
        let seen = Observation {
            class,
            scope: Scope::Gpu,
            cause: Cause::Xid(9_999),
        };
        let _ = state.observe(&gpu("GPU-a"), seen, &known, NOW);
    }
    let mark = state.mark();
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Operator, mark, &links(16)),
        Ok(FaultClass::ALL.len())
    );
    for now in [NOW, NOW + 10 * LINKS_SETTLE_SECONDS] {
        let _ = state.look(&Catalogue::shipped(), "GPU-a", &links(16), &known, now);
    }
    assert_eq!(state.link_fault("GPU-a", None), None);
    assert_eq!(state.gpus()["GPU-a"].best_links(), Some(16));
}

#[test]
fn of_gpus_that_are_not_there_any_more_all_can_be_forgotten() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-a"), xid(79), &known, NOW);
    let _ = state.observe(&gpu("GPU-a"), xid(13), &known, NOW);
    let address = PciAddress::parse("0000:ff:00").unwrap();
    let _ = state.observe(&Device::Address(address), xid(48), &known, NOW);
    assert_eq!(state.forget("GPU-b"), 0);
    assert_eq!(state.forget("0000:ff:00"), 1);
    assert_eq!(state.forget("GPU-a"), 2);
    assert!(state.gpus().is_empty() && state.waiting().is_empty());
}

#[test]
fn what_another_version_wrote_is_read() {
    let text = r#"{"bootId": "one", "sequence": 9, "later": 1, "gpus": {"GPU-a": {"faults": [{"class": "Sinking", "scope": "gpu",
        "causes": {"XID 500": 1}, "newest": 9, "firstSeenUnixSeconds": 1, "lastSeenUnixSeconds": 2, "later": true}]}}}"#;
    let state: FaultState = serde_json::from_str(text).unwrap();
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Unknown));
    assert_eq!(state.mark(), 9);
}

/// S7: whatever comes in whatever order, the worst that was seen and not healed since stands.
#[test]
fn s7_severity_falls_only_by_a_validated_recovery_that_is_newer_than_the_fault() {
    const PROOFS: [Proof; 5] = [
        Proof::Idle,
        Proof::LinksWork,
        Proof::Reset,
        Proof::Reboot,
        Proof::Operator,
    ];
    let known = known(&["GPU-a"]);
    for seed in 0..200_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random % below as u64).unwrap()
        };
        let mut state = FaultState::default();
        // The model: every observation by itself, never coalesced.
        let mut seen: Vec<(FaultClass, usize)> = Vec::new();
        let mut marks = vec![(0, 0)];
        for step in 0..200_usize {
            match next(6) {
                0..=2 => {
                    let class = FaultClass::ALL[next(8)];
                    let observation = Observation {
                        class,
                        scope: Scope::Gpu,
                        cause: Cause::Xid(u32::try_from(step % 7).unwrap()),
                    };
                    let _ = state.observe(&gpu("GPU-a"), observation, &known, NOW);
                    seen.push((class, step));
                }
                3 => marks.push((state.mark(), step)),
                4 => {
                    let (mark, at) = marks[next(marks.len())];
                    let proof = PROOFS[next(PROOFS.len())];
                    let is_valid = next(2) == 0;
                    let condition = Condition {
                        recovery_action: Some(u32::from(!is_valid)),
                        ..Condition::default()
                    };
                    let told = recovered(&mut state, "GPU-a", proof, mark, &condition);
                    if told.is_ok() && is_valid {
                        // A class is over only if all that was seen of it is older.
                        let newest = |class| {
                            let of_class = seen.iter().filter(|(other, _)| *other == class);
                            of_class.map(|(_, step)| *step).max()
                        };
                        let over: Vec<FaultClass> = FaultClass::ALL
                            .into_iter()
                            .filter(|class| proof.heals(*class))
                            .filter(|class| newest(*class).is_some_and(|step| step < at))
                            .collect();
                        seen.retain(|(class, _)| !over.contains(class));
                    }
                }
                _ => state = restarted(&state),
            }
            let is_meant = |class: &FaultClass| class.is_fault() && *class != FaultClass::Link;
            let expected = seen.iter().map(|(class, _)| *class).filter(is_meant).max();
            let actual = class(&state, "GPU-a", None);
            assert_eq!(actual, expected, "seed {seed}, step {step}");
        }
    }
}

/// Three times within an hour it is to be exchanged.
fn counting() -> Catalogue {
    let repeat = Repeat {
        count: 3,
        within_seconds: 3_600,
        class: FaultClass::Retire,
        burst_seconds: 60,
    };
    let rule = Rule {
        repeat: Some(repeat),
        ..Rule::from(Meaning::Class(FaultClass::Reset))
    };
    Catalogue::shipped().with_rules(&[(RuleKey::xid(48), rule)])
}

#[test]
fn what_comes_again_and_again_is_worse_and_restarts_forget_no_occurrence() {
    let known = known(&["GPU-a", "GPU-b"]);
    let catalogue = counting();
    let mut state = FaultState::default();
    let fine = Condition::default();
    for (occurrence, expected) in [
        (0, FaultClass::Reset),
        (1, FaultClass::Reset),
        (2, FaultClass::Retire),
    ] {
        let now = NOW + 600 * occurrence;
        // Each is many events, and is mended in between; that is no end of the count.
        for second in 0..10 {
            let _ = state.observe_by(&catalogue, &gpu("GPU-a"), xid(48), &known, now + second);
        }
        assert_eq!(class(&state, "GPU-a", None), Some(expected), "{occurrence}");
        let mark = state.mark();
        let _ = recovered(&mut state, "GPU-a", Proof::Reset, mark, &fine);
        state = restarted(&state);
    }
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Retire));
    assert_eq!(class(&state, "GPU-b", None), None);
    let message = state.fault("GPU-a", None).unwrap().message();
    assert!(
        message.contains("XID 48 3 times within 3600 s"),
        "{message}"
    );
    // A person found it in order: it begins anew.
    let mark = state.mark();
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Operator, mark, &fine),
        Ok(1)
    );
    let later = NOW + 3 * 600;
    let _ = state.observe_by(&catalogue, &gpu("GPU-a"), xid(48), &known, later);
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reset));
}

#[test]
fn an_anomaly_that_lasts_is_told_once_and_for_a_day_after_it_was_last_so() {
    let known = known(&["GPU-a"]);
    let catalogue = Catalogue::shipped();
    let hot = Condition {
        is_throttled: Some(true),
        ..Condition::default()
    };
    let mut state = FaultState::default();
    let mut now = NOW;
    assert_eq!(
        state.look(&catalogue, "GPU-a", &hot, &known, now),
        Change::New
    );
    let mut differences = 0;
    while now < NOW + 3 * ANOMALY_SECONDS {
        now += 600;
        let before = state.clone();
        let change = state.look(&catalogue, "GPU-a", &hot, &known, now);
        assert_eq!((change, state.fade(now)), (Change::None, 0));
        differences += u32::from(state != before);
    }
    assert_eq!(differences, 3 * 24, "it is written once an hour");
    assert_eq!(state.fade(now + ANOMALY_SECONDS - 1), 0);
    assert_eq!(state.fade(now + ANOMALY_SECONDS), 1);
}

#[test]
fn a_clock_that_was_wrong_keeps_no_anomaly_for_longer_than_a_day() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let later = NOW + 1_000 * ANOMALY_SECONDS;
    let _ = state.observe(&gpu("GPU-a"), xid(31), &known, later);
    assert_eq!(state.fade(NOW), 0);
    assert_eq!(state.fade(NOW + ANOMALY_SECONDS), 1);
}

#[test]
fn what_lasts_comes_once_however_often_it_is_looked_at() {
    let known = known(&["GPU-a"]);
    let rule = Rule {
        repeat: Some(Repeat {
            count: 2,
            within_seconds: 3_600,
            class: FaultClass::Unknown,
            burst_seconds: 10,
        }),
        ..Rule::from(Meaning::Class(FaultClass::Info))
    };
    let key = RuleKey::Signal(super::super::Signal::Throttled);
    let catalogue = Catalogue::shipped().with_rules(&[(key, rule)]);
    let hot = Condition {
        is_throttled: Some(true),
        ..Condition::default()
    };
    let mut state = FaultState::default();
    for look in 0..100 {
        let _ = state.look(&catalogue, "GPU-a", &hot, &known, NOW + 10 * look);
    }
    assert_eq!(class(&state, "GPU-a", None), None);
}

#[test]
fn what_was_logged_before_anybody_watched_is_nothing_until_the_gpu_was_looked_at() {
    let known = known(&["GPU-a", "GPU-b", "GPU-c"]);
    let mut state = FaultState::default();
    state.begin_boot("one");
    state.begin_first();
    assert!(state.is_log_old());
    for uuid in ["GPU-a", "GPU-b"] {
        state.observe_old(&gpu(uuid), xid(79), &known, NOW);
        state.observe_old(&gpu(uuid), xid(13), &known, NOW);
    }
    state.log_is_read();
    let mut state = restarted(&state);
    assert!(!state.is_log_old());
    assert_eq!(state.node_fault(|_| true), None);
    // One answers, and the other is gone.
    assert!(state.is_unconfirmed("GPU-a", &known) && !state.is_unconfirmed("GPU-c", &known));
    assert_eq!(state.confirm("GPU-a", &known, false), Change::New);
    assert_eq!(class(&state, "GPU-a", None), None);
    let anomalies = state.gpus()["GPU-a"].all();
    let classes: Vec<FaultClass> = anomalies.iter().map(|fault| fault.class).collect();
    assert_eq!(classes, [FaultClass::Info, FaultClass::App]);
    assert_eq!(anomalies[0].message(), "XID 79, earlier");
    assert_eq!(state.confirm("GPU-b", &known, true), Change::New);
    assert_eq!(class(&state, "GPU-b", None), Some(FaultClass::Reboot));
    assert_eq!(state.confirm("GPU-b", &known, true), Change::None);
    // What is seen from now on is new, also of the first.
    let _ = state.observe(&gpu("GPU-a"), xid(79), &known, NOW);
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reboot));
}

#[test]
fn a_fault_that_is_known_by_a_place_alone_is_not_the_fault_of_what_is_there_after_a_reboot() {
    let none = KnownAddresses::default();
    let place = PciAddress::parse("0000:01:00").unwrap();
    let seen = || {
        let mut state = FaultState::default();
        state.begin_boot("one");
        let _ = state.observe(&Device::Address(place), xid(54), &none, NOW);
        let _ = state.observe(&gpu("GPU-unlisted"), xid(54), &none, NOW);
        state
    };
    let known = known(&["GPU-new"]);
    let mut same_boot = seen();
    assert_eq!(same_boot.adopt(&known), Change::New);
    assert_eq!(
        class(&same_boot, "GPU-new", None),
        Some(FaultClass::Unknown)
    );
    let mut exchanged = seen();
    exchanged.begin_boot("two");
    assert_eq!(exchanged.adopt(&known), Change::None);
    assert_eq!(class(&exchanged, "GPU-new", None), None);
    assert_eq!(exchanged.confirm("GPU-new", &known, false), Change::New);
    assert_eq!(class(&exchanged, "GPU-new", None), None);
    // The UUID is a name for good.
    assert!(exchanged.waiting().contains_key("GPU-unlisted"));
    let mut gone = seen();
    gone.begin_boot("two");
    assert_eq!(gone.unconfirmed().len(), 1);
    gone.begin_boot("three");
    assert!(
        gone.unconfirmed().is_empty(),
        "nothing was there for a boot"
    );
}

#[test]
fn so_much_that_is_old_waits_and_no_more() {
    let mut state = FaultState::default();
    for number in 0..=MOST_WAITING {
        let name = format!("GPU-{number}");
        state.observe_old(&gpu(&name), xid(79), &KnownAddresses::default(), NOW);
    }
    assert_eq!(
        (state.unconfirmed().len(), state.unattributed()),
        (MOST_WAITING, 1)
    );
    assert_eq!(state.forget("GPU-0"), 1);
}

/// Looks at `GPU-a`, which has so many active links and link errors, and applies what is proved.
fn looked(state: &mut FaultState, links: u32, errors: u64, now: i64) -> usize {
    looked_telling(state, links, Some(errors), now)
}

/// The same; `errors`: if it tells them.
fn looked_telling(state: &mut FaultState, links: u32, errors: Option<u64>, now: i64) -> usize {
    let known = known(&["GPU-a"]);
    let condition = Condition {
        recovery_action: Some(0),
        active_links: Some(links),
        errors: Errors {
            links: errors,
            ..Errors::default()
        },
        ..Condition::default()
    };
    let _ = state.look(&Catalogue::shipped(), "GPU-a", &condition, &known, now);
    let best_links = state.gpus()["GPU-a"].best_links();
    let validation = Validation {
        condition: &condition,
        has_fabric: true,
        best_links,
    };
    let proved = state.proved("GPU-a", &condition, now);
    proved
        .iter()
        .map(|recovery| state.recover("GPU-a", recovery, &validation).unwrap_or(0))
        .sum()
}

/// How often a driver looks, in seconds.
const LOOK_SECONDS: usize = 10;

/// It is looked at as a driver does between two times, and nothing is proved by that.
fn looked_between(
    state: &mut FaultState,
    links: u32,
    errors: Option<u64>,
    after: i64,
    before: i64,
) {
    for now in (after..before).step_by(LOOK_SECONDS).skip(1) {
        assert_eq!(looked_telling(state, links, errors, now), 0, "at {now}");
    }
}

/// A machine that begins with a wrong time of day has it set once it asks others.
#[test]
fn s7_a_clock_that_is_set_proves_nothing_of_nvlinks_and_puts_it_off_by_one_look_at_most() {
    let known = known(&["GPU-a"]);
    for set_by in [3_600, 0, -3_600] {
        let mut state = FaultState::default();
        let _ = looked(&mut state, 18, 0, NOW);
        let _ = state.observe(&gpu("GPU-a"), xid(74), &known, NOW);
        let _ = looked(&mut state, 18, 0, NOW + 10);
        let mut looks = (20_i64..1_000).step_by(LOOK_SECONDS);
        let mended = looks.find(|after| looked(&mut state, 18, 0, NOW + set_by + *after) > 0);
        let mended = mended.unwrap();
        assert!((290..=320).contains(&mended), "by {set_by}: after {mended}");
    }
}

#[test]
fn nvlinks_that_have_worked_for_a_while_after_the_fault_are_mended() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = looked(&mut state, 18, 0, NOW);
    let _ = state.observe(&gpu("GPU-a"), xid(74), &known, NOW + 5);
    let mut before: Option<(u32, u64, i64)> = None;
    for (links, errors, after, mended) in [
        // It is seen for the first time after the fault.
        (18, 0, 10, 0),
        (18, 0, 309, 0),
        // An error in between: it begins anew.
        (18, 1, 310, 0),
        (18, 1, 320, 0),
        (18, 1, 619, 0),
        // So do links that go.
        (17, 1, 620, 0),
        (18, 1, 630, 0),
        (18, 1, 929, 0),
        (18, 1, 930, 2),
    ] {
        if let Some((links, errors, from)) = before.replace((links, errors, after)) {
            looked_between(&mut state, links, Some(errors), NOW + from, NOW + after);
        }
        let found = looked(&mut state, links, errors, NOW + after);
        assert_eq!(found, mended, "after {after} s");
    }
    assert_eq!(state.link_fault("GPU-a", None), None);
}

#[test]
fn a_fault_of_links_that_comes_while_they_seem_to_work_begins_it_anew() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = looked(&mut state, 18, 0, NOW);
    let _ = state.observe(&gpu("GPU-a"), xid(74), &known, NOW);
    let _ = looked(&mut state, 18, 0, NOW + 10);
    let _ = state.observe(&gpu("GPU-a"), xid(74), &known, NOW + 200);
    assert_eq!(looked(&mut state, 18, 0, NOW + 310), 0);
    looked_between(&mut state, 18, Some(0), NOW + 310, NOW + 609);
    assert_eq!(looked(&mut state, 18, 0, NOW + 609), 0);
    assert_eq!(looked(&mut state, 18, 0, NOW + 610), 1);
}

#[test]
fn errors_that_came_while_a_counter_was_not_told_are_seen_once_it_is() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = looked(&mut state, 18, 0, NOW);
    let _ = state.observe(&gpu("GPU-a"), xid(74), &known, NOW);
    let mut before: Option<(Option<u64>, i64)> = None;
    for (errors, after, mended) in [
        (Some(0), 10, 0),
        (None, 100, 0),
        (Some(1), 110, 0),
        (Some(1), 120, 0),
        (Some(1), 419, 0),
        (Some(1), 420, 2),
    ] {
        if let Some((errors, from)) = before.replace((errors, after)) {
            looked_between(&mut state, 18, errors, NOW + from, NOW + after);
        }
        let found = looked_telling(&mut state, 18, errors, NOW + after);
        assert_eq!(found, mended, "after {after} s");
    }
}

#[test]
fn that_no_row_is_to_be_replaced_any_more_has_to_be_told() {
    let known = known(&["GPU-a"]);
    let catalogue = Catalogue::shipped();
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-a"), xid(48), &known, NOW);
    for (pending, proofs) in [
        (Some(true), 0),
        // It does not tell.
        (None, 0),
        (None, 0),
        (Some(false), 1),
    ] {
        let condition = Condition {
            recovery_action: Some(0),
            row_remap_pending: pending,
            ..Condition::default()
        };
        let _ = state.look(&catalogue, "GPU-a", &condition, &known, NOW);
        state = restarted(&state);
        let proved = state.proved("GPU-a", &condition, NOW);
        assert_eq!(proved.len(), proofs, "{pending:?}");
    }
}

#[test]
fn a_gpu_that_was_to_be_reset_and_is_not_any_more_was_reset_and_what_is_newer_stays() {
    let known = known(&["GPU-a"]);
    let catalogue = Catalogue::shipped();
    let acting = |action| Condition {
        recovery_action: action,
        ..Condition::default()
    };
    let mut state = FaultState::default();
    let look = |state: &mut FaultState, condition: &Condition| {
        let _ = state.look(&catalogue, "GPU-a", condition, &known, NOW);
        state.proved("GPU-a", condition, NOW)
    };
    let _ = state.observe(&gpu("GPU-a"), xid(48), &known, NOW);
    let proved = look(&mut state, &acting(Some(0)));
    assert!(proved.is_empty(), "it never said so");
    assert!(look(&mut state, &acting(Some(1))).is_empty());
    let mut state = restarted(&state);
    let proved = look(&mut state, &acting(None));
    assert!(proved.is_empty(), "who says nothing");
    let _ = state.observe(&gpu("GPU-a"), xid(95), &known, NOW);
    // All of the class is as new as what came since: it may be after the reset.
    let fine = acting(Some(0));
    assert!(look(&mut state, &fine).is_empty());
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reset));
    // The next reset is after that.
    let _ = look(&mut state, &acting(Some(4)));
    let proved = look(&mut state, &fine);
    assert_eq!(proved.len(), 1);
    assert_eq!(proved[0].proof, Proof::Reset);
    let mark = proved[0].mark;
    assert_eq!(
        recovered(&mut state, "GPU-a", Proof::Reset, mark, &fine),
        Ok(1)
    );
    assert_eq!(class(&state, "GPU-a", None), None);
}

#[test]
fn a_gpu_that_wants_the_machine_started_anew_is_not_mended_by_wanting_nothing() {
    let known = known(&["GPU-a"]);
    let catalogue = Catalogue::shipped();
    let mut state = FaultState::default();
    for action in [1, 2, 0] {
        let condition = Condition {
            recovery_action: Some(action),
            ..Condition::default()
        };
        let _ = state.look(&catalogue, "GPU-a", &condition, &known, NOW);
        let proved = state.proved("GPU-a", &condition, NOW);
        assert!(proved.is_empty(), "{action}");
    }
    assert_eq!(class(&state, "GPU-a", None), Some(FaultClass::Reboot));
}

#[test]
fn a_contained_fault_waits_for_its_slice_to_be_idle() {
    let known = known(&["GPU-a"]);
    let mut state = FaultState::default();
    let _ = state.observe(&gpu("GPU-a"), in_slice(94, FIRST), &known, NOW);
    let _ = state.observe(&gpu("GPU-a"), xid(48), &known, NOW);
    assert_eq!(state.waits_for_idle("GPU-a"), [Scope::Slice(FIRST)]);
    assert!(state.waits_for_idle("GPU-b").is_empty());
}

/// Ten thousand events a second for five seconds, of all GPUs of a node and all kinds.
#[test]
fn a_storm_costs_memory_by_what_can_be_wrong_and_little_time() {
    let uuids: Vec<String> = (0..16).map(|index| format!("GPU-{index}")).collect();
    let names: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let known = known(&names);
    let catalogue = Catalogue::shipped();
    let mut state = FaultState::default();
    let begun = std::time::Instant::now();
    let mut largest = 0;
    for second in 0..5_i64 {
        for event in 0..10_000_u32 {
            let uuid = names[event as usize % names.len()];
            let place = Placement {
                start: event % 8,
                size: 1,
            };
            let seen = of_xid(event % 180, Some(1), &catalogue, None, |_| Some(place));
            let _ = state.observe_by(&catalogue, &gpu(uuid), seen, &known, NOW + second);
        }
        largest = largest.max(serde_json::to_vec(&state).unwrap().len());
    }
    let took = begun.elapsed();
    // 16 GPUs, 8 classes, 9 places, 17 causes.
    assert!(largest < 16 * 8 * 9 * 17 * 48, "{largest} bytes");
    // Not optimised, on a machine that does other things as well.
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
}

/// S7, of resets that nobody sees: whatever is seen and looked at in whatever order, a fault of the class Reset is over only after a look at
/// which the driver still wanted a reset, and no more at a later one, with nothing of the class seen since the first.
#[test]
fn s7_a_reset_is_believed_only_of_faults_that_are_older_than_the_last_wish_for_it() {
    let known = known(&["GPU-a"]);
    let catalogue = Catalogue::shipped();
    let error = xid(48);
    for seed in 1..200_u64 {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut state = FaultState::default();
        // The model, by steps: what was seen last of the class, when a reset was last wanted, and whether that is a cause already.
        let (mut seen, mut wanted, mut is_cause) = (None, None, false);
        for step in 0..200_usize {
            let action = match next(6) {
                0 => {
                    let _ = state.observe(&gpu("GPU-a"), error, &known, NOW);
                    seen = Some(step);
                    continue;
                }
                1 => {
                    state = restarted(&state);
                    continue;
                }
                2 => None,
                3 => Some(1),
                4 => Some(2),
                _ => Some(0),
            };
            let condition = Condition {
                recovery_action: action,
                ..Condition::default()
            };
            let _ = state.look(&catalogue, "GPU-a", &condition, &known, NOW);
            for recovery in state.proved("GPU-a", &condition, NOW) {
                let _ = recovered(
                    &mut state,
                    "GPU-a",
                    recovery.proof,
                    recovery.mark,
                    &condition,
                );
            }
            match action {
                Some(1) => {
                    if !is_cause {
                        (seen, is_cause) = (Some(step), true);
                    }
                    wanted = Some(step);
                }
                Some(2) => wanted = None,
                Some(0) if seen.is_some() && wanted.is_some() && seen <= wanted => {
                    (seen, wanted, is_cause) = (None, None, false);
                }
                _ => {}
            }
            let faults = state.gpus().get("GPU-a");
            let is_there = faults.is_some_and(|faults| {
                let mut all = faults.all().iter();
                all.any(|fault| fault.class == FaultClass::Reset)
            });
            assert_eq!(is_there, seen.is_some(), "seed {seed}, step {step}");
        }
    }
}
