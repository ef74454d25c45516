//! The network that a control plane is in.

use std::net::Ipv4Addr;

use crate::loopback::Loopback;

/// The network that a control plane is in.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Where all of its programs serve.
    pub address: Ipv4Addr,
    /// Where Services have their addresses.
    pub services: &'static str,
    /// The first of them: that of the API server itself.
    pub kubernetes_service: Ipv4Addr,
    /// Whether pods and kubelets are reached from here. Then the API server calls webhooks by the pods behind their Service, lends
    /// pods its own address, and speaks with kubelets for logs and `exec`.
    pub reaches_pods: bool,
}

impl From<&Loopback> for Network {
    /// A machine that has one network for everybody: pods have addresses on loopback, and Services lead nowhere.
    fn from(loopback: &Loopback) -> Self {
        Self {
            address: loopback.address(),
            services: "10.0.0.0/24",
            kubernetes_service: Ipv4Addr::new(10, 0, 0, 1),
            reaches_pods: false,
        }
    }
}
