//! What the API server knows about a type: its kind, and what of it is spec and what status.

use std::sync::Arc;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Node, Pod},
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_api::{Cohort, Flavor, Gang, Ledger, NodeDevices, PriorityTier, Queue, Team, Topology};
use muster_cluster::object::{Kind, Object};

/// A type that the API server stores.
pub trait Stored: Clone + Sized {
    /// Its kind.
    const KIND: Kind;
    /// As an object of any kind.
    fn wrap(self) -> Object;
    /// Of an object of any kind; `None` if that is of another kind.
    fn of(object: &Object) -> Option<&Arc<Self>>;
    /// Its metadata.
    fn metadata(&self) -> &ObjectMeta;
    /// Its metadata.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
    /// Whether both have the same spec: a change of it raises the generation.
    fn same_spec(&self, other: &Self) -> bool;
    /// Whether both have the same status; true for a type without one.
    fn same_status(&self, other: &Self) -> bool;
}

macro_rules! stored {
    ($($kind:ident $(status $status:ident)?;)*) => {
        $(impl Stored for $kind {
            const KIND: Kind = Kind::$kind;
            fn wrap(self) -> Object {
                Object::$kind(Arc::new(self))
            }
            fn of(object: &Object) -> Option<&Arc<Self>> {
                match object {
                    Object::$kind(inner) => Some(inner),
                    _ => None,
                }
            }
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
            fn same_spec(&self, other: &Self) -> bool {
                self.spec == other.spec
            }
            fn same_status(&self, other: &Self) -> bool {
                let _ = other;
                true $(&& self.$status == other.$status)?
            }
        })*

        /// The metadata of an object of any kind.
        pub(crate) fn metadata_mut(object: &mut Object) -> &mut ObjectMeta {
            match object {
                $(Object::$kind(inner) => &mut Arc::make_mut(inner).metadata,)*
            }
        }
    };
}

stored! {
    Cohort;
    DeviceClass;
    Flavor;
    Gang status status;
    Job status status;
    Ledger;
    Namespace status status;
    Node status status;
    NodeDevices status status;
    Pod status status;
    PriorityTier;
    Queue status status;
    ResourceClaim status status;
    ResourceSlice;
    Team;
    Topology;
}
