//! S5, S6 and L-6: what must be left, and what must not, once nothing goes wrong any more and nothing moves.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    batch::v1::Job,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use muster_api::{Gang, Ledger, NodeDevices};

use super::{Charges, Violation, namespace_use};
use crate::{
    api_server::ApiServer,
    gpu_node::GpuNode,
    owners::{self, Owners},
    scheduler,
};

/// Every gang that was not given up is done, and nothing is left of any.
pub fn check(
    api: &ApiServer,
    nodes: &BTreeMap<String, GpuNode>,
    owners: &Owners,
) -> Result<(), Violation> {
    if let Some(what) = left_suspended(api) {
        return Err(Violation::new("S5", what));
    }
    match left(api, nodes, owners) {
        None => Ok(()),
        Some(what) => Err(Violation::new("S6", what)),
    }
}

/// S5: who suspended a Job has resumed it; what is suspended now, Muster left so.
fn left_suspended(api: &ApiServer) -> Option<String> {
    let mut jobs = api.list::<Job>();
    let left = jobs.find(|job| {
        let is_suspended = job
            .spec
            .as_ref()
            .is_some_and(|spec| spec.suspend == Some(true));
        is_suspended && !owners::has_finished(job)
    })?;
    Some(format!("Job {:?} is left suspended", left.metadata.name))
}

fn left(api: &ApiServer, nodes: &BTreeMap<String, GpuNode>, owners: &Owners) -> Option<String> {
    if let Some(gang) = owners
        .wanted()
        .find(|gang| !owners.is_complete(&gang.name, api))
    {
        let reasons: Vec<String> = api
            .list::<Gang>()
            .filter(|object| {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                name.contains(gang.name.as_str())
            })
            .filter_map(|object| object.status.as_ref())
            .map(|status| format!("{:?} {:?}", status.phase, status.queue))
            .collect();
        return Some(format!("{} waits for ever: {reasons:?}", gang.name));
    }
    if let Some(intent) = api
        .list::<Ledger>()
        .find_map(|ledger| ledger.spec.intents.first())
    {
        return Some(format!("the intent about {} is left", intent.name));
    }
    for object in api.list::<NodeDevices>() {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        if let Some(permit) = object.spec.permits.first() {
            return Some(format!("a permit of {} is left on {name}", permit.pod_uid));
        }
        let held = object
            .status
            .as_ref()
            .and_then(|status| status.held.first());
        if let Some(held) = held {
            return Some(format!("{} is listed as held on {name}", held.claim_uid));
        }
    }
    for (name, node) in nodes {
        if api.get::<NodeDevices>("", name).is_none() {
            return Some(format!("node {name} has no NodeDevices"));
        }
        let record = node.disk.records.keys().chain(node.cdi.keys()).next();
        if let Some(claim) = record {
            return Some(format!("node {name} still has records of {claim}"));
        }
        if let Some(pod) = node.containers.keys().next() {
            return Some(format!("a container of {pod} lives on {name}"));
        }
    }
    let allocated = api
        .list::<ResourceClaim>()
        .find(|claim| scheduler::allocated_node(claim).is_some());
    if let Some(claim) = allocated {
        return Some(format!(
            "claim {:?} is still allocated",
            claim.metadata.name
        ));
    }
    let tainted = api
        .list::<ResourceSlice>()
        .flat_map(|slice| slice.spec.devices.iter().flatten())
        .find(|device| {
            device
                .taints
                .as_ref()
                .is_some_and(|taints| !taints.is_empty())
        });
    if let Some(device) = tainted {
        return Some(format!("device {} is still tainted", device.name));
    }
    if let Some(what) = namespace_use::left(api) {
        return Some(what);
    }
    (!Charges::of(api).is_empty()).then(|| "something is still charged".to_owned())
}
