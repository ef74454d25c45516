//! The shorthand in pods and in pod templates: which container gets the claim, and what is refused.
//!
//! What it asks for is read by `muster_cluster::shorthand`. It stands beside claims of other names, for
//! network cards say. A request that no GPU meets is refused, as long as any GPU is known; one that only needs
//! more of them on a node than there are waits, and is warned of: a larger node may come.

use k8s_openapi::api::core::v1::{Container, PodResourceClaim, PodSpec};
use muster_api::{Reason, keys};
use muster_cluster::{
    quantity::written_bytes,
    shorthand::{CLAIM_NAME, Shorthand},
    text::quoted,
};

use crate::{
    declared::Declared,
    finding::{Findings, listed},
    gpus::Gpus,
};

/// The claim of a shorthand in one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// How the pod refers to it.
    pub reference: PodResourceClaim,
    /// The container that has yet to get it: list of the spec and position.
    pub container: Option<Place>,
}

/// A container, by list of the spec (`containers`, `initContainers`) and position.
pub type Place = (&'static str, usize);

/// The claim that a pod is to get for its shorthand. `None`: that is refused.
///
/// A container that is put first by somebody's webhook after ours must not get the claim as well: where none
/// is named, the claim stays where it is.
pub fn claim(shorthand: &Shorthand, spec: &PodSpec) -> Option<Claim> {
    let reference = shorthand.reference();
    if conflicting(spec, &reference).is_some() {
        return None;
    }
    let (place, has_it) = if let Some(name) = shorthand.container() {
        let (place, named) = containers(spec).find(|(_, one)| one.name == name)?;
        (place, has_claim(named))
    } else {
        let (place, _) = containers(spec).next()?;
        (place, containers(spec).any(|(_, one)| has_claim(one)))
    };
    Some(Claim {
        reference,
        container: (!has_it).then_some(place),
    })
}

/// Checks the shorthand of a pod or pod template. `spec_path` is where the pod's spec is in the object.
pub fn check(
    declared: &Declared<'_>,
    spec: Option<&PodSpec>,
    spec_path: &str,
    gpus: &Gpus,
    findings: &mut Findings,
) {
    let shorthand = match declared.shorthand() {
        Ok(None) => return,
        Ok(Some(shorthand)) => shorthand,
        Err(errors) => {
            for error in errors {
                let path = declared.annotation_path(error.annotation);
                findings.error(Reason::InvalidValue, path, error.why);
            }
            return;
        }
    };
    if let Some(spec) = spec {
        check_container(declared, &shorthand, spec, findings);
        check_name(&shorthand, spec, spec_path, findings);
    }
    warn_of_no_effect(declared, &shorthand, findings);
    check_gpus(declared, &shorthand, gpus, findings);
}

/// On a Job itself it would be ignored, and the pods would start without GPUs.
pub fn check_absent(declared: &Declared<'_>, findings: &mut Findings) {
    for key in keys::SHORTHAND {
        if declared.annotation(key).is_some() {
            findings.error(
                Reason::InvalidValue,
                declared.annotation_path(key),
                format!(
                    "has no effect on a Job: write it to spec.template.metadata.annotations[{key}]"
                ),
            );
        }
    }
}

fn has_claim(container: &Container) -> bool {
    let resources = container.resources.as_ref();
    let mut claims = resources
        .iter()
        .flat_map(|resources| resources.claims.iter().flatten());
    claims.any(|claim| claim.name == CLAIM_NAME)
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = (Place, &Container)> {
    let main = spec.containers.iter().enumerate();
    let init = spec.init_containers.iter().flatten().enumerate();
    main.map(|(index, container)| (("containers", index), container))
        .chain(init.map(|(index, container)| (("initContainers", index), container)))
}

/// Position of a claim that has the name of ours and is another.
fn conflicting(spec: &PodSpec, reference: &PodResourceClaim) -> Option<usize> {
    let mut claims = spec.resource_claims.iter().flatten();
    claims.position(|claim| claim.name == reference.name && claim != reference)
}

fn check_container(
    declared: &Declared<'_>,
    shorthand: &Shorthand,
    spec: &PodSpec,
    findings: &mut Findings,
) {
    let Some(name) = shorthand.container() else {
        return;
    };
    if containers(spec).any(|(_, container)| container.name == name) {
        return;
    }
    let names = listed(containers(spec).map(|(_, container)| container.name.as_str()));
    findings.error(
        Reason::InvalidValue,
        declared.annotation_path(keys::CONTAINER),
        format!(
            "{}: the pod has no such container; it has: {names}",
            quoted(name)
        ),
    );
}

fn check_name(shorthand: &Shorthand, spec: &PodSpec, spec_path: &str, findings: &mut Findings) {
    if let Some(index) = conflicting(spec, &shorthand.reference()) {
        findings.error(
            Reason::InvalidValue,
            format!("{spec_path}.resourceClaims[{index}].name"),
            format!(
                "{CLAIM_NAME:?} is the claim that {} and {} stand for: give this one another name, or leave it out",
                keys::GPUS,
                keys::VRAM
            ),
        );
    }
}

fn warn_of_no_effect(declared: &Declared<'_>, shorthand: &Shorthand, findings: &mut Findings) {
    if shorthand.gpus() == 1 && shorthand.interconnect().is_some() {
        findings.warn(format!(
            "{} has no effect: one GPU has none to be connected to",
            declared.annotation_path(keys::INTERCONNECT)
        ));
    }
}

fn check_gpus(
    declared: &Declared<'_>,
    shorthand: &Shorthand,
    gpus: &Gpus,
    findings: &mut Findings,
) {
    let memory = shorthand.memory_bytes().map(written_bytes);
    if let Some(memory) = memory.as_ref().filter(|_| !gpus.some_fit(shorthand)) {
        let smaller = gpus.nearest_smaller(shorthand);
        let smaller = smaller.map_or_else(String::new, |smaller| {
            format!("the nearest smaller one has {smaller}; ")
        });
        findings.error(
            Reason::PlacementImpossible,
            declared.annotation_path(keys::VRAM),
            format!(
                "no GPU has {memory}; {smaller}there are: {}",
                gpus.described()
            ),
        );
        return;
    }
    if shorthand.takes_slices() {
        return;
    }
    if let Err(most) = gpus.enough_on_one_node(shorthand)
        && most > 0
    {
        let memory = memory.map_or_else(String::new, |memory| format!(" with {memory} or more"));
        let connected = shorthand
            .interconnect()
            .map_or_else(String::new, |by| format!(" connected by {}", by.as_str()));
        findings.warn(format!(
            "{}: the GPUs of a pod are of one node, and no node has {} GPUs{memory}{connected}, but {most} at the most: the pod waits for a larger one",
            declared.annotation_path(keys::GPUS),
            shorthand.gpus(),
        ));
    }
}

#[cfg(test)]
mod tests;
