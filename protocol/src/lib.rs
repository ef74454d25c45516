//! Who may write what, and in which order: admission, permits and release as a state machine.
//!
//! The [`Machine`] takes observations ([`muster_cluster::object::Change`]) and the outcomes of its effects, and
//! returns effects. It performs nothing itself, so that the simulator runs the very code that ships,
//! with a crash, a conflict and a lost answer at every effect.
//!
//! **Work follows change.** An observation, an answer or the time touches gangs and nodes; a poll looks at these and at
//! nothing else ([`Machine::visited`] counts them). What a look finds is a function of what is observed: nothing is owed
//! because of a plan that was kept between two polls, and what must survive is in the Ledger, in `Gang.status` and in
//! `NodeDevices.spec`, so that another controller can go on from there. [`Machine::full_poll`] looks at everything: after
//! a poll it finds nothing more, which is asserted after every poll of the tests.
//!
//! **One view per gang.** `admission::stage` works out once where a gang's attempt is; every writer goes by that. Within
//! a leadership no attempt goes back a stage, and at most one attempt of a gang is before its end.
//!
//! **Who may write** (argued once, here): Ledger, `Gang.status` and `NodeDevices.spec` have one writer,
//! the leader, and each write carries its epoch and the resourceVersion that it saw. A leader that was
//! superseded may still write what its successor has not written yet; that is harmless, because the
//! successor writes each of these objects before it takes anything back from the attempt they belong to,
//! and from then on the older precondition fails. Pods are patched with a test of their resourceVersion,
//! and are stamped with a higher attempt before the attempt that an older leader may know is taken back, or given up half
//! way. A Gang is deleted only as it was seen: UID and resourceVersion. Jobs are changed as they were seen as well, and pods are
//! deleted by their UID, of attempts that are over whoever leads (`outward::evict`).
//!
//! **A conflict** on the Ledger, a Gang or `NodeDevices` may mean a newer leader: the Ledger is read again, uncached, and
//! nothing is committed before; what is committed goes on outwards, since each of its writes carries its own precondition.
//! Everybody writes to pods and Jobs: a conflict there concerns that object.
//!
//! **Applied twice, late or never answered**: a write with a resourceVersion is applied at most once. A
//! write whose answer is lost is repeated word by word until it is answered (`in_flight`), and nothing that
//! concerns the object is taken back before.
//!
//! **Two words.** A write is *owed* as long as what is observed asks for it; it is sent unless one of that object is under
//! way. A status *tells* if it changes nothing but what people read.
//!
//! The room:
//!
//! * [`Machine`]: the public face, and the order of a poll. `look` is what is looked at of a gang and of a node, `tables`
//!   finds them, `resync` is the slow look at everything, `in_flight` what was sent and is not shown yet,
//!   `in_vain` what was written without effect, `clocks` since when something is so.
//! * `leadership`: raising the epoch and reading everything (`takeover`), noticing a newer leader (`fence`), a Ledger
//!   that is new or takes the place of a lost one (`ledger_recovery`), a store that was set back (`store_check`).
//! * `admission`: a plan (`plan`) and how it is recorded (`record`), what enters the Ledger (`admit`, `adopt`), what an
//!   intent in it means by now (`intent_state`), where the attempt is (`stage`), how one is taken back (`void`), and when one gives way
//!   (`preempt`, `checkpoints`).
//! * `outward`: Gangs, permits, pods, and what is reported of them; how many pods kube-scheduler is given (`window`).
//! * `faults`: faults of devices, whom they reach, how many nodes may be evacuated for them, and which may reset GPUs.
//! * `drains`: gangs on what a person drains by hand; `disruptions`: ranks that somebody else takes.
//! * `stalls`: gangs that make no progress though all that they hold is well.
//! * `nodes`: nodes that fall silent, are lost, come back, or are gone for good.
//! * `feed`: what the engine is told of gangs.

mod admission;
mod clocks;
mod config;
mod disruptions;
mod drains;
pub mod effect;
mod faults;
mod feed;
mod in_flight;
mod in_vain;
mod injected_bug;
mod jobs;
pub mod lanes;
mod leadership;
mod look;
mod machine;
mod nodes;
mod objects;
mod outward;
mod poll_context;
mod resync;
mod stalls;
mod tables;
#[cfg(test)]
mod tests;

pub use config::{Config, Mode, Now, OnCordon, Recovery};
pub use effect::{ApiRequest, Effect, EffectId, EventNote, JobChange, Outcome};
pub use in_flight::REFUSED_AT_MOST;
pub use in_vain::FieldNotStored;
pub use injected_bug::InjectedBug;
pub use leadership::fence::ExitReason;
pub use machine::{BreakerState, Machine};
pub use muster_engine::recovery::{BreakerLimits, ForcePolicy, ResetLimits};
