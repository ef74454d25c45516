//! Profiles: who takes which pods, and with which plugins.

use std::collections::BTreeSet;

use serde_json::Value;

use super::fields::whole_number;
use crate::scheduler_config::{
    Request, document, merge,
    refusal::{Reason, Refusal},
    refused,
    target::{DEFAULT_SCHEDULER, Target},
};

/// What Muster relies on, with the points at which a profile may switch each off: gates hold pods, pins place them, and claims
/// are allocated.
const NEEDED: [(&str, &[&str]); 3] = [
    ("SchedulingGates", &["multiPoint", "preEnqueue"]),
    ("NodeAffinity", &["multiPoint", "filter"]),
    (
        "DynamicResources",
        &["multiPoint", "preFilter", "filter", "reserve", "preBind"],
    ),
];

/// Names of the profiles, if kube-scheduler starts with them and none switches off what Muster relies on.
pub(super) fn names(document: &Value) -> Result<BTreeSet<&str>, Refusal> {
    let profiles = document::list(document, "profiles")?;
    let mut names = BTreeSet::new();
    for (position, profile) in profiles.iter().enumerate() {
        let name = match &profile["schedulerName"] {
            Value::Null if profiles.len() == 1 => DEFAULT_SCHEDULER,
            Value::String(name) if !name.is_empty() => name,
            _ => {
                let text = format!(
                    "profiles[{position}].schedulerName: must be a string that is not empty; only a profile that is the only one \
                     may leave it out, and is {DEFAULT_SCHEDULER} then"
                );
                return refused(Reason::InvalidField, text);
            }
        };
        if !names.insert(name) {
            let text = format!("profiles[{position}].schedulerName {name}: there are two of it");
            return refused(Reason::InvalidField, text);
        }
        let field = format!("profiles[{position}].percentageOfNodesToScore");
        whole_number(&field, profile.get("percentageOfNodesToScore"), 0, 100)?;
        if queue_sort(profile) != queue_sort(&profiles[0]) {
            let text = format!(
                "profiles[{position}].plugins.queueSort: must be the same for all profiles, kube-scheduler does not start otherwise"
            );
            return refused(Reason::InvalidField, text);
        }
        plugins(position, profile)?;
    }
    Ok(names)
}

/// What of a profile says in which order its pods are tried: the plugins that are switched on, and those switched off.
fn queue_sort(profile: &Value) -> [Vec<&str>; 2] {
    ["enabled", "disabled"].map(|list| {
        let plugins = profile["plugins"]["queueSort"][list].as_array();
        let plugins = plugins.into_iter().flatten();
        plugins
            .filter_map(|plugin| plugin["name"].as_str())
            .collect()
    })
}

pub(super) fn check(document: &Value, request: &Request) -> Result<(), Refusal> {
    let names = names(document)?;
    let second = request.target == Target::Second;
    if second && names.contains(DEFAULT_SCHEDULER) {
        return refused(
            Reason::SchedulerNameTaken,
            format!(
                "a second scheduler with a profile {DEFAULT_SCHEDULER} takes the pods of the first, and both give away the same \
                 devices; give it another name by --scheduler-name"
            ),
        );
    }
    if let Some(name) = merge::name_of_another(request).filter(|name| names.contains(name)) {
        return refused(
            Reason::SchedulerNameTaken,
            format!(
                "profiles have the schedulerName {name} of the second scheduler that runs: both take its pods, and give away the same \
                 devices; take that profile out of the file, or end the second one before (scheduler.enabled=false)"
            ),
        );
    }
    let needed = if second {
        merge::second_name(request)
    } else {
        DEFAULT_SCHEDULER
    };
    match std::iter::once(needed)
        .chain(merge::further_name(request))
        .find(|name| !names.contains(name))
    {
        Some(missing) => refused(
            Reason::MissingProfile,
            format!(
                "profiles have no schedulerName {missing}: pods that {} would never be scheduled; add such a profile, with the \
                 queueSort plugin of the others",
                if missing == DEFAULT_SCHEDULER {
                    "name no scheduler"
                } else {
                    "Muster's webhook gives that name"
                }
            ),
        ),
        None => Ok(()),
    }
}

fn plugins(position: usize, profile: &Value) -> Result<(), Refusal> {
    let names = |point: &str, list: &str, plugin: &str| {
        let items = profile["plugins"][point][list].as_array();
        let mut names = items
            .into_iter()
            .flatten()
            .map(|item| item["name"].as_str());
        names.any(|name| name == Some(plugin))
    };
    for (plugin, points) in NEEDED {
        for point in points {
            let off = names(point, "disabled", plugin) || names(point, "disabled", "*");
            let on = names(point, "enabled", plugin)
                || (*point == "multiPoint"
                    && points
                        .iter()
                        .all(|point| *point == "multiPoint" || names(point, "enabled", plugin)));
            if off && !on {
                return refused(
                    Reason::PluginDisabled,
                    format!(
                        "profiles[{position}].plugins.{point}.disabled switches {plugin} off, which Muster relies on; name it under \
                         enabled"
                    ),
                );
            }
        }
    }
    Ok(())
}
