//! Why no configuration is printed.

use std::fmt;

/// Why no configuration is printed: a reason that stays the same, and a text that says what would work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// What is wrong, where, and what to do.
    pub text: String,
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file of `--merge` cannot be read as one YAML document.
    InvalidFile,
    /// It is of another kind or version.
    UnknownVersion,
    /// A field has a value that kube-scheduler does not start with.
    InvalidField,
    /// kube-scheduler would have no way to the API server.
    MissingKubeconfig,
    /// A scheduler on the host network does not find names of Services.
    UnresolvableUrl,
    /// The running scheduler has a configuration that would be lost.
    ExistingConfiguration,
    /// No profile takes pods that name no scheduler, or those that Muster's webhook sends here.
    MissingProfile,
    /// A second scheduler would take pods of the first.
    SchedulerNameTaken,
    /// A second scheduler would wait for the lease of the first.
    SharedLease,
    /// Several schedulers would be active at once.
    SeveralActive,
    /// The file has an extender of Muster's already.
    ExtenderExists,
    /// Another extender binds pods.
    ExtenderBinds,
    /// Another extender manages resources that stand for the same devices.
    ExtenderManagesDevices,
    /// A plugin that Muster relies on is switched off.
    PluginDisabled,
    /// No running kube-scheduler is seen.
    SchedulerNotFound,
    /// The schedulers of the control plane are started in different ways.
    SchedulersDiffer,
    /// There is no Service of the extender, or more than one.
    ServiceNotFound,
    /// The Secret holds no client certificate.
    MissingCertificate,
}

impl Refusal {
    /// A refusal.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self {
            reason,
            text: text.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.reason, self.text)
    }
}

impl std::error::Error for Refusal {}
