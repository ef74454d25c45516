//! Reads of single objects, straight from the store.

use std::{fmt::Debug, sync::Arc};

use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use muster_cluster::object::{Kind, Object, ObjectKey};
use muster_serve::{
    client::{CALL_LIMIT, CallError, within},
    watch::Decoded,
};
use serde::de::DeserializeOwned;

/// The object as it is stored now; `None` if it does not exist.
pub(crate) async fn object(client: &Client, key: &ObjectKey) -> Result<Option<Object>, CallError> {
    match key.kind {
        Kind::Cohort => global(client, key, Object::Cohort).await,
        Kind::DeviceClass => global(client, key, Object::DeviceClass).await,
        Kind::Flavor => global(client, key, Object::Flavor).await,
        Kind::Gang => namespaced(client, key, Object::Gang).await,
        Kind::Job => namespaced(client, key, Object::Job).await,
        Kind::Ledger => global(client, key, Object::Ledger).await,
        Kind::Namespace => global(client, key, Object::Namespace).await,
        Kind::Node => global(client, key, Object::Node).await,
        Kind::NodeDevices => global(client, key, Object::NodeDevices).await,
        Kind::Pod => namespaced(client, key, Object::Pod).await,
        Kind::PriorityTier => global(client, key, Object::PriorityTier).await,
        Kind::Queue => namespaced(client, key, Object::Queue).await,
        Kind::ResourceClaim => namespaced(client, key, Object::ResourceClaim).await,
        Kind::ResourceSlice => global(client, key, Object::ResourceSlice).await,
        Kind::Team => global(client, key, Object::Team).await,
        Kind::Topology => global(client, key, Object::Topology).await,
    }
}

async fn global<K>(
    client: &Client,
    key: &ObjectKey,
    wrap: fn(Arc<K>) -> Object,
) -> Result<Option<Object>, CallError>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug,
{
    get(&Api::all(client.clone()), &key.name, wrap).await
}

async fn namespaced<K>(
    client: &Client,
    key: &ObjectKey,
    wrap: fn(Arc<K>) -> Object,
) -> Result<Option<Object>, CallError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    get(
        &Api::namespaced(client.clone(), &key.namespace),
        &key.name,
        wrap,
    )
    .await
}

async fn get<K>(
    api: &Api<Decoded<K>>,
    name: &str,
    wrap: fn(Arc<K>) -> Object,
) -> Result<Option<Object>, CallError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let Some(stored) = within(CALL_LIMIT, api.get_opt(name)).await? else {
        return Ok(None);
    };
    match stored {
        Decoded::Whole(mut object) => {
            object.meta_mut().managed_fields = None;
            Ok(Some(wrap(Arc::new(object))))
        }
        // Neither there nor gone, for whoever asked: nothing may be concluded from a part.
        Decoded::Partial(partial) => {
            let missing = format!("it cannot be decoded: {:?}", partial.missing);
            let error = kube::Error::SerdeError(serde::de::Error::custom(missing));
            Err(CallError::Api(Box::new(error)))
        }
    }
}
