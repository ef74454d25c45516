//! What survives: a lost checkpoint, a reboot, a full disk, a crash half way (rule 5).

use super::*;

#[test]
fn after_a_loss_nothing_is_done_until_records_and_generation_are_known() {
    let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    let lost = std::mem::take(&mut node.disk);
    node.gathered = lost.records.into_values().collect();
    node.api_answers = false;
    node.restart("two");
    let prepare = node.prepare(claim("b", &["gpu-1"]));
    let unprepare = node.unprepare("a");
    assert!(node.refused(unprepare).message.contains("rebuilt"));
    node.pass(3 * SECOND);
    assert_eq!(node.answered(prepare), None);
    assert_eq!(node.disk.acknowledged, None);

    node.api_answers = true;
    node.pass(3 * SECOND);
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 3);
    let again = node.unprepare("a");
    assert_eq!(node.answered(again), Some(&Answer::Unprepared));
}

#[test]
fn a_mark_left_after_a_loss_hides_nothing_of_what_was_prepared_before() {
    for unprepared in [false, true] {
        let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
        node.prepare(claim("a", &["gpu-0"]));
        let lost = std::mem::take(&mut node.disk);
        node.gathered = lost.records.into_values().collect();
        node.api_answers = false;
        node.restart("two");
        node.prepare(claim("a", &["gpu-0"]));
        assert_eq!(node.state("a"), Some(RecordState::Waiting));
        if unprepared {
            let call = node.unprepare("a");
            assert!(node.refused(call).message.contains("rebuilt"));
            assert_eq!(node.state("a"), None, "the mark is taken");
        }
        node.api_answers = true;
        node.pass(3 * SECOND);
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "{unprepared}");
    }
}

/// Two instances, as during an update, of which the second gathers for a loss and is told of it when the first has rebuilt, has prepared claim `a`,
/// and the checkpoint is lost once more.
#[test]
fn s1_what_was_gathered_before_the_checkpoint_was_lost_again_frees_no_device() {
    for is_rebuilt_anew in [false, true] {
        let case = format!("the first has begun to rebuild: {is_rebuilt_anew}");
        let permits = vec![permit("a", 1_000), permit("b", 1_000)];
        let mut node = Node::new(Some(node_devices("u", 3, permits)));
        let second = node.start_another("two");
        node.disk = Disk::default();
        node.slow.insert(second);
        node.look_again(second);
        assert_eq!(node.disk.acknowledged, None, "{case}");
        node.look_again(0);
        assert!(node.disk.acknowledged.is_some(), "{case}");
        let call = node.prepare(claim("a", &["gpu-0"]));
        assert_eq!(node.prepared(call).len(), 1, "{case}");

        let lost = std::mem::take(&mut node.disk);
        node.gathered = lost.records.into_values().collect();
        if is_rebuilt_anew {
            node.slow.insert(0);
            node.look_again(0);
            assert_eq!(node.disk.acknowledged, None, "{case}");
        }
        node.release_gathers();
        assert!(node.disk.acknowledged.is_some(), "{case}");
        assert_eq!(node.state("a"), Some(RecordState::Prepared), "{case}");
        let other = node.prepare(claim("b", &["gpu-0"]));
        node.pass(36 * SECOND);
        assert!(node.refused(other).is_overlap, "{case}");
    }
}

#[test]
fn of_two_instances_that_rebuild_at_once_neither_undoes_what_the_other_began() {
    let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
    let second = node.start_another("two");
    node.prepare(claim("a", &["gpu-0"]));
    let lost = std::mem::take(&mut node.disk);
    node.gathered = lost.records.into_values().collect();
    node.slow.extend([0, second]);
    node.log.clear();
    for instance in [0, second, 0, second] {
        node.look_again(instance);
    }
    node.release_gathers();
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    assert!(node.disk.acknowledged.is_some());
    let gathers = node.log.iter().filter(|done| *done == "gather");
    assert_eq!(gathers.count(), 2, "each once");
}

/// Its writer may be gone: whoever comes next gathers under the same name.
#[test]
fn a_rebuild_that_was_begun_by_an_instance_that_died_is_gone_on_with() {
    let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    let lost = std::mem::take(&mut node.disk);
    node.gathered = lost.records.into_values().collect();
    node.slow.insert(0);
    node.look_again(0);
    let begun = node.disk.rebuild.clone();
    assert!(begun.is_some());
    node.api_answers = false;
    node.slow.clear();
    node.restart("two");
    assert_eq!(node.disk.rebuild, begun);
    node.api_answers = true;
    node.pass(3 * SECOND);
    assert_eq!(node.state("a"), Some(RecordState::Prepared));
    assert_eq!(node.disk.rebuild, None, "it is done");
}

#[test]
fn a_reboot_voids_what_was_prepared_and_keeps_what_was_promised() {
    let mut node = Node::new(Some(node_devices("u", 3, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.boot(Config {
        boot_id: "boot-2".to_owned(),
        ..config("two")
    });
    assert!(node.disk.records.is_empty() && node.cdi.is_empty());
    assert_eq!(node.disk.acknowledged.as_ref().unwrap().generation, 3);
    assert_eq!(node.status().boot_id, "boot-2");
}

#[test]
fn a_disk_that_fails_at_any_write_leaves_nothing_behind_and_the_next_try_succeeds() {
    // Mark, intent, CDI file, completion.
    for writes in 0..4 {
        let mut node = Node::new(None);
        node.disk_fails_after = Some(writes);
        let call = node.prepare(claim("a", &["gpu-0"]));
        assert!(
            node.refused(call).message.contains("No space left"),
            "{writes}"
        );
        assert_eq!(node.state("a"), None, "{writes}");
        assert!(node.cdi.is_empty(), "{writes}");
        let call = node.prepare(claim("a", &["gpu-0"]));
        assert_eq!(node.prepared(call).len(), 1, "{writes}");
    }
}

#[test]
fn a_disk_that_cannot_be_read_is_told_to_every_call_and_not_asked_without_pause() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("b", 1_000)])));
    let waits = node.prepare(claim("a", &["gpu-0"]));
    node.disk_is_readable = false;
    let comes = node.prepare(claim("b", &["gpu-1"]));
    assert!(node.refused(comes).message.contains("Input/output error"));
    let unprepare = node.unprepare("c");
    assert!(
        node.refused(unprepare)
            .message
            .contains("Input/output error")
    );
    node.pass(34 * SECOND);
    assert_eq!(node.answered(waits), None, "it may pass");
    node.pass(2 * SECOND);
    assert!(node.refused(waits).message.contains("Input/output error"));

    node.disk_is_readable = true;
    let again = node.prepare(claim("b", &["gpu-1"]));
    assert_eq!(node.prepared(again).len(), 1);
}

#[test]
fn an_unprepare_that_fails_at_any_write_succeeds_the_next_time() {
    for writes in 0..3 {
        let mut node = Node::new(None);
        node.prepare(claim("a", &["gpu-0"]));
        node.disk_fails_after = Some(writes);
        let call = node.unprepare("a");
        assert!(
            node.refused(call).message.contains("No space left"),
            "{writes}"
        );
        let call = node.unprepare("a");
        assert_eq!(node.answered(call), Some(&Answer::Unprepared), "{writes}");
        assert!(
            node.disk.records.is_empty() && node.cdi.is_empty(),
            "{writes}"
        );
    }
}

#[test]
fn what_a_crash_left_half_prepared_holds_and_is_completed_or_given_back() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    node.disk.records.get_mut("a").unwrap().state = RecordState::Preparing;
    node.write_api(node_devices("u", 2, vec![]), true);
    node.restart("two");
    assert_eq!(node.held_by_status(), ["a"]);

    let refused = node.prepare(claim("a", &["gpu-0"]));
    node.pass(36 * SECOND);
    assert_eq!(node.refused(refused).reason, Some(Reason::NoPermit));
    assert_eq!(
        node.state("a"),
        Some(RecordState::Preparing),
        "it still holds"
    );

    node.write_api(node_devices("u", 3, vec![permit("a", 1_000)]), true);
    let call = node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.prepared(call).len(), 1);
}

#[test]
fn a_machine_at_rest_asks_for_no_time() {
    let mut node = Node::new(Some(node_devices("u", 1, vec![permit("a", 1_000)])));
    node.prepare(claim("a", &["gpu-0"]));
    assert_eq!(node.machines[0].wake_at(), None);
}
