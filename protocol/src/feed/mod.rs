//! What the engine is told of gangs: which wait, and what each pod holds.

pub(crate) mod holds;
pub(crate) mod waiting;
