//! All findings, for people or for programs, and the exit code.

use serde::Serialize;

use super::finding::{Finding, Severity};

/// The exit code if there are errors.
pub const EXIT_ERRORS: u8 = 1;
/// The exit code if nothing could be looked at at all.
pub const EXIT_NOT_LOOKED: u8 = 2;

/// A subject that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Check {
    /// Versions of Kubernetes.
    Versions,
    /// Pods of Muster's programs.
    Programs,
    /// Feature gates and admission plugins.
    FeatureGates,
    /// Container runtimes of the nodes.
    Runtimes,
    /// NVIDIA's container toolkit.
    NvidiaToolkit,
    /// Who else hands out GPUs.
    OtherDrivers,
    /// How GPUs are cut into slices.
    Mig,
    /// kube-scheduler's configuration.
    SchedulerConfig,
    /// Whether the extender answers.
    Extender,
    /// Admission policies.
    Policies,
    /// Admission webhooks.
    Webhook,
    /// Who may do what opens quota.
    Access,
    /// Pod Security levels of tenants' namespaces.
    PodSecurity,
    /// Clocks of nodes and here.
    Clocks,
    /// Limits of the API's clients, and times.
    ApiLimits,
}

/// What one check found.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// The subject.
    pub check: Check,
    /// What was found of it.
    pub findings: Vec<Finding>,
}

/// How many findings there are of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Of severity `Error`.
    pub errors: usize,
    /// Of severity `Warning`.
    pub warnings: usize,
    /// Of severity `Passed`.
    pub passed: usize,
    /// Of severity `NotChecked`.
    pub not_checked: usize,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How many.
    pub summary: Summary,
    /// Which, by subject.
    pub checks: Vec<Section>,
}

impl Report {
    /// Counts, and orders each subject by severity.
    pub fn new(mut checks: Vec<Section>) -> Self {
        let mut summary = Summary::default();
        for section in &mut checks {
            section.findings.sort_by_key(|finding| finding.severity);
            for finding in &section.findings {
                let number = match finding.severity {
                    Severity::Error => &mut summary.errors,
                    Severity::Warning => &mut summary.warnings,
                    Severity::NotChecked => &mut summary.not_checked,
                    Severity::Passed => &mut summary.passed,
                };
                *number += 1;
            }
        }
        Self { summary, checks }
    }

    /// 0 without errors.
    pub fn exit_code(&self) -> u8 {
        if self.summary.errors > 0 {
            EXIT_ERRORS
        } else {
            0
        }
    }

    /// For people: columns as wide as what stands in them, and below each finding what to do.
    pub fn text(&self) -> String {
        let findings = || self.checks.iter().flat_map(|section| &section.findings);
        let width = |title: &str, of: &dyn Fn(&Finding) -> usize| {
            findings().map(of).chain([title.len()]).max().unwrap_or(0)
        };
        let severity = width("RESULT", &|finding| format!("{:?}", finding.severity).len());
        let reason = width("REASON", &|finding| word(finding).len());
        let object = width("OBJECT", &|finding| finding.object.chars().count());
        let mut text = format!(
            "{:severity$}   {:reason$}   {:object$}   MESSAGE\n",
            "RESULT", "REASON", "OBJECT"
        );
        for section in &self.checks {
            text += &format!("\n{:?}\n", section.check);
            for finding in &section.findings {
                text += &format!(
                    "{:severity$}   {:reason$}   {:object$}   {}\n",
                    format!("{:?}", finding.severity),
                    word(finding),
                    finding.object,
                    finding.message
                );
                if !finding.remedy.is_empty() {
                    text += &format!("{:severity$}   {:reason$}   > {}\n", "", "", finding.remedy);
                }
            }
        }
        let Summary {
            errors,
            warnings,
            passed,
            not_checked,
        } = self.summary;
        text += &format!(
            "\n{errors} errors, {warnings} warnings, {passed} passed, {not_checked} not checked\n"
        );
        text
    }

    /// For programs.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

/// The word for it; that something passed is in the first column already.
fn word(finding: &Finding) -> String {
    if finding.severity == Severity::Passed {
        "-".to_owned()
    } else {
        format!("{:?}", finding.reason)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preflight::finding::Reason;

    fn report() -> Report {
        Report::new(vec![
            Section {
                check: Check::Versions,
                findings: vec![
                    Finding::passed("kube-apiserver", "v1.37.1"),
                    Finding::new(
                        Reason::KubeletTooOld,
                        "2 nodes",
                        "2 of 3 kubelets are older than 1.37 (a, b)",
                        "Upgrade them",
                    ),
                ],
            },
            Section {
                check: Check::Clocks,
                findings: vec![Finding::new(
                    Reason::ReadForbidden,
                    "leases",
                    "not read",
                    "",
                )],
            },
        ])
    }

    #[test]
    fn text_is_aligned_grouped_and_ends_with_a_summary() {
        let expected = "\
RESULT       REASON          OBJECT           MESSAGE

Versions
Error        KubeletTooOld   2 nodes          2 of 3 kubelets are older than 1.37 (a, b)
                             > Upgrade them
Passed       -               kube-apiserver   v1.37.1

Clocks
NotChecked   ReadForbidden   leases           not read

1 errors, 0 warnings, 1 passed, 1 not checked
";
        assert_eq!(report().text(), expected);
    }

    #[test]
    fn json_keeps_its_shape_and_only_errors_fail() {
        let report = report();
        let value: serde_json::Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(
            value["summary"],
            json!({"errors": 1, "warnings": 0, "passed": 1, "notChecked": 1})
        );
        assert_eq!(
            value["checks"][0],
            json!({"check": "Versions", "findings": [
                {"severity": "Error", "reason": "KubeletTooOld", "object": "2 nodes",
                 "message": "2 of 3 kubelets are older than 1.37 (a, b)", "remedy": "Upgrade them"},
                {"severity": "Passed", "reason": "Passed", "object": "kube-apiserver", "message": "v1.37.1", "remedy": ""},
            ]})
        );
        assert_eq!(report.exit_code(), EXIT_ERRORS);
        for reason in Reason::ALL {
            let findings = vec![Finding::new(*reason, "a", "b", "c")];
            let check = Check::Versions;
            let code = Report::new(vec![Section { check, findings }]).exit_code();
            assert_eq!(
                code == 0,
                reason.severity() != Severity::Error,
                "{reason:?}"
            );
        }
    }
}
