use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use muster_cluster::object::ObjectKey;
use muster_cluster::shorthand::Shorthand;
use serde_json::{Value, json};

use super::*;
use crate::scripted_api::{ScriptedApi, breaks_off, failure};

fn shorthand() -> Shorthand {
    let annotations = [(keys::GPUS.to_owned(), "2".to_owned())].into();
    Shorthand::read(Some(&annotations)).unwrap().unwrap()
}

fn template(namespace: &str) -> Value {
    serde_json::to_value(shorthand().template(namespace)).unwrap()
}

/// A pod as the webhook lets it in.
fn pod(namespace: &str, name: &str) -> Change {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": namespace, "annotations": {keys::GPUS: "2"}},
        "spec": {"containers": [], "resourceClaims": [shorthand().reference()]},
    }))
    .unwrap();
    Change::Applied(Object::Pod(Arc::new(pod)))
}

fn gone(namespace: &str, name: &str) -> Change {
    Change::Deleted(ObjectKey {
        kind: Kind::Pod,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// A keeper at work.
struct Running {
    waiting: Waiting,
    refused: watch::Receiver<Refused>,
}

fn start(client: Client) -> Running {
    let (keeper, waiting, refused) = Keeper::new();
    tokio::spawn(keeper.keep(client));
    Running { waiting, refused }
}

/// Lets virtual time pass.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

const PATH: &str = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaimtemplates";

#[tokio::test(start_paused = true)]
async fn pods_that_ask_for_the_same_share_one_template_that_is_made_once() {
    let api = ScriptedApi::new([(201, template("ml"))]);
    let running = start(api.client());
    for name in ["a", "b", "c"] {
        running.waiting.observe(&pod("ml", name));
    }
    pass(5).await;
    let asked = api.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].what, format!("POST {PATH}"));
    assert_eq!(asked[0].body, template("ml"));
    assert!(running.refused.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_template_that_is_there_already_is_left_alone_if_it_asks_for_the_same() {
    let exists = failure(409, "already exists");
    let mut other = template("ml");
    other["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = json!(8);
    for (found, refused) in [(template("ml"), false), (other, true)] {
        let api = ScriptedApi::new([exists.clone(), (200, found)]);
        let running = start(api.client());
        running.waiting.observe(&pod("ml", "a"));
        tokio::time::sleep(Duration::from_millis(500)).await;
        let methods: Vec<_> = api.asked().into_iter().map(|asked| asked.what).collect();
        let name = shorthand().template_name();
        assert_eq!(
            methods,
            [format!("POST {PATH}"), format!("GET {PATH}/{name}")]
        );
        let told = running.refused.borrow().clone();
        let of_pod = told.get(&NamespacedName::new("ml", "a"));
        assert_eq!(of_pod.is_some(), refused);
        assert!(
            of_pod.is_none_or(|why| why.contains("asks for something else")),
            "{told:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_of_every_pod_and_tried_again_later_and_later_until_none_waits() {
    let refusal = || failure(403, "exceeded quota: objects");
    let api = ScriptedApi::new(std::iter::repeat_with(refusal).take(100));
    let mut running = start(api.client());
    running.waiting.observe(&pod("ml", "a"));
    running.waiting.observe(&pod("ml", "b"));
    let told = running.refused.wait_for(|refused| refused.len() == 2);
    assert!(
        told.await
            .unwrap()
            .values()
            .all(|why| why.contains("exceeded quota"))
    );
    pass(600).await;
    let tries = api.asked().len();
    assert!((10..=17).contains(&tries), "{tries} tries in ten minutes");

    running.waiting.observe(&gone("ml", "a"));
    running
        .waiting
        .observe(&Change::Listed(Kind::Pod, Vec::new()));
    running.refused.wait_for(Refused::is_empty).await.unwrap();
    let tries = api.asked().len();
    pass(600).await;
    assert_eq!(api.asked().len(), tries, "nobody waits for it");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_vanishes_while_a_pod_waits_is_made_again() {
    let api = ScriptedApi::new([(201, template("ml")), (201, template("ml"))]);
    let running = start(api.client());
    running.waiting.observe(&pod("ml", "a"));
    pass(12).await;
    assert_eq!(api.asked().len(), 2);
    assert!(running.refused.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_not_answered_for_holds_up_no_other() {
    let made = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&made);
    let service = tower::service_fn(move |request: Request<Body>| {
        let seen = Arc::clone(&seen);
        async move {
            let path = request.uri().path().to_owned();
            if path.contains("/silent/") {
                std::future::pending::<()>().await;
            }
            seen.lock().unwrap().push(path);
            let body = Body::from(template("ml").to_string().into_bytes());
            Ok::<_, std::io::Error>(Response::builder().status(201).body(body).unwrap())
        }
    });
    let running = start(Client::new(service, "default"));
    running.waiting.observe(&pod("silent", "a"));
    running.waiting.observe(&pod("ml", "a"));
    pass(1).await;
    assert_eq!(*made.lock().unwrap(), [PATH]);
}

#[tokio::test(start_paused = true)]
async fn whoever_makes_a_template_and_breaks_off_takes_the_keeper_along() {
    let (keeper, waiting, _refused) = Keeper::new();
    waiting.observe(&pod("ml", "a"));
    let api = ScriptedApi::new([breaks_off()]);
    let keeping = tokio::spawn(keeper.keep(api.client()));
    let ended = tokio::time::timeout(Duration::from_mins(1), keeping).await;
    let broke_off = ended.is_ok_and(|ended| ended.is_err_and(|broken| broken.is_panic()));
    assert!(broke_off, "it goes on, and nobody sees to that one");
}
