//! Slices that nobody can count with, at the limits of Kubernetes and beyond.

use muster_engine::NodeBlock;
use serde_json::{Value, json};

use super::slices::{index_of, told};
use crate::testing::{index_with, is, partitioned, settle, with};

#[test]
fn a_pool_whose_counters_cannot_be_counted_with_is_not_used_and_says_why() {
    const SETS: &str = "/spec/sharedCounters";
    const DRAWN: &str = "/spec/devices/1/consumesCounters";
    let counters = |count: usize| {
        let counters = (0..count).map(|number| (format!("c-{number}"), json!({"value": "1"})));
        Value::Object(counters.collect())
    };
    let sets = |count: usize| {
        let sets = (2..=count)
            .map(|number| json!({"name": format!("s-{number}"), "counters": counters(1)}));
        let of_gpu = partitioned("c", 1)[0]["spec"]["sharedCounters"][0].clone();
        json!(std::iter::once(of_gpu).chain(sets).collect::<Vec<_>>())
    };
    let drawing = |count: usize| {
        let one = partitioned("c", 1)[1]["spec"]["devices"][1].clone();
        let all = (0..count).map(|number| with(one.clone(), "/name", json!(format!("d-{number}"))));
        json!(all.collect::<Vec<_>>())
    };
    let plain = |count: usize| {
        let all = (0..count).map(|number| json!({"name": format!("d-{number}")}));
        json!(all.collect::<Vec<_>>())
    };
    let draw = |set: &str, counter: &str, value: &str| {
        let mut draw = json!({"counterSet": set, "counters": {}});
        draw["counters"][counter] = json!({"value": value});
        draw
    };
    let one = |value: &str| json!([draw("gpu-0", "compute-slices", value)]);
    let value_of_set = format!("{SETS}/0/counters/compute-slices/value");
    for (place, pointer, value, fault) in [
        (
            1,
            DRAWN,
            json!([draw("gpu-9", "memory", "1")]),
            "device gpu.muster.dev/c/gpu-0-mig-1g10gb-0: consumesCounters[gpu-9]: the pool has none of that name",
        ),
        (
            1,
            DRAWN,
            json!([draw("gpu-0", "memory", "1")]),
            "consumesCounters[gpu-0].counters[memory]: the pool has none of that name",
        ),
        (
            1,
            DRAWN,
            one("-1"),
            "consumesCounters[gpu-0].counters[compute-slices]: \"-1\" is negative",
        ),
        (1, DRAWN, one("many"), "\"many\" is not a quantity"),
        (
            1,
            DRAWN,
            one("9223372036854775807"),
            "at most 1125899906842624 can be",
        ),
        (
            1,
            DRAWN,
            one("99999999999999999999"),
            "is more than can be counted",
        ),
        (
            1,
            DRAWN,
            json!([
                draw("gpu-0", "compute-slices", "1"),
                draw("gpu-0", "memory-slice-0", "1")
            ]),
            "consumesCounters[gpu-0]: stands there twice",
        ),
        (
            1,
            DRAWN,
            json!([
                draw("a", "x", "1"),
                draw("b", "x", "1"),
                draw("c", "x", "1")
            ]),
            "consumesCounters: 3 counter sets; at most 2 can be",
        ),
        (
            1,
            DRAWN,
            json!([{"counterSet": "gpu-0", "counters": counters(33)}]),
            "consumesCounters[gpu-0]: 33 counters; at most 32 can be",
        ),
        (
            0,
            value_of_set.as_str(),
            json!("9223372036854775807"),
            "at most 1125899906842624 can be",
        ),
        (
            0,
            value_of_set.as_str(),
            json!("-7"),
            "sharedCounters[gpu-0].counters[compute-slices]: \"-7\" is negative",
        ),
        (
            0,
            SETS,
            json!([sets(1)[0], sets(1)[0]]),
            "sharedCounters[gpu-0]: stands there twice",
        ),
        (
            0,
            SETS,
            sets(9),
            "sharedCounters: 9 counter sets; at most 8 can be",
        ),
        (
            0,
            SETS,
            json!([{"name": "gpu-0", "counters": counters(33)}]),
            "33 counters; at most 32 can be",
        ),
        (
            1,
            SETS,
            sets(1),
            "sharedCounters[gpu-0]: two slices of the pool have it",
        ),
        (
            1,
            "/spec/devices",
            drawing(65),
            "spec.devices: 65 devices; at most 64 can be",
        ),
        (
            1,
            "/spec/devices",
            plain(129),
            "spec.devices: 129 devices; at most 128 can be",
        ),
        (
            1,
            "/spec/devices",
            plain(10_000),
            "spec.devices: 10000 devices; at most 128 can be",
        ),
        (
            1,
            "/spec/devices/1/name",
            json!("gpu-0"),
            "device gpu.muster.dev/c/gpu-0: stands there twice",
        ),
    ] {
        let mut index = index_of(1, |slices| {
            slices[place] = with(slices[place].clone(), pointer, value.clone());
        });
        let found = index.fault_of_pools("c").unwrap_or_default().to_owned();
        assert!(
            found.starts_with("pool gpu.muster.dev/c: "),
            "{fault}: {found}"
        );
        assert!(found.contains(fault), "{fault}: {found}");
        assert_eq!(
            told(&index, "c").block,
            Some(NodeBlock::SlicesMissing),
            "{fault}"
        );
        assert!(told(&index, "c").devices.is_empty(), "{fault}");
        assert_eq!(
            told(&index, "a").block,
            None,
            "it costs no other node: {fault}"
        );
        // What is mended counts at once.
        let mended = with(
            partitioned("c", 1)[place].clone(),
            "/metadata/uid",
            json!("mended"),
        );
        index.observe(is(mended));
        settle(&mut index);
        assert_eq!(
            (told(&index, "c").block, index.fault_of_pools("c")),
            (None, None),
            "{fault}"
        );
        assert_eq!(told(&index, "c").devices.len(), 10, "{fault}");
    }
    for (place, pointer, value, devices) in [
        (1, DRAWN, one("1125899906842624"), 10),
        (0, SETS, sets(8), 10),
        (1, "/spec/devices", drawing(64), 64),
        (1, "/spec/devices", plain(128), 128),
    ] {
        let index = index_of(1, |slices| {
            slices[place] = with(slices[place].clone(), pointer, value);
        });
        let node = told(&index, "c");
        assert_eq!(
            (node.block, node.devices.len()),
            (None, devices),
            "{pointer}"
        );
    }
}

#[test]
fn the_pools_of_a_node_have_at_most_4096_devices() {
    // It has two GPUs besides.
    for (cards, is_used) in [(4_094_usize, true), (4_095, false)] {
        let count = cards.div_ceil(128);
        let slices = (0..count).map(|number| {
            let devices = (number * 128..cards.min((number + 1) * 128))
                .map(|device| json!({"name": format!("d-{device}")}));
            json!({
                "kind": "ResourceSlice",
                "metadata": {"name": format!("s-{number}"), "uid": format!("s-{number}")},
                "spec": {"driver": "nic.example.com", "nodeName": "a", "devices": devices.collect::<Vec<_>>(),
                    "pool": {"name": "a", "generation": 1, "resourceSliceCount": count}},
            })
        });
        let index = index_with(slices);
        assert_eq!(told(&index, "a").block.is_none(), is_used, "{cards}");
        assert_eq!(index.fault_of_pools("a").is_none(), is_used, "{cards}");
    }
}

#[test]
fn the_pools_of_a_node_have_at_most_2048_counters() {
    let set = |name: String, counters: usize| {
        let counters = (0..counters).map(|number| (format!("c-{number}"), json!({"value": "1"})));
        json!({"name": name, "counters": Value::Object(counters.collect())})
    };
    for (more, fault) in [
        (None, None),
        (
            Some(1),
            Some(
                "pool b.example.com/a: 1 counters beside 2048 of other pools; at most 2048 of a node are planned",
            ),
        ),
    ] {
        let full = (0..8).map(|number| {
            let sets = (0..8).map(|at| set(format!("s-{number}-{at}"), 32));
            ("a.example.com", 8, json!(sets.collect::<Vec<_>>()))
        });
        let more =
            more.map(|counters| ("b.example.com", 1, json!([set("s".to_owned(), counters)])));
        let slices = full
            .chain(more)
            .enumerate()
            .map(|(number, (driver, count, sets))| {
                json!({
                    "kind": "ResourceSlice",
                    "metadata": {"name": format!("s-{number}"), "uid": format!("s-{number}")},
                    "spec": {"driver": driver, "nodeName": "a", "sharedCounters": sets,
                        "pool": {"name": "a", "generation": 1, "resourceSliceCount": count}},
                })
            });
        let index = index_with(slices);
        assert_eq!(index.fault_of_pools("a"), fault);
        assert_eq!(told(&index, "a").block.is_none(), fault.is_none());
    }
}
