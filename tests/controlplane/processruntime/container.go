package processruntime

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// container is one container, from CreateContainer to RemoveContainer.
type container struct {
	containerState
	config   *runtimeapi.ContainerConfig
	log      *containerLog
	process  *process      // only while it runs
	stopped  bool          // by request: it does not start any more
	starting bool          // a StartContainer is under way
	done     chan struct{} // closed once it is exited
}

// containerState is what is kept of it on disk, beside its configuration.
type containerState struct {
	ID         string                    `json:"id"`
	SandboxID  string                    `json:"sandboxId"`
	State      runtimeapi.ContainerState `json:"state"`
	CreatedAt  int64                     `json:"createdAt"`
	StartedAt  int64                     `json:"startedAt"`
	FinishedAt int64                     `json:"finishedAt"`
	ExitCode   int32                     `json:"exitCode"`
	Reason     string                    `json:"reason"`
	Message    string                    `json:"message"`
	LogPath    string                    `json:"logPath"`
	PID        int                       `json:"pid"`
	Injected   injection                 `json:"injected"`
}

func (r *Runtime) CreateContainer(_ context.Context, request *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := request.GetConfig()
	r.mutex.Lock()
	s := r.sandboxes[request.GetPodSandboxId()]
	ready := s != nil && s.ready
	r.mutex.Unlock()
	if !ready {
		return nil, status.Errorf(codes.NotFound, "there is no ready sandbox %q", request.GetPodSandboxId())
	}
	if config.GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "the container has no metadata")
	}
	if err := r.refusal(s.config.GetMetadata().GetName()); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	if _, err := commandLine(config); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	injected, err := injectDevices(r.cdiDirectory, config.GetCDIDevices())
	if err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	c := &container{
		containerState: containerState{
			ID: newID(), SandboxID: s.id, State: runtimeapi.ContainerState_CONTAINER_CREATED,
			CreatedAt: time.Now().UnixNano(), Injected: injected,
		},
		config: config,
		done:   make(chan struct{}),
	}
	if config.GetLogPath() != "" && s.config.GetLogDirectory() != "" {
		c.LogPath = filepath.Join(s.config.GetLogDirectory(), config.GetLogPath())
	}
	if err := os.Mkdir(r.scratchDirectory(c.ID), 0o755); err != nil {
		return nil, status.Errorf(codes.Internal, "the container's directory: %v", err)
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if err := r.saveContainer(c); err != nil {
		return nil, status.Errorf(codes.Internal, "saving the container: %v", err)
	}
	r.containers[c.ID] = c
	return &runtimeapi.CreateContainerResponse{ContainerId: c.ID}, nil
}

// RemoveContainer kills the container if it runs. One that is gone is no error.
func (r *Runtime) RemoveContainer(ctx context.Context, request *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	return &runtimeapi.RemoveContainerResponse{}, r.removeContainer(ctx, request.GetContainerId())
}

func (r *Runtime) removeContainer(ctx context.Context, id string) error {
	if err := r.stopContainer(ctx, id, 0); err != nil {
		return err
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if _, found := r.containers[id]; found {
		delete(r.containers, id)
		warn("removing a container", os.Remove(r.containerFile(id)))
		warn("removing a container", os.RemoveAll(r.scratchDirectory(id)))
	}
	return nil
}

func (r *Runtime) ListContainers(_ context.Context, request *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	filter := request.GetFilter()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	response := &runtimeapi.ListContainersResponse{}
	for _, c := range r.containers {
		if filter.GetId() != "" && filter.GetId() != c.ID ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.SandboxID ||
			filter.GetState() != nil && filter.GetState().GetState() != c.State ||
			!selects(filter.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		image := imageID(c.config.GetImage().GetImage())
		response.Containers = append(response.Containers, &runtimeapi.Container{
			Id: c.ID, PodSandboxId: c.SandboxID, Metadata: c.config.GetMetadata(), Image: c.image(),
			ImageRef: image, ImageId: image, State: c.State, CreatedAt: c.CreatedAt,
			Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		})
	}
	slices.SortFunc(response.Containers, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	return response, nil
}

func (r *Runtime) ContainerStatus(_ context.Context, request *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	c := r.containers[request.GetContainerId()]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "there is no container %q", request.GetContainerId())
	}
	image := imageID(c.config.GetImage().GetImage())
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: c.ID, Metadata: c.config.GetMetadata(), State: c.State,
		CreatedAt: c.CreatedAt, StartedAt: c.StartedAt, FinishedAt: c.FinishedAt,
		ExitCode: c.ExitCode, Reason: c.Reason, Message: c.Message,
		Image: c.image(), ImageRef: image, ImageId: image,
		Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Mounts: c.config.GetMounts(), LogPath: c.LogPath,
	}}, nil
}

// image names the image as the user did; the kubelet asks by its id.
func (c *container) image() *runtimeapi.ImageSpec {
	name := c.config.GetImage().GetUserSpecifiedImage()
	if name == "" {
		name = c.config.GetImage().GetImage()
	}
	return &runtimeapi.ImageSpec{Image: name, UserSpecifiedImage: name}
}

// UpdateContainerResources has nothing to do: no cgroup is written.
func (r *Runtime) UpdateContainerResources(context.Context, *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

func (r *Runtime) ReopenContainerLog(_ context.Context, request *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	r.mutex.Lock()
	c := r.containers[request.GetContainerId()]
	running := c != nil && c.process != nil
	r.mutex.Unlock()
	if !running {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q does not run", request.GetContainerId())
	}
	if err := c.log.reopen(); err != nil {
		return nil, status.Errorf(codes.Internal, "reopening the log: %v", err)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
