//! Addresses of a lab. Its network is a namespace of its own without a way out, so they need not differ from anybody's.

use std::net::Ipv4Addr;

use crate::control_plane::Network;

/// Of the bridge that all machines are connected to; the control plane serves there.
pub const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 1);
/// The network of the bridge.
pub const MACHINES: &str = "10.90.0.0/24";
/// Of the cluster's DNS.
pub const DNS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// What pods have their addresses from.
pub const PODS: &str = "10.244.0.0/16";

/// The network of the control plane.
pub const CONTROL_PLANE: Network = Network {
    address: BRIDGE,
    services: "10.96.0.0/16",
    kubernetes_service: Ipv4Addr::new(10, 96, 0, 1),
    reaches_pods: true,
};

/// Address of the machine with this number.
pub fn machine(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 90, 0, 10 + number)
}

/// The network of the pods on the machine with this number.
pub fn pods_of(number: u8) -> String {
    format!("10.244.{number}.0/24")
}
