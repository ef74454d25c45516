//! The seven ways in which NVIDIA's DRA driver loses faults, each as a test that this one does not: the program itself, on mock NVML.
//!
//! | what is lost there | here |
//! | --- | --- |
//! | one taint, and the last event wins: XID 43 after XID 48 lowers it | [`a_milder_event_after_a_fault_does_not_lower_its_taint`] |
//! | a channel is full, and the event is dropped | `storm` |
//! | a publication fails, and is not tried again | [`a_taint_that_could_not_be_published_is_published_once_it_can_and_the_controller_is_told`] |
//! | a GPU that is lost, or whose UUID cannot be read, taints all GPUs | [`a_gpu_that_is_lost_and_one_whose_uuid_cannot_be_read_taint_no_other_gpu_and_silence_none`] |
//! | an event of a whole GPU finds no slice in MIG mode, and is ignored | [`with_slices_made_for_claims_an_event_of_the_whole_gpu_taints_every_slice_of_it_and_no_other`] |
//! | a restart clears taints | [`a_fault_taints_its_gpu_over_a_crash_and_until_a_reboot_after_which_it_is_found_in_order`] |
//! | health and dynamic MIG exclude each other | [`with_slices_made_for_claims_an_event_of_the_whole_gpu_taints_every_slice_of_it_and_no_other`] |
//!
//! What must hold of any history of events is a property of the state that they are added to (`device/src/faults/state/tests.rs`).

use std::{cell::Cell, fs};

use nvidia_ml_mock::{Event, Failure, State};
use serde_json::json;

use crate::{
    faults::{BOTH, FAULT, NODE_FAULT},
    node::Node,
};

const GONE: &str = "gpu.muster.dev/gone";
/// Kind of an event: an XID.
const XID: u64 = 8;
/// NVML's answer for a GPU of which it knows nothing more.
const UNKNOWN_ERROR: u32 = 999;

/// What happens to the hardware.
type Hardware<'a> = &'a dyn Fn(&mut State);

/// NVML reports an XID of a GPU, with the hardware otherwise as `also` says, until something holds. Whether the driver listens already
/// nobody can tell from outside: each time there is one more.
async fn reported(
    node: &Node,
    (gpu, xid): (&str, u64),
    also: impl Fn(&mut State),
    what: &str,
    holds: impl Fn() -> bool,
) {
    let count = Cell::new(0);
    node.eventually(what, || {
        count.set(count.get() + 1);
        node.change(|state| {
            also(state);
            for _ in 0..count.get() {
                state.report(Event {
                    gpu: gpu.to_owned(),
                    kind: XID,
                    data: xid,
                    ..Event::default()
                });
            }
        });
        holds()
    })
    .await;
}

fn as_it_is(_: &mut State) {}

/// What the driver has on its disk.
fn remembered(node: &Node) -> String {
    fs::read_to_string(node.path("state/faults.json")).unwrap_or_default()
}

/// The values of a device's taints of that key.
fn values(node: &Node, device: &str, key: &str) -> Vec<String> {
    let device = node.api.device(device).unwrap_or_default();
    let taints = device["taints"].as_array().into_iter().flatten();
    let own = taints.filter(|taint| taint["key"] == key);
    own.filter_map(|taint| Some(taint["value"].as_str()?.to_owned()))
        .collect()
}

fn has_no_taint(node: &Node, device: &str) -> bool {
    let device = node.api.device(device);
    device.is_some_and(|device| device["taints"].is_null())
}

#[tokio::test]
async fn a_milder_event_after_a_fault_does_not_lower_its_taint() {
    let node = Node::started().await;
    let sick = node.gpu("gpu-1").await;
    reported(&node, (&sick, 48), as_it_is, "it is tainted", || {
        values(&node, "gpu-1", FAULT) == ["Reset"]
    })
    .await;
    // Nothing to be done, an application's own, memory that was contained.
    for milder in [43, 13, 94] {
        let cause = format!("\"XID {milder}\"");
        reported(&node, (&sick, milder), as_it_is, "it is heard", || {
            remembered(&node).contains(&cause)
        })
        .await;
        assert_eq!(values(&node, "gpu-1", FAULT), ["Reset"], "XID {milder}");
    }
    reported(&node, (&sick, 79), as_it_is, "a worse one counts", || {
        values(&node, "gpu-1", FAULT) == ["Reboot"]
    })
    .await;
    node.eventually("the node is closed", || {
        node.api.tainted(NODE_FAULT) == BOTH
    })
    .await;
    assert_eq!(node.api.tainted(FAULT), ["gpu-1"]);
}

#[tokio::test]
async fn a_taint_that_could_not_be_published_is_published_once_it_can_and_the_controller_is_told() {
    let mut node = Node::new().await;
    node.api.permit(1, &serde_json::json!([]));
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    node.api.refuse_slices(true);
    node.change(|state| state.card(&sick).recovery_action = 2);
    let told = |class: &str| [("gpu-1".to_owned(), class.to_owned())];
    node.eventually("the controller is told", || {
        node.api.told_faults() == told("Reboot")
    })
    .await;
    assert!(node.api.tainted(FAULT).is_empty(), "slices are refused");
    let event = ("Node", "node-0", "GpuFault");
    let event = (event.0.to_owned(), event.1.to_owned(), event.2.to_owned());
    node.eventually("an Event tells people", || {
        node.api.events() == [event.clone()]
    })
    .await;
    node.api.refuse_slices(false);
    node.eventually("it is tainted", || node.api.tainted(FAULT) == ["gpu-1"])
        .await;
    assert_eq!(node.api.tainted(NODE_FAULT), BOTH);
    // Nobody is told twice.
    node.crash();
    node.start().await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    assert_eq!(node.api.events(), [event]);
    assert_eq!(node.api.told_faults(), told("Reboot"));
}

#[tokio::test]
async fn a_gpu_that_is_lost_and_one_whose_uuid_cannot_be_read_taint_no_other_gpu_and_silence_none()
{
    let mut node = Node::new().await;
    node.api.permit(1, &json!([]));
    node.start().await;
    let (sound, sick) = (node.gpu("gpu-0").await, node.gpu("gpu-1").await);
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    let lose = |state: &mut State| state.lost.push(sick.clone());
    node.change(lose);
    node.eventually("it is tainted", || node.api.tainted(GONE) == ["gpu-1"])
        .await;
    // Nobody said an XID: whoever repairs machines hears of it all the same.
    let lost = [("gpu-1".to_owned(), "Reboot".to_owned())];
    node.eventually("the controller is told", || node.api.told_faults() == lost)
        .await;
    assert!(
        has_no_taint(&node, "gpu-0"),
        "{:?}",
        node.api.device("gpu-0")
    );
    let cannot_be_named = |state: &mut State| {
        state.failures = vec![Failure {
            function: "nvmlDeviceGetUUID".to_owned(),
            gpu: sick.clone(),
            code: UNKNOWN_ERROR,
            ..Failure::default()
        }];
    };
    // The sound one is heard beside either.
    let others: [(&str, u64, Hardware<'_>); 2] =
        [("Reset", 48, &lose), ("Reboot", 79, &cannot_be_named)];
    for (class, xid, hardware) in others {
        reported(&node, (&sound, xid), hardware, "the other is heard", || {
            values(&node, "gpu-0", FAULT) == [class]
        })
        .await;
        assert_eq!(node.api.tainted(FAULT), ["gpu-0"], "and no other: {class}");
        assert!(!node.api.tainted(GONE).contains(&"gpu-0".to_owned()));
    }
    assert_eq!(node.api.published(), BOTH, "none is withdrawn");
}

#[tokio::test]
async fn with_slices_made_for_claims_an_event_of_the_whole_gpu_taints_every_slice_of_it_and_no_other()
 {
    let mut node = Node::new().await;
    let proc = node.has_capabilities();
    let board = |state: &mut State| {
        "h100-nvswitch-8".clone_into(&mut state.board);
        state.proc_directory = Some(proc.clone());
    };
    node.change(board);
    let mig = json!({"mode": "Dynamic", "toggle": "WhenIdle"});
    node.flags.push(format!("--mig={mig}"));
    node.start().await;
    let sick = node.gpu("gpu-1").await;
    let parts = || {
        let is_of_it = |name: &String| name == "gpu-1" || name.starts_with("gpu-1-mig-");
        let mut parts = node.api.published();
        parts.retain(is_of_it);
        parts
    };
    node.eventually("it is offered whole and in slices", || parts().len() > 2)
        .await;
    // NVML names no instance.
    reported(&node, (&sick, 95), board, "all of it is tainted", || {
        !node.api.tainted(FAULT).is_empty() && node.api.tainted(FAULT) == parts()
    })
    .await;
    for part in parts() {
        assert_eq!(values(&node, &part, FAULT), ["Reset"], "{part}");
    }
}

#[tokio::test]
async fn a_fault_taints_its_gpu_over_a_crash_and_until_a_reboot_after_which_it_is_found_in_order() {
    let mut node = Node::started().await;
    let sick = node.gpu("gpu-1").await;
    node.eventually("both are published", || node.api.published() == BOTH)
        .await;
    reported(&node, (&sick, 48), as_it_is, "it is tainted", || {
        node.api.tainted(FAULT) == ["gpu-1"]
    })
    .await;
    assert!(node.api.tainted(NODE_FAULT).is_empty());
    node.crash();
    node.change(|_| {});
    node.api.delete_slices();
    node.start().await;
    node.eventually("they are back", || node.api.published() == BOTH)
        .await;
    assert_eq!(node.api.tainted(FAULT), ["gpu-1"], "from the first on");

    node.crash();
    fs::write(node.path("boot_id"), "boot-2\n").unwrap();
    node.change(|state| state.card(&sick).recovery_action = 1);
    node.start().await;
    let is_seen = || {
        let remembered = fs::read_to_string(node.path("state/faults.json"));
        remembered.is_ok_and(|text| text.contains("recovery action 1"))
    };
    node.eventually("it is looked at", is_seen).await;
    assert_eq!(node.api.tainted(FAULT), ["gpu-1"], "it is not in order");
    node.change(|_| {});
    node.crash();
    fs::write(node.path("boot_id"), "boot-3\n").unwrap();
    node.start().await;
    node.eventually("the taint is gone", || node.api.tainted(FAULT).is_empty())
        .await;
    assert_eq!(node.api.published(), BOTH);
}
