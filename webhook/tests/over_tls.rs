//! The webhook as kube-apiserver meets it: HTTPS, reviews in and out, on a real socket.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use serde_json::{Value, json};
use support::{JSON, Running, claiming_pod, review};

/// The patch of an answer: bytes of a JSON patch.
fn patch(response: &Value) -> json_patch::Patch {
    let bytes: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn a_managed_pod_is_gated_and_marked_once() {
    let webhook = Running::start().await;
    let mut pod = claiming_pod(&json!({}));
    let response = webhook.review("/mutate/pods", &review("Pod", &pod)).await;
    assert_eq!(
        (&response["allowed"], &response["patchType"]),
        (&json!(true), &json!("JSONPatch"))
    );
    json_patch::patch(&mut pod, &patch(&response)).unwrap();
    assert_eq!(
        pod["spec"]["schedulingGates"],
        json!([{"name": "muster.dev/admission"}])
    );
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["limits"],
        json!({"muster.dev/managed": "0"})
    );
    let again = webhook.review("/mutate/pods", &review("Pod", &pod)).await;
    assert_eq!(again["allowed"], true);
    assert!(
        again.get("patch").is_none(),
        "nothing is left to do: {again}"
    );
}

#[tokio::test]
async fn a_refusal_carries_code_reason_and_field_and_a_dry_run_says_the_same() {
    let webhook = Running::start().await;
    let pod = claiming_pod(&json!({"muster.dev/rank": "0"}));
    let mut request = review("Pod", &pod);
    let response = webhook.review("/validate/pods", &request).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 403);
    assert_eq!(response["status"]["reason"], "NotPermitted");
    let cause = &response["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "metadata.annotations[muster.dev/rank]");
    request["request"]["dryRun"] = json!(true);
    assert_eq!(webhook.review("/validate/pods", &request).await, response);
}

/// A pod without any claim.
fn plain_pod(annotations: &Value) -> Value {
    let mut pod = claiming_pod(annotations);
    pod["spec"]
        .as_object_mut()
        .unwrap()
        .remove("resourceClaims");
    pod
}

#[tokio::test]
async fn a_pod_that_only_says_how_many_gpus_is_given_a_claim_once() {
    let webhook = Running::start().await;
    let mut pod = plain_pod(&json!({"muster.dev/gpus": "2", "muster.dev/interconnect": "nvlink"}));
    let response = webhook.review("/mutate/pods", &review("Pod", &pod)).await;
    json_patch::patch(&mut pod, &patch(&response)).unwrap();
    let claim = &pod["spec"]["resourceClaims"][0];
    let template = claim["resourceClaimTemplateName"].as_str().unwrap();
    assert!(template.starts_with("muster-2-gpus-nvlink-"), "{template}");
    assert_eq!(
        pod["spec"]["containers"][0]["resources"]["claims"],
        json!([{"name": claim["name"]}])
    );
    let again = webhook.review("/mutate/pods", &review("Pod", &pod)).await;
    assert!(
        again.get("patch").is_none(),
        "nothing is left to do: {again}"
    );
    let valid = webhook.review("/validate/pods", &review("Pod", &pod)).await;
    assert_eq!(valid["allowed"], true, "{valid}");
}

#[tokio::test]
async fn memory_that_no_gpu_has_is_refused_for_pods_and_jobs_with_the_gpus_that_there_are() {
    let webhook = Running::start().await;
    let annotations = json!({"muster.dev/vram": "200Gi"});
    let pod = review("Pod", &plain_pod(&annotations));
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"template": {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "c"}]}}}});
    let job = review("Job", &job);
    let before = webhook.review("/validate/pods", &pod).await;
    assert_eq!(before["allowed"], true, "no GPU is known yet");

    let slice = json!({"metadata": {"name": "n1-slice"}, "spec": {
        "driver": "gpu.muster.dev", "nodeName": "n1", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "attributes": {"productName": {"string": "T4"}}, "capacity": {"memory": {"value": "15Gi"}}}]}});
    let slice = serde_json::from_value(slice).unwrap();
    webhook.facts.write().unwrap().gpus.put(&slice);
    for (path, request, field) in [
        (
            "/validate/pods",
            &pod,
            "metadata.annotations[muster.dev/vram]",
        ),
        (
            "/validate/jobs",
            &job,
            "spec.template.metadata.annotations[muster.dev/vram]",
        ),
    ] {
        let response = webhook.review(path, request).await;
        assert_eq!(response["allowed"], false);
        assert_eq!(response["status"]["reason"], "PlacementImpossible");
        let cause = &response["status"]["details"]["causes"][0];
        assert_eq!(cause["field"], field);
        assert_eq!(
            cause["message"],
            "no GPU has 200Gi; the nearest smaller one has 15Gi (T4); there are: 15Gi (T4, 1 of them)"
        );
    }
}

#[tokio::test]
async fn parameters_that_the_driver_would_not_take_are_refused_in_claims_and_in_templates() {
    let webhook = Running::start().await;
    let spec = |more: &Value| {
        let mut parameters =
            json!({"apiVersion": "gpu.muster.dev/v1alpha1", "kind": "DeviceConfig"});
        json_patch::merge(&mut parameters, more);
        json!({"devices": {"config": [{"opaque": {"driver": "gpu.muster.dev", "parameters": parameters}}]}})
    };
    for (more, is_allowed) in [
        (json!({}), true),
        (json!({"sharing": {"strategy": "MPS"}}), false),
    ] {
        let spec = spec(&more);
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec});
        let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
            "spec": {"spec": spec}});
        for (path, kind, object, at) in [
            ("/validate/resourceclaims", "ResourceClaim", claim, "spec"),
            (
                "/validate/resourceclaimtemplates",
                "ResourceClaimTemplate",
                template,
                "spec.spec",
            ),
        ] {
            let response = webhook.review(path, &review(kind, &object)).await;
            assert_eq!(response["allowed"], is_allowed, "{response}");
            if !is_allowed {
                assert_eq!(response["status"]["reason"], "InvalidValue");
                let cause = &response["status"]["details"]["causes"][0];
                let field = format!("{at}.devices.config[0].opaque.parameters.sharing");
                assert_eq!(cause["field"], field);
            }
        }
    }
}

#[tokio::test]
async fn a_team_that_requires_it_has_pods_say_how_much_memory_they_need() {
    let webhook = Running::start().await;
    let team = serde_json::from_value(json!({"vram": "Required"})).unwrap();
    {
        let mut facts = webhook.facts.write().unwrap();
        facts.team_of_namespace.insert("ml".into(), "red".into());
        facts.teams.insert("red".into(), team);
    }
    for (annotations, is_allowed) in [
        (json!({"muster.dev/gpus": "1"}), false),
        (json!({"muster.dev/vram": "10Gi"}), true),
    ] {
        let pod = review("Pod", &plain_pod(&annotations));
        let response = webhook.review("/validate/pods", &pod).await;
        assert_eq!(response["allowed"], is_allowed, "{response}");
        if !is_allowed {
            assert_eq!(response["status"]["code"], 422);
            assert_eq!(response["status"]["reason"], "VramNotDeclared");
            let cause = &response["status"]["details"]["causes"][0];
            assert_eq!(cause["field"], "metadata.annotations[muster.dev/vram]");
        }
    }
}

#[tokio::test]
async fn a_shorthand_on_the_job_itself_is_refused_with_where_it_belongs() {
    let webhook = Running::start().await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "annotations": {"muster.dev/gpus": "1"}},
        "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}}});
    let response = webhook.review("/validate/jobs", &review("Job", &job)).await;
    let cause = &response["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "metadata.annotations[muster.dev/gpus]");
    let message = cause["message"].as_str().unwrap();
    assert!(
        message.contains("spec.template.metadata.annotations"),
        "{message}"
    );
}

#[tokio::test]
async fn a_cohort_that_would_close_a_cycle_is_refused_by_what_is_known_of_others() {
    let webhook = Running::start().await;
    let cohort = |name: &str, parent: &str| json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": name}, "spec": {"parent": parent}});
    let request = review("Cohort", &cohort("a", "b"));
    let before = webhook.review("/validate/cohorts", &request).await;
    assert_eq!(before["allowed"], true, "b is not known yet");
    assert!(
        before["warnings"][0]
            .as_str()
            .unwrap()
            .contains("no Cohort"),
        "{before}"
    );
    let facts = &webhook.facts;
    facts
        .write()
        .unwrap()
        .parent_of_cohort
        .insert("b".into(), Some("a".into()));
    let after = webhook.review("/validate/cohorts", &request).await;
    assert_eq!(
        (&after["allowed"], &after["status"]["reason"]),
        (&json!(false), &json!("CohortCycle"))
    );
}

#[tokio::test]
async fn a_flavor_is_refused_for_its_selector_and_warned_of_one_that_counts_the_same_devices() {
    let webhook = Running::start().await;
    let review_of = |spec: &Value| {
        let flavor = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Flavor", "metadata": {"name": "h100"}, "spec": spec});
        review("Flavor", &flavor)
    };
    let path = "/validate/flavors";
    let broken = json!({"devices": {"driver": "gpu.muster.dev", "selector": "device.driver =="}});
    let response = webhook.review(path, &review_of(&broken)).await;
    assert_eq!(response["status"]["reason"], "InvalidValue", "{response}");
    let cause = &response["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.devices.selector");

    let alone = webhook.review(path, &review_of(&json!({}))).await;
    assert_eq!(
        (&alone["allowed"], alone.get("warnings")),
        (&json!(true), None)
    );
    let other = serde_json::from_value(json!({})).unwrap();
    let facts = &webhook.facts;
    facts.write().unwrap().flavors.insert("all".into(), other);
    let beside = webhook.review(path, &review_of(&json!({}))).await;
    assert_eq!(beside["allowed"], true);
    let warning = beside["warnings"][0].as_str().unwrap();
    assert!(warning.contains("count as of all"), "{warning}");
}

#[tokio::test]
async fn a_fault_policy_is_refused_for_what_drivers_would_leave_out() {
    let webhook = Running::start().await;
    let review_of = |class: &str| {
        let policy = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "FaultPolicy", "metadata": {"name": "cluster"},
            "spec": {"rules": [{"xid": 109, "class": class}]}});
        review("FaultPolicy", &policy)
    };
    let path = "/validate/faultpolicies";
    let good = webhook.review(path, &review_of("App")).await;
    assert_eq!(good["allowed"], true);
    let bad = webhook.review(path, &review_of("Harmless")).await;
    assert_eq!(bad["status"]["reason"], "InvalidValue", "{bad}");
    let cause = &bad["status"]["details"]["causes"][0];
    assert_eq!(cause["field"], "spec.rules[0].class");
}

#[tokio::test]
async fn a_job_and_a_team_are_answered_on_their_own_paths() {
    let webhook = Running::start().await;
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
        "spec": {"activeDeadlineSeconds": 60, "template": {"spec": {"containers": []}}}});
    let response = webhook.review("/validate/jobs", &review("Job", &job)).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["warnings"].as_array().unwrap().len(), 1);
    let team = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Team", "metadata": {"name": "t"},
        "spec": {"tiers": {"allowed": ["standard"], "default": "critical"}}});
    let response = webhook
        .review("/validate/teams", &review("Team", &team))
        .await;
    assert_eq!(response["status"]["reason"], "TierNotAllowed");
}

#[tokio::test]
async fn a_deletion_is_never_held_up() {
    let webhook = Running::start().await;
    let mut request = review("Cohort", &Value::Null);
    request["request"]["operation"] = json!("DELETE");
    request["request"]["oldObject"] = json!({"apiVersion": "muster.dev/v1alpha1", "kind": "Cohort", "metadata": {"name": "a"}, "spec": {}});
    let response = webhook.review("/validate/cohorts", &request).await;
    assert_eq!(response["allowed"], true);
}

#[tokio::test]
async fn what_is_no_review_is_refused_with_the_right_status() {
    let webhook = Running::start().await;
    let good = review("Pod", &claiming_pod(&json!({})));
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut request = good.clone();
        change(&mut request);
        request.to_string()
    };
    let path = "/validate/pods";
    for (what, body, expected) in [
        ("nothing", String::new(), 400),
        ("a list", "[]".into(), 400),
        ("cut off", good.to_string()[..200].to_owned(), 400),
        ("trailing data", format!("{good}x"), 400),
        ("a byte order mark", format!("\u{feff}{good}"), 400),
        ("too deep", "[".repeat(200_000), 400),
        (
            "an old version",
            changed(&|r| r["apiVersion"] = json!("admission.k8s.io/v1beta1")),
            400,
        ),
        ("no request", changed(&|r| r["request"] = Value::Null), 400),
        (
            "no uid",
            changed(&|r| _ = r["request"].as_object_mut().unwrap().remove("uid")),
            400,
        ),
        (
            "an empty uid",
            changed(&|r| r["request"]["uid"] = json!("")),
            400,
        ),
        (
            "another kind",
            changed(&|r| r["request"]["object"]["kind"] = json!("Secret")),
            400,
        ),
        (
            "a field of the wrong type",
            changed(&|r| r["request"]["object"]["spec"]["containers"] = json!(5)),
            400,
        ),
    ] {
        let (status, answer) = webhook.post(path, JSON, &body).await;
        assert_eq!(status, expected, "{what}: {answer}");
    }
    let body = good.to_string();
    assert_eq!(webhook.post(path, "text/plain", &body).await.0, 415);
    assert_eq!(
        webhook
            .post(path, "application/json; charset=utf-8", &body)
            .await
            .0,
        200
    );
    assert_eq!(webhook.post("/validate/nodes", JSON, &body).await.0, 404);
    let get = format!("GET {path} HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n");
    assert_eq!(webhook.send(get.as_bytes()).await.0, 405);
}

#[tokio::test]
async fn a_body_above_seven_mebibytes_is_refused_and_one_below_is_read() {
    let webhook = Running::start().await;
    let sized = |bytes: usize| {
        review("Pod", &claiming_pod(&json!({"padding": "x".repeat(bytes)}))).to_string()
    };
    assert_eq!(
        webhook
            .post("/mutate/pods", JSON, &sized(6 * 1024 * 1024))
            .await
            .0,
        200
    );
    assert_eq!(
        webhook
            .post("/mutate/pods", JSON, &sized(7 * 1024 * 1024))
            .await
            .0,
        413
    );
}

#[tokio::test]
async fn before_the_first_lists_nothing_is_judged() {
    let webhook = Running::start().await;
    let teams = webhook.readiness.condition("teams");
    let body = review("Pod", &claiming_pod(&json!({}))).to_string();
    let (status, answer) = webhook.post("/validate/pods", JSON, &body).await;
    assert_eq!(status, 503);
    assert!(answer.contains("teams"), "{answer}");
    teams.set(true);
    assert_eq!(webhook.post("/validate/pods", JSON, &body).await.0, 200);
}

#[tokio::test]
async fn many_reviews_at_once_are_all_answered() {
    let webhook = Arc::new(Running::start().await);
    let reviews = (0..200).map(|_| {
        let webhook = Arc::clone(&webhook);
        tokio::spawn(async move {
            let body = review("Pod", &claiming_pod(&json!({}))).to_string();
            webhook.post("/mutate/pods", JSON, &body).await.0
        })
    });
    for answered in reviews.collect::<Vec<_>>() {
        assert_eq!(answered.await.unwrap(), 200);
    }
}
