//! Devices that a fault closes to what is new.
//!
//! The taint in the ResourceSlices keeps kube-scheduler from allocating such a device. A claim that was allocated before it saw the taint is
//! refused here: whatever would start on the GPU would fail, or end with the reset that it needs. It is refused at once, since no fault is
//! mended within a call, and the kubelet, which does not know a refusal that is final, asks again after a minute or more; the taint tells
//! whoever plans that the gang is to be started elsewhere. A claim that tolerates the taint is prepared, as kube-scheduler allocates it: so a
//! diagnosis gets the GPU, and a pod that needs no NVLink one whose links are broken.
//!
//! Only what would be recorded anew is judged. What is prepared is answered from its record, whatever is wrong: a fault ends nothing that runs.

use muster_api::{
    Reason,
    keys::{TAINT_FAULT, TAINT_LINK_FAULT, TAINT_NODE_FAULT},
};
use muster_device::faults::{Fault, FaultClass};

use super::{
    claim::{AllocatedDevice, Claim},
    effect::{DeviceFacts, Inventory, Refusal},
    machine::Machine,
};

impl Machine {
    /// Whether no fault closes a device of the claim to it. A device that the node does not have is refused elsewhere.
    pub(super) fn is_in_order(&self, claim: &Claim) -> Result<(), Refusal> {
        let Some(inventory) = &self.inventory else {
            return Ok(());
        };
        // Who administers a device looks at it, and runs nothing on it.
        let allocated = claim.devices.iter().flatten();
        for allocated in allocated.filter(|device| !device.admin_access) {
            let Some(facts) = inventory.get(&allocated.device) else {
                continue;
            };
            if let Some((key, gpu, fault)) = self.closing_fault(allocated, facts) {
                return Err(refusal(claim, allocated, key, gpu, fault));
            }
        }
        Ok(())
    }

    /// The first fault that closes a device to whoever was allocated it: the key of its taint, and the GPU that has it.
    fn closing_fault<'a>(
        &'a self,
        allocated: &AllocatedDevice,
        facts: &'a DeviceFacts,
    ) -> Option<(&'static str, &'a str, &'a Fault)> {
        let gpu = facts.unit.gpu.as_str();
        let placement = facts.slice.as_ref().map(|slice| slice.placement);
        let is_listed = |uuid: &str| {
            let mut devices = self.inventory.iter().flat_map(Inventory::values);
            devices.any(|facts| facts.unit.gpu == uuid)
        };
        let own = |key, fault: Option<&'a Fault>| Some((key, gpu, fault?));
        let of_node = self.faults.node_fault(is_listed);
        let found = [
            own(TAINT_FAULT, self.faults.fault(gpu, placement)),
            own(TAINT_LINK_FAULT, self.faults.link_fault(gpu, placement)),
            of_node.map(|(uuid, fault)| (TAINT_NODE_FAULT, uuid, fault)),
        ];
        let is_tolerated = |key: &str, class: FaultClass| {
            let mut tolerations = allocated.tolerations.iter();
            tolerations.any(|it| it.tolerates(key, class.as_str()))
        };
        let mut found = found.into_iter().flatten();
        found.find(|(key, _, fault)| !is_tolerated(key, fault.class))
    }
}

fn refusal(
    claim: &Claim,
    allocated: &AllocatedDevice,
    key: &str,
    gpu: &str,
    fault: &Fault,
) -> Refusal {
    Refusal {
        reason: Some(Reason::DeviceFaulty),
        is_overlap: false,
        message: format!(
            "claim {}: its device {} has the taint {key}={}, for GPU {gpu} has a fault: {}; a claim that is to have it all the same \
             has to tolerate the taint",
            claim.reference,
            allocated.device,
            fault.class,
            fault.message()
        ),
    }
}
