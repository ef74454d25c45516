//! What administrators drain by hand, besides cordons: nodes by the taint for it, and devices by rules.

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use muster_api::keys;
use muster_cluster::object::Kind;

use super::{World, passing::set_taint};
use crate::{
    api_server::{Precondition, key},
    fixtures,
};

/// Key of the taint by which a device is drained: any that is not Muster's.
const DEVICE_TAINT: &str = "example.com/swap";

impl World {
    /// As `kubectl taint` does.
    pub(super) fn drain_node(&mut self, node: &str, is_drained: bool) {
        let any = Precondition::default();
        let _ = self.api.update::<Node>("", node, any, |node| {
            set_taint(node, keys::TAINT_DRAIN, is_drained);
        });
    }

    /// Mostly one that somebody uses, if any is.
    pub(super) fn drain_device(&mut self, name: &str) -> Option<String> {
        let node = self.nodes.get(name)?;
        let all: Vec<usize> = (0..node.shape.gpus).collect();
        let numbers = all.iter().copied();
        let used: Vec<usize> = numbers
            .filter(|number| node.is_used(&fixtures::gpu_uuid(name, *number)))
            .collect();
        let is_any = used.is_empty() || self.random.one_in(4);
        let number = self.random.pick(if is_any { all } else { used })?;
        let device = fixtures::device_name(number);
        self.api.create(rule(name, &device)).ok()?;
        Some(format!("{device} of {name} is drained"))
    }

    /// The rule goes.
    pub(super) fn undrain_device(&mut self, node: &str) {
        let rule = key(Kind::DeviceTaintRule, "", &rule_name(node));
        let _ = self.api.delete(&rule, Precondition::default());
    }
}

fn rule_name(node: &str) -> String {
    format!("drain-{node}")
}

fn rule(node: &str, device: &str) -> DeviceTaintRule {
    DeviceTaintRule {
        metadata: ObjectMeta {
            name: Some(rule_name(node)),
            ..ObjectMeta::default()
        },
        spec: DeviceTaintRuleSpec {
            device_selector: Some(DeviceTaintSelector {
                driver: Some(keys::DRIVER.to_owned()),
                pool: Some(node.to_owned()),
                device: Some(device.to_owned()),
            }),
            taint: DeviceTaint {
                key: DEVICE_TAINT.to_owned(),
                effect: "NoSchedule".to_owned(),
                ..DeviceTaint::default()
            },
        },
        status: None,
    }
}
