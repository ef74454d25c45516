//! Slices of GPUs: the devices that stand for leave to use them.

use muster_device::cdi::Spec;

use crate::node::{DEVICES, Node};

/// As the kernel writes it.
fn access(minor: u32) -> String {
    format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
}

/// A node with two slices.
fn node() -> Node {
    let node = Node::with_libraries("usr/lib64");
    cut(&node);
    node
}

/// Gives the GPU with minor number 3 two slices: one with all of its GPU instance, one with a part.
pub(crate) fn cut(node: &Node) {
    for (instance, minor) in [("gi1", 12), ("gi1/ci0", 13), ("gi9", 84), ("gi9/ci2", 87)] {
        node.capability(instance, &access(minor));
    }
}

#[test]
fn a_slice_comes_with_its_gpu_and_the_capabilities_of_both_its_instances() {
    let spec = node().claim_of_slices(&[(1, 0), (9, 2)]).unwrap();
    let nodes: Vec<Vec<_>> = spec
        .devices
        .iter()
        .map(|device| {
            let nodes = device.container_edits.device_nodes.iter();
            nodes
                .map(|node| (&*node.path, node.major, node.minor))
                .collect()
        })
        .collect();
    let gpu = ("/dev/nvidia3", 195, 3);
    assert_eq!(
        nodes,
        [
            [
                gpu,
                ("/dev/nvidia-caps/nvidia-cap12", 235, 12),
                ("/dev/nvidia-caps/nvidia-cap13", 235, 13),
            ],
            [
                gpu,
                ("/dev/nvidia-caps/nvidia-cap84", 235, 84),
                ("/dev/nvidia-caps/nvidia-cap87", 235, 87),
            ],
        ]
    );
}

/// Leave for more than the claim has would be a way to the GPU instance of somebody else.
#[test]
fn a_whole_gpu_and_what_all_containers_get_come_without_capabilities() {
    let spec = node().claim().unwrap();
    let edits = spec.devices.iter().map(|device| &device.container_edits);
    let edits = edits.chain([&spec.container_edits]);
    let paths: Vec<_> = edits
        .flat_map(|edits| edits.device_nodes.iter().map(|node| &*node.path))
        .collect();
    assert!(paths.iter().all(|path| !path.contains("caps")), "{paths:?}");
}

#[test]
fn a_slice_that_the_kernel_does_not_have_is_refused_with_the_file_that_says_so() {
    for (gpu_instance, compute_instance, file) in [
        (2, 0, "gpu3/mig/gi2/access"),
        (1, 1, "gpu3/mig/gi1/ci1/access"),
    ] {
        let slices = [(gpu_instance, compute_instance)];
        let refusal = node().claim_of_slices(&slices).unwrap_err().to_string();
        assert!(
            refusal.contains(file) && refusal.contains("no such slice"),
            "{refusal}"
        );
    }
}

#[test]
fn a_description_without_a_number_is_refused() {
    for text in [
        "",
        "DeviceFileMode: 292\n",
        "DeviceFileMinor: -1\n",
        "DeviceFileMinor: x\n",
    ] {
        let node = node();
        node.capability("gi1", text);
        let refusal = node.claim_of_slices(&[(1, 0)]).unwrap_err().to_string();
        assert!(refusal.contains("DeviceFileMinor: NUMBER"), "{refusal}");
    }
}

#[test]
fn a_driver_without_capability_devices_is_a_refusal_that_names_them() {
    let node = node();
    node.devices(&DEVICES.replace("235 nvidia-caps\n", ""));
    let refusal = node.claim_of_slices(&[(1, 0)]).unwrap_err().to_string();
    assert!(
        refusal.contains("it lists no nvidia-caps") && refusal.contains("older than 450"),
        "{refusal}"
    );
    // Nobody else is held up by it.
    node.claim().unwrap();
}

/// A slice drives no display.
#[test]
fn slices_come_with_what_computing_needs_and_a_whole_gpu_in_the_claim_with_the_rest() {
    let common = |spec: &Spec| -> Vec<String> {
        let nodes = spec.container_edits.device_nodes.iter();
        nodes.map(|node| node.path.clone()).collect()
    };
    let node = node();
    let spec = node.claim_of_slices(&[(1, 0), (9, 2)]).unwrap();
    let computing = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];
    assert_eq!(common(&spec), computing);
    let whole = node.claim().unwrap();
    assert!(common(&whole).contains(&"/dev/nvidia-modeset".to_owned()));
}

#[test]
fn the_variables_of_a_slice_have_its_own_uuid() {
    let spec = node().claim_of_slices(&[(1, 0)]).unwrap();
    let [device] = spec.devices.as_slice() else {
        panic!("{:?}", spec.devices)
    };
    assert_eq!(device.container_edits.env, ["MUSTER_GPU_3_MIG_1_0=MIG-1-0"]);
    let visible = "MUSTER_VISIBLE_GPUS=MIG-1-0".to_owned();
    assert!(spec.container_edits.env.contains(&visible));
}

/// As `/proc/driver/nvidia-caps/mig-minors` lists them: all that there may be.
const MINORS: &str =
    "config 1\nmonitor 2\ngpu3/gi1/access 12\ngpu3/gi1/ci0/access 13\ngpu4/gi1/access 212\n";

#[test]
fn where_no_capabilities_are_described_the_kernel_s_list_has_their_numbers() {
    let node = Node::with_libraries("usr/lib64");
    node.capability_list(MINORS);
    let spec = node.claim_of_slices(&[(1, 0)]).unwrap();
    let minors: Vec<i64> = spec
        .devices
        .iter()
        .flat_map(|device| device.container_edits.device_nodes.iter())
        .map(|node| node.minor)
        .collect();
    assert_eq!(minors, [3, 12, 13]);
    let refusal = node.claim_of_slices(&[(1, 1)]).unwrap_err().to_string();
    assert!(
        refusal.contains("mig-minors: it lists no gpu3/gi1/ci1/access"),
        "{refusal}"
    );
    // Where they are described, one that is not does not exist, whatever may be.
    node.capability("gi9", &access(84));
    let refusal = node.claim_of_slices(&[(1, 0)]).unwrap_err().to_string();
    assert!(refusal.contains("gpu3/mig/gi1/access"), "{refusal}");
}

#[test]
fn without_description_or_list_the_list_is_missed() {
    let node = Node::with_libraries("usr/lib64");
    let refusal = node.claim_of_slices(&[(1, 0)]).unwrap_err().to_string();
    assert!(refusal.contains("nvidia-caps/mig-minors"), "{refusal}");
}
