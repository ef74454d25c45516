//! S7: what is published of a fault falls only once the fault is mended.
//!
//! What is wrong with a GPU, and what mends it, is the machine's ([`crate::gpu_faults`]); what is published, the slice's. Nothing here asks what the
//! driver remembers. A fault of the class Contained is over, too, once nobody uses the GPU: at any moment since it came. A slice that is gone says
//! nothing, and neither does one that is made anew: who made it had something to lose.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use muster_api::keys::{TAINT_FAULT, TAINT_LINK_FAULT};
use muster_dra_driver::faults::FaultClass;

use super::Violation;
use crate::{api_server::ApiServer, fixtures, gpu_node::GpuNode};

/// The worst class that is published of a GPU: of itself, and of its links.
type Shown = [Option<FaultClass>; 2];

/// What was published last of the GPUs that have faults, and which of those are over though nobody mended them.
#[derive(Debug, Default)]
pub(super) struct Severities {
    shown: BTreeMap<(String, usize), Shown>,
    /// Node and number of faults whose GPU nobody used at some time since.
    left: BTreeSet<(String, u64)>,
}

impl Severities {
    pub(super) fn check(
        &mut self,
        api: &ApiServer,
        nodes: &BTreeMap<String, GpuNode>,
    ) -> Result<(), Violation> {
        for (name, node) in nodes {
            if node.faults.standing().is_empty() {
                self.shown.retain(|(of, _), _| of != name);
                continue;
            }
            self.note_left(name, node);
            let slice = api.get::<ResourceSlice>("", &fixtures::slice_name(name));
            for (gpu, standing) in node.faults.standing() {
                let of = (name.clone(), *gpu);
                let Some(slice) = slice else {
                    self.shown.remove(&of);
                    continue;
                };
                let now = shown(slice, &fixtures::device_name(*gpu));
                let before = self.shown.insert(of, now).unwrap_or_default();
                for fault in standing {
                    let place = usize::from(fault.class == FaultClass::Link);
                    let class = Some(fault.class);
                    let has_fallen = before[place] >= class && now[place] < class;
                    if has_fallen && !self.left.contains(&(name.clone(), fault.number)) {
                        let what = format!(
                            "GPU {gpu} of {name} has a fault of class {} that nobody mended, and what is published fell from \
                             {before:?} to {now:?}",
                            fault.class
                        );
                        return Err(Violation::new("S7", what));
                    }
                }
            }
        }
        Ok(())
    }

    fn note_left(&mut self, name: &str, node: &GpuNode) {
        for (gpu, standing) in node.faults.standing() {
            if node.is_used(&fixtures::gpu_uuid(name, *gpu)) {
                continue;
            }
            let contained = standing
                .iter()
                .filter(|fault| fault.class == FaultClass::Contained);
            self.left
                .extend(contained.map(|fault| (name.to_owned(), fault.number)));
        }
    }
}

fn shown(slice: &ResourceSlice, device: &str) -> Shown {
    let mut devices = slice.spec.devices.iter().flatten();
    let device = devices.find(|known| known.name == device);
    [TAINT_FAULT, TAINT_LINK_FAULT].map(|key| class(device?, key))
}

fn class(device: &Device, key: &str) -> Option<FaultClass> {
    let mut taints = device.taints.iter().flatten();
    let taint = taints.find(|taint| taint.key == key)?;
    let value = taint.value.as_deref().unwrap_or_default();
    Some(FaultClass::named(value).unwrap_or(FaultClass::Unknown))
}
