//! Deterministic simulation of the protocols of Muster: the machines that ship, on a cluster that does not exist.
//!
//! Controllers and drivers run the real `muster_protocol::Machine` and
//! `muster_dra_driver::prepare::Machine`. Everything around them is fake, small, and strict where the real thing is:
//! the API server ([`api_server`]), the controller's executor ([`controller_writes`]), kube-scheduler
//! ([`scheduler`]), the claim controller ([`claim_controller`]), kubelets ([`kubelet`]), nodes ([`gpu_node`]), those
//! who make pods ([`owners`]) and what runs in them ([`workload`]).
//!
//! [`world`] lets one of them take one step at a time, in an order that the seed decides, under virtual time;
//! [`controllers`] and [`drivers`] break each effect into steps, so that a crash, a conflict, a lost or a late answer can
//! come between any two ([`faults`]). After **every** step that changes anything [`invariants`] judges the API server and the nodes alone.
//! [`run`] plays a seed: a phase in which things go wrong, then one in which they do not and everything must come
//! to rest with nothing left over (S6), which is judged at its end. Where chance does not find the moment that matters, a [`script`] steers the first
//! phase.
//!
//! **Invariant: the same seed gives the same run.** No clock, no thread, no hash order, no randomness but
//! [`random`]. A failure prints its seed; the seed is the bug report.
//!
//! With the feature `injected-bugs` (this crate's own tests only) a rule of either machine can be broken on purpose, to
//! show that the checks would see it.
//!
//! A seed also aims at one pair of effect and mishap ([`matrix`]): over the ordinary run every effect meets every mishap.
//!
//! [`decide`] uses the same API server for something else: it reads a cluster from files and prints what Muster would
//! decide about it (`muster-sim decide FILE...`).
//!
//! What a controller asks for is carried out by the code that ships, requests and all ([`performing`]). The benchmark has
//! it done to the API server directly ([`controller_writes`]), which comes to the same, line by line
//! (`tests/requests.rs`).
//!
//! [`conformance`] asks the engine's quota alone: it runs cases of Kueue's own tests from a file
//! (`muster-sim conformance FILE`).
//!
//! Slices of GPUs are played on one node with its drivers ([`gpu_slices`], `tests/slices`); clusters here have whole GPUs. What is wrong with them is
//! [`gpu_faults`]; drivers remember it in the state that ships.
//!
//! Every fourth seed has administrators who drain nodes and devices by hand, of whom most have gangs moved; and every fourth has gangs that tell of their
//! progress, of which some stand still; and in every fourth clocks of controllers and drivers are wrong. Each is drawn by a stream of its own, so that all
//! other seeds mean what they meant.
//!
//! Time is true for the API server, kubelets and checks; the clocks of controllers, and of drivers where they store times, need not be
//! (`clock.rs`). A check of something that a leader counts by its clock leaves it what the fastest clock of the run needs, and argues that where it does.
//!
//! Not simulated: nodes that are lost for good, the taint `out-of-service` itself, slices that vanish with a kubelet, the
//! extender, adoption of what runs unadmitted, Observe. Users give up what gets nowhere for ten minutes. They are
//! counted, and after everything has healed nobody may have to, but for the cases that [`owners`] names.

pub mod api_server;
pub mod claim_controller;
mod clock;
pub mod conformance;
pub mod controller_writes;
pub mod controllers;
pub mod decide;
pub mod drivers;
pub mod faults;
pub mod fixtures;
pub mod gpu_faults;
pub mod gpu_node;
pub mod gpu_slices;
pub mod invariants;
pub mod kubelet;
pub mod listing;
pub mod matrix;
pub mod owners;
pub mod performing;
pub mod random;
pub mod run;
pub mod scenario;
pub mod scheduler;
pub mod script;
pub mod seeds;
mod taints;
pub mod trace;
pub mod workload;
pub mod world;
