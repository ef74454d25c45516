//! Names of pods by their UIDs, as the kubelet names the directories of their logs: `NAMESPACE_NAME_UID`.
//!
//! Every pod has one before its first container runs. So no right to read pods is needed, which would show a stolen token every pod
//! of the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use super::sight::PodName;

/// The names of those pods that are wanted, as far as they have a directory.
pub fn names(directory: &Path, wanted: &BTreeSet<String>) -> io::Result<BTreeMap<String, PodName>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut names = BTreeMap::new();
    for entry in entries {
        let file = entry?.file_name();
        let Some((uid, name)) = file.to_str().and_then(read) else {
            continue;
        };
        if wanted.contains(uid) {
            names.insert(uid.to_owned(), name);
        }
    }
    Ok(names)
}

/// No namespace, name or UID holds an underscore.
fn read(file: &str) -> Option<(&str, PodName)> {
    let mut parts = file.split('_');
    let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
    let is_whole = parts.next().is_none() && !namespace.is_empty() && !name.is_empty();
    is_whole.then(|| {
        let name = PodName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        (uid, name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_by_the_directory_of_its_logs() {
        let root = tempfile::tempdir().unwrap();
        for name in [
            "ml_train-0_u-1",
            "ml_other_u-2",
            "_x_u-1",
            "a_b_c_u-1",
            "u-1",
        ] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let wanted = BTreeSet::from(["u-1".to_owned(), "u-3".to_owned()]);
        let found = names(root.path(), &wanted).unwrap();
        let found: Vec<(&str, String)> = found
            .iter()
            .map(|(uid, name)| (uid.as_str(), name.to_string()))
            .collect();
        assert_eq!(found, [("u-1", "ml/train-0".to_owned())]);
        let absent = names(Path::new("/nonexistent-muster"), &wanted).unwrap();
        assert!(absent.is_empty());
    }
}
