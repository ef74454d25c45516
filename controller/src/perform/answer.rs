//! What is read of an answer to a write: as little as somebody asks for.
//!
//! The machine goes by what the watches tell, and they tell what was written, too. From an answer it takes the version that is stored
//! now. So the API server is asked for the metadata, of which the version is read, and of an Event nothing is. Of the Ledger the epoch is
//! read, too, since whoever raised it leads by that; and a node's NodeDevices is read whole when it is made.

use http::{HeaderValue, Request, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, core::request};
use muster_api::{Ledger, LedgerSpec, keys};
use muster_serve::client::{CALL_LIMIT, CallError, within};
use serde::Deserialize;

/// Asks for the metadata; who cannot answer so answers with all of the object.
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// A call, or why there is none.
pub(super) type Built = Result<Request<Vec<u8>>, request::Error>;

/// The Ledger that a write stored, with its UID, its version and its epoch. What is committed in it is long while many gangs start, and
/// nobody asks for that here. An answer without an epoch tells nothing of what is stored.
pub(super) async fn ledger(client: &Client, call: Built) -> Result<Ledger, CallError> {
    #[derive(Deserialize)]
    struct Answer {
        metadata: Metadata,
        spec: Spec,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        uid: Option<String>,
        resource_version: Option<String>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        leader_epoch: i64,
    }

    let answer = async {
        let call = call.map_err(kube::Error::BuildRequest)?;
        client.request::<Answer>(call).await
    };
    let Answer { metadata, spec } = within(CALL_LIMIT, answer).await?;
    let raised = LedgerSpec {
        leader_epoch: spec.leader_epoch,
        ..LedgerSpec::default()
    };
    let mut ledger = Ledger::new(keys::LEDGER_NAME, raised);
    ledger.metadata.uid = metadata.uid;
    ledger.metadata.resource_version = metadata.resource_version;
    Ok(ledger)
}

/// Metadata in which only the version that a write stored is told.
pub(super) async fn version(client: &Client, call: Built) -> Result<ObjectMeta, CallError> {
    #[derive(Deserialize)]
    struct Answer {
        metadata: Metadata,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        resource_version: Option<String>,
    }

    let answer = async { client.request::<Answer>(for_metadata(call)?).await };
    let Answer { metadata } = within(CALL_LIMIT, answer).await?;
    Ok(ObjectMeta {
        resource_version: metadata.resource_version,
        ..ObjectMeta::default()
    })
}

/// That a write was done.
pub(super) async fn done(client: &Client, call: Built) -> Result<(), CallError> {
    let answer = async { client.request_text(for_metadata(call)?).await };
    within(CALL_LIMIT, answer).await.map(drop)
}

fn for_metadata(call: Built) -> Result<Request<Vec<u8>>, kube::Error> {
    let mut call = call.map_err(kube::Error::BuildRequest)?;
    let headers = call.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static(METADATA));
    Ok(call)
}
