//! What containers of this node were given by device plugins, as the kubelet tells it.
//!
//! A plugin that is taken off leaves 0 in the node's `status.allocatable` at once; the containers that it gave GPUs to run on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use muster_api::keys;
use muster_cluster::{
    device_plugin::{is_gpu_driver, is_of_gpus},
    managed::ManagedPods,
};
use muster_kubelet_api::pod_resources::{
    ListPodResourcesRequest, ListPodResourcesResponse,
    pod_resources_lister_client::PodResourcesListerClient,
};
use tonic::transport::Endpoint;

use crate::bypass::sight::PodName;

/// Longest time that the kubelet may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Largest answer that is read: what Kubernetes' own tests of this API take (`defaultPodResourcesMaxSize` of its `test/e2e_node`).
/// A node may have hundreds of pods, each with all that it was given: more than the 4 MiB that tonic reads by
/// default. A larger one is an error, and an error says that nobody knows.
const LARGEST_ANSWER_BYTES: usize = 16 << 20;

/// The first container that a device plugin gave what stands for devices: `nvidia.com/gpu of pod ml/w-0`. An error while the
/// kubelet does not answer: then nobody knows. One that has just started answers before it knows its pods, and says that there is none.
pub async fn handed_out(socket: &Path, managed: &ManagedPods) -> anyhow::Result<Option<String>> {
    Ok(first(&list(socket).await?, managed))
}

/// What device plugins gave to pods of what stands for devices, and what other GPU drivers gave them, by pod; the latter as
/// `DRIVER/POOL/DEVICE`, of which only that driver knows which GPU it is. An error while the kubelet does not answer, or knows no pod at
/// all: it has just started, and waits for the API server, however long that is away.
pub async fn by_pod(
    socket: &Path,
    managed: &ManagedPods,
) -> anyhow::Result<BTreeMap<PodName, BTreeSet<String>>> {
    let answer = list(socket).await?;
    anyhow::ensure!(
        !answer.pod_resources.is_empty(),
        "the kubelet at {} knows no pods yet",
        socket.display()
    );
    Ok(sorted(&answer, managed))
}

async fn list(socket: &Path) -> anyhow::Result<ListPodResourcesResponse> {
    let list = async {
        let endpoint = Endpoint::try_from(format!("unix:{}", socket.display()))?;
        let mut kubelet = PodResourcesListerClient::new(endpoint.connect().await?)
            .max_decoding_message_size(LARGEST_ANSWER_BYTES);
        let answer = kubelet.list(ListPodResourcesRequest {}).await?;
        anyhow::Ok(answer.into_inner())
    };
    let answer = tokio::time::timeout(LIMIT, list).await;
    answer
        .context("no answer in time")
        .and_then(|answer| answer)
        .with_context(|| format!("the kubelet at {}", socket.display()))
}

fn sorted(
    answer: &ListPodResourcesResponse,
    managed: &ManagedPods,
) -> BTreeMap<PodName, BTreeSet<String>> {
    let mut all: BTreeMap<PodName, BTreeSet<String>> = BTreeMap::new();
    for pod in &answer.pod_resources {
        let given = pod.containers.iter().flat_map(|it| &it.devices);
        let given = given.filter(|given| is_of_gpus(&given.resource_name, managed));
        let mut devices: BTreeSet<String> = given.flat_map(|it| &it.device_ids).cloned().collect();
        let claimed = pod.containers.iter().flat_map(|it| &it.dynamic_resources);
        let claimed = claimed.flat_map(|it| &it.claim_resources);
        let by_others = claimed
            .filter(|it| is_gpu_driver(&it.driver_name) && it.driver_name != keys::DRIVER)
            .map(|it| format!("{}/{}/{}", it.driver_name, it.pool_name, it.device_name));
        devices.extend(by_others);
        if !devices.is_empty() {
            let name = PodName {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
            };
            all.entry(name).or_default().extend(devices);
        }
    }
    all
}

fn first(answer: &ListPodResourcesResponse, managed: &ManagedPods) -> Option<String> {
    answer.pod_resources.iter().find_map(|pod| {
        let mut devices = pod.containers.iter().flat_map(|it| &it.devices);
        let given = devices.find(|given| {
            !given.device_ids.is_empty() && is_of_gpus(&given.resource_name, managed)
        })?;
        let resource = &given.resource_name;
        Some(format!("{resource} of pod {}/{}", pod.namespace, pod.name))
    })
}

/// Kubelets that tests ask.
#[cfg(test)]
pub(crate) mod fixtures {
    use std::path::{Path, PathBuf};

    use muster_kubelet_api::pod_resources::{
        ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
        PodResources,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    };
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Response, Status, transport::Server};

    /// A pod with one container, which has these devices.
    pub(crate) fn pod(name: &str, resource: &str, devices: &[&str]) -> PodResources {
        PodResources {
            name: name.to_owned(),
            namespace: "ml".to_owned(),
            containers: vec![ContainerResources {
                name: "main".to_owned(),
                devices: vec![ContainerDevices {
                    resource_name: resource.to_owned(),
                    device_ids: devices.iter().map(|id| (*id).to_owned()).collect(),
                }],
                ..ContainerResources::default()
            }],
        }
    }

    /// One that knows these pods.
    #[derive(Debug)]
    pub(crate) struct Kubelet(pub(crate) Vec<PodResources>);

    impl Kubelet {
        /// Serves until the test ends, by a socket in this directory.
        pub(crate) fn serve(self, directory: &Path) -> PathBuf {
            let socket = directory.join("kubelet.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            let router = Server::builder().add_service(PodResourcesListerServer::new(self));
            tokio::spawn(router.serve_with_incoming(UnixListenerStream::new(listener)));
            socket
        }
    }

    #[tonic::async_trait]
    impl PodResourcesLister for Kubelet {
        async fn list(
            &self,
            _: Request<ListPodResourcesRequest>,
        ) -> Result<Response<ListPodResourcesResponse>, Status> {
            Ok(Response::new(ListPodResourcesResponse {
                pod_resources: self.0.clone(),
            }))
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_kubelet_api::pod_resources::{
        ClaimResource, ContainerResources, DynamicResource, PodResources,
    };
    use tokio::net::UnixListener;

    use super::{
        fixtures::{Kubelet, pod},
        *,
    };

    fn managed() -> ManagedPods {
        ManagedPods::new(["nvidia.com/gpu"]).unwrap()
    }

    #[test]
    fn a_container_with_a_gpu_of_a_device_plugin_is_found_and_no_other() {
        let mut answer = ListPodResourcesResponse {
            pod_resources: vec![
                pod("card", "rdma/hca", &["0"]),
                pod("none", "nvidia.com/gpu", &[]),
            ],
        };
        assert_eq!(first(&answer, &managed()), None);
        assert!(sorted(&answer, &managed()).is_empty());
        answer
            .pod_resources
            .push(pod("w-0", "nvidia.com/gpu", &["GPU-0"]));
        assert_eq!(
            first(&answer, &managed()).as_deref(),
            Some("nvidia.com/gpu of pod ml/w-0")
        );
        // Shared by time, and slices: the same GPUs, whatever the installation manages.
        for resource in ["nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"] {
            let answer = ListPodResourcesResponse {
                pod_resources: vec![pod("w-0", resource, &["GPU-0"])],
            };
            assert_eq!(
                first(&answer, &managed()),
                Some(format!("{resource} of pod ml/w-0"))
            );
        }
        answer
            .pod_resources
            .push(pod("w-0", "nvidia.com/gpu", &["GPU-1", "GPU-0"]));
        for (pod, driver) in [
            ("ours", keys::DRIVER),
            ("card", "dra.net"),
            ("other", "gpu.nvidia.com"),
        ] {
            answer.pod_resources.push(PodResources {
                name: pod.to_owned(),
                namespace: "ml".to_owned(),
                containers: vec![ContainerResources {
                    dynamic_resources: vec![DynamicResource {
                        claim_resources: vec![ClaimResource {
                            driver_name: driver.to_owned(),
                            pool_name: "node-0".to_owned(),
                            device_name: "gpu-0".to_owned(),
                        }],
                    }],
                    ..ContainerResources::default()
                }],
            });
        }
        let sorted = sorted(&answer, &managed());
        let sorted: Vec<(String, Vec<&str>)> = sorted
            .iter()
            .map(|(pod, given)| (pod.to_string(), given.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(
            sorted,
            [
                ("ml/other".to_owned(), vec!["gpu.nvidia.com/node-0/gpu-0"]),
                ("ml/w-0".to_owned(), vec!["GPU-0", "GPU-1"])
            ]
        );
    }

    /// A kubelet whose only pod has a name of so many bytes; with none it knows no pod.
    fn kubelet(name_bytes: usize) -> Kubelet {
        let name = "x".repeat(name_bytes);
        let known = (!name.is_empty()).then(|| pod(&name, "rdma/hca", &["0"]));
        Kubelet(known.into_iter().collect())
    }

    #[tokio::test]
    async fn a_kubelet_that_knows_no_pods_does_not_say_that_nothing_was_given_to_them() {
        for (name_bytes, knows) in [(0, false), (1, true)] {
            let directory = tempfile::tempdir().unwrap();
            let socket = kubelet(name_bytes).serve(directory.path());
            let given = by_pod(&socket, &managed()).await;
            assert_eq!(given.is_ok(), knows, "{given:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_16_mib_and_a_larger_one_says_nothing() {
        for (name_bytes, is_read) in [(1, true), (8 << 20, true), (17 << 20, false)] {
            let directory = tempfile::tempdir().unwrap();
            let socket = kubelet(name_bytes).serve(directory.path());
            let answer = handed_out(&socket, &managed()).await;
            assert_eq!(answer.is_ok(), is_read, "{name_bytes}: {answer:?}");
            assert_eq!(answer.ok().flatten(), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_does_not_answer_is_an_error_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("kubelet.sock");
        assert!(handed_out(&socket, &managed()).await.is_err(), "not there");
        let _silent = UnixListener::bind(&socket).unwrap();
        let error = handed_out(&socket, &managed()).await.unwrap_err();
        assert!(
            format!("{error:#}").contains("no answer in time"),
            "{error:#}"
        );
    }
}
