//! What pods say about the GPUs that they need: whether what was made of a shorthand is what it says, and whether a pod says how much
//! memory it needs where its Team requires that.

use std::{collections::BTreeMap, mem, sync::Arc};

use muster_api::{ClaimByName, Gang, Reason, VramPolicy, keys};

use super::{Index, NamespacedName, requests::Named};
use crate::{
    formed::{FormedGang, PendingReason},
    gangs::NamespaceTeam,
    pod::{self, ObservedPod},
    shorthand::{CLAIM_NAME, ClassMemory, MemoryDeclaration, Shorthand, resource_says_memory},
    unsupported_field::UnsupportedField,
};

impl Index {
    /// Says for which pods the template of their shorthand cannot be made, with the API server's answer:
    /// all of them, each time.
    pub fn set_refused_templates(&mut self, refused: BTreeMap<NamespacedName, String>) {
        let before = mem::replace(&mut self.refused_templates, refused);
        let changed: Vec<NamespacedName> = before
            .keys()
            .chain(self.refused_templates.keys())
            .filter(|pod| before.get(pod) != self.refused_templates.get(pod))
            .cloned()
            .collect();
        for pod in changed {
            if let Some(uid) = self.pod(&pod).map(|pod| pod::uid(pod).to_owned()) {
                self.forget_request(&pod.namespace, &uid);
            }
            let gang = self.membership.gang_of(&pod);
            self.touched.gangs.extend(gang.cloned());
        }
    }

    /// Whether the claim of a pod's shorthand asks for what the annotations say. Anybody who may write the
    /// namespace's templates could have made another of that name first.
    pub(super) fn check_shorthand(&self, pod: &ObservedPod) -> Result<(), UnsupportedField> {
        let Some(shorthand) = Shorthand::of_pod(pod)? else {
            return Ok(());
        };
        let mut claims = pod.claims().iter().enumerate();
        let Some((index, reference)) = claims.find(|(_, claim)| claim.name == CLAIM_NAME) else {
            return Ok(());
        };
        let template = shorthand.template_name();
        let named = reference.resource_claim_template_name.as_deref();
        let other = named.filter(|named| *named != template);
        let why = match self.named_claim(pod, reference, index)? {
            Named::NotNeeded => return Ok(()),
            Named::Claim(claim) if claim.spec.as_deref() == Some(&shorthand.claim_spec()) => {
                return Ok(());
            }
            // Nobody makes that template any more, and what is there of it asks for something else.
            Named::Claim(_) | Named::Missing(_) if other.is_some() => format!(
                "names ResourceClaimTemplate {}, by which an earlier release meant what the annotations say; it is {template} now: create the pod anew",
                other.unwrap_or_default()
            ),
            Named::Claim(claim) => format!(
                "ResourceClaim {} does not ask for what the annotations say: delete ResourceClaimTemplate {template}, which somebody else made, and create the pod anew",
                claim.name
            ),
            Named::Missing(_) => {
                let pod = NamespacedName::of_pod(pod);
                let Some(answer) = self.refused_templates.get(&pod) else {
                    return Ok(());
                };
                format!("ResourceClaimTemplate {template} cannot be made: {answer}")
            }
        };
        let field = format!("spec.resourceClaims[{index}] ({CLAIM_NAME})");
        Err(UnsupportedField::new(field, why))
    }

    /// Has a gang wait whose Team requires that pods say how much GPU memory they need, if one does not say it.
    ///
    /// The webhook refuses such a pod when it is created, by what it knows then: a claim or a template that was made a moment before it lets
    /// pass, and so is what came in while the webhook was down, or before the Team required it. Here everything is known. What was
    /// admitted stays as it is: a policy that changes ends nobody's run.
    pub(super) fn require_memory(
        &self,
        formed: &mut FormedGang,
        gang: Option<&Gang>,
        pods: &[Arc<ObservedPod>],
    ) {
        let status = gang.and_then(|gang| gang.status.as_ref());
        let is_admitted = status.is_some_and(|status| status.admission.is_some());
        if is_admitted || formed.excepted || formed.wait.is_some() {
            return;
        }
        let NamespaceTeam::Is(team) = self.namespace_team(&formed.key.namespace) else {
            return;
        };
        if team.spec.vram != VramPolicy::Required {
            return;
        }
        let mut waiting = pods.iter().filter(|pod| !pod.is_placed());
        formed.wait = waiting.find_map(|pod| {
            let field = self.silent_about_memory(pod)?;
            let team = team.metadata.name.as_deref().unwrap_or_default();
            Some(PendingReason {
                reason: Reason::VramNotDeclared,
                details: format!(
                    "pod {}: {field}: Team {team} requires that pods say how much GPU memory they need; create it anew with the annotation \
                     {}, or with a claim that asks for memory",
                    pod::name(pod),
                    keys::VRAM
                ),
            })
        });
    }

    /// By which field the pod asks for GPUs without a word about memory.
    fn silent_about_memory(&self, pod: &ObservedPod) -> Option<String> {
        let classes = self.objects.device_classes.items();
        let class = |name: &str| {
            let spec = classes.get(name)?.spec.as_ref()?;
            Some(ClassMemory::of(spec))
        };
        for (index, named) in pod.claims().iter().enumerate() {
            if let Ok(Named::Claim(claim)) = self.named_claim(pod, named, index)
                && let Some(spec) = &claim.spec
                && let Some(field) = MemoryDeclaration::of(spec).missing(class)
            {
                return Some(format!("ResourceClaim {}: {field}", claim.name));
            }
        }
        let request = self.requests.of_pods.get(pod::uid(pod))?.as_ref().ok()?;
        let claims = request.pod.claims.iter();
        let mut by_name = claims.filter_map(|claim| ClaimByName::parse(claim.uid.as_str()));
        let silent = by_name.find(|name| !resource_says_memory(name.resource))?;
        Some(format!("resources.limits[{}]", silent.resource))
    }
}
