//! NVIDIA's container toolkit: whether its runtime gives GPUs to containers that asked for none.
//!
//! Its settings lie on the nodes. What the API shows of them is what GPU Operator's DaemonSet is told, the handlers that kubelets
//! name, and RuntimeClasses.

use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Container, node::v1::RuntimeClass};
use kube::{Api, Client, ResourceExt, api::ListParams};

use super::{
    finding::{Finding, Reason},
    installation::Installation,
    nodes::Nodes,
    policies::Policies,
    reading::{self, Reading},
};
use crate::listing::Names;

/// In the name of its image.
const IMAGE: &str = "container-toolkit";
/// In names of GPU Operator's other images, which may carry that word too.
const VALIDATOR: &str = "validator";
/// Whether its runtime becomes the default one, in the spellings that there are; it does if nobody says anything.
const SET_AS_DEFAULT: [&str; 4] = [
    "NVIDIA_RUNTIME_SET_AS_DEFAULT",
    "CONTAINERD_SET_AS_DEFAULT",
    "CRIO_SET_AS_DEFAULT",
    "DOCKER_SET_AS_DEFAULT",
];
/// Whether a container gets the GPUs that its variable names; it does if nobody says anything.
const ACCEPT_VARIABLE: &str = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED";

/// What a DaemonSet tells the toolkit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolkit {
    name: String,
    is_default: Option<bool>,
    accepts_variable: Option<bool>,
    /// Variables that come from elsewhere, of which the values are not seen.
    has_hidden_values: bool,
}

impl Toolkit {
    fn of(set: &DaemonSet) -> Option<Self> {
        let pod = set.spec.template.spec.as_ref()?;
        let container = pod.containers.iter().find(|container| {
            let image = container.image.as_deref().unwrap_or_default();
            image.contains(IMAGE) && !image.contains(VALIDATOR)
        })?;
        let default = SET_AS_DEFAULT
            .iter()
            .filter_map(|name| value(container, name))
            // Which of two wins depends on the toolkit's version.
            .reduce(|one, other| one || other);
        let hidden = container
            .env_from
            .as_ref()
            .is_some_and(|from| !from.is_empty())
            || container
                .env
                .iter()
                .flatten()
                .any(|variable| is_ours(&variable.name) && variable.value_from.is_some());
        Some(Self {
            name: format!("{}/{}", set.namespace().unwrap_or_default(), set.name_any()),
            is_default: default,
            accepts_variable: value(container, ACCEPT_VARIABLE),
            has_hidden_values: hidden,
        })
    }
}

fn is_ours(name: &str) -> bool {
    name == ACCEPT_VARIABLE || SET_AS_DEFAULT.contains(&name)
}

fn value(container: &Container, name: &str) -> Option<bool> {
    let variables = container.env.iter().flatten();
    let value = variables
        .filter(|variable| variable.name == name)
        .filter_map(|variable| variable.value.as_deref())
        .next_back()?;
    Some(!matches!(
        value.to_ascii_lowercase().as_str(),
        "false" | "0" | "f"
    ))
}

/// What DaemonSets tell the toolkit.
pub async fn read(client: &Client) -> Reading<Vec<Toolkit>> {
    let sets: Api<DaemonSet> = Api::all(client.clone());
    reading::list(
        sets,
        ListParams::default(),
        Vec::new(),
        |found: &mut Vec<Toolkit>, set| {
            found.extend(Toolkit::of(set));
        },
    )
    .await
}

/// RuntimeClasses whose handler is NVIDIA's.
pub async fn read_classes(client: &Client) -> Reading<Vec<String>> {
    let classes: Api<RuntimeClass> = Api::all(client.clone());
    reading::list(
        classes,
        ListParams::default(),
        Vec::new(),
        |found: &mut Vec<String>, class| {
            if class.handler.starts_with("nvidia") {
                found.push(class.name_any());
            }
        },
    )
    .await
}

/// What the toolkit is told, and nodes on which nobody sees it.
pub fn of_settings(toolkits: &Reading<Vec<Toolkit>>, nodes: &Reading<Nodes>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for toolkit in &toolkits.found {
        if toolkit.has_hidden_values {
            findings.push(Finding::new(
                Reason::NotVisible,
                &toolkit.name,
                "some of the toolkit's variables come from other objects and were not looked at",
                "Look at them yourself: the runtime must not be the default one, nor accept NVIDIA_VISIBLE_DEVICES",
            ));
            continue;
        }
        let is_default = toolkit.is_default.unwrap_or(true);
        let accepts = toolkit.accepts_variable.unwrap_or(true);
        // A runtime that nobody uses by accident gives nobody a GPU by accident.
        if is_default && accepts {
            findings.push(Finding::new(
                Reason::NvidiaVariableAccepted,
                &toolkit.name,
                format!(
                    "{ACCEPT_VARIABLE} is not false, so any image that sets NVIDIA_VISIBLE_DEVICES, as CUDA's do, gets GPUs without quota"
                ),
                format!("Set {ACCEPT_VARIABLE}=false in GPU Operator's toolkit.env"),
            ));
        }
        if is_default {
            let told = if toolkit.is_default.is_some() {
                "is made"
            } else {
                "becomes, as nothing else is said,"
            };
            findings.push(Finding::new(
                Reason::NvidiaRuntimeIsDefault,
                &toolkit.name,
                format!("NVIDIA's runtime {told} the default one of its nodes; Muster needs none of it"),
                "Set NVIDIA_RUNTIME_SET_AS_DEFAULT=false and CONTAINERD_SET_AS_DEFAULT=false in GPU Operator's toolkit.env",
            ));
        }
    }
    let (which, group) = nodes.found.relevant();
    let set_up = &group.nvidia_runtime;
    if toolkits.found.is_empty() && !set_up.is_empty() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "NVIDIA's runtime",
            format!(
                "{} nodes {which} have it, set up outside of the API, where its settings were not looked at ({})",
                set_up.count(),
                set_up.list()
            ),
            "Look there: default_runtime_name must not be nvidia, or accept-nvidia-visible-devices-envvar-when-unprivileged must be \
             false in /etc/nvidia-container-runtime/config.toml",
        ));
    }
    let unnamed = &group.without_handlers;
    if toolkits.found.is_empty() && !unnamed.is_empty() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "NVIDIA's runtime",
            format!(
                "kubelets of {} nodes {which} do not name the handlers of their container runtime, so nobody sees here whether \
                 NVIDIA's is one ({})",
                unnamed.count(),
                unnamed.list()
            ),
            "Look there whether the container runtime's configuration names nvidia, above all as default_runtime_name",
        ));
    }
    if toolkits.unread.is_none()
        && toolkits.found.is_empty()
        && let Some(unread) = &nodes.unread
    {
        findings.push(unread.finding());
        return findings;
    }
    toolkits.or_passed(findings, || {
        Finding::passed(
            "NVIDIA's runtime",
            format!(
                "{} DaemonSets install it, none as the default runtime",
                toolkits.found.len()
            ),
        )
    })
}

/// RuntimeClasses by which a pod may choose NVIDIA's runtime, beside those that the policy about side doors knows.
pub fn of_classes(
    classes: &Reading<Vec<String>>,
    policies: &Reading<Policies>,
    installation: &Installation,
) -> Vec<Finding> {
    let name = format!("{}-pod-side-door", installation.name);
    let policy = policies.found.get(&name);
    if let (None, Some(unread)) = (policy, &policies.unread) {
        return vec![unread.finding()];
    }
    let Some(policy) = policy else {
        return vec![Finding::new(
            Reason::SideDoorsOpen,
            "sideDoors.refuse",
            "no policy refuses pods that come to GPUs past their claims",
            "Set sideDoors.refuse=true in the chart",
        )];
    };
    // The chart names them in a variable, which the validations use.
    let expressions: Vec<&str> = policy
        .spec
        .iter()
        .flat_map(|spec| spec.variables.iter().flatten())
        .map(|variable| variable.expression.as_str())
        .collect();
    let mut unknown = Names::default();
    for class in &classes.found {
        let quoted = format!("\"{class}\"");
        if !expressions
            .iter()
            .any(|expression| expression.contains(&quoted))
        {
            unknown.add(|| class.clone());
        }
    }
    let mut findings = Vec::new();
    if !unknown.is_empty() {
        findings.push(Finding::new(
            Reason::SideDoorRuntimeClass,
            "runtimeclasses.node.k8s.io",
            format!(
                "{} RuntimeClasses choose NVIDIA's runtime and are not refused to pods without a claim ({})",
                unknown.count(),
                unknown.list()
            ),
            "Add them to sideDoors.runtimeClasses in the chart, or delete them",
        ));
    }
    classes.or_passed(findings, || {
        Finding::passed(
            "runtimeclasses.node.k8s.io",
            format!(
                "{} choose NVIDIA's runtime, and a policy refuses them",
                classes.found.len()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use muster_serve::client::{CALL_LIMIT, CallError};
    use serde_json::{Value, json};

    use super::*;
    use crate::preflight::{
        nodes::tests::{nodes, served},
        reading::Unread,
    };

    fn daemon_set(image: &str, env: &Value) -> DaemonSet {
        serde_json::from_value(json!({"metadata": {"namespace": "gpu-operator", "name": "toolkit"}, "spec": {"selector": {},
            "template": {"spec": {"containers": [{"name": "c", "image": image, "env": env}]}}}}))
        .unwrap()
    }

    fn env(of: &[(&str, &str)]) -> Value {
        of.iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect()
    }

    #[test]
    fn a_runtime_that_is_the_default_one_is_told_even_if_nobody_says_so() {
        use Reason::{NotVisible, NvidiaRuntimeIsDefault, NvidiaVariableAccepted, Passed};
        const IMAGE: &str = "nvcr.io/nvidia/k8s/container-toolkit:v1.19.0";
        let hidden = json!([{"name": ACCEPT_VARIABLE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]);
        for (image, env, expected) in [
            (
                IMAGE,
                env(&[]),
                vec![NvidiaVariableAccepted, NvidiaRuntimeIsDefault],
            ),
            (
                IMAGE,
                env(&[
                    ("CONTAINERD_SET_AS_DEFAULT", "true"),
                    (ACCEPT_VARIABLE, "false"),
                ]),
                vec![NvidiaRuntimeIsDefault],
            ),
            (
                IMAGE,
                env(&[("NVIDIA_RUNTIME_SET_AS_DEFAULT", "false")]),
                vec![Passed],
            ),
            (
                IMAGE,
                env(&[
                    ("NVIDIA_RUNTIME_SET_AS_DEFAULT", "false"),
                    ("CONTAINERD_SET_AS_DEFAULT", "true"),
                ]),
                vec![NvidiaVariableAccepted, NvidiaRuntimeIsDefault],
            ),
            (IMAGE, hidden, vec![NotVisible]),
            (
                "nvcr.io/nvidia/cloud-native/gpu-operator-validator",
                env(&[]),
                vec![Passed],
            ),
        ] {
            let toolkits: Vec<Toolkit> =
                Toolkit::of(&daemon_set(image, &env)).into_iter().collect();
            let found = of_settings(&Reading::whole(toolkits), &Reading::default());
            let reasons: Vec<Reason> = found.iter().map(|finding| finding.reason).collect();
            assert_eq!(reasons, expected, "{env}");
        }
    }

    #[test]
    fn a_runtime_that_somebody_set_up_on_the_nodes_is_not_taken_for_a_good_one() {
        let status = json!({"runtimeHandlers": [{"name": ""}, {"name": "nvidia"}]});
        for (status, expected) in [
            (status, Reason::NotVisible),
            (
                json!({"runtimeHandlers": [{"name": "runc"}]}),
                Reason::Passed,
            ),
            // As containerd 1.7 has it.
            (json!({}), Reason::NotVisible),
            (json!({"runtimeHandlers": []}), Reason::NotVisible),
        ] {
            let nodes = Reading::whole(nodes(&[served("a", &status)]));
            let found = of_settings(&Reading::whole(Vec::new()), &nodes);
            assert_eq!((found.len(), found[0].reason), (1, expected), "{found:?}");
        }
        let unread = Unread::failed("list", "nodes", &CallError::Timeout(CALL_LIMIT));
        let nodes = Reading {
            found: Nodes::default(),
            unread: Some(unread),
        };
        let found = of_settings(&Reading::whole(Vec::new()), &nodes);
        assert_eq!(found[0].reason, Reason::ReadFailed, "{found:?}");
    }

    #[test]
    fn runtime_classes_that_the_policy_does_not_name_are_side_doors() {
        let name = "muster-pod-side-door";
        // As the chart of this version renders them.
        let rendered: Value = serde_json::from_str(include_str!("expressions.json")).unwrap();
        let rendered = &rendered["pod-side-door"]["variables"];
        let variables: Vec<Value> = rendered
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, expression)| {
                let expression = expression.as_str().unwrap();
                let named = expression.replace("«any»", r#"["nvidia","nvidia-cdi"]"#);
                json!({"name": name, "expression": named})
            })
            .collect();
        let policy = serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": {"variables": variables}}),
        )
        .unwrap();
        let closed = Policies::from([(name.to_owned(), policy)]);
        let installation = Installation {
            name: "muster".to_owned(),
            ..Installation::default()
        };
        for (classes, policies, expected) in [
            (vec!["nvidia"], closed.clone(), Reason::Passed),
            (
                vec!["nvidia", "nvidia-experimental"],
                closed,
                Reason::SideDoorRuntimeClass,
            ),
            (vec![], Policies::new(), Reason::SideDoorsOpen),
        ] {
            let classes = classes.into_iter().map(str::to_owned).collect();
            let policies = Reading::whole(policies);
            let found = of_classes(&Reading::whole(classes), &policies, &installation);
            assert_eq!((found.len(), found[0].reason), (1, expected), "{found:?}");
        }
    }
}
