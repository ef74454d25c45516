//! What makes a controller the one that decides: raising the epoch, reading everything, and giving up
//! when another one has raised it further, or the store is not the one that was read.

pub(crate) mod fence;
pub(crate) mod ledger_recovery;
pub(crate) mod newest;
pub(crate) mod store_check;
pub(crate) mod takeover;
