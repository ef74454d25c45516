//! What a pod takes of a node besides devices, as kube-scheduler counts it.

use std::{collections::BTreeMap, net::IpAddr};

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use muster_engine::{HostPort, HostPortProtocol, PodResources};

use crate::quantity::{self, QuantityError};

/// A list of resources with its path.
type Listed<'a> = Option<&'a BTreeMap<String, Quantity>>;

/// What the pod takes, as kube-scheduler counts it.
///
/// The larger of its containers' sum and of the most that its init containers need at a time, sidecars (init containers
/// with `restartPolicy: Always`) counted from where they start; pod-level requests instead, where it has them; plus the
/// overhead of its runtime class. In-place resizes that the kubelet has not carried out yet are counted by `spec` alone.
/// Anti-affinity is filled in by [`crate::pod_terms`].
pub fn of_pod(pod: &Pod) -> Result<PodResources, QuantityError> {
    let mut taken = PodResources {
        pods: 1,
        ..PodResources::default()
    };
    let Some(spec) = &pod.spec else {
        return Ok(taken);
    };
    let mut together = Amounts::default();
    for (index, container) in spec.containers.iter().enumerate() {
        together.add(&requested(
            container.resources.as_ref(),
            &format!("spec.containers[{index}].resources"),
        )?)?;
        host_ports(container, &mut taken);
    }
    let mut sidecars = Amounts::default();
    let mut most_at_a_time = Amounts::default();
    for (index, container) in spec.init_containers.iter().flatten().enumerate() {
        let own = requested(
            container.resources.as_ref(),
            &format!("spec.initContainers[{index}].resources"),
        )?;
        let mut at_a_time = sidecars.clone();
        at_a_time.add(&own)?;
        most_at_a_time.raise_to(at_a_time);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars.add(&own)?;
            host_ports(container, &mut taken);
        }
    }
    together.add(&sidecars)?;
    together.raise_to(most_at_a_time);
    together.replace_by(requested(spec.resources.as_ref(), "spec.resources")?);
    together.add(&Amounts::read(spec.overhead.as_ref(), "spec.overhead")?)?;
    together.write_to(&mut taken);
    Ok(taken)
}

/// What pods may take of a node together: its allocatable. A resource that it does not list is one that it has none of.
pub fn of_node(allocatable: Listed<'_>) -> Result<PodResources, QuantityError> {
    let mut resources = PodResources::default();
    let mut amounts = Amounts::read(allocatable, "status.allocatable")?;
    resources.pods = amounts.0.remove("pods").unwrap_or(0);
    amounts.write_to(&mut resources);
    Ok(resources)
}

/// The sum. What does not fit counts as all that can be, so that nothing more fits there.
pub fn saturating_add(mut a: PodResources, b: PodResources) -> PodResources {
    a.cpu_milli = a.cpu_milli.saturating_add(b.cpu_milli);
    a.memory_bytes = a.memory_bytes.saturating_add(b.memory_bytes);
    a.pods = a.pods.saturating_add(b.pods);
    for (name, amount) in b.others {
        let sum = a.others.entry(name).or_default();
        *sum = sum.saturating_add(amount);
    }
    a.host_ports.extend(b.host_ports);
    a.repels.extend(b.repels);
    a.matched_by.extend(b.matched_by);
    a
}

/// Amounts by resource: cpu in thousandths, everything else in whole units.
#[derive(Clone, Debug, Default)]
struct Amounts(BTreeMap<String, i64>);

impl Amounts {
    fn read(list: Listed<'_>, path: &str) -> Result<Self, QuantityError> {
        let amounts = list.into_iter().flatten().map(|(name, quantity)| {
            let field = format!("{path}[{name}]");
            let amount = match name.as_str() {
                "cpu" => quantity::milli(&quantity.0, &field)?,
                _ => quantity::units(&quantity.0, &field)?,
            };
            Ok((name.clone(), amount))
        });
        amounts.collect::<Result<_, _>>().map(Self)
    }

    fn add(&mut self, other: &Self) -> Result<(), QuantityError> {
        for (name, amount) in &other.0 {
            let sum = self.0.entry(name.clone()).or_default();
            *sum = sum.checked_add(*amount).ok_or_else(|| QuantityError {
                field: format!("spec.containers[*].resources.requests[{name}]"),
                text: format!("{sum} + {amount}"),
                cause: quantity::QuantityFault::Overflow,
            })?;
        }
        Ok(())
    }

    fn raise_to(&mut self, other: Self) {
        for (name, amount) in other.0 {
            let most = self.0.entry(name).or_default();
            *most = amount.max(*most);
        }
    }

    fn replace_by(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn write_to(mut self, resources: &mut PodResources) {
        resources.cpu_milli = self.0.remove("cpu").unwrap_or(0);
        resources.memory_bytes = self.0.remove("memory").unwrap_or(0);
        let others = self.0.into_iter().filter(|(_, amount)| *amount > 0);
        resources.others = others.map(|(name, amount)| (name.into(), amount)).collect();
    }
}

/// Requests. Where only a limit is given it is the request, as Kubernetes defaults it.
fn requested(
    resources: Option<&ResourceRequirements>,
    path: &str,
) -> Result<Amounts, QuantityError> {
    let Some(resources) = resources else {
        return Ok(Amounts::default());
    };
    let mut amounts = Amounts::read(resources.limits.as_ref(), &format!("{path}.limits"))?;
    amounts.replace_by(Amounts::read(
        resources.requests.as_ref(),
        &format!("{path}.requests"),
    )?);
    Ok(amounts)
}

/// The ports of the host that a container binds. The API server fills them in for pods with `hostNetwork`.
fn host_ports(container: &Container, taken: &mut PodResources) {
    for port in container.ports.iter().flatten() {
        let number = port.host_port.and_then(|port| u16::try_from(port).ok());
        let Some(number) = number.filter(|number| *number > 0) else {
            continue;
        };
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => HostPortProtocol::Udp,
            Some("SCTP") => HostPortProtocol::Sctp,
            _ => HostPortProtocol::Tcp,
        };
        // What cannot be read, or is unspecified, counts as every address.
        let ip = port.host_ip.as_deref().and_then(|ip| ip.parse().ok());
        taken.host_ports.insert(HostPort {
            protocol,
            ip: ip.filter(|ip: &IpAddr| !ip.is_unspecified()),
            port: number,
        });
    }
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
    fn every_resource_of_a_pod_is_counted_and_zero_is_none() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "a", "resources": {
                "requests": {"hugepages-2Mi": "1Gi", "ephemeral-storage": "2Gi"},
                "limits": {"rdma/hca": "1", "muster.dev/managed": "0"},
            }},
            {"name": "b", "resources": {"limits": {"rdma/hca": "2"}}},
        ]}}))
        .unwrap();
        let others: Vec<(String, i64)> = of_pod(&pod)
            .unwrap()
            .others
            .into_iter()
            .map(|(name, amount)| (name.to_string(), amount))
            .collect();
        let expected = [
            ("ephemeral-storage", 2 << 30),
            ("hugepages-2Mi", 1 << 30),
            ("rdma/hca", 3),
        ];
        assert_eq!(
            others,
            expected.map(|(name, amount)| (name.to_owned(), amount))
        );
        let allocatable = serde_json::from_value(
            json!({"cpu": "1", "pods": "110", "vpc.amazonaws.com/efa": "32"}),
        )
        .unwrap();
        let node = of_node(Some(&allocatable)).unwrap();
        assert_eq!((node.cpu_milli, node.pods), (1000, 110));
        assert_eq!(node.others.into_values().collect::<Vec<_>>(), [32]);
    }

    #[test]
    fn ports_of_the_host_are_counted_for_containers_and_sidecars() {
        let container = |restart: Option<&str>, port: Value| json!({"name": "c", "restartPolicy": restart, "ports": [port]});
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [
                container(None, json!({"containerPort": 1, "hostPort": 29500, "hostIP": "0.0.0.0"})),
                container(None, json!({"containerPort": 80})),
            ],
            "initContainers": [
                container(Some("Always"), json!({"containerPort": 2, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"})),
                container(None, json!({"containerPort": 3, "hostPort": 54})),
            ],
        }}))
        .unwrap();
        let port = |protocol, ip: Option<&str>, port| HostPort {
            protocol,
            ip: ip.map(|ip| ip.parse().unwrap()),
            port,
        };
        assert_eq!(
            of_pod(&pod)
                .unwrap()
                .host_ports
                .into_iter()
                .collect::<Vec<_>>(),
            [
                port(HostPortProtocol::Tcp, None, 29500),
                port(HostPortProtocol::Udp, Some("10.0.0.1"), 53),
            ]
        );
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
