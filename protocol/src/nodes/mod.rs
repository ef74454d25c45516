//! Nodes that fall silent, are lost, come back, or are gone for good.
//!
//! What is so for how long, and how many are not Ready at the same time ([`health`]); what the store itself says about a
//! Node before anything is concluded from its silence ([`check`]); and what follows from both ([`loss`]).

pub(crate) mod check;
pub(crate) mod health;
pub(crate) mod loss;
