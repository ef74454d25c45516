use std::collections::BTreeSet;

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    claims::{ClaimReader, ClaimRequest, ClaimSpecs},
    devices::DeviceKinds,
    index::NamespacedName,
    selectors::Selectors,
    shares::Shares,
};

/// Keys without their prefix, and values.
type Pairs<'a> = &'a [(&'a str, &'a str)];

fn read(pairs: Pairs<'_>) -> Result<Option<Shorthand>, Vec<InvalidShorthand>> {
    let annotations = pairs
        .iter()
        .map(|(key, value)| (format!("muster.dev/{key}"), (*value).to_owned()));
    Shorthand::read(Some(&annotations.collect()))
}

fn valid(pairs: Pairs<'_>) -> Shorthand {
    read(pairs).unwrap().unwrap()
}

#[test]
fn without_its_annotations_there_is_no_shorthand() {
    assert_eq!(Shorthand::read(None), Ok(None));
    assert_eq!(
        read(&[("gang-size", "2"), ("topology-required", "leaf")]),
        Ok(None)
    );
}

#[test]
fn what_is_not_said_is_one_gpu_of_any_kind() {
    let large = valid(&[("vram", "40Gi")]);
    assert_eq!((large.gpus(), large.memory_bytes()), (1, Some(40 << 30)));
    let many = valid(&[("gpus", "32"), ("container", "train")]);
    assert_eq!((many.gpus(), many.memory_bytes()), (32, None));
    assert_eq!(many.container(), Some("train"));
    assert_eq!(many.interconnect(), None);
}

#[test]
fn every_error_names_its_annotation_the_value_and_what_would_work() {
    let cases: [(Pairs<'_>, &str, &str); 23] = [
        (&[("gpus", "")], "gpus", "from 1 to 32"),
        (
            &[("gpus", "0")],
            "gpus",
            "\"0\": must be a whole number from 1 to 32",
        ),
        (&[("gpus", "33")], "gpus", "\"33\""),
        (&[("gpus", "-1")], "gpus", "\"-1\""),
        (&[("gpus", "+2")], "gpus", "\"+2\""),
        (&[("gpus", "1e3")], "gpus", "\"1e3\""),
        (&[("gpus", "٢")], "gpus", "\"٢\""),
        (&[("gpus", "99999999999999999999")], "gpus", "from 1 to 32"),
        (&[("vram", "")], "vram", "such as 40Gi"),
        (&[("vram", "0")], "vram", "is 0 bytes"),
        (
            &[("vram", "40")],
            "vram",
            "\"40\": is 40 bytes; write the memory of one GPU with a suffix",
        ),
        (&[("vram", "40m")], "vram", "is 1 bytes"),
        (&[("vram", "-40Gi")], "vram", "is negative"),
        (&[("vram", "40GB")], "vram", "is not a quantity"),
        (&[("vram", "40 Gi")], "vram", "is not a quantity"),
        (&[("vram", "1e30")], "vram", "is more than can be counted"),
        (
            &[("vram", "9999999999999999999999999999999999999999999Ei")],
            "vram",
            "is more than can be counted",
        ),
        (
            &[("gpus", "2"), ("interconnect", "infiniband")],
            "interconnect",
            "\"infiniband\": must be one of nvlink, nvlink-pair, nvlink-quad",
        ),
        (
            &[("gpus", "3"), ("interconnect", "nvlink-pair")],
            "interconnect",
            "connects 2 GPUs, and muster.dev/gpus asks for 3",
        ),
        (
            &[("gpus", "8"), ("interconnect", "nvlink-quad")],
            "interconnect",
            "connects 4 GPUs",
        ),
        (
            &[("vram", "40Gi"), ("interconnect", "nvlink")],
            "interconnect",
            "muster.dev/gpus must say how many",
        ),
        (
            &[("container", "c")],
            "container",
            "neither muster.dev/gpus nor muster.dev/vram",
        ),
        (
            &[("gpus", "1"), ("container", "")],
            "container",
            "not be empty",
        ),
    ];
    for (pairs, annotation, why) in cases {
        let errors = read(pairs).unwrap_err();
        assert_eq!(errors.len(), 1, "{pairs:?}: {errors:?}");
        assert_eq!(
            errors[0].annotation,
            format!("muster.dev/{annotation}"),
            "{pairs:?}"
        );
        assert!(errors[0].why.contains(why), "{pairs:?}: {}", errors[0].why);
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let errors = read(&[
        ("gpus", "no"),
        ("vram", "much"),
        ("interconnect", "fast"),
        ("container", ""),
    ])
    .unwrap_err();
    let named: Vec<_> = errors.iter().map(|error| error.annotation).collect();
    assert_eq!(named, keys::SHORTHAND);
}

#[test]
fn a_template_is_named_by_what_it_asks_for() {
    for (pairs, beginning) in [
        (vec![("gpus", "1")], "muster-1-gpu-"),
        (vec![("gpus", "8")], "muster-8-gpus-"),
        (vec![("vram", "40Gi")], "muster-1-gpu-40gi-"),
        (vec![("vram", "80G")], "muster-1-gpu-80g-"),
        (
            vec![
                ("gpus", "2"),
                ("vram", "40Gi"),
                ("interconnect", "nvlink-pair"),
            ],
            "muster-2-gpus-40gi-nvlink-pair-",
        ),
    ] {
        let name = valid(&pairs).template_name();
        let suffix = name.strip_prefix(beginning);
        assert_eq!(suffix.map(str::len), Some(5), "{name}");
    }
}

#[test]
fn the_same_request_has_one_template_however_it_is_written() {
    let one = valid(&[("gpus", "1"), ("vram", "40Gi")]);
    for other in [
        valid(&[("vram", "40960Mi")]),
        valid(&[("vram", "42949672960"), ("container", "second")]),
        valid(&[("gpus", "1"), ("vram", "40Gi"), ("interconnect", "nvlink")]),
    ] {
        assert_eq!(one.template_name(), other.template_name());
        assert_eq!(one.claim_spec(), other.claim_spec());
    }
    for other in [
        valid(&[("vram", "40G")]),
        valid(&[("gpus", "2"), ("vram", "40Gi")]),
        valid(&[("gpus", "2"), ("vram", "40Gi"), ("interconnect", "nvlink")]),
    ] {
        assert_ne!(one.template_name(), other.template_name());
    }
}

#[test]
fn the_template_is_what_a_user_would_write() {
    let asked = valid(&[
        ("gpus", "2"),
        ("vram", "40Gi"),
        ("interconnect", "nvlink-quad"),
    ]);
    let mut template = serde_json::to_value(asked.template("ml")).unwrap();
    let name = template["metadata"]["name"].take();
    assert_eq!(name, asked.template_name());
    assert_eq!(
        template,
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": null, "namespace": "ml", "labels": {"app.kubernetes.io/managed-by": "muster"}},
            "spec": {"spec": {"devices": {
                "requests": [{"name": "gpus", "exactly": {
                    "deviceClassName": "gpu.muster.dev", "allocationMode": "ExactCount", "count": 2,
                    "selectors": [{"cel": {"expression":
                        "device.capacity['gpu.muster.dev'].memory.compareTo(quantity('40Gi')) >= 0"}}],
                }}],
                "constraints": [{"matchAttribute": "gpu.muster.dev/nvlinkQuad"}],
            }}},
        })
    );
}

/// A slice with one device, as our driver publishes it.
fn slice(memory: &str) -> k8s_openapi::api::resource::v1::ResourceSlice {
    serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
        "driver": keys::DRIVER, "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": memory}}}],
    }}))
    .unwrap()
}

#[test]
fn the_claim_is_understood_and_takes_only_devices_with_the_memory() {
    let asked = valid(&[("gpus", "4"), ("vram", "40Gi"), ("interconnect", "nvlink")]);
    let claim = ResourceClaim {
        spec: Some(asked.claim_spec()),
        ..ResourceClaim::default()
    };
    let class = serde_json::from_value(crate::testing::device_class()).unwrap();
    let classes = [("gpu.muster.dev".to_owned(), std::sync::Arc::new(class))].into();
    let mut selectors = Selectors::default();
    let mut reader = ClaimReader {
        classes: &classes,
        excepted: &BTreeSet::new(),
        selectors: &mut selectors,
        shares: &mut Shares::default(),
        key: &NamespacedName::new("ml", "c"),
        new_selectors: BTreeSet::new(),
    };
    let ClaimRequest::Charged {
        requests,
        constraints,
    } = reader
        .read(&ClaimSpecs::default().observe(&claim, None))
        .unwrap()
    else {
        panic!("it is charged");
    };
    assert_eq!((requests.len(), requests[0].choices[0].count), (1, 4));
    assert_eq!(
        constraints[0].attribute.as_str(),
        "gpu.muster.dev/nvlinkGroup"
    );
    for (memory, matches) in [("40Gi", true), ("85899345920", true), ("40959Mi", false)] {
        let mut kinds = DeviceKinds::default();
        let slice = kinds.slice(std::sync::Arc::new(slice(memory)), None);
        let mut selectors = selectors.clone();
        let id = requests[0].choices[0].selector;
        while let Some(request) = selectors.request(id, &kinds) {
            selectors.give(request.judge(&|| std::time::Duration::ZERO), &kinds);
        }
        let verdicts = selectors.verdicts(&slice.devices[0]);
        assert_eq!(verdicts.matching.contains(&id), matches, "{memory}");
        assert!(verdicts.fails.is_empty(), "{memory}");
    }
}

fn referring_pod(annotation: &str, reference: &Value, status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ml", "annotations": {"muster.dev/gpus": annotation}},
        "spec": {"containers": [], "resourceClaims": reference},
        "status": status,
    }))
    .unwrap()
}

#[test]
fn a_template_is_waited_for_until_the_claim_is_made() {
    let asked = valid(&[("gpus", "2")]);
    let reference = json!([{"name": "nic", "resourceClaimName": "n"}, asked.reference()]);
    let waits = |pod: Pod| template_waited_for(&pod);
    assert_eq!(
        waits(referring_pod("2", &reference, &json!({}))),
        Some(asked.template("ml"))
    );
    let foreign = json!([{"name": "muster-gpus", "resourceClaimTemplateName": "theirs"}]);
    let made =
        json!({"resourceClaimStatuses": [{"name": "muster-gpus", "resourceClaimName": "p-x"}]});
    for (what, pod) in [
        ("the claim is made", referring_pod("2", &reference, &made)),
        (
            "it ended",
            referring_pod("2", &reference, &json!({"phase": "Failed"})),
        ),
        (
            "another template is meant",
            referring_pod("2", &foreign, &json!({})),
        ),
        (
            "the annotation says something else",
            referring_pod("3", &reference, &json!({})),
        ),
        (
            "the annotation is nonsense",
            referring_pod("x", &reference, &json!({})),
        ),
        (
            "nothing is referred to",
            referring_pod("2", &json!(null), &json!({})),
        ),
    ] {
        assert_eq!(waits(pod), None, "{what}");
    }
}

proptest! {
    /// Whatever is written there, it is read without panic; and what is valid has a name and a spec that
    /// the API server takes.
    #[test]
    fn no_annotation_panics(
        gpus in prop::option::of("[0-9]{1,2}|.{0,12}"),
        vram in prop::option::of("[-+]?[0-9.]{1,30}(e[-+]?[0-9]{1,9}|[numkMGTPEi]{0,2})|.{0,12}"),
        interconnect in prop::option::of(prop_oneof![Just("nvlink".to_owned()), Just("nvlink-pair".to_owned()), ".{0,12}"]),
        container in prop::option::of(".{0,12}"),
    ) {
        let given = [("gpus", gpus), ("vram", vram), ("interconnect", interconnect), ("container", container)]
            .into_iter()
            .filter_map(|(key, value)| Some((format!("muster.dev/{key}"), value?)))
            .collect();
        match Shorthand::read(Some(&given)) {
            Ok(Some(shorthand)) => {
                let name = shorthand.template_name();
                prop_assert!(name.len() <= 63, "{name}");
                prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
                prop_assert!((1..=MAX_GPUS).contains(&shorthand.gpus()));
            }
            Ok(None) => prop_assert!(given.is_empty()),
            Err(errors) => prop_assert!(!errors.is_empty() && errors.iter().all(|error| error.why.len() < 600)),
        }
    }
}
