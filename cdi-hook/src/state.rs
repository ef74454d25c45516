//! Where the container's root is, as the runtime says: its state on our standard input names the bundle, and the
//! bundle's configuration the root.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use serde::{Deserialize, de::DeserializeOwned};

use crate::Failure;

/// Longest state. Runtimes write a few hundred bytes, and annotations.
const STATE_BYTES: u64 = 4 << 20;
/// Longest configuration. It carries the container's environment and arguments, of which the kernel takes 2 MiB or so.
const CONFIGURATION_BYTES: u64 = 32 << 20;

#[derive(Deserialize)]
struct State {
    bundle: PathBuf,
}

#[derive(Deserialize)]
struct Configuration {
    root: Root,
}

#[derive(Deserialize)]
struct Root {
    path: PathBuf,
}

/// The path of the container's root, from the state of the container.
pub(crate) fn container_root(state: impl Read) -> Result<PathBuf, Failure> {
    let what = "the container's state on standard input";
    let state: State = read(state, STATE_BYTES, what)?;
    if !state.bundle.is_absolute() {
        let cause = format!("bundle {} is no absolute path", state.bundle.display());
        return Err(Failure::runtime(what, &cause));
    }
    let path = state.bundle.join("config.json");
    let file = File::open(&path).map_err(|error| Failure::runtime(&path.display(), &error))?;
    let configuration: Configuration = read(file, CONFIGURATION_BYTES, &path.display())?;
    Ok(state.bundle.join(configuration.root.path))
}

/// Reads JSON of bounded size.
fn read<T: DeserializeOwned>(
    source: impl Read,
    limit: u64,
    what: &(impl ToString + ?Sized),
) -> Result<T, Failure> {
    let mut text = Vec::new();
    let read = source.take(limit + 1).read_to_end(&mut text);
    let whole = match read {
        Ok(length) if length as u64 > limit => {
            Err(io::Error::other(format!("longer than {limit} bytes")))
        }
        other => other,
    };
    whole.map_err(|error| Failure::runtime(what, &error))?;
    serde_json::from_slice(&text).map_err(|error| Failure::runtime(what, &error))
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn root_of(bundle: &Path, configuration: &str) -> Result<PathBuf, Failure> {
        fs::write(bundle.join("config.json"), configuration).unwrap();
        let state = serde_json::json!({"ociVersion": "1.2.0", "id": "c", "status": "creating", "pid": 1, "bundle": bundle});
        container_root(state.to_string().as_bytes())
    }

    #[test]
    fn the_root_is_found_beside_the_configuration_or_where_that_says() {
        let bundle = tempfile::tempdir().unwrap();
        let found = root_of(
            bundle.path(),
            r#"{"root": {"path": "rootfs", "readonly": true}}"#,
        );
        assert_eq!(found.unwrap(), bundle.path().join("rootfs"));
        let found = root_of(bundle.path(), r#"{"root": {"path": "/run/c/rootfs"}}"#);
        assert_eq!(found.unwrap(), Path::new("/run/c/rootfs"));
    }

    #[test]
    fn a_large_configuration_is_read_and_a_huge_one_is_refused() {
        let bundle = tempfile::tempdir().unwrap();
        let with = |bytes: usize| {
            let padding = "x".repeat(bytes);
            format!(r#"{{"process": {{"env": ["A={padding}"]}}, "root": {{"path": "rootfs"}}}}"#)
        };
        assert!(root_of(bundle.path(), &with(4 << 20)).is_ok());
        let failure = root_of(bundle.path(), &with(32 << 20))
            .unwrap_err()
            .to_string();
        assert!(failure.contains("longer than 33554432 bytes"), "{failure}");
    }

    #[test]
    fn what_is_no_state_is_refused_and_says_what_is_wrong() {
        for state in [
            "",
            "{}",
            "[]",
            r#"{"bundle": "relative"}"#,
            r#"{"bundle": "/nonexistent-muster"}"#,
        ] {
            let failure = container_root(state.as_bytes()).unwrap_err().to_string();
            assert!(
                failure.contains("standard input")
                    || failure.contains("/nonexistent-muster/config.json"),
                "{state:?}: {failure}"
            );
        }
        let endless = io::repeat(b' ');
        let failure = container_root(endless).unwrap_err().to_string();
        assert!(failure.contains("longer than 4194304 bytes"), "{failure}");
    }
}
