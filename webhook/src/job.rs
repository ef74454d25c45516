//! Jobs at their creation.
//!
//! The pods of a Job are checked when the Job controller creates them; but then the one who wrote the Job
//! sees nothing but a Job that makes no progress. So the same is said when the Job is created. This webhook
//! fails open: it is a courtesy, and stops no Job from being created while Muster is down.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use muster_api::keys;

use crate::{
    cache::Cache,
    declared::Declared,
    finding::Findings,
    min_count, shorthand,
    vram::{self, Asking},
};

/// Checks a Job that is being created in `namespace`.
pub fn check(job: &Job, namespace: &str, facts: &Cache) -> Findings {
    let mut findings = Findings::default();
    let own = Declared::at("metadata", &job.metadata);
    own.check(namespace, facts, &mut findings);
    shorthand::check_absent(&own, &mut findings);
    let Some(spec) = &job.spec else {
        return findings;
    };
    let template = spec
        .template
        .metadata
        .as_ref()
        .map(|metadata| Declared::at("spec.template.metadata", metadata));
    if let Some(template) = &template {
        template.check(namespace, facts, &mut findings);
        let pod = spec.template.spec.as_ref();
        shorthand::check(
            template,
            pod,
            "spec.template.spec",
            &facts.gpus,
            &mut findings,
        );
        let asking = Asking {
            declared: template,
            spec: pod,
            spec_path: "spec.template.spec",
            namespace,
        };
        // What its pods ask for by limits is judged when they are created.
        vram::check(&asking, &[], facts, &mut findings);
    }
    min_count::check_of_job(&own, template.as_ref(), spec, &mut findings);
    warn_of_size(&own, template.as_ref(), spec, &mut findings);
    warn_of_deadline(spec, &mut findings);
    findings
}

/// A size that the Job's pods never reach, or overshoot, waits with `MissingPods` or `ExcessPod`. It is not
/// refused: parallelism may be changed later.
fn warn_of_size(
    own: &Declared<'_>,
    template: Option<&Declared<'_>>,
    spec: &JobSpec,
    findings: &mut Findings,
) {
    let parallelism = i64::from(spec.parallelism.unwrap_or(1));
    let at_once = spec.completions.map_or(parallelism, |completions| {
        parallelism.min(completions.into())
    });
    for declared in template.into_iter().chain([own]) {
        let Some(size) = declared.gang_size().filter(|size| *size > 1) else {
            continue;
        };
        let path = declared.annotation_path(keys::GANG_SIZE);
        if i64::from(size) > at_once {
            findings.warn(format!(
                "{path} is {size}, but the Job runs at most {at_once} pods at a time: the gang will wait for the missing ones"
            ));
        }
        if i64::from(size) < at_once {
            findings.warn(format!(
                "{path} is {size}, but the Job runs {at_once} pods at a time: those beyond {size} will not start"
            ));
        }
    }
}

fn warn_of_deadline(spec: &JobSpec, findings: &mut Findings) {
    let suspended = spec.suspend.unwrap_or_default();
    if let Some(seconds) = spec.active_deadline_seconds
        && !suspended
    {
        findings.warn(format!(
            "spec.activeDeadlineSeconds ({seconds}) also runs while the Job's pods wait for admission: the Job may fail before it starts"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_api::Reason;
    use serde_json::{Value, json};

    fn checked(annotations: &Value, template: &Value, spec: &Value) -> Findings {
        let mut spec = spec.clone();
        spec["template"] = json!({"metadata": template, "spec": {"containers": []}});
        let job: Job = serde_json::from_value(
            json!({"metadata": {"name": "j", "annotations": annotations}, "spec": spec}),
        )
        .unwrap();
        check(&job, "ml", &Cache::default())
    }

    #[test]
    fn a_bad_key_is_refused_where_the_user_wrote_it() {
        let bad = json!({"muster.dev/gang-size": "two"});
        for (own, template, field) in [
            (
                bad.clone(),
                json!({}),
                "metadata.annotations[muster.dev/gang-size]",
            ),
            (
                json!({}),
                json!({"annotations": bad}),
                "spec.template.metadata.annotations[muster.dev/gang-size]",
            ),
        ] {
            let findings = checked(
                &own,
                &template,
                &json!({"parallelism": 2, "completions": 2}),
            );
            assert_eq!(findings.errors.len(), 1);
            assert_eq!(findings.errors[0].field, field);
            assert_eq!(findings.errors[0].reason, Reason::InvalidValue);
        }
    }

    #[test]
    fn a_size_that_the_job_never_runs_at_once_is_warned_of_and_not_refused() {
        for (size, spec, warned) in [
            ("4", json!({"parallelism": 4, "completions": 4}), false),
            ("4", json!({"parallelism": 2, "completions": 4}), true),
            ("2", json!({"parallelism": 4, "completions": 4}), true),
            ("4", json!({"parallelism": 8, "completions": 4}), false),
            ("1", json!({"parallelism": 4, "completions": 4}), false),
        ] {
            let findings = checked(&json!({"muster.dev/gang-size": size}), &json!({}), &spec);
            assert!(findings.errors.is_empty());
            assert_eq!(!findings.warnings.is_empty(), warned, "{size} {spec}");
        }
    }

    #[test]
    fn fewer_pods_than_all_are_for_gangs_of_jobs_that_count_what_is_done() {
        let indexed = json!({"completionMode": "Indexed", "completions": 8, "parallelism": 8});
        let counted = json!({"completions": 8, "parallelism": 4});
        let queue = json!({"parallelism": 8});
        for (least, size, spec, says) in [
            ("1", None, &indexed, None),
            ("8", None, &indexed, None),
            ("3", Some("4"), &counted, None),
            ("1", None, &json!({"completions": 1}), None),
            (
                "9",
                None,
                &indexed,
                Some("from 1 to 8, the size of the gang"),
            ),
            (
                "5",
                Some("4"),
                &counted,
                Some("from 1 to 4, the size of the gang"),
            ),
            ("0", None, &indexed, Some("from 1 to 4096")),
            ("0", Some("4"), &counted, Some("from 1 to 4,")),
            ("-1", None, &indexed, Some("plain digits")),
            ("all", None, &indexed, Some("plain digits")),
            ("2.5", None, &indexed, Some("plain digits")),
            ("4097", None, &indexed, Some("plain digits")),
            ("2", None, &counted, Some("muster.dev/gang-size")),
            ("2", Some("8"), &queue, Some("spec.completions")),
            ("2", None, &queue, Some("spec.completions")),
        ] {
            let mut annotations = json!({"muster.dev/min-count": least});
            if let Some(size) = size {
                annotations["muster.dev/gang-size"] = json!(size);
            }
            let case = format!("{least} of {size:?}: {spec}");
            let template = json!({"annotations": annotations});
            for (own, template, field) in [
                (annotations, json!({}), "metadata"),
                (json!({}), template, "spec.template.metadata"),
            ] {
                let errors = checked(&own, &template, spec).errors;
                let Some(says) = says else {
                    assert!(errors.is_empty(), "{case}: {errors:?}");
                    continue;
                };
                assert_eq!(errors.len(), 1, "{case}: {errors:?}");
                assert_eq!(errors[0].reason, Reason::InvalidValue, "{case}");
                let field = format!("{field}.annotations[muster.dev/min-count]");
                assert_eq!(errors[0].field, field, "{case}");
                assert!(errors[0].message.contains(says), "{case}: {errors:?}");
            }
        }
    }

    #[test]
    fn a_size_that_the_template_says_counts_for_a_least_number_that_the_job_says() {
        let spec = json!({"completions": 8, "parallelism": 8});
        let template = json!({"annotations": {"muster.dev/gang-size": "4"}});
        for (least, errors) in [("4", 0), ("5", 1)] {
            let own = json!({"muster.dev/min-count": least, "muster.dev/gang-size": "8"});
            assert_eq!(
                checked(&own, &template, &spec).errors.len(),
                errors,
                "{least}"
            );
        }
    }

    #[test]
    fn a_deadline_that_runs_while_the_gang_waits_is_warned_of() {
        let spec = json!({"activeDeadlineSeconds": 600});
        assert_eq!(checked(&json!({}), &json!({}), &spec).warnings.len(), 1);
        let suspended = json!({"activeDeadlineSeconds": 600, "suspend": true});
        assert!(
            checked(&json!({}), &json!({}), &suspended)
                .warnings
                .is_empty()
        );
    }
}
