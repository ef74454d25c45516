//! What Muster would decide about a cluster that is written in files.
//!
//! [`read`] parses the documents, [`complete`] adds what a cluster would have added by itself, and [`settle`] runs the
//! controller's machine, the one that ships, on the fake API server until it has nothing left to do. Everything that it
//! asks for is done at once and succeeds: nodes acknowledge, and kube-scheduler allocates the claims of each pod ([`devices`]) and
//! binds it to the node that it is pinned to ([`bind`]). [`report`] then reads the decisions from the Gangs.
//!
//! **Invariant: the answer is a function of the objects**, not of the order in which files and documents give them, and
//! not of the time of day.

mod beta;
mod bind;
mod complete;
mod devices;
mod error;
mod read;
mod report;
mod settle;

pub use complete::shipped_tiers;
pub use error::Error;
pub use read::Source;
pub use report::{Charged, Decision, SliceClaims};

use crate::api_server::ApiServer;

/// What was decided, and what was left aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// One per gang, in the order of namespace and name.
    pub decisions: Vec<Decision>,
    /// What was not read, or could not be made up, and pods that were let go and could not be bound.
    pub warnings: Vec<String>,
}

/// Decides about the objects of all sources together.
///
/// # Errors
///
/// The first document that cannot be read, with its file, number and field; or an object that stands there twice.
pub fn decide(sources: &[Source]) -> Result<Answer, Error> {
    let mut warnings = Vec::new();
    let objects = read::read(sources, &mut warnings)?;
    let mut api = ApiServer::default();
    let now = complete::complete(objects, &mut api, &mut warnings)?;
    settle::settle(&mut api, now, &mut warnings)?;
    Ok(Answer {
        decisions: report::decisions(&api),
        warnings,
    })
}
