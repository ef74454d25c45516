package processruntime

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// StartContainer starts the process, and answers only when that is in the record.
func (r *Runtime) StartContainer(ctx context.Context, request *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	id := request.GetContainerId()
	r.mutex.Lock()
	c := r.containers[id]
	if c == nil {
		r.mutex.Unlock()
		return nil, status.Errorf(codes.NotFound, "there is no container %q", id)
	}
	if c.starting || c.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		r.mutex.Unlock()
		return nil, status.Errorf(codes.FailedPrecondition, "container %q was started before; a container starts once", id)
	}
	c.starting = true
	pod := r.pod(c).GetName()
	r.mutex.Unlock()

	delayed := r.delayStart(ctx, pod)
	revision := r.clock.now()

	r.mutex.Lock()
	defer r.mutex.Unlock()
	c.starting = false
	if delayed != nil {
		return nil, delayed
	}
	// While it was delayed the world went on.
	if s := r.sandboxes[c.SandboxID]; r.containers[id] != c || c.stopped || s == nil || !s.ready {
		return nil, status.Errorf(codes.FailedPrecondition, "container %q was stopped before it started", id)
	}
	if err := r.launch(c, revision); err != nil {
		// 128 and StartError are what containerd reports for a program that cannot be executed.
		c.State, c.ExitCode, c.Reason, c.Message = runtimeapi.ContainerState_CONTAINER_EXITED, 128, "StartError", err.Error()
		c.StartedAt, c.FinishedAt = time.Now().UnixNano(), time.Now().UnixNano()
		close(c.done)
		warn("saving a container", r.saveContainer(c))
		return nil, status.Errorf(codes.Unknown, "failed to start container %q: %v", id, err)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// launch needs the mutex. If it fails, nothing runs and nothing is recorded.
func (r *Runtime) launch(c *container, revision int64) error {
	arguments, err := commandLine(c.config)
	if err != nil {
		return err
	}
	env := environment(c.config, c.Injected.Environment)
	directory := c.config.GetWorkingDir()
	if directory == "" {
		directory = r.scratchDirectory(c.ID)
	}
	path, err := findProgram(arguments[0], env, directory)
	if err != nil {
		return err
	}
	if c.log, err = openContainerLog(c.LogPath); err != nil {
		return fmt.Errorf("the container's log: %w", err)
	}
	var outputs outputs
	stdout, err := outputs.add(c.log, "stdout")
	if err != nil {
		return err
	}
	stderr, err := outputs.add(c.log, "stderr")
	if err != nil {
		return err
	}
	c.process, err = r.spawner.start(path, arguments, env, directory, stdout, stderr)
	outputs.started()
	if err != nil {
		c.process = nil
		outputs.finish()
		c.log.close()
		return err
	}
	c.PID = c.process.group
	err = r.watchdog.watch(c.PID)
	if err == nil {
		err = r.uses.begin(c)
	}
	if err == nil {
		line := r.recordLine(c, "started", revision)
		line.startedPart = &startedPart{c.Injected.Environment, c.Injected.DeviceNodes, c.Injected.Mounts, c.Injected.Hooks}
		err = r.record.write(line)
	}
	if err != nil {
		// Nothing may run that the observer does not know of.
		_ = c.process.signal(syscall.SIGKILL)
		c.process.wait()
		c.process = nil
		warn("the end of a use", r.uses.end(c))
		return err
	}
	c.State, c.StartedAt = runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now().UnixNano()
	warn("saving a container", r.saveContainer(c))
	go r.follow(c, c.process, &outputs)
	return nil
}

// follow waits for the end of a container.
func (r *Runtime) follow(c *container, p *process, outputs *outputs) {
	code := p.wait()
	outputs.finish()
	c.log.close()
	revision := r.clock.now()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.watchdog.forget(p.group)
	warn("the end of a container", r.exited(c, code, "", revision))
}

// exited needs the mutex. Every process of the container is dead, and was so at this revision.
func (r *Runtime) exited(c *container, code int32, message string, revision int64) error {
	c.process = nil
	c.State, c.ExitCode, c.Message, c.FinishedAt = runtimeapi.ContainerState_CONTAINER_EXITED, code, message, time.Now().UnixNano()
	warn("the end of a use", r.uses.end(c))
	c.Reason = "Completed"
	if code != 0 {
		c.Reason = "Error"
	}
	line := r.recordLine(c, "exited", revision)
	line.exitedPart = &exitedPart{code}
	err := r.record.write(line)
	if err == nil {
		err = r.saveContainer(c)
	}
	close(c.done)
	return err
}

// pod needs the mutex. It is nil, which all its getters stand, if the sandbox's file was lost.
func (r *Runtime) pod(c *container) *runtimeapi.PodSandboxMetadata {
	if s := r.sandboxes[c.SandboxID]; s != nil {
		return s.config.GetMetadata()
	}
	return nil
}

func (r *Runtime) recordLine(c *container, event string, revision int64) recordLine {
	pod := r.pod(c)
	return recordLine{
		Event: event, Node: r.node, Revision: revision,
		PodNamespace: pod.GetNamespace(), PodName: pod.GetName(), PodUID: pod.GetUid(),
		ContainerName: c.config.GetMetadata().GetName(), ContainerID: c.ID, PID: c.PID, CDIDevices: c.Injected.Devices,
	}
}

// StopContainer sends SIGTERM to the group and SIGKILL after the timeout, and answers when the whole
// group is dead. A container that does not run, or is gone, is no error.
func (r *Runtime) StopContainer(ctx context.Context, request *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	timeout := time.Duration(request.GetTimeout()) * time.Second
	return &runtimeapi.StopContainerResponse{}, r.stopContainer(ctx, request.GetContainerId(), timeout)
}

func (r *Runtime) stopContainer(ctx context.Context, id string, timeout time.Duration) error {
	c, pod := r.running(id)
	if c == nil {
		return nil
	}
	if err := r.hangStop(ctx, pod); err != nil {
		return err
	}
	steps := []struct {
		signal syscall.Signal
		limit  time.Duration
	}{{syscall.SIGTERM, timeout}, {syscall.SIGKILL, time.Hour}}
	if timeout <= 0 {
		steps = steps[1:]
	}
	for _, step := range steps {
		if err := r.signal(c, step.signal); err != nil {
			return status.Errorf(codes.Internal, "%v to container %q: %v", step.signal, id, err)
		}
		timer := time.NewTimer(step.limit)
		select {
		case <-c.done:
			timer.Stop()
			return nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
	return status.Errorf(codes.DeadlineExceeded, "container %q is still alive long after SIGKILL", id)
}

// running returns a container that has something to stop. One that has not started yet never will.
func (r *Runtime) running(id string) (*container, string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, ""
	}
	c.stopped = true
	if c.process == nil {
		return nil, ""
	}
	return c, r.pod(c).GetName()
}

// signal looks again under the mutex, so that a number that has become another's is never hit.
func (r *Runtime) signal(c *container, signal syscall.Signal) error {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if c.process == nil {
		return nil
	}
	return c.process.signal(signal)
}

// outputs are the two pipes from a container's process to its log.
type outputs struct {
	readers, writers []*os.File
	followers        sync.WaitGroup
}

func (o *outputs) add(log *containerLog, stream string) (*os.File, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o.readers, o.writers = append(o.readers, reader), append(o.writers, writer)
	o.followers.Go(func() { log.follow(stream, reader) })
	return writer, nil
}

// started closes our copies of the write ends, so that the end of the process ends the stream.
func (o *outputs) started() {
	for _, writer := range o.writers {
		writer.Close()
	}
}

// finish waits for the last output. A process that has left the group may hold a pipe open for ever;
// what it writes after that is lost.
func (o *outputs) finish() {
	late := time.AfterFunc(time.Second, o.close)
	o.followers.Wait()
	late.Stop()
	o.close()
}

func (o *outputs) close() {
	for _, reader := range o.readers {
		reader.Close()
	}
}
