//! What a rollout and a lost Secret do to kube-scheduler, which has read its certificates once, at its start.

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

const BINARY: &str = env!("CARGO_BIN_EXE_muster-extender");
/// A proxy takes a second or two to learn that an endpoint is gone.
const STILL_ASKED: Duration = Duration::from_secs(4);
/// A server looks at its Secret every 30 s.
const NOTICED: Duration = Duration::from_secs(45);

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
