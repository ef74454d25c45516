//! CEL texts that the Helm chart takes over from the one definition of *managed* (`muster_cluster::managed`).
//!
//! The list of resources is a value of the chart, so the texts name one stand-in resource, and the chart
//! puts its list in the place of [`STAND_IN`]. `cargo xtask generate` writes the files; a test fails where
//! they differ.

use muster_cluster::managed::{InvalidResourcePattern, ManagedPods};

/// Resource that stands for the chart's list.
pub const STAND_IN: &str = "muster.dev/listed-resource";

/// The generated files: path from the root of the repository, and content.
pub fn generated_files() -> Result<Vec<(&'static str, String)>, InvalidResourcePattern> {
    let managed = ManagedPods::new([STAND_IN])?;
    Ok(vec![
        (
            "deploy/helm/muster/files/managed.cel",
            format!("{}\n", managed.match_condition()),
        ),
        (
            "deploy/helm/muster/files/devices.cel",
            format!("{}\n", managed.may_hold_devices_expression()),
        ),
        (
            "deploy/helm/muster/files/given.cel",
            format!("{}\n", managed.gives_devices_expression()),
        ),
        (
            "deploy/helm/muster/files/gated.cel",
            format!("{}\n", ManagedPods::gated_expression()),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_charts_cel_is_what_the_definition_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (path, content) in generated_files().unwrap() {
            let found = std::fs::read_to_string(root.join(path)).unwrap_or_default();
            assert_eq!(found, content, "{path} is stale: run cargo xtask generate");
        }
    }

    /// The chart replaces exactly this term.
    #[test]
    fn the_stand_in_is_one_term_of_each_expression_about_devices() {
        let managed = ManagedPods::new([STAND_IN]).unwrap();
        for expression in [
            managed.match_condition(),
            managed.may_hold_devices_expression(),
            managed.gives_devices_expression(),
        ] {
            let term = format!("r == '{STAND_IN}'");
            assert!(expression.contains(&term), "{expression}");
        }
    }
}
