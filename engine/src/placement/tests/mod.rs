//! Placement as a whole.

mod allocation;
mod bounds;
mod change;
mod cost;
mod counts;
