//! A Team's rule about GPU memory (`spec.vram`): what becomes of pods that do not say how much they need.
//!
//! What a pod's claims say is known from watches, which may be late. **What is not known is let through**: the controller, which
//! sees the pod together with its claims, judges it again, and has its gang wait with the same reason. To refuse it instead would
//! refuse every pod that is created in one breath with its template, as people do (`kubectl apply -f` of one file).

use k8s_openapi::api::core::v1::PodSpec;
use muster_api::{Reason, TeamSpec, VramPolicy, keys};
use muster_cluster::{
    shorthand::{CLAIM_NAME, Shorthand, resource_says_memory},
    text::quoted,
};

use crate::{cache::Cache, declared::Declared, finding::Findings};

/// A pod, or the template of a Job's pods.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// What it declares.
    pub declared: &'a Declared<'a>,
    /// Its spec.
    pub spec: Option<&'a PodSpec>,
    /// Where that is in the object.
    pub spec_path: &'static str,
    /// The namespace that it is created in.
    pub namespace: &'a str,
}

/// A shorthand as it counts.
#[derive(Clone, Debug)]
pub struct Said<'a> {
    /// With its Team's amount of memory, if it says none.
    pub shorthand: Shorthand,
    /// That amount, where it was taken.
    pub default_memory: Option<&'a str>,
}

/// The shorthand of a pod, with its Team's default. `None`: it has none, or one that is refused.
pub fn with_default<'a>(
    declared: &Declared<'_>,
    namespace: &str,
    facts: &'a Cache,
) -> Option<Said<'a>> {
    let shorthand = declared.shorthand().ok()??;
    let default = facts
        .team_of(namespace)
        .and_then(|(_, team)| default_memory(team))
        .filter(|_| shorthand.memory_bytes().is_none());
    // One that cannot be read was there before this version: Teams are refused for it.
    let with_default = default.and_then(|text| {
        let shorthand = shorthand.clone().with_memory(text).ok()?;
        Some(Said {
            shorthand,
            default_memory: Some(text),
        })
    });
    Some(with_default.unwrap_or(Said {
        shorthand,
        default_memory: None,
    }))
}

fn default_memory(team: &TeamSpec) -> Option<&str> {
    let default = team.vram_default.as_ref()?;
    (team.vram == VramPolicy::Default).then_some(default.0.as_str())
}

/// Checks a pod or a pod template by its Team's rule. `resources`: what it asks for of device plugins.
pub fn check(asking: &Asking<'_>, resources: &[String], facts: &Cache, findings: &mut Findings) {
    let Some((team, spec)) = facts.team_of(asking.namespace) else {
        return;
    };
    if spec.vram == VramPolicy::Off {
        return;
    }
    let Some(silent) = silent(asking, resources, facts) else {
        return;
    };
    match spec.vram {
        VramPolicy::Required => {
            let there_are = match facts.gpus.described() {
                none if none.is_empty() => String::new(),
                gpus => format!("; there are: {gpus}"),
            };
            findings.error(
                Reason::VramNotDeclared,
                silent.field,
                format!(
                    "{}team {team} requires that pods say how much GPU memory they need: {}{there_are}",
                    silent.what, silent.remedy
                ),
            );
        }
        VramPolicy::Default if silent.gets_default => {}
        VramPolicy::Default => findings.warn(format!(
            "{}: {}team {team} gives {} where nothing is said, and what a claim or limits ask for cannot be changed: {}",
            silent.field,
            silent.what,
            default_memory(spec).unwrap_or_default(),
            silent.remedy
        )),
        VramPolicy::Off => {}
    }
}

/// What asks for GPUs without a word about memory.
struct Silent {
    field: String,
    /// What it names, to be put in front of a message.
    what: String,
    remedy: String,
    /// Whether it is given the Team's default.
    gets_default: bool,
}

fn silent(asking: &Asking<'_>, resources: &[String], facts: &Cache) -> Option<Silent> {
    let annotate = format!("annotate the pod with {}, 40Gi say", keys::VRAM);
    match asking.declared.shorthand() {
        // It is refused for what is wrong with it.
        Err(_) => return None,
        Ok(Some(shorthand)) if shorthand.memory_bytes().is_none() => {
            return Some(Silent {
                field: asking.declared.annotation_path(keys::VRAM),
                what: "is missing; ".to_owned(),
                remedy: "write the memory of one GPU, 40Gi say".to_owned(),
                gets_default: true,
            });
        }
        Ok(_) => {}
    }
    if let Some(silent) = silent_claim(asking, facts) {
        return Some(silent);
    }
    let resource = resources.iter().find(|name| !resource_says_memory(name))?;
    Some(Silent {
        field: format!(
            "{}.containers[*].resources.limits[{resource}]",
            asking.spec_path
        ),
        what: String::new(),
        remedy: format!("{annotate}, instead of that"),
        gets_default: false,
    })
}

/// The first claim that is known to say nothing.
fn silent_claim(asking: &Asking<'_>, facts: &Cache) -> Option<Silent> {
    let claims = asking.spec?.resource_claims.iter().flatten().enumerate();
    // What a shorthand stands for says what the shorthand says. Without one the name says nothing.
    let has_shorthand = matches!(asking.declared.shorthand(), Ok(Some(_)));
    let mut claims = claims.filter(|(_, claim)| !has_shorthand || claim.name != CLAIM_NAME);
    claims.find_map(|(index, claim)| {
        let template = claim.resource_claim_template_name.as_deref();
        let (kind, name, known) = match (template, claim.resource_claim_name.as_deref()) {
            (Some(name), _) => ("ResourceClaimTemplate", name, &facts.silent_templates),
            (None, Some(name)) => ("ResourceClaim", name, &facts.silent_claims),
            (None, None) => return None,
        };
        let declaration = known.get(asking.namespace, name)?;
        let class = |class: &str| facts.device_classes.get(class).copied();
        let field = declaration.missing(class)?;
        Some(Silent {
            field: format!("{}.resourceClaims[{index}]", asking.spec_path),
            what: format!("{kind} {}: {field} does not say it; ", quoted(name)),
            remedy: "ask for capacity.requests of memory, or for a profile, in another one"
                .to_owned(),
            gets_default: false,
        })
    })
}

#[cfg(test)]
mod tests;
