package processruntime

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// recordLine is one line of the record: what an observer needs to work out, without asking Muster,
// which devices were in use by which container from when to when.
//
// A "started" line is written before StartContainer answers the kubelet. An "exited" line is written
// only once every process of the container is dead. A container that never got a process has no line.
type recordLine struct {
	Event string `json:"event"` // "started" or "exited"
	Time  string `json:"time"`  // RFC 3339 with nanoseconds, UTC
	// Revision of etcd right before the process was started, or right after its last process was dead.
	// Absent if there is no etcd to ask, or it did not answer.
	Revision      int64    `json:"revision,omitempty"`
	Node          string   `json:"node,omitempty"`
	PodNamespace  string   `json:"podNamespace"`
	PodName       string   `json:"podName"`
	PodUID        string   `json:"podUid"`
	ContainerName string   `json:"containerName"`
	ContainerID   string   `json:"containerId"`
	PID           int      `json:"pid"` // also the process group; as this runtime's namespace counts
	CDIDevices    []string `json:"cdiDevices"`
	*startedPart
	*exitedPart
}

// startedPart is what CDI injected, and nothing else.
type startedPart struct {
	Env         map[string]string `json:"env"`
	DeviceNodes []string          `json:"deviceNodes"` // paths in the container
	Mounts      []injectedMount   `json:"mounts,omitempty"`
	Hooks       []string          `json:"hooks,omitempty"`
}

type exitedPart struct {
	ExitCode int32 `json:"exitCode"`
}

// record is the file of recordLines. It is only ever appended to, each line by one write, so that a
// reader never sees half a line that later changes, and several runtimes could share a file.
type record struct {
	file *os.File
}

func openRecord(path string) (*record, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--record: %w", err)
	}
	return &record{file: file}, nil
}

func (r *record) write(line recordLine) error {
	line.Time = time.Now().UTC().Format(time.RFC3339Nano)
	encoded, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if _, err := r.file.Write(append(encoded, '\n')); err != nil {
		return fmt.Errorf("the record: %w", err)
	}
	return nil
}
