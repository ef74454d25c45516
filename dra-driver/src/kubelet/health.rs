//! Health of the devices, as a stream for the kubelet.
//!
//! The kubelet calls a device Unknown 30 s after it last heard of it, so the complete list is sent again before
//! that. A device is healthy if it answers NVML and no fault reaches it, else unhealthy, and unknown if NVML is closed.

use std::{
    pin::Pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::{Stream, StreamExt, stream};
use muster_device::faults::FaultState;
use muster_kubelet_api::health::{v1, v1alpha1};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::inventory::KnownGpus;

/// How often the list is sent without a change.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What NVML last said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvmlReport {
    /// The GPUs; `None` before the first answer.
    pub known: Option<KnownGpus>,
    /// Why NVML does not answer now, if so.
    pub failure: Option<String>,
}

/// The health service.
#[derive(Clone, Debug)]
pub struct Health {
    /// The node, whose name the pool has.
    pub node: String,
    /// What NVML says.
    pub report: watch::Receiver<NvmlReport>,
    /// What is wrong with the GPUs.
    pub faults: watch::Receiver<FaultState>,
}

struct DeviceHealth {
    device: String,
    status: v1::HealthStatus,
    message: String,
}

fn healths(report: &NvmlReport, faults: &FaultState) -> Vec<DeviceHealth> {
    let gpus = report.known.iter().flat_map(|known| &known.gpus);
    gpus.flat_map(|known| {
        let uuid = &known.gpu.uuid;
        let (of_gpu, message) = match &report.failure {
            Some(failure) => (v1::HealthStatus::Unknown, failure.clone()),
            None if known.gone => (
                v1::HealthStatus::Unhealthy,
                format!("GPU {uuid} is not seen any more"),
            ),
            None if known.silent => (
                v1::HealthStatus::Unhealthy,
                format!("GPU {uuid} does not answer"),
            ),
            None => (v1::HealthStatus::Healthy, String::new()),
        };
        // What is true of a GPU is true of its slices, which there are in MIG mode only.
        let is_cut = known.is_in_mig_mode();
        // What is missing to a whole one its slices do without.
        let lacks_fabric = of_gpu == v1::HealthStatus::Healthy && known.lacks_fabric();
        let parts = known.parts();
        parts
            .filter(move |part| part.slice.is_none() || is_cut)
            .map(move |part| {
                let placement = part.slice.as_ref().map(|slice| slice.placement);
                let fault = faults
                    .fault(uuid, placement)
                    .or_else(|| faults.link_fault(uuid, placement))
                    .filter(|_| of_gpu == v1::HealthStatus::Healthy);
                let (status, message) = if let Some(fault) = fault {
                    let (class, causes) = (fault.class, fault.message());
                    (
                        v1::HealthStatus::Unhealthy,
                        format!("GPU {uuid} has a fault of the class {class}: {causes}"),
                    )
                } else if lacks_fabric {
                    (
                        v1::HealthStatus::Unhealthy,
                        format!("the fabric manager has not set up GPU {uuid}: look at nvidia-fabricmanager"),
                    )
                } else {
                    (of_gpu, message.clone())
                };
                DeviceHealth {
                    device: part.name,
                    status,
                    message,
                }
            })
    })
    .collect()
}

fn unix_seconds() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .unwrap_or_default()
}

type BoxStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The list now, after every change, and at every heartbeat; ends with the driver.
fn lists(
    report: watch::Receiver<NvmlReport>,
    faults: watch::Receiver<FaultState>,
) -> impl Stream<Item = Vec<DeviceHealth>> + Send {
    let begin = (report, faults, true);
    stream::unfold(begin, |(mut report, mut faults, first)| async move {
        if !first {
            let is_over = tokio::select! {
                changed = report.changed() => changed.is_err(),
                changed = faults.changed() => changed.is_err(),
                () = tokio::time::sleep(HEARTBEAT) => false,
            };
            if is_over {
                return None;
            }
        }
        let list = healths(&report.borrow_and_update(), &faults.borrow_and_update());
        Some((list, (report, faults, false)))
    })
}

macro_rules! serve {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for Health {
            type NodeWatchResourcesStream = BoxStream<$version::NodeWatchResourcesResponse>;

            async fn node_watch_resources(
                &self,
                _request: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                let pool_name = self.node.clone();
                let answer = move |list: Vec<DeviceHealth>| {
                    let devices = list.into_iter().map(|health| $version::DeviceHealth {
                        device: Some($version::DeviceIdentifier {
                            pool_name: pool_name.clone(),
                            device_name: health.device,
                        }),
                        health: health.status.into(),
                        last_updated_time: unix_seconds(),
                        health_check_timeout_seconds: 0,
                        message: health.message,
                    });
                    Ok($version::NodeWatchResourcesResponse {
                        devices: devices.collect(),
                    })
                };
                let stream = lists(self.report.clone(), self.faults.clone()).map(answer);
                Ok(Response::new(Box::pin(stream)))
            }
        }
    };
}

serve!(v1);
serve!(v1alpha1);

#[cfg(test)]
mod tests {
    use muster_device::{
        BackendError, FabricState, Listed, ListedGpu,
        faults::{Cause, Device, FaultClass, KnownAddresses, Observation, Scope},
    };

    use super::{
        v1::HealthStatus::{Healthy, Unhealthy, Unknown},
        *,
    };
    use crate::inventory::fixtures;

    fn gpu(index: u32, silent: Option<BackendError>) -> ListedGpu {
        let (uuid, address) = (format!("GPU-{index}"), format!("0000:0{index}:00.0"));
        let gpu = fixtures::gpu(&uuid, index, &address);
        ListedGpu { gpu, silent }
    }

    #[test]
    fn a_gpu_is_healthy_that_answers_unhealthy_that_does_not_and_unknown_while_nvml_is_closed() {
        let listed = Listed {
            gpus: vec![gpu(0, None), gpu(1, Some(BackendError::Unresponsive))],
            unidentified: Vec::new(),
        };
        let known = KnownGpus::default().after("boot", &listed);
        let statuses = |failure: Option<&str>| {
            let report = NvmlReport {
                known: Some(known.clone()),
                failure: failure.map(str::to_owned),
            };
            let statuses = healths(&report, &FaultState::default())
                .into_iter()
                .map(|health| health.status);
            statuses.collect::<Vec<_>>()
        };
        assert_eq!(statuses(None), [Healthy, Unhealthy]);
        // In MIG mode each slice is as healthy as its GPU.
        let mut cut = known.clone();
        cut.gpus[1].gpu.mig = Some(fixtures::a30(true));
        let report = NvmlReport {
            known: Some(cut),
            failure: None,
        };
        let unhealthy = healths(&report, &FaultState::default()).into_iter();
        let unhealthy = unhealthy.filter(|health| health.status == Unhealthy);
        assert_eq!(unhealthy.count(), 14);
        assert_eq!(statuses(Some("closed")), [Unknown, Unknown]);
        // While the fabric manager is not done with a GPU nothing starts on it, and in MIG mode nobody needs it.
        let mut alone = known.clone();
        alone.gpus[0].gpu.fabric = FabricState::Unfinished;
        let mut in_mig_mode = alone.clone();
        in_mig_mode.gpus[0].gpu.mig = Some(fixtures::a30(true));
        for (known, expected) in [(alone, Unhealthy), (in_mig_mode, Healthy)] {
            let report = NvmlReport {
                known: Some(known),
                failure: None,
            };
            let first = healths(&report, &FaultState::default())
                .into_iter()
                .next()
                .unwrap();
            assert_eq!(first.status, expected, "{}", first.message);
        }
    }

    #[test]
    fn a_device_is_unhealthy_that_a_fault_reaches_and_says_which() {
        let listed = Listed {
            gpus: vec![gpu(0, None), gpu(1, None)],
            unidentified: Vec::new(),
        };
        let report = NvmlReport {
            known: Some(KnownGpus::default().after("boot", &listed)),
            failure: None,
        };
        let mut faults = FaultState::default();
        let known = KnownAddresses([("GPU-1".to_owned(), None)].into());
        for class in [FaultClass::Reset, FaultClass::App] {
            let observation = Observation {
                class,
                scope: Scope::Gpu,
                cause: Cause::Xid(48),
            };
            faults.observe(&Device::Uuid("GPU-1".to_owned()), observation, &known, 0);
        }
        let healths = healths(&report, &faults);
        let statuses: Vec<_> = healths.iter().map(|health| health.status).collect();
        assert_eq!(statuses, [Healthy, Unhealthy]);
        let message = &healths[1].message;
        assert!(
            message.contains("Reset") && message.contains("XID 48"),
            "{message}"
        );
    }
}
