//! Which commit an image is of, and when it was made: by the commit, never by the clock.

use std::{collections::BTreeMap, env, path::Path, process::Command};

use anyhow::{Context, Result};
use jiff::Timestamp;
use oci_spec::image::{
    ANNOTATION_CREATED, ANNOTATION_DESCRIPTION, ANNOTATION_LICENSES, ANNOTATION_REVISION,
    ANNOTATION_SOURCE, ANNOTATION_TITLE, ANNOTATION_VERSION,
};

use crate::metadata::Package;

/// Overrides the time of the commit; the convention of reproducible builds.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Where an image comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    /// RFC 3339.
    pub(crate) created: String,
    /// The commit, with `-dirty` where files differ from it. None outside of a repository.
    revision: Option<String>,
}

impl Origin {
    /// Asks git, and the environment.
    pub(crate) fn of(root: &Path) -> Result<Self> {
        let commit = git(root, &["rev-parse", "HEAD"]);
        let is_dirty = git(root, &["status", "--porcelain"]).is_some_and(|text| !text.is_empty());
        let committed = git(root, &["log", "-1", "--format=%ct"]);
        let seconds = seconds(env::var(EPOCH).ok(), committed)?;
        Self::new(commit, is_dirty, &seconds)
    }

    fn new(commit: Option<String>, is_dirty: bool, seconds: &str) -> Result<Self> {
        let number = seconds
            .parse()
            .with_context(|| format!("{EPOCH}={seconds:?} is no number of seconds"))?;
        Ok(Self {
            created: Timestamp::from_second(number)?.to_string(),
            revision: commit.map(|commit| {
                let suffix = if is_dirty { "-dirty" } else { "" };
                format!("{commit}{suffix}")
            }),
        })
    }

    /// The labels of the image of a package.
    pub(crate) fn labels(&self, package: &Package) -> BTreeMap<String, String> {
        let labels = [
            (ANNOTATION_TITLE, Some(&package.name)),
            (ANNOTATION_DESCRIPTION, package.description.as_ref()),
            (ANNOTATION_VERSION, Some(&package.version)),
            (ANNOTATION_LICENSES, package.license.as_ref()),
            (ANNOTATION_SOURCE, package.repository.as_ref()),
            (ANNOTATION_REVISION, self.revision.as_ref()),
            (ANNOTATION_CREATED, Some(&self.created)),
        ];
        let labels = labels.into_iter();
        labels
            .filter_map(|(name, value)| Some((name.to_owned(), value?.clone())))
            .collect()
    }
}

/// What was given, else the time of the commit. Builders of images may hand on as empty what nobody gave them.
fn seconds(given: Option<String>, committed: Option<String>) -> Result<String> {
    given
        .filter(|text| !text.is_empty())
        .or(committed)
        .with_context(|| format!("no commit is known here: set {EPOCH}, in seconds"))
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_as_old_as_its_commit() {
        let origin = Origin::new(Some("abc".to_owned()), false, "1795540634").unwrap();
        assert_eq!(origin.created, "2026-11-24T17:17:14Z");
        assert_eq!(origin.revision.as_deref(), Some("abc"));
        let dirty = Origin::new(Some("abc".to_owned()), true, "0").unwrap();
        assert_eq!(dirty.revision.as_deref(), Some("abc-dirty"));
        let error = Origin::new(None, false, "yesterday").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("SOURCE_DATE_EPOCH=\"yesterday\"")
        );
    }

    #[test]
    fn a_time_that_is_given_goes_before_that_of_the_commit_unless_it_is_empty() {
        let time = |text: &str| Some(text.to_owned());
        assert_eq!(seconds(time("1"), time("2")).unwrap(), "1");
        assert_eq!(seconds(time(""), time("2")).unwrap(), "2");
        assert_eq!(seconds(None, time("2")).unwrap(), "2");
        let error = seconds(time(""), None).unwrap_err();
        assert!(error.to_string().contains(EPOCH), "{error}");
    }

    #[test]
    fn labels_say_what_the_package_says_and_leave_out_what_nobody_said() {
        let package = Package {
            name: "muster-webhook".to_owned(),
            version: "0.1.0".to_owned(),
            license: Some("Apache-2.0".to_owned()),
            ..Package::default()
        };
        let origin = Origin::new(None, false, "0").unwrap();
        let labels = origin.labels(&package);
        assert_eq!(labels[ANNOTATION_TITLE], "muster-webhook");
        assert_eq!(labels[ANNOTATION_LICENSES], "Apache-2.0");
        assert_eq!(labels[ANNOTATION_CREATED], "1970-01-01T00:00:00Z");
        assert!(!labels.contains_key(ANNOTATION_REVISION));
    }
}
