//! The whole decision against a model of it: who is admitted, who gives way to whom, what is kept, while gangs come and go.
//!
//! There is a place for everybody here, so quota alone decides: also with how many pods a gang starts that may start with fewer than all. The model keeps lists, and asks every gang that waits again
//! from scratch, until nobody can be admitted and nobody gives way ([`model`]). Nothing wakes anybody in it: a gang that the engine
//! forgot to ask is found at the end of every decision.

mod agreement;
mod engine;
mod events;
mod flavors;
mod history;
mod judge;
mod memory;
mod model;
mod rounds;
mod search;
mod settle;
mod strict;
