//! The kubelet's side: registration, DRA calls and health, as gRPC on unix sockets.

pub mod calls;
pub mod health;
pub mod liveness;
pub mod pod_resources;
pub mod registration;
pub mod serve;
pub mod sockets;
