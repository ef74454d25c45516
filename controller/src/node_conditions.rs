//! Tells of faulty GPUs by conditions of their Nodes, for people and for programs that repair machines.
//!
//! A driver says in the status of its NodeDevices what is wrong with the GPUs of its node; it has no right on Nodes itself. From that alone
//! follow two conditions: `muster.dev/GPUFault`, true while a GPU has a fault that a person or a restart has to mend, and
//! `muster.dev/GPUAnomaly`, true while something is odd about one. A node that never had either gets none.
//!
//! **No telemetry, no action.** While the driver has not said anything (it is not installed, older, or awaited since the Node was made anew), and
//! where there is no NodeDevices of this Node, what stands on the Node stays as it is.
//!
//! **Who else writes.** The kubelet and others patch conditions of their own types; this merges ours by their type and names no other. Another
//! controller that still believes to lead writes the same from the same objects, or from an earlier state of them: what it leaves the watch shows
//! to the leader, which writes again. So no version is compared, and a write that comes twice, late, or is never answered does no harm. The UID
//! keeps it off a Node that was made anew under the name. The time of the transition is written with it, and only then.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use muster_api::{GpuFault, NodeDevices, conditions, keys};
use muster_cluster::{
    object::{Change, Kind, Object, ObjectKey},
    text::truncate,
};
use muster_serve::client::{CALL_LIMIT, CallError, within};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::shared_table::{Observe, SharedTable};

/// Nodes that are written at the same time.
const AT_ONCE: usize = 4;
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(5);
/// How often it is looked without a reason.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// Longest message.
const MESSAGE_BYTES: usize = 1_024;
/// Classes of faults for which the condition stands, the worst first: a contained fault is over with whoever used the slice.
const FATAL: [&str; 5] = ["Retire", "Reboot", "Reset", "Unknown", "Link"];
/// Classes of what is odd about hardware: an application's own doing is not.
const ODD: [&str; 1] = ["Info"];
/// Classes for which no condition stands.
const NEITHER: [&str; 2] = ["Contained", "App"];
/// What a class is that a later version of the driver gives: nobody here knows how bad it is.
const UNKNOWN: &str = "Unknown";
/// The field that is named where a Node of another UID was to be patched.
const ANOTHER_UID: &str = "metadata.uid";
/// The reason of a condition that does not hold.
const NOTHING: &str = "NothingFound";

/// A condition, as far as this goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    is_true: bool,
    reason: String,
    message: String,
}

/// By type.
type Conditions = BTreeMap<&'static str, State>;

/// What is known of the nodes, and which are to be written.
pub type Reported = SharedTable<Table>;

/// What is known of each node.
#[derive(Debug, Default)]
pub struct Table {
    nodes: BTreeMap<String, Known>,
    /// Those of which something else is said than stands there.
    due: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Known {
    /// The Node's UID, and what stands there.
    node: Option<(String, Conditions)>,
    /// UID of the Node that a driver speaks about, and what follows from it; `None`: it has said nothing.
    told: Option<(String, Conditions)>,
}

/// What is to be written.
#[derive(Clone, Debug, PartialEq)]
struct Write {
    uid: String,
    conditions: Vec<(&'static str, State, bool)>,
}

impl Observe for Table {
    /// Changes of Nodes and NodeDevices; all others are nothing to it.
    fn observe(&mut self, change: &Change) -> bool {
        match change {
            Change::Applied(object) => self.apply(object),
            Change::Deleted(key) => {
                self.forget(key);
                false
            }
            Change::ListedKeys(kind, keys) => {
                self.keep(*kind, keys);
                false
            }
            Change::Listed(kind @ (Kind::Node | Kind::NodeDevices), objects) => {
                let keys = objects.iter().map(Object::key).collect();
                self.keep(*kind, &keys);
                let mut is_any_due = false;
                for object in objects {
                    is_any_due |= self.apply(object);
                }
                is_any_due
            }
            Change::Listed(..) => false,
        }
    }
}

impl Table {
    /// Whether there is something to write.
    fn apply(&mut self, object: &Object) -> bool {
        let name = match object {
            Object::Node(node) => {
                let name = node.metadata.name.clone().unwrap_or_default();
                let uid = node.metadata.uid.clone().unwrap_or_default();
                self.nodes.entry(name.clone()).or_default().node = Some((uid, standing(node)));
                name
            }
            Object::NodeDevices(devices) => {
                let name = devices.metadata.name.clone().unwrap_or_default();
                self.nodes.entry(name.clone()).or_default().told = told(devices);
                name
            }
            _ => return false,
        };
        let is_due = self.nodes.get(&name).and_then(Known::write).is_some();
        if is_due {
            self.due.insert(name);
        } else {
            self.due.remove(&name);
        }
        is_due
    }

    fn forget(&mut self, key: &ObjectKey) {
        let Some(known) = self.nodes.get_mut(&*key.name) else {
            return;
        };
        match key.kind {
            Kind::Node => known.node = None,
            Kind::NodeDevices => known.told = None,
            _ => return,
        }
        if known.node.is_none() && known.told.is_none() {
            self.nodes.remove(&*key.name);
        }
        self.due.remove(&*key.name);
    }

    fn keep(&mut self, kind: Kind, keys: &BTreeSet<ObjectKey>) {
        if !matches!(kind, Kind::Node | Kind::NodeDevices) {
            return;
        }
        let names: BTreeSet<&str> = keys.iter().map(|key| &*key.name).collect();
        let gone = self
            .nodes
            .keys()
            .filter(|name| !names.contains(name.as_str()));
        let gone: Vec<String> = gone.cloned().collect();
        for name in gone {
            self.forget(&ObjectKey {
                kind,
                namespace: String::new(),
                name,
            });
        }
    }
}

impl Known {
    /// What is to be written, if something is.
    fn write(&self) -> Option<Write> {
        let (uid, standing) = self.node.as_ref()?;
        let (about, told) = self.told.as_ref()?;
        if uid != about {
            return None;
        }
        let mut conditions = Vec::new();
        for (kind, state) in told {
            let before = standing.get(kind);
            // What never was is not said not to be.
            let is_new = before != Some(state) && (before.is_some() || state.is_true);
            if is_new {
                let is_transition = before.is_none_or(|before| before.is_true != state.is_true);
                conditions.push((*kind, state.clone(), is_transition));
            }
        }
        (!conditions.is_empty()).then(|| Write {
            uid: uid.clone(),
            conditions,
        })
    }
}

/// What stands on a Node of ours.
fn standing(node: &Node) -> Conditions {
    let status = node.status.as_ref();
    let all = status.and_then(|status| status.conditions.as_ref());
    let all = all.into_iter().flatten();
    all.filter_map(|condition| {
        let mut ours = conditions::OF_NODES.into_iter();
        let kind = ours.find(|kind| *kind == condition.type_)?;
        let state = State {
            is_true: condition.status == "True",
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        };
        Some((kind, state))
    })
    .collect()
}

/// What follows from what a driver says; `None`: it has said nothing about this Node.
fn told(devices: &NodeDevices) -> Option<(String, Conditions)> {
    let status = devices.status.as_ref()?;
    let faults = status.faults.as_ref()?;
    if devices.spec.awaits_driver {
        return None;
    }
    let conditions = [
        (conditions::NODE_GPU_FAULT, state(faults, &FATAL)),
        (conditions::NODE_GPU_ANOMALY, state(faults, &ODD)),
    ];
    Some((devices.spec.node_uid.clone(), conditions.into()))
}

fn state(faults: &[GpuFault], classes: &[&str]) -> State {
    let meant = faults
        .iter()
        .filter(|fault| classes.contains(&known_class(fault)));
    let meant: Vec<&GpuFault> = meant.collect();
    let worst = classes
        .iter()
        .find(|class| meant.iter().any(|fault| known_class(fault) == **class));
    let Some(worst) = worst else {
        return State {
            is_true: false,
            reason: NOTHING.to_owned(),
            message: String::new(),
        };
    };
    let each = meant.iter().map(|fault| {
        let part = fault.part.map_or_else(String::new, |part| {
            let last = part.start.saturating_add(part.size).saturating_sub(1);
            format!(" memory slices {} to {last}", part.start)
        });
        let causes = fault.causes.join(", ");
        format!("{}{part}: {} ({causes})", fault.device, fault.class)
    });
    let mut message = each.collect::<Vec<_>>().join("; ");
    truncate(&mut message, MESSAGE_BYTES);
    State {
        is_true: true,
        reason: (*worst).to_owned(),
        message,
    }
}

/// The class of a fault, as far as this version knows it.
fn known_class(fault: &GpuFault) -> &str {
    let class = fault.class.as_str();
    let mut all = FATAL.iter().chain(&ODD).chain(&NEITHER);
    if all.any(|known| *known == class) {
        class
    } else {
        UNKNOWN
    }
}

/// Sees to the conditions.
#[derive(Debug)]
pub struct Keeper {
    reported: Reported,
    /// Not before.
    later: BTreeMap<String, Instant>,
}

/// What became of a write.
type Written = (String, Result<(), CallError>);

impl Keeper {
    /// A keeper, and what it is told by.
    pub fn new() -> (Self, Reported) {
        let reported = Reported::default();
        let keeper = Self {
            reported: reported.clone(),
            later: BTreeMap::new(),
        };
        (keeper, reported)
    }

    /// Sees to them until it is dropped. The client must not repeat anything by itself.
    pub async fn keep(mut self, client: Client) {
        let mut under_way: JoinSet<Written> = JoinSet::new();
        loop {
            let next = self.start(&client, &mut under_way);
            if let Some(written) = self.reported.wait(&mut under_way, next).await {
                self.settle(written);
            }
        }
    }

    /// Starts what is due, and says when the next is.
    fn start(&mut self, client: &Client, under_way: &mut JoinSet<Written>) -> Instant {
        let now = Instant::now();
        let mut next = now + LOOK_AGAIN;
        let reported = self.reported.clone();
        let mut table = reported.table();
        let due: Vec<String> = table.due.iter().cloned().collect();
        for name in due {
            if under_way.len() >= AT_ONCE {
                // One that ends starts the next.
                break;
            }
            if let Some(again) = self.later.get(&name).filter(|again| **again > now) {
                next = next.min(*again);
                continue;
            }
            self.later.remove(&name);
            table.due.remove(&name);
            let Some(write) = table.nodes.get(&name).and_then(Known::write) else {
                continue;
            };
            let client = client.clone();
            under_way.spawn(async move {
                let written = patch(&client, &name, &write).await;
                (name, written)
            });
        }
        // Of a node that is not to be written any more nobody remembers that it could not be.
        self.later.retain(|_, again| *again > now);
        next
    }

    fn settle(&mut self, (name, written): Written) {
        let Err(error) = written else {
            return;
        };
        tracing::warn!(node = name, %error, "the condition of a Node could not be written; trying again");
        let mut table = self.reported.table();
        // The watch may have shown meanwhile that there is nothing to write.
        if table.nodes.get(&name).and_then(Known::write).is_some() {
            table.due.insert(name.clone());
            drop(table);
            self.later.insert(name, Instant::now() + RETRY);
        }
    }
}

/// Writes it. A Node that is gone, or was made anew, is fine: the watch shows it.
async fn patch(client: &Client, name: &str, write: &Write) -> Result<(), CallError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PatchParams {
        field_manager: Some(keys::FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PatchParams::default()
    };
    let body = body(write, Timestamp::now());
    let body = Patch::Strategic(&body);
    let call = nodes.patch_status(name, &params, &body);
    match within(CALL_LIMIT, call).await {
        Ok(_) => Ok(()),
        Err(error) if is_not_that_node(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether there is no Node of this UID under the name any more. To kube-apiserver 1.37.1 the UID of a patch is no precondition, but a field that is
/// not to change: where it is another one the patched Node is invalid (422, `ValidateObjectMetaAccessorUpdate` in `apimachinery`), and nothing of
/// it is stored. (The suite `faults` asks a real one.) A Node that goes while it is patched is a conflict.
fn is_not_that_node(error: &CallError) -> bool {
    let CallError::Api(error) = error else {
        return false;
    };
    let kube::Error::Api(status) = error.as_ref() else {
        return false;
    };
    match status.code {
        404 | 409 => true,
        422 => status.message.contains(ANOTHER_UID),
        _ => false,
    }
}

fn body(write: &Write, now: Timestamp) -> Value {
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let each = write.conditions.iter().map(|(kind, state, is_transition)| {
        let mut condition = json!({
            "type": kind,
            "status": if state.is_true { "True" } else { "False" },
            "reason": state.reason,
            "message": state.message,
            "lastHeartbeatTime": time,
        });
        if *is_transition {
            condition["lastTransitionTime"] = json!(time);
        }
        condition
    });
    let each: Vec<Value> = each.collect();
    json!({
        "metadata": {"uid": write.uid},
        "status": {"conditions": each},
    })
}

#[cfg(test)]
mod tests;
