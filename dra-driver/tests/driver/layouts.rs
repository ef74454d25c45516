//! A layout that an administrator declares for a node, as the driver lays it and gives its slices to claims.

use std::{collections::BTreeMap, fs, time::Duration};

use nvidia_ml_mock::{Board, GpuInstance, Process, State, mig_uuid};
use serde_json::{Value, json};

use crate::node::Node;

/// Half a minute behind the taint of the GPU, and a step a second.
const TIME_TO_LAY_IT: Duration = Duration::from_secs(120);
/// What the GPU has meanwhile, so that nobody is given it.
const TAINT: &str = "gpu.muster.dev/reconfiguring";
/// What a device has that is not offered any more, until nobody can be given it.
const WITHDRAWN: &str = "gpu.muster.dev/withdrawn";
/// The GPU that is cut: the second one.
const CUT: usize = 1;

/// The slices that lie on a GPU.
fn lying(node: &Node, gpu: &str) -> Vec<GpuInstance> {
    let state = fs::read(node.path("nvml.json")).unwrap();
    let state: State = serde_json::from_slice(&state).unwrap();
    let card = state.cards.get(gpu);
    card.map(|card| card.gpu_instances.clone())
        .unwrap_or_default()
}

/// How many slices of each profile are published of the GPU that is cut, by their names.
fn profiles(node: &Node) -> BTreeMap<String, Vec<String>> {
    let mut profiles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let prefix = format!("gpu-{CUT}-mig-");
    for name in node.api.published() {
        if let Some(slice) = name.strip_prefix(&prefix) {
            let (profile, _) = slice.rsplit_once('-').unwrap();
            profiles.entry(profile.to_owned()).or_default().push(name);
        }
    }
    profiles
}

#[tokio::test]
async fn a_layout_is_laid_once_its_gpu_is_idle_and_claims_are_given_its_slices_which_stay() {
    let mut node = Node::new().await;
    let board = Board::named("h100-nvswitch-8").unwrap();
    let gpu = State {
        seed: "node-0".to_owned(),
        ..State::default()
    }
    .uuid(&board, CUT);
    let proc = node.has_capabilities();
    node.change(|state| {
        "h100-nvswitch-8".clone_into(&mut state.board);
        state.proc_directory = Some(proc.clone());
        state.processes = vec![Process {
            gpu: gpu.clone(),
            pid: 4242,
            used_bytes: 0,
        }];
    });
    let cut = json!([{"gpus": [format!("gpu-{CUT}")], "slices": {"3g.40gb": 1, "1g.20gb": 2}}]);
    let mig = json!({"mode": "Static", "toggle": "WhenIdle", "layout": "mixed", "layouts": {"mixed": cut}});
    node.flags.push(format!("--mig={mig}"));
    node.start().await;
    let whole: Vec<String> = (0..8).map(|index| format!("gpu-{index}")).collect();
    node.eventually("they are offered whole", || node.api.published() == whole)
        .await;
    node.eventually("the layout waits for who uses the GPU", || {
        node.log().contains("it waits until the GPU is idle")
    })
    .await;
    assert_eq!(node.api.tainted(TAINT), Vec::<String>::new());
    assert!(lying(&node, &gpu).is_empty());

    // The process ends.
    node.change(|state| {
        "h100-nvswitch-8".clone_into(&mut state.board);
        state.proc_directory = Some(proc);
    });
    node.eventually("the GPU is offered to nobody", || {
        node.api.tainted(TAINT) == [format!("gpu-{CUT}")]
    })
    .await;
    node.eventually_within(TIME_TO_LAY_IT, "its slices are offered instead", || {
        let laid = profiles(&node);
        let counts = ["3g40gb", "1g20gb"].map(|profile| laid.get(profile).map_or(0, Vec::len));
        let hidden = node.api.tainted(TAINT);
        let is_hidden = laid.values().flatten().any(|slice| hidden.contains(slice));
        counts == [1, 2] && laid.len() == 2 && !is_hidden
    })
    .await;
    // As a whole it is there for half a minute more, and for nobody.
    let of_old = format!("gpu-{CUT}");
    let published = node.api.published();
    let others = published.iter().filter(|name| **name != of_old);
    assert_eq!(others.count(), 7 + 3, "{published:?}");
    let is_offered = published.contains(&of_old);
    assert!(!is_offered || node.api.tainted(WITHDRAWN).contains(&of_old));

    // Two that ask for 20 GB each, and one that asks for 40.
    let laid = profiles(&node);
    let slices: Vec<&String> = ["1g20gb", "3g40gb"]
        .into_iter()
        .flat_map(|profile| &laid[profile])
        .collect();
    let there = lying(&node, &gpu);
    let mut seen = Vec::new();
    for (number, slice) in slices.iter().enumerate() {
        let uid = format!("s-{number}");
        node.api.allocate(&uid, &[slice.as_str()]);
        let prepared = node.prepare(&uid).await;
        assert_eq!(prepared.error, "", "{slice}: {}", node.log());
        let start: u32 = slice.rsplit_once('-').unwrap().1.parse().unwrap();
        let mut instances = there.iter();
        let instance = instances.find(|it| it.placement.start == start).unwrap();
        let uuid = mig_uuid(&gpu, instance.id, 0);
        let spec = node.path(&format!("cdi/gpu.muster.dev-claim_{uid}.json"));
        let spec: Value = serde_json::from_slice(&fs::read(spec).unwrap()).unwrap();
        let env = spec.pointer("/containerEdits/env").unwrap();
        let expected = json!(format!("MUSTER_VISIBLE_GPUS={uuid}"));
        assert!(env.as_array().unwrap().contains(&expected), "{env}: {uuid}");
        seen.push(uuid);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
    for number in 0..slices.len() {
        assert_eq!(node.unprepare(&format!("s-{number}")).await, "");
    }
    // They are nobody's that a claim brought, so none goes with it.
    assert_eq!(lying(&node, &gpu), there);
    assert_eq!(profiles(&node), laid);
}
