//! From what the API server stores in etcd to the objects that the observer looks at.

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

use super::{
    etcd::Write,
    world::{Change, Object},
};

/// Where the API server keeps everything.
const ROOT: &str = "/registry/";

/// The change that a write is; `None` for a kind that the observer does not look at.
pub(super) fn change(write: &Write) -> Result<Option<Change>> {
    let Some(path) = write.key.strip_prefix(ROOT) else {
        return Ok(None);
    };
    let decoded = decode(path, &write.value);
    let object = decoded.with_context(|| format!("{} cannot be read", write.key))?;
    Ok(object.map(|object| Change {
        object,
        gone: write.gone,
    }))
}

fn decode(path: &str, value: &[u8]) -> Result<Option<Object>> {
    let mut words = path.split('/');
    let kind = match (words.next(), words.next()) {
        // A custom resource lies below its group.
        (Some("muster.dev"), Some(plural)) => ("muster.dev", plural),
        (Some(plural), _) => ("", plural),
        (None, _) => return Ok(None),
    };
    let object = match kind {
        ("", "pods") => Object::Pod(parse(value)?),
        ("", "resourceclaims") => Object::Claim(parse(value)?),
        ("", "resourceslices") => Object::Slice(parse(value)?),
        ("", "namespaces") => Object::Namespace(parse(value)?),
        ("", "minions") => Object::Node(parse(value)?),
        ("muster.dev", "gangs") => Object::Gang(parse(value)?),
        ("muster.dev", "nodedevices") => Object::NodeDevices(parse(value)?),
        ("muster.dev", "ledgers") => Object::Ledger(parse(value)?),
        ("muster.dev", "teams") => Object::Team(parse(value)?),
        ("muster.dev", "cohorts") => Object::Cohort(parse(value)?),
        ("muster.dev", "flavors") => Object::Flavor(parse(value)?),
        _ => return Ok(None),
    };
    Ok(Some(object))
}

fn parse<K: DeserializeOwned>(value: &[u8]) -> Result<Box<K>> {
    Ok(Box::new(serde_json::from_slice(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(key: &str, value: &str) -> Write {
        Write {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
            gone: false,
        }
    }

    #[test]
    fn kinds_are_told_by_their_keys() {
        let object = r#"{"metadata":{"name":"x"},"spec":{"containers":[],"devices":{}}}"#;
        for key in ["/registry/pods/ml/x", "/registry/resourceclaims/ml/x"] {
            assert!(change(&write(key, object)).unwrap().is_some(), "{key}");
        }
        for key in [
            "/registry/events/ml/x",
            "/registry/other.example.com/pods/ml/x",
            "compact_rev_key",
        ] {
            assert!(change(&write(key, object)).unwrap().is_none(), "{key}");
        }
    }

    #[test]
    fn an_object_that_cannot_be_read_is_an_error_with_its_key() {
        let error = change(&write("/registry/pods/ml/x", "k8s\0")).unwrap_err();
        assert!(error.to_string().contains("pods/ml/x"), "{error}");
    }
}
