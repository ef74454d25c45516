//! The gRPC that the kubelet speaks to its DRA plugins, client and server, and by which it tells what device plugins gave.
//!
//! The definitions in `proto/` are our own and hold only what the protocol needs: package, service,
//! method and field numbers are those of `k8s.io/kubelet` (`pkg/apis/pluginregistration/v1`,
//! `pkg/apis/dra/v1` and `v1beta1`, `pkg/apis/dra-health/v1` and `v1alpha1`,
//! `pkg/apis/podresources/v1`, checked at 0.37.1).
//!
//! What the field numbers do not say, and a server must keep to:
//! * every claim of a request has an entry in the answer, and what goes wrong with one claim is said
//!   in its entry: an error of the call discards the answers of all others;
//! * `request_names` are names of main requests (`gpu`, never `gpu/large`);
//! * an empty list of claims succeeds at once (liveness probes send it);
//! * a health message is the complete list, and is repeated before the entries time out (30 s).

/// Plugin registration: who we are, and where our calls are served.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Preparing and unpreparing of claims.
pub mod dra {
    /// Kubelet 1.34 and later.
    #[allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        reason = "generated"
    )]
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }

    /// Kubelet 1.32 and later. Differs from [`super::v1`] by the share id only.
    #[allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        reason = "generated"
    )]
    pub mod v1beta1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }
}

/// Health of devices, as a stream of complete lists.
pub mod health {
    /// Kubelet 1.37 and later.
    #[allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        reason = "generated"
    )]
    pub mod v1 {
        tonic::include_proto!("v1");
    }

    /// Kubelet 1.34 to 1.39.
    #[allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::pedantic,
        reason = "generated"
    )]
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}

/// What containers of the node were given by device plugins.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated"
)]
pub mod pod_resources {
    include!(concat!(env!("OUT_DIR"), "/pod_resources/v1.rs"));
}

/// `PluginInfo.type` of a DRA driver.
pub const PLUGIN_TYPE: &str = "DRAPlugin";

/// Names of the services, as `PluginInfo.supported_versions` lists them. The kubelet takes the first
/// DRA service of the list that it knows, so the newest stands first.
pub const SUPPORTED_VERSIONS: [&str; 4] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];
