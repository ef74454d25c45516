//! What a pod lacks, as operations of a JSON patch.
//!
//! Each says what is to be added to the pod **as it came**; none depends on another, so that their order does
//! not matter, and none says anything about a pod that lacks nothing.

use std::collections::BTreeMap;

use json_patch::{
    AddOperation, PatchOperation,
    jsonptr::{PointerBuf, Token},
};
use k8s_openapi::{
    api::core::v1::{Container, PodSpec, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use muster_api::keys;
use muster_cluster::{
    managed::ManagedPods,
    shorthand::CLAIM_NAME,
    side_doors::{VARIABLE, VOID, needs_void},
};
use serde_json::{Map, Value, json};

use crate::shorthand::Claim;

/// The scheduler name that the API server writes into pods that name none.
const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// The marker needs nothing of a node: zero.
const MARKER_QUANTITY: &str = "0";

/// Our scheduling gate.
pub fn gate(spec: &PodSpec) -> Option<PatchOperation> {
    let gate = json!({"name": keys::ADMISSION_GATE});
    match &spec.scheduling_gates {
        Some(gates) if gates.iter().any(|gate| gate.name == keys::ADMISSION_GATE) => None,
        Some(_) => Some(add(["spec", "schedulingGates", "-"], gate)),
        None => Some(add(["spec", "schedulingGates"], json!([gate]))),
    }
}

/// The scheduler, for pods that name none.
pub fn scheduler(spec: &PodSpec, wanted: &str) -> Option<PatchOperation> {
    let current = spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    (current == DEFAULT_SCHEDULER && current != wanted)
        .then(|| add(["spec", "schedulerName"], json!(wanted)))
}

/// How much memory each GPU of a shorthand has, which names others of its annotations: there are some.
pub fn memory(amount: &str) -> PatchOperation {
    add(["metadata", "annotations", keys::VRAM], json!(amount))
}

/// The pod's reference to the claim of its shorthand.
pub fn claim(spec: &PodSpec, claim: &Claim) -> Option<PatchOperation> {
    let reference = json!(claim.reference);
    match &spec.resource_claims {
        Some(claims) if claims.iter().any(|claim| claim.name == CLAIM_NAME) => None,
        Some(_) => Some(add(["spec", "resourceClaims", "-"], reference)),
        None => Some(add(["spec", "resourceClaims"], json!([reference]))),
    }
}

/// The marker in the first container, and the claim in the container that gets it.
pub fn resources(spec: &PodSpec, marked: bool, claim: Option<&Claim>) -> Vec<PatchOperation> {
    let mut operations = Vec::new();
    for (list, index, container) in containers(spec) {
        let wanted = Wanted {
            marker: marked && list == "containers" && index == 0,
            claim: claim.is_some_and(|claim| claim.container == Some((list, index))),
        };
        operations.extend(wanted.of(list, index, container.resources.as_ref()));
    }
    operations
}

/// The containers of a pod, each with the list that it is in and its place there.
fn containers(spec: &PodSpec) -> impl Iterator<Item = (&'static str, usize, &Container)> {
    let main = spec.containers.iter().enumerate();
    let main = main.map(|(index, container)| ("containers", index, container));
    let init = spec.init_containers.iter().flatten().enumerate();
    main.chain(init.map(|(index, container)| ("initContainers", index, container)))
}

/// What keeps NVIDIA's runtime from giving a container the GPUs that its image names. It wins over `envFrom`, too; what the pod sets
/// itself is the pod's, and the policy about side doors judges it.
pub fn void(spec: &PodSpec, managed: &ManagedPods) -> Vec<PatchOperation> {
    let variable = json!({"name": VARIABLE, "value": VOID});
    let mut operations = Vec::new();
    for (list, index, container) in containers(spec) {
        if !needs_void(container, managed) {
            continue;
        }
        let index = index.to_string();
        let path = ["spec", list, &index, "env"];
        operations.push(match &container.env {
            Some(_) => add(path.into_iter().chain(["-"]), variable.clone()),
            None => add(path, json!([variable])),
        });
    }
    operations
}

/// What is to stand in the `resources` of one container.
struct Wanted {
    marker: bool,
    claim: bool,
}

impl Wanted {
    fn of(
        &self,
        list: &str,
        index: usize,
        resources: Option<&ResourceRequirements>,
    ) -> Vec<PatchOperation> {
        let index = index.to_string();
        let path = ["spec", list, &index, "resources"];
        let Some(resources) = resources else {
            let whole = self.whole();
            return (!whole.is_empty())
                .then(|| add(path, Value::Object(whole)))
                .into_iter()
                .collect();
        };
        let mut operations = Vec::new();
        if self.marker {
            for (field, amounts) in [
                ("limits", &resources.limits),
                ("requests", &resources.requests),
            ] {
                operations.extend(mark(path, field, amounts.as_ref()));
            }
        }
        if self.claim {
            let used = json!({"name": CLAIM_NAME});
            operations.push(match &resources.claims {
                Some(_) => add(path.into_iter().chain(["claims", "-"]), used),
                None => add(path.into_iter().chain(["claims"]), json!([used])),
            });
        }
        operations
    }

    fn whole(&self) -> Map<String, Value> {
        let mut whole = Map::new();
        if self.marker {
            let marked = json!({keys::MARKER_RESOURCE: MARKER_QUANTITY});
            whole.insert("limits".to_owned(), marked.clone());
            whole.insert("requests".to_owned(), marked);
        }
        if self.claim {
            whole.insert("claims".to_owned(), json!([{"name": CLAIM_NAME}]));
        }
        whole
    }
}

fn mark(
    path: [&str; 4],
    field: &str,
    present: Option<&BTreeMap<String, Quantity>>,
) -> Option<PatchOperation> {
    let Some(amounts) = present else {
        let marked = json!({keys::MARKER_RESOURCE: MARKER_QUANTITY});
        return Some(add(path.into_iter().chain([field]), marked));
    };
    let value = amounts.get(keys::MARKER_RESOURCE);
    let missing = value.is_none_or(|value| value.0 != MARKER_QUANTITY);
    let path = path.into_iter().chain([field, keys::MARKER_RESOURCE]);
    missing.then(|| add(path, json!(MARKER_QUANTITY)))
}

fn add<'a>(tokens: impl IntoIterator<Item = &'a str>, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(tokens.into_iter().map(Token::new)),
        value,
    })
}
