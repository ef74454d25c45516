//! Who may write what, and in which order: admission, permits and release as a state machine.
//!
//! The [`Machine`] takes observations ([`crate::object::Change`]) and the outcomes of its effects, and
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
//! The room: `machine` (the public face and the order of a poll), `takeover` (raise the epoch, read
//! everything), `founding` (a Ledger that is new, or stands for a lost one), `flight` (what is under way), `picture`
//! (what a poll looks at), `charge` and `holds` (what is charged), `admit`, `fate`, `void`, `permits`, `release`,
//! `ungate`, `patch` (points 1 to 5 of the protocol), `plan`, `place` and `clocks` (what an admitted gang lacks),
//! `nudge` (kubelets that wait), `adopt`, `gangs`, `waiting` and `gang_status`, `queue_status`, `events`.

mod admit;
mod adopt;
mod charge;
mod clocks;
mod conditions;
mod config;
pub mod effect;
mod events;
mod fate;
mod flight;
mod founding;
mod gang_status;
mod gangs;
mod holds;
mod machine;
mod mutation;
mod nudge;
mod objects;
mod patch;
mod permits;
mod picture;
mod place;
mod plan;
mod queue_status;
mod release;
mod takeover;
#[cfg(test)]
mod tests;
mod ungate;
mod void;
mod waiting;

pub use config::{Config, Mode, Now};
pub use effect::{Effect, EffectId, EventNote, Outcome, Write};
pub use machine::{ExitReason, Machine};
pub use mutation::Mutation;
