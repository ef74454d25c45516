// Package processruntime is a container runtime for tests: a CRI v1 server whose containers are plain
// processes of the user that runs it. With it a real kubelet, without root and without images, runs
// pods whose ranks really start, talk to one another, and die.
//
// What is as in production, because Muster's promises depend on it:
//   - CDI devices are injected by the reference library that container runtimes use, and a device that
//     does not resolve fails CreateContainer.
//   - A container's life ends only when every process of its group is dead.
//   - State survives a restart of the runtime; containers do not (they are found exited, code 137).
//   - Each pod has an address of its own, out of the loopback range.
//
// What is not: images (every image exists, none is looked at), file systems, users, resource limits,
// exec, attach and port forwarding. A process has no mount namespace of its own, so a volume is found
// by an environment variable (see environment.go). A process that leaves its session (a daemon) is
// not followed.
//
// What happened is written to a record (record.go), which an independent observer reads. What stands
// for hardware reads which device nodes a living container has (uses.go). Faults are made on demand by
// a file (faults.go).
package processruntime
