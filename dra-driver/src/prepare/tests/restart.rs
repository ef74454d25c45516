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
