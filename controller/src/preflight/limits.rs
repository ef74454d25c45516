//! Limits of the API's clients, and times of the control plane, that make Muster slow or cross its own times.

use serde_json::Value;

use super::{
    control_plane::ControlPlane,
    finding::{Finding, Reason},
    installation::Installation,
    reading::Reading,
    scheduler::Given,
};

/// kube-scheduler's own, where nothing is said.
const SCHEDULER_QPS: f64 = 50.0;
/// Below it a large gang is bound slowly.
const LEAST_SCHEDULER_QPS: f64 = 200.0;
/// Writes for each bound pod with claims.
const WRITES_PER_POD: f64 = 4.0;

/// kube-controller-manager's own.
const MANAGER_QPS: f64 = 20.0;
/// Below it a gang ends and comes back slowly.
const LEAST_MANAGER_QPS: f64 = 100.0;
/// Writes for each pod of a Job that is suspended.
const WRITES_PER_SUSPENDED_POD: f64 = 2.0;
/// The gang that times are told for.
const GANG: f64 = 64.0;

/// kube-apiserver's own.
const TOLERATION_SECONDS: u64 = 300;
/// Before Muster is installed: the controller's default.
const EVICT_AFTER_SECONDS: u32 = 240;
/// So much earlier Muster has to be.
const MARGIN_SECONDS: u64 = 60;

/// What kube-scheduler may send.
pub fn of_scheduler(given: &Given) -> Vec<Finding> {
    // What could not be read, or was not given, is told where the rest of it is looked at.
    let Some(Ok(document)) = given else {
        return Vec::new();
    };
    let object = "clientConnection.qps";
    let qps = match &document["clientConnection"]["qps"] {
        Value::Number(number) => number.as_f64().unwrap_or(SCHEDULER_QPS),
        _ => SCHEDULER_QPS,
    };
    // A negative one is no limit; 0 is the default.
    let qps = if qps == 0.0 { SCHEDULER_QPS } else { qps };
    let pods = qps / WRITES_PER_POD;
    if (0.0..LEAST_SCHEDULER_QPS).contains(&qps) {
        return vec![Finding::new(
            Reason::SchedulerApiLimitLow,
            object,
            format!(
                "kube-scheduler may send {qps} requests in a second: about {pods:.0} pods with claims are bound in a second"
            ),
            "Set clientConnection: {qps: 500, burst: 1000}",
        )];
    }
    vec![Finding::passed(
        object,
        format!("kube-scheduler may send {qps} requests in a second"),
    )]
}

/// What kube-controller-manager may send: it suspends and resumes Jobs, and makes and ends pods and claims.
pub fn of_controller_manager(plane: &Reading<ControlPlane>) -> Vec<Finding> {
    let replicas = plane.found.of("kube-controller-manager");
    let mut findings = Vec::new();
    for replica in replicas {
        let qps = replica
            .flag("kube-api-qps")
            .map_or(Some(MANAGER_QPS), |text| text.parse().ok());
        match qps {
            Some(qps) if (0.0..LEAST_MANAGER_QPS).contains(&qps) => {
                let qps = if qps == 0.0 { MANAGER_QPS } else { qps };
                findings.push(Finding::new(
                    Reason::ControllerManagerApiLimitLow,
                    &replica.pod,
                    format!(
                        "it may send {qps} requests in a second: a Job of {GANG} pods takes about {:.0} s to be suspended, and so to give way",
                        GANG * WRITES_PER_SUSPENDED_POD / qps
                    ),
                    "Start it with --kube-api-qps=200 --kube-api-burst=400",
                ));
            }
            Some(_) => {}
            None => findings.push(Finding::new(
                Reason::NotVisible,
                &replica.pod,
                "its flag --kube-api-qps is not understood",
                "",
            )),
        }
    }
    if replicas.is_empty() && plane.unread.is_none() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "kube-controller-manager",
            "it is no pod of kube-system, so what it may send was not looked at",
            format!("Ask whoever runs it: --kube-api-qps is {MANAGER_QPS} by default"),
        ));
    }
    plane.or_passed(findings, || {
        Finding::passed(
            "kube-controller-manager",
            format!(
                "its {} replicas may send {LEAST_MANAGER_QPS} requests in a second or more",
                replicas.len()
            ),
        )
    })
}

/// When Kubernetes deletes the pods of a silent node, one by one.
pub fn of_tolerations(
    plane: &Reading<ControlPlane>,
    installation: Option<&Installation>,
) -> Vec<Finding> {
    let evict_after = installation.map_or(EVICT_AFTER_SECONDS, |installed| {
        installed.evict_after_seconds
    });
    let replicas = plane.found.of("kube-apiserver");
    let mut findings = Vec::new();
    for replica in replicas {
        for name in [
            "default-unreachable-toleration-seconds",
            "default-not-ready-toleration-seconds",
        ] {
            let seconds = replica
                .flag(name)
                .map_or(Some(TOLERATION_SECONDS), |text| text.parse().ok());
            match seconds {
                Some(seconds) if seconds < u64::from(evict_after) + MARGIN_SECONDS => {
                    findings.push(Finding::new(
                        Reason::TolerationTooShort,
                        &replica.pod,
                        format!(
                            "--{name} is {seconds}, and Muster evicts the gangs of a silent node after {evict_after} s: \
                             Kubernetes may delete their pods first, which Jobs count as failures"
                        ),
                        format!(
                            "Set recovery.nodeLossSeconds={} of the chart, or raise the flag",
                            seconds.saturating_sub(MARGIN_SECONDS).max(1)
                        ),
                    ));
                }
                Some(_) => {}
                None => findings.push(Finding::new(
                    Reason::NotVisible,
                    &replica.pod,
                    format!("its flag --{name} is not understood"),
                    "",
                )),
            }
        }
    }
    if replicas.is_empty() && plane.unread.is_none() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "kube-apiserver",
            "it is no pod of kube-system, so its default tolerations were not looked at",
            format!(
                "Ask whoever runs it: they have to be {} s or more",
                u64::from(evict_after) + MARGIN_SECONDS
            ),
        ));
    }
    plane.or_passed(findings, || {
        Finding::passed(
            "kube-apiserver",
            format!("pods tolerate a silent node for a minute longer than Muster's {evict_after} s, or more"),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::preflight::control_plane::tests::control_plane;

    fn reasons(findings: &[Finding]) -> Vec<Reason> {
        findings.iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn a_scheduler_that_may_send_little_is_told_how_many_pods_that_is() {
        for (connection, expected) in [
            (json!({}), Reason::SchedulerApiLimitLow),
            (json!({"qps": 50}), Reason::SchedulerApiLimitLow),
            (json!({"qps": 0}), Reason::SchedulerApiLimitLow),
            (json!({"qps": 500.0}), Reason::Passed),
            (json!({"qps": -1}), Reason::Passed),
            (json!({"qps": "x"}), Reason::SchedulerApiLimitLow),
        ] {
            let given = Some(Ok(json!({"clientConnection": connection})));
            let found = of_scheduler(&given);
            assert_eq!(reasons(&found), [expected], "{given:?}");
        }
        let found = of_scheduler(&Some(Ok(json!(null))));
        assert!(found[0].message.contains("about 12 pods"), "{found:?}");
        assert!(of_scheduler(&None).is_empty());
    }

    #[test]
    fn a_controller_manager_as_it_ships_is_slow_with_large_gangs() {
        for (flags, expected) in [
            (&[][..], Reason::ControllerManagerApiLimitLow),
            (&["--kube-api-qps=0"], Reason::ControllerManagerApiLimitLow),
            (&["--kube-api-qps=200"], Reason::Passed),
            (&["--kube-api-qps=fast"], Reason::NotVisible),
        ] {
            let found =
                of_controller_manager(&control_plane(&[("kube-controller-manager", flags)]));
            assert_eq!(reasons(&found), [expected], "{flags:?}");
        }
        let found = of_controller_manager(&control_plane(&[]));
        assert_eq!(reasons(&found), [Reason::NotVisible]);
    }

    #[test]
    fn pods_that_tolerate_a_silent_node_for_too_short_are_told() {
        let sooner = Installation {
            evict_after_seconds: 30,
            ..Installation::default()
        };
        for (flag, installation, expected) in [
            ("--v=2", None, Reason::Passed),
            (
                "--default-unreachable-toleration-seconds=120",
                None,
                Reason::TolerationTooShort,
            ),
            (
                "--default-not-ready-toleration-seconds=120",
                None,
                Reason::TolerationTooShort,
            ),
            (
                "--default-not-ready-toleration-seconds=120",
                Some(&sooner),
                Reason::Passed,
            ),
            (
                "--default-not-ready-toleration-seconds=soon",
                None,
                Reason::NotVisible,
            ),
        ] {
            let found =
                of_tolerations(&control_plane(&[("kube-apiserver", &[flag])]), installation);
            assert_eq!(reasons(&found), [expected], "{flag}");
        }
    }
}
