//! What pods and their Jobs declare about the gang: its size, tier and topology.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use muster_api::{Reason, TopologyRequest, keys};

use super::{
    annotation, completion_index,
    group::{implied_size, is_indexed, job_annotation},
    label, name, phase,
};
use crate::{
    formed::PendingReason, pod::ObservedPod, text, unsupported_field::UnsupportedField,
    whole_number,
};

/// A pod with the Job that controls it, if it is known.
pub(super) struct Declaring<'a> {
    pub(super) pod: &'a ObservedPod,
    pub(super) job: Option<&'a Job>,
}

/// What is said of the size, and by whom first.
fn said<'a>(declaring: &[Declaring<'a>], job: Option<&'a Job>) -> BTreeMap<&'a str, String> {
    let mut said: BTreeMap<&str, String> = BTreeMap::new();
    for one in declaring {
        let by_pod = annotation(one.pod, keys::GANG_SIZE);
        let by_job = one.job.and_then(|job| job_annotation(job, keys::GANG_SIZE));
        if let Some(size) = by_pod.or(by_job) {
            said.entry(size)
                .or_insert_with(|| format!("pod {}", name(one.pod)));
        }
    }
    if let Some(job) = job
        && let Some(size) = job_annotation(job, keys::GANG_SIZE)
    {
        said.entry(size).or_insert_with(|| "the Job".to_owned());
    }
    said
}

/// Whether nobody says that there is more than one pod.
pub(super) fn says_no_more_than_one(declaring: &[Declaring<'_>], job: &Job) -> bool {
    let said = said(declaring, Some(job));
    said.keys()
        .all(|size| whole_number::gang_size(size) == Some(1))
}

/// Whether the Job says nothing of the size itself: its pods may, by annotations of their template.
pub(super) fn says_no_size(job: &Job) -> bool {
    job_annotation(job, keys::GANG_SIZE).is_none() && implied_size(job).is_none()
}

/// The declared size, and whether only the shape of an Indexed Job implies it.
pub(super) fn size(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
) -> Result<(u32, bool), PendingReason> {
    let said = said(declaring, job);
    let mut entries = said.into_iter();
    match (entries.next(), entries.next()) {
        (Some((size, _)), None) => Ok((in_range(size)?, false)),
        (Some((size, who)), Some((other, whose))) => Err(PendingReason {
            reason: Reason::SizeMismatch,
            details: format!(
                "{who} says {} {size}, {whose} says {other}; all pods of a gang must say the same",
                keys::GANG_SIZE
            ),
        }),
        (None, _) => match job.and_then(implied_size) {
            Some(size) => Ok((in_range(&size.to_string())?, true)),
            None => Err(UnsupportedField::new(
                format!("metadata.annotations[{}]", keys::GANG_SIZE),
                format!(
                    "is missing; pods with the label {} must say how many they are",
                    keys::GANG
                ),
            )
            .wait("pods")),
        },
    }
}

fn in_range(text: &str) -> Result<u32, PendingReason> {
    let field = format!("metadata.annotations[{}]", keys::GANG_SIZE);
    if let Some(size) = whole_number::gang_size(text) {
        return Ok(size);
    }
    if let Some(size) = whole_number::parse(text, &(1..=u32::MAX)) {
        return Err(PendingReason {
            reason: Reason::GangTooLarge,
            details: format!(
                "{size} pods; a gang has at most {} (a Job whose pods may start one by one says {}: \"1\")",
                keys::MAX_GANG_SIZE,
                keys::GANG_SIZE
            ),
        });
    }
    let text: String = text.chars().take(64).collect();
    let cause = format!(
        "is {text:?}; write a whole number from 1 to {}",
        keys::MAX_GANG_SIZE
    );
    Err(UnsupportedField::new(field, cause).wait("pods"))
}

/// Ranks of an Indexed Job that succeeded: those that the Job has counted, and those whose pods
/// say so.
pub fn succeeded_ranks(job: &Job, pods: &[&ObservedPod]) -> BTreeSet<u32> {
    if !is_indexed(job) {
        return BTreeSet::new();
    }
    let counted = job
        .status
        .as_ref()
        .and_then(|status| status.completed_indexes.as_deref());
    let completions = job
        .spec
        .as_ref()
        .and_then(|spec| spec.completions)
        .unwrap_or(0);
    let completions = u32::try_from(completions).unwrap_or(0);
    let by_pods = pods
        .iter()
        .filter(|pod| phase(pod) == "Succeeded")
        .filter_map(completion_index);
    indexes(counted.unwrap_or_default(), completions)
        .chain(by_pods)
        .filter(|index| *index < completions)
        .collect()
}

/// Ranks of an Indexed Job that failed for good, as those of a Job with `backoffLimitPerIndex` do: it makes no pod for them
/// any more.
pub fn failed_ranks(job: &Job) -> BTreeSet<u32> {
    let status = job.status.as_ref();
    let failed = status.and_then(|status| status.failed_indexes.as_deref());
    let completions = job.spec.as_ref().and_then(|spec| spec.completions);
    let completions = u32::try_from(completions.unwrap_or(0)).unwrap_or(0);
    indexes(failed.unwrap_or_default(), completions)
        .filter(|index| *index < completions)
        .collect()
}

/// Whether a Job runs so many pods at once, before any is done. One that runs fewer makes others later, or none: of a gang by label these are not all.
pub fn runs_at_once(job: &Job, pods: u32) -> bool {
    let spec = job.spec.as_ref();
    let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
    let completions = spec.and_then(|spec| spec.completions);
    let at_once = completions.map_or(parallelism, |completions| parallelism.min(completions));
    i64::from(at_once) >= i64::from(pods)
}

/// How many pods a Job that declared so many still makes: none for ranks that succeeded or failed for good.
pub(super) fn left(declared: u32, job: Option<&Job>, pods: &[&ObservedPod]) -> u32 {
    let Some(job) = job else { return declared };
    let completions = job.spec.as_ref().and_then(|spec| spec.completions);
    if is_indexed(job) {
        let mut done = succeeded_ranks(job, pods);
        done.extend(failed_ranks(job));
        let completions = u32::try_from(completions.unwrap_or(0)).unwrap_or(0);
        let left = completions.saturating_sub(u32::try_from(done.len()).unwrap_or(u32::MAX));
        return declared.min(left);
    }
    let succeeded = job.status.as_ref().and_then(|status| status.succeeded);
    match (completions, succeeded.unwrap_or(0)) {
        (Some(completions), succeeded) if succeeded > 0 => {
            let left = completions.saturating_sub(succeeded);
            declared.min(u32::try_from(left).unwrap_or(0))
        }
        _ => declared,
    }
}

/// Reads `1,3-5,7`, as Jobs write it; never more than `limit` numbers per entry.
fn indexes(text: &str, limit: u32) -> impl Iterator<Item = u32> {
    text.split(',').flat_map(move |part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
            (Ok(first), Ok(last)) => first..last.saturating_add(1).min(limit),
            _ => 0..0,
        }
    })
}

/// The tier that pods, or else their Job, name.
pub(super) fn tier(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
) -> Result<Option<String>, PendingReason> {
    let of_job = |job: Option<&Job>| {
        let labels = job?.metadata.labels.as_ref()?;
        labels.get(keys::TIER).cloned()
    };
    agreed(
        declaring,
        job,
        &format!("metadata.labels[{}]", keys::TIER),
        &|one| label(one.pod, keys::TIER).map(str::to_owned),
        &of_job,
    )
}

/// What pods, or else their Job, say by an annotation.
fn agreed_annotation(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
    key: &str,
) -> Result<Option<String>, PendingReason> {
    agreed(
        declaring,
        job,
        &format!("metadata.annotations[{key}]"),
        &|one| annotation(one.pod, key).map(str::to_owned),
        &|job| {
            job.and_then(|job| job_annotation(job, key))
                .map(str::to_owned)
        },
    )
}

/// How long the gang may run, and make no progress, and how often it is started anew, where pods or their Job say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) start_timeout_seconds: Option<u32>,
    pub(super) failure_grace_seconds: Option<u32>,
    pub(super) max_runtime_seconds: Option<u32>,
    pub(super) max_restarts: Option<u32>,
    pub(super) progress_deadline_seconds: Option<u32>,
}

/// The limits that pods, or else their Job, name.
pub(super) fn limits(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
) -> Result<Limits, PendingReason> {
    let read = |key: &str, parse: fn(&str) -> Option<u32>, range: (&str, u32)| {
        let Some(text) = agreed_annotation(declaring, job, key)? else {
            return Ok(None);
        };
        parse(&text).map(Some).ok_or_else(|| {
            let text: String = text.chars().take(64).collect();
            let (least, most) = range;
            let cause = format!("is {text:?}; write a whole number {least} to {most}");
            UnsupportedField::new(format!("metadata.annotations[{key}]"), cause).wait("pods")
        })
    };
    let seconds = "of seconds from 1";
    let day = (seconds, keys::MAX_LIMIT_SECONDS);
    let limit = |key| read(key, whole_number::limit_seconds, day);
    Ok(Limits {
        start_timeout_seconds: limit(keys::START_TIMEOUT_SECONDS)?,
        failure_grace_seconds: limit(keys::FAILURE_GRACE_SECONDS)?,
        max_runtime_seconds: read(
            keys::MAX_RUNTIME_SECONDS,
            whole_number::runtime_seconds,
            (seconds, keys::LONGEST_RUNTIME_SECONDS),
        )?,
        max_restarts: read(
            keys::MAX_RESTARTS,
            whole_number::restarts,
            ("from 0", keys::MOST_RESTARTS),
        )?,
        progress_deadline_seconds: limit(keys::PROGRESS_DEADLINE_SECONDS)?,
    })
}

/// With how many of its pods the gang may start at the least, where pods or their Job say. `declared`: its size; `job`: the one that
/// makes all its pods.
pub(super) fn min_count(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
    declared: u32,
) -> Result<Option<u32>, PendingReason> {
    let Some(text) = agreed_annotation(declaring, job, keys::MIN_COUNT)? else {
        return Ok(None);
    };
    let refused = |cause: String| {
        let field = format!("metadata.annotations[{}]", keys::MIN_COUNT);
        Err(UnsupportedField::new(field, cause).wait("pods"))
    };
    let counts = |job: &Job| {
        let spec = job.spec.as_ref();
        spec.is_some_and(|spec| spec.completions.is_some())
    };
    let least = whole_number::gang_size(&text);
    if least.is_some() && least != Some(declared) && !job.is_some_and(counts) {
        return refused(format!(
            "is for the gang of one Job with completions: nobody else counts what is done, and runs the other pods later; leave it out, \
             name completions, or say by {} that the pods of the Job are a gang",
            keys::GANG_SIZE
        ));
    }
    match least.filter(|least| *least <= declared) {
        Some(least) => Ok(Some(least)),
        None => refused(format!(
            "is {}; write a whole number from 1 to {declared}, the size of the gang",
            text::quoted(&text)
        )),
    }
}

/// Where pods, or else their Job, say that the gang must or should be.
pub(super) fn topology(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
) -> Result<Option<TopologyRequest>, PendingReason> {
    let one = |key: &str| agreed_annotation(declaring, job, key);
    let request = TopologyRequest {
        required: one(keys::TOPOLOGY_REQUIRED)?,
        preferred: one(keys::TOPOLOGY_PREFERRED)?,
    };
    Ok((request != TopologyRequest::default()).then_some(request))
}

/// The one value that those who name any agree on; pods may leave it out (a launcher, say).
fn agreed(
    declaring: &[Declaring<'_>],
    job: Option<&Job>,
    field: &str,
    by_pod: &dyn Fn(&Declaring<'_>) -> Option<String>,
    by_job: &dyn Fn(Option<&Job>) -> Option<String>,
) -> Result<Option<String>, PendingReason> {
    let said: BTreeSet<String> = declaring
        .iter()
        .filter_map(|one| by_pod(one).or_else(|| by_job(one.job)))
        .chain(if declaring.is_empty() {
            by_job(job)
        } else {
            None
        })
        .filter(|value| !value.is_empty())
        .collect();
    if said.len() > 1 {
        let values: Vec<_> = said.iter().take(4).map(String::as_str).collect();
        return Err(UnsupportedField::new(
            field,
            format!(
                "pods of the gang name {}; they must name one",
                values.join(" and ")
            ),
        )
        .wait("pods"));
    }
    Ok(said.into_iter().next())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn ranks_that_are_done_are_not_waited_for() {
        let indexed = json!({"completionMode": "Indexed", "completions": 8, "parallelism": 8});
        let counted = json!({"completions": 4, "parallelism": 4});
        let queue = json!({"parallelism": 4});
        for (spec, status, declared, expected) in [
            (&indexed, json!({}), 8, 8),
            (&indexed, json!({"completedIndexes": "0-1"}), 8, 6),
            (
                &indexed,
                json!({"completedIndexes": "0-1", "failedIndexes": "5,9"}),
                8,
                5,
            ),
            // It runs some of them at a time.
            (&indexed, json!({"completedIndexes": "0-1"}), 4, 4),
            (&indexed, json!({"completedIndexes": "0-5"}), 4, 2),
            (&indexed, json!({"completedIndexes": "0-7"}), 4, 0),
            (&counted, json!({}), 4, 4),
            (&counted, json!({"succeeded": 1}), 4, 3),
            (&json!({"completions": 8}), json!({"succeeded": 1}), 4, 4),
            (&queue, json!({"succeeded": 1}), 4, 4),
        ] {
            let job = json!({"metadata": {}, "spec": spec, "status": status});
            let job: Job = serde_json::from_value(with_template(job)).unwrap();
            assert_eq!(
                left(declared, Some(&job), &[]),
                expected,
                "{spec}, {status}"
            );
        }
        assert_eq!(left(3, None, &[]), 3);
    }

    #[test]
    fn a_job_runs_as_many_at_once_as_it_says_and_completes() {
        for (spec, most) in [
            (json!({"parallelism": 4, "completions": 4}), 4),
            (json!({"parallelism": 2, "completions": 4}), 2),
            (json!({"parallelism": 8, "completions": 4}), 4),
            (json!({"parallelism": 4}), 4),
            (json!({"completions": 4}), 1),
            (json!({"parallelism": 0, "completions": 4}), 0),
        ] {
            let job = json!({"metadata": {}, "spec": spec});
            let job: Job = serde_json::from_value(with_template(job)).unwrap();
            assert!(runs_at_once(&job, most), "{spec}");
            assert!(!runs_at_once(&job, most + 1), "{spec}");
        }
    }

    #[test]
    fn a_limit_is_a_whole_number_of_seconds_up_to_a_day() {
        let of = |start: Value, grace: Value| {
            let annotations =
                json!({keys::START_TIMEOUT_SECONDS: start, keys::FAILURE_GRACE_SECONDS: grace});
            let job = json!({"metadata": {"annotations": annotations}, "spec": {}});
            let job: Job = serde_json::from_value(with_template(job)).unwrap();
            limits(&[], Some(&job))
        };
        let limits = of(json!("86400"), json!("1")).unwrap();
        assert_eq!(limits.start_timeout_seconds, Some(86_400));
        assert_eq!(limits.failure_grace_seconds, Some(1));
        for (start, grace, named) in [
            ("0", "1", keys::START_TIMEOUT_SECONDS),
            ("86401", "1", keys::START_TIMEOUT_SECONDS),
            ("1", "1m", keys::FAILURE_GRACE_SECONDS),
        ] {
            let wait = of(json!(start), json!(grace)).unwrap_err();
            assert_eq!(wait.reason, Reason::RequestNotUnderstood);
            assert!(wait.details.contains(named), "{}", wait.details);
            assert!(wait.details.contains("1 to 86400"), "{}", wait.details);
        }
    }

    #[test]
    fn a_gang_is_started_anew_a_thousand_times_at_most() {
        let of = |most: &str| {
            let annotations = json!({keys::MAX_RESTARTS: most});
            let job = json!({"metadata": {"annotations": annotations}, "spec": {}});
            let job: Job = serde_json::from_value(with_template(job)).unwrap();
            limits(&[], Some(&job))
        };
        for (text, expected) in [("0", 0), ("1000", 1_000)] {
            assert_eq!(of(text).unwrap().max_restarts, Some(expected));
        }
        for text in ["1001", "-1", "01", "three"] {
            let wait = of(text).unwrap_err();
            assert_eq!(wait.reason, Reason::RequestNotUnderstood, "{text}");
            let says = wait.details.contains(keys::MAX_RESTARTS)
                && wait.details.contains("a whole number from 0 to 1000");
            assert!(says, "{}", wait.details);
        }
    }

    #[test]
    fn a_run_takes_a_year_at_most() {
        let of = |most: &str| {
            let annotations = json!({keys::MAX_RUNTIME_SECONDS: most});
            let job = json!({"metadata": {"annotations": annotations}, "spec": {}});
            let job: Job = serde_json::from_value(with_template(job)).unwrap();
            limits(&[], Some(&job))
        };
        for (text, expected) in [("1", 1), ("31536000", 31_536_000)] {
            assert_eq!(of(text).unwrap().max_runtime_seconds, Some(expected));
        }
        for text in ["0", "31536001", "18446744073709551615", "-1", "1h"] {
            let wait = of(text).unwrap_err();
            assert_eq!(wait.reason, Reason::RequestNotUnderstood, "{text}");
            assert!(
                wait.details.contains(keys::MAX_RUNTIME_SECONDS),
                "{}",
                wait.details
            );
            assert!(wait.details.contains("1 to 31536000"), "{}", wait.details);
        }
    }

    #[test]
    fn only_a_job_that_counts_what_is_done_starts_with_fewer_pods() {
        let of = |least: &str, completions: Option<u32>, declared: u32| {
            let annotations = json!({keys::MIN_COUNT: least});
            let spec = json!({"completions": completions});
            let job = json!({"metadata": {"annotations": annotations}, "spec": spec});
            let job: Job = serde_json::from_value(with_template(job)).unwrap();
            min_count(&[], Some(&job), declared)
        };
        for (least, declared) in [("1", 8), ("8", 8), ("4096", 4_096)] {
            let expected = least.parse().unwrap();
            assert_eq!(of(least, Some(8), declared).unwrap(), Some(expected));
        }
        // All of them is no less than without it.
        assert_eq!(of("8", None, 8).unwrap(), Some(8));
        for (least, completions, says) in [
            ("0", Some(8), "1 to 8"),
            ("9", Some(8), "1 to 8"),
            ("-1", Some(8), "1 to 8"),
            ("4.0", Some(8), "1 to 8"),
            ("99999999999999999999", Some(8), "1 to 8"),
            ("4", None, "one Job with completions"),
            ("9", None, "one Job with completions"),
        ] {
            let wait = of(least, completions, 8).unwrap_err();
            assert_eq!(wait.reason, Reason::RequestNotUnderstood, "{least}");
            assert!(wait.details.contains(keys::MIN_COUNT), "{}", wait.details);
            assert!(wait.details.contains(says), "{}", wait.details);
        }
        assert_eq!(min_count(&[], None, 8).unwrap(), None);
    }

    fn with_template(mut job: Value) -> Value {
        job["spec"]["template"] = json!({});
        job
    }

    #[test]
    fn completed_indexes_are_read_as_jobs_write_them() {
        let read = |text, limit| indexes(text, limit).collect::<Vec<_>>();
        assert_eq!(read("1,3-5,7", 8), [1, 3, 4, 5, 7]);
        assert_eq!(read("", 8), [0; 0]);
        assert_eq!(read("5-3,x,2-y", 8), [0; 0]);
        assert_eq!(
            read("0-4294967295", 3),
            [0, 1, 2],
            "never more than the Job has"
        );
    }
}
