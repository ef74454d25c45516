//! What a rollout does to a replica: it is told to stop while requests still come.

mod support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::{BINARY, claiming_pod, real_program::program::Program, review};

/// A proxy takes a second or two to learn that an endpoint is gone.
const STILL_ASKED: Duration = Duration::from_secs(4);

#[tokio::test]
async fn a_replica_that_is_told_to_stop_is_not_ready_at_once_and_still_answers_whoever_asks() {
    let webhook = Program::start(BINARY).await;
    let request = review("Pod", &claiming_pod(&json!({})));
    webhook.terminate().await;
    let told = Instant::now();
    while webhook.probe("/readyz").await.0 != 503 {
        assert!(told.elapsed() < Duration::from_secs(2), "it is still ready");
    }
    while told.elapsed() < STILL_ASKED {
        let answer = webhook.review("/mutate/pods", &request).await;
        assert_eq!(answer["allowed"], true, "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(webhook.ends_well().await);
}
