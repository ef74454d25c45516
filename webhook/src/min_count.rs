//! With how few of its pods a gang may start: what cannot be meant is refused, and says what could be.
//!
//! Only the gang of one Job with `completions` may: nobody else counts what is done, and has the other pods run later. Whether all
//! pods of a gang are of one Job is not known here; where they are not, the gang waits and says so.

use k8s_openapi::api::batch::v1::JobSpec;
use muster_api::{Reason, keys};
use muster_cluster::{gangs::size_by_shape, text::quoted, whole_number};

use crate::{declared::Declared, finding::Findings};

/// What can be said of the number itself, wherever it stands.
pub(crate) fn check_number(declared: &Declared<'_>, findings: &mut Findings) {
    let Some(text) = declared.annotation(keys::MIN_COUNT) else {
        return;
    };
    if declared.min_count().is_none() {
        let most = declared.gang_size().unwrap_or(keys::MAX_GANG_SIZE);
        refuse(
            declared,
            format!(
                "{}: must be a whole number from 1 to {most}, in plain digits",
                quoted(text)
            ),
            findings,
        );
    }
}

/// A pod, which a Job makes or nobody who counts what is done.
pub(crate) fn check_of_pod(declared: &Declared<'_>, is_of_job: bool, findings: &mut Findings) {
    if declared.annotation(keys::MIN_COUNT).is_some() && !is_of_job {
        refuse(
            declared,
            "is for pods of a Job with spec.completions, which counts what is done and has the other pods run later: leave it out",
            findings,
        );
    } else if let (Some(least), Some(size)) = (declared.min_count(), declared.gang_size()) {
        check_size(declared, least, size, findings);
    }
}

/// A Job, and the template of its pods.
pub(crate) fn check_of_job(
    own: &Declared<'_>,
    template: Option<&Declared<'_>>,
    spec: &JobSpec,
    findings: &mut Findings,
) {
    let template = template.into_iter();
    for declared in template.clone().chain([own]) {
        let Some(least) = declared.min_count() else {
            continue;
        };
        if spec.completions.is_none() {
            refuse(
                declared,
                "is for Jobs with spec.completions: without them the Job is complete once a pod succeeded and none is left, and pods that \
                 wait for the next attempt keep it from that. Leave it out, or name spec.completions",
                findings,
            );
            continue;
        }
        let says = |it: &Declared<'_>| Some(it.annotation(keys::GANG_SIZE)?.to_owned());
        let said = template.clone().find_map(says).or_else(|| says(own));
        let size = match &said {
            Some(said) => whole_number::gang_size(said),
            None => size_by_shape(spec).and_then(|size| u32::try_from(size).ok()),
        };
        match size {
            Some(size) => check_size(declared, least, size, findings),
            // What is wrong with what was said is said of it.
            None if said.is_some() => {}
            None => refuse(
                declared,
                format!(
                    "the pods of this Job start one by one, so that there is no least number: leave it out, or say by {} how many \
                     of them are a gang",
                    keys::GANG_SIZE
                ),
                findings,
            ),
        }
    }
}

fn check_size(declared: &Declared<'_>, least: u32, size: u32, findings: &mut Findings) {
    if least > size {
        refuse(
            declared,
            format!("{least}: must be a whole number from 1 to {size}, the size of the gang"),
            findings,
        );
    }
}

fn refuse(declared: &Declared<'_>, message: impl Into<String>, findings: &mut Findings) {
    let field = declared.annotation_path(keys::MIN_COUNT);
    findings.error(Reason::InvalidValue, field, message);
}
