//! What makes a controller the one that decides: raising the epoch, reading everything, and giving up
//! when another one has raised it further.

pub(crate) mod fence;
pub(crate) mod ledger_recovery;
pub(crate) mod takeover;
