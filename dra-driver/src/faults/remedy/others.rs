//! What others gave to containers of the node: device plugins, and other GPU drivers.
//!
//! No record tells of that. A container that has a GPU of theirs may have no process on it at the moment, and begin to compute while the GPU is being reset,
//! or checked. Which GPU it is only who gave it knows for sure (ids may be indices, or shared). So while a container of the node has anything of theirs
//! nothing is reset there, nor checked; nor while the kubelet does not say.

use std::path::PathBuf;

use muster_cluster::managed::ManagedPods;

use crate::kubelet::pod_resources;

/// What others gave. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Others {
    /// The kubelet's socket; without it nobody is asked.
    pub socket: Option<PathBuf>,
    /// Which resources stand for devices.
    pub managed: ManagedPods,
}

impl Others {
    /// Whether no container has anything of theirs; else who has.
    pub async fn gave_nothing(&self) -> Result<(), String> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let given = pod_resources::by_pod(socket, &self.managed).await;
        let given = given.map_err(|error| {
            format!("whether a device plugin gave GPUs to containers cannot be told: {error:#}")
        })?;
        match given.first_key_value() {
            None => Ok(()),
            Some((pod, _)) => Err(format!(
                "pod {pod} has GPUs that a device plugin or another driver gave it, and may begin to use them at any moment"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::pod_resources::fixtures::{Kubelet, pod};

    #[tokio::test]
    async fn while_a_container_has_a_gpu_of_a_device_plugin_or_nobody_tells_nothing_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let mut others = Others {
            socket: None,
            managed: ManagedPods::new(["nvidia.com/gpu"]).unwrap(),
        };
        assert_eq!(others.gave_nothing().await, Ok(()));
        others.socket = Some(directory.path().join("none.sock"));
        let told = others.gave_nothing().await.unwrap_err();
        assert!(told.contains("cannot be told"), "{told}");
        for (resource, is_free) in [("rdma/hca", true), ("nvidia.com/gpu", false)] {
            let directory = tempfile::tempdir().unwrap();
            let kubelet = Kubelet(vec![pod("w-0", resource, &["0"])]);
            let socket = kubelet.serve(directory.path());
            others.socket = Some(socket);
            let told = others.gave_nothing().await;
            assert_eq!(told.is_ok(), is_free, "{told:?}");
            if let Err(told) = told {
                assert!(told.contains("ml/w-0"), "{told}");
            }
        }
    }
}
