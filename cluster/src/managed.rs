//! The one definition of which pods may hold devices, and which are managed.
//!
//! The webhook's `matchConditions`, admission policy (a) and the Rust predicate must agree about
//! every pod: a pod that one of them overlooks runs on GPUs without a charge, or waits for a gate
//! that nobody takes. So all three are made from one value of [`ManagedPods`], and
//! [`crate::managed_cases::managed_cases`] is the table that each of them is tested with.
//!
//! For a pod it counts that a resource is **named**, also with quantity zero: an expression that
//! compares quantities would cost more in every admission than the few extra pods it spares. Which
//! of its containers gets a device is another question: there zero is nothing.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use muster_api::keys;

use crate::device_plugin::{NVIDIA_RESOURCES, is_of_gpus};

/// No device. The API server writes every zero in this way.
const ZERO: &str = "0";

/// Says which pods may hold devices.
///
/// A pod *may hold devices* if it has any `resourceClaims`, names one of the listed resources or one
/// that begins with `deviceclass.resource.kubernetes.io/` in requests or limits of a container or
/// init container, or carries a shorthand annotation. It is *managed* if it may hold devices or
/// carries the label `muster.dev/gang`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedPods {
    names: Vec<String>,
    prefixes: Vec<String>,
}

/// What is wrong with a list of resources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "extended resource {0:?}: must be a resource name such as nvidia.com/gpu, or the beginning of one followed by one `*`, such as nvidia.com/mig-*"
)]
pub struct InvalidResourcePattern(pub String);

impl ManagedPods {
    /// Takes the extended resources that stand for devices: names, or beginnings of names followed
    /// by `*`. Letters, digits, `-`, `_`, `.` and one `/` only, so that no entry can change the
    /// meaning of the CEL text it is put into.
    pub fn new<I>(extended_resources: I) -> Result<Self, InvalidResourcePattern>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let mut names = Vec::new();
        let mut prefixes = vec![keys::DEVICE_CLASS_RESOURCE_PREFIX.to_owned()];
        for entry in extended_resources {
            let entry: String = entry.into();
            let (text, list) = match entry.strip_suffix('*') {
                Some(prefix) => (prefix, &mut prefixes),
                None => (entry.as_str(), &mut names),
            };
            if !is_resource_text(text) {
                return Err(InvalidResourcePattern(entry));
            }
            list.push(text.to_owned());
        }
        Ok(Self { names, prefixes })
    }

    /// Whether the resource stands for devices.
    pub fn stands_for_devices(&self, resource: &str) -> bool {
        self.names.iter().any(|name| name == resource)
            || self
                .prefixes
                .iter()
                .any(|prefix| resource.starts_with(prefix.as_str()))
    }

    /// Whether the pod may hold devices.
    pub fn may_hold_devices(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return false };
        spec.resource_claims
            .as_ref()
            .is_some_and(|claims| !claims.is_empty())
            || containers(pod).any(|container| self.asks_for_devices(container))
            || pod
                .metadata
                .annotations
                .as_ref()
                .is_some_and(|annotations| {
                    keys::SHORTHAND
                        .iter()
                        .any(|key| annotations.contains_key(*key))
                })
    }

    /// Whether the pod is managed.
    pub fn is_managed(&self, pod: &Pod) -> bool {
        self.may_hold_devices(pod)
            || pod
                .metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key(keys::GANG))
    }

    /// Whether a container with these `resources` gets devices that their names stand for, as of a device plugin. What a plugin of
    /// NVIDIA's gives counts here also where it is not managed: a GPU that nobody counts was asked for all the same.
    pub fn names_devices(&self, resources: Option<&ResourceRequirements>) -> bool {
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        let mut limits = limits.into_iter().flatten();
        limits.any(|(name, amount)| amount.0 != ZERO && is_of_gpus(name, self))
    }

    /// Whether a container with these `resources` gets devices: by a claim, or by name.
    pub fn gives_devices(&self, resources: Option<&ResourceRequirements>) -> bool {
        let claims = resources.and_then(|resources| resources.claims.as_ref());
        claims.is_some_and(|claims| !claims.is_empty()) || self.names_devices(resources)
    }

    /// The CEL expression over `c` (a container) that says the same.
    pub fn gives_devices_expression(&self) -> String {
        let listed = self.listed_expression();
        let nvidia = NVIDIA_RESOURCES.map(|name| format!("r.startsWith('{name}')"));
        let nvidia = nvidia.join(" || ");
        format!(
            "has(c.resources) && ((has(c.resources.claims) && c.resources.claims.size() > 0) || (has(c.resources.limits) && c.resources.limits.exists(r, ({listed} || {nvidia}) && c.resources.limits[r] != '{ZERO}')))"
        )
    }

    /// The CEL expression over `object` (a Pod) that is true for managed pods: the one match
    /// condition of the webhook.
    pub fn match_condition(&self) -> String {
        format!(
            "{} || {}",
            self.may_hold_devices_expression(),
            in_map("object.metadata.labels", &[keys::GANG])
        )
    }

    /// The CEL validation of admission policy (a), over `object` (a Pod that is being created): a
    /// managed pod carries our gate and names no node.
    pub fn created_gated_expression(&self) -> String {
        format!(
            "!({}) || ({})",
            self.match_condition(),
            Self::gated_expression()
        )
    }

    /// The CEL expression over `object` (a Pod) that is true if it carries our gate and names no node.
    pub fn gated_expression() -> String {
        format!(
            "has(object.spec.schedulingGates) && object.spec.schedulingGates.exists(g, g.name == '{}') && (!has(object.spec.nodeName) || object.spec.nodeName == '')",
            keys::ADMISSION_GATE
        )
    }

    fn asks_for_devices(&self, container: &Container) -> bool {
        container.resources.as_ref().is_some_and(|resources| {
            [&resources.requests, &resources.limits]
                .into_iter()
                .flatten()
                .flat_map(std::collections::BTreeMap::keys)
                .any(|name| self.stands_for_devices(name))
        })
    }

    /// The CEL expression over `object` (a Pod) that is true if it may hold devices.
    pub fn may_hold_devices_expression(&self) -> String {
        let claims =
            "has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0".to_owned();
        let resources = self.names_resource_expression();
        let containers = format!("object.spec.containers.exists(c, {resources})");
        let init_containers = format!(
            "has(object.spec.initContainers) && object.spec.initContainers.exists(c, {resources})"
        );
        let shorthand = in_map("object.metadata.annotations", &keys::SHORTHAND);
        format!("({claims}) || {containers} || ({init_containers}) || {shorthand}")
    }

    /// True of a resource `r` that stands for devices.
    fn listed_expression(&self) -> String {
        let names = self.names.iter().map(|name| format!("r == '{name}'"));
        let prefixes = self
            .prefixes
            .iter()
            .map(|prefix| format!("r.startsWith('{prefix}')"));
        names.chain(prefixes).collect::<Vec<_>>().join(" || ")
    }

    /// True of a container `c` that names a listed resource in requests or limits.
    fn names_resource_expression(&self) -> String {
        let listed = self.listed_expression();
        let one = |field: &str| {
            format!("(has(c.resources.{field}) && c.resources.{field}.exists(r, {listed}))")
        };
        format!(
            "has(c.resources) && ({} || {})",
            one("limits"),
            one("requests")
        )
    }
}

/// All containers that may name resources.
fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| {
        spec.containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
    })
}

fn in_map(map: &str, keys: &[&str]) -> String {
    let any = keys
        .iter()
        .map(|key| format!("'{key}' in {map}"))
        .collect::<Vec<_>>()
        .join(" || ");
    format!("(has({map}) && ({any}))")
}

fn is_resource_text(text: &str) -> bool {
    !text.is_empty()
        && text.matches('/').count() <= 1
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
}

#[cfg(test)]
mod tests {
    use kube_cel::{
        KubeCelExt,
        cel::{Context, Program, Value, to_value},
    };

    use super::*;
    use crate::managed_cases::{MANAGED_CASES_RESOURCES, managed_cases};

    fn managed() -> ManagedPods {
        ManagedPods::new(MANAGED_CASES_RESOURCES).unwrap()
    }

    fn evaluate(expression: &str, object: &serde_json::Value) -> Value {
        let mut context = Context::default().with_all();
        context.add_variable_from_value("object", to_value(object).unwrap());
        Program::compile(expression)
            .unwrap()
            .execute(&context)
            .unwrap()
    }

    #[test]
    fn the_predicate_agrees_with_every_case() {
        for case in managed_cases() {
            let pod: Pod = serde_json::from_value(case.pod).unwrap();
            assert_eq!(managed().is_managed(&pod), case.managed, "{}", case.name);
        }
    }

    #[test]
    fn the_match_condition_agrees_with_every_case() {
        let expression = managed().match_condition();
        for case in managed_cases() {
            assert_eq!(
                evaluate(&expression, &case.pod),
                Value::Bool(case.managed),
                "{}",
                case.name
            );
        }
    }

    #[test]
    fn whether_a_pod_may_hold_devices_is_said_alike_in_both_languages() {
        let expression = managed().may_hold_devices_expression();
        let mut labelled_only = 0;
        for case in managed_cases() {
            let pod: Pod = serde_json::from_value(case.pod.clone()).unwrap();
            let holds = managed().may_hold_devices(&pod);
            labelled_only += usize::from(case.managed && !holds);
            assert_eq!(
                evaluate(&expression, &case.pod),
                Value::Bool(holds),
                "{}",
                case.name
            );
        }
        assert_ne!(labelled_only, 0, "some are managed by their label alone");
    }

    #[test]
    fn the_policy_agrees_with_every_case() {
        let expression = managed().created_gated_expression();
        for case in managed_cases() {
            assert_eq!(
                evaluate(&expression, &case.pod),
                Value::Bool(case.may_be_created),
                "{}",
                case.name
            );
        }
    }

    #[test]
    fn a_pattern_that_could_change_the_expression_is_refused() {
        for pattern in [
            "",
            "*",
            "a b",
            "x' || true || '",
            "nvidia.com/*/x",
            "a/b/c",
            "nvidia.com/**",
        ] {
            assert_eq!(
                ManagedPods::new([pattern]),
                Err(InvalidResourcePattern(pattern.to_owned()))
            );
        }
    }

    #[test]
    fn without_any_listed_resource_claims_and_device_classes_still_count() {
        let managed = ManagedPods::new(Vec::<String>::new()).unwrap();
        assert!(managed.stands_for_devices("deviceclass.resource.kubernetes.io/x"));
        assert!(!managed.stands_for_devices("nvidia.com/gpu"));
        assert!(Program::compile(&managed.match_condition()).is_ok());
    }
}
