//! The API server, as far as a driver talks to it: the outside of these tests. Plain HTTP on loopback.
//!
//! Watches are opened and stay silent; what must be noticed without a watch is noticed by an uncached read.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};

/// Objects by path below `/apis` or `/api`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiServer {
    objects: Arc<Mutex<Objects>>,
}

#[derive(Debug, Default)]
struct Objects {
    claims: BTreeMap<(String, String), Value>,
    node_devices: BTreeMap<String, Value>,
    slices: BTreeMap<String, Value>,
    /// The FaultPolicy; `None`: they cannot be read.
    policy: Option<Value>,
    /// How often one was created or replaced.
    slice_writes: usize,
    /// Whether none may be.
    refuses_slices: bool,
    /// How often the status of a NodeDevices was written.
    status_writes: usize,
    events: Vec<Value>,
    /// That of the Node.
    capacity: Value,
    /// Of the Node.
    labels: Value,
    version: u64,
}

impl ApiServer {
    /// Starts to serve.
    pub(crate) async fn start(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let claims = "/apis/resource.k8s.io/v1";
        let muster = "/apis/muster.dev/v1alpha1/nodedevices";
        let router = Router::new()
            .route("/api/v1/nodes/{name}", get(node))
            .route(&format!("{claims}/resourceclaims"), get(list_claims))
            .route(
                &format!("{claims}/namespaces/{{namespace}}/resourceclaims/{{name}}"),
                get(claim),
            )
            .route(
                &format!("{claims}/resourceslices"),
                get(list_slices).post(create_slice),
            )
            .route(
                &format!("{claims}/resourceslices/{{name}}"),
                axum::routing::put(replace_slice),
            )
            .route(
                "/apis/events.k8s.io/v1/namespaces/{namespace}/events",
                axum::routing::post(create_event),
            )
            .route(
                "/apis/muster.dev/v1alpha1/faultpolicies",
                get(list_policies),
            )
            .route(muster, get(list_node_devices))
            .route(&format!("{muster}/{{name}}"), get(node_devices))
            .route(
                &format!("{muster}/{{name}}/status"),
                axum::routing::patch(patch_status),
            )
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    /// A claim that is allocated these devices of `node-0`, and reserved for the pod of the same UID.
    pub(crate) fn allocate(&self, uid: &str, devices: &[&str]) {
        let results: Vec<Value> = devices
            .iter()
            .map(|device| {
                json!({"request": "gpu/any", "driver": "gpu.muster.dev", "pool": "node-0", "device": device})
            })
            .collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"namespace": "ml", "name": format!("claim-{uid}"), "uid": uid},
            "spec": {},
            "status": {
                "reservedFor": [{"resource": "pods", "name": "pod", "uid": format!("pod-{uid}")}],
                "allocation": {"devices": {"results": results}},
            },
        });
        let key = ("ml".to_owned(), format!("claim-{uid}"));
        self.objects.lock().unwrap().claims.insert(key, claim);
    }

    /// Puts the spec of this node's `NodeDevices`.
    pub(crate) fn permit(&self, generation: i64, permits: &Value) {
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        let version = objects.version.to_string();
        let object = objects
            .node_devices
            .entry("node-0".to_owned())
            .or_insert_with(|| {
                json!({
                    "apiVersion": "muster.dev/v1alpha1", "kind": "NodeDevices",
                    "metadata": {"name": "node-0", "uid": "nd-1"},
                })
            });
        merge(
            object,
            &json!({
                "metadata": {"generation": generation, "resourceVersion": version},
                "spec": {"nodeUid": "n-1", "leaderEpoch": 1, "enforce": true, "permits": permits},
            }),
        );
    }

    /// Says in this node's `NodeDevices` whether GPUs may be reset.
    pub(crate) fn remediate(&self, word: &str) {
        let mut objects = self.objects.lock().unwrap();
        objects.version += 1;
        let version = objects.version.to_string();
        let object = objects.node_devices.get_mut("node-0").unwrap();
        merge(
            object,
            &json!({"metadata": {"resourceVersion": version}, "spec": {"remediation": word}}),
        );
    }

    /// Puts the capacity of the Node.
    pub(crate) fn has_capacity(&self, capacity: Value) {
        self.objects.lock().unwrap().capacity = capacity;
    }

    /// Puts the labels of the Node.
    pub(crate) fn has_labels(&self, labels: Value) {
        self.objects.lock().unwrap().labels = labels;
    }

    /// How many slices are published.
    pub(crate) fn slice_count(&self) -> usize {
        self.objects.lock().unwrap().slices.len()
    }

    /// Deletes all slices, as the kubelet does of a driver that was gone for 30 s.
    pub(crate) fn delete_slices(&self) {
        self.objects.lock().unwrap().slices.clear();
    }

    /// Lets a second pod use a claim, as kube-scheduler reserves it.
    pub(crate) fn reserve(&self, uid: &str, pod: &str) {
        let mut objects = self.objects.lock().unwrap();
        let key = ("ml".to_owned(), format!("claim-{uid}"));
        let claim = objects.claims.get_mut(&key).unwrap();
        let reserved = claim.pointer_mut("/status/reservedFor").unwrap();
        let consumer = json!({"resource": "pods", "name": pod, "uid": pod});
        reserved.as_array_mut().unwrap().push(consumer);
    }

    /// The status that the driver wrote.
    pub(crate) fn status(&self) -> Value {
        let objects = self.objects.lock().unwrap();
        let object = objects.node_devices.get("node-0");
        object
            .and_then(|object| object.get("status").cloned())
            .unwrap_or_default()
    }

    /// The devices that carry this taint, by name.
    pub(crate) fn tainted(&self, key: &str) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let devices = objects.slices.values().flat_map(|slice| {
            let devices = slice.pointer("/spec/devices").and_then(Value::as_array);
            devices.into_iter().flatten()
        });
        let has_taint = |device: &&Value| {
            let mut taints = device["taints"].as_array().into_iter().flatten();
            taints.any(|taint| taint["key"] == key)
        };
        let names = devices.filter(has_taint).map(|device| &device["name"]);
        names
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect()
    }

    /// How often a slice was created or replaced.
    pub(crate) fn slice_writes(&self) -> usize {
        self.objects.lock().unwrap().slice_writes
    }

    /// How often the status of the node's `NodeDevices` was written.
    pub(crate) fn status_writes(&self) -> usize {
        self.objects.lock().unwrap().status_writes
    }

    /// Puts the rules of the FaultPolicy. `None`: policies cannot be read.
    pub(crate) fn put_policy(&self, rules: Option<&Value>) {
        let policy = rules.map(|rules| {
            json!({
                "apiVersion": "muster.dev/v1alpha1", "kind": "FaultPolicy",
                "metadata": {"name": "cluster", "uid": "fp-1", "resourceVersion": "1"},
                "spec": {"rules": rules},
            })
        });
        self.objects.lock().unwrap().policy = policy;
    }

    /// From now on slices can be written, or not.
    pub(crate) fn refuse_slices(&self, refuses: bool) {
        self.objects.lock().unwrap().refuses_slices = refuses;
    }

    /// What the driver says of the GPUs: device and class of each fault.
    pub(crate) fn told_faults(&self) -> Vec<(String, String)> {
        let objects = self.objects.lock().unwrap();
        let object = objects.node_devices.get("node-0");
        let faults = object.and_then(|object| object.pointer("/status/faults"));
        let faults = faults.and_then(Value::as_array).into_iter().flatten();
        let text = |fault: &Value, field: &str| fault[field].as_str().unwrap().to_owned();
        faults
            .map(|fault| (text(fault, "device"), text(fault, "class")))
            .collect()
    }

    /// The devices for whose faults the driver says that it would reset nothing.
    pub(crate) fn hindered(&self) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let object = objects.node_devices.get("node-0");
        let faults = object.and_then(|object| object.pointer("/status/faults"));
        let faults = faults.and_then(Value::as_array).into_iter().flatten();
        let hindered = faults.filter(|fault| fault["resetHindered"] == true);
        hindered
            .map(|fault| fault["device"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Events: kind and name of what each is about, and its reason.
    pub(crate) fn events(&self) -> Vec<(String, String, String)> {
        let objects = self.objects.lock().unwrap();
        let text = |event: &Value, path: &str| {
            let text = event.pointer(path).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let read = |event: &Value| {
            (
                text(event, "/regarding/kind"),
                text(event, "/regarding/name"),
                text(event, "/reason"),
            )
        };
        objects.events.iter().map(read).collect()
    }

    /// A device, as it is published.
    pub(crate) fn device(&self, name: &str) -> Option<Value> {
        let objects = self.objects.lock().unwrap();
        let mut devices = objects.slices.values().flat_map(|slice| {
            let devices = slice.pointer("/spec/devices").and_then(Value::as_array);
            devices.into_iter().flatten()
        });
        let device = devices.find(|device| device["name"] == name);
        device.cloned()
    }

    /// Names of the devices that are published.
    pub(crate) fn published(&self) -> Vec<String> {
        let objects = self.objects.lock().unwrap();
        let devices = objects.slices.values().flat_map(|slice| {
            slice
                .pointer("/spec/devices")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default()
        });
        devices
            .filter_map(|device| Some(device.get("name")?.as_str()?.to_owned()))
            .collect()
    }
}

/// JSON merge patch, without deletions.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn failure(code: StatusCode, reason: &str) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": reason, "code": code.as_u16()});
    (code, Json(status)).into_response()
}

/// The object, or that there is none of that name, as the API server says it.
fn found(object: Option<Value>, group: &str, plural: &str, name: &str) -> Response {
    if let Some(object) = object {
        return Json(object).into_response();
    }
    let message = format!("{plural}.{group} {name:?} not found");
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound", "code": 404,
        "message": message, "details": {"name": name, "group": group, "kind": plural},
    });
    (StatusCode::NOT_FOUND, Json(status)).into_response()
}

type Parameters = Query<BTreeMap<String, String>>;

fn list(parameters: &Parameters, items: &[Value]) -> Response {
    if parameters.contains_key("watch") {
        let silence = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        return Body::from_stream(silence).into_response();
    }
    Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}))
        .into_response()
}

async fn node(State(api): State<ApiServer>, Path(name): Path<String>) -> Response {
    let (capacity, labels) = {
        let objects = api.objects.lock().unwrap();
        (objects.capacity.clone(), objects.labels.clone())
    };
    let metadata = json!({"name": name, "uid": "n-1", "labels": labels});
    Json(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"capacity": capacity}}))
        .into_response()
}

async fn claim(State(api): State<ApiServer>, Path(key): Path<(String, String)>) -> Response {
    let claim = api.objects.lock().unwrap().claims.get(&key).cloned();
    found(claim, "resource.k8s.io", "resourceclaims", &key.1)
}

async fn list_claims(State(api): State<ApiServer>, parameters: Parameters) -> Response {
    let items: Vec<Value> = api
        .objects
        .lock()
        .unwrap()
        .claims
        .values()
        .cloned()
        .collect();
    list(&parameters, &items)
}

async fn list_slices(State(api): State<ApiServer>, parameters: Parameters) -> Response {
    let items: Vec<Value> = api
        .objects
        .lock()
        .unwrap()
        .slices
        .values()
        .cloned()
        .collect();
    list(&parameters, &items)
}

async fn create_slice(State(api): State<ApiServer>, Json(mut slice): Json<Value>) -> Response {
    let generated = slice
        .pointer("/metadata/generateName")
        .and_then(Value::as_str);
    let name = format!("{}abcde", generated.unwrap_or_default());
    merge(
        &mut slice,
        &json!({"metadata": {"name": name, "uid": "s-1", "resourceVersion": "1"}}),
    );
    let mut objects = api.objects.lock().unwrap();
    if objects.refuses_slices {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
    }
    objects.slices.insert(name, slice.clone());
    objects.slice_writes += 1;
    Json(slice).into_response()
}

async fn replace_slice(
    State(api): State<ApiServer>,
    Path(name): Path<String>,
    Json(mut slice): Json<Value>,
) -> Response {
    let mut objects = api.objects.lock().unwrap();
    if objects.refuses_slices {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
    }
    objects.version += 1;
    let version = format!("s-{}", objects.version);
    let Some(stored) = objects.slices.get_mut(&name) else {
        return found(None, "resource.k8s.io", "resourceslices", &name);
    };
    let precondition = "/metadata/resourceVersion";
    if slice.pointer(precondition) != stored.pointer(precondition) {
        return failure(StatusCode::CONFLICT, "Conflict");
    }
    merge(
        &mut slice,
        &json!({"metadata": {"resourceVersion": version}}),
    );
    stored.clone_from(&slice);
    objects.slice_writes += 1;
    Json(slice).into_response()
}

async fn create_event(
    State(api): State<ApiServer>,
    Path(namespace): Path<String>,
    Json(event): Json<Value>,
) -> Response {
    if event.pointer("/metadata/namespace") != Some(&json!(namespace)) {
        return failure(StatusCode::BAD_REQUEST, "BadRequest");
    }
    api.objects.lock().unwrap().events.push(event.clone());
    Json(event).into_response()
}

async fn list_node_devices(State(api): State<ApiServer>, parameters: Parameters) -> Response {
    let items: Vec<Value> = api
        .objects
        .lock()
        .unwrap()
        .node_devices
        .values()
        .cloned()
        .collect();
    list(&parameters, &items)
}

async fn list_policies(State(api): State<ApiServer>, parameters: Parameters) -> Response {
    match api.objects.lock().unwrap().policy.clone() {
        Some(policy) => list(&parameters, &[policy]),
        None => failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
    }
}

async fn node_devices(State(api): State<ApiServer>, Path(name): Path<String>) -> Response {
    let object = api.objects.lock().unwrap().node_devices.get(&name).cloned();
    found(object, "muster.dev", "nodedevices", &name)
}

async fn patch_status(
    State(api): State<ApiServer>,
    Path(name): Path<String>,
    Json(patch): Json<Value>,
) -> Response {
    let mut objects = api.objects.lock().unwrap();
    objects.version += 1;
    let version = objects.version.to_string();
    let Some(object) = objects.node_devices.get_mut(&name) else {
        return found(None, "muster.dev", "nodedevices", &name);
    };
    for precondition in ["/metadata/uid", "/metadata/resourceVersion"] {
        let asked = patch.pointer(precondition);
        if asked.is_some_and(|asked| Some(asked) != object.pointer(precondition)) {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
    }
    merge(object, &patch);
    merge(object, &json!({"metadata": {"resourceVersion": version}}));
    let written = object.clone();
    objects.status_writes += 1;
    Json(written).into_response()
}
