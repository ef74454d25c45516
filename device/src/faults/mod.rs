//! Faults of GPUs: what is seen of them, how bad it is, and when it is over.
//!
//! ```text
//! events of NVML  \
//! the kernel's log  > Observation (class, part of the GPU, cause) -> FaultState -> what is worst for a GPU or a slice
//! a look at a GPU /
//! ```
//!
//! All but the reading of the log ([`KernelLog`]) is pure; [`crate::Backend`] asks NVML. Sources of what codes mean are in
//! `catalogue.json`; why it is as it is, in `docs/adr/0039-faults-are-remembered-by-class-until-they-are-mended.md`.

mod address;
mod catalogue;
mod class;
mod condition;
mod event;
mod fault;
mod kernel_log;
mod log_line;
mod observation;
mod occurrences;
mod recovery;
mod reset_group;
mod signal;
mod state;

pub use self::{
    address::PciAddress,
    catalogue::{Catalogue, CatalogueError, Extent, Meaning, Repeat, Rule, RuleKey},
    class::FaultClass,
    condition::{Condition, Errors},
    event::{GpuEvent, GpuEventKind},
    fault::{Change, Fault, GpuFaults},
    kernel_log::{KernelLog, LogRead},
    log_line::{XidDetail, XidLine, xid_line},
    observation::{Cause, Observation, Scope, of_xid, recovery_class},
    recovery::{NotValid, Proof, Recovery, Validation},
    reset_group::resets_with,
    signal::{Signal, Subject},
    state::{ANOMALY_SECONDS, Device, FaultState, KnownAddresses, LogPosition, MOST_WAITING},
};
