//! Placement as a whole.

mod bounds;
mod change;
mod cost;
mod counts;
