//! The definitions of all custom resources, for `cargo xtask generate` and for who compares them with those of a cluster.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{
    Cohort, FaultPolicy, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, Team, Topology,
};

/// All definitions, in a stable order.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        Cohort::crd(),
        FaultPolicy::crd(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_table_shows_of_gpus_is_all_of_the_flavor_that_it_names() {
        let of_gpus = r#".status.limits[?(@.resource=="gpus")]."#;
        for (definition, columns) in [
            (Cohort::crd(), &["Flavor", "GPUs", "Used"][..]),
            (Team::crd(), &["Flavor", "GPUs", "Used"]),
            (Queue::crd(), &["Flavor", "Used", "Nominal", "Available"]),
        ] {
            let version = &definition.spec.versions[0];
            let shown = version.additional_printer_columns.iter().flatten();
            let of_gpus = shown.filter(|column| column.json_path.starts_with(of_gpus));
            let names: Vec<&str> = of_gpus.map(|column| column.name.as_str()).collect();
            assert_eq!(names, columns, "{}", definition.spec.names.kind);
        }
    }
}
