//! What the budget of a gang says, and whose a budget is.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::{
    Resource,
    core::{ObjectMeta, Selector},
};
use muster_api::{Gang, GangPhase, keys};
use muster_cluster::{gangs::is_named_after_pod, index::NamespacedName};

/// Label by which our budgets are found, and its value.
pub(crate) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "muster-controller");
/// Label of the pods of a Job: the UID of that Job.
const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";

/// What the budget of a gang is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) gang: NamespacedName,
    pub(super) gang_uid: String,
    /// How many pods it has; none of them is to be evicted alone.
    pub(super) pods: i32,
    /// The labels by which its pods are found, and nobody else's.
    pub(super) labels: BTreeMap<String, String>,
}

impl Wanted {
    /// Of a Gang all of whose pods run. One that was found running is never moved, so nothing is held off it.
    pub(super) fn of(gang: &Gang) -> Option<Self> {
        let status = gang.status.as_ref()?;
        let admission = status.admission.as_ref()?;
        let runs = status.phase == GangPhase::Running
            && !admission.adopted
            && gang.metadata.deletion_timestamp.is_none();
        let (key, value) = label_of(gang)?;
        runs.then_some(Self {
            gang: NamespacedName::of(&gang.metadata),
            gang_uid: gang.metadata.uid.clone()?,
            pods: i32::try_from(admission.pods.len()).ok()?,
            labels: [(key.to_owned(), value.to_owned())].into(),
        })
    }

    /// The budget. It goes with its Gang, whatever becomes of us.
    pub(super) fn budget(&self) -> PodDisruptionBudget {
        let (key, value) = MANAGED_BY;
        PodDisruptionBudget {
            metadata: ObjectMeta {
                name: Some(self.gang.name.clone()),
                namespace: Some(self.gang.namespace.clone()),
                labels: Some([(key.to_owned(), value.to_owned())].into()),
                owner_references: Some(vec![OwnerReference {
                    api_version: Gang::api_version(&()).into_owned(),
                    kind: Gang::kind(&()).into_owned(),
                    name: self.gang.name.clone(),
                    uid: self.gang_uid.clone(),
                    controller: Some(true),
                    block_owner_deletion: Some(false),
                }]),
                ..ObjectMeta::default()
            },
            spec: Some(PodDisruptionBudgetSpec {
                min_available: Some(IntOrString::Int(self.pods)),
                selector: Some(LabelSelector {
                    match_labels: Some(self.labels.clone()),
                    ..LabelSelector::default()
                }),
                ..PodDisruptionBudgetSpec::default()
            }),
            ..PodDisruptionBudget::default()
        }
    }

    /// The selector of its pods.
    pub(super) fn selector(&self) -> Selector {
        self.labels.clone().into_iter().collect()
    }
}

/// The label that all pods of the gang have, and nobody else's: that by which they were declared, or that of the Job that makes them. The only
/// pod of a gang that is named after it has none, and needs no budget: whoever evicts it evicts the gang whole.
fn label_of(gang: &Gang) -> Option<(&'static str, &str)> {
    if let Some(label) = gang.spec.group.as_deref() {
        return Some((keys::GANG, label));
    }
    if is_named_after_pod(gang.metadata.name.as_deref().unwrap_or_default()) {
        return None;
    }
    let mut owners = gang.metadata.owner_references.iter().flatten();
    let job = owners.find(|owner| owner.kind == "Job")?;
    Some((CONTROLLER_UID, &job.uid))
}

/// A budget of ours, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ours {
    pub(super) uid: String,
    pub(super) version: String,
    gang_uid: String,
    says: Option<PodDisruptionBudgetSpec>,
}

impl Ours {
    /// Whether it says what is wanted.
    pub(super) fn says(&self, wanted: &Wanted) -> bool {
        let fits = |has: &PodDisruptionBudgetSpec, wants: &PodDisruptionBudgetSpec| {
            has.min_available == wants.min_available && has.selector == wants.selector
        };
        let wants = wanted.budget().spec;
        self.gang_uid == wanted.gang_uid
            && self
                .says
                .as_ref()
                .zip(wants.as_ref())
                .is_some_and(|(has, wants)| fits(has, wants))
    }
}

/// Whose a budget is.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    /// Ours.
    Ours(Ours),
    /// Somebody else's, and whom it selects.
    Other(Selector),
    /// Somebody else's that selects nobody.
    Nobody,
}

impl Whose {
    pub(super) fn of(budget: &PodDisruptionBudget) -> Self {
        let (key, value) = MANAGED_BY;
        let labels = budget.metadata.labels.as_ref();
        let is_labelled = labels
            .and_then(|labels| labels.get(key))
            .map(String::as_str)
            == Some(value);
        let mut owners = budget.metadata.owner_references.iter().flatten();
        let gang = owners.find(|owner| {
            owner.kind == Gang::kind(&()) && owner.api_version == Gang::api_version(&())
        });
        if let Some(gang) = gang.filter(|_| is_labelled) {
            return Self::Ours(Ours {
                uid: budget.metadata.uid.clone().unwrap_or_default(),
                version: budget.metadata.resource_version.clone().unwrap_or_default(),
                gang_uid: gang.uid.clone(),
                says: budget.spec.clone(),
            });
        }
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
        // What cannot be read may select anybody, as an empty selector does.
        selector.map_or(Self::Nobody, |selector| {
            Self::Other(Selector::try_from(selector).unwrap_or_default())
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gang(name: &str, group: Option<&str>, phase: &str, adopted: bool) -> Gang {
        let mut gang: Value = json!({
            "apiVersion": "muster.dev/v1alpha1", "kind": "Gang",
            "metadata": {
                "name": name, "namespace": "ml", "uid": "gang",
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job"}],
            },
            "spec": {"size": 2, "group": group},
            "status": {
                "phase": phase, "attempt": 1, "leaderEpoch": 1,
                "admission": {
                    "team": "t", "teamGeneration": 1, "ledgerSequence": 1, "charge": {}, "adopted": adopted,
                    "pods": [{"uid": "a", "claims": []}, {"uid": "b", "claims": []}],
                },
            },
        });
        if group.is_none() {
            gang["spec"].as_object_mut().unwrap().remove("group");
        }
        serde_json::from_value(gang).unwrap()
    }

    #[test]
    fn a_gang_all_of_whose_pods_run_has_a_budget_of_as_many_by_a_label_of_theirs() {
        for (name, group, phase, adopted, label) in [
            (
                "train",
                Some("train"),
                "Running",
                false,
                Some((keys::GANG, "train")),
            ),
            (
                "job-train",
                None,
                "Running",
                false,
                Some((CONTROLLER_UID, "job")),
            ),
            ("pod-train-0", None, "Running", false, None),
            ("train", Some("train"), "Admitted", false, None),
            ("train", Some("train"), "Evicting", false, None),
            ("train", Some("train"), "Running", true, None),
        ] {
            let wanted = Wanted::of(&gang(name, group, phase, adopted));
            let found = wanted.as_ref().map(|wanted| wanted.labels.clone());
            let expected = label.map(|(key, value)| [(key.to_owned(), value.to_owned())].into());
            assert_eq!(found, expected, "{name} {phase}");
            let Some(wanted) = wanted else { continue };
            let budget = serde_json::to_value(wanted.budget()).unwrap();
            assert_eq!(budget["spec"]["minAvailable"], 2, "an integer");
            assert_eq!(budget["metadata"]["ownerReferences"][0]["uid"], "gang");
            assert_eq!(budget["metadata"]["ownerReferences"][0]["kind"], "Gang");
        }
    }

    #[test]
    fn a_budget_is_ours_by_its_label_and_its_owner_and_says_what_is_wanted_or_not() {
        let wanted = Wanted::of(&gang("train", Some("train"), "Running", false)).unwrap();
        let budget = wanted.budget();
        let Whose::Ours(ours) = Whose::of(&budget) else {
            panic!("ours");
        };
        assert!(ours.says(&wanted));
        let mut larger = wanted.clone();
        larger.pods = 3;
        assert!(!ours.says(&larger));
        let mut again = wanted.clone();
        again.gang_uid = "another".to_owned();
        assert!(!ours.says(&again), "the Gang was made again");
        for (change, is_other) in [("labels", true), ("owners", true), ("selector", false)] {
            let mut theirs = budget.clone();
            theirs.metadata.labels = None;
            match change {
                "owners" => theirs.metadata.owner_references = None,
                "selector" => theirs.spec.as_mut().unwrap().selector = None,
                _ => {}
            }
            let whose = Whose::of(&theirs);
            assert_eq!(matches!(whose, Whose::Other(_)), is_other, "{change}");
            assert_eq!(matches!(whose, Whose::Nobody), !is_other, "{change}");
        }
    }
}
