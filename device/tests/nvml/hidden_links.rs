//! NVLink in virtual machines, where links do not say what is at their other end.

use muster_device::{Backend, NvlinkGroups};

use crate::machine::{Machine, gpus, uuids};

fn nvlink(backend: &Backend) -> Vec<NvlinkGroups> {
    gpus(backend).into_iter().map(|gpu| gpu.nvlink).collect()
}

#[test]
fn gpus_that_reach_each_other_are_grouped_though_their_links_do_not_say_so() {
    let machine = Machine::new();
    let told = nvlink(&machine.backend());
    machine.change(|state| state.hides_link_peers = true);
    assert_eq!(nvlink(&machine.backend()), told);

    let machine = Machine::of("t4-2");
    machine.change(|state| state.hides_link_peers = true);
    let alone: Vec<_> = (0..2).map(NvlinkGroups::alone).collect();
    assert_eq!(nvlink(&machine.backend()), alone);
}

#[test]
fn gpus_that_are_bridged_are_a_group_each_two_whether_their_links_say_so_or_not() {
    let machine = Machine::of("a100-40gb-pcie-bridged-4");
    for hides_link_peers in [false, true] {
        machine.change(|state| state.hides_link_peers = hides_link_peers);
        let nvlink = nvlink(&machine.backend()).into_iter();
        let (pairs, groups): (Vec<u32>, Vec<u32>) = nvlink.map(|it| (it.pair, it.group)).unzip();
        assert_eq!(pairs, [0, 1, 0, 1], "hidden: {hides_link_peers}");
        assert_eq!(groups, [0, 1, 0, 1], "hidden: {hides_link_peers}");
    }
}

#[test]
fn a_gpu_that_hangs_is_asked_nothing_in_the_lane_of_another() {
    let machine = Machine::new();
    machine.change(|state| state.hides_link_peers = true);
    let backend = machine.backend();
    let before = backend.gpus().unwrap();
    let (mut all, _) = uuids(&before);
    let sick = all.remove(5);
    machine.hang(&[("", &sick), ("nvmlDeviceGetP2PStatus", &all[0])]);
    let listed = backend.gpus().unwrap();
    assert_eq!(uuids(&listed), (all, vec![sick]));
    let gpus = listed.gpus.into_iter().map(|listed| listed.gpu);
    let known = before.gpus.into_iter().map(|listed| listed.gpu);
    assert!(gpus.eq(known), "no neighbour is regrouped");
    machine.hang(&[]);
}

#[test]
fn a_gpu_that_is_cut_is_asked_once_it_is_whole_and_stays_where_it_is() {
    let machine = Machine::new();
    machine.change(|state| state.hides_link_peers = true);
    let first = gpus(&machine.backend()).swap_remove(0).uuid;
    machine.in_mig_mode(&first);
    let backend = machine.backend();
    let groups = || -> Vec<u32> {
        let all = nvlink(&backend).into_iter();
        all.map(|nvlink| nvlink.group).collect()
    };
    assert_eq!(groups(), [0, 1, 1, 1, 1, 1, 1, 1]);
    backend.set_mig_mode(&first, false).unwrap();
    assert_eq!(groups(), [0; 8]);
    backend.set_mig_mode(&first, true).unwrap();
    assert_eq!(groups(), [0; 8]);
}
