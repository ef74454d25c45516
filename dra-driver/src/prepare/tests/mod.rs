//! The machine on a small virtual node. What happens between any two steps is the simulator's business (`sim`);
//! here stands what each rule does, one story at a time.

mod acknowledgement;
mod bursts;
mod earlier;
mod exclusivity;
mod faulty;
mod node;
mod orphans;
mod permits;
mod preparing;
mod restart;
mod slices;
mod unprepare;

use std::{collections::BTreeSet, sync::Arc};

use muster_api::{Charge, ClaimsCharge, NodeDevices, NodeDevicesSpec, Permit, Reason};
use node::Node;

use super::*;

const SECOND: u64 = 1_000;

fn config(instance: &str) -> Config {
    Config {
        instance: instance.to_owned(),
        node: "node-0".to_owned(),
        boot_id: "boot-1".to_owned(),
        enforce_unless_told: false,
        wait_milliseconds: 35 * SECOND,
        #[cfg(feature = "injected-bugs")]
        bug: None,
    }
}

fn inventory() -> Inventory {
    (0..2)
        .map(|index| {
            let facts = DeviceFacts {
                unit: Unit::whole(format!("GPU-{index}")),
                gpus_milli: 1_000,
                memory_bytes: 80,
                minor: index,
                silent: false,
                lacks_fabric: false,
                slice: None,
            };
            (format!("gpu-{index}"), facts)
        })
        .collect()
}

fn reference(uid: &str) -> ClaimRef {
    ClaimRef {
        uid: uid.to_owned(),
        namespace: "ml".to_owned(),
        name: format!("claim-{uid}"),
    }
}

fn claim(uid: &str, devices: &[&str]) -> Claim {
    let device = |name: &&str| AllocatedDevice {
        request: "gpu".to_owned(),
        pool: "node-0".to_owned(),
        device: (*name).to_owned(),
        admin_access: false,
        tolerations: Vec::new(),
    };
    Claim {
        reference: reference(uid),
        by_name: None,
        invalid_config: None,
        pods: vec![format!("pod-{uid}")],
        devices: Some(devices.iter().map(device).collect()),
    }
}

fn permit(uid: &str, gpus_milli: i64) -> Permit {
    Permit {
        pod_uid: format!("pod-{uid}"),
        claim_uids: vec![uid.to_owned()],
        charge: Charge {
            claims: vec![ClaimsCharge {
                flavor: "h100".to_owned(),
                gpus_milli,
                vram_bytes: 80,
                uids: vec![uid.to_owned()],
            }],
            resources: Vec::new(),
        },
        ..Permit::default()
    }
}

fn node_devices(uid: &str, generation: i64, permits: Vec<Permit>) -> NodeDevices {
    let spec = NodeDevicesSpec {
        enforce: true,
        permits,
        ..NodeDevicesSpec::default()
    };
    let mut object = NodeDevices::new("node-0", spec);
    object.metadata.uid = Some(uid.to_owned());
    object.metadata.generation = Some(generation);
    object.metadata.resource_version = Some(format!("{generation}00"));
    object
}
