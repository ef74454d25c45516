//! FaultPolicy: what the faults of GPUs mean, where that is to be other than what ships.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What XIDs and other signals of GPUs mean, where that is to be other than in the table that the driver ships. One object, named
/// `cluster`, read by the driver of every node. It counts for what is seen from then on: a fault that is remembered keeps its class.
///
/// Words are text here and not enumerations: an entry that a driver does not understand, because a later version wrote it, is left
/// out by that driver, and the others count all the same.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource, KubeSchema,
)]
#[kube(
    group = "muster.dev",
    version = "v1alpha1",
    kind = "FaultPolicy",
    plural = "faultpolicies",
    category = "muster",
    doc = "What the faults of GPUs mean, where that is to be other than what ships.",
    printcolumn(
        name = "Age",
        json_path = ".metadata.creationTimestamp",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct FaultPolicySpec {
    /// One entry for each signal; of two for the same one the first counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub rules: Vec<FaultRule>,
}

/// What one signal means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultRule {
    /// The XID that it is about. Either this or a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<i64>,
    /// Fatal or Nonfatal: as the kernel's log says of XIDs 144 to 150; both without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// Sub-code of XIDs 144 to 150, 0 to 63; all of them without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_code: Option<i64>,
    /// Anything else that is seen of a GPU, such as RowRemapPending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Info, App, Contained, Link, Unknown, Reset, Reboot or Retire.
    /// Companion, of an XID, says nothing by itself.
    pub class: String,
    /// Gpu, or Slice where it is known which one; as is usual for the class without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// What it means if it comes again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat: Option<FaultRepeat>,
}

/// So often within so long is a fault of a class of its own, beside what each occurrence is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultRepeat {
    /// How many occurrences, from 2 to 20.
    pub count: i64,
    /// Within how many seconds, from a minute to thirty days.
    pub within_seconds: i64,
    /// Contained, Link, Unknown, Reset, Reboot or Retire.
    pub class: String,
    /// What follows within so many seconds is the same occurrence.
    /// From 10 to 3600; 180 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_seconds: Option<i64>,
}

impl FaultPolicySpec {
    /// Most entries.
    pub const MOST_RULES: usize = 256;
}

impl FaultRepeat {
    /// What is the same occurrence, in seconds, unless it is said. One crash of an application is as many XIDs as it has channels; and what
    /// is told twice, by NVML and by the kernel's log, is one.
    pub const DEFAULT_BURST_SECONDS: i64 = 180;
}
