//! Slices: made under a recorded intent, removed before their record (rule 8).

use super::*;

/// What `GPU-0` can be cut into: 8 memory slices by one, two or four.
pub(super) fn profile(memory_slices: u32) -> Arc<MigProfile> {
    let starts = (0..8 / memory_slices).map(|place| place * memory_slices);
    let placements = starts.map(|start| Placement {
        start,
        size: memory_slices,
    });
    Arc::new(MigProfile {
        name: format!("{memory_slices}g"),
        gpu_instance_profile: 20 - memory_slices,
        compute_instance_profile: 0,
        memory_bytes: 10 * u64::from(memory_slices),
        multiprocessors: 16,
        compute_slices: memory_slices,
        memory_slices,
        media: Media::default(),
        max_instances: 8 / memory_slices,
        placements: placements.collect(),
    })
}

/// Both GPUs, and all slices of the first as `slice-SIZE-START`.
fn cut(mode: SliceMode) -> Inventory {
    let mut inventory = inventory();
    for size in [1, 2, 4] {
        let profile = profile(size);
        for placement in profile.placements.iter().copied() {
            let facts = DeviceFacts {
                unit: Unit::slice("GPU-0", placement, size),
                gpus_milli: i64::from(size) * 125,
                memory_bytes: i64::from(size) * 10,
                minor: 0,
                silent: false,
                lacks_fabric: false,
                slice: Some(SliceFacts {
                    profile: profile.clone(),
                    placement,
                    mode,
                }),
            };
            inventory.insert(format!("slice-{size}-{}", placement.start), facts);
        }
    }
    inventory
}

fn node_with(api: Option<NodeDevices>, mode: SliceMode) -> Node {
    let mut node = Node::unstarted(api);
    node.inventory = cut(mode);
    node.restart("one");
    node
}

pub(super) fn node() -> Node {
    node_with(None, SliceMode::Dynamic)
}

/// Somebody else's slice.
fn foreign(size: u32, start: u32) -> MigInstance {
    MigInstance {
        placement: Placement { start, size },
        gpu_instance: 77,
        compute_instance: Some(0),
        is_divided: false,
        profile: 20 - size,
        uuid: Some("MIG-foreign".to_owned()),
    }
}

fn add_foreign(node: &mut Node, size: u32, start: u32) {
    let live = node.live.entry("GPU-0".to_owned()).or_default();
    live.push(foreign(size, start));
}

#[track_caller]
fn assert_clean(node: &Node, moment: &str) {
    assert!(node.disk.records.is_empty(), "{moment}");
    assert!(node.cdi.is_empty(), "{moment}");
    assert_eq!(node.starts(), Vec::<u32>::new(), "{moment}");
}

#[test]
fn the_intent_comes_before_the_slice_and_the_slice_before_the_cdi_file() {
    let mut node = node();
    node.log.clear();
    let call = node.prepare(claim("a", &["slice-2-4"]));
    assert_eq!(node.prepared(call), ["gpu.muster.dev/claim=a-slice-2-4"]);
    assert_eq!(
        node.log,
        [
            "a Waiting",
            "a Preparing",
            "a made at 4",
            "a Preparing",
            "a CDI",
            "a Prepared"
        ]
    );
    let made = |record: &Record| record.devices[0].slice.clone().unwrap().made;
    let expected = Some(MadeSlice {
        gpu_instance: 1,
        compute_instance: 0,
        uuid: "MIG-1".to_owned(),
    });
    assert_eq!(made(&node.disk.records["a"]), expected);
    assert_eq!(made(&node.cdi["a"]), expected);

    node.log.clear();
    let call = node.unprepare("a");
    assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    assert_eq!(node.log, ["a Unpreparing", "a removed at 4", "a removed"]);
    assert_clean(&node, "in the end");
}

#[test]
fn what_overlaps_waits_and_what_lies_beside_does_not() {
    for (first, second, waits) in [
        ("slice-2-4", "slice-1-5", true),
        ("slice-2-4", "slice-4-4", true),
        ("slice-2-4", "gpu-0", true),
        ("gpu-0", "slice-1-7", true),
        ("slice-2-4", "slice-2-6", false),
        ("slice-2-4", "gpu-1", false),
    ] {
        let mut node = node();
        node.prepare(claim("a", &[first]));
        let call = node.prepare(claim("b", &[second]));
        node.pass(SECOND);
        assert_eq!(node.answered(call).is_none(), waits, "{first} {second}");
        node.unprepare("a");
        assert_eq!(node.prepared(call).len(), 1, "{first} {second}");
    }
}

#[test]
fn a_gpu_that_could_be_cut_and_is_used_whole_is_named_by_the_minor_number_that_it_has_then() {
    let mut node = node();
    let call = node.prepare(claim("a", &["gpu-0", "gpu-1"]));
    assert_eq!(node.prepared(call).len(), 2);
    let minors = node.cdi["a"].devices.iter().map(|device| device.minor);
    // The other one cannot be cut: nobody touches its mode.
    assert_eq!(minors.collect::<Vec<_>>(), [7, 1]);
    node.unprepare("a");
    assert_clean(&node, "in the end");
}

#[test]
fn a_gpu_that_an_administrator_may_cut_is_looked_at_before_it_is_used_whole() {
    let mut node = node_with(None, SliceMode::Static);
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
    // As whoever looked at its mode told it.
    assert_eq!(node.cdi["a"].devices[0].minor, 7);
    node.unprepare("a");
    assert_clean(&node, "in the end");
}

#[test]
fn two_names_of_one_piece_of_hardware_in_one_claim_are_refused_at_once() {
    let mut node = node();
    let call = node.prepare(claim("a", &["slice-4-0", "slice-1-3"]));
    assert!(node.refused(call).message.contains("the same hardware"));
    assert_eq!(node.starts(), Vec::<u32>::new());
}

#[test]
fn a_device_that_two_requests_have_is_made_once() {
    let mut node = node();
    let call = node.prepare(claim("a", &["slice-1-0", "slice-1-0"]));
    assert_eq!(node.prepared(call).len(), 2);
    assert_eq!(node.starts(), [0]);
    node.unprepare("a");
    assert_clean(&node, "in the end");
}

#[test]
fn a_slice_that_fails_takes_those_before_it_with_it_at_once() {
    let three = claim("a", &["slice-1-0", "slice-1-1", "slice-1-2"]);
    for made in 0..3 {
        let mut node = node();
        node.making_fails_after = Some(made);
        let call = node.prepare(three.clone());
        let refusal = node.refused(call);
        assert!(refusal.message.contains("unknown error"), "{refusal}");
        assert_clean(&node, &format!("after {made}"));
        let call = node.prepare(three.clone());
        assert_eq!(node.prepared(call).len(), 3, "{made}");
    }
}

#[test]
fn what_cannot_be_undone_is_told_holds_and_is_made_good_later() {
    for then_wanted in [true, false] {
        let mut node = node();
        node.making_fails_after = Some(1);
        node.removing_fails = Some("in use by another client".to_owned());
        let call = node.prepare(claim("a", &["slice-1-0", "slice-1-1"]));
        let refusal = node.refused(call);
        assert!(refusal.message.contains("another client"), "{refusal}");
        assert_eq!(node.state("a"), Some(RecordState::Preparing));
        assert_eq!(node.starts(), [0]);
        let waits = node.prepare(claim("b", &["slice-2-0"]));
        node.pass(SECOND);
        assert_eq!(node.answered(waits), None);

        node.removing_fails = None;
        if then_wanted {
            let call = node.prepare(claim("a", &["slice-1-0", "slice-1-1"]));
            assert_eq!(node.prepared(call).len(), 2);
            assert_eq!(node.starts(), [0, 1]);
        }
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared));
        assert_eq!(node.prepared(waits).len(), 1);
    }
}

#[test]
fn a_disk_that_fails_at_any_write_leaves_nothing_behind_and_the_next_try_succeeds() {
    // Mark, intent, numbers, CDI file, completion.
    for writes in 0..5 {
        let mut node = node();
        node.disk_fails_after = Some(writes);
        let call = node.prepare(claim("a", &["slice-1-0"]));
        let refusal = node.refused(call);
        assert!(refusal.message.contains("No space left"), "{refusal}");
        assert_clean(&node, &format!("after {writes}"));
        let call = node.prepare(claim("a", &["slice-1-0"]));
        assert_eq!(node.prepared(call).len(), 1, "{writes}");
    }
}

#[test]
fn an_intent_that_is_not_written_once_more_does_not_lose_what_an_earlier_one_made() {
    let mut node = node();
    node.prepare(claim("a", &["slice-1-0"]));
    node.disk.records.get_mut("a").unwrap().state = RecordState::Preparing;
    node.restart("two");
    node.disk_fails_after = Some(1);
    let call = node.prepare(claim("a", &["slice-1-0"]));
    assert!(node.refused(call).message.contains("No space left"));
    assert_clean(&node, "the slice goes with its record");
}

#[test]
fn an_unprepare_that_fails_at_any_write_succeeds_the_next_time() {
    for writes in 0..3 {
        let mut node = node();
        node.prepare(claim("a", &["slice-1-0"]));
        node.disk_fails_after = Some(writes);
        let call = node.unprepare("a");
        assert!(node.refused(call).message.contains("No space left"));
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared), "{writes}");
        assert_clean(&node, &format!("after {writes}"));
    }
}

#[test]
fn a_slice_that_is_not_removed_holds_and_the_answer_says_why() {
    let mut node = node();
    node.prepare(claim("a", &["slice-1-0"]));
    node.removing_fails = Some("still in use by process 4242".to_owned());
    let call = node.unprepare("a");
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceHeld));
    assert!(refusal.message.contains("process 4242"), "{refusal}");
    assert_eq!(node.state("a"), Some(RecordState::Unpreparing));
    node.removing_fails = None;
    // Nobody has to ask once more.
    node.pass(31 * SECOND);
    assert_clean(&node, "after a while");
    let call = node.unprepare("a");
    assert_eq!(node.answered(call), Some(&Answer::Unprepared));
}

#[test]
fn what_was_seen_for_a_give_back_that_an_unprepare_came_before_counts_for_no_later_one() {
    let permits = || vec![permit("a", 1_000)];
    let api = node_devices("u", 1, permits());
    let mut node = node_with(Some(api), SliceMode::Dynamic);
    let call = node.prepare(claim("a", &["slice-1-0"]));
    assert_eq!(node.prepared(call).len(), 1);
    node.removing_fails = Some("still in use by process 4242".to_owned());
    let failed = node.unprepare("a");
    assert_eq!(node.refused(failed).reason, Some(Reason::DeviceHeld));
    node.removing_fails = None;
    // It is gone on with unasked, and looked at for that.
    node.hanging = Some("GPU-0".to_owned());
    node.pass(31 * SECOND);
    // Another turn has the lock when the GPU answers, and an Unprepare of the claim comes before the next.
    node.take_lock();
    node.write_api(node_devices("u", 2, permits()), true);
    node.release_looks();
    node.hanging = Some("GPU-0".to_owned());
    let unprepare = node.unprepare("a");
    node.release_lock();
    node.settle();
    node.in_use = InUse::Yes("process 4243".to_owned());
    node.release_looks();
    let refusal = node.refused(unprepare);
    assert!(refusal.message.contains("process 4243"), "{refusal}");
    assert!(!node.machines[0].holds_sights(), "nobody has a turn");
    node.in_use = InUse::No;
    node.asked.clear();
    node.pass(31 * SECOND);
    assert_eq!(node.asked, ["GPU-0"], "it is looked at anew");
    assert_clean(&node, "after a while");
}

#[test]
fn a_slice_of_somebody_else_is_refused_with_its_place_and_left_alone() {
    for (device, size, start) in [
        ("slice-1-0", 1, 0),
        ("slice-1-3", 4, 0),
        ("slice-4-4", 1, 7),
        ("gpu-0", 2, 2),
    ] {
        let mut node = node();
        add_foreign(&mut node, size, start);
        let call = node.prepare(claim("a", &[device]));
        node.pass(36 * SECOND);
        let refusal = node.refused(call);
        assert_eq!(refusal.reason, Some(Reason::DeviceHeld), "{device}");
        assert!(refusal.message.contains("MIG-foreign"), "{refusal}");
        let place = format!("memory slices {start}..{}", start + size);
        assert!(refusal.message.contains(&place), "{refusal}");
        assert_eq!(node.starts(), [start], "{device}");

        let call = node.prepare(claim("a", &[device]));
        node.pass(SECOND);
        assert_eq!(node.answered(call), None, "{device}");
        node.live.clear();
        node.pass(SECOND);
        assert_eq!(node.prepared(call).len(), 1, "{device}");
    }
}

#[test]
fn a_slice_that_somebody_makes_at_an_empty_place_after_the_intent_is_neither_taken_nor_removed() {
    let mut node = node();
    node.holds_changes = true;
    let call = node.prepare(claim("a", &["slice-1-1", "slice-1-0"]));
    assert_eq!(node.state("a"), Some(RecordState::Preparing));
    add_foreign(&mut node, 1, 0);
    node.release_changes();
    let refusal = node.refused(call);
    assert_eq!(refusal.reason, Some(Reason::DeviceHeld), "{refusal}");
    // What was made for the claim is gone, and the record with it.
    assert_eq!(node.starts(), [0]);
    assert!(node.disk.records.is_empty() && node.cdi.is_empty());
}

#[test]
fn a_slice_that_took_the_place_of_ours_is_not_removed() {
    let mut node = node();
    node.prepare(claim("a", &["slice-1-0"]));
    node.live.clear();
    add_foreign(&mut node, 1, 0);
    let call = node.unprepare("a");
    assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    assert_eq!(node.starts(), [0]);
}

#[test]
fn what_is_gone_already_is_unprepared_and_made_once_more_for_who_asks_again() {
    let mut node = node();
    node.prepare(claim("a", &["slice-1-0"]));
    node.live.clear();
    let call = node.prepare(claim("a", &["slice-1-0"]));
    assert_eq!(node.prepared(call).len(), 1);
    assert_eq!(node.starts(), [0]);
    let recorded = node.disk.records["a"].devices[0].slice.clone().unwrap();
    assert_eq!(recorded.made.unwrap().uuid, "MIG-2");
    node.live.clear();
    let call = node.unprepare("a");
    assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    assert_clean(&node, "in the end");
}

/// By the numbers of a slice that is gone its CDI file may name another one.
#[test]
fn what_is_prepared_is_answered_only_once_it_is_seen_that_its_slices_lie_where_it_says() {
    for hangs in [false, true] {
        let mut node = node();
        node.prepare(claim("a", &["slice-1-0"]));
        let gpu = Some("GPU-0".to_owned());
        if hangs {
            node.hanging = gpu;
        } else {
            node.unlisted = gpu;
        }
        // Nobody sees that the GPU is reset, and that another slice has the number now.
        node.live.clear();
        add_foreign(&mut node, 1, 5);
        let before = node.disk.records["a"].devices.clone();
        let call = node.prepare(claim("a", &["slice-1-0"]));
        node.pass(34 * SECOND);
        assert_eq!(node.answered(call), None, "hangs: {hangs}");
        node.pass(7 * SECOND);
        let refusal = node.refused(call);
        assert_eq!(refusal.reason, Some(Reason::DeviceUnknown), "{refusal}");
        assert!(refusal.message.contains("GPU-0"), "{refusal}");
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "it holds");
        assert_eq!(node.disk.records["a"].devices, before);
        node.unlisted = None;
        node.release_looks();
        let call = node.prepare(claim("a", &["slice-1-0"]));
        assert_eq!(node.prepared(call).len(), 1, "hangs: {hangs}");
        assert_eq!(node.starts(), [5, 0]);
        let made = node.cdi["a"].devices[0].slice.clone().unwrap().made;
        assert_eq!(made.unwrap().uuid, "MIG-2", "hangs: {hangs}");
    }
}

#[test]
fn slices_of_an_administrator_are_used_as_they_are_and_stay() {
    let mut node = node_with(None, SliceMode::Static);
    let call = node.prepare(claim("a", &["slice-1-0"]));
    node.pass(36 * SECOND);
    let refusal = node.refused(call);
    assert!(refusal.message.contains("there is no slice"), "{refusal}");

    add_foreign(&mut node, 1, 0);
    let call = node.prepare(claim("a", &["slice-1-0"]));
    assert_eq!(node.prepared(call).len(), 1);
    let recorded = node.disk.records["a"].devices[0].slice.clone().unwrap();
    assert_eq!(recorded.made.unwrap().uuid, "MIG-foreign");
    let call = node.unprepare("a");
    assert_eq!(node.answered(call), Some(&Answer::Unprepared));
    assert_eq!(node.starts(), [0]);
    assert!(node.disk.records.is_empty() && node.cdi.is_empty());
}

/// Somebody changes the node's mode, which restarts the driver in the middle of a Prepare.
#[test]
fn what_was_made_for_a_claim_goes_with_it_also_where_slices_are_an_administrators_by_now() {
    let mut taken_up = 0;
    for steps in 0..MOMENTS {
        let moment = format!("after {steps} steps");
        let mut node = node();
        let asked = || claim("a", &["slice-1-0", "slice-1-1"]);
        node.begin_prepare(0, asked());
        for _ in 0..steps {
            node.step();
        }
        let made = node.starts().len();
        taken_up += u32::from(made == 2 && node.state("a") == Some(RecordState::Preparing));
        node.inventory = cut(SliceMode::Static);
        node.restart("two");
        let call = node.prepare(asked());
        // What was not made by then nobody makes.
        node.pass(36 * SECOND);
        let is_prepared = matches!(node.answered(call), Some(Answer::Prepared(_)));
        assert_eq!(is_prepared, made == 2, "{moment}");
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared), "{moment}");
        assert_clean(&node, &moment);
    }
    assert!(taken_up > 0);
}

#[test]
fn who_administers_a_slice_has_it_as_it_is_and_leaves_it() {
    let mut node = node();
    node.prepare(claim("a", &["slice-1-0"]));
    let mut look = claim("look", &["slice-1-0"]);
    look.devices.as_mut().unwrap()[0].admin_access = true;
    let call = node.prepare(look);
    assert_eq!(node.prepared(call).len(), 1);
    node.unprepare("look");
    assert_eq!(node.starts(), [0]);
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
}

#[test]
fn after_a_reboot_a_slice_at_the_place_of_a_record_may_be_an_administrators_and_stays() {
    for is_there in [true, false] {
        let mut node = node();
        node.prepare(claim("a", &["slice-1-0"]));
        // What he makes at that place has the very UUID that ours had.
        if !is_there {
            node.live.clear();
        }
        node.boot(Config {
            boot_id: "boot-2".to_owned(),
            ..config("two")
        });
        node.pass(600 * SECOND);
        let expected: &[u32] = if is_there { &[0] } else { &[] };
        assert_eq!(node.starts(), expected);
        assert!(node.disk.records.is_empty() && node.cdi.is_empty());
        // Nor does an Unprepare that comes late, or the same claim once more, take it.
        let late = node.unprepare("a");
        assert_eq!(node.answered(late), Some(&Answer::Unprepared));
        assert_eq!(node.starts(), expected);
        let call = node.prepare(claim("a", &["slice-1-0"]));
        if is_there {
            node.pass(36 * SECOND);
            assert_eq!(node.refused(call).reason, Some(Reason::DeviceHeld));
        } else {
            assert_eq!(node.prepared(call).len(), 1);
        }
        assert_eq!(node.starts(), [0]);
    }
}

#[test]
fn another_allocation_of_the_claim_gets_its_own_slice_and_the_old_one_goes() {
    for state in [
        RecordState::Preparing,
        RecordState::Prepared,
        RecordState::Unpreparing,
    ] {
        let mut node = node();
        node.prepare(claim("a", &["slice-1-0"]));
        node.disk.records.get_mut("a").unwrap().state = state;
        let later = Claim {
            pods: vec!["pod-later".to_owned()],
            ..claim("a", &["slice-2-4"])
        };
        let call = node.prepare(later);
        assert_eq!(
            node.prepared(call),
            ["gpu.muster.dev/claim=a-slice-2-4"],
            "{state:?}"
        );
        assert_eq!(node.starts(), [4], "{state:?}");
    }
}

#[test]
fn while_a_gpu_is_being_changed_no_prepare_asks_about_it_and_all_others_go_on() {
    let mut node = node();
    node.prepare(claim("old", &["slice-1-3"]));
    node.holds_changes = true;
    let first = node.prepare(claim("a", &["slice-1-0"]));
    node.asked.clear();
    let second = node.prepare(claim("b", &["slice-1-1"]));
    let other = node.prepare(claim("c", &["gpu-1"]));
    assert_eq!(node.prepared(other).len(), 1);
    // What is given back is never behind what is prepared.
    let unprepare = node.unprepare("old");
    assert_eq!(node.state("old"), Some(RecordState::Unpreparing));
    node.pass(SECOND);
    assert_eq!(node.asked, ["GPU-1", "GPU-0"], "the last to be given back");
    for call in [first, second, unprepare] {
        assert_eq!(node.answered(call), None);
    }
    node.release_changes();
    assert_eq!(node.prepared(first).len(), 1);
    assert_eq!(node.prepared(second).len(), 1);
    assert_eq!(node.answered(unprepare), Some(&Answer::Unprepared));
    assert_eq!(node.asked[2..], ["GPU-0"], "once, for the second");
    assert_eq!(node.starts().len(), 2);
}

#[test]
fn a_prepare_that_is_put_off_behind_a_change_is_answered_at_its_own_end() {
    let mut node = node();
    node.holds_changes = true;
    node.prepare(claim("a", &["slice-1-0"]));
    let call = node.prepare(claim("b", &["slice-1-0"]));
    node.pass(34 * SECOND);
    assert_eq!(node.answered(call), None);
    node.pass(2 * SECOND);
    assert_eq!(node.refused(call).reason, Some(Reason::DeviceHeld));
    assert_eq!(node.state("b"), None);
}

/// More than a Prepare of a slice takes steps that gives another one back first.
const MOMENTS: usize = 44;

#[test]
fn an_unprepare_at_any_moment_of_a_prepare_leaves_nothing() {
    for instance in [0, 1] {
        for steps in 0..MOMENTS {
            let moment = format!("by instance {instance}, after {steps} steps");
            let mut node = node();
            node.start_another("two");
            let prepare = node.begin_prepare(0, claim("a", &["slice-1-0"]));
            // Another instance is called only once this one has left its mark.
            while instance == 1 && node.state("a").is_none() {
                assert!(node.step(), "the mark is left");
            }
            for _ in 0..steps {
                node.step();
            }
            let unprepare = node.begin_unprepare(instance, "a");
            node.settle();
            node.pass(40 * SECOND);
            assert!(node.answered(prepare).is_some(), "{moment}");
            assert_eq!(
                node.answered(unprepare),
                Some(&Answer::Unprepared),
                "{moment}"
            );
            assert_clean(&node, &moment);
        }
    }
}

#[test]
fn a_prepare_after_an_unprepare_is_a_new_wish() {
    for steps in 0..MOMENTS {
        let mut node = node();
        node.prepare(claim("a", &["slice-1-0"]));
        let unprepare = node.begin_unprepare(0, "a");
        for _ in 0..steps {
            node.step();
        }
        let again = node.begin_prepare(0, claim("a", &["slice-1-0"]));
        node.settle();
        node.pass(SECOND);
        assert_eq!(node.answered(unprepare), Some(&Answer::Unprepared));
        assert_eq!(node.prepared(again).len(), 1, "{steps}");
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "{steps}");
        assert_eq!(node.starts(), [0], "{steps}");
        assert!(node.cdi.contains_key("a"), "{steps}");
    }
}

#[test]
fn a_crash_at_any_moment_is_made_good_by_the_next_call() {
    for (wanted, steps) in [true, false]
        .into_iter()
        .flat_map(|wanted| (0..MOMENTS).map(move |steps| (wanted, steps)))
    {
        let moment = format!("wanted: {wanted}, after {steps} steps");
        for unpreparing in [false, true] {
            let mut node = node();
            if unpreparing {
                node.prepare(claim("a", &["slice-1-0", "slice-1-1"]));
                node.begin_unprepare(0, "a");
            } else {
                node.begin_prepare(0, claim("a", &["slice-1-0", "slice-1-1"]));
            }
            for _ in 0..steps {
                node.step();
            }
            node.restart("two");
            if wanted {
                let call = node.prepare(claim("a", &["slice-1-0", "slice-1-1"]));
                assert_eq!(node.prepared(call).len(), 2, "{moment}");
                assert_eq!(node.starts().len(), 2, "{moment}");
            }
            let call = node.unprepare("a");
            assert_eq!(node.answered(call), Some(&Answer::Unprepared), "{moment}");
            assert_clean(&node, &moment);
        }
    }
}

#[test]
fn a_charge_covers_a_slice_by_its_share_and_its_memory() {
    let charged = |gpus_milli: i64, vram_bytes: i64| {
        let mut permit = permit("a", gpus_milli);
        for charge in &mut permit.charge.claims {
            charge.vram_bytes = vram_bytes;
        }
        permit
    };
    for (permit, is_covered) in [
        (charged(250, 20), true),
        (charged(249, 20), false),
        (charged(250, 19), false),
        (charged(250, 0), true),
    ] {
        let api = node_devices("u", 1, vec![permit]);
        let mut node = node_with(Some(api), SliceMode::Dynamic);
        let call = node.prepare(claim("a", &["slice-2-0"]));
        node.pass(36 * SECOND);
        match node.answered(call) {
            Some(Answer::Prepared(_)) if is_covered => {}
            Some(Answer::Refused(refusal)) if !is_covered => {
                assert_eq!(refusal.reason, Some(Reason::ChargeExceeded));
                assert_eq!(node.starts(), Vec::<u32>::new());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_gpu_that_does_not_list_its_slices_is_not_cut() {
    let mut node = node();
    let call = node.begin_prepare(0, claim("a", &["slice-1-0"]));
    node.settle();
    assert_eq!(node.prepared(call).len(), 1);
    let record = node.disk.records["a"].clone();
    let mut unlisted = LiveSlices::new();
    unlisted.insert("GPU-0".to_owned(), Err("NVML did not answer".to_owned()));
    let machine = &node.machines[0];
    let mut again = record.clone();
    let refusal = machine
        .place_slices(&mut again, &node.disk, &unlisted)
        .unwrap_err();
    assert_eq!(refusal.reason, Some(Reason::DeviceUnknown));
    // What is prepared is not taken for gone.
    assert!(record.is_there(&unlisted));
}
