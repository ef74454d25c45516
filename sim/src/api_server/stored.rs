//! What the API server knows about a type: its kind, and what of it is spec and what status.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_cluster::object::{Kind, Object, types};

/// A type that the API server stores.
pub trait Stored: kube::Resource<DynamicType = ()> + Clone + Sized {
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
    /// Takes the status of another, or none; does nothing to a type without one.
    fn take_status_of(&mut self, other: Option<&Self>);
}

macro_rules! same_status {
    (with_status, $one:ident, $other:ident) => {
        $one.status == $other.status
    };
    (without_status, $one:ident, $other:ident) => {{
        let _ = $other;
        true
    }};
}

macro_rules! take_status {
    (with_status, $one:ident, $other:ident) => {
        $one.status = $other.and_then(|other| other.status.clone())
    };
    (without_status, $one:ident, $other:ident) => {{
        let _ = $other;
    }};
}

macro_rules! stored {
    ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
        $(impl Stored for types::$kind {
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
                same_status!($status, self, other)
            }
            fn take_status_of(&mut self, other: Option<&Self>) {
                take_status!($status, self, other);
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

muster_cluster::for_each_kind!(stored);
