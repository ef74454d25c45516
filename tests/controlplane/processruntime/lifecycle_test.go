package processruntime

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestAContainerRunsToItsEnd(t *testing.T) {
	n := startNode(t)
	id, _ := n.run("worker", "exit 3")
	status := n.waitExited(id)
	if status.ExitCode != 3 || status.Reason != "Error" || status.StartedAt == 0 || status.FinishedAt < status.StartedAt {
		t.Errorf("status %v", status)
	}
	lines := n.record()
	if len(lines) != 2 || lines[0]["event"] != "started" || lines[1]["event"] != "exited" || lines[1]["exitCode"] != 3.0 {
		t.Fatalf("record %v", lines)
	}
	for _, line := range lines {
		for field, want := range map[string]any{
			"node": "node-a", "podNamespace": "team", "podName": "worker", "podUid": "uid-worker",
			"containerName": "main", "containerId": id, "pid": lines[0]["pid"],
		} {
			if line[field] != want {
				t.Errorf("%s: %s is %v, want %v", line["event"], field, line[field], want)
			}
		}
		if _, err := time.Parse(time.RFC3339Nano, line["time"].(string)); err != nil {
			t.Error(err)
		}
	}
	if env, is := lines[0]["env"].(map[string]any); !is || len(env) != 0 {
		t.Errorf("env of a container without devices is %v, want {}", lines[0]["env"])
	}
	if err := n.startContainer(id); err == nil {
		t.Error("a container started twice")
	}
}

func TestEnvironmentIsThePodsAlone(t *testing.T) {
	t.Setenv("OF_THE_RUNTIME", "secret")
	n := startNode(t)
	config := shell("env; pwd")
	config.Envs = []*runtimeapi.KeyValue{{Key: "A", Value: []byte("b=c")}}
	config.WorkingDir = n.directory
	config.Mounts = []*runtimeapi.Mount{
		{ContainerPath: "/same", HostPath: "/same"},
		{ContainerPath: "/token", HostPath: "/host/token"},
	}
	id, err := n.create(n.sandbox("env"), config)
	check(t, err)
	check(t, n.startContainer(id))
	n.waitExited(id)
	log := n.log("env")
	for _, want := range []string{"A=b=c", "PATH=" + defaultPath, "MUSTER_MOUNT_0=/token=/host/token", n.directory} {
		if !strings.Contains(log, " F "+want+"\n") {
			t.Errorf("the environment lacks %s:\n%s", want, log)
		}
	}
	if strings.Contains(log, "OF_THE_RUNTIME") || strings.Contains(log, "MUSTER_MOUNT_1") {
		t.Errorf("the environment has too much:\n%s", log)
	}
}

func TestWhatCannotBeStartedSaysWhy(t *testing.T) {
	n := startNode(t)
	sandbox := n.sandbox("broken")
	if _, err := n.create(sandbox, &runtimeapi.ContainerConfig{}); err == nil || !strings.Contains(err.Error(), "names no command") {
		t.Errorf("no command: %v", err)
	}
	id, err := n.create(sandbox, &runtimeapi.ContainerConfig{Command: []string{"no-such-program"}})
	check(t, err)
	if err := n.startContainer(id); err == nil || !strings.Contains(err.Error(), "not found in the container's PATH") {
		t.Errorf("no program: %v", err)
	}
	if status := n.status(id); status.ExitCode != 128 || status.Reason != "StartError" {
		t.Errorf("status %v", status)
	}
	if len(n.record()) != 0 {
		t.Errorf("what never ran is in the record: %v", n.record())
	}
}

func TestStopIsAskedForThenForced(t *testing.T) {
	n := startNode(t)
	polite, _ := n.run("polite", `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done`)
	deaf, _ := n.run("deaf", `trap '' TERM; echo up; while :; do sleep 0.02; done`)
	for _, c := range []struct {
		pod, id string
		code    int32
		atLeast time.Duration
	}{{"polite", polite, 0, 0}, {"deaf", deaf, 137, time.Second}} {
		n.waitLog(c.pod, "up")
		before := time.Now()
		for range 2 { // the second time there is nothing to do
			_, err := n.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: c.id, Timeout: 1})
			check(t, err)
		}
		if status := n.status(c.id); status.State != runtimeapi.ContainerState_CONTAINER_EXITED || status.ExitCode != c.code {
			t.Errorf("%s: %v", c.pod, status)
		}
		if took := time.Since(before); took < c.atLeast {
			t.Errorf("%s: killed after %v, before its time was up", c.pod, took)
		}
	}
	if !strings.Contains(n.log("polite"), "bye") {
		t.Error("what was written on the way out is lost")
	}
}

func TestExitedMeansThatTheWholeGroupIsDead(t *testing.T) {
	n := startNode(t)
	// The leader ends at once; what it leaves is deaf to SIGTERM and has children of its own.
	id, _ := n.run("leaver", `sh -c "trap '' TERM; sleep 1000 & sleep 1000" & echo up; exit 0`)
	n.waitExited(id)
	lines := n.record()
	if group := int(lines[0]["pid"].(float64)); len(lines) != 2 || !groupIsDead(group) {
		t.Errorf("exited is recorded and group %d lives: %v", group, lines)
	}
	// The same when it is stopped while its children live.
	id, _ = n.run("parent", `sleep 1000 & echo up; wait`)
	n.waitLog("parent", "up")
	_, err := n.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 5})
	check(t, err)
	lines = n.record()
	if last := lines[len(lines)-1]; last["event"] != "exited" || last["exitCode"] != 128.0+15 || !groupIsDead(int(last["pid"].(float64))) {
		t.Errorf("record %v", lines)
	}
}

func TestSandboxesHaveAddressesOfTheirOwn(t *testing.T) {
	n := startNode(t)
	seen := map[string]bool{}
	var first string
	for i := range 254 {
		id := n.sandbox(fmt.Sprintf("pod-%d", i))
		if i == 0 {
			first = id
		}
		response, err := n.PodSandboxStatus(n.context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		check(t, err)
		address := response.Status.Network.Ip
		if !strings.HasPrefix(address, "127.77.1.") || seen[address] {
			t.Fatalf("pod %d has address %q", i, address)
		}
		seen[address] = true
	}
	config := &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "one-more"}}}
	if _, err := n.RunPodSandbox(n.context(), config); err == nil || !strings.Contains(err.Error(), "254") {
		t.Errorf("the 255th pod: %v", err)
	}
	_, err := n.StopPodSandbox(n.context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: first})
	check(t, err)
	_, err = n.RunPodSandbox(n.context(), config)
	check(t, err)
}

func TestStoppingAndRemovingASandboxEndsAllAndIsIdempotent(t *testing.T) {
	n := startNode(t)
	container, sandbox := n.run("pod", "sleep 1000")
	for range 2 {
		_, err := n.StopPodSandbox(n.context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
		check(t, err)
	}
	if status := n.status(container); status.ExitCode != 137 {
		t.Errorf("status %v", status)
	}
	if _, err := n.create(sandbox, shell("true")); err == nil {
		t.Error("a container was created in a sandbox that is stopped")
	}
	for range 2 {
		_, err := n.RemovePodSandbox(n.context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
		check(t, err)
		_, err = n.RemoveContainer(n.context(), &runtimeapi.RemoveContainerRequest{ContainerId: container})
		check(t, err)
		_, err = n.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: container})
		check(t, err)
	}
	left, err := n.ListContainers(n.context(), &runtimeapi.ListContainersRequest{})
	check(t, err)
	pods, err := n.ListPodSandbox(n.context(), &runtimeapi.ListPodSandboxRequest{})
	check(t, err)
	if len(left.Containers) != 0 || len(pods.Items) != 0 {
		t.Errorf("left: %v %v", left, pods)
	}
	for _, directory := range []string{"state/containers", "state/sandboxes"} {
		entries, err := os.ReadDir(n.path(directory))
		check(t, err)
		if len(entries) != 0 {
			t.Errorf("%s still holds %v", directory, entries)
		}
	}
	// A running container can be removed at once, too.
	container, _ = n.run("other", "sleep 1000")
	_, err = n.RemoveContainer(n.context(), &runtimeapi.RemoveContainerRequest{ContainerId: container})
	check(t, err)
	lines := n.record()
	if last := lines[len(lines)-1]; last["event"] != "exited" || last["containerId"] != container {
		t.Errorf("record %v", lines)
	}
}

func TestListsAreFiltered(t *testing.T) {
	n := startNode(t)
	id, sandbox := n.run("a", "sleep 1000")
	n.run("b", "sleep 1000")
	for name, filter := range map[string]*runtimeapi.ContainerFilter{
		"id":      {Id: id},
		"sandbox": {PodSandboxId: sandbox},
	} {
		response, err := n.ListContainers(n.context(), &runtimeapi.ListContainersRequest{Filter: filter})
		check(t, err)
		if len(response.Containers) != 1 || response.Containers[0].Id != id {
			t.Errorf("%s: %v", name, response)
		}
	}
	pods, err := n.ListPodSandbox(n.context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		LabelSelector: map[string]string{"pod": "a"},
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	check(t, err)
	if len(pods.Items) != 1 || pods.Items[0].Id != sandbox {
		t.Errorf("pods %v", pods)
	}
	stats, err := n.ListPodSandboxStats(n.context(), &runtimeapi.ListPodSandboxStatsRequest{})
	check(t, err)
	if len(stats.Stats) != 2 || len(stats.Stats[0].Linux.Containers) != 1 {
		t.Errorf("stats %v", stats)
	}
}

func TestEveryImageExists(t *testing.T) {
	n := startNode(t)
	status, err := n.images.ImageStatus(n.context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "any/where:1"}})
	check(t, err)
	pulled, err := n.images.PullImage(n.context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "any/where:1"}})
	check(t, err)
	byID, err := n.images.ImageStatus(n.context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: pulled.ImageRef}})
	check(t, err)
	if status.Image.Id != pulled.ImageRef || status.Image.Size == 0 || byID.Image.RepoTags[0] != "any/where:1" {
		t.Errorf("%v %v %v", status, pulled, byID)
	}
}

// A signal to a group of ours that is already gone must not be an error.
func TestSignalToADeadGroup(t *testing.T) {
	n := startNode(t)
	id, _ := n.run("short", "true")
	n.waitExited(id)
	if err := (&process{group: n.runtime.containers[id].PID}).signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}
