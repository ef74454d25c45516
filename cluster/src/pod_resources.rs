//! What a pod takes of a node besides devices, as kube-scheduler counts it.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use muster_engine::PodResources;

use crate::quantity::{self, QuantityError};

/// A list of resources with its path.
type Listed<'a> = Option<&'a BTreeMap<String, Quantity>>;

/// What the pod takes: the larger of its containers' sum and of the most that its init containers
/// need at a time, sidecars (init containers with `restartPolicy: Always`) counted from where they
/// start; pod-level requests instead, where it has them; plus the overhead of its runtime class.
/// In-place resizes that the kubelet has not carried out yet are counted by `spec` alone.
pub fn of_pod(pod: &Pod) -> Result<PodResources, QuantityError> {
    let mut taken = PodResources {
        cpu_milli: 0,
        memory_bytes: 0,
        pods: 1,
        ..PodResources::default()
    };
    let Some(spec) = &pod.spec else {
        return Ok(taken);
    };
    let mut together = Sum::default();
    for (index, container) in spec.containers.iter().enumerate() {
        together.add(Sum::of(container, &format!("spec.containers[{index}]"))?)?;
    }
    let mut sidecars = Sum::default();
    let mut most_at_a_time = Sum::default();
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let own = Sum::of(container, &format!("spec.initContainers[{index}]"))?;
        let mut at_a_time = sidecars;
        at_a_time.add(own)?;
        most_at_a_time.raise_to(&at_a_time);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(own)?;
        }
    }
    together.add(sidecars)?;
    together.raise_to(&most_at_a_time);
    if let Some(resources) = &spec.resources {
        let (cpu, memory) = requested(resources, "spec.resources")?;
        together.cpu_milli = cpu.unwrap_or(together.cpu_milli);
        together.memory_bytes = memory.unwrap_or(together.memory_bytes);
    }
    let overhead = spec.overhead.as_ref();
    together.add(Sum {
        cpu_milli: read(overhead, "cpu", "spec.overhead", quantity::milli)?.unwrap_or(0),
        memory_bytes: read(overhead, "memory", "spec.overhead", quantity::units)?.unwrap_or(0),
    })?;
    taken.cpu_milli = together.cpu_milli;
    taken.memory_bytes = together.memory_bytes;
    Ok(taken)
}

/// What pods may take of a node together: its allocatable.
pub fn of_node(allocatable: Listed<'_>) -> Result<PodResources, QuantityError> {
    let field = "status.allocatable";
    Ok(PodResources {
        cpu_milli: read(allocatable, "cpu", field, quantity::milli)?.unwrap_or(0),
        memory_bytes: read(allocatable, "memory", field, quantity::units)?.unwrap_or(0),
        pods: read(allocatable, "pods", field, quantity::units)?.unwrap_or(0),
        ..PodResources::default()
    })
}

/// The sum, with what does not fit counted as all that can be: then nothing more fits there.
pub fn saturating_add(a: PodResources, b: PodResources) -> PodResources {
    PodResources {
        cpu_milli: a.cpu_milli.saturating_add(b.cpu_milli),
        memory_bytes: a.memory_bytes.saturating_add(b.memory_bytes),
        pods: a.pods.saturating_add(b.pods),
        ..PodResources::default()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    cpu_milli: i64,
    memory_bytes: i64,
}

impl Sum {
    fn of(container: &Container, path: &str) -> Result<Self, QuantityError> {
        let Some(resources) = &container.resources else {
            return Ok(Self::default());
        };
        let (cpu, memory) = requested(resources, &format!("{path}.resources"))?;
        Ok(Self {
            cpu_milli: cpu.unwrap_or(0),
            memory_bytes: memory.unwrap_or(0),
        })
    }

    fn add(&mut self, other: Self) -> Result<(), QuantityError> {
        let sum = |a: i64, b: i64| {
            a.checked_add(b).ok_or_else(|| QuantityError {
                field: "spec.containers[*].resources.requests".to_owned(),
                text: format!("{a} + {b}"),
                cause: quantity::QuantityFault::Overflow,
            })
        };
        self.cpu_milli = sum(self.cpu_milli, other.cpu_milli)?;
        self.memory_bytes = sum(self.memory_bytes, other.memory_bytes)?;
        Ok(())
    }

    fn raise_to(&mut self, other: &Self) {
        self.cpu_milli = self.cpu_milli.max(other.cpu_milli);
        self.memory_bytes = self.memory_bytes.max(other.memory_bytes);
    }
}

/// Requests of cpu and memory; where only a limit is given it is the request, as Kubernetes defaults it.
fn requested(
    resources: &ResourceRequirements,
    path: &str,
) -> Result<(Option<i64>, Option<i64>), QuantityError> {
    let either = |name: &str, reader: fn(&str, &str) -> Result<i64, QuantityError>| {
        let requests = read(
            resources.requests.as_ref(),
            name,
            &format!("{path}.requests"),
            reader,
        )?;
        match requests {
            Some(amount) => Ok(Some(amount)),
            None => read(
                resources.limits.as_ref(),
                name,
                &format!("{path}.limits"),
                reader,
            ),
        }
    };
    Ok((
        either("cpu", quantity::milli)?,
        either("memory", quantity::units)?,
    ))
}

fn read(
    list: Listed<'_>,
    name: &str,
    path: &str,
    reader: fn(&str, &str) -> Result<i64, QuantityError>,
) -> Result<Option<i64>, QuantityError> {
    list.and_then(|list| list.get(name))
        .map(|quantity| reader(&quantity.0, &format!("{path}[{name}]")))
        .transpose()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn taken(spec: &Value) -> Result<(i64, i64), QuantityError> {
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        of_pod(&pod).map(|taken| (taken.cpu_milli, taken.memory_bytes))
    }

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Ki"}}})
    }

    fn sidecar(cpu: &str) -> Value {
        let mut container = container(cpu);
        container["restartPolicy"] = json!("Always");
        container
    }

    #[test]
    fn a_pod_takes_what_kube_scheduler_counts() {
        let limit = json!({"name": "c", "resources": {"limits": {"cpu": "3"}, "requests": {"memory": "2Ki"}}});
        for (what, spec, cpu_milli, memory_bytes) in [
            ("nothing", json!({"containers": [{"name": "c"}]}), 0, 0),
            (
                "the sum of its containers",
                json!({"containers": [container("1"), container("500m")]}),
                1500,
                2048,
            ),
            (
                "a limit where there is no request",
                json!({"containers": [limit]}),
                3000,
                2048,
            ),
            (
                "the largest init container, if that is more",
                json!({"containers": [container("1")], "initContainers": [container("2"), container("3")]}),
                3000,
                1024,
            ),
            (
                "sidecars beside the containers",
                json!({"containers": [container("1")], "initContainers": [sidecar("2")]}),
                3000,
                2048,
            ),
            (
                "sidecars beside the init containers after them",
                json!({"containers": [container("1")], "initContainers": [container("4"), sidecar("2"), container("3")]}),
                5000,
                2048,
            ),
            (
                "the pod's own request instead",
                json!({"containers": [container("1")], "resources": {"requests": {"cpu": "8"}}}),
                8000,
                1024,
            ),
            (
                "its overhead",
                json!({"containers": [container("1")], "overhead": {"cpu": "250m", "memory": "1Ki"}}),
                1250,
                2048,
            ),
        ] {
            assert_eq!(taken(&spec), Ok((cpu_milli, memory_bytes)), "{what}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_an_error_that_names_its_field() {
        let error = taken(&json!({"containers": [container("1"), container("-1")]})).unwrap_err();
        assert_eq!(error.field, "spec.containers[1].resources.requests[cpu]");
        let error =
            taken(&json!({"containers": [container("9e15"), container("9e15")]})).unwrap_err();
        assert_eq!(error.cause, quantity::QuantityFault::Overflow);
    }

    #[test]
    fn a_sum_that_does_not_fit_fills_the_node() {
        let most = PodResources {
            cpu_milli: i64::MAX,
            memory_bytes: 1,
            pods: 1,
            ..PodResources::default()
        };
        assert_eq!(saturating_add(most.clone(), most).cpu_milli, i64::MAX);
    }
}
