//! Objects that a scenario takes away for a while.

use std::fmt::Debug;

use anyhow::Result;
use kube::{Api, Resource};
use muster_tests::kubernetes;
use serde::{Serialize, de::DeserializeOwned};

/// Deletes an object and returns it as it was.
pub(crate) async fn take_away<K>(api: &Api<K>, name: &str) -> Result<K>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let saved = api.get(name).await?;
    kubernetes::delete(api, name).await?;
    Ok(saved)
}

/// Creates an object again that was taken away.
pub(crate) async fn put_back<K>(api: &Api<K>, mut object: K) -> Result<()>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned,
{
    let metadata = object.meta_mut();
    metadata.resource_version = None;
    metadata.uid = None;
    metadata.managed_fields = None;
    kubernetes::create(api, &object).await.map(drop)
}
