//! The slow, the silent and the greedy client against the program itself, while kube-apiserver goes on asking.
//!
//! The webhook listens to everybody who reaches its port. Whatever the others do, from the address that kube-apiserver
//! has or from another, an honest review is answered in time: kube-apiserver gives up after 3 s.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{
    BINARY, JSON, claiming_pod,
    real_program::{
        attacks, http2_attacks,
        target::{Target, Terms},
    },
    review,
};

const BODY_LIMIT_BYTES: usize = 7 * 1024 * 1024;

const TERMS: Terms = Terms {
    binary: BINARY,
    path: "/mutate/pods",
    is_right: |answer| {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        answer["response"]["allowed"] == true
    },
    // In the debug build, on two cores that the attack shares.
    limit: Duration::from_secs(2),
    tries: 1,
    body_limit_bytes: BODY_LIMIT_BYTES,
    memory_mebibytes: 512,
};

async fn webhook() -> Target {
    Target::start(TERMS, review("Pod", &claiming_pod(&json!({}))).to_string()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_never_end_hold_up_nobody_from_forty_connections_or_four_hundred() {
    attacks::unfinished_bodies(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_one_peer_do_not_use_up_the_bytes_of_small_ones() {
    attacks::unfinished_large_bodies(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_wait_for_each_other_and_not_the_small_ones_for_them() {
    let padding = "x".repeat(BODY_LIMIT_BYTES - 2000);
    let large = review("Pod", &claiming_pod(&json!({"padding": padding}))).to_string();
    attacks::large_requests(&webhook().await, &large).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_handshakes_that_never_begin_hold_up_nobody() {
    attacks::slow_heads_and_silent_handshakes(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_kept_open_after_an_answer_hold_up_nobody() {
    attacks::kept_connections(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_never_sent_or_never_fetched_hold_up_nobody() {
    http2_attacks::streams_of_no_use(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_never_end_hold_up_nobody() {
    http2_attacks::endless_headers(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_hold_up_nobody() {
    attacks::ten_thousand_connections(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_never_read_hold_up_nobody() {
    attacks::unread_answers(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_in_pieces_that_drip_hold_up_nobody() {
    attacks::dripping_bodies(&webhook().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_held_on_the_port_of_the_probes_hold_up_neither_them_nor_kube_apiserver() {
    attacks::held_probes(&webhook().await).await;
}

/// 2 bytes of JSON are a container, and a container is kilobytes.
#[tokio::test]
async fn seven_mebibytes_of_empty_containers_are_refused_before_they_are_decoded() {
    let webhook = webhook().await;
    let with = |containers: usize| {
        let pod = review("Pod", &claiming_pod(&json!({}))).to_string();
        let list = vec!["{}"; containers].join(",");
        pod.replace(r#"[{"name":"c","resources":{}}]"#, &format!("[{list}]"))
    };
    let most = (BODY_LIMIT_BYTES - 2000) / 3;
    for (containers, expected) in [(4_000, 200), (5_001, 400), (most, 400)] {
        let (status, answer) = webhook
            .post("/validate/pods", JSON, &with(containers))
            .await;
        assert_eq!(status, expected, "{containers}: {answer}");
        let holds_too_much = answer.contains("more than 5000 elements");
        assert_eq!(holds_too_much, expected == 400, "{answer}");
    }
}
