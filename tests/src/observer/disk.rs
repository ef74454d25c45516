//! What the driver leaves on the disks of the nodes: a CDI file and a record for each claim that it has prepared.

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use muster_api::keys;

/// Where the driver of a node keeps its files.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) node: String,
    pub(super) cdi_directory: PathBuf,
    /// Made by the driver at its first start.
    pub(super) claim_records: PathBuf,
}

/// A file that stands for a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Remain {
    pub(super) node: String,
    what: &'static str,
    pub(super) claim: String,
}

impl fmt::Display for Remain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, what, claim } = self;
        write!(formatter, "{what} of claim {claim} is still on {node}")
    }
}

/// All files that stand for claims, of all nodes.
#[derive(Debug, Default)]
pub(super) struct Remains(BTreeSet<Remain>);

impl Remains {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Remain> {
        self.0.iter()
    }

    /// Whether a file stands for this claim.
    pub(super) fn names(&self, claim: &str) -> bool {
        self.0.iter().any(|remain| remain.claim == claim)
    }
}

#[cfg(test)]
impl FromIterator<(&'static str, &'static str)> for Remains {
    fn from_iter<I: IntoIterator<Item = (&'static str, &'static str)>>(files: I) -> Self {
        let files = files.into_iter().map(|(node, claim)| Remain {
            node: node.to_owned(),
            what: "the CDI file",
            claim: claim.to_owned(),
        });
        Self(files.collect())
    }
}

/// Looks at all disks.
pub(super) fn look(disks: &[Disk]) -> Result<Remains> {
    let prefix = format!("{}-claim_", keys::DRIVER);
    let mut found = BTreeSet::new();
    for disk in disks {
        let places = [
            ("the CDI file", &disk.cdi_directory, prefix.as_str()),
            ("the driver's record", &disk.claim_records, ""),
        ];
        for (what, directory, prefix) in places {
            for name in names(directory)? {
                let claim = name
                    .strip_prefix(prefix)
                    .and_then(|name| name.strip_suffix(".json"));
                found.extend(claim.map(|claim| Remain {
                    node: disk.node.clone(),
                    what,
                    claim: claim.to_owned(),
                }));
            }
        }
    }
    Ok(Remains(found))
}

/// Names of the files in a directory; none where it does not exist yet.
fn names(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", directory.display()));
        }
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}
