package processruntime

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Usage is not measured: the answers are valid and say zero. The kubelet asks for them to decide about
// evictions, which tests make in other ways.

func zero() *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{} }

func zeroCPU() *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{Timestamp: time.Now().UnixNano(), UsageCoreNanoSeconds: zero(), UsageNanoCores: zero()}
}

func zeroMemory() *runtimeapi.MemoryUsage {
	return &runtimeapi.MemoryUsage{Timestamp: time.Now().UnixNano(), WorkingSetBytes: zero(), UsageBytes: zero(), RssBytes: zero()}
}

func (r *Runtime) containerStats(c *container) *runtimeapi.ContainerStats {
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: c.ID, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		},
		Cpu: zeroCPU(), Memory: zeroMemory(),
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: r.stateDirectory},
			UsedBytes: zero(), InodesUsed: zero(),
		},
	}
}

func (r *Runtime) sandboxStats(s *sandbox) *runtimeapi.PodSandboxStats {
	stats := &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: s.id, Metadata: s.config.GetMetadata(), Labels: s.config.GetLabels(), Annotations: s.config.GetAnnotations(),
		},
		Linux: &runtimeapi.LinuxPodSandboxStats{Cpu: zeroCPU(), Memory: zeroMemory()},
	}
	for _, id := range r.containersOf(s.id) {
		stats.Linux.Containers = append(stats.Linux.Containers, r.containerStats(r.containers[id]))
	}
	return stats
}

func (r *Runtime) ContainerStats(_ context.Context, request *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	c := r.containers[request.GetContainerId()]
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "there is no container %q", request.GetContainerId())
	}
	return &runtimeapi.ContainerStatsResponse{Stats: r.containerStats(c)}, nil
}

func (r *Runtime) ListContainerStats(_ context.Context, request *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	filter := request.GetFilter()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	response := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range r.containers {
		if (filter.GetId() == "" || filter.GetId() == c.ID) &&
			(filter.GetPodSandboxId() == "" || filter.GetPodSandboxId() == c.SandboxID) &&
			selects(filter.GetLabelSelector(), c.config.GetLabels()) {
			response.Stats = append(response.Stats, r.containerStats(c))
		}
	}
	return response, nil
}

func (r *Runtime) PodSandboxStats(_ context.Context, request *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	s := r.sandboxes[request.GetPodSandboxId()]
	if s == nil {
		return nil, status.Errorf(codes.NotFound, "there is no sandbox %q", request.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: r.sandboxStats(s)}, nil
}

func (r *Runtime) ListPodSandboxStats(_ context.Context, request *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	filter := request.GetFilter()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	response := &runtimeapi.ListPodSandboxStatsResponse{}
	for _, s := range r.sandboxes {
		if (filter.GetId() == "" || filter.GetId() == s.id) && selects(filter.GetLabelSelector(), s.config.GetLabels()) {
			response.Stats = append(response.Stats, r.sandboxStats(s))
		}
	}
	return response, nil
}
