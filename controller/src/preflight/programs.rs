//! Programs of the release: how many of their pods are to be ready, and how many are.
//!
//! A driver whose namespace refuses privileged pods, whose image is nowhere or whose node has no NVML has no pod that is ready, and
//! nothing else of the release shows it: its nodes publish nothing, and gangs wait.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::{Resource, ResourceExt};

use super::{
    finding::{Finding, Reason},
    installation::Installation,
};

/// Pods of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// What makes them, as kubectl takes it.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// How many there should be.
    pub wanted: i32,
    /// How many are ready.
    pub ready: i32,
}

impl Program {
    /// As a Deployment says; one without replicas is down as well.
    pub fn of_deployment(deployment: &Deployment) -> Self {
        let status = deployment.status.as_ref();
        let ready = status.and_then(|status| status.ready_replicas);
        let wanted = deployment.spec.replicas.unwrap_or(1).max(1);
        Self::of("deployment", deployment, wanted, ready)
    }

    /// As a DaemonSet says; where it chooses no node, there is none to be ready.
    pub fn of_daemon_set(set: &DaemonSet) -> Self {
        let status = set.status.as_ref();
        let wanted = status.map_or(0, |status| status.desired_number_scheduled);
        let ready = status.map(|status| status.number_ready);
        Self::of("daemonset", set, wanted, ready)
    }

    fn of<K: Resource>(kind: &str, object: &K, wanted: i32, ready: Option<i32>) -> Self {
        Self {
            name: format!("{kind}/{}", object.name_any()),
            namespace: object.namespace().unwrap_or_default(),
            wanted,
            ready: ready.unwrap_or(0),
        }
    }
}

/// Which programs do not work, or only in part.
pub fn findings(installation: &Installation) -> Vec<Finding> {
    let programs = &installation.programs;
    if programs.is_empty() {
        return vec![Finding::new(
            Reason::NotVisible,
            "programs",
            "no program of the release is seen",
            "Look at its pods",
        )];
    }
    let mut findings = Vec::new();
    for program in programs {
        let Program {
            name,
            namespace,
            wanted,
            ready,
        } = program;
        if ready >= wanted {
            continue;
        }
        let reason = if *ready == 0 {
            Reason::ProgramDown
        } else {
            Reason::ProgramNotReady
        };
        findings.push(Finding::new(
            reason,
            name,
            format!("{ready} of {wanted} of its pods are ready"),
            format!(
                "kubectl --namespace {namespace} describe {name}, and its pods: an image, room, or the level of Pod Security may be \
                 missing; right after an install or an upgrade try again"
            ),
        ));
    }
    if findings.is_empty() {
        let text = format!("all pods of {} programs are ready", programs.len());
        findings.push(Finding::passed("programs", text));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deployment(replicas: &Value, status: &Value) -> Program {
        let mut object = json!({"metadata": {"namespace": "a", "name": "muster-webhook"}, "status": status,
            "spec": {"selector": {}, "template": {}}});
        object["spec"]["replicas"] = replicas.clone();
        Program::of_deployment(&serde_json::from_value(object).unwrap())
    }

    fn daemon_set(wanted: i32, ready: i32) -> Program {
        let status = json!({"currentNumberScheduled": 0, "desiredNumberScheduled": wanted, "numberMisscheduled": 0,
            "numberReady": ready});
        let object = json!({"metadata": {"namespace": "a", "name": "muster-driver"}, "status": status,
            "spec": {"selector": {}, "template": {}}});
        Program::of_daemon_set(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_program_of_which_no_pod_is_ready_is_down_and_one_of_which_some_are_is_told() {
        for (program, expected) in [
            (
                deployment(&json!(2), &json!({"readyReplicas": 2})),
                Reason::Passed,
            ),
            (
                deployment(&json!(2), &json!({"readyReplicas": 1})),
                Reason::ProgramNotReady,
            ),
            (deployment(&json!(2), &json!({})), Reason::ProgramDown),
            (deployment(&json!(0), &json!(null)), Reason::ProgramDown),
            (
                deployment(&json!(null), &json!({"readyReplicas": 1})),
                Reason::Passed,
            ),
            (daemon_set(3, 3), Reason::Passed),
            (daemon_set(3, 1), Reason::ProgramNotReady),
            (daemon_set(3, 0), Reason::ProgramDown),
            // No node has its label.
            (daemon_set(0, 0), Reason::Passed),
        ] {
            let release = Installation {
                programs: vec![program.clone()],
                ..Installation::default()
            };
            let found = findings(&release);
            assert_eq!((found.len(), found[0].reason), (1, expected), "{program:?}");
        }
        let found = findings(&Installation::default());
        assert_eq!(found[0].reason, Reason::NotVisible);
    }
}
