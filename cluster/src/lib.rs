//! The adapter between Kubernetes objects and the engine, without IO.
//!
//! * The **edge**: everything that is text outside (labels, quantities, CEL, affinities) is parsed
//!   here, once. Pods become gangs ([`gangs`], handed over as [`formed`]), claims device requests
//!   ([`claims`], [`selectors`]), nodes and ResourceSlices engine nodes ([`nodes`], [`pools`],
//!   [`node_filter`]), units of device plugins both ([`device_plugin`]), taints faults ([`device_faults`]) and drains ([`drains`]), quota limits engine amounts ([`limits`], [`quantity`]); what a Flavor
//!   counts is read in [`flavor`]. What is not understood
//!   is told with its field ([`unsupported_field`]), never guessed. What users may say instead of a claim is
//!   the [`shorthand`]; what they may say to the driver is [`device_config`].
//! * The **definition of *managed*** ([`managed`]), from which webhook and wall are generated too.
//!   What administrators say about slices of GPUs is [`mig_settings`].
//! * The **judging** of rules that anybody may bring ([`judgement`]), apart from the index.
//! * The **index** ([`index`]): the watch-fed picture of the cluster, kept by [`object::Change`]s.

pub mod claims;
pub mod device_config;
pub mod device_faults;
pub mod device_plugin;
pub mod devices;
pub mod drains;
pub mod explain;
pub mod fault_policy;
pub mod flavor;
pub mod formed;
pub mod gangs;
pub mod index;
pub mod judgement;
pub mod limits;
pub mod links;
pub mod managed;
pub mod managed_cases;
pub mod mig_settings;
pub mod namespace_use;
pub mod node_filter;
mod node_verdicts;
pub mod nodes;
pub mod object;
pub mod place;
pub mod pod;
pub mod pod_resources;
pub mod pod_rules;
pub mod pod_terms;
pub mod pools;
pub mod unsupported_field;

mod charge;
mod counters;
pub mod quantity;
pub mod rank_state;
pub mod selectors;
mod shares;
pub mod shorthand;
pub mod side_door_cases;
pub mod side_doors;
pub mod stable_suffix;
pub mod table;
pub mod taint_rules;
pub mod taints;
pub mod text;
pub mod whole_number;

#[cfg(test)]
mod testing;
