//! One watch of everything that the cluster's etcd stores.
//!
//! The observer reads etcd and not the API server, for two reasons. A single watch delivers every write of every
//! kind in the order in which etcd committed them, so nothing has to be put in order afterwards. And it goes on while
//! the API server is down; when etcd itself was down, it resumes at the next revision and misses nothing.
//!
//! Each revision must follow the one before: a jump would mean that a write was missed, and is reported as a gap.
//! The watch speaks JSON through the gateway that etcd serves beside gRPC (`POST /v3/watch`). The API server of the
//! tests stores JSON, too (`--storage-media-type`).

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::{AsyncBufReadExt, Stream, TryStreamExt};
use k8s_openapi::ByteString;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::json;

/// Longest time that a short question may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// etcd's revision: the number of writes so far, and so the observer's clock.
pub(super) type Revision = u64;

/// All writes of one revision.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) revision: Revision,
    pub(super) writes: Vec<Write>,
}

/// One key that was written or deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) key: String,
    /// The value; of a deleted key the one that it had last.
    pub(super) value: Vec<u8>,
    pub(super) gone: bool,
}

/// The etcd of a cluster, and how far it has been read.
pub(super) struct Etcd {
    client: Client,
}

impl Etcd {
    /// The etcd that serves at this URL.
    pub(super) fn at(url: &str) -> Result<Self> {
        let mut config = Config::new(url.parse().with_context(|| format!("{url} is no URL"))?);
        config.default_retry = false;
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    /// The current revision: every write that was acknowledged before the call is counted in it.
    pub(super) async fn revision(&self) -> Result<Revision> {
        let body = json!({"key": ByteString(vec![0]), "count_only": true});
        let request = http::Request::post("/v3/kv/range").body(serde_json::to_vec(&body)?)?;
        let answer = tokio::time::timeout(ANSWER_LIMIT, self.client.request_text(request));
        let answer: RangeAnswer =
            serde_json::from_str(&answer.await.context("etcd did not answer")??)?;
        parse_revision(&answer.header.revision)
    }

    /// Everything from this revision on. Ends with an error where the connection does.
    pub(super) async fn watch_from(
        &self,
        first: Revision,
    ) -> Result<impl Stream<Item = Result<Vec<Commit>>> + use<>> {
        let everything = ByteString(vec![0]);
        let body = json!({"create_request": {
            "key": everything, "range_end": everything, "start_revision": first.to_string(), "prev_kv": true,
        }});
        let request = http::Request::post("/v3/watch").body(serde_json::to_vec(&body)?)?;
        let lines = self.client.request_stream(request).await?.lines();
        let answers = lines.map_err(anyhow::Error::from);
        Ok(answers.and_then(|line| std::future::ready(parse(&line))))
    }
}

/// What one line of the watch says.
fn parse(line: &str) -> Result<Vec<Commit>> {
    let answer: WatchAnswer = serde_json::from_str(line)
        .with_context(|| format!("etcd's watch says what is not understood: {line:.200}"))?;
    let Some(result) = answer.result else {
        bail!("etcd's watch ended: {line:.200}");
    };
    if let Some(compacted) = result.compact_revision {
        bail!(Compacted(compacted));
    }
    ensure!(!result.canceled, "etcd canceled the watch: {line:.200}");
    let mut commits: Vec<Commit> = Vec::new();
    for event in result.events {
        let revision = parse_revision(&event.kv.mod_revision)?;
        let gone = event.kind == "DELETE";
        let value = if gone {
            event.prev_kv.and_then(|before| before.value)
        } else {
            event.kv.value
        };
        let write = Write {
            key: String::from_utf8_lossy(&event.kv.key.0).into_owned(),
            value: value.unwrap_or_default().0,
            gone,
        };
        match commits.last_mut() {
            Some(commit) if commit.revision == revision => commit.writes.push(write),
            _ => commits.push(Commit {
                revision,
                writes: vec![write],
            }),
        }
    }
    Ok(commits)
}

/// The revisions below this one are gone: what was written meanwhile cannot be known any more.
#[derive(Debug, thiserror::Error)]
#[error("etcd has dropped the revisions below {0}")]
pub(super) struct Compacted(String);

fn parse_revision(text: &str) -> Result<Revision> {
    text.parse()
        .with_context(|| format!("{text:?} is no revision"))
}

#[derive(Deserialize)]
struct RangeAnswer {
    header: Header,
}

#[derive(Deserialize)]
struct Header {
    revision: String,
}

#[derive(Deserialize)]
struct WatchAnswer {
    result: Option<WatchResult>,
}

#[derive(Deserialize)]
struct WatchResult {
    #[serde(default)]
    canceled: bool,
    compact_revision: Option<String>,
    #[serde(default)]
    events: Vec<WatchEvent>,
}

#[derive(Deserialize)]
struct WatchEvent {
    /// Absent for a write, because that is the first value of the enumeration.
    #[serde(default, rename = "type")]
    kind: String,
    kv: KeyValue,
    prev_kv: Option<KeyValue>,
}

#[derive(Deserialize)]
struct KeyValue {
    key: ByteString,
    #[serde(default)]
    mod_revision: String,
    value: Option<ByteString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_one_revision_are_one_commit_and_a_deletion_shows_what_was_there() {
        // "a" = YQ==, "1" = MQ==
        let line = r#"{"result":{"header":{"revision":"9"},"events":[
            {"kv":{"key":"YQ==","mod_revision":"7","value":"MQ=="}},
            {"type":"DELETE","kv":{"key":"YQ==","mod_revision":"8"},"prev_kv":{"key":"YQ==","value":"MQ=="}},
            {"kv":{"key":"YQ==","mod_revision":"8","value":"MQ=="}}]}}"#;
        let write = |gone| Write {
            key: "a".to_owned(),
            value: b"1".to_vec(),
            gone,
        };
        let expected = [
            Commit {
                revision: 7,
                writes: vec![write(false)],
            },
            Commit {
                revision: 8,
                writes: vec![write(true), write(false)],
            },
        ];
        assert_eq!(parse(line).unwrap(), expected);
    }

    #[test]
    fn a_watch_that_cannot_go_on_says_so() {
        let compacted =
            parse(r#"{"result":{"canceled":true,"compact_revision":"500"}}"#).unwrap_err();
        assert!(compacted.is::<Compacted>(), "{compacted}");
        for line in [
            r#"{"result":{"canceled":true}}"#,
            r#"{"error":{"code":14}}"#,
            "nonsense",
        ] {
            assert!(!parse(line).unwrap_err().is::<Compacted>());
        }
    }

    #[test]
    fn an_answer_without_writes_is_no_commit() {
        let created = r#"{"result":{"header":{"revision":"4"},"created":true}}"#;
        assert_eq!(parse(created).unwrap(), []);
    }
}
