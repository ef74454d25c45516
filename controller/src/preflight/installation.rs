//! What of Muster is installed, as its own objects say: their names, the mode, and the nodes that its driver runs on.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{NodeSelectorTerm, PodSpec},
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    programs::Program,
    reading::{self, Reading},
};
use crate::scheduler_config::running::{flag, items, words};

/// The label that the chart gives all its objects.
const LABEL: &str = "app.kubernetes.io/name=muster";
/// Behind the name of the release in that of the controller's Deployment.
const CONTROLLER: &str = "-controller";
/// The same of the driver's DaemonSet.
const DRIVER: &str = "-driver";
/// The same of the Deployment of the chart's own kube-scheduler.
const SCHEDULER: &str = "-scheduler";
/// The same of all Deployments of the chart.
const DEPLOYMENTS: [&str; 4] = [CONTROLLER, "-webhook", "-extender", SCHEDULER];
/// The variable by which the driver is told how to cut GPUs.
const MIG_VARIABLE: &str = "MUSTER_MIG";
/// When the controller evicts the gangs of a silent node, if nothing else is said.
const EVICT_AFTER_SECONDS: u32 = 240;

/// One release of Muster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Installation {
    /// Its namespace.
    pub namespace: String,
    /// Before the names of all its objects.
    pub name: String,
    /// Whether pods are held.
    pub enforces: bool,
    /// Whether kube-scheduler is to ask its extender.
    pub has_extender: bool,
    /// Whether the chart runs a kube-scheduler of its own.
    pub has_scheduler: bool,
    /// The scheduler that managed pods get, if it is not the cluster's.
    pub scheduler_name: Option<String>,
    /// For how long a node is silent before its gangs are evicted.
    pub evict_after_seconds: u32,
    /// The Team of namespaces that name none.
    pub default_team: Option<String>,
    /// Namespaces whose pods are none of its business. `None`: nobody says which.
    pub excluded_namespaces: Option<BTreeSet<String>>,
    /// Where its driver runs.
    pub driver: Option<Driver>,
    /// Pods of its programs.
    pub programs: Vec<Program>,
}

/// The driver's DaemonSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// Its namespace.
    pub namespace: String,
    /// Labels of the nodes that it chooses.
    pub node_selector: BTreeMap<String, String>,
    /// Terms of its required affinity to nodes, of which one must match. `None`: no such affinity.
    pub affinity: Option<Vec<NodeSelectorTerm>>,
    /// How it is to cut GPUs, as it is given to it; `None`: nothing is said.
    pub mig: Option<String>,
}

impl Installation {
    /// Whether programs of it run in this namespace.
    pub fn has_programs_in(&self, namespace: &str) -> bool {
        let driver = self.driver.as_ref();
        namespace == self.namespace || driver.is_some_and(|driver| driver.namespace == namespace)
    }

    /// Whether pods of a namespace that names no Team are nobody's: it is left out, or there is no Team for them.
    pub fn is_left_out(&self, namespace: &str) -> bool {
        let excluded = self.excluded_namespaces.iter().flatten();
        let mut excluded = excluded.map(String::as_str);
        self.default_team.is_none() || excluded.any(|name| name == namespace)
    }

    /// Whether pods of this namespace may be none of its business.
    pub fn may_leave_out(&self, namespace: &str) -> bool {
        let excluded = self.excluded_namespaces.as_ref();
        excluded.is_none_or(|excluded| excluded.contains(namespace))
    }

    /// ServiceAccounts of its programs, as (namespace, name).
    pub fn is_own_account(&self, namespace: &str, name: &str) -> bool {
        let program = name
            .strip_prefix(&self.name)
            .and_then(|rest| rest.strip_prefix('-'));
        let driver = self.driver.as_ref();
        match program {
            Some("driver") => driver.is_some_and(|driver| driver.namespace == namespace),
            Some("controller" | "webhook" | "extender" | "scheduler" | "preflight") => {
                namespace == self.namespace
            }
            _ => false,
        }
    }
}

/// The releases that are seen; only of `namespace`, if that is given.
pub async fn read(client: &Client, namespace: Option<&str>) -> Reading<Vec<Installation>> {
    let labelled = || ListParams::default().labels(LABEL);
    let deployments: Api<Deployment> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let deployments = reading::list(
        deployments,
        labelled(),
        Vec::new(),
        |found: &mut Vec<Deployment>, deployment| found.push(deployment.clone()),
    )
    .await;
    // The driver may be in a namespace of its own.
    let drivers: Api<DaemonSet> = Api::all(client.clone());
    let drivers = reading::list(
        drivers,
        labelled(),
        Vec::new(),
        |found: &mut Vec<DaemonSet>, set| found.push(set.clone()),
    )
    .await;
    Reading {
        found: releases(&deployments.found, &drivers.found),
        unread: deployments.unread.or(drivers.unread),
    }
}

/// What the Deployments and DaemonSets of the chart say.
pub fn releases(deployments: &[Deployment], drivers: &[DaemonSet]) -> Vec<Installation> {
    let mut found: Vec<Installation> = deployments
        .iter()
        .filter_map(|deployment| {
            let name = deployment.name_any().strip_suffix(CONTROLLER)?.to_owned();
            let namespace = deployment.namespace().unwrap_or_default();
            let template = deployment.spec.template.spec.as_ref();
            let beside = |suffix: &str| {
                let wanted = format!("{name}{suffix}");
                deployments.iter().find(|other| {
                    other.name_any() == wanted
                        && other.namespace().as_deref() == Some(namespace.as_str())
                })
            };
            let has_scheduler = beside(SCHEDULER).is_some();
            let set = driver_of(&name, &namespace, drivers);
            let programs = DEPLOYMENTS.into_iter().filter_map(beside);
            let programs = programs.map(Program::of_deployment);
            let programs = programs.chain(set.map(Program::of_daemon_set)).collect();
            Some(Installation {
                has_scheduler,
                driver: set.map(Driver::of),
                programs,
                ..of_controller(name, namespace, template)
            })
        })
        .collect();
    found.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    found
}

fn of_controller(name: String, namespace: String, template: Option<&PodSpec>) -> Installation {
    let words = words(template);
    let evict_after = flag(&words, "node-evict-after-seconds").and_then(|text| text.parse().ok());
    let excluded = items(&words, "excluded-namespace").into_iter();
    let excluded: BTreeSet<String> = excluded
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    Installation {
        name,
        namespace,
        default_team: flag(&words, "default-team").map(str::to_owned),
        excluded_namespaces: (!excluded.is_empty()).then_some(excluded),
        enforces: flag(&words, "mode").is_some_and(|mode| mode.eq_ignore_ascii_case("enforce")),
        has_extender: flag(&words, "extender-ready-url").is_some(),
        scheduler_name: flag(&words, "scheduler-name").map(str::to_owned),
        evict_after_seconds: evict_after.unwrap_or(EVICT_AFTER_SECONDS),
        ..Installation::default()
    }
}

/// The DaemonSet of a release.
fn driver_of<'a>(name: &str, namespace: &str, drivers: &'a [DaemonSet]) -> Option<&'a DaemonSet> {
    let wanted = format!("{name}{DRIVER}");
    let mut named: Vec<&DaemonSet> = drivers
        .iter()
        .filter(|set| set.name_any() == wanted)
        .collect();
    // Another release of the same name may have its own.
    named.sort_by_key(|set| set.namespace().as_deref() != Some(namespace));
    named.first().copied()
}

impl Driver {
    fn of(set: &DaemonSet) -> Self {
        let template = set.spec.template.spec.as_ref();
        let affinity = template
            .and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref())
            .and_then(|affinity| {
                affinity
                    .required_during_scheduling_ignored_during_execution
                    .as_ref()
            });
        Self {
            namespace: set.namespace().unwrap_or_default(),
            node_selector: template
                .and_then(|spec| spec.node_selector.clone())
                .unwrap_or_default(),
            affinity: affinity.map(|required| required.node_selector_terms.clone()),
            mig: mig(template),
        }
    }
}

/// The flag, else the variable: of several of one name the last counts.
fn mig(template: Option<&PodSpec>) -> Option<String> {
    let words = words(template);
    let containers = template.into_iter().flat_map(|spec| &spec.containers);
    let variables = containers.flat_map(|container| container.env.iter().flatten());
    let mut named = variables.filter(|variable| variable.name == MIG_VARIABLE);
    let variable = named
        .next_back()
        .and_then(|variable| variable.value.as_deref());
    flag(&words, "mig").or(variable).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(namespace: &str, name: &str, args: &[&str]) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "c", "args": args}]}}},
        }))
        .unwrap()
    }

    fn daemon_set(namespace: &str, name: &str, selector: &Value) -> DaemonSet {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"selector": {}, "template": {"spec": {"containers": [], "nodeSelector": selector}}},
        }))
        .unwrap()
    }

    #[test]
    fn a_release_is_told_by_its_controller_and_its_driver() {
        let deployments = [
            deployment(
                "gpus",
                "gangs-controller",
                &[
                    "run",
                    "--mode=enforce",
                    "--extender-ready-url=http://a/readyz",
                    "--scheduler-name=gangs",
                    "--node-evict-after-seconds=120",
                    "--default-team=ml",
                    "--excluded-namespace=gpus,kube-system",
                ],
            ),
            deployment("gpus", "gangs-scheduler", &[]),
            deployment("gpus", "gangs-webhook", &[]),
        ];
        let drivers = [daemon_set(
            "gpu-drivers",
            "gangs-driver",
            &json!({"gpu": "yes"}),
        )];
        let found = releases(&deployments, &drivers);
        let expected = Installation {
            namespace: "gpus".to_owned(),
            name: "gangs".to_owned(),
            enforces: true,
            has_extender: true,
            has_scheduler: true,
            scheduler_name: Some("gangs".to_owned()),
            evict_after_seconds: 120,
            default_team: Some("ml".to_owned()),
            excluded_namespaces: Some(["gpus", "kube-system"].map(str::to_owned).into()),
            driver: Some(Driver {
                namespace: "gpu-drivers".to_owned(),
                node_selector: [("gpu".to_owned(), "yes".to_owned())].into(),
                affinity: None,
                mig: None,
            }),
            programs: [&deployments[0], &deployments[2], &deployments[1]]
                .map(Program::of_deployment)
                .into_iter()
                .chain([Program::of_daemon_set(&drivers[0])])
                .collect(),
        };
        assert_eq!(found, [expected]);
        for (namespace, name, own) in [
            ("gpus", "gangs-controller", true),
            ("gpus", "gangs-driver", false),
            ("gpu-drivers", "gangs-driver", true),
            ("ml", "gangs-controller", false),
            ("gpus", "gangs-other", false),
        ] {
            assert_eq!(
                found[0].is_own_account(namespace, name),
                own,
                "{namespace}/{name}"
            );
        }
    }

    #[test]
    fn a_controller_that_says_nothing_observes_and_what_is_no_controller_is_no_release() {
        let found = releases(
            &[deployment("a", "muster-controller", &["--mode=observe"])],
            &[],
        );
        assert!(!found[0].enforces && !found[0].has_extender);
        assert_eq!(found[0].driver, None);
        assert_eq!(found[0].excluded_namespaces, None);
        assert_eq!(found[0].evict_after_seconds, 240);
        assert!(releases(&[deployment("a", "muster-webhook", &[])], &[]).is_empty());
    }

    #[test]
    fn how_a_driver_cuts_gpus_is_said_by_its_flag_else_by_the_last_variable_of_the_name() {
        let variable = |value: &str| json!({"name": "MUSTER_MIG", "value": value});
        for (args, variables, expected) in [
            (vec![], vec![], None),
            (vec![], vec![variable("{}")], Some("{}")),
            (vec![], vec![variable("{}"), variable("[]")], Some("[]")),
            (
                vec!["--mig={\"mode\":\"Off\"}"],
                vec![variable("{}")],
                Some("{\"mode\":\"Off\"}"),
            ),
        ] {
            let mut set = daemon_set("gpus", "gangs-driver", &json!({}));
            let container = json!([{"name": "driver", "args": args, "env": variables}]);
            let template = set.spec.template.spec.as_mut().unwrap();
            template.containers = serde_json::from_value(container).unwrap();
            let found = releases(&[deployment("gpus", "gangs-controller", &[])], &[set]);
            let driver = found[0].driver.as_ref().unwrap();
            assert_eq!(driver.mig.as_deref(), expected);
        }
    }

    #[test]
    fn where_a_driver_runs_is_said_by_its_required_affinity_too() {
        let mut set = daemon_set("gpus", "gangs-driver", &json!({}));
        let affinity = json!({"nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [],
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]}}});
        let template = set.spec.template.spec.as_mut().unwrap();
        template.affinity = serde_json::from_value(affinity).unwrap();
        let found = releases(&[deployment("gpus", "gangs-controller", &[])], &[set]);
        let terms = found[0].driver.as_ref().unwrap().affinity.as_ref().unwrap();
        let expression = &terms[0].match_expressions.as_ref().unwrap()[0];
        assert_eq!(expression.key, "pool");
    }
}
