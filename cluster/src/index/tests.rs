//! Stories about gangs, as the index tells them.

mod alternatives;
mod anew;
mod device_plugin;
mod ends;
mod follow;
mod gangs;
mod hostile_slices;
mod judged;
mod nodes;
mod order;
mod requests;
mod scale;
mod scheduler_claims;
mod shorthand;
mod slices;
mod taint_rules;
mod waits;
