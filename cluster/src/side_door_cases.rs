//! The table of cases that both forms of the rule about side doors are tested with: [`crate::side_doors`], and the chart's policy.

use serde_json::{Value, json};

use crate::managed_cases::pod;

/// A pod and the side doors that it uses.
#[derive(Clone, Debug)]
pub struct SideDoorCase {
    /// What is special about the pod.
    pub name: &'static str,
    /// The pod, as it is created.
    pub pod: Value,
    /// Whether its namespace carries the label of a Team.
    pub of_team: bool,
    /// What is said of each door, in the order in which the policy looks; none: the pod may be created.
    pub doors: Vec<&'static str>,
}

/// The extended resources that the cases assume: the default of the chart.
pub const SIDE_DOOR_CASES_RESOURCES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-*"];
/// The RuntimeClasses that the cases assume: the default of the chart.
pub const SIDE_DOOR_CASES_RUNTIME_CLASSES: [&str; 3] = ["nvidia", "nvidia-cdi", "nvidia-legacy"];

/// The cases.
pub fn side_door_cases() -> Vec<SideDoorCase> {
    let everywhere = variables()
        .into_iter()
        .chain(device_lists())
        .chain(annotations())
        .chain(gpus())
        .chain(runtime_classes());
    let mut cases = Vec::new();
    for (name, pod, doors) in everywhere {
        for of_team in [true, false] {
            cases.push(SideDoorCase {
                name,
                pod: pod.clone(),
                of_team,
                doors: doors.clone(),
            });
        }
    }
    for (name, pod, doors) in of_tenants() {
        cases.push(SideDoorCase {
            name,
            pod: pod.clone(),
            of_team: true,
            doors,
        });
        cases.push(SideDoorCase {
            name,
            pod,
            of_team: false,
            doors: Vec::new(),
        });
    }
    cases.push(SideDoorCase {
        name: "every door at once",
        pod: pod(
            json!({}),
            json!({
                "containers": [{
                    "name": "way",
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                    "securityContext": {"privileged": true},
                }],
                "runtimeClassName": "nvidia",
                "volumes": volumes(&["/dev/nvidia0", "/dev"]),
            }),
        ),
        of_team: true,
        doors: vec![
            "container way sets NVIDIA_VISIBLE_DEVICES",
            "a hostPath volume shows /dev/nvidia0, a GPU",
            "the RuntimeClass nvidia gives",
            "container way is privileged",
            "a hostPath volume shows the devices of the node (/dev)",
        ],
    });
    cases
}

type Case = (&'static str, Value, Vec<&'static str>);

fn variables() -> Vec<Case> {
    let with = |variable: Value| {
        let container =
            json!({"name": "way", "env": [{"name": "OTHER", "value": "all"}, variable]});
        pod(json!({}), json!({"containers": [container]}))
    };
    let valued = |value: &str| with(json!({"name": "NVIDIA_VISIBLE_DEVICES", "value": value}));
    let sets = || vec!["container way sets NVIDIA_VISIBLE_DEVICES"];
    let beside = |field: &str| {
        let way = json!({"name": "way", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "0"}]});
        pod(
            json!({}),
            json!({"containers": [{"name": "first"}], field: [way]}),
        )
    };
    vec![
        ("all GPUs", valued("all"), sets()),
        ("one GPU by its UUID", valued("GPU-1"), sets()),
        ("no GPU, as NVIDIA's runtime has it", valued("void"), vec![]),
        ("no GPU, but libraries", valued("none"), vec![]),
        ("in another spelling", valued("VOID"), sets()),
        (
            "without a value",
            with(json!({"name": "NVIDIA_VISIBLE_DEVICES"})),
            sets(),
        ),
        (
            "from elsewhere",
            with(
                json!({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
            ),
            sets(),
        ),
        (
            "another variable",
            with(json!({"name": "CUDA_VISIBLE_DEVICES", "value": "all"})),
            vec![],
        ),
        ("in an init container", beside("initContainers"), sets()),
        ("in a debugger", beside("ephemeralContainers"), sets()),
        (
            "beside a claim, whose void it would override",
            pod(
                json!({}),
                json!({
                    "containers": [{"name": "way", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}],
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
                }),
            ),
            sets(),
        ),
    ]
}

fn device_lists() -> Vec<Case> {
    let at = |list: &str, path: &str| {
        let way = json!({"name": "way", "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {"name": "null", "mountPath": path},
        ]});
        let mut spec = json!({
            "containers": [{"name": "first"}],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "null", "hostPath": {"path": "/dev/null"}},
            ],
        });
        match spec[list].as_array_mut() {
            Some(others) => others.push(way),
            None => spec[list] = json!([way]),
        }
        pod(json!({}), spec)
    };
    let mounts = || vec!["container way mounts something below /var/run/nvidia-container-devices"];
    let all = "/var/run/nvidia-container-devices/all";
    vec![
        (
            "all GPUs, by what is mounted",
            at("containers", all),
            mounts(),
        ),
        (
            "one by its CDI name, and another spelling",
            at(
                "containers",
                "var/run/x/..//nvidia-container-devices/./cdi/nvidia.com/gpu/0",
            ),
            mounts(),
        ),
        (
            "mounted in an init container",
            at("initContainers", all),
            mounts(),
        ),
        (
            "mounted in a debugger",
            at("ephemeralContainers", all),
            mounts(),
        ),
        (
            "mounted elsewhere",
            at("containers", "/var/run/nvidia/all"),
            vec![],
        ),
    ]
}

fn annotations() -> Vec<Case> {
    let with = |key: &str| {
        let annotations = json!({"note": "cdi.k8s.io/", key: "nvidia.com/gpu=all"});
        pod(
            json!({"annotations": annotations}),
            json!({"containers": [{"name": "first"}]}),
        )
    };
    vec![
        (
            "all GPUs, by an annotation",
            with("cdi.k8s.io/way"),
            vec!["annotation cdi.k8s.io/way names devices for NVIDIA's runtime"],
        ),
        (
            "by that of GPU Operator",
            with("nvidia.cdi.k8s.io/way"),
            vec!["annotation nvidia.cdi.k8s.io/way names devices for NVIDIA's runtime"],
        ),
        ("by one that says nothing to it", with("cdi.k8s.io"), vec![]),
    ]
}

fn gpus() -> Vec<Case> {
    vec![
        (
            "a GPU of the node",
            host(&["/dev/nvidia0"]),
            vec!["a hostPath volume shows /dev/nvidia0, a GPU"],
        ),
        (
            "the same by another spelling",
            host(&["/data", "/./dev//./nvidia-uvm"]),
            vec!["a hostPath volume shows /./dev//./nvidia-uvm, a GPU"],
        ),
        (
            "paths that only look like it",
            host(&[
                "/dev/shm",
                "/devices/nvidia0",
                "/data/dev/nvidia0",
                "/dev/.nvidia",
            ]),
            vec![],
        ),
        (
            "volumes of other kinds",
            pod(
                json!({}),
                json!({"containers": [{"name": "way"}], "volumes": [{"name": "v", "emptyDir": {}}]}),
            ),
            vec![],
        ),
    ]
}

fn runtime_classes() -> Vec<Case> {
    let with = |metadata: Value, container: Value| {
        let mut container = container;
        container["name"] = json!("way");
        pod(
            metadata,
            json!({"containers": [container], "runtimeClassName": "nvidia"}),
        )
    };
    let gives = || vec!["the RuntimeClass nvidia gives"];
    vec![
        (
            "a RuntimeClass of NVIDIA, and no GPU asked for",
            with(json!({}), json!({})),
            gives(),
        ),
        (
            "the same in a gang: its charge would be nothing",
            with(json!({"labels": {"muster.dev/gang": "g"}}), json!({})),
            gives(),
        ),
        (
            "the same with a GPU of a device plugin",
            with(
                json!({}),
                json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}}),
            ),
            vec![],
        ),
        (
            "the same with zero of them: it would get all that its image names",
            with(
                json!({}),
                json!({"resources": {"limits": {"nvidia.com/gpu": "0"}}}),
            ),
            given_none(),
        ),
        (
            "the same with zero of them, which says so",
            with(
                json!({}),
                json!({"env": void(), "resources": {"limits": {"nvidia.com/gpu": "0"}}}),
            ),
            vec![],
        ),
        (
            "the same with the shorthand, and the claim in no container",
            with(json!({"annotations": {"muster.dev/gpus": "1"}}), json!({})),
            given_none(),
        ),
        (
            "the same with the shorthand, as the webhook leaves it",
            with(
                json!({"annotations": {"muster.dev/gpus": "1"}}),
                json!({"resources": {"claims": [{"name": "muster-gpus"}]}}),
            ),
            vec![],
        ),
        (
            "beside a container with a claim, one without",
            beside("containers", json!({"name": "way"})),
            given_none(),
        ),
        (
            "beside a container with a claim, one without that says so",
            beside("containers", json!({"name": "way", "env": void()})),
            vec![],
        ),
        (
            "beside a container with a claim, one without that says so in another word",
            beside(
                "containers",
                json!({"name": "way", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}),
            ),
            vec![],
        ),
        (
            "beside a container with a claim, one with a resource that stands for no device",
            beside(
                "containers",
                json!({"name": "way", "resources": {"limits": {"example.com/nic": "1"}}}),
            ),
            given_none(),
        ),
        (
            "beside a container with a claim, one with a slice of a device plugin",
            beside(
                "containers",
                json!({"name": "way", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}),
            ),
            vec![],
        ),
        (
            "beside a container with a claim, one with a shared GPU of a device plugin, managed or not",
            beside(
                "containers",
                json!({"name": "way", "resources": {"limits": {"nvidia.com/gpu.shared": "1"}}}),
            ),
            vec![],
        ),
        (
            "the same with none of them",
            beside(
                "containers",
                json!({"name": "way", "resources": {"limits": {"nvidia.com/gpu.shared": "0"}}}),
            ),
            given_none(),
        ),
        (
            "a sidecar beside a container with a claim",
            beside(
                "initContainers",
                json!({"name": "way", "restartPolicy": "Always"}),
            ),
            given_none(),
        ),
        (
            "a debugger beside a container with a claim",
            beside("ephemeralContainers", json!({"name": "way"})),
            given_none(),
        ),
        (
            "a debugger beside a container with a claim, which says so",
            beside("ephemeralContainers", json!({"name": "way", "env": void()})),
            vec![],
        ),
        (
            "containers without a claim, and a RuntimeClass that gives none",
            pod(
                json!({}),
                json!({
                    "containers": [{"name": "way"}],
                    "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
                    "runtimeClassName": "gvisor",
                }),
            ),
            vec![],
        ),
        (
            "another RuntimeClass",
            pod(
                json!({}),
                json!({"containers": [{"name": "way"}], "runtimeClassName": "gvisor"}),
            ),
            vec![],
        ),
    ]
}

/// What is said of a container for which no device was asked.
fn given_none() -> Vec<&'static str> {
    vec!["the RuntimeClass nvidia gives container way, for which no GPU was asked"]
}

/// The variable, as the webhook adds it.
fn void() -> Value {
    json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}])
}

/// A pod with a RuntimeClass of NVIDIA in which one container names a claim, and this one more is in a list.
fn beside(list: &str, container: Value) -> Value {
    let named = json!({"name": "first", "resources": {"claims": [{"name": "gpu"}]}});
    let mut spec = json!({
        "containers": [named],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
        "runtimeClassName": "nvidia",
    });
    match spec[list].as_array_mut() {
        Some(others) => others.push(container),
        None => spec[list] = json!([container]),
    }
    pod(json!({}), spec)
}

/// What only pods of a Team may not: others are trusted.
fn of_tenants() -> Vec<Case> {
    let secured = |context: Value| {
        pod(
            json!({}),
            json!({"containers": [{"name": "first"}, {"name": "way", "securityContext": context}]}),
        )
    };
    let debugger = json!({"name": "way", "securityContext": {"privileged": true}});
    vec![
        (
            "a privileged container",
            secured(json!({"privileged": true})),
            vec!["container way is privileged"],
        ),
        (
            "one that says that it is not",
            secured(json!({"privileged": false})),
            vec![],
        ),
        ("one that says nothing", secured(json!({})), vec![]),
        (
            "a privileged debugger",
            pod(
                json!({}),
                json!({"containers": [{"name": "first"}], "ephemeralContainers": [debugger]}),
            ),
            vec!["container way is privileged"],
        ),
        (
            "the root of the node",
            host(&["/"]),
            vec!["a hostPath volume shows the devices of the node (/)"],
        ),
        (
            "the devices of the node, by another spelling",
            host(&["/data", "/./dev/."]),
            vec!["a hostPath volume shows the devices of the node (/./dev/.)"],
        ),
        (
            "directories below them, and others",
            host(&["/dev/shm", "/devices", "/.dev", "/data/dev"]),
            vec![],
        ),
    ]
}

fn host(paths: &[&str]) -> Value {
    let spec = json!({"containers": [{"name": "way"}], "volumes": volumes(paths)});
    pod(json!({}), spec)
}

fn volumes(paths: &[&str]) -> Value {
    let volumes = paths.iter().enumerate();
    volumes
        .map(|(number, path)| json!({"name": format!("v{number}"), "hostPath": {"path": path}}))
        .collect()
}
