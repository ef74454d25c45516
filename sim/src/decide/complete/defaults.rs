//! What an installation brings along: tiers, the DeviceClasses, Namespaces, and the Ledger.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    core::v1::Namespace,
    resource::v1::{CELDeviceSelector, DeviceClass, DeviceClassSpec, DeviceSelector},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_api::{
    Gang, Ledger, LedgerSpec, PriorityTier, PriorityTierSpec,
    device_class::{SHIPPED, ShippedClass},
    keys,
    priority_tier::TierPreemption,
};

use super::Completed;

/// The tiers that the chart makes, as its values list them.
pub fn shipped_tiers() -> [PriorityTier; 3] {
    let tier = |name, value, preemption, default| {
        PriorityTier::new(
            name,
            PriorityTierSpec {
                value,
                preemption,
                default,
                ..PriorityTierSpec::default()
            },
        )
    };
    [
        tier("critical", 1_000, TierPreemption::Never, false),
        tier("standard", 100, TierPreemption::AfterCheckpoint, true),
        tier("best-effort", 0, TierPreemption::Immediate, false),
    ]
}

/// Adds what the chart would have made and the objects lack.
pub(super) fn add(completed: &mut Completed<'_>) {
    let has_default = completed
        .list::<PriorityTier>()
        .iter()
        .any(|tier| tier.spec.default);
    for mut tier in shipped_tiers() {
        let name = tier.metadata.name.clone().unwrap_or_default();
        if !completed.has::<PriorityTier>("", &name) {
            tier.spec.default &= !has_default;
            completed.put(tier);
        }
    }
    for class in SHIPPED {
        if !completed.has::<DeviceClass>("", class.name) {
            completed.put(device_class(class));
        }
    }
    let namespaces: BTreeSet<String> = completed
        .objects
        .keys()
        .filter(|key| !key.namespace.is_empty())
        .map(|key| key.namespace.clone())
        .collect();
    for name in namespaces {
        if !completed.has::<Namespace>("", &name) {
            completed.put(Namespace {
                metadata: named(&name),
                ..Namespace::default()
            });
        }
    }
}

/// A Ledger in which everything that Gangs hold is settled. Without one the controller would first have to make sure
/// that nobody writes to a lost one.
pub(super) fn add_ledger(completed: &mut Completed<'_>) {
    if completed.has::<Ledger>("", keys::LEDGER_NAME) {
        return;
    }
    let mut spec = LedgerSpec {
        leader_epoch: 1,
        sequence: 1,
        ..LedgerSpec::default()
    };
    for gang in completed.list::<Gang>() {
        let Some(status) = gang.status else { continue };
        spec.leader_epoch = spec.leader_epoch.max(status.leader_epoch);
        if let Some(admission) = status.admission {
            spec.sequence = spec.sequence.max(admission.ledger_sequence);
        }
    }
    for devices in completed.list::<muster_api::NodeDevices>() {
        spec.leader_epoch = spec.leader_epoch.max(devices.spec.leader_epoch);
    }
    completed.put(Ledger::new(keys::LEDGER_NAME, spec));
}

fn device_class(class: ShippedClass) -> DeviceClass {
    DeviceClass {
        metadata: named(class.name),
        spec: Some(DeviceClassSpec {
            selectors: Some(vec![DeviceSelector {
                cel: Some(CELDeviceSelector {
                    expression: class.selector.to_owned(),
                }),
            }]),
            ..DeviceClassSpec::default()
        }),
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    }
}
