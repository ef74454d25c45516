//! What a rollout and a lost or another Secret do to kube-scheduler, which has read its certificates once, at its start.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../serve/tests/real_program/mod.rs"]
mod real_program;

use std::time::{Duration, Instant};

use real_program::{
    api_server::Objects,
    client::{Client, JSON},
    program::Program,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BINARY: &str = env!("CARGO_BIN_EXE_muster-extender");
/// A proxy takes a second or two to learn that an endpoint is gone.
const STILL_ASKED: Duration = Duration::from_secs(4);
/// A server looks at its Secret every 2 s.
const NOTICED: Duration = Duration::from_secs(20);

/// Asks for a pod that no gang has.
async fn assert_answers(scheduler: &Client) {
    let request = json!({"Pod": {}, "Nodes": null, "NodeNames": ["n0"]}).to_string();
    let (status, answer) = scheduler.post("/scheduler/filter", JSON, &request).await;
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let refused = &answer["FailedAndUnresolvableNodes"]["n0"];
    assert!(refused.as_str().unwrap().starts_with("NotAdmitted"));
}

#[tokio::test]
async fn a_scheduler_is_answered_through_a_rollout_and_after_its_secret_was_emptied() {
    let objects = Objects::default();
    let first = Program::start_beside(BINARY, &objects).await;
    // It is never told another.
    let scheduler = first.client();
    assert_answers(&scheduler).await;
    let bundle = objects.bundle_pem();
    objects.write_secret(|data| *data = Value::Null);
    let filled = async {
        while objects.in_secret("ca.crt").is_none() {
            assert_answers(&scheduler).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let filled = tokio::time::timeout(NOTICED, filled).await;
    filled.expect("the Secret is filled again");
    assert_eq!(objects.bundle_pem(), bundle);

    let second = Program::start_beside(BINARY, &objects).await;
    first.terminate().await;
    let told = Instant::now();
    while told.elapsed() < STILL_ASKED {
        assert_answers(&scheduler).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(first.ends_well().await);
    let scheduler = Client {
        address: second.client().address,
        ..scheduler
    };
    assert_answers(&scheduler).await;
}

/// Whether this client is let in and answered at all.
async fn is_let_in(client: &Client) -> bool {
    let Ok(mut stream) = client.connect([127, 0, 0, 1]).await else {
        return false;
    };
    let request = "GET /self-check HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
    // In TLS 1.3 a client learns of its refusal only when it reads.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn a_replica_that_runs_follows_a_secret_of_another_authority_and_lets_in_whom_that_vouches_for()
 {
    let (objects, of_backup) = (Objects::default(), Objects::default());
    let replica = Program::start_beside(BINARY, &objects).await;
    let before = replica.client();
    assert_answers(&before).await;
    // What another replica has made for another cluster, or for this one before it was restored.
    drop(Program::start_beside(BINARY, &of_backup).await);
    let mut restored = Value::Null;
    of_backup.write_secret(|data| restored = data.clone());
    objects.write_secret(|data| *data = restored);

    let after = Client {
        address: before.address,
        bundle_pem: objects.bundle_pem(),
        identity: objects.identity(),
    };
    let follows = async {
        while !is_let_in(&after).await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let followed = tokio::time::timeout(NOTICED, follows).await;
    followed.expect("the new client is let in");
    assert_answers(&after).await;
    let stale = Client {
        identity: before.identity,
        ..after.clone()
    };
    assert!(!is_let_in(&stale).await, "its authority is gone");
    // A server that asked itself as somebody who is not let in would not be ready any more.
    let asked = Instant::now();
    while asked.elapsed() < STILL_ASKED + Duration::from_secs(1) {
        assert_eq!(replica.probe("/readyz").await.0, 200);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
