//! The kube-scheduler extender: the last look before a pod of a gang is bound.
//!
//! kube-scheduler asks it only for pods that carry the marker resource, over HTTPS with a client
//! certificate. It decides nothing: where a gang runs was decided by the controller, and is guarded by
//! gate, pins and permits. It refuses what contradicts that ([`filter`]), from what it has seen of the
//! cluster ([`cache`], fed by [`feed`] with what is needed of pods and nodes, [`slim`]), and writes nothing.
//!
//! **Invariants.** The answer is a subset of the request, each node once. The same cache, pod and time
//! give the same answer; nothing is remembered from one request to the next. A pinned pod is refused only on
//! positive evidence. A refusal has one constant text per cause.

pub mod answer;
pub mod cache;
pub mod feed;
pub mod filter;
pub mod metrics;
pub mod pin;
pub mod place;
pub mod program;
pub mod routes;
pub mod slim;
pub mod wire;
