package processruntime

import (
	"context"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFaultsAreMadeForThePodsNamedAndEndWithTheFile(t *testing.T) {
	n := startNode(t)
	n.faults(`{"refuseCreate": [{"pod": "train-", "message": "no space left on device"}], "delayStart": [{"pod": "slow", "seconds": 0.3}]}`)
	if _, err := n.create(n.sandbox("train-3"), shell("true")); err == nil || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("refuseCreate: %v", err)
	}
	if _, err := n.create(n.sandbox("other"), shell("true")); err != nil {
		t.Errorf("a pod that is not named: %v", err)
	}
	before := time.Now()
	n.run("slow-0", "true")
	if took := time.Since(before); took < 300*time.Millisecond {
		t.Errorf("started after %v, without the delay", took)
	}
	n.faults("")
	if _, err := n.create(n.sandbox("train-4"), shell("true")); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
	n.faults(`{"refuse": []}`)
	if _, err := n.create(n.sandbox("other-2"), shell("true")); err == nil || !strings.Contains(err.Error(), "faults.json") {
		t.Errorf("a file that cannot be understood: %v", err)
	}
	n.faults("")
}

func TestAnImageThatIsMissingIsNotThereAndCannotBePulledUntilTheFaultIsGone(t *testing.T) {
	n := startNode(t)
	missing, other := &runtimeapi.ImageSpec{Image: "example.invalid/late:1"}, &runtimeapi.ImageSpec{Image: "example.invalid/rank:1"}
	status := func(image *runtimeapi.ImageSpec) *runtimeapi.Image {
		t.Helper()
		response, err := n.images.ImageStatus(n.context(), &runtimeapi.ImageStatusRequest{Image: image})
		check(t, err)
		return response.Image
	}
	id := &runtimeapi.ImageSpec{Image: status(missing).Id}
	n.faults(`{"missingImage": [{"image": "example.invalid/late:", "message": "manifest unknown"}]}`)
	for _, image := range []*runtimeapi.ImageSpec{missing, id} {
		if found := status(image); found != nil {
			t.Errorf("%s is said to be there: %v", image.Image, found)
		}
		_, err := n.images.PullImage(n.context(), &runtimeapi.PullImageRequest{Image: image})
		if err == nil || !strings.Contains(err.Error(), "manifest unknown") {
			t.Errorf("%s was pulled: %v", image.Image, err)
		}
	}
	if status(other) == nil {
		t.Error("an image that is not named is missing")
	}
	n.faults("")
	if status(missing) == nil {
		t.Error("it is still missing")
	}
	_, err := n.images.PullImage(n.context(), &runtimeapi.PullImageRequest{Image: missing})
	check(t, err)
}

func TestAStopHangsUntilTheFaultIsGone(t *testing.T) {
	n := startNode(t)
	id, _ := n.run("stuck", "echo up; sleep 1000")
	n.waitLog("stuck", "up")
	n.faults(`{"hangStop": [{"pod": "stuck"}]}`)
	short, cancel := context.WithTimeout(n.context(), 200*time.Millisecond)
	defer cancel()
	if _, err := n.StopContainer(short, &runtimeapi.StopContainerRequest{ContainerId: id}); err == nil {
		t.Error("the stop did not hang")
	}
	if status := n.status(id); status.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the process was not left alone: %v", status)
	}
	stopped := make(chan error, 1)
	ctx := n.context()
	go func() {
		_, err := n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
		stopped <- err
	}()
	n.faults("")
	check(t, <-stopped)
	if status := n.status(id); status.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("status %v", status)
	}
}

func TestAContainerThatIsStoppedBeforeItsDelayedStartNeverRuns(t *testing.T) {
	n := startNode(t)
	n.faults(`{"delayStart": [{"pod": "", "seconds": 0.3}]}`)
	sandbox := n.sandbox("late")
	id, err := n.create(sandbox, shell("true"))
	check(t, err)
	started := make(chan error, 1)
	go func() { started <- n.startContainer(id) }()
	time.Sleep(50 * time.Millisecond)
	_, err = n.StopPodSandbox(n.context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
	check(t, err)
	if err := <-started; err == nil || !strings.Contains(err.Error(), "stopped before it started") {
		t.Errorf("start: %v", err)
	}
	if len(n.record()) != 0 {
		t.Errorf("record %v", n.record())
	}
}
