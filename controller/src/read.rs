//! Reads of single objects, straight from the store.

use std::{fmt::Debug, sync::Arc};

use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use muster_cluster::object::{Kind, Object, ObjectKey};
use muster_serve::{
    client::{CALL_LIMIT, CallError, within},
    watch::{Decoded, managed_fields},
};
use serde::de::DeserializeOwned;

/// The object as it is stored now; `None` if it does not exist.
pub(crate) async fn object(client: &Client, key: &ObjectKey) -> Result<Option<Object>, CallError> {
    macro_rules! read {
        ($($kind:ident: $scope:ident $collection:ident $status:ident;)*) => {
            match key.kind {
                $(Kind::$kind => $scope(client, key, Object::$kind).await,)*
            }
        };
    }
    muster_cluster::for_each_kind!(read)
}

async fn cluster<K>(
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
    let mut object = whole(stored)?;
    managed_fields::reduce(object.meta_mut());
    Ok(Some(wrap(Arc::new(object))))
}

/// An object that could be read as a whole. One that could not is neither there nor gone, for whoever asked: nothing may be concluded from a
/// part.
fn whole<K>(stored: Decoded<K>) -> Result<K, CallError> {
    match stored {
        Decoded::Whole(object) => Ok(object),
        Decoded::Partial(partial) => {
            let missing = format!("it cannot be decoded: {:?}", partial.missing);
            let error = kube::Error::SerdeError(serde::de::Error::custom(missing));
            Err(CallError::Api(Box::new(error)))
        }
    }
}
