//! What a gang takes from quota.
//!
//! A gang's charge is the **set of its claims, each once**, that an intent of it, its Gang's
//! admission or any of its permits names; the union is taken by claim UID. Whoever adds up charges
//! must therefore never add two records of the same claim.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a gang, or one pod of it, takes from quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Charge {
    /// Claims, grouped by what each of them costs, so that a gang of 1,024 equal claims stays small.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ClaimsCharge>,
    /// Resources that are not claimed devices (cpu, memory); only those that a quota names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ResourceCharge>,
}

/// Claims that cost the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimsCharge {
    /// The Flavor that is charged.
    pub flavor: String,
    /// Thousandths of a GPU that **each** claim takes; a whole GPU is 1000.
    #[schemars(range(min = 0))]
    pub gpus_milli: i64,
    /// Bytes of device memory that **each** claim takes.
    #[schemars(range(min = 0))]
    pub vram_bytes: i64,
    /// UIDs of the ResourceClaims, ascending.
    pub uids: Vec<String>,
}

/// An amount of a resource that is not a claimed device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceCharge {
    /// The Flavor that is charged.
    pub flavor: String,
    /// `cpu` (thousandths of a core), `memory` (bytes) or an extended resource (units).
    pub resource: String,
    /// The amount, in the unit that `resource` says.
    #[schemars(range(min = 0))]
    pub amount: i64,
}
