//! What a rollout and a rotation do to requests: a replica is told to stop, certificates are replaced and the Secret is lost while
//! requests still come.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use k8s_openapi::{ByteString, jiff::Timestamp};
use muster_serve::{authority_secret::AUTHORITIES, certificates::Policy};
use serde_json::{Value, json};
use support::{
    BINARY, Client, JSON, claiming_pod,
    real_program::{
        api_server::Objects,
        program::{Program, Starting},
    },
    review,
};

/// A proxy takes a second or two to learn that an endpoint is gone.
const STILL_ASKED: Duration = Duration::from_secs(4);
/// The leader compares the bundle every 4 s, and the API server learns of it within another.
const BUNDLE_IS_LATE: Duration = Duration::from_secs(5);
/// Between two requests. Each has a connection of its own, and so a handshake.
const PAUSE: Duration = Duration::from_millis(50);
/// A server looks at its Secret every 2 s.
const NOTICED: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_replica_that_is_told_to_stop_is_not_ready_at_once_and_still_answers_whoever_asks() {
    let webhook = Program::start(BINARY).await;
    let request = review("Pod", &claiming_pod(&json!({})));
    webhook.terminate().await;
    let told = Instant::now();
    while webhook.probe("/readyz").await.0 != 503 {
        assert!(told.elapsed() < Duration::from_secs(2), "it is still ready");
    }
    // A kubelet that is started again says it again.
    webhook.terminate().await;
    while told.elapsed() < STILL_ASKED {
        let answer = webhook.review("/mutate/pods", &request).await;
        assert_eq!(answer["allowed"], true, "{answer}");
        tokio::time::sleep(PAUSE).await;
    }
    assert!(webhook.ends_well().await);
}

#[tokio::test]
async fn a_replica_without_its_secret_says_what_to_do_and_stops_well_when_it_is_told_to() {
    let objects = Objects::default();
    objects.delete_secrets(true);
    let mut starting = Starting::spawn(BINARY, &objects).await;
    let told = starting.logs(|entry| {
        let error = entry["error"].as_str()?;
        error.contains("does not exist").then(|| error.to_owned())
    });
    let told = told.await;
    let command = "`kubectl create secret generic muster-webhook-ca --namespace muster-system`";
    assert!(told.contains(command), "{told}");
    assert!(starting.stops_well().await);

    let starting = Starting::spawn(BINARY, &objects).await;
    objects.delete_secrets(false);
    starting.serves(&objects).await;
}

/// A value as it was some time ago, which is how others know it.
struct Delayed<T> {
    delay: Duration,
    /// Each with when it came to be; the first is what is known.
    values: VecDeque<(Instant, T)>,
}

impl<T: Clone + PartialEq> Delayed<T> {
    fn new(delay: Duration, value: T) -> Self {
        Self {
            delay,
            values: VecDeque::from([(Instant::now(), value)]),
        }
    }

    fn set(&mut self, value: T) {
        if self.values.back().is_some_and(|(_, last)| *last != value) {
            self.values.push_back((Instant::now(), value));
        }
    }

    fn known(&mut self) -> T {
        while self
            .values
            .get(1)
            .is_some_and(|(since, _)| since.elapsed() >= self.delay)
        {
            self.values.pop_front();
        }
        self.values[0].1.clone()
    }
}

/// The API server: asks the endpoints that it knows of, and trusts the bundle that it knows of.
#[derive(Clone)]
struct Asker {
    endpoints: Arc<Mutex<Delayed<Vec<Client>>>>,
    answered: Arc<Mutex<u32>>,
}

impl Asker {
    /// Goes on for ever; the first request that is refused is the end.
    async fn ask(self, objects: Objects) {
        let request = review("Pod", &claiming_pod(&json!({}))).to_string();
        let mut bundle = Delayed::new(BUNDLE_IS_LATE, objects.bundle_pem());
        for turn in 0.. {
            // While it is empty the leader leaves what there is.
            if let Some(pem) = objects.in_secret("ca.crt") {
                bundle.set(pem);
            }
            let endpoints = self.endpoints.lock().unwrap().known();
            let client = Client {
                bundle_pem: bundle.known(),
                ..endpoints[turn % endpoints.len()].clone()
            };
            let (status, answer) = client.post("/mutate/pods", JSON, &request).await;
            assert_eq!(status, 200, "{answer}");
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!(answer["response"]["allowed"], true, "{answer}");
            *self.answered.lock().unwrap() += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn set_endpoints(&self, programs: &[&Program]) {
        let clients = programs.iter().map(|program| program.client()).collect();
        self.endpoints.lock().unwrap().set(clients);
    }
}

/// Makes the newest authority older than it is.
fn age_newest(objects: &Objects, seconds: i64) {
    let stored = objects.in_secret(AUTHORITIES).unwrap();
    let mut authorities: Vec<Value> = serde_json::from_str(&stored).unwrap();
    let newest = authorities.last_mut().unwrap();
    newest["issuedAt"] = json!(Timestamp::now().as_second() - seconds);
    let stored = ByteString(serde_json::to_vec(&authorities).unwrap());
    objects.write_secret(|data| data[AUTHORITIES] = json!(stored));
}

/// The certificates of a bundle, each for itself.
fn authorities(bundle_pem: &str) -> Vec<String> {
    let certificates = bundle_pem.split_inclusive("-----END CERTIFICATE-----\n");
    certificates.map(str::to_owned).collect()
}

async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(NOTICED, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    waited.await.expect(what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_refused_while_certificates_are_rotated_replicas_rolled_and_the_secret_emptied()
 {
    let objects = Objects::default();
    let first = Program::start_beside(BINARY, &objects).await;
    let second = Program::start_beside(BINARY, &objects).await;
    let asker = Asker {
        endpoints: Arc::new(Mutex::new(Delayed::new(
            Duration::from_secs(3),
            vec![first.client(), second.client()],
        ))),
        answered: Arc::default(),
    };
    let asking = tokio::spawn(asker.clone().ask(objects.clone()));
    let old = objects.bundle_pem();
    assert_eq!(authorities(&old).len(), 1);

    // An authority of eight months: whoever looks first makes its successor, which is trusted and does not issue.
    age_newest(&objects, Policy::ROTATED.authority_seconds / 3 * 2);
    let third = Program::start_beside(BINARY, &objects).await;
    let both = authorities(&objects.bundle_pem());
    assert_eq!(both.len(), 2);
    let successor = &both[1];
    let shows = async |program: &Program, authority: &str| {
        let client = Client {
            bundle_pem: authority.to_owned(),
            ..program.client()
        };
        client.connect([127, 0, 0, 1]).await.is_ok()
    };
    assert!(!shows(&third, successor).await, "it issues already");

    // A day later it issues, while a replica is rolled.
    tokio::time::sleep(BUNDLE_IS_LATE).await;
    age_newest(&objects, Policy::ROTATED.overlap_seconds.unwrap());
    asker.set_endpoints(&[&second, &third]);
    first.terminate().await;
    let first_ends = tokio::spawn(first.ends_well());
    for program in [&second, &third] {
        eventually("it shows a certificate of the successor", async || {
            shows(program, successor).await
        })
        .await;
    }
    assert!(first_ends.await.unwrap());

    // A month later the old one goes, and again a replica.
    let spent = Policy::ROTATED.overlap_seconds.unwrap() + Policy::ROTATED.leaf_seconds;
    age_newest(&objects, spent);
    let fourth = Program::start_beside(BINARY, &objects).await;
    assert_eq!(objects.bundle_pem(), *successor);
    asker.set_endpoints(&[&third, &fourth]);
    second.terminate().await;
    assert!(second.ends_well().await);

    // Who knew what was in the Secret puts it back.
    objects.write_secret(|data| *data = Value::Null);
    eventually("the Secret is filled again", async || {
        objects.in_secret("ca.crt").is_some()
    })
    .await;
    // Two of them knew it, one perhaps by a step less.
    assert!(objects.bundle_pem().ends_with(successor));
    let fifth = Program::start_beside(BINARY, &objects).await;
    asker.set_endpoints(&[&third, &fourth, &fifth]);
    tokio::time::sleep(BUNDLE_IS_LATE).await;

    assert!(!asking.is_finished(), "{:?}", asking.await);
    asking.abort();
    assert!(*asker.answered.lock().unwrap() > 150);
    assert_ne!(old, *successor);
}
