package processruntime

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options say where everything is. All but Uses, EtcdURL and Node are needed.
type Options struct {
	CDIDirectory   string // the only directory that CDI specs are read from
	StateDirectory string // see state.go
	AddressPrefix  string // 127.x.y
	Record         string // the file of record.go
	Uses           string // the directory of uses.go, if given
	EtcdURL        string // where the record's revisions come from, if given
	Node           string // named in the record, if given
}

// Runtime is the state of one node's containers and both CRI services over it. What it does not
// define is answered with Unimplemented.
type Runtime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	imageService

	cdiDirectory   string
	stateDirectory string
	faultsPath     string
	node           string
	lock           *os.File
	record         *record
	uses           uses
	clock          *revisionClock
	spawner        *spawner
	watchdog       *watchdog

	// mutex guards everything below and the order of the record's lines. It is held while a process is
	// started, and never while anything is waited for.
	mutex      sync.Mutex
	addresses  *addressPool
	sandboxes  map[string]*sandbox
	containers map[string]*container
}

// New takes the state directory over and reads what is in it.
func New(options Options) (*Runtime, error) {
	for name, value := range map[string]string{"cdi-dir": options.CDIDirectory, "state-dir": options.StateDirectory, "record": options.Record} {
		if value == "" {
			return nil, fmt.Errorf("--%s is missing", name)
		}
	}
	// Processes have working directories of their own, so that no path may depend on ours.
	state, err := filepath.Abs(options.StateDirectory)
	if err != nil {
		return nil, err
	}
	faultsPath := filepath.Join(state, "faults.json")
	r := &Runtime{
		cdiDirectory:   options.CDIDirectory,
		stateDirectory: state,
		faultsPath:     faultsPath,
		node:           options.Node,
		clock:          newRevisionClock(options.EtcdURL),
		sandboxes:      map[string]*sandbox{},
		containers:     map[string]*container{},
		imageService:   newImageService(state, faultsPath),
	}
	if r.addresses, err = newAddressPool(options.AddressPrefix); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(state, 0o755); err != nil {
		return nil, err
	}
	if r.lock, err = lockDirectory(state); err != nil {
		return nil, err
	}
	if r.record, err = openRecord(options.Record); err != nil {
		return nil, err
	}
	if r.uses, err = newUses(options.Uses); err != nil {
		return nil, err
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	if r.spawner, err = newSpawner(); err != nil {
		return nil, err
	}
	if r.watchdog, err = startWatchdog(); err != nil {
		return nil, err
	}
	return r, nil
}

// Register adds both services to a gRPC server.
func (r *Runtime) Register(server grpc.ServiceRegistrar) {
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	runtimeapi.RegisterImageServiceServer(server, r)
}

// Close kills all containers, waits until they are dead and recorded, and lets the directory go.
func (r *Runtime) Close() error {
	r.mutex.Lock()
	var running []*container
	for _, c := range r.containers {
		if c.process != nil {
			running = append(running, c)
			_ = c.process.signal(syscall.SIGKILL)
		}
	}
	r.mutex.Unlock()
	limit := time.After(10 * time.Second)
	var err error
	for _, c := range running {
		select {
		case <-c.done:
		case <-limit:
			err = errors.Join(err, fmt.Errorf("process group %d of container %s is still alive 10 s after SIGKILL", c.PID, c.ID))
			limit = time.After(0)
		}
	}
	r.watchdog.stop()
	close(r.spawner.requests)
	r.record.file.Close()
	r.lock.Close()
	return err
}

func (r *Runtime) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "muster-process-runtime", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

func (r *Runtime) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: true},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{}}},
		Features:        &runtimeapi.RuntimeFeatures{},
	}, nil
}

// RuntimeConfig names the cgroup driver, which must be the kubelet's. No cgroup is ever written here.
func (r *Runtime) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig is told the node's pod address range, which is not used: --address-prefix is.
func (r *Runtime) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// selects tells whether labels carry all that a selector asks for.
func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if has, found := labels[key]; !found || has != value {
			return false
		}
	}
	return true
}

// warn is for what must not fail a call, and must not go unseen either.
func warn(what string, err error) {
	if err != nil {
		log.Printf("%s: %v", what, err)
	}
}
