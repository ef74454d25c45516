//! What becomes of pods: kube-scheduler, kubelets and the claim controller.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceSlice},
};
use muster_sim::scheduler::{allocated_devices, pinned_node};

#[cfg(test)]
use muster_cluster::object::Kind;
#[cfg(test)]
use muster_sim::api_server::{Precondition, key};

use super::World;
use crate::cluster::{GPUS_PER_NODE, allocated, device_name};

impl World {
    /// A pod ended well, and the claim controller takes its claim's devices back.
    pub(crate) fn end_pod(&mut self, namespace: &str, name: &str) -> Result<()> {
        self.change::<Pod>((namespace, name), |pod| {
            pod.status.get_or_insert_default().phase = Some("Succeeded".to_owned());
        })?;
        self.take_back(namespace, name)
    }

    /// The claim controller takes back the devices of a pod's claim.
    fn take_back(&mut self, namespace: &str, name: &str) -> Result<()> {
        let claim = self.api.get::<ResourceClaim>(namespace, name);
        let claim = claim.context("a pod without a claim")?;
        for (node, device) in allocated_devices(claim) {
            let gpus = self.taken.entry(node.to_owned()).or_default();
            for (gpu, taken) in gpus.iter_mut().enumerate() {
                *taken &= device_name(gpu) != device;
            }
        }
        self.change::<ResourceClaim>((namespace, name), |claim| claim.status = None)
    }

    /// Somebody deletes a pod: one that has no node is gone, one that has is to be ended by its kubelet.
    #[cfg(test)]
    pub(crate) fn delete_pod(&mut self, namespace: &str, name: &str) -> Result<()> {
        let pod = key(Kind::Pod, namespace, name);
        let deleted = self.api.delete(&pod, Precondition::default());
        ensure!(
            deleted.is_ok(),
            "{namespace}/{name} is not deleted: {deleted:?}"
        );
        // Nobody binds it any more.
        self.unbound
            .remove(&(namespace.to_owned(), name.to_owned()));
        Ok(())
    }

    /// Kubelets end the pods that are being deleted, and the claim controller takes back their claims' devices. Of a pod that somebody makes
    /// again the claim goes with it. Returns how many there were.
    #[cfg(test)]
    pub(crate) fn end_deleted_pods(&mut self) -> Result<usize> {
        let pods = self.api.list::<Pod>();
        let deleted = pods.filter(|pod| pod.metadata.deletion_timestamp.is_some());
        let deleted: Vec<_> = deleted.map(|pod| pod.metadata.clone()).collect();
        for metadata in &deleted {
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            let name = metadata.name.as_deref().unwrap_or_default();
            self.take_back(namespace, name)?;
            let is_made_again = metadata.owner_references.is_some();
            let claim = is_made_again.then_some(Kind::ResourceClaim);
            for kind in [Some(Kind::Pod), claim].into_iter().flatten() {
                let object = key(kind, namespace, name);
                let gone = self.api.delete_now(&object, Precondition::default());
                ensure!(gone.is_ok(), "{object:?} does not go: {gone:?}");
            }
        }
        Ok(deleted.len())
    }

    /// kube-scheduler allocates and binds all pods that were let go, each to the node that it is pinned to, and the kubelets
    /// run them. Returns how many there were.
    pub(crate) fn start_pods(&mut self) -> Result<usize> {
        let pods = std::mem::take(&mut self.unbound);
        for (namespace, name) in &pods {
            let pod = self
                .api
                .get::<Pod>(namespace, name)
                .context("a pod is gone")?;
            let node = pinned_node(pod)
                .context("a pod that was let go is pinned")?
                .to_owned();
            let claim = self.api.get::<ResourceClaim>(namespace, name);
            let wanted = claim.and_then(|claim| {
                let devices = claim.spec.as_ref()?.devices.as_ref()?;
                let requests = devices.requests.as_ref()?;
                requests.first()?.exactly.as_ref()?.count
            });
            let wanted = usize::try_from(wanted.context("a claim without a count")?)?;
            let slice = self
                .api
                .get::<ResourceSlice>("", &format!("{node}-gpus"))
                .context("a node without a slice")?;
            let devices = slice.spec.devices.iter().flatten();
            let sound: Vec<bool> = devices
                .map(|device| device.taints.as_ref().is_none_or(Vec::is_empty))
                .collect();
            let taken = self.taken.entry(node.clone()).or_default();
            let is_free = |gpu: &usize| !taken[*gpu] && sound.get(*gpu) == Some(&true);
            let free = (0..GPUS_PER_NODE).filter(is_free);
            let gpus: Vec<usize> = free.take(wanted).collect();
            ensure!(
                gpus.len() == wanted,
                "{node} has no {wanted} free and sound GPUs for {name}"
            );
            for gpu in &gpus {
                taken[*gpu] = true;
            }
            let status = serde_json::from_value(allocated(name, &node, &gpus))?;
            self.change::<ResourceClaim>((namespace, name), |claim| claim.status = Some(status))?;
            self.change::<Pod>((namespace, name), |pod| {
                pod.spec.get_or_insert_default().node_name = Some(node);
            })?;
            self.change::<Pod>((namespace, name), |pod| {
                pod.status.get_or_insert_default().phase = Some("Running".to_owned());
            })?;
        }
        Ok(pods.len())
    }
}
