package processruntime

import (
	"cmp"
	"context"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox is a pod: an address and the containers that share its life. It has no process of its own.
type sandbox struct {
	id        string
	config    *runtimeapi.PodSandboxConfig
	createdAt int64
	ready     bool
	address   string // empty on the host's network and once it is stopped
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if s.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (r *Runtime) RunPodSandbox(_ context.Context, request *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := request.GetConfig()
	if config.GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "the sandbox has no metadata")
	}
	if directory := config.GetLogDirectory(); directory != "" {
		if err := os.MkdirAll(directory, 0o755); err != nil {
			return nil, status.Errorf(codes.Internal, "log directory: %v", err)
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	s := &sandbox{id: newID(), config: config, createdAt: time.Now().UnixNano(), ready: true}
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		address, err := r.addresses.take()
		if err != nil {
			return nil, status.Error(codes.ResourceExhausted, err.Error())
		}
		s.address = address
	}
	if err := r.saveSandbox(s); err != nil {
		r.addresses.giveBack(s.address)
		return nil, status.Errorf(codes.Internal, "saving the sandbox: %v", err)
	}
	r.sandboxes[s.id] = s
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: s.id}, nil
}

// StopPodSandbox kills what still runs in the sandbox and only then gives its address back. A sandbox
// that is stopped already, or gone, is no error.
func (r *Runtime) StopPodSandbox(ctx context.Context, request *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return &runtimeapi.StopPodSandboxResponse{}, r.stopSandbox(ctx, request.GetPodSandboxId())
}

func (r *Runtime) stopSandbox(ctx context.Context, id string) error {
	r.mutex.Lock()
	s := r.sandboxes[id]
	var inside []string
	if s != nil {
		s.ready = false // from here on nothing starts in it
		inside = r.containersOf(id)
	}
	r.mutex.Unlock()
	if s == nil {
		return nil
	}
	for _, container := range inside {
		if err := r.stopContainer(ctx, container, 0); err != nil {
			return err
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.addresses.giveBack(s.address)
	s.address = ""
	return nil
}

// RemovePodSandbox also removes its containers. A sandbox that is gone is no error.
func (r *Runtime) RemovePodSandbox(ctx context.Context, request *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	id := request.GetPodSandboxId()
	if err := r.stopSandbox(ctx, id); err != nil {
		return nil, err
	}
	r.mutex.Lock()
	inside := r.containersOf(id)
	r.mutex.Unlock()
	for _, container := range inside {
		if err := r.removeContainer(ctx, container); err != nil {
			return nil, err
		}
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if _, found := r.sandboxes[id]; found {
		delete(r.sandboxes, id)
		warn("removing a sandbox", os.Remove(r.sandboxFile(id)))
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// containersOf needs the mutex.
func (r *Runtime) containersOf(sandbox string) []string {
	var ids []string
	for id, c := range r.containers {
		if c.SandboxID == sandbox {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *Runtime) PodSandboxStatus(_ context.Context, request *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	s := r.sandboxes[request.GetPodSandboxId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "there is no sandbox %q", request.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: s.id, Metadata: s.config.GetMetadata(), State: s.state(), CreatedAt: s.createdAt,
		Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.address},
		// The kubelet compares these with the pod's and makes a new sandbox if they differ.
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
		Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(),
	}}, nil
}

func (r *Runtime) ListPodSandbox(_ context.Context, request *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	filter := request.GetFilter()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	response := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		if filter.GetId() != "" && filter.GetId() != s.id ||
			filter.GetState() != nil && filter.GetState().GetState() != s.state() ||
			!selects(filter.GetLabelSelector(), s.config.GetLabels()) {
			continue
		}
		response.Items = append(response.Items, &runtimeapi.PodSandbox{
			Id: s.id, Metadata: s.config.GetMetadata(), State: s.state(), CreatedAt: s.createdAt,
			Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(),
		})
	}
	slices.SortFunc(response.Items, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	return response, nil
}

// UpdatePodSandboxResources has nothing to do: no cgroup is written.
func (r *Runtime) UpdatePodSandboxResources(context.Context, *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
