//! Makes the ResourceClaimTemplates that the shorthand of pods stands for.
//!
//! A pod that only says how many GPUs it needs is referred by the webhook to a template whose name and content
//! follow from its annotations. As long as a pod waits for its claim, its template is seen to: made, or found.
//! kube-controller-manager, which sees new templates, then makes the claim at once (1.37.1,
//! `pkg/controller/resourceclaim`: a template that appears enqueues every pod that names it).
//!
//! **Who else may write.** Templates cannot be changed, only made and removed, and we only make: whoever comes
//! first wins, a second leader would make the same one, and a write that is repeated, late or never answered
//! leaves what the first left. What exists under that name with another content is somebody else's; it
//! is left alone, and said of the gangs that wait.
//!
//! **Templates stay** when their pods are gone: they are few (one for each shape of request in a namespace), the
//! next pod of that shape needs the same one, and a removal would race with it. Whoever wants to clear them up
//! does so by their label, at any time: what a pod still waits for is made again. The namespace takes them along.
//!
//! Namespaces do not hold each other up: several templates are seen to at a time, and one that is refused (no
//! permission, an object quota, a namespace that is being deleted) is tried again later and later.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaimTemplate};
use kube::{Api, Client, ResourceExt, api::PostParams};
use muster_api::keys;
use muster_cluster::{
    index::NamespacedName,
    object::{Change, Kind, Object, ObjectKey},
    shorthand::template_waited_for,
};
use muster_serve::client::{CALL_LIMIT, within};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use crate::shared_table::{Observe, SharedTable};

/// Templates that are seen to at the same time.
const AT_ONCE: usize = 8;
/// Pause before a template is looked at again for which a pod still waits: its claim is made within moments, so
/// somebody has removed the template, or kube-controller-manager is away.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Pause after the first refusal; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What the API server answers instead of a template, by the pods that wait for it.
pub type Refused = BTreeMap<NamespacedName, String>;

/// The pods that wait for a claim of their shorthand, and the template of each.
pub type Waiting = SharedTable<Table>;

/// Which pod waits for which template.
#[derive(Debug, Default)]
pub struct Table {
    template_of_pod: BTreeMap<NamespacedName, NamespacedName>,
    waited_for: BTreeMap<NamespacedName, WaitedFor>,
}

/// A template, and the pods that wait for it: at least one.
#[derive(Debug)]
struct WaitedFor {
    template: ResourceClaimTemplate,
    pods: BTreeSet<NamespacedName>,
}

impl Observe for Table {
    /// Changes of pods; all others are nothing to it.
    fn observe(&mut self, change: &Change) -> bool {
        match change {
            Change::Applied(Object::Pod(pod)) => self.put(pod),
            Change::Deleted(key) if key.kind == Kind::Pod => {
                self.remove(&NamespacedName::new(&*key.namespace, &*key.name))
            }
            Change::ListedKeys(Kind::Pod, keys) => self.keep(keys),
            Change::Listed(Kind::Pod, objects) => {
                *self = Self::default();
                for object in objects {
                    if let Object::Pod(pod) = object {
                        self.put(pod);
                    }
                }
                true
            }
            _ => false,
        }
    }
}

impl Table {
    /// Whether anything changed.
    fn put(&mut self, pod: &Pod) -> bool {
        let key = NamespacedName::of(&pod.metadata);
        let Some(template) = template_waited_for(pod) else {
            return self.remove(&key);
        };
        let name = NamespacedName::of(&template.metadata);
        if self.template_of_pod.get(&key) == Some(&name) {
            return false;
        }
        self.remove(&key);
        let waited_for = self.waited_for.entry(name.clone());
        let waited_for = waited_for.or_insert_with(|| WaitedFor {
            template,
            pods: BTreeSet::new(),
        });
        waited_for.pods.insert(key.clone());
        self.template_of_pod.insert(key, name);
        true
    }

    /// Whether anything changed: what is not named is gone.
    fn keep(&mut self, keys: &BTreeSet<ObjectKey>) -> bool {
        let is_named = |pod: &NamespacedName| {
            keys.contains(&ObjectKey {
                kind: Kind::Pod,
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
            })
        };
        let pods = self.template_of_pod.keys();
        let gone: Vec<NamespacedName> = pods.filter(|pod| !is_named(pod)).cloned().collect();
        for pod in &gone {
            self.remove(pod);
        }
        !gone.is_empty()
    }

    fn remove(&mut self, pod: &NamespacedName) -> bool {
        let Some(name) = self.template_of_pod.remove(pod) else {
            return false;
        };
        if let Some(waited_for) = self.waited_for.get_mut(&name) {
            waited_for.pods.remove(pod);
            if waited_for.pods.is_empty() {
                self.waited_for.remove(&name);
            }
        }
        true
    }
}

/// Sees to the templates.
#[derive(Debug)]
pub struct Keeper {
    waiting: Waiting,
    refused: watch::Sender<Refused>,
    /// Those that were looked at, as long as a pod waits for them.
    looked_at: BTreeMap<NamespacedName, LookedAt>,
}

#[derive(Debug)]
struct LookedAt {
    /// Not before; `None` while it is being looked at.
    again: Option<Instant>,
    /// What was answered instead, and how often in a row.
    refusal: Option<(String, u32)>,
}

/// What became of one look.
type Looked = (NamespacedName, Result<(), String>);

impl Keeper {
    /// A keeper, what it is told by, and what it tells.
    pub fn new() -> (Self, Waiting, watch::Receiver<Refused>) {
        let waiting = Waiting::default();
        let (refused, receiver) = watch::channel(Refused::new());
        let keeper = Self {
            waiting: waiting.clone(),
            refused,
            looked_at: BTreeMap::new(),
        };
        (keeper, waiting, receiver)
    }

    /// Sees to them until it is dropped. The client must not repeat anything by itself.
    pub async fn keep(mut self, client: Client) {
        let mut under_way: JoinSet<Looked> = JoinSet::new();
        loop {
            let next = self.start(&client, &mut under_way);
            if let Some(looked) = self.waiting.wait(&mut under_way, next).await {
                self.settle(looked);
            }
        }
    }

    /// Starts what is due, and says when the next is.
    fn start(&mut self, client: &Client, under_way: &mut JoinSet<Looked>) -> Instant {
        let now = Instant::now();
        let mut next = now + LONGEST_PAUSE;
        let waiting = self.waiting.clone();
        let table = waiting.table();
        self.looked_at
            .retain(|key, looked| looked.again.is_none() || table.waited_for.contains_key(key));
        self.tell(&table);
        for (key, WaitedFor { template, .. }) in &table.waited_for {
            let looked = self.looked_at.entry(key.clone()).or_insert(LookedAt {
                again: Some(now),
                refusal: None,
            });
            match looked.again {
                Some(again) if again > now => next = next.min(again),
                // One that finishes starts the next.
                Some(_) if under_way.len() < AT_ONCE => {
                    looked.again = None;
                    let (key, client, template) = (key.clone(), client.clone(), template.clone());
                    under_way.spawn(async move { (key, ensure(&client, &template).await) });
                }
                _ => {}
            }
        }
        next
    }

    fn settle(&mut self, (key, outcome): Looked) {
        let before = self
            .looked_at
            .remove(&key)
            .and_then(|looked| looked.refusal);
        let (pause, refusal) = match outcome {
            Ok(()) => (LOOK_AGAIN, None),
            Err(why) => {
                let times = before.as_ref().map_or(0, |(_, times)| *times);
                if before.is_none_or(|(answer, _)| answer != why) {
                    tracing::warn!(template = ?key, why, "a claim template is not there");
                }
                let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(times));
                (
                    pause.min(LONGEST_PAUSE),
                    Some((why, times.saturating_add(1))),
                )
            }
        };
        let again = Some(Instant::now() + pause);
        self.looked_at.insert(key, LookedAt { again, refusal });
    }

    fn tell(&self, table: &Table) {
        let mut refused = Refused::new();
        for (key, looked) in &self.looked_at {
            if let (Some((why, _)), Some(waited_for)) = (&looked.refusal, table.waited_for.get(key))
            {
                let pods = waited_for.pods.iter();
                refused.extend(pods.map(|pod| (pod.clone(), why.clone())));
            }
        }
        self.refused.send_if_modified(|told| {
            let changed = *told != refused;
            *told = refused;
            changed
        });
    }
}

/// Makes the template, unless it is there. The error is for people.
async fn ensure(client: &Client, template: &ResourceClaimTemplate) -> Result<(), String> {
    let namespace = template.namespace().unwrap_or_default();
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), &namespace);
    let params = PostParams {
        field_manager: Some(keys::FIELD_MANAGER_CONTROLLER.to_owned()),
        ..PostParams::default()
    };
    match within(CALL_LIMIT, templates.create(&params, template)).await {
        Ok(_) => {
            tracing::info!(
                namespace,
                template = template.name_any(),
                "made a claim template"
            );
            Ok(())
        }
        Err(error) if error.status_code() == Some(409) => compare(&templates, template).await,
        Err(error) => Err(error.to_string()),
    }
}

async fn compare(
    templates: &Api<ResourceClaimTemplate>,
    template: &ResourceClaimTemplate,
) -> Result<(), String> {
    let name = template.name_any();
    let call = templates.get_opt(&name);
    let found = within(CALL_LIMIT, call)
        .await
        .map_err(|error| error.to_string())?;
    match found {
        Some(found) if found.spec == template.spec => Ok(()),
        Some(_) => Err(
            "one of that name is there already and asks for something else; delete it, and it is created again"
                .to_owned(),
        ),
        None => Err("it was removed while it was looked for".to_owned()),
    }
}

#[cfg(test)]
mod tests;
