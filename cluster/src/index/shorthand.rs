//! Pods that only say how many GPUs they need: whether what was made of it is what they said.

use std::{collections::BTreeMap, mem};

use super::{Index, NamespacedName, requests::Named};
use crate::{
    pod::{self, ObservedPod},
    shorthand::{CLAIM_NAME, Shorthand},
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
        let why = match self.named_claim(pod, reference, index)? {
            Named::NotNeeded => return Ok(()),
            Named::Claim(claim) if claim.spec.as_deref() == Some(&shorthand.claim_spec()) => {
                return Ok(());
            }
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
}
