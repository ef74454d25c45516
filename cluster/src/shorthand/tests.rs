use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, DeviceRequest, DeviceSelector, ResourceClaim, ResourceSlice},
};
use muster_api::device_class;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    claims::{ClaimReader, ClaimRequest, ClaimSpecs},
    devices::DeviceKinds,
    index::NamespacedName,
    selectors::{Expressions, Selectors, Verdict},
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
    assert!(large.takes_slices());
    assert!(!valid(&[("gpus", "1"), ("vram", "40Gi")]).takes_slices());
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
        (vec![("gpus", "1"), ("vram", "40Gi")], "muster-1-gpu-40gi-"),
        (vec![("vram", "40Gi")], "muster-vram-40gi-"),
        (vec![("vram", "80G")], "muster-vram-80g-"),
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
    let alone = valid(&[("vram", "40Gi")]);
    let one = valid(&[("gpus", "1"), ("vram", "40Gi")]);
    for (one, other) in [
        (&alone, valid(&[("vram", "40960Mi")])),
        (
            &alone,
            valid(&[("vram", "42949672960"), ("container", "second")]),
        ),
        (
            &one,
            valid(&[("gpus", "1"), ("vram", "40Gi"), ("interconnect", "nvlink")]),
        ),
        (&one, valid(&[("gpus", "1"), ("vram", "40960Mi")])),
    ] {
        assert_eq!(one.template_name(), other.template_name());
        assert_eq!(one.claim_spec(), other.claim_spec());
    }
    for other in [
        &alone,
        &valid(&[("vram", "40G")]),
        &valid(&[("gpus", "2"), ("vram", "40Gi")]),
        &valid(&[("gpus", "2"), ("vram", "40Gi"), ("interconnect", "nvlink")]),
    ] {
        assert_ne!(one.template_name(), other.template_name());
    }
}

#[test]
fn an_amount_that_is_given_later_is_the_same_as_one_that_is_written_and_none_is_overridden() {
    let given = valid(&[("gpus", "2")]).with_memory("40Gi").unwrap();
    let written = valid(&[("gpus", "2"), ("vram", "40Gi")]);
    assert_eq!(given, written);
    assert_eq!(written.clone().with_memory("80Gi").unwrap(), written);
    let error = valid(&[("gpus", "2")]).with_memory("40").unwrap_err();
    assert_eq!(error.annotation, keys::VRAM);
    assert!(check_memory("40").is_err() && check_memory("40Gi").is_ok());
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
                        "has(device.capacity['gpu.muster.dev'].memory) && device.capacity['gpu.muster.dev'].memory.compareTo(quantity('39943195853')) >= 0"}}],
                }}],
                "constraints": [{"matchAttribute": "gpu.muster.dev/nvlinkQuad"}],
            }}},
        })
    );
}

#[test]
fn an_amount_alone_asks_for_the_smallest_device_that_has_it() {
    let asked = valid(&[("vram", "80Gi")]);
    let memory = "device.capacity['gpu.muster.dev'].memory";
    let profile = "device.attributes['gpu.muster.dev'].profile";
    let rung = |number: u32, least: &str, end: Option<&str>| {
        let mut expression =
            format!("has({memory}) && {memory}.compareTo(quantity('{least}')) >= 0");
        if let Some(end) = end {
            expression.push_str(&format!(" && {memory}.compareTo(quantity('{end}')) < 0"));
        }
        expression.push_str(&format!(
            " && (!has({profile}) || !{profile}.contains('+'))"
        ));
        json!({"name": format!("size-{number}"), "deviceClassName": "gpu-or-slice.muster.dev",
            "allocationMode": "ExactCount", "count": 1, "selectors": [{"cel": {"expression": expression}}]})
    };
    // 93 % of 80Gi, and 1.25, 1.75, 3 and 5.5 times as much.
    assert_eq!(
        serde_json::to_value(asked.claim_spec()).unwrap(),
        json!({"devices": {"requests": [{"name": "gpus", "firstAvailable": [
            rung(1, "79886391706", Some("99857989633")),
            rung(2, "99857989633", Some("139801185486")),
            rung(3, "139801185486", Some("239659175118")),
            rung(4, "239659175118", Some("439375154383")),
            rung(5, "439375154383", None),
        ]}]}})
    );
}

/// What a request or one of its alternatives takes of devices with this `type` and memory: a class's expressions and its own.
fn takes(class: &str, selectors: Option<&Vec<DeviceSelector>>, device: &Value) -> bool {
    let mut classes = device_class::SHIPPED.iter();
    let class = classes.find(|one| one.name == class).unwrap();
    let own = selectors.into_iter().flatten();
    let own = own.map(|selector| selector.cel.as_ref().unwrap().expression.clone());
    let texts: Vec<String> = std::iter::once(class.selector.to_owned())
        .chain(own)
        .collect();
    let slice: ResourceSlice = serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {
        "driver": keys::DRIVER, "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [device],
    }}))
    .unwrap();
    let slice = DeviceKinds::default().slice(std::sync::Arc::new(slice), None);
    let verdict = Expressions::compile(&texts.into())
        .unwrap()
        .evaluate(&slice.devices[0]);
    assert!(
        !matches!(verdict, Verdict::Fails(_)),
        "{verdict:?}: {device}"
    );
    verdict == Verdict::Matches
}

/// A device of this `type` and memory, as far as it tells them.
fn published(kind: Option<&str>, memory: Option<&str>) -> Value {
    let mut device = json!({"name": "gpu-0", "attributes": {}, "capacity": {}});
    if let Some(kind) = kind {
        device["attributes"]["type"] = json!({"string": kind});
    }
    if let Some(memory) = memory {
        device["capacity"]["memory"] = json!({"value": memory});
    }
    device
}

/// The alternative that takes a device, from 0 on; `None`: none does.
fn taken_by(asked: &Shorthand, device: &Value) -> Option<usize> {
    let requests = asked.claim_spec().devices.unwrap().requests.unwrap();
    let DeviceRequest {
        exactly,
        first_available,
        ..
    } = &requests[0];
    if let Some(exactly) = exactly {
        let takes = takes(
            &exactly.device_class_name,
            exactly.selectors.as_ref(),
            device,
        );
        return takes.then_some(0);
    }
    let taking: Vec<usize> = first_available
        .iter()
        .flatten()
        .enumerate()
        .filter(|(_, one)| takes(&one.device_class_name, one.selectors.as_ref(), device))
        .map(|(index, _)| index)
        .collect();
    assert!(
        taking.len() <= 1,
        "one device stands on two rungs: {taking:?}"
    );
    taking.first().copied()
}

#[test]
fn the_claim_takes_only_devices_that_fit_nominally_and_smaller_ones_first() {
    let whole = valid(&[("gpus", "2"), ("vram", "40Gi")]);
    let any_whole = valid(&[("gpus", "2")]);
    let alone = valid(&[("vram", "10Gi")]);
    for (asked, kind, memory, taken) in [
        (&whole, Some("gpu"), Some("40Gi"), Some(0)),
        // An A100 of 40 GB, from a driver that says no type; and one byte less than what counts.
        (&whole, None, Some("39943195853"), Some(0)),
        (&whole, Some("gpu"), Some("39943195852"), None),
        (&whole, Some("gpu"), Some("81559Mi"), Some(0)),
        (&whole, Some("mig"), Some("81152Mi"), None),
        (&whole, Some("gpu"), None, None),
        (&any_whole, Some("gpu"), None, Some(0)),
        (&any_whole, Some("mig"), None, None),
        (&any_whole, Some("vfio"), None, None),
        // 1g.10gb, 2g.20gb, 3g.40gb, 7g.80gb of an A100, the whole one, and a T4.
        (&alone, Some("mig"), Some("9856Mi"), Some(0)),
        (&alone, Some("gpu"), Some("15Gi"), Some(1)),
        (&alone, Some("mig"), Some("19968Mi"), Some(2)),
        (&alone, Some("mig"), Some("40192Mi"), Some(3)),
        (&alone, Some("mig"), Some("80384Mi"), Some(4)),
        (&alone, None, Some("81920Mi"), Some(4)),
        (&alone, Some("gpu"), Some("288Gi"), Some(6)),
        (&alone, Some("gpu"), Some("999Gi"), Some(7)),
        (&alone, Some("mig"), Some("4864Mi"), None),
        (&alone, Some("mig"), None, None),
        (&alone, Some("vfio"), Some("40Gi"), None),
    ] {
        assert_eq!(
            taken_by(asked, &published(kind, memory)),
            taken,
            "{asked:?}: {kind:?} of {memory:?}"
        );
    }
}

#[test]
fn a_slice_with_an_extension_is_for_who_asks_for_its_profile() {
    let asked = valid(&[("vram", "10Gi")]);
    for (profile, memory, taken) in [
        ("1g.10gb", "9984Mi", Some(0)),
        ("1g.10gb+me", "9984Mi", None),
        ("2g.20gb", "20096Mi", Some(2)),
        ("1g.24gb+me.all", "24192Mi", None),
        ("1g.24gb+gfx", "24192Mi", None),
        // Less than plain, and no extension.
        ("1g.24gb-me", "24192Mi", Some(2)),
    ] {
        let mut device = published(Some("mig"), Some(memory));
        device["attributes"]["profile"] = json!({"string": profile});
        assert_eq!(taken_by(&asked, &device), taken, "{profile}");
    }
}

/// What the planner makes of the claim: how many devices of each alternative, and what they have in common.
fn understood(asked: &Shorthand) -> (Vec<u32>, Vec<String>) {
    let claim = ResourceClaim {
        spec: Some(asked.claim_spec()),
        ..ResourceClaim::default()
    };
    let classes = device_class::SHIPPED.map(|class| {
        let expression = json!([{"cel": {"expression": class.selector}}]);
        let object = json!({"metadata": {"name": class.name}, "spec": {"selectors": expression}});
        let object: DeviceClass = serde_json::from_value(object).unwrap();
        (class.name.to_owned(), std::sync::Arc::new(object))
    });
    let mut reader = ClaimReader {
        classes: &classes.into(),
        excepted: &BTreeSet::new(),
        selectors: &mut Selectors::default(),
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
    assert_eq!(requests.len(), 1);
    let choices = requests[0].choices.iter();
    let attributes = constraints.iter().map(|one| one.attribute.to_string());
    (
        choices.map(|choice| choice.count).collect(),
        attributes.collect(),
    )
}

#[test]
fn the_planner_understands_both_forms_of_the_claim() {
    let counted = valid(&[("gpus", "4"), ("vram", "40Gi"), ("interconnect", "nvlink")]);
    let connected = vec!["gpu.muster.dev/nvlinkGroup".to_owned()];
    assert_eq!(understood(&counted), (vec![4], connected));
    let alone = valid(&[("vram", "10Gi")]);
    assert_eq!(understood(&alone), (vec![1; 8], Vec::new()));
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
                let requests = shorthand.claim_spec().devices.unwrap().requests.unwrap();
                let alternatives = requests[0].first_available.as_ref().map_or(1, Vec::len);
                prop_assert!((1..=8).contains(&alternatives), "{alternatives}");
            }
            Ok(None) => prop_assert!(given.is_empty()),
            Err(errors) => prop_assert!(!errors.is_empty() && errors.iter().all(|error| error.why.len() < 600)),
        }
    }
}
