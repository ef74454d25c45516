//! What a check says: a reason that stays the same, the object that it is about, the numbers, and what to do.

use serde::Serialize;

/// Most characters of an object's name.
const OBJECT_CHARACTERS: usize = 120;
/// Most characters of a message, and of what to do.
const TEXT_CHARACTERS: usize = 1000;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// It will not work, or what Muster promises will not hold.
    Error,
    /// It works, and will hurt.
    Warning,
    /// It was not looked at: nobody knows.
    NotChecked,
    /// It was looked at, and is as it must be.
    Passed,
}

macro_rules! reasons {
    ($($severity:ident { $($(#[doc = $doc:literal])* $reason:ident,)* })*) => {
        /// What can be found; the words never change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        pub enum Reason {
            $($($(#[doc = $doc])* $reason,)*)*
        }

        impl Reason {
            /// All of them.
            pub const ALL: &[Self] = &[$($(Self::$reason,)*)*];

            /// How bad it is.
            pub const fn severity(self) -> Severity {
                match self {
                    $($(Self::$reason)|* => Severity::$severity,)*
                }
            }
        }
    };
}

reasons! {
    Error {
        /// The API server is older than what Muster is made for.
        ServerTooOld,
        /// Kubelets of nodes that Muster serves are older than what its driver is made for.
        KubeletTooOld,
        /// The API server does not serve a version of an API that Muster uses.
        ApiNotServed,
        /// A custom resource definition of Muster does not exist, or is not served.
        DefinitionMissing,
        /// A custom resource definition does not know what this version writes.
        DefinitionOutdated,
        /// None of the pods of a program of Muster is ready.
        ProgramDown,
        /// A feature that Muster relies on is switched off.
        FeatureGateOff,
        /// An admission plugin that Muster relies on is switched off.
        AdmissionPluginOff,
        /// A container runtime gives containers no devices by CDI.
        RuntimeWithoutCdi,
        /// A device plugin hands out GPUs of a node that Muster serves.
        DevicePluginOnNode,
        /// Another DRA driver hands out GPUs of a node that Muster serves.
        OtherDriverOnNode,
        /// The driver does not start with what `driver.mig` says.
        MigSettingsInvalid,
        /// A DeviceClass gives out Muster's devices by the name of a resource, past the gate or without a permit.
        DeviceClassNamesResource,
        /// The scheduler's configuration is not one that kube-scheduler starts with.
        SchedulerConfigInvalid,
        /// It names Muster's extender twice.
        ExtenderNamedTwice,
        /// It names Muster's extender, and the installation has none.
        ExtenderNotInstalled,
        /// The extender is not asked about managed pods, or about all pods of the cluster.
        ExtenderResourcesWrong,
        /// The extender's answer is passed over while it does not answer.
        ExtenderIgnorable,
        /// The extender gets whole nodes, and resource scores of all its pods are zero.
        ExtenderNotCacheCapable,
        /// kube-scheduler does not verify who answers as the extender, or has nobody to verify it by.
        ExtenderNotVerified,
        /// Another extender binds the pods, or this one is told to.
        ExtenderBinds,
        /// Another extender manages a resource that stands for devices here.
        OtherExtenderManagesDevices,
        /// Pods are given a scheduler of which no profile is there.
        ProfileMissing,
        /// The cluster's own scheduler takes pods of the chart's, too.
        SchedulerNameTaken,
        /// The extender is not called for what it is there for.
        ExtenderVerbMissing,
        /// The extender and kube-scheduler do not accept each other's certificates.
        ExtenderTlsFailed,
        /// Nothing answers where kube-scheduler calls the extender.
        ExtenderUnreachable,
        /// What answers there is not the extender.
        ExtenderAnswerWrong,
        /// A policy of the release does not exist.
        PolicyMissing,
        /// A policy is bound to nothing, so it refuses nothing.
        PolicyNotBound,
        /// A policy only audits what it must refuse.
        PolicyOnlyAudits,
        /// A policy refuses what nothing prepares for it, since mode is Observe.
        PolicyRefusesInObserve,
        /// A policy lets everything pass while it fails.
        PolicyFailsOpen,
        /// A policy has no rule by which it could refuse anything.
        PolicyRefusesNothing,
        /// A policy is not asked any more about what it must refuse.
        PolicyRulesLost,
        /// A webhook configuration of the release does not exist.
        WebhookMissing,
        /// The API server has no authority to verify the webhook by.
        WebhookWithoutAuthority,
        /// The webhook lets pass what it would refuse, while it does not answer.
        WebhookFailsOpen,
        /// No replica of the webhook is ready.
        WebhookNotReady,
        /// The API server cannot call the webhook.
        WebhookUnreachable,
        /// Everybody in the cluster may do what opens quota.
        EverybodyMay,
        /// More than one release of Muster is installed.
        SeveralReleases,
    }
    Warning {
        /// The API server is newer than what Muster was tested with.
        ServerNewerThanTested,
        /// A gate that keeps drivers from allocating devices by hand is switched off.
        AuthorizationGateOff,
        /// A container runtime has CDI, and not by default.
        CdiOffByDefault,
        /// Some of the pods of a program of Muster are not ready.
        ProgramNotReady,
        /// No node has the label by which Muster's driver runs there.
        NoNodeToServe,
        /// GPUs that Muster could serve are handed out by a device plugin or another driver.
        GpusServedByOthers,
        /// A device plugin offers GPUs by a resource that is not managed: nobody is charged for them.
        ResourceNotManaged,
        /// Muster and NVIDIA's mig-manager are both to make slices of a node's GPUs.
        MigManagerActive,
        /// GPUs of a node on which slices are made for claims are not in MIG mode, and are not put into it.
        MigModeNotSwitched,
        /// GPUs of such a node cannot be cut.
        MigNotPossible,
        /// NVIDIA's runtime is the default one of nodes.
        NvidiaRuntimeIsDefault,
        /// NVIDIA's runtime gives any container the GPUs that its variable names.
        NvidiaVariableAccepted,
        /// A RuntimeClass of NVIDIA is none that the policy refuses.
        SideDoorRuntimeClass,
        /// The policy about side doors is switched off.
        SideDoorsOpen,
        /// Nothing refuses privileged pods in a tenant's namespace.
        PodSecurityOpen,
        /// A running kube-scheduler has no configuration, so it does not ask the extender.
        SchedulerWithoutConfig,
        /// The configuration does not name the extender.
        ExtenderNotNamed,
        /// An extender that hangs holds up all pods for longer than it has to.
        ExtenderTimeoutLong,
        /// kube-scheduler gives up on the extender before it can answer.
        ExtenderTimeoutShort,
        /// The extender's scores do not outweigh those of kube-scheduler's plugins.
        ExtenderWeightLow,
        /// Another extender is asked about every pod, and holds up all of them when it fails.
        OtherExtenderForAllPods,
        /// The allocation of devices is tried without a limit.
        FilterTimeoutOff,
        /// A scheduler that takes over begins with nothing known.
        SchedulerCacheDelayed,
        /// kube-scheduler may send few requests.
        SchedulerApiLimitLow,
        /// kube-controller-manager may send few requests, so gangs end and come back slowly.
        ControllerManagerApiLimitLow,
        /// Kubernetes deletes pods of a silent node before Muster evicts their gang.
        TolerationTooShort,
        /// A policy has not the expressions that the chart's has.
        PolicyChanged,
        /// A policy or its binding leaves out more than the chart's does.
        PolicyNarrowed,
        /// A webhook leaves out more than the chart's does.
        WebhookNarrowed,
        /// Another webhook may change pods after Muster's has looked.
        WebhookAfterOurs,
        /// The API server failed to call the webhook at some time.
        WebhookCallsFailed,
        /// Others may bind pods to nodes.
        MayBindPods,
        /// Others may write Teams, Cohorts or Flavors.
        MayWriteQuota,
        /// Others may write what Muster's controller and drivers remember.
        MayWriteState,
        /// Others may allocate devices to claims.
        MayAllocateDevices,
        /// Others may write DeviceClasses.
        MayWriteDeviceClasses,
        /// Others may take policies and webhooks away.
        MayWritePolicies,
        /// Others may act as Muster or as the system.
        MayImpersonate,
        /// Others may run pods, or programs in pods, where Muster's ServiceAccounts are.
        MayRunAsMuster,
        /// Others may read or write Secrets where the keys of Muster's authorities are.
        MayReadSecrets,
        /// ServiceAccounts may do everything.
        AdministratorAccounts,
        /// A node's clock differs from the API server's.
        ClockSkew,
    }
    NotChecked {
        /// Reading is forbidden.
        ReadForbidden,
        /// Reading failed.
        ReadFailed,
        /// Reading took too long, so only a part was looked at.
        ReadGivenUp,
        /// The API does not show it.
        NotVisible,
        /// Muster is not installed, so there is nothing of it to look at.
        NotInstalled,
        /// A flag that would say it was not given.
        NotGiven,
        /// It is not reached from here, or late, which says nothing about who has to reach it.
        NotReachedFromHere,
        /// Nothing has happened yet by which it could be told.
        NoEvidence,
    }
    Passed {
        /// It is as it must be.
        Passed,
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The word for it.
    pub reason: Reason,
    /// What it is about.
    pub object: String,
    /// What was found, with the numbers.
    pub message: String,
    /// What to do; empty if nothing.
    pub remedy: String,
}

impl Finding {
    /// A finding of this reason. Whatever the cluster says is in one line, of bounded length, and without control characters.
    pub fn new(
        reason: Reason,
        object: impl AsRef<str>,
        message: impl AsRef<str>,
        remedy: impl AsRef<str>,
    ) -> Self {
        Self {
            severity: reason.severity(),
            reason,
            object: one_line(object.as_ref(), OBJECT_CHARACTERS),
            message: one_line(message.as_ref(), TEXT_CHARACTERS),
            remedy: one_line(remedy.as_ref(), TEXT_CHARACTERS),
        }
    }

    /// It was looked at, and is as it must be.
    pub fn passed(object: impl AsRef<str>, message: impl AsRef<str>) -> Self {
        Self::new(Reason::Passed, object, message, "")
    }

    /// It is about Muster, which is not there yet.
    pub fn not_installed(object: &str) -> Self {
        Self::new(
            Reason::NotInstalled,
            object,
            "Muster is not installed, so this was not looked at",
            "Run preflight again after the install",
        )
    }
}

fn one_line(text: &str, most: usize) -> String {
    let mut line: String = text
        .chars()
        .take(most)
        .map(|character| match character {
            _ if character.is_control() => '?',
            // They change the order or the look of what stands around them.
            '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}'
            | '\u{feff}' => '?',
            _ => character,
        })
        .collect();
    if text.chars().nth(most).is_some() {
        line.push_str("...");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_cluster_says_cannot_write_a_second_line_or_without_end() {
        let hostile = format!("a\nError  Fine\u{1b}[2J\u{202e}{}", "x".repeat(5000));
        let finding = Finding::new(Reason::NotVisible, &hostile, &hostile, "");
        assert!(
            finding.object.starts_with("a?Error  Fine?[2J?x"),
            "{}",
            finding.object
        );
        assert_eq!(finding.object.chars().count(), OBJECT_CHARACTERS + 3);
        assert_eq!(finding.message.chars().count(), TEXT_CHARACTERS + 3);
    }

    #[test]
    fn every_reason_stands_in_the_operators_guide() {
        let guide = include_str!("../../../docs/operator-guide.md");
        for reason in Reason::ALL {
            let word = format!("`{reason:?}`");
            let told = guide.contains(&word);
            assert!(told || *reason == Reason::Passed, "{word}");
        }
    }
}
