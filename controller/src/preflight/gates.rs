//! Feature gates and admission plugins that Muster relies on. All are on in a stock Kubernetes 1.37.

use super::{
    control_plane::{ControlPlane, Program},
    finding::{Finding, Reason},
    reading::Reading,
    server_metrics::ServerMetrics,
};

const SCHEDULER: &str = "kube-scheduler";

/// A gate that Muster relies on.
struct Gate {
    name: &'static str,
    /// What is so without it.
    lost: &'static str,
    reason: Reason,
    /// Whether it is a beta of Kubernetes 1.37, which `AllBeta` switches off too.
    is_beta: bool,
    /// The only program that goes by it, if it is one.
    of: Option<&'static str>,
}

static NEEDED: [Gate; 6] = [
    Gate {
        name: "DynamicResourceAllocation",
        lost: "there are no claims",
        reason: Reason::FeatureGateOff,
        is_beta: false,
        of: None,
    },
    Gate {
        name: "DRAPartitionableDevices",
        lost: "slices of GPUs (MIG) cannot be published",
        reason: Reason::FeatureGateOff,
        is_beta: true,
        of: None,
    },
    Gate {
        name: "DRADeviceTaints",
        lost: "sick GPUs, and those that are held without a permit, are given out",
        reason: Reason::FeatureGateOff,
        is_beta: false,
        of: None,
    },
    Gate {
        name: "ValidatingAdmissionPolicy",
        lost: "no policy of Muster holds",
        reason: Reason::FeatureGateOff,
        is_beta: false,
        of: None,
    },
    Gate {
        name: "DRAResourceClaimGranularStatusAuthorization",
        lost: "whoever may update resourceclaims/status may allocate any device to any claim",
        reason: Reason::AuthorizationGateOff,
        is_beta: true,
        of: None,
    },
    Gate {
        name: "DRASchedulerFilterTimeout",
        lost: "one claim that is hard to allocate holds up every pod of the cluster",
        reason: Reason::FilterTimeoutOff,
        is_beta: true,
        of: Some(SCHEDULER),
    },
];

/// Every beta that is not set by its own name.
const ALL_BETA: &str = "AllBeta";

/// Plugins of the API server by which Muster's answers count.
const NEEDED_PLUGINS: [&str; 3] = [
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
];

/// The programs whose flags count.
const PROGRAMS: [&str; 3] = ["kube-apiserver", SCHEDULER, "kube-controller-manager"];

/// How flags spell false.
const FALSE: [&str; 6] = ["0", "f", "F", "false", "False", "FALSE"];

/// Gates of the API server, as it says them; one that it does not name is locked to on, and gone.
pub fn of_server(metrics: &Reading<ServerMetrics>) -> Vec<Finding> {
    let object = "kube-apiserver";
    let gates = &metrics.found.gates;
    if metrics.unread.is_none() && gates.is_empty() {
        return vec![Finding::new(
            Reason::NotVisible,
            object,
            "its metrics name no feature gates, so they were not looked at",
            "Make sure that its gates are stock",
        )];
    }
    let needed = || NEEDED.iter().filter(|gate| gate.of.is_none());
    let findings = needed()
        .filter(|gate| gates.get(gate.name) == Some(&false))
        .map(|gate| off(gate, object, gate.name))
        .collect();
    metrics.or_passed(findings, || {
        Finding::passed(
            object,
            format!("none of {} needed feature gates is off", needed().count()),
        )
    })
}

/// Gates and plugins by the flags of the control plane's pods; the API server's metrics do not tell those of its other replicas, nor of
/// other programs.
pub fn of_flags(plane: &Reading<ControlPlane>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let programs = programs(&plane.found);
    for (component, program) in &programs {
        let applies = |gate: &&Gate| gate.of.is_none_or(|only| only == *component);
        for gate in NEEDED.iter().filter(applies) {
            findings.extend(off_by(program, gate).map(|by| off(gate, &program.pod, by)));
        }
        for plugin in NEEDED_PLUGINS {
            if program.lists("disable-admission-plugins", plugin) {
                findings.push(Finding::new(
                    Reason::AdmissionPluginOff,
                    &program.pod,
                    format!("--disable-admission-plugins has {plugin}, by which Muster holds and refuses pods"),
                    format!("Take {plugin} out of the flag"),
                ));
            }
        }
    }
    let absent: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|program| plane.found.of(program).is_empty())
        .collect();
    if !absent.is_empty() && plane.unread.is_none() {
        findings.push(Finding::new(
            Reason::NotVisible,
            "control plane",
            format!(
                "these programs are no pods of kube-system, so their flags were not looked at: {}",
                absent.join(", ")
            ),
            "Ask whoever runs it whether feature gates are stock and no admission plugin is disabled",
        ));
    }
    plane.or_passed(findings, || {
        Finding::passed(
            "control plane",
            format!(
                "the flags of {} pods switch off nothing that is needed",
                programs.len()
            ),
        )
    })
}

/// The programs whose flags count, each with its component. Others that are marked in the same way, such as those of a provider, have
/// gates of their own.
fn programs(plane: &ControlPlane) -> Vec<(&'static str, &Program)> {
    let of = |component: &'static str| {
        let replicas = plane.of(component).iter();
        replicas.map(move |program| (component, program))
    };
    PROGRAMS.into_iter().flat_map(of).collect()
}

/// The name by which its flag switches the gate off, if it does. A gate's own name counts before that of all betas.
fn off_by(program: &Program, gate: &Gate) -> Option<&'static str> {
    let is_off = match setting(program, gate.name) {
        Some(is_on) => return (!is_on).then_some(gate.name),
        None => gate.is_beta && setting(program, ALL_BETA) == Some(false),
    };
    is_off.then_some(ALL_BETA)
}

/// What its flag says of this name. The last word counts, and a component's name may stand before the gate's.
fn setting(program: &Program, gate: &str) -> Option<bool> {
    let settings = program.items("feature-gates").into_iter().rev();
    let mut latest_first = settings.filter_map(|setting| {
        let (name, value) = setting.split_once('=')?;
        let name = name.rsplit_once(':').map_or(name, |(_, name)| name);
        (name.trim() == gate).then_some(value.trim())
    });
    let value = latest_first.next()?;
    Some(!FALSE.contains(&value))
}

/// What nobody sees without a right that opens every node.
pub fn of_kubelets() -> Finding {
    Finding::new(
        Reason::NotVisible,
        "kubelets",
        "their feature gates are only shown to who may get nodes/proxy, which opens every pod, so they were not looked at",
        "Make sure that they are stock",
    )
}

fn off(gate: &Gate, object: &str, by: &str) -> Finding {
    let Gate {
        name, lost, reason, ..
    } = gate;
    let how = if by == *name {
        String::new()
    } else {
        format!(", by {by}=false")
    };
    let remedy = if by == *name {
        format!("Take {name}=false out of --feature-gates")
    } else {
        format!("Add {name}=true to --feature-gates, or take {by}=false out")
    };
    Finding::new(
        *reason,
        object,
        format!("the feature gate {name} is off{how}: {lost}"),
        remedy,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::control_plane::tests::control_plane;

    fn reasons(findings: &[Finding]) -> Vec<Reason> {
        findings.iter().map(|finding| finding.reason).collect()
    }

    #[test]
    fn a_gate_that_is_off_is_told_and_one_that_is_not_named_is_locked() {
        for (gates, expected) in [
            (vec![("DRADeviceTaints", true)], Reason::Passed),
            (vec![("DRADeviceTaints", false)], Reason::FeatureGateOff),
            (
                vec![("DRAPartitionableDevices", false)],
                Reason::FeatureGateOff,
            ),
            (
                vec![("DRAResourceClaimGranularStatusAuthorization", false)],
                Reason::AuthorizationGateOff,
            ),
            (vec![("OfNoInterest", false)], Reason::Passed),
            (vec![], Reason::NotVisible),
        ] {
            let gates = gates
                .into_iter()
                .map(|(name, on)| (name.to_owned(), on))
                .collect();
            let metrics = ServerMetrics {
                gates,
                ..ServerMetrics::default()
            };
            assert_eq!(reasons(&of_server(&Reading::whole(metrics))), [expected]);
        }
    }

    #[test]
    fn flags_of_any_program_of_the_control_plane_are_looked_at() {
        const NO_FLAGS: &[&str] = &[];
        for (component, flag, expected) in [
            (
                "kube-scheduler",
                "--feature-gates=A=true,DRADeviceTaints=false",
                Reason::FeatureGateOff,
            ),
            (
                "kube-controller-manager",
                "--feature-gates=DynamicResourceAllocation=false",
                Reason::FeatureGateOff,
            ),
            (
                "kube-apiserver",
                "--disable-admission-plugins=MutatingAdmissionWebhook",
                Reason::AdmissionPluginOff,
            ),
            (
                "kube-apiserver",
                "--feature-gates=DRADeviceTaints=true",
                Reason::Passed,
            ),
            (
                "kube-scheduler",
                "--feature-gates=DRASchedulerFilterTimeout=false",
                Reason::FilterTimeoutOff,
            ),
            (
                "kube-apiserver",
                "--feature-gates=DRASchedulerFilterTimeout=false",
                Reason::Passed,
            ),
            (
                "kube-scheduler",
                "--feature-gates=kube:DRADeviceTaints=F",
                Reason::FeatureGateOff,
            ),
            (
                "kube-scheduler",
                "--feature-gates=DRADeviceTaints=false,DRADeviceTaints=true",
                Reason::Passed,
            ),
        ] {
            let flags = [flag, "--feature-gates=OfNoInterest=true"];
            let mut plane: Vec<(&str, &[&str])> = PROGRAMS
                .into_iter()
                .filter(|program| *program != component)
                .map(|program| (program, NO_FLAGS))
                .collect();
            plane.push((component, &flags));
            let found = of_flags(&control_plane(&plane));
            assert_eq!(reasons(&found), [expected], "{flag}");
        }
        // Gates of others are others.
        let others = ["--feature-gates=AllBeta=false"];
        let mut plane: Vec<(&str, &[&str])> = PROGRAMS.map(|program| (program, NO_FLAGS)).to_vec();
        plane.push(("cloud-controller-manager", &others));
        let found = of_flags(&control_plane(&plane));
        assert_eq!(reasons(&found), [Reason::Passed]);
        // What is seen says nothing about what is not.
        let found = of_flags(&control_plane(&[("etcd", &[])]));
        assert_eq!(reasons(&found), [Reason::NotVisible]);
        assert_eq!(
            reasons(&of_flags(&control_plane(&[]))),
            [Reason::NotVisible]
        );
    }

    #[test]
    fn all_betas_that_are_switched_off_take_with_them_what_is_not_named_itself() {
        use Reason::{AuthorizationGateOff, FeatureGateOff, FilterTimeoutOff, Passed};
        for (flag, expected) in [
            (
                "AllBeta=false",
                vec![FeatureGateOff, AuthorizationGateOff, FilterTimeoutOff],
            ),
            (
                "kube:AllBeta=false",
                vec![FeatureGateOff, AuthorizationGateOff, FilterTimeoutOff],
            ),
            (
                "DRAPartitionableDevices=true,AllBeta=false,DRASchedulerFilterTimeout=true",
                vec![AuthorizationGateOff],
            ),
            ("AllBeta=false,AllBeta=true", vec![Passed]),
            ("AllBeta=true,DRADeviceTaints=false", vec![FeatureGateOff]),
            ("AllAlpha=false", vec![Passed]),
        ] {
            let flag = format!("--feature-gates={flag}");
            let flags = [flag.as_str()];
            let plane = PROGRAMS.map(|program| {
                let flags: &[&str] = if program == "kube-scheduler" {
                    &flags
                } else {
                    &[]
                };
                (program, flags)
            });
            let found = of_flags(&control_plane(&plane));
            assert_eq!(reasons(&found), expected, "{flag}");
            let by_all = found[0].message.contains("by AllBeta=false");
            assert_eq!(
                by_all,
                flag.contains("AllBeta=false") && expected != [Passed]
            );
            let remedy = &found[0].remedy;
            assert_eq!(
                remedy.contains("=true to --feature-gates"),
                by_all,
                "{remedy}"
            );
        }
    }
}
