//! Ways by which a pod comes to GPUs past its claims, which no quota counts.
//!
//! The chart's policy NAME-pod-side-door refuses them in CEL where a pod is created or gets a debugger; this is the same rule, for
//! pods that exist. [`crate::side_door_cases::side_door_cases`] is the table that both are tested with.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::api::core::v1::{
    Container, EnvVar, Pod, PodSpec, ResourceRequirements, SecurityContext, VolumeMount,
};

use crate::{managed::ManagedPods, text::truncate};

/// The variable by which NVIDIA's runtime gives a container GPUs.
pub const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Its value by which that runtime leaves a container as it is.
pub const VOID: &str = "void";
/// Its values that give none.
const NO_DEVICES: [&str; 2] = [VOID, "none"];
/// In every path below `/var/run/nvidia-container-devices`, however it is spelled: where NVIDIA's runtime is told to look there, what is
/// mounted as `/var/run/nvidia-container-devices/all` gives a container all GPUs.
const DEVICE_LIST: &str = "nvidia-container-devices";
/// In the keys of annotations by which NVIDIA's runtime is told of CDI devices (`cdi.k8s.io/`; with GPU Operator `nvidia.cdi.k8s.io/`). CRI-O
/// hands it those of pods, and it gives what they name, whatever its settings about the variable.
const DEVICE_ANNOTATION: &str = "cdi.k8s.io/";
/// As much of a path is shown, in bytes.
const SHOWN_BYTES: usize = 128;

/// What an installation takes for side doors.
#[derive(Clone, Debug)]
pub struct SideDoors {
    /// RuntimeClasses that give a container the GPUs that its image names.
    pub runtime_classes: BTreeSet<String>,
    /// Which pods ask for devices.
    pub managed: ManagedPods,
}

/// One way past claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SideDoor {
    /// This container sets the variable by which NVIDIA's runtime gives GPUs.
    Variable(String),
    /// This container mounts something where NVIDIA's runtime may look for the GPUs to give.
    DeviceList(String),
    /// This annotation names devices for NVIDIA's runtime.
    Annotation(String),
    /// A volume shows a GPU of the node, by this path.
    Gpu(String),
    /// This RuntimeClass gives a container the GPUs that its image names.
    RuntimeClass(String),
    /// This container gets no device, does not say so to NVIDIA's runtime, and a RuntimeClass gives it the GPUs that its image names.
    Image {
        /// The container.
        container: String,
        /// The RuntimeClass.
        runtime_class: String,
    },
    /// This container is privileged, in a namespace of a Team.
    Privileged(String),
    /// A volume shows all devices of the node, by this path, in a namespace of a Team.
    Devices(String),
}

/// Whether a container is to get [`VARIABLE`] as [`VOID`]: it says nothing of that itself, and no device plugin may say it, managed or
/// not, which a variable of the pod would overrule. One with a claim gets the same value by what prepares the claim, if that is for GPUs.
pub fn needs_void(container: &Container, managed: &ManagedPods) -> bool {
    !sets_variable(container.env.as_deref().unwrap_or_default())
        && !managed.names_devices(container.resources.as_ref())
}

impl SideDoors {
    /// The ways of this pod, in the order of the policy's validations. `of_team`: whether its namespace carries the label of a Team.
    pub fn of_pod(&self, pod: &Pod, of_team: bool) -> Vec<SideDoor> {
        let Some(spec) = &pod.spec else {
            return Vec::new();
        };
        let container = |is_open: fn(&ContainerView<'_>) -> bool| {
            let open = containers(spec).find(is_open);
            open.map(|container| container.name.to_owned())
        };
        let path = |is_open: fn(&str) -> bool| {
            let open = host_paths(spec).find(|path| is_open(path));
            open.map(str::to_owned)
        };
        let class = spec.runtime_class_name.as_ref();
        let class = class.filter(|class| self.runtime_classes.contains(*class));
        let asks = self.managed.may_hold_devices(pod);
        let image = class.filter(|_| asks).and_then(|class| {
            let mut silent = containers(spec).filter(is_silent);
            let given =
                |container: &ContainerView<'_>| self.managed.gives_devices(container.resources);
            let container = silent.find(|container| !given(container))?;
            Some(SideDoor::Image {
                container: container.name.to_owned(),
                runtime_class: class.clone(),
            })
        });
        let everywhere = [
            container(asks_for_gpus).map(SideDoor::Variable),
            container(mounts_device_list).map(SideDoor::DeviceList),
            device_annotation(pod).map(SideDoor::Annotation),
            path(is_gpu).map(SideDoor::Gpu),
            class.filter(|_| !asks).cloned().map(SideDoor::RuntimeClass),
            image,
        ];
        let of_tenants = [
            container(is_privileged).map(SideDoor::Privileged),
            path(is_all_devices).map(SideDoor::Devices),
        ];
        let of_tenants = of_tenants.into_iter().filter(|_| of_team);
        everywhere.into_iter().chain(of_tenants).flatten().collect()
    }
}

impl SideDoor {
    /// Whether Muster's webhook shuts it where the pod is made anew, so that nobody has to change what makes it.
    pub fn is_shut_by_the_webhook(&self) -> bool {
        matches!(self, Self::Image { .. })
    }

    /// What whoever owns the pod can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Variable(_) => "leave it out, or set it to void",
            Self::DeviceList(_) => "leave the mount out",
            Self::Annotation(_) => "leave it out",
            Self::Gpu(_) => "leave the volume out",
            Self::RuntimeClass(_) => "leave it out, or ask for GPUs",
            Self::Image { .. } => "set its variable NVIDIA_VISIBLE_DEVICES to void",
            Self::Privileged(_) => "leave privileged out, or run it in a namespace of no Team",
            Self::Devices(_) => {
                "name a directory below it, or run the pod in a namespace of no Team"
            }
        }
    }
}

impl fmt::Display for SideDoor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(container) => write!(formatter, "container {container} sets {VARIABLE}"),
            Self::DeviceList(container) => write!(
                formatter,
                "container {container} mounts something below /var/run/{DEVICE_LIST}"
            ),
            Self::Annotation(key) => write!(
                formatter,
                "annotation {} names devices for NVIDIA's runtime",
                shown(key)
            ),
            Self::Gpu(path) => {
                let path = shown(path);
                write!(formatter, "a hostPath volume shows {path}, a GPU")
            }
            Self::RuntimeClass(name) => write!(
                formatter,
                "the RuntimeClass {name} gives it the GPUs that its image names"
            ),
            Self::Image {
                container,
                runtime_class,
            } => write!(
                formatter,
                "the RuntimeClass {runtime_class} gives container {container}, for which no GPU was asked, those that its image names"
            ),
            Self::Privileged(container) => write!(formatter, "container {container} is privileged"),
            Self::Devices(path) => {
                let path = shown(path);
                write!(
                    formatter,
                    "a hostPath volume shows the devices of the node ({path})"
                )
            }
        }
    }
}

/// What containers, init containers and debuggers have in common here.
struct ContainerView<'a> {
    name: &'a str,
    variables: &'a [EnvVar],
    resources: Option<&'a ResourceRequirements>,
    security: Option<&'a SecurityContext>,
    mounts: &'a [VolumeMount],
}

/// Whether NVIDIA's runtime would give it GPUs; what a variable takes from elsewhere is unknown.
fn asks_for_gpus(container: &ContainerView<'_>) -> bool {
    container.variables.iter().any(|variable| {
        let value = variable.value.as_deref();
        variable.name == VARIABLE && value.is_none_or(|value| !NO_DEVICES.contains(&value))
    })
}

fn mounts_device_list(container: &ContainerView<'_>) -> bool {
    let mut mounts = container.mounts.iter();
    mounts.any(|mount| mount.mount_path.contains(DEVICE_LIST))
}

fn device_annotation(pod: &Pod) -> Option<String> {
    let mut keys = pod.metadata.annotations.iter().flat_map(BTreeMap::keys);
    keys.find(|key| key.contains(DEVICE_ANNOTATION)).cloned()
}

/// Whether what its image says of GPUs counts.
fn is_silent(container: &ContainerView<'_>) -> bool {
    !sets_variable(container.variables)
}

/// Whether the variable is among these, whatever its value.
fn sets_variable(variables: &[EnvVar]) -> bool {
    variables.iter().any(|variable| variable.name == VARIABLE)
}

fn is_privileged(container: &ContainerView<'_>) -> bool {
    container
        .security
        .is_some_and(|context| context.privileged == Some(true))
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = ContainerView<'_>> {
    let started = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let started = started.map(|container| ContainerView {
        name: &container.name,
        variables: container.env.as_deref().unwrap_or_default(),
        resources: container.resources.as_ref(),
        security: container.security_context.as_ref(),
        mounts: container.volume_mounts.as_deref().unwrap_or_default(),
    });
    let debuggers = spec.ephemeral_containers.iter().flatten();
    started.chain(debuggers.map(|container| ContainerView {
        name: &container.name,
        variables: container.env.as_deref().unwrap_or_default(),
        resources: container.resources.as_ref(),
        security: container.security_context.as_ref(),
        mounts: container.volume_mounts.as_deref().unwrap_or_default(),
    }))
}

fn host_paths(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let volumes = spec.volumes.iter().flatten();
    volumes.filter_map(|volume| Some(volume.host_path.as_ref()?.path.as_str()))
}

/// The parts of an absolute path, however it is spelled. Kubernetes takes none with `..`.
fn parts(path: &str) -> Option<impl Iterator<Item = &str>> {
    let below_root = path.strip_prefix('/')?;
    Some(
        below_root
            .split('/')
            .filter(|part| !part.is_empty() && *part != "."),
    )
}

/// `/dev/nvidia0` and all that begins in this way.
fn is_gpu(path: &str) -> bool {
    parts(path).is_some_and(|mut parts| {
        parts.next() == Some("dev") && parts.next().is_some_and(|part| part.starts_with("nvidia"))
    })
}

/// `/` and `/dev`.
fn is_all_devices(path: &str) -> bool {
    parts(path).is_some_and(|mut parts| {
        let first = parts.next();
        first.is_none() || (first == Some("dev") && parts.next().is_none())
    })
}

/// A path or a key as it may stand in a log: anybody may write it.
fn shown(path: &str) -> String {
    let mut text = path.escape_debug().to_string();
    truncate(&mut text, SHOWN_BYTES);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side_door_cases::{
        SIDE_DOOR_CASES_RESOURCES, SIDE_DOOR_CASES_RUNTIME_CLASSES, side_door_cases,
    };

    fn side_doors() -> SideDoors {
        SideDoors {
            runtime_classes: SIDE_DOOR_CASES_RUNTIME_CLASSES
                .map(str::to_owned)
                .into_iter()
                .collect(),
            managed: ManagedPods::new(SIDE_DOOR_CASES_RESOURCES).unwrap(),
        }
    }

    #[test]
    fn the_rule_agrees_with_every_case_and_names_the_door() {
        for case in side_door_cases() {
            let pod: Pod = serde_json::from_value(case.pod).unwrap();
            let found = side_doors().of_pod(&pod, case.of_team);
            assert_eq!(found.len(), case.doors.len(), "{}: {found:?}", case.name);
            for (door, words) in found.iter().zip(case.doors) {
                let text = door.to_string();
                assert!(text.contains(words), "{}: {text}", case.name);
                assert!(!door.remedy().is_empty());
            }
        }
    }

    #[test]
    fn a_path_that_anybody_wrote_stays_on_its_line_and_is_cut() {
        let path = format!("/dev/nvidia\n\u{1b}[31m{}", "x".repeat(5_000));
        assert!(is_gpu(&path));
        let text = SideDoor::Gpu(path).to_string();
        assert!(
            text.len() < 200 && !text.contains(['\n', '\u{1b}']),
            "{text}"
        );
    }
}
