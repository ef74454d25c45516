//! The slow, the silent and the greedy client against the program itself, while kube-scheduler goes on asking.
//!
//! Who shows no certificate of our authority gets no further than the handshake. Whoever has one (every holder of the
//! Secret is kube-scheduler to this server) can do more. Whatever they do, an honest call is answered in time, its
//! handshake included: kube-scheduler serves nobody while it waits, and gives up after 1 s.

#[path = "../../serve/tests/real_program/mod.rs"]
mod real_program;

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use muster_extender::program::{CLIENT_NAME, LIMITS};
use muster_serve::certificates::{AuthoritySet, Policy, Subject};
use real_program::{
    attacks,
    client::Client,
    http2_attacks,
    target::{HONEST, STRANGER, Target, Terms},
};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

const TERMS: Terms = Terms {
    binary: env!("CARGO_BIN_EXE_muster-extender"),
    path: "/scheduler/filter",
    // A pod that no gang has: refused for the one node that was offered, which is a whole answer.
    is_right: |answer| {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let refused = answer["FailedAndUnresolvableNodes"]["n0"].as_str();
        refused.is_some_and(|text| text.starts_with("NotAdmitted"))
    },
    limit: Duration::from_secs(1),
    // A pod whose filter call fails is tried again.
    tries: 3,
    body_limit_bytes: LIMITS.body_bytes,
    memory_mebibytes: 1024,
};

fn filter_request(pod: &Value) -> String {
    json!({"Pod": pod, "Nodes": null, "NodeNames": ["n0"]}).to_string()
}

async fn extender() -> Target {
    Target::start(TERMS, filter_request(&json!({}))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_never_end_hold_up_nobody_from_forty_connections_or_four_hundred() {
    attacks::unfinished_bodies(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_one_peer_do_not_use_up_the_bytes_of_small_ones() {
    attacks::unfinished_large_bodies(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_wait_for_each_other_and_not_the_small_ones_for_them() {
    let padding = "x".repeat(LIMITS.body_bytes - 2000);
    let large = filter_request(&json!({"metadata": {"annotations": {"padding": padding}}}));
    attacks::large_requests(&extender().await, &large).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_handshakes_that_never_begin_hold_up_nobody() {
    attacks::slow_heads_and_silent_handshakes(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_kept_open_after_an_answer_hold_up_nobody() {
    attacks::kept_connections(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_never_sent_or_never_fetched_hold_up_nobody() {
    http2_attacks::streams_of_no_use(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_never_end_hold_up_nobody() {
    http2_attacks::endless_headers(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_connections_hold_up_nobody() {
    attacks::ten_thousand_connections(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_never_read_hold_up_nobody() {
    attacks::unread_answers(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_in_pieces_that_drip_hold_up_nobody() {
    attacks::dripping_bodies(&extender().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_held_on_the_port_of_the_probes_hold_up_neither_them_nor_kube_scheduler() {
    attacks::held_probes(&extender().await).await;
}

/// Shakes hands until the server says that it will not have this client, again and again.
async fn shake_hands(client: Client, source: [u8; 4], times: usize) -> usize {
    let mut refused = 0;
    for _ in 0..times {
        let Ok(mut stream) = client.connect(source).await else {
            refused += 1;
            continue;
        };
        // With TLS 1.3 a client learns it from the first answer.
        refused += usize::from(stream.read(&mut [0; 1]).await.is_err());
    }
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_of_who_has_no_certificate_or_another_hold_up_nobody() {
    let extender = extender().await;
    let now = Timestamp::now().as_second();
    let authority = AuthoritySet::generate("another", &Policy::PINNED, now).unwrap();
    let subject = Subject::Client(CLIENT_NAME.into());
    let other = authority.authorities()[0].issue(&subject, now, 600);
    for identity in [None, Some(other.unwrap())] {
        for source in [HONEST, STRANGER] {
            let client = Client {
                identity: identity.clone(),
                ..extender.client()
            };
            let refused = extender.ask_during(shake_hands(client, source, 200));
            assert_eq!(refused.await, 200, "somebody else was let in");
        }
    }
}
