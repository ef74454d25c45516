//! Processes on GPUs that nothing explains: who came to a GPU past quota (DESIGN 7, the side doors).
//!
//! NVML lists the processes of each GPU, their cgroups say whose pod they are, and the checkpoint says which pods hold the
//! GPU. A process whose pod holds neither the GPU nor a part of it, by a claim or by a device plugin, and that nobody trusts, is
//! unexplained. Unexplained for 30 s it is a bypass: told as `QuotaBypassDetected`, and where permits are enforced
//! its device carries a taint (`NoSchedule`: whoever holds the device by right goes on) until 30 s after it is gone.
//!
//! * [`origin`], [`sight`], [`detector`], [`notices`]: what is decided, without IO. [`look`]: what is seen, by [`processes`],
//!   [`pod_logs`], the checkpoint and the kubelet. [`events`]: how it is told. [`watcher`]: the task that does it all.
//! * **What cannot be seen changes nothing.** A GPU that does not answer stays as it was judged, and so do all of them while
//!   the checkpoint, or what would explain a process, cannot be read.
//! * Processes of one origin that follow each other without a gap count as one: else a loop of short ones would use a GPU for ever
//!   untold. For the node's own processes a gap starts the 30 s anew. Those of a pod are counted over gaps and GPUs, and forgotten at
//!   a tenth of the speed.
//! * Nothing is ended and nobody evicted. What the taint costs is that nothing new is placed on the device.

pub mod detector;
pub mod events;
pub mod look;
pub mod notices;
pub mod origin;
pub mod pod_logs;
pub mod processes;
pub mod remembered;
pub mod sight;
pub mod watcher;
