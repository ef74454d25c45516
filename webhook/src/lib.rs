//! The admission server: what is written into pods when they are created, and what is refused.
//!
//! * [`pod`]: what is written into pods ([`patch`]), and which are refused; [`shorthand`] of them what is said
//!   instead of a claim, [`device_plugin`] what they ask for by limits, [`vram`] whether they say how much memory they need. [`job`]: the same said to who writes the Job.
//! * [`claims`]: what claims say to the driver, and what is remembered of them.
//! * [`quota_tree`]: Teams and Cohorts. [`flavor`]: Flavors. [`fault_policy`]: what faults of GPUs mean.
//! * [`cache`]: what is known of other objects, [`gpus`] among them, fed by [`feed`].
//! * [`routes`]: the reviews over HTTP.
//! * [`generated`]: the texts that the chart takes over.
//!
//! **Invariants.** It writes nothing and remembers nothing of a request, so a dry run is a run and any
//! replica may answer. Nothing is refused for lack of quota: that queues. Every security-relevant rule is
//! an admission policy of the chart as well, which holds while this program is down; this program adds
//! the defaults and the words.

pub mod cache;
pub mod claims;
pub mod declared;
pub mod device_plugin;
pub mod fault_policy;
pub mod feed;
pub mod finding;
pub mod flavor;
pub mod generated;
pub mod gpus;
pub mod job;
pub mod metrics;
mod min_count;
pub mod patch;
pub mod pod;
pub mod program;
pub mod quota_tree;
pub mod routes;
pub mod shorthand;
pub mod vram;
