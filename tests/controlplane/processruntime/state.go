package processruntime

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The state directory:
//
//	lock                     held by the one runtime that uses the directory
//	faults.json              see faults.go
//	sandboxes/ID.json        what is known of a pod sandbox
//	containers/ID.json       what is known of a container
//	containers/ID/           its working directory, where the pod names none
//
// Like that of a production runtime it outlives the runtime, so that after a crash of the node the
// kubelet finds its containers exited and goes by the pod's restart policy, instead of finding none
// and starting finished pods over.

type savedSandbox struct {
	ID        string          `json:"id"`
	CreatedAt int64           `json:"createdAt"`
	Config    json.RawMessage `json:"config"`
}

type savedContainer struct {
	containerState
	Config json.RawMessage `json:"config"`
}

func (r *Runtime) sandboxFile(id string) string {
	return filepath.Join(r.stateDirectory, "sandboxes", id+".json")
}
func (r *Runtime) containerFile(id string) string {
	return filepath.Join(r.stateDirectory, "containers", id+".json")
}
func (r *Runtime) scratchDirectory(id string) string {
	return filepath.Join(r.stateDirectory, "containers", id)
}

func (r *Runtime) saveSandbox(s *sandbox) error {
	config, err := protojson.Marshal(s.config)
	if err != nil {
		return err
	}
	return writeWhole(r.sandboxFile(s.id), savedSandbox{ID: s.id, CreatedAt: s.createdAt, Config: config})
}

func (r *Runtime) saveContainer(c *container) error {
	config, err := protojson.Marshal(c.config)
	if err != nil {
		return err
	}
	return writeWhole(r.containerFile(c.ID), savedContainer{containerState: c.containerState, Config: config})
}

// writeWhole replaces a file by one rename.
func writeWhole(path string, content any) error {
	encoded, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", encoded, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// load reads what an earlier runtime left. Its processes died with it; what ran is exited now.
func (r *Runtime) load() error {
	for _, name := range []string{"sandboxes", "containers"} {
		if err := os.MkdirAll(filepath.Join(r.stateDirectory, name), 0o755); err != nil {
			return err
		}
	}
	if err := eachFile(filepath.Join(r.stateDirectory, "sandboxes"), func(content []byte) error {
		var saved savedSandbox
		s := &sandbox{config: &runtimeapi.PodSandboxConfig{}}
		if err := decode(content, &saved, &saved.Config, s.config); err != nil {
			return err
		}
		s.id, s.createdAt = saved.ID, saved.CreatedAt
		r.sandboxes[s.id] = s
		return nil
	}); err != nil {
		return err
	}
	return eachFile(filepath.Join(r.stateDirectory, "containers"), func(content []byte) error {
		var saved savedContainer
		c := &container{config: &runtimeapi.ContainerConfig{}, done: make(chan struct{})}
		if err := decode(content, &saved, &saved.Config, c.config); err != nil {
			return err
		}
		c.containerState = saved.containerState
		r.containers[c.ID] = c
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			waitForGroup(c.PID)
			return r.exited(c, 137, "the runtime was restarted, and its containers died with it", r.clock.now())
		}
		if c.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			close(c.done)
		}
		return nil
	})
}

func decode(content []byte, saved any, config *json.RawMessage, message proto.Message) error {
	if err := json.Unmarshal(content, saved); err != nil {
		return err
	}
	return protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(*config, message)
}

func eachFile(directory string, read func([]byte) error) error {
	paths, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil {
			err = read(content)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("state file %s: %w; remove the state directory to start afresh", path, err)
		}
	}
	return nil
}

// waitForGroup waits until the group of a dead runtime's container is gone; the kernel and the
// watchdog are killing it. The number may long be another's, so that it is neither killed here nor
// waited for without end.
func waitForGroup(group int) {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !groupRuns(group) {
			return
		}
	}
	log.Printf("process group %d of the runtime before this one is still there after 2 s, or its number is in use again", group)
}

// groupRuns tells whether a process of the group still runs. Dead ones that their new parent, which is
// not us, has not waited for yet do not count; a signal would find them.
func groupRuns(group int) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is valid
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended meanwhile
		}
		// PID (NAME) STATE PARENT GROUP …; the name may hold anything, so count from the last parenthesis.
		fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
		if len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// lockDirectory keeps two runtimes off one state directory.
func lockDirectory(directory string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("--state-dir=%s is in use by another runtime: give each its own", directory)
	}
	return file, nil
}

func newID() string {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails on Linux
	return hex.EncodeToString(random[:])
}
