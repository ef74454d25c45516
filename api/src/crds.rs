//! The definitions of all custom resources, for `cargo xtask generate`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, Team, Topology};

/// All definitions, in a stable order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        Cohort::crd(),
        Flavor::crd(),
        Gang::crd(),
        Ledger::crd(),
        NodeDevices::crd(),
        PriorityTier::crd(),
        Queue::crd(),
        Team::crd(),
        Topology::crd(),
    ]
}
