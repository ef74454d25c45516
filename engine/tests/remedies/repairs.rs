//! Nodes and devices that would have to be all right.

use muster_engine::{NodeBlock, RemedyEvent, Resource, Update, Why};

use crate::{
    common::*,
    cut_gpus::*,
    world::{World, device_name, fail},
};

fn two_nodes(team: muster_engine::Team) -> World {
    World::new(
        vec![node("n0", "s/l0", 4), node("n1", "s/l1", 4)],
        vec![team],
    )
}

#[test]
fn the_fewest_devices_of_one_node_are_told_by_name() {
    let mut world = two_nodes(team("a", None, limit(8)));
    world.run([gang("runs", "a", 1, 4)]);
    for at in [0, 1, 2] {
        world.change_node("n1", |node| fail(node, at));
    }
    world.run([gang("waits", "a", 1, 3)]);
    assert!(matches!(why(&world.state, "waits"), Why::Placement { .. }));
    let remedies = world.remedies("waits");
    assert_eq!(
        remedies.to_string(),
        "as things are, it is admitted once a/runs of Team a (4 GPUs of h100) ends, or once 2 devices of node n1 are healthy \
         (gpu-0, gpu-1)"
    );
    let RemedyEvent::Repaired(nodes) = &remedies.each[1].event else {
        panic!("{remedies}");
    };
    assert_eq!(nodes[0].devices, [device_name(0), device_name(1)]);
}

#[test]
fn a_gpu_that_may_be_cut_is_one_thing_to_repair_with_all_its_slices() {
    let whole = |gpu: usize| device(part(gpu, ANY_GPU, 0)).name;
    for (gang, repaired) in [
        (gang("waits", "a", 1, 1), vec![whole(0)]),
        (memory_gang("waits", "a", 1, 1), vec![whole(0)]),
        (gang("waits", "a", 2, 1), vec![whole(0), whole(1)]),
    ] {
        let nodes = vec![cut_node("n0", "s/l0", 2)];
        let mut world = World::new(nodes, vec![team("a", None, limit(8))]);
        for at in 0..2 * DEVICES_PER_GPU {
            world.change_node("n0", |node| fail(node, at));
        }
        world.run([gang]);
        let remedies = world.remedies("waits");
        let [remedy] = remedies.each.as_slice() else {
            panic!("{remedies}");
        };
        let RemedyEvent::Repaired(nodes) = &remedy.event else {
            panic!("{remedies}");
        };
        assert_eq!(nodes[0].devices, repaired);
    }
}

#[test]
fn a_node_that_only_has_to_be_schedulable_is_told_before_one_with_more_faults() {
    let mut world = two_nodes(team("a", None, limit(8)));
    for at in [0, 1, 2] {
        world.change_node("n0", |node| fail(node, at));
    }
    for (block, says) in [
        (
            NodeBlock::Cordoned,
            "node n1, which is cordoned, is schedulable",
        ),
        (
            NodeBlock::Drained,
            "node n1, which is drained by hand, is schedulable",
        ),
        (
            NodeBlock::NotReady,
            "node n1, which is not Ready, is schedulable",
        ),
        (NodeBlock::Lost, "node n1, which is lost, is schedulable"),
        (
            NodeBlock::SlicesMissing,
            "node n1, whose ResourceSlices are missing, is schedulable",
        ),
        (
            NodeBlock::DriverSilent,
            "node n1, whose driver has not answered yet, is schedulable",
        ),
    ] {
        world.change_node("n1", |node| {
            node.block = Some(block);
            // It is not asked for.
            fail(node, 3);
        });
        world.state.apply(Update::Waiting(gang("waits", "a", 1, 3)));
        world.decide();
        let told = world.remedies("waits").to_string();
        assert_eq!(told, format!("as things are, it is admitted once {says}"));
    }
    world.run([gang("larger", "a", 2, 4)]);
    assert_eq!(
        world.remedies("larger").to_string(),
        "as things are, it is admitted once node n1, whose driver has not answered yet, is schedulable and 1 of its devices is \
         healthy (gpu-3) and 3 devices of node n0 are healthy (gpu-0, gpu-1, gpu-2)"
    );
}

#[test]
fn nothing_is_told_of_repairs_where_none_helps() {
    let mut world = two_nodes(team("a", None, limit(4)));
    world.run([gang("runs", "a", 1, 2)]);
    world.change_node("n1", |node| node.block = Some(NodeBlock::Cordoned));
    // It lacks quota, which does not follow what is healthy.
    world.run([gang("waits", "a", 1, 4)]);
    let remedies = world.remedies("waits");
    assert!(!remedies.to_string().contains("node"), "{remedies}");
}

#[test]
fn nominal_quota_that_shrank_with_the_nodes_comes_back_with_them() {
    let mut limit = limit(0);
    limit.automatic = true;
    let mut world = two_nodes(team("a", None, limit));
    world.change_node("n1", |node| node.block = Some(NodeBlock::Cordoned));
    world.change_node("n0", |node| fail(node, 0));
    world.run([gang("waits", "a", 2, 2)]);
    let why = why(&world.state, "waits");
    assert!(matches!(why, Why::ExceedsMaxQuota { .. }), "{why}");
    let told = world.remedies("waits").to_string();
    // Quota for four GPUs is there with either, a place with both pods on one node or on two, too.
    assert_eq!(
        told,
        "as things are, it is admitted once 1 device of node n0 is healthy (gpu-0)"
    );
}

#[test]
fn a_lost_node_whose_pods_are_charged_again_once_it_is_back_is_no_remedy() {
    let mut world = two_nodes(team("a", None, limit(8)));
    world.change_node("n1", |node| node.block = Some(NodeBlock::Lost));
    let mut held = hold("old", "a", "n1", &[0, 1]);
    held.charged_to_node = true;
    world.state.apply(Update::Hold(held));
    world.run([gang("runs", "a", 1, 4), gang("waits", "a", 1, 2)]);
    let told = world.remedies("waits").to_string();
    assert!(!told.contains("n1"), "{told}");
    // Without such pods it is one.
    world.state.apply(Update::HoldGone(pod_uid("old")));
    world.decide();
    let told = world.remedies("waits").to_string();
    assert!(told.contains("node n1, which is lost"), "{told}");
}

#[test]
fn how_many_nodes_are_asked_about_is_bounded() {
    let nodes = (0..2_000).map(|at| node(&format!("n{at:04}"), "s/l0", 8));
    let mut world = World::new(nodes.collect(), vec![team("a", None, limit(16_000))]);
    for at in 0..2_000 {
        world.change_node(&format!("n{at:04}"), |node| {
            node.block = Some(NodeBlock::NotReady);
        });
    }
    world.run([gang("all", "a", 64, 8)]);
    let explained = world.state.explain(&"all".into()).unwrap();
    let before = world.state.visited();
    let remedies = world.state.remedies(&explained);
    let looks = world.state.visited() - before;
    assert!(remedies.gave_up, "{remedies}");
    assert!(looks < 150_000, "{looks}");
}

#[test]
fn memory_follows_the_gpus_that_are_repaired() {
    let automatic = muster_engine::QuotaLimit {
        automatic: true,
        ..limit(0)
    };
    let mut a = team("a", None, automatic);
    a.quota[0].1.insert(Resource::Vram, automatic);
    let mut world = two_nodes(a);
    for at in 0..4 {
        world.change_node("n1", |node| fail(node, at));
    }
    world.run([gang("runs", "a", 1, 3), gang("waits", "a", 1, 2)]);
    let told = world.remedies("waits").to_string();
    assert!(
        told.ends_with("once 2 devices of node n1 are healthy (gpu-0, gpu-1)"),
        "{told}"
    );
}

/// Two free nodes whose GPUs one Team has as its own, so many Teams to which nothing is left, and cordoned nodes of two GPUs each. A gang asks for
/// four.
fn with_nothing_left_for(teams: usize, cordoned: usize) -> World {
    let automatic = muster_engine::QuotaLimit {
        automatic: true,
        ..limit(0)
    };
    let all = (0..teams).map(|at| team(&format!("t{at:04}"), Some("all"), automatic));
    let owner = team("owner", None, limit(8));
    let free = ["free-0", "free-1"].map(|name| node(name, "s/l0", 4));
    let closed = (0..cordoned).map(|at| muster_engine::Node {
        block: Some(NodeBlock::Cordoned),
        ..node(&format!("n{at:03}"), "s/l0", 2)
    });
    let mut world = World::new(
        free.into_iter().chain(closed).collect(),
        all.chain([owner]).collect(),
    );
    world.run([gang("waits", "t0000", 1, 4)]);
    world
}

#[test]
fn faults_that_are_alike_have_what_follows_them_divided_once() {
    let remedies = with_nothing_left_for(100, 100).remedies("waits");
    let [remedy] = &remedies.each[..] else {
        panic!("{remedies}");
    };
    let RemedyEvent::Repaired(nodes) = &remedy.event else {
        panic!("{remedies}");
    };
    assert_eq!(nodes.len(), 2, "{remedies}");
}

#[test]
fn what_is_divided_among_too_many_teams_is_not_worked_out() {
    let world = with_nothing_left_for(8_000, 2);
    let remedies = world.remedies("waits");
    assert_eq!((remedies.each.len(), remedies.gave_up), (0, true));
}
