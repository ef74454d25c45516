//! DeviceTaintRules: taints that an administrator puts on devices from outside, by their driver, pool and name.
//!
//! kube-scheduler gives out no device that a rule taints with `NoSchedule` or `NoExecute`, as if the taint stood in the device's
//! slice. Each field that a rule's selector leaves out stands for every value, so an empty selector selects all devices; without a
//! selector a rule selects none.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceTaintRule;

use crate::devices::{is_fault, repels};

/// The devices that a rule keeps from being given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintedDevices {
    /// Their driver; `None`: any.
    pub(crate) driver: Option<String>,
    /// Their pool; `None`: any.
    pub(crate) pool: Option<String>,
    /// Their name in the pool; `None`: any.
    pub(crate) device: Option<String>,
    /// Whether it says that something is wrong with them.
    is_fault: bool,
}

/// Whether the rule is about that device, whatever it says of it. It copies nothing, as there may be a rule for each device.
pub(crate) fn selects(rule: &DeviceTaintRule, driver: &str, pool: &str, device: &str) -> bool {
    let is_meant =
        |named: &Option<String>, name: &str| named.as_deref().is_none_or(|named| named == name);
    rule.spec.device_selector.as_ref().is_some_and(|selector| {
        is_meant(&selector.driver, driver)
            && is_meant(&selector.pool, pool)
            && is_meant(&selector.device, device)
    })
}

/// What a rule keeps from being given out; `None`: nothing.
pub fn tainted_by(rule: &DeviceTaintRule) -> Option<TaintedDevices> {
    let taint = &rule.spec.taint;
    let selector = rule.spec.device_selector.as_ref()?;
    let given = [&selector.driver, &selector.pool, &selector.device];
    // Nothing is called by the empty name.
    if !repels(&taint.effect) || given.iter().any(|name| name.as_deref() == Some("")) {
        return None;
    }
    Some(TaintedDevices {
        driver: selector.driver.clone(),
        pool: selector.pool.clone(),
        device: selector.device.clone(),
        is_fault: is_fault(&taint.key),
    })
}

/// How many rules taint something, and how many of them say that something is wrong with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    all: usize,
    faults: usize,
}

/// What the rules of one driver and pool, or of any, taint.
#[derive(Debug, Default)]
struct OfPool {
    every_device: Count,
    devices: BTreeMap<String, Count>,
}

/// The rules that taint something, by what they select.
#[derive(Debug, Default)]
pub struct TaintRules {
    by_pool: BTreeMap<(Option<String>, Option<String>), OfPool>,
}

/// What rules say of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuledTaints {
    /// It is not to be given out.
    pub repels: bool,
    /// Something is wrong with it.
    pub is_faulty: bool,
}

/// Looks devices up, one after the other. Those of one pool, which come together, cost a look for each after the first.
#[derive(Debug)]
pub struct RuleLookup<'a> {
    rules: &'a TaintRules,
    pool: Option<&'a str>,
    of_pool: Vec<&'a OfPool>,
}

impl Count {
    fn change(&mut self, devices: &TaintedDevices, is_added: bool) {
        let faults = usize::from(devices.is_fault);
        if is_added {
            self.all += 1;
            self.faults += faults;
        } else {
            self.all = self.all.saturating_sub(1);
            self.faults = self.faults.saturating_sub(faults);
        }
    }
}

impl TaintRules {
    /// A rule came, went or changed.
    pub fn replace(&mut self, old: Option<&TaintedDevices>, new: Option<&TaintedDevices>) {
        if let Some(old) = old {
            self.change(old, false);
        }
        if let Some(new) = new {
            self.change(new, true);
        }
    }

    fn change(&mut self, devices: &TaintedDevices, is_added: bool) {
        let key = (devices.driver.clone(), devices.pool.clone());
        let of_pool = self.by_pool.entry(key.clone()).or_default();
        match &devices.device {
            None => of_pool.every_device.change(devices, is_added),
            Some(name) => {
                let count = of_pool.devices.entry(name.clone()).or_default();
                count.change(devices, is_added);
                if count.all == 0 {
                    of_pool.devices.remove(name);
                }
            }
        }
        if of_pool.every_device.all == 0 && of_pool.devices.is_empty() {
            self.by_pool.remove(&key);
        }
    }

    /// Whether no rule taints anything.
    pub fn is_empty(&self) -> bool {
        self.by_pool.is_empty()
    }

    /// To look devices up.
    pub fn lookup(&self) -> RuleLookup<'_> {
        RuleLookup {
            rules: self,
            pool: None,
            of_pool: Vec::new(),
        }
    }
}

impl<'a> RuleLookup<'a> {
    /// What the rules say of the device of that name: `driver/pool/device`.
    pub fn of(&mut self, name: &'a str) -> RuledTaints {
        if self.rules.by_pool.is_empty() {
            return RuledTaints::default();
        }
        // Names of pools may have slashes, those of drivers and devices have none.
        let (pool, device) = name.rsplit_once('/').unwrap_or(("", name));
        if self.pool != Some(pool) {
            self.pool = Some(pool);
            let (driver, pool) = pool.split_once('/').unwrap_or((pool, ""));
            let keys = [
                (None, None),
                (Some(driver), None),
                (None, Some(pool)),
                (Some(driver), Some(pool)),
            ];
            let owned = |name: Option<&str>| name.map(str::to_owned);
            let keys = keys.map(|(driver, pool)| (owned(driver), owned(pool)));
            let by_pool = &self.rules.by_pool;
            self.of_pool = keys.iter().filter_map(|key| by_pool.get(key)).collect();
        }
        let mut taints = RuledTaints::default();
        for of_pool in &self.of_pool {
            let named = of_pool.devices.get(device);
            for count in [Some(&of_pool.every_device), named].into_iter().flatten() {
                taints.repels |= count.all > 0;
                taints.is_faulty |= count.faults > 0;
            }
        }
        taints
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rule(selector: &Value, key: &str, effect: &str) -> Option<TaintedDevices> {
        let rule: DeviceTaintRule = serde_json::from_value(json!({
            "metadata": {"name": "r"},
            "spec": {"deviceSelector": selector, "taint": {"key": key, "effect": effect}},
        }))
        .unwrap();
        tainted_by(&rule)
    }

    static DEVICES: [&str; 5] = [
        "gpu.muster.dev/a/gpu-0",
        "gpu.muster.dev/a/gpu-1",
        "gpu.muster.dev/b/gpu-0",
        "gpu.muster.dev/a/b/gpu-0",
        "nic.example.com/a/gpu-0",
    ];

    fn tainted(rules: &TaintRules) -> Vec<usize> {
        let mut lookup = rules.lookup();
        let all = DEVICES.iter().enumerate();
        all.filter(|(_, name)| lookup.of(name).repels)
            .map(|(place, _)| place)
            .collect()
    }

    #[test]
    fn a_rule_taints_what_its_selector_names_and_stops_when_it_goes() {
        for (selector, selected) in [
            (json!({}), vec![0, 1, 2, 3, 4]),
            (Value::Null, vec![]),
            (json!({"driver": "gpu.muster.dev"}), vec![0, 1, 2, 3]),
            (json!({"driver": ""}), vec![]),
            (json!({"driver": "gpu"}), vec![]),
            (json!({"pool": "a"}), vec![0, 1, 4]),
            (json!({"pool": "a/b"}), vec![3]),
            (json!({"device": "gpu-0"}), vec![0, 2, 3, 4]),
            (json!({"driver": "gpu.muster.dev", "pool": "a"}), vec![0, 1]),
            (
                json!({"driver": "gpu.muster.dev", "device": "gpu-0"}),
                vec![0, 2, 3],
            ),
            (json!({"pool": "a", "device": "gpu-0"}), vec![0, 4]),
            (
                json!({"driver": "gpu.muster.dev", "pool": "a", "device": "gpu-1"}),
                vec![1],
            ),
            (json!({"driver": "gpu.muster.dev", "pool": "c"}), vec![]),
        ] {
            for (effect, repels) in [
                ("NoSchedule", true),
                ("NoExecute", true),
                ("None", false),
                ("Odd", false),
            ] {
                let devices = rule(&selector, "example.com/maintenance", effect);
                let mut rules = TaintRules::default();
                rules.replace(None, devices.as_ref());
                let expected = if repels { selected.clone() } else { vec![] };
                assert_eq!(tainted(&rules), expected, "{selector} with {effect}");
                rules.replace(devices.as_ref(), None);
                assert_eq!(tainted(&rules), [0; 0], "{selector} with {effect}");
                assert!(rules.by_pool.is_empty(), "{selector} with {effect}");
            }
        }
    }

    #[test]
    fn of_two_rules_the_other_one_stays_and_our_own_taint_is_no_fault() {
        let all = json!({});
        let held = rule(&all, muster_api::keys::TAINT_HELD, "NoSchedule");
        let sick = rule(
            &json!({"device": "gpu-1"}),
            "example.com/sick",
            "NoSchedule",
        );
        let mut rules = TaintRules::default();
        rules.replace(None, held.as_ref());
        rules.replace(None, sick.as_ref());
        let mut lookup = rules.lookup();
        let said = [lookup.of(DEVICES[0]), lookup.of(DEVICES[1])];
        assert_eq!(said.map(|it| it.repels), [true, true]);
        assert_eq!(said.map(|it| it.is_faulty), [false, true]);
        rules.replace(held.as_ref(), None);
        assert_eq!(tainted(&rules), [1]);
    }
}
