//! A machine that is started anew, and numbers its GPUs otherwise.

use std::fs;

use nvidia_ml_mock::{Board, State};
use serde_json::{Value, json};

use crate::node::Node;

const BOARD: &str = "a30-4";
const GPUS: usize = 4;

/// Has the claim of each GPU prepared, and fails unless its record and its CDI file name that GPU, with its minor number.
async fn prepare_all(node: &Node, uuids: &[String], minors: [u32; GPUS]) {
    for (position, (uuid, minor)) in uuids.iter().zip(minors).enumerate() {
        let uid = format!("c-{position}");
        node.api.allocate(&uid, &[&format!("gpu-{position}")]);
        let prepared = node.prepare(&uid).await;
        assert_eq!(prepared.error, "", "{}", node.log());
        let read = |path: String| -> Value {
            serde_json::from_slice(&fs::read(node.path(&path)).unwrap()).unwrap()
        };
        let record = read(format!("state/claims/{uid}.json"));
        let recorded = |path: &str| record.pointer(path).cloned().unwrap();
        assert_eq!(recorded("/devices/0/unit/gpu"), json!(uuid));
        assert_eq!(recorded("/devices/0/minor"), json!(minor));
        let spec = read(format!("cdi/gpu.muster.dev-claim_{uid}.json")).to_string();
        let is_there = |text: String| spec.contains(&text);
        assert!(
            is_there(format!("MUSTER_VISIBLE_GPUS={uuid}\"")),
            "{uuid}: {spec}"
        );
        for other in 0..4 {
            assert_eq!(
                is_there(format!("\"/dev/nvidia{other}\"")),
                other == minor,
                "{uuid} has minor number {minor}: {spec}"
            );
        }
    }
}

#[tokio::test]
async fn after_a_reboot_that_numbers_the_gpus_anew_each_device_is_the_gpu_that_it_was() {
    let board = Board::named(BOARD).unwrap();
    let mut node = Node::new().await;
    node.change(|state| BOARD.clone_into(&mut state.board));
    let state = State {
        seed: "node-0".to_owned(),
        ..State::default()
    };
    let uuids: Vec<String> = (0..GPUS)
        .map(|position| state.uuid(&board, position))
        .collect();
    let names: Vec<String> = (0..GPUS).map(|index| format!("gpu-{index}")).collect();
    let attributes = |node: &Node| -> Vec<Value> {
        let devices = names.iter().map(|name| node.api.device(name));
        let attributes = devices.map(|device| device.unwrap()["attributes"].clone());
        attributes.collect()
    };
    node.start().await;
    node.eventually("all are published", || node.api.published() == names)
        .await;
    let before = attributes(&node);
    for (told, uuid) in before.iter().zip(&uuids) {
        assert_eq!(told["uuid"], json!({"string": uuid}));
    }
    prepare_all(&node, &uuids, [0, 1, 2, 3]).await;

    node.crash();
    node.api.delete_slices();
    fs::write(node.path("boot_id"), "boot-2\n").unwrap();
    let minors = [3, 0, 1, 2];
    node.change(|state| {
        BOARD.clone_into(&mut state.board);
        let order = [2, 3, 1, 0].map(|position: usize| board.gpus[position].pci_bus_id.clone());
        state.index_order = order.to_vec();
        for (uuid, minor) in uuids.iter().zip(minors) {
            state.card(uuid).minor = Some(minor);
        }
    });
    node.start().await;
    node.eventually("all are published again", || node.api.published() == names)
        .await;
    assert_eq!(attributes(&node), before);
    node.eventually("what was prepared is void", || {
        node.files("state/claims").is_empty() && node.files("cdi").is_empty()
    })
    .await;
    // Their pods start again, with the claims that they had.
    prepare_all(&node, &uuids, minors).await;
}
