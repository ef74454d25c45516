//! NVLink between GPUs whose links do not say what is at their other end, as in virtual machines.
//!
//! Each two of them are asked once whether they reach one another, in the lane of the first, and only while both answer: so one that
//! hangs later costs nobody else. What was found stays: links are soldered. In MIG mode a GPU reaches no other, so it is
//! not asked then.

use std::collections::BTreeMap;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings as raw;

use super::{Backend, BackendError, calls::Lane, facts::Facts, library::Session};
use crate::nvlink::Peer;

/// Whether two GPUs are linked, by their UUIDs in ascending order.
pub(super) type Pairs = BTreeMap<(String, String), bool>;

/// A GPU whose links do not say where they lead.
struct Hiding {
    uuid: String,
    pci_bus_id: String,
    may_be_asked: bool,
}

impl Backend {
    /// Finds the peers that links do not tell.
    pub(super) fn find_hidden_peers(
        &self,
        found: &mut BTreeMap<String, (Facts, Option<BackendError>)>,
    ) {
        let hiding: Vec<Hiding> = found
            .values()
            .filter(|(facts, _)| facts.hides_peers)
            .map(|(facts, silent)| Hiding {
                uuid: facts.uuid.clone(),
                pci_bus_id: facts.pci_bus_id.clone(),
                may_be_asked: silent.is_none() && !facts.is_cut(),
            })
            .collect();
        for (position, one) in hiding.iter().enumerate() {
            for other in hiding.iter().skip(position + 1) {
                if !self.are_linked(one, other) {
                    continue;
                }
                for (gpu, peer) in [(one, other), (other, one)] {
                    if let Some((facts, _)) = found.get_mut(&gpu.uuid) {
                        facts.peers.push(Peer::Gpu(peer.pci_bus_id.clone()));
                    }
                }
            }
        }
    }

    /// What is not known yet, and cannot be asked now, is no link that we could promise.
    fn are_linked(&self, one: &Hiding, other: &Hiding) -> bool {
        let pair = (one.uuid.clone(), other.uuid.clone());
        let known = self.pairs().get(&pair).copied();
        if let Some(is_linked) = known {
            return is_linked;
        }
        if !one.may_be_asked || !other.may_be_asked {
            return false;
        }
        let (first, second) = pair.clone();
        let lane = Lane::Gpu(first.clone());
        let asked = self.ask(lane, move |session| reaches(session, &first, &second));
        if let Ok(is_linked) = asked {
            self.pairs().insert(pair, is_linked);
        }
        asked.unwrap_or(false)
    }
}

/// Whether one GPU reaches another by NVLink.
fn reaches(session: &Session, one: &str, other: &str) -> Result<bool, BackendError> {
    let (first, second) = (session.device(one)?, session.device(other)?);
    let get = nvml_sym(session.nvml.lib().nvmlDeviceGetP2PStatus.as_ref());
    let Ok(get) = get else {
        return Ok(false);
    };
    let index = raw::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK;
    let mut status = raw::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_UNKNOWN;
    // SAFETY: the handles are of this library, which is loaded and initialised as long as the session lives, and the pointer is to
    // a local of the type that the function writes.
    match nvml_try(unsafe { get(first.handle(), second.handle(), index, &raw mut status) }) {
        Ok(()) => Ok(status == raw::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK),
        Err(NvmlError::NotSupported) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
