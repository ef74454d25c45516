//! Extenders beside Muster's: there is one of ours, and no other has a say in where our pods are bound.

use muster_api::keys;
use serde_json::Value;

use crate::scheduler_config::{
    Request, document,
    refusal::{Reason, Refusal},
    refused,
};

pub(super) fn check(document: &Value, request: &Request) -> Result<(), Refusal> {
    // Ours is the last one.
    let all = document::list(document, "extenders")?;
    let others = all
        .split_last()
        .map(|(_, others)| others)
        .unwrap_or_default();
    for (position, extender) in others.iter().enumerate() {
        let url = extender["urlPrefix"].as_str().unwrap_or("(no urlPrefix)");
        let place = format!("extenders[{position}] ({url})");
        let binds = !matches!(&extender["bindVerb"], Value::Null)
            && extender["bindVerb"]
                .as_str()
                .is_none_or(|verb| !verb.is_empty());
        for name in managed_resources(extender) {
            if name == keys::MARKER_RESOURCE {
                return refused(
                    Reason::ExtenderExists,
                    format!(
                        "{place} manages {name}: it is Muster's already, and kube-scheduler does not start with two; take it out \
                         of the file, or give the file as it was before"
                    ),
                );
            }
            if request.managed.stands_for_devices(name) {
                return refused(
                    Reason::ExtenderManagesDevices,
                    format!(
                        "{place} manages {name}, which stands for devices that Muster gives out; take it out of the file, or the \
                         resource out of the chart's managedResources"
                    ),
                );
            }
        }
        if binds {
            return refused(
                Reason::ExtenderBinds,
                format!(
                    "{place} has a bindVerb: it would bind pods of Muster in place of kube-scheduler, which allocates their \
                     claims; run it in a scheduler of its own"
                ),
            );
        }
    }
    Ok(())
}

fn managed_resources(extender: &Value) -> impl Iterator<Item = &str> {
    let list = extender["managedResources"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(|resource| resource["name"].as_str())
}
