//! The chart's ValidatingAdmissionPolicies, rendered by real Helm, case by case.
//!
//! A case is what the API server hands to a policy: the object before and after, and who asks. Those in the suite
//! `admission_policies` of `tests` meet a real API server; here every clause has a case that it alone refuses.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use kube_cel::{
    KubeCelExt,
    cel::{Context, Program, Value as Cel, to_value},
};
use muster_cluster::side_door_cases::side_door_cases;
use serde_json::{Value, json};

const CONTROLLER: &str = "system:serviceaccount:muster-system:muster-controller";
const DRIVER: &str = "system:serviceaccount:muster-system:muster-driver";
const COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
const KUBE_CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
const KUBELET: &str = "system:node:a";
const SCHEDULER: &str = "system:kube-scheduler";
const USER: &str = "somebody";

static ENFORCE: LazyLock<Vec<Value>> = LazyLock::new(|| rendered("Enforce"));
static OBSERVE: LazyLock<Vec<Value>> = LazyLock::new(|| rendered("Observe"));

/// The objects of the chart in this mode.
fn rendered(mode: &str) -> Vec<Value> {
    rendered_with(&[&format!("mode={mode}")])
}

/// The objects of the chart with these values.
fn rendered_with(values: &[&str]) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let build = Command::new(root.join("tests/helm/build.sh")).output();
    let build = build.expect("tests/helm/build.sh runs");
    let helm = PathBuf::from(String::from_utf8(build.stdout).unwrap().trim()).join("helm");
    let home = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let chart = Command::new(helm)
        .args(["template", "muster", "--namespace", "muster-system"])
        .args(values.iter().flat_map(|value| ["--set", value]))
        .arg(root.join("deploy/helm/muster"))
        .env("HOME", home)
        .output()
        .expect("helm runs");
    let errors = String::from_utf8_lossy(&chart.stderr);
    assert!(chart.status.success(), "{errors}");
    let text = String::from_utf8(chart.stdout).unwrap();
    text.split("\n---\n")
        .map(|document| {
            serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}: {document}"))
        })
        .filter(|object: &Value| !object.is_null())
        .collect()
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// A request as a policy sees it.
#[derive(Clone)]
struct Request {
    by: &'static str,
    node: Option<&'static str>,
    resource: &'static str,
    operation: &'static str,
    old: Value,
    new: Value,
}

impl Request {
    fn update(by: &'static str, resource: &'static str, old: &Value, new: &Value) -> Self {
        Self {
            by,
            node: None,
            resource,
            operation: "UPDATE",
            old: old.clone(),
            new: new.clone(),
        }
    }

    fn namespace(&self) -> &str {
        let versions = [&self.new, &self.old].into_iter();
        let mut namespaces = versions.filter_map(|it| it["metadata"]["namespace"].as_str());
        namespaces.next().unwrap_or_default()
    }

    fn context(&self) -> Context<'static> {
        let extra = self.node.map_or_else(
            || json!({}),
            |node| json!({"authentication.kubernetes.io/node-name": [node]}),
        );
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let request = json!({
            "operation": self.operation, "subResource": subresource,
            "resource": {"group": "", "version": "v1", "resource": resource}, "namespace": self.namespace(),
            "userInfo": {"username": self.by, "groups": [], "extra": extra},
        });
        let mut context = Context::default().with_all();
        for (name, value) in [
            ("request", &request),
            ("object", &self.new),
            ("oldObject", &self.old),
        ] {
            context.add_variable_from_value(name, to_value(value).unwrap());
        }
        context
    }

    /// The same in a namespace with these labels.
    fn context_in(&self, labels: &Value) -> Context<'static> {
        let mut context = self.context();
        let namespace = json!({"metadata": {"name": "ml", "labels": labels}});
        context.add_variable_from_value("namespaceObject", to_value(&namespace).unwrap());
        context
    }
}

/// Whether the policy lets a request pass, judged as the API server does: an error refuses.
fn passes(policy: &str, request: &Request) -> bool {
    passes_in(&ENFORCE, policy, request)
}

/// The same for the chart with other values.
fn passes_in(objects: &[Value], policy: &str, request: &Request) -> bool {
    let policy = object(objects, "ValidatingAdmissionPolicy", policy);
    let mut context = request.context();
    for (name, expression) in expressions(policy, "matchConditions") {
        match evaluated(&context, &expression) {
            Ok(Cel::Bool(true)) => {}
            Ok(Cel::Bool(false)) => return true,
            other => panic!("{name}: {other:?}"),
        }
    }
    if add_variables(policy, &mut context).is_err() {
        return false;
    }
    expressions(policy, "validations")
        .iter()
        .all(|(_, expression)| holds(&context, expression))
}

/// The expressions of this field of a policy, each with its name if it has one.
fn expressions(policy: &Value, field: &str) -> Vec<(String, String)> {
    let list = policy["spec"][field].as_array().into_iter().flatten();
    list.map(|item| {
        // `dyn` is about types that CEL checks beforehand; here nothing is checked beforehand.
        let expression = item["expression"].as_str().unwrap().replace("dyn(", "(");
        // Nobody but kube-scheduler may bind pods here.
        let binds = "authorizer.group('').resource('pods').subresource('binding').namespace(request.namespace).check('create').allowed()";
        let expression = expression.replace(
            binds,
            &format!("(request.userInfo.username == '{SCHEDULER}')"),
        );
        (
            item["name"].as_str().unwrap_or_default().to_owned(),
            expression,
        )
    })
    .collect()
}

fn evaluated(context: &Context<'_>, expression: &str) -> Result<Cel, String> {
    let program = Program::compile(expression);
    let program = program.unwrap_or_else(|error| panic!("{error}: {expression}"));
    program.execute(context).map_err(|error| error.to_string())
}

/// Whether a validation lets pass; an error refuses.
fn holds(context: &Context<'_>, expression: &str) -> bool {
    matches!(evaluated(context, expression), Ok(Cel::Bool(true)))
}

/// Evaluates the variables of a policy, each of which may name those before it.
fn add_variables(policy: &Value, context: &mut Context<'_>) -> Result<(), String> {
    let mut variables = BTreeMap::new();
    for (name, expression) in expressions(policy, "variables") {
        variables.insert(name, evaluated(context, &expression)?);
        let known: std::collections::HashMap<String, Cel> = variables.clone().into_iter().collect();
        context.add_variable_from_value("variables", Cel::from(known));
    }
    Ok(())
}

fn merged(base: &Value, change: &Value) -> Value {
    let mut changed = base.clone();
    json_patch::merge(&mut changed, change);
    changed
}

fn gated_pod() -> Value {
    json!({"metadata": {"name": "p", "namespace": "ml", "labels": {"app": "x"}, "annotations": {"note": "1"}},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}],
            "schedulingGates": [{"name": "muster.dev/admission"}, {"name": "other"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}}},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}})
}

/// Required node terms.
fn terms(terms: &Value) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}})
}

#[test]
fn the_controller_changes_of_a_pod_what_muster_does_and_nothing_else() {
    const POLICY: &str = "muster-pod-by-controller";
    let pod = gated_pod();
    let pin = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
    let zone = json!([{"key": "zone", "operator": "Exists"}]);
    for (what, change, allowed) in [
        ("nothing", json!({}), true),
        (
            "our gate",
            json!({"spec": {"schedulingGates": [{"name": "other"}]}}),
            true,
        ),
        (
            "all gates",
            json!({"spec": {"schedulingGates": null}}),
            false,
        ),
        (
            "a pin",
            terms(&json!([{"matchExpressions": zone, "matchFields": pin}])),
            true,
        ),
        ("another rule", terms(&json!([{"matchFields": pin}])), false),
        (
            "one more term",
            terms(&json!([{"matchExpressions": zone}, {"matchFields": pin}])),
            false,
        ),
        ("no affinity", json!({"spec": {"affinity": null}}), false),
        (
            "pod affinity",
            json!({"spec": {"affinity": {"podAffinity": {}}}}),
            false,
        ),
        (
            "our annotation",
            json!({"metadata": {"annotations": {"muster.dev/rank": "0"}}}),
            true,
        ),
        (
            "another annotation",
            json!({"metadata": {"annotations": {"note": "2"}}}),
            false,
        ),
        (
            "an annotation less",
            json!({"metadata": {"annotations": {"note": null}}}),
            false,
        ),
        (
            "a label",
            json!({"metadata": {"labels": {"app": "y"}}}),
            false,
        ),
        (
            "a finalizer",
            json!({"metadata": {"finalizers": ["x/y"]}}),
            false,
        ),
        (
            "an owner",
            json!({"metadata": {"ownerReferences": [{"kind": "Job"}]}}),
            false,
        ),
        (
            "the image",
            json!({"spec": {"containers": [{"name": "c", "image": "evil"}]}}),
            false,
        ),
        (
            "a toleration",
            json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
            false,
        ),
        (
            "the deadline",
            json!({"spec": {"activeDeadlineSeconds": 1}}),
            false,
        ),
    ] {
        let new = merged(&pod, &change);
        for resource in [
            "pods",
            "pods/status",
            "pods/resize",
            "pods/ephemeralcontainers",
        ] {
            let by = |user| passes(POLICY, &Request::update(user, resource, &pod, &new));
            assert_eq!(by(CONTROLLER), allowed, "{what} by {resource}");
            assert!(by(USER), "{what}: it is about the controller alone");
        }
    }
    let mut bare = pod.clone();
    bare["spec"].as_object_mut().unwrap().remove("affinity");
    for (added, allowed) in [
        (json!([{"matchFields": pin}]), true),
        (json!([{"matchExpressions": zone}]), false),
    ] {
        let new = merged(&bare, &terms(&added));
        let request = Request::update(CONTROLLER, "pods", &bare, &new);
        assert_eq!(passes(POLICY, &request), allowed, "{added}");
    }
}

#[test]
fn of_a_pods_status_the_controller_writes_the_condition_disruption_target() {
    let pod = gated_pod();
    let scheduled = json!({"type": "PodScheduled", "status": "False"});
    let target = json!({"type": "DisruptionTarget", "status": "True"});
    for (status, allowed) in [
        (json!({"conditions": [scheduled, target]}), true),
        (json!({"conditions": [target]}), false),
        (
            json!({"conditions": [scheduled, {"type": "Ready", "status": "True"}]}),
            false,
        ),
        (json!({"phase": "Failed"}), false),
    ] {
        let new = merged(&pod, &json!({"status": status}));
        let request = Request::update(CONTROLLER, "pods/status", &pod, &new);
        assert_eq!(
            passes("muster-pod-by-controller", &request),
            allowed,
            "{status}"
        );
    }
}

const SUSPENDED_FOR: &str = "muster.dev/suspended-for";
const COVERS: &str = "muster.dev/backoff-limit-covers";

#[test]
fn the_controller_changes_of_a_job_what_an_eviction_needs_and_nothing_else() {
    let job = json!({"metadata": {"name": "j", "namespace": "ml", "labels": {"app": "x"},
            "annotations": {"note": "1", "muster.dev/gang-size": "2"}},
        "spec": {"suspend": false, "backoffLimit": 6, "parallelism": 2, "template": {"spec": {}}},
        "status": {"active": 2}});
    let suspended = json!({"spec": {"suspend": true}});
    let ours = merged(
        &suspended,
        &json!({"metadata": {"annotations": {SUSPENDED_FOR: "1"}}}),
    );
    let resumed = json!({"spec": {"suspend": false}});
    let resumed_by_us =
        json!({"metadata": {"annotations": {SUSPENDED_FOR: null}}, "spec": {"suspend": false}});
    let annotations = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let raised =
        json!({"metadata": {"annotations": {COVERS: "6/16/uid"}}, "spec": {"backoffLimit": 16}});
    for (what, before, change, allowed) in [
        ("nothing", json!({}), json!({}), true),
        ("a suspension of ours", json!({}), ours.clone(), true),
        (
            "one that does not say so",
            json!({}),
            suspended.clone(),
            false,
        ),
        ("the end of ours", ours.clone(), resumed_by_us.clone(), true),
        ("half of its end", ours.clone(), resumed.clone(), false),
        (
            "the end of a user's",
            suspended.clone(),
            resumed.clone(),
            false,
        ),
        (
            "a note on a user's",
            suspended.clone(),
            annotations(json!({SUSPENDED_FOR: "1"})),
            true,
        ),
        (
            "the note of one that a user ended",
            annotations(json!({SUSPENDED_FOR: "1"})),
            annotations(json!({SUSPENDED_FOR: null})),
            true,
        ),
        (
            "a higher limit",
            json!({}),
            json!({"spec": {"backoffLimit": 8}}),
            true,
        ),
        (
            "a lower limit",
            json!({}),
            json!({"spec": {"backoffLimit": 5}}),
            false,
        ),
        (
            "the limit that there was before it was raised",
            raised.clone(),
            json!({"spec": {"backoffLimit": 6}}),
            true,
        ),
        (
            "no limit, which is that",
            raised.clone(),
            json!({"spec": {"backoffLimit": null}}),
            true,
        ),
        (
            "a lower one than there was",
            raised.clone(),
            json!({"spec": {"backoffLimit": 5}}),
            false,
        ),
        (
            "a lower one that it says there was by the same write",
            raised.clone(),
            json!({"metadata": {"annotations": {COVERS: "5/5/uid"}}, "spec": {"backoffLimit": 5}}),
            false,
        ),
        (
            "a higher one, and what there was",
            json!({}),
            raised.clone(),
            true,
        ),
        (
            "a higher one again, and what there was at first",
            raised.clone(),
            json!({"metadata": {"annotations": {COVERS: "6/24/uid"}}, "spec": {"backoffLimit": 24}}),
            true,
        ),
        (
            "a higher one than somebody else has written since",
            merged(&raised, &json!({"spec": {"backoffLimit": 3}})),
            json!({"metadata": {"annotations": {COVERS: "3/24/uid"}}, "spec": {"backoffLimit": 24}}),
            true,
        ),
        // The next write would give back 0, and end the Job.
        (
            "a higher one, and less than there was",
            json!({}),
            json!({"metadata": {"annotations": {COVERS: "0/16/uid"}}, "spec": {"backoffLimit": 16}}),
            false,
        ),
        (
            "a higher one again, and less than there was at first",
            raised.clone(),
            json!({"metadata": {"annotations": {COVERS: "1/24/uid"}}, "spec": {"backoffLimit": 24}}),
            false,
        ),
        (
            "only that there was less",
            raised,
            json!({"metadata": {"annotations": {COVERS: "1/16/uid"}}}),
            false,
        ),
        (
            "no limit",
            json!({}),
            json!({"spec": {"backoffLimit": null}}),
            true,
        ),
        (
            "no limit, which is a lower one",
            json!({"spec": {"backoffLimit": 7}}),
            json!({"spec": {"backoffLimit": null}}),
            false,
        ),
        (
            "its size",
            json!({}),
            json!({"spec": {"parallelism": 1}}),
            false,
        ),
        (
            "its template",
            json!({}),
            json!({"spec": {"template": {"spec": {"nodeName": "a"}}}}),
            false,
        ),
        (
            "its status",
            json!({}),
            json!({"status": {"active": 1}}),
            false,
        ),
        (
            "what the user declared",
            json!({}),
            annotations(json!({"muster.dev/gang-size": "1"})),
            false,
        ),
        (
            "another's annotation",
            json!({}),
            annotations(json!({"note": "2"})),
            false,
        ),
        (
            "a label",
            json!({}),
            json!({"metadata": {"labels": {"app": "y"}}}),
            false,
        ),
        (
            "an owner",
            json!({}),
            json!({"metadata": {"ownerReferences": [{"uid": "1"}]}}),
            false,
        ),
        (
            "a finalizer",
            json!({}),
            json!({"metadata": {"finalizers": ["x/y"]}}),
            false,
        ),
    ] {
        let old = merged(&job, &before);
        let new = merged(&old, &change);
        let passes = |by, old: &Value, new: &Value| {
            passes(
                "muster-job-by-controller",
                &Request::update(by, "jobs", old, new),
            )
        };
        assert_eq!(passes(CONTROLLER, &old, &new), allowed, "{what}");
        assert!(passes(USER, &old, &new), "of others RBAC decides: {what}");
        let elsewhere = json!({"metadata": {"namespace": "kube-system"}});
        let (old, new) = (merged(&old, &elsewhere), merged(&new, &elsewhere));
        assert!(!passes(CONTROLLER, &old, &new), "{what} in kube-system");
    }
}

#[test]
fn the_controller_deletes_pods_of_gangs_only() {
    let of = |namespace: &str, annotations: Value, gates: Value| {
        json!({
            "metadata": {"namespace": namespace, "annotations": annotations},
            "spec": {"schedulingGates": gates},
        })
    };
    let none = || Value::Null;
    let named = |namespace| of(namespace, json!({"muster.dev/gang-name": "g"}), none());
    let gate = |name: &str| json!([{"name": name}]);
    let nobodys = of("ml", json!({"muster.dev/gang-name": null}), none());
    let bare = of("ml", none(), gate("example.com/other"));
    let waiting = of("ml", none(), gate("muster.dev/admission"));
    for (what, change, allowed) in [
        ("that waits", waiting, true),
        ("of a gang", named("ml"), true),
        ("of nobody's", nobodys, false),
        ("without annotations", bare, false),
        ("of the control plane", named("kube-system"), false),
    ] {
        for by in [CONTROLLER, USER, KUBELET] {
            let mut request =
                Request::update(by, "pods", &merged(&gated_pod(), &change), &Value::Null);
            request.operation = "DELETE";
            let expected = allowed || by != CONTROLLER;
            assert_eq!(
                passes("muster-pod-evicted", &request),
                expected,
                "{what} by {by}"
            );
        }
    }
}

#[test]
fn a_pod_of_an_admitted_gang_is_not_resized_upwards() {
    let gang = json!({"metadata": {"annotations": {"muster.dev/gang-name": "g"}}});
    let pod = merged(&gated_pod(), &gang);
    for (requests, allowed) in [
        (json!({"cpu": "2", "memory": "1Gi"}), true),
        (json!({"cpu": "1500m", "memory": "512Mi"}), true),
        (json!({"cpu": "2001m", "memory": "1Gi"}), false),
        (json!({"cpu": "2", "memory": "1025Mi"}), false),
        (
            json!({"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}),
            false,
        ),
    ] {
        let resized = |pod: &Value| {
            let mut new = pod.clone();
            new["spec"]["containers"][0]["resources"]["requests"] = requests.clone();
            passes(
                "muster-pod-resized",
                &Request::update(USER, "pods/resize", pod, &new),
            )
        };
        assert_eq!(resized(&pod), allowed, "{requests}");
        assert!(resized(&gated_pod()), "a pod of nobody's gang");
    }
}

#[test]
fn nor_is_what_the_pod_as_a_whole_asks_for() {
    let pod = json!({"metadata": {"name": "p", "annotations": {"muster.dev/gang-name": "g"}},
        "spec": {"resources": {"requests": {"cpu": "2"}}, "containers": [{"name": "c"}]}});
    for (requests, allowed) in [
        (json!({"cpu": "2"}), true),
        (json!({"cpu": "1"}), true),
        (json!({"cpu": "3"}), false),
        (json!({"memory": "1Gi"}), false),
    ] {
        let mut new = pod.clone();
        new["spec"]["resources"]["requests"] = requests.clone();
        let request = Request::update(USER, "pods/resize", &pod, &new);
        assert_eq!(
            passes("muster-pod-resized", &request),
            allowed,
            "{requests}"
        );
    }
}

#[test]
fn a_claim_that_has_an_allocation_keeps_its_protection() {
    const PROTECTION: &str = "resource.kubernetes.io/delete-protection";
    let allocated = json!({"metadata": {"name": "c", "finalizers": ["x/y", PROTECTION]},
        "status": {"allocation": {"devices": {}}}});
    let free = json!({"metadata": {"name": "c", "finalizers": [PROTECTION]}});
    let never = json!({"metadata": {"name": "c"}, "status": {"allocation": {}}});
    let with = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    for (what, old, change, allowed) in [
        (
            "its label",
            &allocated,
            json!({"metadata": {"labels": {"a": "b"}}}),
            true,
        ),
        (
            "another finalizer",
            &allocated,
            with(json!([PROTECTION])),
            true,
        ),
        ("all finalizers", &allocated, with(Value::Null), false),
        ("the protection", &allocated, with(json!(["x/y"])), false),
        (
            "the protection of a free one",
            &free,
            with(Value::Null),
            true,
        ),
        ("what was never there", &never, with(json!(["x/y"])), true),
    ] {
        for by in [USER, CONTROLLER, COLLECTOR] {
            let request = Request::update(by, "resourceclaims", old, &merged(old, &change));
            assert_eq!(passes("muster-claim", &request), allowed, "{what} by {by}");
        }
    }
    // kube-scheduler takes back what it made itself, for a pod that it could not bind after all.
    let annotations = json!({"metadata": {"annotations": {MARK: "true"}}});
    let made = merged(&allocated, &annotations);
    for (old, by, allowed) in [
        (&made, SCHEDULER, true),
        (&made, USER, false),
        (&made, CONTROLLER, false),
        (&allocated, SCHEDULER, false),
    ] {
        let new = merged(old, &with(Value::Null));
        let request = Request::update(by, "resourceclaims", old, &new);
        assert_eq!(passes("muster-claim", &request), allowed, "{by}: {old}");
    }
}

/// By what kube-scheduler's own claims are known.
const MARK: &str = "resource.kubernetes.io/extended-resource-claim";

#[test]
fn nobody_but_who_binds_pods_says_of_a_claim_that_kube_scheduler_made_it() {
    let owner = |uid: &str| json!([{"kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
    let plain =
        json!({"metadata": {"name": "c", "namespace": "ml", "ownerReferences": owner("p-1")}});
    let marked = merged(
        &plain,
        &json!({"metadata": {"annotations": {MARK: "true"}}}),
    );
    let with = |base: &Value, metadata: Value| merged(base, &json!({"metadata": metadata}));
    let template = |metadata: Value| json!({"metadata": {"name": "t", "namespace": "ml"}, "spec": {"metadata": metadata, "spec": {}}});
    let (claims, templates) = ("resourceclaims", "resourceclaimtemplates");
    let none = Value::Null;
    for (what, resource, old, new, anybody) in [
        ("a claim", claims, &none, plain.clone(), true),
        ("one that says so", claims, &none, marked.clone(), false),
        (
            "one that says no",
            claims,
            &none,
            with(&plain, json!({"annotations": {MARK: "false"}})),
            false,
        ),
        ("the mark is put", claims, &plain, marked.clone(), false),
        ("the mark is taken", claims, &marked, plain.clone(), false),
        (
            "a label of a marked one",
            claims,
            &marked,
            with(&marked, json!({"labels": {"a": "b"}})),
            true,
        ),
        (
            "another owner of a marked one",
            claims,
            &marked,
            with(&marked, json!({"ownerReferences": owner("p-2")})),
            false,
        ),
        (
            "no owner of a marked one",
            claims,
            &marked,
            with(&marked, json!({"ownerReferences": null})),
            true,
        ),
        (
            "another owner of a claim",
            claims,
            &plain,
            with(&plain, json!({"ownerReferences": owner("p-2")})),
            true,
        ),
        (
            "a template",
            templates,
            &none,
            template(json!({"annotations": {"a": "b"}})),
            true,
        ),
        (
            "a template without annotations",
            templates,
            &none,
            template(json!({})),
            true,
        ),
        (
            "a template of such",
            templates,
            &none,
            template(json!({"annotations": {MARK: "true"}})),
            false,
        ),
    ] {
        for by in [USER, CONTROLLER, KUBE_CONTROLLER_MANAGER, SCHEDULER] {
            let mut request = Request::update(by, resource, old, &new);
            if old.is_null() {
                request.operation = "CREATE";
            }
            let allowed = anybody || by == SCHEDULER;
            let found = passes("muster-claim-by-scheduler", &request);
            assert_eq!(found, allowed, "{what} by {by}");
        }
    }
}

#[test]
fn a_driver_writes_the_slices_and_permits_of_its_own_node_only() {
    let slice = |node: &str, pool: &str, driver: &str| {
        json!({"metadata": {"name": "s"}, "spec": {"nodeName": node, "driver": driver,
            "pool": {"name": pool, "generation": 1_000_000_000, "resourceSliceCount": 1}}})
    };
    let own = slice("a", "a", "gpu.muster.dev");
    let for_all = json!({"metadata": {"name": "s"}, "spec": {"allNodes": true, "driver": "gpu.muster.dev",
        "pool": {"name": "a"}}});
    for (what, written, allowed) in [
        ("its own", own.clone(), true),
        (
            "another node's pool",
            slice("a", "b", "gpu.muster.dev"),
            false,
        ),
        ("another node", slice("b", "b", "gpu.muster.dev"), false),
        (
            "its pool on another node",
            slice("b", "a", "gpu.muster.dev"),
            false,
        ),
        ("another driver's", slice("a", "a", "gpu.nvidia.com"), false),
        ("one of all nodes", for_all, false),
    ] {
        for (operation, old, new) in [
            ("CREATE", Value::Null, written.clone()),
            ("UPDATE", own.clone(), written.clone()),
            ("UPDATE", written.clone(), own.clone()),
            ("DELETE", written.clone(), Value::Null),
        ] {
            let request = |by, node| Request {
                by,
                node,
                resource: "resourceslices",
                operation,
                old: old.clone(),
                new: new.clone(),
            };
            let passes = |by, node| passes("muster-node", &request(by, node));
            assert_eq!(passes(DRIVER, Some("a")), allowed, "{operation} {what}");
            assert!(!passes(DRIVER, None), "a token that names no node");
            assert!(passes(USER, None), "of others RBAC decides");
            let versions = [&old, &new].into_iter().filter(|slice| !slice.is_null());
            let ours = versions.map(|slice| slice["spec"]["driver"] == "gpu.muster.dev");
            let by_kubelet = operation == "DELETE" || !ours.into_iter().any(|ours| ours);
            assert_eq!(passes(KUBELET, None), by_kubelet, "{operation} {what}");
        }
    }
    let node_devices = json!({"metadata": {"name": "a"}, "spec": {}, "status": {}});
    for (by, node, allowed) in [
        (DRIVER, Some("a"), true),
        (DRIVER, Some("b"), false),
        (DRIVER, None, false),
        (CONTROLLER, None, true),
        (KUBELET, None, false),
        (USER, None, false),
    ] {
        let mut request = Request::update(by, "nodedevices/status", &node_devices, &node_devices);
        request.node = node;
        assert_eq!(passes("muster-node", &request), allowed, "{by} {node:?}");
    }
}

#[test]
fn of_musters_objects_users_change_suspend_and_tier_and_collectors_the_metadata() {
    let gang = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
        "metadata": {"name": "g", "labels": {"muster.dev/gang": "x", "app": "y"}, "finalizers": ["orphan"],
            "ownerReferences": [{"kind": "Job", "uid": "1"}]},
        "spec": {"size": 2, "tier": "standard"}});
    // What is written, and whom the policy lets: anybody whom RBAC lets, the garbage collector.
    for (what, change, user, collector) in [
        ("nothing", json!({}), true, true),
        (
            "bookkeeping",
            json!({"metadata": {"resourceVersion": "2", "managedFields": []}}),
            true,
            true,
        ),
        ("suspend", json!({"spec": {"suspend": true}}), true, true),
        ("tier", json!({"spec": {"tier": "critical"}}), true, true),
        (
            "a label of the user's own",
            json!({"metadata": {"labels": {"app": "z"}}}),
            true,
            true,
        ),
        (
            "the group",
            json!({"metadata": {"labels": {"muster.dev/gang": "other"}}}),
            false,
            true,
        ),
        (
            "the group, taken",
            json!({"metadata": {"labels": {"muster.dev/gang": null}}}),
            false,
            true,
        ),
        (
            "our annotation",
            json!({"metadata": {"annotations": {"muster.dev/x": "1"}}}),
            false,
            true,
        ),
        (
            "the owner",
            json!({"metadata": {"ownerReferences": null}}),
            false,
            true,
        ),
        (
            "the finalizer",
            json!({"metadata": {"finalizers": null}}),
            false,
            true,
        ),
        ("the size", json!({"spec": {"size": 1}}), false, false),
        ("a status", json!({"status": {"attempt": 7}}), false, false),
    ] {
        let new = merged(&gang, &change);
        let by = |user| {
            // The API server takes a status by its subresource only.
            let of_status = change.get("status").is_some();
            let resource = if of_status { "gangs/status" } else { "gangs" };
            passes(
                "muster-objects",
                &Request::update(user, resource, &gang, &new),
            )
        };
        assert_eq!(by(USER), user, "{what} by a user");
        assert_eq!(by(COLLECTOR), collector, "{what} by the collector");
        assert_eq!(
            by(KUBE_CONTROLLER_MANAGER),
            collector,
            "{what} by its other name"
        );
        assert!(by(CONTROLLER), "{what} by the controller");
    }
    // A Gang that is as large as etcd takes could not be told that it is to go.
    let labelled = |count: usize| {
        let labels: serde_json::Map<String, Value> = (0..count)
            .map(|at| (format!("l{at}"), json!("v")))
            .collect();
        json!({"kind": "Gang", "metadata": {"name": "g", "labels": labels}, "spec": {"size": 2}})
    };
    for (before, after, allowed) in [(0, 64, true), (0, 65, false), (80, 79, true)] {
        let request = Request::update(USER, "gangs", &labelled(before), &labelled(after));
        assert_eq!(
            passes("muster-objects", &request),
            allowed,
            "{before}, then {after} labels"
        );
    }
    for resource in ["ledgers", "nodedevices", "queues"] {
        let object = json!({"kind": "x", "metadata": {"name": "n"}, "spec": {"suspend": false}});
        let migrated = merged(&object, &json!({"metadata": {"resourceVersion": "2"}}));
        let changed = merged(&object, &json!({"spec": {"suspend": true}}));
        for (what, new, allowed) in [("migrated", migrated, true), ("changed", changed, false)] {
            let request = Request::update(USER, resource, &object, &new);
            assert_eq!(
                passes("muster-objects", &request),
                allowed,
                "{resource} {what}"
            );
        }
        let mut made = Request::update(COLLECTOR, resource, &Value::Null, &object);
        made.operation = "CREATE";
        assert!(!passes("muster-objects", &made), "{resource} made");
    }
}

#[test]
fn a_pod_without_the_gate_and_one_that_names_a_node_are_told_different_things() {
    let policy = object(&ENFORCE, "ValidatingAdmissionPolicy", "muster-pod-created");
    let message = policy["spec"]["validations"][0]["messageExpression"].as_str();
    let message = Program::compile(message.unwrap()).unwrap();
    for (spec, says) in [
        (json!({"containers": []}), "Is the webhook running?"),
        (
            json!({"containers": [], "nodeName": "n"}),
            "use spec.nodeSelector or node affinity",
        ),
    ] {
        let pod = json!({"metadata": {"name": "p", "namespace": "ml"}, "spec": spec});
        let mut request = Request::update(USER, "pods", &Value::Null, &pod);
        request.operation = "CREATE";
        let Cel::String(told) = message.execute(&request.context()).unwrap() else {
            panic!("the message is no text");
        };
        assert!(told.starts_with("NotPermitted: "), "{told}");
        assert!(told.contains(says) && !told.contains('\n'), "{told}");
    }
}

#[test]
fn in_observe_only_what_is_about_workloads_is_audited_and_in_enforce_nothing() {
    let workloads = [
        "muster-binding",
        "muster-claim",
        "muster-claim-by-scheduler",
        "muster-pod-created",
        "muster-pod-decided",
        "muster-pod-declared",
        "muster-pod-gate",
        "muster-pod-resized",
        "muster-pod-side-door",
    ];
    for (objects, of_workloads) in [(&*ENFORCE, "Deny"), (&*OBSERVE, "Audit")] {
        let mut policies = 0;
        for policy in objects {
            if policy["kind"] != "ValidatingAdmissionPolicy" {
                continue;
            }
            policies += 1;
            let name = policy["metadata"]["name"].as_str().unwrap();
            let binding = object(objects, "ValidatingAdmissionPolicyBinding", name);
            let expected = if workloads.contains(&name) {
                of_workloads
            } else {
                "Deny"
            };
            assert_eq!(
                binding["spec"]["validationActions"],
                json!([expected]),
                "{name}"
            );
        }
        assert_eq!(policies, workloads.len() + 6);
    }
}

/// The same table is tested with the rule by which `check-enforce` judges pods that run.
#[test]
fn a_pod_that_comes_to_gpus_by_a_side_door_is_refused_and_told_by_which() {
    let policy = object(
        &ENFORCE,
        "ValidatingAdmissionPolicy",
        "muster-pod-side-door",
    );
    for case in side_door_cases() {
        let mut request = Request::update(USER, "pods", &Value::Null, &case.pod);
        request.operation = "CREATE";
        let labels = if case.of_team {
            json!({"muster.dev/team": "ml"})
        } else {
            json!({})
        };
        let mut context = request.context_in(&labels);
        add_variables(policy, &mut context)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let validations = policy["spec"]["validations"].as_array().unwrap();
        let text = |validation: &Value, field: &str| validation[field].as_str().unwrap().to_owned();
        let refusals: Vec<String> = validations
            .iter()
            .filter(|validation| !holds(&context, &text(validation, "expression")))
            .map(|validation| {
                let message = evaluated(&context, &text(validation, "messageExpression"));
                let Ok(Cel::String(message)) = message else {
                    panic!("{}: {message:?}", case.name);
                };
                message.to_string()
            })
            .collect();
        assert_eq!(
            refusals.len(),
            case.doors.len(),
            "{}: {refusals:?}",
            case.name
        );
        for (message, door) in refusals.iter().zip(case.doors) {
            assert!(message.starts_with("NotPermitted: "), "{message}");
            assert!(message.contains(door), "{}: {message}", case.name);
        }
    }
}

/// Pods that were there before have containers that say nothing, and debuggers that cannot be taken away.
#[test]
fn a_debugger_is_refused_for_what_it_says_itself_and_not_for_what_is_there() {
    let debugger = |name: &str, env: Value| json!({"name": name, "image": "i", "env": env});
    let silent = || debugger("silent", json!([]));
    let says = |name: &str, value: &str| {
        debugger(
            name,
            json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]),
        )
    };
    let pod = |debuggers: Vec<Value>| {
        json!({"metadata": {"name": "p", "namespace": "ml"}, "spec": {
            "containers": [
                {"name": "work", "resources": {"claims": [{"name": "gpu"}]}},
                {"name": "proxy"},
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}],
            "runtimeClassName": "nvidia",
            "ephemeralContainers": debuggers,
        }})
    };
    for (there, added, may) in [
        (vec![], says("new", "void"), true),
        (vec![], silent(), false),
        (vec![], says("new", "all"), false),
        (vec![silent()], says("new", "void"), true),
        (vec![says("old", "all")], says("new", "void"), true),
        (vec![says("old", "void")], silent(), false),
    ] {
        let old = pod(there.clone());
        let new = pod([there, vec![added]].concat());
        let request = Request::update(USER, "pods/ephemeralcontainers", &old, &new);
        assert_eq!(passes_side_doors(&request, &json!({})), may, "{new}");
    }
}

/// Whether the policy about side doors takes a request in a namespace with these labels.
fn passes_side_doors(request: &Request, labels: &Value) -> bool {
    let mut context = request.context_in(labels);
    let policy = object(
        &ENFORCE,
        "ValidatingAdmissionPolicy",
        "muster-pod-side-door",
    );
    add_variables(policy, &mut context).unwrap();
    expressions(policy, "validations")
        .iter()
        .all(|(_, expression)| holds(&context, expression))
}

/// The runtime is handed what is there when the pod is released, and what was there before cannot be taken away.
#[test]
fn a_pod_that_waits_gets_no_annotation_that_names_devices_and_is_not_refused_for_what_it_was_created_with()
 {
    let pod = |annotations: Value| {
        json!({"metadata": {"name": "p", "namespace": "ml", "annotations": annotations}, "spec": {
            "containers": [{
                "name": "work",
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "null", "mountPath": "/var/run/nvidia-container-devices/all"}],
            }],
            "runtimeClassName": "nvidia",
            "volumes": [
                {"name": "null", "hostPath": {"path": "/dev/null"}},
                {"name": "gpu", "hostPath": {"path": "/dev/nvidia0"}},
                {"name": "all", "hostPath": {"path": "/dev"}},
            ],
        }})
    };
    let none = json!({});
    let names = json!({"cdi.k8s.io/way": "nvidia.com/gpu=0"});
    let names_all = json!({"cdi.k8s.io/way": "nvidia.com/gpu=all"});
    let others = json!({"note": "changed"});
    for (old, new, may) in [
        (&none, &names, false),
        (&names, &names_all, false),
        (&names, &names, true),
        (&names, &none, true),
        (&none, &others, true),
    ] {
        for resource in ["pods", "pods/status"] {
            let (old, new) = (pod(old.clone()), pod(new.clone()));
            let request = Request::update(USER, resource, &old, &new);
            let passes = passes_side_doors(&request, &json!({"muster.dev/team": "ml"}));
            assert_eq!(passes, may, "{resource}: {new}");
        }
    }
}

/// They would be merged into the pod, and no policy about pods would see them.
#[test]
fn a_binding_writes_no_annotation_that_names_devices() {
    for (annotations, may) in [
        (json!({"cdi.k8s.io/way": "nvidia.com/gpu=all"}), false),
        (json!({"nvidia.cdi.k8s.io/way": "nvidia.com/gpu=0"}), false),
        (json!({"example.com/note": "cdi.k8s.io/way"}), true),
    ] {
        let binding = json!({
            "metadata": {"name": "p", "namespace": "ml", "annotations": annotations},
            "target": {"kind": "Node", "name": "n0"},
        });
        for resource in ["pods/binding", "bindings"] {
            let mut request = Request::update(USER, resource, &Value::Null, &binding);
            request.operation = "CREATE";
            assert_eq!(passes("muster-binding", &request), may, "{binding}");
        }
    }
}

/// What a stolen token would be good for.
#[test]
fn controller_and_driver_have_no_verb_that_they_do_not_use() {
    let objects = ["gangs", "ledgers", "nodedevices", "queues"];
    for (role, resources, verbs) in [
        (
            "controller",
            &objects[..],
            &["patch", "deletecollection", "*"][..],
        ),
        ("controller", &["ledgers"], &["delete"]),
        ("controller", &["gangs", "queues"], &["update"]),
        ("controller", &["pods", "events"], &["create", "update"]),
        ("controller", &["events"], &["delete"]),
        ("controller", &["pods/status"], &["update", "delete"]),
        (
            "controller",
            &["jobs", "jobs/status"],
            &["create", "update", "delete"],
        ),
        ("controller", &["jobs/status", "leases"], &["patch", "get"]),
        (
            "controller",
            &[
                "mutatingwebhookconfigurations",
                "validatingwebhookconfigurations",
            ],
            &["create", "update", "delete"],
        ),
        // With the status of claims, it could give any pod any device.
        (
            "driver",
            &[
                "resourceclaims",
                "resourceclaims/status",
                "resourceclaims/driver",
            ],
            &[
                "update",
                "patch",
                "associated-node:patch",
                "create",
                "delete",
            ],
        ),
        (
            "driver",
            &["nodedevices"],
            &["create", "update", "patch", "delete"],
        ),
        (
            "driver",
            &["pods", "nodes", "secrets", "*"],
            &["list", "update", "patch"],
        ),
    ] {
        let role = object(&ENFORCE, "ClusterRole", &format!("muster-{role}"));
        for rule in role["rules"].as_array().unwrap() {
            let of_core_events = rule["apiGroups"] == json!(["events.k8s.io"]);
            let names = |field: &str, wanted: &[&str]| {
                let list = rule[field].as_array().unwrap();
                list.iter()
                    .any(|item| wanted.contains(&item.as_str().unwrap()))
            };
            let may = names("resources", resources) && names("verbs", verbs);
            assert!(!may || of_core_events, "{rule}");
        }
    }
}

/// Whoever releases pods to a scheduler must know which one gets them.
#[test]
fn webhook_and_controller_are_told_the_same_scheduler() {
    let objects = rendered_with(&["mode=Enforce", "schedulerName=gang-scheduler"]);
    for program in ["controller", "webhook"] {
        let name = format!("muster-{program}");
        let flag = "--scheduler-name=gang-scheduler";
        assert!(
            object(&objects, "Deployment", &name)
                .to_string()
                .contains(flag)
        );
        assert!(
            !object(&ENFORCE, "Deployment", &name)
                .to_string()
                .contains("--scheduler-name")
        );
    }
}

/// Two schedulers must never allocate one device.
#[test]
fn with_a_second_scheduler_of_the_charts_every_managed_pod_is_that_ones() {
    let objects = rendered_with(&["mode=Enforce", "scheduler.enabled=true"]);
    let created = |spec: Value| Request {
        by: USER,
        node: None,
        resource: "pods",
        operation: "CREATE",
        old: Value::Null,
        new: json!({"metadata": {"name": "p", "namespace": "ml"}, "spec": spec}),
    };
    let claims = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    for (scheduler, passes) in [
        ("muster-scheduler", true),
        ("default-scheduler", false),
        ("own", false),
    ] {
        let pod = created(
            json!({"containers": [{"name": "c"}], "resourceClaims": claims, "schedulerName": scheduler}),
        );
        assert_eq!(
            passes_in(&objects, "muster-pod-scheduler", &pod),
            passes,
            "{scheduler}"
        );
        let plain = created(json!({"containers": [{"name": "c"}], "schedulerName": scheduler}));
        assert!(
            passes_in(&objects, "muster-pod-scheduler", &plain),
            "{scheduler}: it is about managed pods"
        );
    }
}

/// Mutating webhooks are called in the order of these names, once, and again only those that were called.
#[test]
fn the_mutating_webhook_sees_what_others_add_and_is_called_again() {
    let webhooks = object(&ENFORCE, "MutatingWebhookConfiguration", "zz-muster");
    let pods = &webhooks["webhooks"][0];
    assert_eq!(pods["reinvocationPolicy"], "IfNeeded");
}

/// In Observe the configuration has its CA bundle already: Enforce begins without a moment in which pods are refused.
#[test]
fn the_controller_keeps_the_ca_bundle_of_the_mutating_webhook_in_either_mode() {
    for objects in [&*ENFORCE, &*OBSERVE] {
        let role = object(objects, "ClusterRole", "muster-controller").to_string();
        let controller = object(objects, "Deployment", "muster-controller").to_string();
        assert!(role.contains("zz-muster"), "its CA bundle can be written");
        let rules = object(objects, "ClusterRole", "muster-controller")["rules"].clone();
        let of_webhooks =
            |rule: &&Value| rule["apiGroups"] == json!(["admissionregistration.k8s.io"]);
        let of_webhooks: Vec<&Value> = rules
            .as_array()
            .unwrap()
            .iter()
            .filter(of_webhooks)
            .collect();
        assert_eq!(of_webhooks.len(), 2);
        for rule in of_webhooks {
            assert_eq!(
                rule["verbs"],
                json!(["get", "list", "watch", "patch"]),
                "{rule}"
            );
            let names = rule["resourceNames"].as_array();
            assert_eq!(
                names.map(Vec::len),
                Some(1),
                "of others it sees nothing: {rule}"
            );
        }
        assert!(controller.contains("--mutating-webhook-configuration=zz-muster"));
    }
}

/// The webhook is asked about claims that say something to our driver, and about no other.
#[test]
fn the_webhook_is_asked_about_parameters_for_our_driver_alone() {
    let configuration = object(&ENFORCE, "ValidatingWebhookConfiguration", "muster");
    let webhooks = configuration["webhooks"].as_array().unwrap();
    let of = |driver: &str| json!({"devices": {"config": [{"opaque": {"driver": driver, "parameters": {}}}]}});
    for (spec, is_asked) in [
        (json!({}), false),
        (json!({"devices": {}}), false),
        (json!({"devices": {"config": []}}), false),
        (json!({"devices": {"config": [{}]}}), false),
        (of("gpu.example.com"), false),
        (of("gpu.muster.dev"), true),
    ] {
        let claim = json!({"spec": spec});
        let template = json!({"spec": {"spec": spec}});
        for (name, object) in [
            ("resourceclaims.muster.dev", claim),
            ("resourceclaimtemplates.muster.dev", template),
        ] {
            let mut named = webhooks.iter().filter(|webhook| webhook["name"] == name);
            let conditions = &named.next().unwrap()["matchConditions"];
            let condition = conditions[0]["expression"].as_str().unwrap();
            let mut context = Context::default().with_all();
            context.add_variable_from_value("object", to_value(&object).unwrap());
            let asked = Program::compile(condition).unwrap().execute(&context);
            assert_eq!(asked.unwrap(), Cel::Bool(is_asked), "{name}: {object}");
        }
    }
}
