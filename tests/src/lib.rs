//! A real Kubernetes on loopback, with Muster installed in it: the harness of the end-to-end tests
//! and of `cargo xtask demo`.
//!
//! | room | what it is for |
//! | --- | --- |
//! | [`cluster`] | the whole: control plane, nodes and Muster, started and stopped together |
//! | [`control_plane`] | etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes |
//! | [`node`] | a rootless kubelet with its process runtime, in a namespace of its own |
//! | [`node_state`] | what the objects of a node say of it, and taints |
//! | [`fake_nodes`] | nodes that one process plays, for questions of size; [`scale`] measures with them |
//! | [`recovery_bench`] | how long it takes from a fault to the whole gang running again |
//! | [`faults`] | faults of GPUs: injected, waited for, mended |
//! | [`device_nodes`] | what stands for a device on its node's hardware, and what of it a container was given |
//! | [`driver_socket`] | the driver of a node, called as its kubelet calls it |
//! | [`containers`] | machines with real containers, where the chart is installed as it is |
//! | [`install`] | the chart, by real Helm, and our programs with what the chart rendered |
//! | [`service`] | any program of a cluster, which can be killed, stopped, frozen and started alone |
//! | [`vendor_webhook`] | a mutating webhook of another vendor |
//! | [`observer`] | checks the invariants S1 to S8 and S16 from the outside, all the time |
//! | [`demo`] | the demonstration: one story, told live, judged by a scenario |
//! | [`suite`] | runs the scenarios of one cluster, judges each by the observer |
//!
//! Nothing here mocks Muster. What stands in for the world outside is the container runtime (whose
//! containers are plain processes, but for [`containers`]) and NVML.
//!
//! Everything binds to loopback, or to a network of its own; every process that is started here dies with the process that
//! started it; every file is in one temporary directory, which is kept only when a scenario failed.

pub mod builders;
pub mod cluster;
pub mod containers;
pub mod control_plane;
pub mod demo;
pub mod device_nodes;
pub mod driver_socket;
pub mod events;
pub mod evictions;
pub mod failure_report;
pub mod fake_nodes;
pub mod faults;
pub mod gangs;
pub mod gpu_board;
pub mod http_get;
pub mod install;
pub mod kube_binaries;
pub mod kubeconfig;
pub mod kubernetes;
pub mod kueue;
pub mod loopback;
pub mod node;
pub mod node_state;
pub mod observer;
pub mod pki;
pub mod preflight;
pub mod process;
pub mod processes;
pub mod programs;
pub mod progress;
pub mod recovery_bench;
pub mod scale;
pub mod service;
pub mod suite;
pub mod users;
pub mod vendor_webhook;
pub mod workloads;
