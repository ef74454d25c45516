//! What users declare by labels and annotations, on pods and on the pod templates of Jobs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use muster_api::{Reason, keys};
use muster_cluster::{
    shorthand::{InvalidShorthand, Shorthand},
    text::quoted,
    whole_number,
};

use crate::{
    cache::Cache,
    finding::{Findings, listed},
    min_count,
};

/// Prefix of every key of Muster.
const PREFIX: &str = "muster.dev/";
/// Labels that mean something on a pod or Job.
const LABELS: [&str; 2] = [keys::GANG, keys::TIER];
/// Annotations that mean something on a pod or Job, besides the controller's and the shorthand.
const ANNOTATIONS: [&str; 12] = [
    keys::GANG_SIZE,
    keys::MIN_COUNT,
    keys::START_TIMEOUT_SECONDS,
    keys::FAILURE_GRACE_SECONDS,
    keys::MAX_RUNTIME_SECONDS,
    keys::MAX_RESTARTS,
    keys::PROGRESS_DEADLINE_SECONDS,
    keys::PROGRESS,
    keys::FORCE_DELETION,
    keys::TOPOLOGY_REQUIRED,
    keys::TOPOLOGY_PREFERRED,
    CHECKPOINTED_AT,
];
/// A number: its key, how it is read, of what it is one and from where on, and the most that it may be.
type Limit = (&'static str, fn(&str) -> Option<u32>, &'static str, u32);
/// What most limits are numbers of.
const SECONDS: &str = "of seconds from 1";
/// The limits that a gang may ask for.
const LIMITS: [Limit; 5] = [
    (
        keys::START_TIMEOUT_SECONDS,
        whole_number::limit_seconds,
        SECONDS,
        keys::MAX_LIMIT_SECONDS,
    ),
    (
        keys::FAILURE_GRACE_SECONDS,
        whole_number::limit_seconds,
        SECONDS,
        keys::MAX_LIMIT_SECONDS,
    ),
    (
        keys::PROGRESS_DEADLINE_SECONDS,
        whole_number::limit_seconds,
        SECONDS,
        keys::MAX_LIMIT_SECONDS,
    ),
    (
        keys::MAX_RUNTIME_SECONDS,
        whole_number::runtime_seconds,
        SECONDS,
        keys::LONGEST_RUNTIME_SECONDS,
    ),
    (
        keys::MAX_RESTARTS,
        whole_number::restarts,
        "from 0",
        keys::MOST_RESTARTS,
    ),
];
/// Written by workloads at any time; read with preemption.
const CHECKPOINTED_AT: &str = "muster.dev/checkpointed-at";

/// The metadata of a pod, a Job, or the pod template of a Job, and where it is in the object.
#[derive(Clone, Copy, Debug)]
pub struct Declared<'a> {
    metadata: &'a ObjectMeta,
    path: &'static str,
}

impl<'a> Declared<'a> {
    /// Metadata at a path of the object, `metadata` or `spec.template.metadata`.
    pub fn at(path: &'static str, metadata: &'a ObjectMeta) -> Self {
        Self { metadata, path }
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&'a str> {
        let labels = self.metadata.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&'a str> {
        let annotations = self.metadata.annotations.as_ref()?;
        annotations.get(key).map(String::as_str)
    }

    /// Path of a label.
    pub fn label_path(&self, key: &str) -> String {
        format!("{}.labels[{key}]", self.path)
    }

    /// Path of an annotation.
    pub fn annotation_path(&self, key: &str) -> String {
        format!("{}.annotations[{key}]", self.path)
    }

    /// The declared size of the gang, if there is one that is valid.
    pub fn gang_size(&self) -> Option<u32> {
        whole_number::gang_size(self.annotation(keys::GANG_SIZE)?)
    }

    /// With how few pods the gang may start, if that is said by a number that is valid.
    pub fn min_count(&self) -> Option<u32> {
        whole_number::gang_size(self.annotation(keys::MIN_COUNT)?)
    }

    /// The shorthand for a claim, or all that is wrong with it.
    pub fn shorthand(&self) -> Result<Option<Shorthand>, Vec<InvalidShorthand>> {
        Shorthand::read(self.metadata.annotations.as_ref())
    }

    /// Checks every key of Muster but the shorthand, which says something about the rest of the pod too.
    pub fn check(&self, namespace: &str, facts: &Cache, findings: &mut Findings) {
        self.check_controller_annotations(findings);
        self.check_gang(findings);
        self.check_tier(namespace, facts, findings);
        self.check_topology(facts, findings);
        self.warn_of_unknown_keys(findings);
    }

    /// They say what the controller decided; a copy of a pod that ran must not claim it.
    fn check_controller_annotations(&self, findings: &mut Findings) {
        for key in keys::CONTROLLER_ANNOTATIONS {
            if self.annotation(key).is_some() {
                findings.error(
                    Reason::NotPermitted,
                    self.annotation_path(key),
                    "is written by muster-controller only: leave it out",
                );
            }
        }
    }

    fn check_gang(&self, findings: &mut Findings) {
        if self.label(keys::GANG) == Some("") {
            findings.error(
                Reason::InvalidValue,
                self.label_path(keys::GANG),
                "must be the name of the gang, not empty",
            );
        }
        if let Some(size) = self.annotation(keys::GANG_SIZE)
            && self.gang_size().is_none()
        {
            findings.error(
                Reason::InvalidValue,
                self.annotation_path(keys::GANG_SIZE),
                format!(
                    "{}: must be a whole number from 1 to {}, in plain digits",
                    quoted(size),
                    keys::MAX_GANG_SIZE
                ),
            );
        }
        min_count::check_number(self, findings);
        for (key, parse, least, most) in LIMITS {
            let limit = self.annotation(key);
            let limit = limit.filter(|limit| parse(limit).is_none());
            if let Some(limit) = limit {
                findings.error(
                    Reason::InvalidValue,
                    self.annotation_path(key),
                    format!(
                        "{}: must be a whole number {least} to {most}, in plain digits",
                        quoted(limit)
                    ),
                );
            }
        }
    }

    fn check_tier(&self, namespace: &str, facts: &Cache, findings: &mut Findings) {
        let Some(tier) = self.label(keys::TIER) else {
            return;
        };
        if !facts.tiers.contains(tier) {
            let known = listed(facts.tiers.iter().map(String::as_str));
            findings.error(
                Reason::TierNotAllowed,
                self.label_path(keys::TIER),
                format!(
                    "there is no PriorityTier {}; there are: {known}",
                    quoted(tier)
                ),
            );
            return;
        }
        let Some((team, spec)) = facts.team_of(namespace) else {
            return;
        };
        let allowed = spec
            .tiers
            .as_ref()
            .map_or(&[][..], |tiers| tiers.allowed.as_slice());
        if !allowed.is_empty() && !allowed.iter().any(|name| name == tier) {
            findings.error(
                Reason::TierNotAllowed,
                self.label_path(keys::TIER),
                format!(
                    "team {team} may not use tier {}; it may use: {}",
                    quoted(tier),
                    listed(allowed.iter().map(String::as_str))
                ),
            );
        }
    }

    fn check_topology(&self, facts: &Cache, findings: &mut Findings) {
        for key in [keys::TOPOLOGY_REQUIRED, keys::TOPOLOGY_PREFERRED] {
            let Some(level) = self.annotation(key) else {
                continue;
            };
            let levels = facts.levels();
            if !levels.contains(level) {
                findings.error(
                    Reason::InvalidValue,
                    self.annotation_path(key),
                    format!(
                        "no Topology has a level {}; there are: {}",
                        quoted(level),
                        listed(levels)
                    ),
                );
            }
        }
    }

    /// A key that is misspelt would be ignored without a word.
    fn warn_of_unknown_keys(&self, findings: &mut Findings) {
        let labels = self.metadata.labels.iter().flatten();
        for (key, _) in labels.filter(|(key, _)| key.starts_with(PREFIX)) {
            if !LABELS.contains(&key.as_str()) {
                findings.warn(format!(
                    "{} is not a label of Muster and has no effect",
                    self.label_path(key)
                ));
            }
        }
        let annotations = self.metadata.annotations.iter().flatten();
        for (key, _) in annotations.filter(|(key, _)| key.starts_with(PREFIX)) {
            let key = key.as_str();
            let known = ANNOTATIONS.contains(&key)
                || keys::CONTROLLER_ANNOTATIONS.contains(&key)
                || keys::SHORTHAND.contains(&key);
            if !known {
                findings.warn(format!(
                    "{} is not an annotation of Muster and has no effect",
                    self.annotation_path(key)
                ));
            }
        }
    }
}
