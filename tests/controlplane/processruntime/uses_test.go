package processruntime

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func usesOf(n *node) []use {
	paths, err := filepath.Glob(n.path("uses/*.json"))
	check(n.t, err)
	var found []use
	for _, path := range paths {
		content, err := os.ReadFile(path)
		check(n.t, err)
		var one use
		check(n.t, json.Unmarshal(content, &one))
		found = append(found, one)
	}
	return found
}

// withDevice starts a container that has the device nodes of gpuSpec.
func withDevice(n *node, pod, script string) string {
	n.t.Helper()
	check(n.t, os.WriteFile(n.path("cdi/claim.json"), []byte(gpuSpec), 0o644))
	config := shell(script)
	config.CDIDevices = devices("gpu.muster.dev/claim=uid-gpu-0")
	id, err := n.create(n.sandbox(pod), config)
	check(n.t, err)
	check(n.t, n.startContainer(id))
	return id
}

func TestTheDeviceNodesOfAContainerStandWhileAProcessOfItLives(t *testing.T) {
	n := startNode(t)
	id := withDevice(n, "rank-0", "sleep 1000 & sleep 1000")
	n.run("without", "sleep 1000")
	pid := int(n.record()[0]["pid"].(float64))
	want := []use{{Group: pid, DeviceNodes: []string{"/dev/null", "/dev/muster0"}}}
	if found := usesOf(n); !reflect.DeepEqual(found, want) {
		t.Errorf("uses %v, want %v", found, want)
	}
	_, err := n.StopContainer(n.context(), &runtimeapi.StopContainerRequest{ContainerId: id})
	check(t, err)
	if found := usesOf(n); len(found) != 0 {
		t.Errorf("uses of a container that was stopped: %v", found)
	}
}

func TestNoUseOutlivesARuntimeThatIsKilled(t *testing.T) {
	n := &node{t: t, directory: newDirectory(t)}
	program := serveApart(n)
	withDevice(n, "rank-0", family)
	n.waitLog("rank-0", "up")
	if len(usesOf(n)) != 1 {
		t.Errorf("uses %v", usesOf(n))
	}
	check(t, program.Process.Signal(syscall.SIGKILL))
	program.Wait()
	// Whoever reads the file sees that the group is dead; the next runtime takes it away.
	n.start()
	t.Cleanup(n.stop)
	if found := usesOf(n); len(found) != 0 {
		t.Errorf("uses %v", found)
	}
}
