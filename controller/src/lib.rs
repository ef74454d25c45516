//! The controller: performs what the protocol's state machine asks for, while it leads.
//!
//! All decisions are made in `muster-engine`, all protocol in `muster_protocol`; this crate is what
//! remains: watches in ([`feed`]), writes out ([`perform`], [`outcome`]), one task between them that owns
//! the machine ([`leader`]), whose long steps hold up nobody else ([`workplace`]). Beside it stand what a leader keeps right by other
//! means: the webhooks' CA bundle ([`ca_bundle`]), the claim templates of the shorthand ([`claim_templates`]), what Nodes say of their GPUs ([`node_conditions`]), what holds drains off gangs ([`disruption_budgets`]), and whether an extender
//! answers ([`extender_probe`]) and kube-scheduler is there ([`scheduler_lease`]). Those that go by what the leader sees are told by a
//! [`shared_table`]. What an operator runs by hand or the chart by a hook,
//! and ends, are subcommands of their own: [`scheduler_config`], [`preflight`], [`device_check`], [`enforce_check`],
//! [`observe_begin`], [`uninstall_check`], [`breaker_reset`].
//!
//! **Invariant: one task owns the machine**, so that what it observes, decides and is given has one order.
//! **Invariant: a replica leads at most once.** It never goes back to following: what it knew is worth nothing
//! then, and a new process starts clean. So it exits when it loses the lease or sees a higher epoch.

pub mod args;
pub mod breaker_reset;
pub mod ca_bundle;
pub mod claim_templates;
pub mod device_check;
pub mod disruption_budgets;
pub mod enforce_check;
pub mod extender_probe;
pub mod feed;
pub mod judge;
pub mod leader;
pub mod metrics;
pub mod node_conditions;
pub mod observe_begin;
pub mod outcome;
pub mod perform;
pub mod preflight;
pub mod run;
pub mod scheduler_config;
pub mod scheduler_lease;
pub mod shared_table;
pub mod take_down;
pub mod uninstall_check;
pub mod workplace;

#[cfg(feature = "failpoints")]
mod failpoint;
mod listing;
mod read;
#[cfg(test)]
mod scripted_api;
