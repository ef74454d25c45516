//! The hook that finishes a container which got GPUs: it makes the links that programs look for, and tells the
//! container's loader where the driver's libraries are. (ADR 0025.)
//!
//! The runtime runs it as root, in the container's mount namespace, before the container's root becomes `/`. The
//! container's file system is whatever its image says, so:
//!
//! * Every path in the container is opened by the kernel inside the container's root (`openat2`), links included.
//! * Nothing of the container is executed, and the environment is never read.
//! * It writes only to the root file system of the container, never to a volume that is mounted in it. Where the runtime has made
//!   that root read-only already, it does so by mounts of its own.
//! * What is read is bounded: the runtime's state, the container's configuration, the cache that the image brought.
//! * Each write replaces a name as a whole. Run twice, the second run changes nothing.
//!
//! The library half holds the command line in both directions ([`Command`]), so that what the driver writes into a CDI
//! file is what the program reads.

mod command;
mod container_root;
mod failure;
mod links;
mod loader_cache;
mod state;
mod writable;

pub use command::{Command, Library, Link, Machine};
pub use failure::Failure;

use std::io::Read;

use container_root::ContainerRoot;

/// Does what the command line says to the container whose state `input` holds.
pub fn run(command: &Command, input: impl Read) -> Result<(), Failure> {
    let root = ContainerRoot::open(&state::container_root(input)?)?;
    match command {
        Command::CreateSymlinks(wanted) => {
            wanted.iter().try_for_each(|link| links::make(&root, link))
        }
        Command::UpdateLdcache(libraries) => loader_cache::update(&root, libraries),
    }
}
