//! Who may write what, and in which order: admission, permits and release as a state machine.
//!
//! The [`Machine`] takes observations ([`muster_cluster::object::Change`]) and the outcomes of its effects, and
//! returns effects. It performs nothing itself, so that the simulator runs the very code that ships,
//! with a crash, a conflict and a lost answer at every effect.
//!
//! **Level-triggered.** [`Machine::poll`] looks at what is observed and emits what is owed next. It keeps
//! no plan of its own between two polls: what must survive is in the Ledger, in `Gang.status` and in
//! `NodeDevices.spec`, so that another controller can go on from there.
//!
//! **Who may write** (argued once, here): Ledger, `Gang.status` and `NodeDevices.spec` have one writer,
//! the leader, and each write carries its epoch and the resourceVersion that it saw. A leader that was
//! superseded may still write what its successor has not written yet; that is harmless, because the
//! successor writes each of these objects before it takes anything back from the attempt they belong to,
//! and from then on the older precondition fails. Pods are patched with a test of their resourceVersion,
//! and are stamped with a higher attempt before the attempt that an older leader may know is taken back.
//!
//! **Applied twice, late or never answered**: a write with a resourceVersion is applied at most once. A
//! write whose answer is lost is repeated word by word until it is answered (`flight`), and nothing that
//! concerns the object is taken back before.
//!
//! The room:
//!
//! * [`Machine`]: the public face, and the order of a poll. `poll_context` is what a poll looks at, `in_flight` what
//!   was sent and not answered, `clocks` what is due by time.
//! * `leadership`: raising the epoch and reading everything (`takeover`), noticing a newer leader (`fence`), a Ledger
//!   that is new or takes the place of a lost one (`ledger_recovery`).
//! * `admission`: what enters the Ledger (`admit`, `adopt`), what an intent in it means by now (`intent_state`), what an
//!   admitted gang holds and lacks (`plan`, `place`, `charge`), and how an attempt is taken back (`void`).
//! * `outward`: Gangs, permits, pods, and what is reported of them.
//! * `feed`: what the engine is told of gangs.

mod admission;
mod clocks;
mod config;
pub mod effect;
mod feed;
mod in_flight;
mod injected_bug;
pub mod lanes;
mod leadership;
mod links;
mod look;
mod machine;
mod objects;
mod outward;
mod poll_context;
mod resync;
mod tables;
#[cfg(test)]
mod tests;

pub use config::{Config, Mode, Now};
pub use effect::{ApiRequest, Effect, EffectId, EventNote, Outcome};
pub use injected_bug::InjectedBug;
pub use leadership::fence::ExitReason;
pub use machine::Machine;
