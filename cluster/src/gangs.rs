//! Gangs from pods: who belongs together, under which name, how many, in which order, and whether
//! they are complete.
//!
//! All of it is a function of what is observed now: nothing is remembered between two looks, so a
//! new leader forms the same gangs (S10). What has to outlive the pods is in the Gang object: its
//! name, its group, its admission.

mod declaration;
mod ending;
mod forming;
mod group;
mod naming;
mod ranks;
mod spec;
mod tiers;
mod waiting;

pub use declaration::{failed_ranks, runs_at_once, succeeded_ranks};
pub(crate) use forming::{GangInputs, NamespaceTeam, PodRequest, PodRequests, facts_of, form};
pub(crate) use group::{Belonging, Group, belonging};
pub use group::{is_gang, is_indexed, size_by_shape};
pub use naming::is_named_after_pod;
pub(crate) use naming::{GangFinder, Incarnations, gang_key, group_of_gang, group_of_pods_gang};
pub use ranks::natural_order;
pub(crate) use tiers::default_tier;

use crate::pod::{
    age_order, annotation, bound_to, completion_index, controller, controlling_job, created_at,
    is_active, is_job, is_terminal, label, name, namespace, phase, uid,
};
