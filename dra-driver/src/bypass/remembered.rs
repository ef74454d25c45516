//! What outlives the program: which bypasses stood, so that a restart neither takes their taints off nor tells of them again.
//!
//! It is a hint, in a file beside the checkpoint (`bypasses.json`): what is not seen again is gone 30 s after the start, and
//! what is lost is found again in 30 s. Two instances share the file during an update, under the lock of the checkpoint; they see the same
//! processes, and the last one that writes is right.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::detector::Group;
use crate::{
    inventory::UsedPart,
    prepare::DiskFailure,
    store::{self, Store},
};

/// File in the state directory.
const FILE: &str = "bypasses.json";

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remembered {
    /// Whether permits were enforced.
    pub enforced: bool,
    /// The bypasses that stood.
    pub groups: Vec<Group>,
}

impl Remembered {
    /// Reads the file. Blocking. What cannot be read is nothing to remember.
    pub fn load(store: &Store) -> Self {
        let load = || -> Result<Option<Self>, DiskFailure> {
            let _lock = store
                .lock()
                .map_err(|error| DiskFailure::new(error.to_string()))?;
            store::load_beside(store, FILE)
        };
        load()
            .inspect_err(|failure| tracing::warn!(%failure, "bypasses are not remembered"))
            .ok()
            .flatten()
            .unwrap_or_default()
    }

    /// Writes the file. Blocking; twice does no harm.
    pub fn write(&self, store: &Store) -> Result<(), DiskFailure> {
        let _lock = store
            .lock()
            .map_err(|error| DiskFailure::new(error.to_string()))?;
        store::put_beside(store, FILE, self)
    }

    /// The parts of GPUs whose devices are to be tainted: in Observe nothing may be refused.
    pub fn tainted(&self) -> BTreeSet<UsedPart> {
        let groups = self.groups.iter().filter(|_| self.enforced);
        let part = |group: &Group| UsedPart {
            gpu: group.gpu.clone(),
            gpu_instance: group.gpu_instance,
        };
        groups.map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_device::cdi;

    use super::*;
    use crate::bypass::origin::Origin;

    #[test]
    fn what_is_written_is_read_and_taints_only_where_permits_are_enforced() {
        let root = tempfile::tempdir().unwrap();
        let cdi = cdi::Directory::new(root.path(), "gpu.muster.dev", root.path());
        let store = Store::open(root.path().join("state"), cdi).unwrap();
        assert_eq!(Remembered::load(&store), Remembered::default());
        for enforced in [true, false] {
            let remembered = Remembered {
                enforced,
                groups: vec![
                    Group {
                        gpu: "GPU-0".to_owned(),
                        gpu_instance: None,
                        origin: Origin::Pod("u-1".to_owned()),
                    },
                    Group {
                        gpu: "GPU-0".to_owned(),
                        gpu_instance: None,
                        origin: Origin::Node,
                    },
                ],
            };
            remembered.write(&store).unwrap();
            assert_eq!(Remembered::load(&store), remembered);
            assert_eq!(remembered.tainted().len(), usize::from(enforced));
        }
        std::fs::write(root.path().join("state/bypasses.json"), "{").unwrap();
        assert_eq!(Remembered::load(&store), Remembered::default());
    }
}
