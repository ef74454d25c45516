//! The fields of a pod that its readers read: of a pod as the API server has it, and of one as it is kept.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};

/// What the readers of pods read. A field that is absent and one that is empty are the same, where nothing else is said.
pub trait PodFields {
    /// `metadata.name`.
    fn name(&self) -> &str;
    /// `metadata.namespace`.
    fn namespace(&self) -> &str;
    /// `metadata.uid`.
    fn uid(&self) -> &str;
    /// The value of an annotation, if the pod has it.
    fn annotation(&self, key: &str) -> Option<&str>;
    /// The value of a label, if the pod has it.
    fn label(&self, key: &str) -> Option<&str>;
    /// The owner that controls the pod.
    fn controller(&self) -> Option<&OwnerReference>;
    /// `metadata.creationTimestamp`, in seconds since the Unix epoch.
    fn created_at(&self) -> Option<i64>;
    /// Whether `metadata.deletionTimestamp` is set.
    fn is_deleting(&self) -> bool;
    /// `spec.nodeName`.
    fn node_name(&self) -> &str;
    /// The names in `spec.schedulingGates`, in their order.
    fn gates(&self) -> impl Iterator<Item = &str>;
    /// `status.phase`.
    fn phase(&self) -> &str;
    /// Whether the condition `PodScheduled` is false because of `Unschedulable`.
    fn is_unschedulable(&self) -> bool;
    /// Whether the condition `PodReadyToStartContainers` is false.
    fn lacks_sandbox(&self) -> bool;
}

impl PodFields for Pod {
    fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn controller(&self) -> Option<&OwnerReference> {
        let owners = self.metadata.owner_references.as_ref()?;
        owners.iter().find(|owner| owner.controller == Some(true))
    }

    fn created_at(&self) -> Option<i64> {
        let time = self.metadata.creation_timestamp.as_ref();
        time.map(|time| time.0.as_second())
    }

    fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    fn node_name(&self) -> &str {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.node_name.as_deref())
            .unwrap_or_default()
    }

    fn gates(&self) -> impl Iterator<Item = &str> {
        self.spec
            .iter()
            .flat_map(|spec| spec.scheduling_gates.iter().flatten())
            .map(|gate| gate.name.as_str())
    }

    fn phase(&self) -> &str {
        let status = self.status.as_ref();
        status
            .and_then(|status| status.phase.as_deref())
            .unwrap_or_default()
    }

    fn is_unschedulable(&self) -> bool {
        let is_false = is_false(self, "PodScheduled");
        is_false.is_some_and(|condition| condition.reason.as_deref() == Some("Unschedulable"))
    }

    fn lacks_sandbox(&self) -> bool {
        is_false(self, "PodReadyToStartContainers").is_some()
    }
}

/// The condition of that type, if it is false.
fn is_false<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    conditions.find(|condition| condition.type_ == type_ && condition.status == "False")
}

macro_rules! fields_of_what_it_points_to {
    ($pointer:ty) => {
        impl<P: PodFields> PodFields for $pointer {
            fn name(&self) -> &str {
                P::name(self)
            }

            fn namespace(&self) -> &str {
                P::namespace(self)
            }

            fn uid(&self) -> &str {
                P::uid(self)
            }

            fn annotation(&self, key: &str) -> Option<&str> {
                P::annotation(self, key)
            }

            fn label(&self, key: &str) -> Option<&str> {
                P::label(self, key)
            }

            fn controller(&self) -> Option<&OwnerReference> {
                P::controller(self)
            }

            fn created_at(&self) -> Option<i64> {
                P::created_at(self)
            }

            fn is_deleting(&self) -> bool {
                P::is_deleting(self)
            }

            fn node_name(&self) -> &str {
                P::node_name(self)
            }

            fn gates(&self) -> impl Iterator<Item = &str> {
                P::gates(self)
            }

            fn phase(&self) -> &str {
                P::phase(self)
            }

            fn is_unschedulable(&self) -> bool {
                P::is_unschedulable(self)
            }

            fn lacks_sandbox(&self) -> bool {
                P::lacks_sandbox(self)
            }
        }
    };
}
fields_of_what_it_points_to!(&P);
fields_of_what_it_points_to!(Arc<P>);
