//! What is derived from observed objects and found by another key than theirs: kept by difference, so that one event
//! costs what it touches.

pub(crate) mod agenda;
pub(crate) mod permits;
pub(crate) mod plans;
pub(crate) mod suspensions;
