//! Steps by what they do, for scripts that have to tell them apart.

use muster_cluster::object::Kind;
use muster_protocol::ApiRequest;

use super::{
    World,
    turns::{Step, Who},
};
use crate::{controllers, drivers, scheduler};

/// Steps that a script can hold back, wait for, or have taken. Replicas of the controller and instances of the drivers
/// are given by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steps {
    /// A controller's patch of a pod is carried out.
    PodPatches,
    /// A controller's write of a Gang that carries an admission is carried out.
    Admissions,
    /// A controller's write of a permit that is not withdrawn is carried out.
    Permits,
    /// A controller's write of a `NodeDevices` without a live permit is carried out: it withdraws, or fences.
    Fences,
    /// A controller's creation of a `NodeDevices` is carried out.
    Creations,
    /// A request that nobody waits for any more arrives, of a controller or of a driver.
    Late,
    /// A controller is given the list of a kind.
    Lists(usize, Kind),
    /// A controller's watch tells a change of a kind.
    Watches(usize, Kind),
    /// What stood still moves again, and who was superseded notices.
    Recovery,
    /// An instance of a driver does anything.
    Instance(u64),
    /// Its watch tells it a change.
    InstanceWatch(u64),
    /// It takes, has, or gives back the lock.
    Turns(u64),
    /// It takes the lock to record a claim that it has read.
    Records(u64),
    /// It looks past its watch for a permit.
    Reads(u64),
    /// Its status write is carried out.
    StatusWrites(u64),
    /// A kubelet does anything.
    Kubelets,
    /// A rank does anything by itself.
    Ranks,
    /// kube-scheduler is told of a change of a kind.
    SchedulerWatches(Kind),
    /// An owner makes, or deletes, anything.
    Owners,
}

impl World {
    /// Whether the step is one of these.
    pub(super) fn is_of(&self, steps: Steps, step: &Step) -> bool {
        match step {
            Step::Controllers(step) => self.is_of_controllers(steps, step),
            Step::Driver(node, step) => self
                .drivers
                .get(node)
                .is_some_and(|drivers| is_of_drivers(steps, drivers, step)),
            Step::Kubelet(..) => steps == Steps::Kubelets,
            Step::Owners(_) => steps == Steps::Owners,
            Step::Workload(_) => steps == Steps::Ranks,
            Step::Inform(Who::Scheduler, watch) => {
                let kind = scheduler::WATCHED.get(*watch);
                kind.is_some_and(|kind| steps == Steps::SchedulerWatches(*kind))
            }
            Step::Scheduler(_) | Step::Claims(_) | Step::Inform(..) | Step::Garbage(_) => false,
        }
    }

    fn is_of_controllers(&self, steps: Steps, step: &controllers::Step) -> bool {
        use controllers::Step as Controller;
        let request = self.controllers.request(step);
        match (steps, step) {
            (Steps::PodPatches, _) => matches!(request, Some(ApiRequest::PatchPod { .. })),
            (Steps::Admissions, _) => request.is_some_and(admits),
            (Steps::Permits, _) => request.is_some_and(permits),
            (Steps::Fences, _) => request.is_some_and(|it| is_of_node_devices(it) && !permits(it)),
            (Steps::Creations, _) => {
                matches!(request, Some(ApiRequest::CreateNodeDevices { .. }))
            }
            (Steps::Late, Controller::Arrive(_))
            | (Steps::Recovery, Controller::Notice(_) | Controller::Thaw(..)) => true,
            (Steps::Lists(replica, kind), Controller::Perform(number, _)) => {
                *number == replica
                    && matches!(request, Some(ApiRequest::ReadAll { kind: listed }) if *listed == kind)
            }
            (Steps::Lists(replica, kind), step) => {
                *step == Controller::Receive(replica, kind)
                    && self.controllers.asked_for(replica, kind)
            }
            (Steps::Watches(replica, kind), step) => *step == Controller::Watch(replica, kind),
            _ => false,
        }
    }
}

fn admits(write: &ApiRequest) -> bool {
    matches!(write, ApiRequest::ReplaceGangStatus { status, .. } if status.admission.is_some())
}

fn is_of_node_devices(write: &ApiRequest) -> bool {
    matches!(
        write,
        ApiRequest::ReplaceNodeDevices { .. } | ApiRequest::CreateNodeDevices { .. }
    )
}

fn permits(write: &ApiRequest) -> bool {
    let (ApiRequest::ReplaceNodeDevices { spec, .. } | ApiRequest::CreateNodeDevices { spec, .. }) =
        write
    else {
        return false;
    };
    spec.permits.iter().any(|permit| !permit.withdrawn)
}

fn is_of_drivers(steps: Steps, drivers: &drivers::Drivers, step: &drivers::Step) -> bool {
    use drivers::{Deed, Step as Driver};
    let deed = |instance, wanted: &[Deed]| {
        drivers
            .deed(step)
            .is_some_and(|(by, deed)| by == instance && wanted.contains(&deed))
    };
    match steps {
        Steps::Late => matches!(step, Driver::Late(_)),
        Steps::Recovery => *step == Driver::StopOld,
        Steps::Instance(instance) => match step {
            Driver::Watch(id) | Driver::Tick(id) | Driver::Operate(id, _) => *id == instance,
            _ => false,
        },
        Steps::InstanceWatch(instance) => *step == Driver::Watch(instance),
        Steps::Turns(instance) => deed(instance, &[Deed::Turn, Deed::Record]),
        Steps::Records(instance) => deed(instance, &[Deed::Record]),
        Steps::Reads(instance) => deed(instance, &[Deed::Read]),
        Steps::StatusWrites(instance) => deed(instance, &[Deed::WriteStatus]),
        _ => false,
    }
}
