//! `muster-sim decide`: small clusters, the examples that users copy, and what a file may get wrong.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use muster_sim::{
    decide::{Answer, Decision, Source, decide},
    random::Random,
};
use serde_json::{Value, json};

/// Text of a Node with GPUs and its slice.
fn node(name: &str, leaf: &str, gpus: usize) -> String {
    let devices: String = (0..gpus)
        .map(|number| {
            format!(
                "  - name: gpu-{number}\n    attributes:\n      productName: {{string: NVIDIA H100 80GB HBM3}}\n      \
                 nvlinkGroup: {{string: {name}}}\n      resource.kubernetes.io/numaNode: {{int: {}}}\n    \
                 capacity: {{memory: {{value: 80Gi}}}}\n",
                number / 4
            )
        })
        .collect();
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  labels:\n    topology.example.com/spine: s0\n    \
         topology.example.com/leaf: {leaf}\n---\napiVersion: resource.k8s.io/v1\nkind: ResourceSlice\n\
         metadata: {{name: {name}}}\nspec:\n  driver: gpu.muster.dev\n  nodeName: {name}\n  pool: {{name: {name}}}\n  \
         devices:\n{devices}---\n"
    )
}

fn nodes(count: usize) -> String {
    (0..count)
        .map(|number| {
            node(
                &format!("node-{number}"),
                &format!("leaf-{}", number / 2),
                8,
            )
        })
        .collect()
}

/// So many nodes, of which the first one is drained by its taint.
fn drained(count: usize) -> String {
    nodes(count).replacen(
        "---\napiVersion: resource",
        "spec: {taints: [{key: muster.dev/drain, value: alice.fan, effect: NoSchedule}]}\n---\napiVersion: resource",
        1,
    )
}

/// A Flavor of everything, and a Team with so many GPUs and the namespace `ml`.
fn team(gpus: usize) -> String {
    format!(
        "apiVersion: muster.dev/v1alpha1\nkind: Flavor\nmetadata: {{name: h100}}\nspec: {{}}\n---\n\
         apiVersion: muster.dev/v1alpha1\nkind: Team\nmetadata: {{name: research}}\nspec:\n  quota:\n  - flavor: h100\n    \
         resources: [{{name: gpus, nominal: {gpus}}}]\n---\n\
         apiVersion: v1\nkind: Namespace\nmetadata: {{name: ml, labels: {{muster.dev/team: research}}}}\n---\n"
    )
}

/// An Indexed Job whose pods ask for so many GPUs each, in the shorthand.
fn job(name: &str, pods: usize, gpus: usize) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: {name}, namespace: ml}}\nspec:\n  completionMode: Indexed\n  \
         completions: {pods}\n  parallelism: {pods}\n  template:\n    metadata:\n      annotations: {{muster.dev/gpus: \"{gpus}\"}}\n    \
         spec:\n      containers: [{{name: main, image: i}}]\n---\n"
    )
}

fn pod(name: &str, gpus: usize) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: ml\n  annotations: {{muster.dev/gpus: \"{gpus}\"}}\n\
         spec:\n  containers: [{{name: main, image: i}}]\n---\n"
    )
}

/// The same, and it tolerates every taint.
fn tolerating(name: &str, gpus: usize) -> String {
    pod(name, gpus).replace("spec:\n", "spec:\n  tolerations: [{operator: Exists}]\n")
}

fn source(text: impl Into<String>) -> Source {
    Source {
        name: "cluster.yaml".to_owned(),
        text: text.into(),
    }
}

fn answer(text: impl Into<String>) -> Answer {
    decide(&[source(text)]).unwrap()
}

/// Name up to the suffix, whether it is admitted, and where or why not.
fn short(decision: &Decision) -> String {
    let (name, _) = decision.name.rsplit_once('-').unwrap();
    if decision.admitted {
        format!("{name} on {}", decision.nodes.join(" "))
    } else {
        format!("{name}: {}", decision.reason.unwrap())
    }
}

fn shorts(text: impl Into<String>) -> Vec<String> {
    answer(text).decisions.iter().map(short).collect()
}

/// A Gang that was admitted with one pod of four GPUs on a node; neither the pod nor its claim is given.
fn running(name: &str, node: &str) -> String {
    format!(
        "apiVersion: muster.dev/v1alpha1\nkind: Gang\nmetadata: {{name: {name}, namespace: ml}}\nspec: {{size: 1}}\nstatus:\n  \
         phase: Running\n  attempt: 1\n  team: research\n  admission:\n    team: research\n    teamGeneration: 1\n    \
         ledgerSequence: 3\n    charge:\n      claims:\n      - {{flavor: h100, gpusMilli: 4000, vramBytes: 0, uids: [claim-of-{name}]}}\n    \
         pods: [{{uid: pod-of-{name}, claims: [claim-of-{name}]}}]\n  placement:\n    \
         nodes: [{{node: {node}, nodeUid: node//{node}, ranks: 1}}]\n---\n"
    )
}

#[test]
fn small_clusters_are_decided_as_their_controller_would() {
    let cases: &[(&str, String, &[&str])] = &[
        (
            "a gang that fits is admitted, rank by rank",
            nodes(2) + &team(16) + &job("train", 2, 8),
            &["job-train on node-0 node-1"],
        ),
        (
            "a gang beyond what its Team may ever have is told so",
            nodes(4) + &team(8) + &job("train", 2, 8),
            &["job-train: ExceedsMaxQuota"],
        ),
        (
            "quota that is in use is waited for, in the order of creation and name",
            nodes(4) + &team(16) + &job("a", 2, 8) + &job("b", 1, 8),
            &["job-a on node-0 node-1", "job-b: WaitingForQuota"],
        ),
        (
            "a place that no empty cluster has is impossible",
            nodes(1) + &team(64) + &job("train", 2, 8),
            &["job-train: PlacementImpossible"],
        ),
        (
            "a place that others have is waited for",
            nodes(1) + &team(64) + &job("a", 1, 8) + &job("b", 1, 8),
            &["job-a on node-0", "job-b: WaitingForPlacement"],
        ),
        (
            "pods of a namespace without a Team wait for one",
            nodes(1) + &pod("p", 1),
            &["pod-p: NoTeam"],
        ),
        (
            "a suspended Job has no pods, and so no gang",
            nodes(1)
                + &team(8)
                + &job("train", 2, 1).replace("  parallelism", "  suspend: true\n  parallelism"),
            &[],
        ),
        (
            "a claim whose template is missing keeps its gang waiting",
            nodes(1)
                + &team(8)
                + "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ml}\nspec:\n  \
                   resourceClaims: [{name: g, resourceClaimTemplateName: nowhere}]\n  containers: [{name: main, image: i}]\n",
            &["pod-p: MissingPods"],
        ),
        (
            "a cordoned node is not planned",
            nodes(1).replace(
                "---\napiVersion: resource",
                "spec: {unschedulable: true}\n---\napiVersion: resource",
            ) + &team(8)
                + &pod("p", 1),
            &["pod-p: WaitingForPlacement"],
        ),
        (
            "a node that is drained by its taint is not planned, not even for who tolerates it",
            drained(2) + &team(16) + &pod("p", 8) + &tolerating("q", 8),
            &["pod-p on node-1", "pod-q: WaitingForPlacement"],
        ),
        (
            "`auto` quota leaves out what is drained by a taint",
            drained(2)
                + &team(8).replace("nominal: 8", "auto: true")
                + &pod("p", 8)
                + &pod("q", 8),
            &["pod-p on node-1", "pod-q: WaitingForQuota"],
        ),
        (
            "`auto` quota leaves out a device that a rule drains",
            nodes(1)
                + &team(8).replace("nominal: 8", "auto: true")
                + "apiVersion: resource.k8s.io/v1\nkind: DeviceTaintRule\nmetadata: {name: swap}\nspec:\n  \
                   deviceSelector: {driver: gpu.muster.dev, pool: node-0, device: gpu-3}\n  \
                   taint: {key: example.com/swap, effect: NoSchedule}\n---\n"
                + &pod("p", 7)
                + &pod("q", 1),
            &["pod-p on node-0", "pod-q: WaitingForQuota"],
        ),
        (
            "a gang that runs holds its quota, without its pods and claims being given",
            nodes(2) + &team(8) + &running("first-bcdfg", "node-0") + &pod("p", 8),
            &["first on node-0", "pod-p: WaitingForQuota"],
        ),
        (
            "a pod that runs holds what it asks for, in the shorthand too, without its claim being given",
            nodes(1)
                + &team(8)
                + &pod("runs", 3).replace("spec:\n", "spec:\n  nodeName: node-0\n")
                + &pod("p", 6)
                + &pod("q", 5),
            &[
                "pod-p: WaitingForQuota",
                "pod-q on node-0",
                "pod-runs on node-0",
            ],
        ),
        (
            "a pod that runs holds the devices that its claim says",
            nodes(1)
                + &team(64)
                + "apiVersion: v1\nkind: Pod\nmetadata: {name: runs, namespace: ml, uid: u}\nspec:\n  nodeName: node-0\n  \
                   resourceClaims: [{name: g, resourceClaimName: own}]\n  containers: [{name: main, image: i}]\n---\n\
                   apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: own, namespace: ml}\nspec:\n  devices:\n    \
                   requests: [{name: gpus, exactly: {deviceClassName: gpu.muster.dev, count: 2}}]\nstatus:\n  allocation:\n    \
                   devices: {results: [{request: gpus, driver: gpu.muster.dev, pool: node-0, device: gpu-3}, \
                   {request: gpus, driver: gpu.muster.dev, pool: node-0, device: gpu-4}]}\n  \
                   reservedFor: [{resource: pods, name: runs, uid: u}]\n---\n"
                + &pod("p", 7)
                + &pod("q", 6),
            &[
                "pod-p: WaitingForPlacement",
                "pod-q on node-0",
                "pod-runs on node-0",
            ],
        ),
        (
            "pods of one label are one gang, also when two Jobs make them",
            nodes(2)
                + &team(16)
                + &["a", "b"]
                    .map(|name| {
                        job(name, 2, 4).replace(
                            "annotations: {",
                            "labels: {muster.dev/gang: all}\n      annotations: {muster.dev/gang-size: \"4\", ",
                        )
                    })
                    .concat(),
            &["group-all on node-0 node-0 node-1 node-1"],
        ),
        (
            "a gang that runs holds its devices",
            nodes(1) + &team(64) + &running("first-bcdfg", "node-0") + &pod("p", 8) + &pod("q", 4),
            &[
                "first on node-0",
                "pod-p: WaitingForPlacement",
                "pod-q on node-0",
            ],
        ),
    ];
    for (name, text, expected) in cases {
        assert_eq!(shorts(text.clone()), *expected, "{name}");
    }
}

#[test]
fn whoever_waits_for_a_drained_node_is_told_that_it_is_drained() {
    for waits in [pod("p", 1), tolerating("p", 1)] {
        let answer = answer(drained(1) + &team(8) + &waits);
        let waiting = serde_json::to_value(&answer.decisions).unwrap()[0].clone();
        assert_eq!(waiting["reason"], "WaitingForPlacement", "{waiting}");
        let details = waiting["details"].as_str().unwrap();
        assert!(details.contains("drained by hand: 1"), "{details}");
        let helps = "node node-0, which is drained by hand, is schedulable";
        assert!(details.contains(helps), "{details}");
    }
}

#[test]
fn a_decision_says_team_domain_charge_and_the_numbers_of_its_reason() {
    let topology = "apiVersion: muster.dev/v1alpha1\nkind: Topology\nmetadata: {name: fabric}\nspec:\n  fabric:\n  \
                    - {name: leaf, nodeLabel: topology.example.com/leaf}\n---\n";
    let text = nodes(4)
        + topology
        + &team(16).replace("spec: {}", "spec: {topology: fabric}")
        + &job("train", 2, 8)
        + &pod("p", 2);
    let decided = serde_json::to_value(answer(text).decisions).unwrap();
    assert_eq!(
        decided[0],
        json!({
            "namespace": "ml", "name": decided[0]["name"], "team": "research", "admitted": true,
            "nodes": ["node-0", "node-1"], "gang_size": null, "domain": ["leaf-0"],
            "charge": [{"flavor": "h100", "resource": "gpus", "amount": "16"}],
            "reason": null, "details": null, "position": null, "gives_way": null, "victims": [],
        })
    );
    let waiting = &decided[1];
    assert_eq!(waiting["reason"], "WaitingForQuota");
    assert_eq!(waiting["position"], 1);
    let details = waiting["details"].as_str().unwrap();
    assert!(details.contains("2 GPUs of h100"), "{details}");
    let train = decided[0]["name"].as_str().unwrap();
    let helps = format!(
        "as things are, it is admitted once ml/{train} of Team research (16 GPUs of h100) ends (unless others go first), or \
         once the Team's nominal quota is raised by 2 GPUs of h100"
    );
    assert!(details.ends_with(&helps), "{details}");
}

/// `MUSTER_GOLDEN=write` writes the file.
#[test]
fn who_gives_way_to_whom_and_who_waits_in_which_place_stands_in_the_answer() {
    let files = repository().join("sim/tests/decide_files");
    let answer = decide(&[Source::open(&files.join("borrowed.yaml")).unwrap()]).unwrap();
    assert_eq!(answer.warnings, Vec::<String>::new());
    let printed = serde_json::to_string_pretty(&answer.decisions).unwrap() + "\n";
    let golden = files.join("borrowed.json");
    if std::env::var("MUSTER_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&golden, &printed).unwrap();
    }
    assert_eq!(printed, fs::read_to_string(&golden).unwrap());
}

/// The same cluster, as older clusters write what belongs to the resource API.
fn in_beta(text: &str, version: &str) -> String {
    let documents = text.split("---\n").filter(|document| !document.is_empty());
    let older = documents.map(|document| {
        let mut value: Value = serde_saphyr::from_str(document).unwrap();
        if value["apiVersion"] == "resource.k8s.io/v1" {
            value["apiVersion"] = json!(format!("resource.k8s.io/{version}"));
        }
        if version == "v1beta1" {
            for device in value["spec"]["devices"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                let mut basic = device.take();
                let name = basic.as_object_mut().unwrap().remove("name");
                *device = json!({"name": name, "basic": basic});
            }
            let requests = value.pointer_mut("/spec/spec/devices/requests");
            for request in requests.and_then(Value::as_array_mut).into_iter().flatten() {
                let mut exactly = request["exactly"].take();
                exactly["name"] = request["name"].take();
                *request = exactly;
            }
        }
        format!("{value}\n---\n")
    });
    older.collect()
}

#[test]
fn older_versions_of_the_resource_api_say_the_same() {
    let template = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: two, namespace: ml}\nspec:\n  \
                    spec:\n    devices:\n      requests: [{name: gpus, exactly: {deviceClassName: gpu.muster.dev, count: 2}}]\n---\n\
                    apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ml}\nspec:\n  containers: [{name: main, image: i}]\n  \
                    resourceClaims: [{name: g, resourceClaimTemplateName: two}]\n---\n";
    let text = nodes(2) + &team(16) + template + &job("train", 2, 6);
    let expected = answer(text.clone());
    assert_eq!(expected.decisions.len(), 2);
    assert!(expected.decisions.iter().all(|decision| decision.admitted));
    for version in ["v1beta1", "v1beta2"] {
        assert_eq!(answer(in_beta(&text, version)), expected, "{version}");
    }
}

#[test]
fn line_ends_anchors_and_merge_keys_are_read_as_yaml_means_them() {
    let text = nodes(1) + &team(8) + &pod("p", 1) + &pod("q", 2);
    let expected = answer(text.clone());
    assert_eq!(answer(text.replace('\n', "\r\n")), expected);
    assert_eq!(answer(format!("\u{feff}{text}")), expected);
    let merged = nodes(1)
        + &team(8)
        + "apiVersion: v1\nkind: List\nitems:\n- &one\n  apiVersion: v1\n  kind: Pod\n  metadata: &data\n    name: p\n    \
           namespace: ml\n    annotations: {muster.dev/gpus: \"1\"}\n  spec: &spec\n    containers: [{name: main, image: i}]\n\
           - <<: *one\n  metadata:\n    <<: *data\n    name: q\n    annotations: {muster.dev/gpus: \"2\"}\n  spec: *spec\n";
    assert_eq!(answer(merged), expected);
}

#[test]
fn pods_that_are_alike_but_for_the_names_that_they_have_yet_to_get_are_different_pods() {
    let alike = pod("p", 1).replace("name: p\n", "generateName: p-\n");
    let decisions = answer(nodes(1) + &team(8) + &alike.repeat(3)).decisions;
    assert!(
        decisions.iter().all(|decision| decision.admitted),
        "{decisions:?}"
    );
    assert_eq!(decisions.len(), 3);
}

#[test]
fn a_pod_that_runs_holds_the_gpus_that_it_asked_for_by_the_name_of_their_class() {
    let runs = "apiVersion: v1\nkind: Pod\nmetadata: {name: held, namespace: ml}\nspec:\n  nodeName: node-0\n  containers:\n  \
                - {name: main, image: i, resources: {limits: {deviceclass.resource.kubernetes.io/gpu.muster.dev: \"4\"}}}\n---\n";
    let decided = |gpus: usize| shorts(nodes(1) + &team(64) + runs + &pod("p", gpus));
    for (gpus, expected) in [(8, "pod-p: WaitingForPlacement"), (4, "pod-p on node-0")] {
        let decided = decided(gpus);
        assert!(decided.iter().any(|one| one == expected), "{decided:?}");
    }
    let text = nodes(1) + &team(64) + runs;
    assert_eq!(answer(text).warnings, [""; 0]);
}

#[test]
fn what_a_pod_that_runs_holds_is_said_to_be_unknown_where_its_node_has_no_such_devices() {
    let on = |node: &str| format!("spec:\n  nodeName: {node}\n");
    let text = nodes(1)
        + &team(64)
        + &pod("elsewhere", 1).replace("spec:\n", &on("node-9"))
        + &pod("large", 9).replace("spec:\n", &on("node-0"));
    let warnings = answer(text).warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    for (warning, pod) in warnings.iter().zip([
        "ml/elsewhere runs on node node-9",
        "ml/large runs on node node-0",
    ]) {
        assert!(
            warning.contains(pod) && warning.contains("status.allocation"),
            "{warning}"
        );
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The examples, by file, in the order of their names.
fn examples() -> Vec<Source> {
    let mut files: Vec<PathBuf> = fs::read_dir(repository().join("manifests/examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| Source::open(file).unwrap())
        .collect()
}

#[test]
fn every_example_is_admitted_on_a_cluster_that_has_its_gpus() {
    let cluster = source(nodes(4));
    let administrator = examples()
        .into_iter()
        .find(|source| source.name.ends_with("cluster.yaml"))
        .unwrap();
    let mut admitted = 0;
    for example in examples() {
        if example.name == administrator.name {
            continue;
        }
        let sources = [cluster.clone(), administrator.clone(), example.clone()];
        let answer = decide(&sources).unwrap();
        assert_eq!(answer.warnings, Vec::<String>::new(), "{}", example.name);
        for decision in &answer.decisions {
            assert!(decision.admitted, "{}: {decision:?}", example.name);
            assert_eq!(decision.team.as_deref(), Some("vision"));
            admitted += 1;
        }
    }
    assert_eq!(admitted, 10, "gangs of all examples");
}

#[test]
fn the_example_by_numa_node_gets_gpus_of_that_node_alone() {
    let examples = examples();
    let text = |name: &str| {
        let example = examples.iter().find(|source| source.name.ends_with(name));
        example.unwrap().text.clone() + "---\n"
    };
    let example = text("near-numa-node.yaml");
    let (template, pod) = example.split_once("---\n").unwrap();
    // Five GPUs: the last one is of NUMA node 1, and one pod more asks for it than there are.
    let pods: String = ["near-a", "near-b"]
        .map(|name| pod.replace("name: near-the-data", &format!("name: {name}")))
        .concat();
    let any = "apiVersion: v1\nkind: Pod\nmetadata: {name: any, namespace: vision, annotations: {muster.dev/gpus: \"4\"}}\nspec:\n  \
               containers: [{name: main, image: i}]\n---\n";
    let cluster = node("node-0", "leaf-0", 5) + &text("cluster.yaml");
    let decided = shorts(cluster.clone() + template + "---\n" + &pods + any);
    let of = |name: &str, decided: &[String]| {
        let beginning = format!("pod-{name}");
        let of_pod = decided.iter().find(|line| line.starts_with(&beginning));
        of_pod.unwrap().clone()
    };
    assert_eq!(decided.len(), 3, "{decided:?}");
    let near = ["near-a", "near-b"].map(|name| of(name, &decided));
    let admitted = near.iter().filter(|line| line.ends_with(" on node-0"));
    assert_eq!(admitted.count(), 1, "{decided:?}");
    assert_eq!(of("any", &decided), "pod-any on node-0", "four are left");
    // By the network card that is nearest.
    let by_card = template.replace(
        "device.attributes['resource.kubernetes.io'].numaNode == 1",
        "device.attributes['gpu.muster.dev'].rdmaNic == 'mlx5_1'",
    );
    let by_card = by_card.replace(
        "['resource.kubernetes.io'].numaNode)",
        "['gpu.muster.dev'].rdmaNic)",
    );
    assert!(!by_card.contains("numaNode =="), "{by_card}");
    let with_card = cluster.replace(
        "      resource.kubernetes.io/numaNode: {int: 1}\n",
        "      resource.kubernetes.io/numaNode: {int: 1}\n      rdmaNic: {string: mlx5_1}\n",
    );
    let decided = shorts(with_card + &by_card + "---\n" + &pods + any);
    let near = ["near-a", "near-b"].map(|name| of(name, &decided));
    let admitted = near.iter().filter(|line| line.ends_with(" on node-0"));
    assert_eq!(admitted.count(), 1, "{decided:?}");
    assert_eq!(of("any", &decided), "pod-any on node-0", "four are left");
}

#[test]
fn what_the_readme_shows_is_admitted() {
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let blocks: Vec<&str> = readme
        .split("```yaml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let [administrator, annotations, job] = blocks.as_slice() else {
        panic!("{} blocks", blocks.len());
    };
    let around = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {muster.dev/team: research}}\n---\n\
                  apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\nmetadata: {name: eight-gpus}\nspec:\n  spec:\n    \
                  devices:\n      requests:\n      - {name: gpus, exactly: {deviceClassName: gpu.muster.dev, count: 8}}\n---\n";
    let pod = format!(
        "apiVersion: v1\nkind: Pod\n{annotations}  name: short\nspec:\n  containers: [{{name: main, image: i}}]\n---\n"
    );
    let common = nodes(2) + around + administrator + "---\n";
    assert_eq!(shorts(common.clone() + job), ["job-train on node-0 node-1"]);
    assert_eq!(shorts(common + &pod), ["pod-short on node-0"]);
}

#[test]
fn a_job_that_may_start_with_fewer_pods_gets_as_many_as_fit() {
    for (least, expected) in [(2, Some(4)), (4, Some(4)), (5, None)] {
        let annotations = format!("annotations: {{muster.dev/min-count: \"{least}\"}}, ");
        let job =
            job("train", 6, 8).replace("{name: train,", &format!("{{{annotations}name: train,"));
        let answer = answer(nodes(4) + &team(64) + &job);
        let [decision] = answer.decisions.as_slice() else {
            panic!("{answer:?}");
        };
        assert_eq!(
            decision.admitted,
            expected.is_some(),
            "{least}: {decision:?}"
        );
        assert_eq!(decision.nodes.len(), expected.unwrap_or(0), "{least}");
        assert_eq!(decision.gang_size, expected.map(|_| 6), "{least}");
    }
}

#[test]
fn the_order_of_files_and_documents_changes_nothing() {
    let mut documents: Vec<Source> =
        (nodes(4) + &team(24) + &job("b", 2, 8) + &job("a", 1, 8) + &pod("p", 8) + &pod("o", 3))
            .split("---\n")
            .filter(|document| !document.is_empty())
            .map(source)
            .collect();
    let first = decide(&documents).unwrap();
    assert_eq!(first.decisions.len(), 4);
    for seed in 0..20 {
        Random::new(seed).shuffle(&mut documents);
        assert_eq!(decide(&documents).unwrap(), first, "seed {seed}");
    }
}

#[test]
fn lists_and_json_say_the_same_as_documents() {
    let text = nodes(2) + &team(16) + &job("train", 2, 8);
    let items: Vec<Value> = text
        .split("---\n")
        .filter(|document| !document.is_empty())
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let of_nodes: Vec<Value> = items[..1]
        .iter()
        .cloned()
        .map(|mut item| {
            item.as_object_mut().unwrap().remove("kind");
            item
        })
        .collect();
    let nodes = json!({"apiVersion": "v1", "kind": "NodeList", "items": of_nodes});
    let rest = json!({"apiVersion": "v1", "kind": "List", "items": items[1..]});
    let expected = answer(text);
    for text in [
        list.to_string(),
        serde_json::to_string_pretty(&list).unwrap(),
        format!("{nodes}\n{rest}"),
        serde_saphyr::to_string(&list).unwrap(),
    ] {
        assert_eq!(answer(text), expected);
    }
}

#[test]
fn errors_name_file_document_and_field() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n";
    for (text, parts) in [
        (
            format!("{node}---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec: {{completions: many}}\n"),
            ["cluster.yaml, document 2 (Job j)", "spec.completions"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {labels: {a: b}}\n".to_owned(),
            ["cluster.yaml, document 1", "metadata.name"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n".to_owned(),
            ["cluster.yaml, document 1 (Pod p)", "spec: is missing"],
        ),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {parallelism: 1}\n".to_owned(),
            ["cluster.yaml, document 1 (Job j)", "spec.template: is missing"],
        ),
        (
            "apiVersion: resource.k8s.io/v1beta1\nkind: ResourceSlice\nmetadata: {name: s}\nspec: {devices: 3}\n".to_owned(),
            ["cluster.yaml, document 1 (ResourceSlice s)", "spec.devices"],
        ),
        (
            "kind: Pod\nmetadata: {name: p}\n".to_owned(),
            ["cluster.yaml, document 1", "apiVersion"],
        ),
        (
            format!("{node}---\n{node}"),
            ["cluster.yaml, document 2: Node n", "cluster.yaml, document 1"],
        ),
        ("a: [1\nb: {".to_owned(), ["cluster.yaml", "line"]),
        (
            format!("apiVersion: v1\nkind: List\nitems:\n- {{apiVersion: v1, kind: Node, metadata: {{name: 7}}}}\n# {node}"),
            ["document 1, item 1", "metadata.name"],
        ),
        (
            "apiVersion: v1\nkind: List\nitems: 3\n".to_owned(),
            ["document 1", "items"],
        ),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\nspec: {parallelism: 2147483647, template: {}}\n".to_owned(),
            ["Job default/j", "spec.parallelism"],
        ),
    ] {
        let error = decide(&[source(text.replace("# apiVersion: v1\nkind: Node\nmetadata: {name: n}\n", ""))])
            .unwrap_err()
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

#[test]
fn kinds_that_are_not_read_are_named_once() {
    let map =
        |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n---\n");
    let answer = answer(
        map("a") + &map("b") + "apiVersion: resource.k8s.io/v1alpha3\nkind: ResourceSlice\n",
    );
    assert_eq!(
        answer.warnings,
        [
            "1 document of kind resource.k8s.io/v1alpha3 ResourceSlice left aside, the first in cluster.yaml, document 3",
            "2 documents of kind v1 ConfigMap left aside, the first in cluster.yaml, document 1",
        ]
    );
}

/// Something unexpected, two times in three of the type that was there.
fn odd_for(random: &mut Random, before: &Value, mut odd: Vec<Value>) -> Value {
    if !random.one_in(3) {
        odd.retain(|value| {
            value.is_string() == before.is_string()
                && value.is_number() == before.is_number()
                && value.is_object() == before.is_object()
                && value.is_array() == before.is_array()
        });
    }
    random.pick(odd).unwrap_or_default()
}

/// Puts something unexpected in one place of a document.
fn spoil(random: &mut Random, value: &mut Value) {
    let odd = [
        Value::Null,
        json!(-1),
        json!(i64::MAX),
        json!(1e300),
        json!(""),
        json!("9".repeat(40)),
        json!("\u{0}'\"{{ - é\n"),
        json!([]),
        json!({}),
        json!([null]),
        json!(true),
    ];
    let place = match value {
        Value::Object(fields) if !fields.is_empty() => {
            let position = random.index(fields.len());
            if random.one_in(8) {
                let key = fields.keys().nth(position).cloned().unwrap();
                fields.remove(&key);
                return;
            }
            fields.values_mut().nth(position)
        }
        Value::Array(items) if !items.is_empty() => {
            let position = random.index(items.len());
            items.get_mut(position)
        }
        _ => None,
    };
    match place {
        Some(inner) if !random.one_in(3) => spoil(random, inner),
        Some(inner) => *inner = odd_for(random, inner, odd.to_vec()),
        None => *value = odd_for(random, value, odd.to_vec()),
    }
}

#[test]
fn no_input_panics() {
    let text = nodes(2)
        + &team(16)
        + &job("train", 2, 8)
        + &pod("p", 1)
        + &running("first-bcdfg", "node-0")
        + &examples()
            .iter()
            .filter(|example| !example.name.ends_with("cluster.yaml"))
            .map(|example| format!("{}\n---\n", example.text))
            .collect::<String>();
    let documents: Vec<Value> = text
        .split("---\n")
        .filter_map(|document| serde_saphyr::from_str(document).ok())
        .filter(Value::is_object)
        .collect();
    let (mut decided, mut refused) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut documents = documents.clone();
        for _ in 0..=random.below(3) {
            let position = random.index(documents.len());
            spoil(&mut random, &mut documents[position]);
        }
        let text: String = documents
            .iter()
            .map(|document| format!("{document}\n"))
            .collect();
        match decide(&[source(text)]) {
            Ok(_) => decided += 1,
            Err(_) => refused += 1,
        }
    }
    println!("{decided} decided, {refused} refused");
    assert!(
        decided > 50 && refused > 50,
        "{decided} decided, {refused} refused"
    );
}

#[test]
fn the_tiers_that_are_made_up_are_those_of_the_chart() {
    let values = fs::read_to_string(repository().join("deploy/helm/muster/values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let made_up: serde_json::Map<String, Value> = muster_sim::decide::shipped_tiers()
        .into_iter()
        .map(|tier| {
            let mut spec = serde_json::to_value(&tier.spec).unwrap();
            if spec["default"] == false {
                spec.as_object_mut().unwrap().remove("default");
            }
            (tier.metadata.name.unwrap(), spec)
        })
        .collect();
    assert_eq!(Value::Object(made_up), values["priorityTiers"]);
}

#[test]
fn ten_thousand_nodes_are_decided_in_seconds() {
    let device = |number: usize| {
        json!({
            "name": format!("gpu-{number}"),
            "attributes": {"productName": {"string": "NVIDIA H100 80GB HBM3"}},
            "capacity": {"memory": {"value": "80Gi"}},
        })
    };
    let items: Vec<Value> = (0..10_000)
        .flat_map(|number| {
            let name = format!("node-{number:05}");
            let labels = json!({"topology.example.com/leaf": format!("leaf-{}", number / 32)});
            [
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}),
                json!({
                    "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
                    "spec": {
                        "driver": "gpu.muster.dev", "nodeName": name, "pool": {"name": name},
                        "devices": (0..8).map(device).collect::<Vec<_>>(),
                    },
                }),
            ]
        })
        .collect();
    let cluster = source(json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    let users = source(team(80_000) + &job("large", 64, 8) + &pod("small", 1));
    let begun = Instant::now();
    let answer = decide(&[cluster, users]).unwrap();
    let elapsed = begun.elapsed();
    println!("10,000 nodes: {elapsed:?}");
    assert!(
        answer.decisions.iter().all(|decision| decision.admitted),
        "{:?}",
        answer.decisions
    );
    assert_eq!(answer.decisions[0].nodes.len(), 64);
    assert!(elapsed < Duration::from_secs(60), "{elapsed:?}");
}

#[test]
fn the_program_prints_json_and_says_what_is_wrong() {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = directory.join("cluster.yaml");
    let text =
        nodes(1) + &team(8) + &pod("p", 1) + "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n";
    fs::write(&file, text).unwrap();
    let run = |arguments: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_muster-sim"))
            .arg("decide")
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.success(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (succeeded, printed, warnings) = run(&[&file]);
    assert!(succeeded, "{warnings}");
    let decisions: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(decisions[0]["nodes"], json!(["node-0"]));
    assert!(
        warnings.starts_with("warning: 1 document of kind v1 Secret"),
        "{warnings}"
    );
    let (succeeded, printed, error) = run(&[&directory.join("absent.yaml")]);
    assert!(!succeeded && printed.is_empty());
    assert!(error.contains("absent.yaml"), "{error}");
    let (succeeded, _, usage) = run(&[]);
    assert!(!succeeded && usage.contains("FILES"), "{usage}");
}
