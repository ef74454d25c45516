//! Nodes where attempts failed: new plans avoid them, as far as they can.

use super::*;

#[test]
fn a_node_that_fails_a_rank_is_avoided_and_not_one_where_a_program_does() {
    for (reason, is_avoided) in [
        (Some("UnexpectedAdmissionError"), true),
        (Some("DeadlineExceeded"), false),
        (None, false),
    ] {
        let mut bench = running();
        bench.change_pod("train-1", |pod| {
            set_phase(pod, "Failed");
            let status = pod.status.as_mut().unwrap();
            status.reason = reason.map(str::to_owned);
            status.container_statuses = serde_json::from_value(json!([{
                "name": "rank", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 1}},
            }]))
            .unwrap();
        });
        bench.run();
        bench.seconds += 60;
        bench.run();
        assert_eq!(evictions(&bench), [(1, Reason::PodFailed)]);
        let node = bench.gang_status().evictions[0].node.clone();
        assert_eq!(node.is_some(), is_avoided, "{reason:?}");
    }
}
