package processruntime

import (
	"os"
	"reflect"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const gpuSpec = `{
  "cdiVersion": "0.8.0",
  "kind": "gpu.muster.dev/claim",
  "containerEdits": {"env": ["SHARED=1"]},
  "devices": [
    {"name": "uid-gpu-0", "containerEdits": {
      "env": ["GPU_0=first", "OVERRIDDEN=cdi"],
      "deviceNodes": [{"path": "/dev/null"}, {"path": "/dev/muster0", "hostPath": "/nowhere", "type": "c", "major": 195, "minor": 0}],
      "mounts": [{"hostPath": "/opt/library", "containerPath": "/usr/lib/library"}],
      "hooks": [{"hookName": "createContainer", "path": "/sbin/ldconfig", "args": ["ldconfig", "-r"]}]
    }},
    {"name": "no-node", "containerEdits": {"deviceNodes": [{"path": "/dev/none-of-ours"}]}}
  ]
}`

func devices(names ...string) []*runtimeapi.CDIDevice {
	var list []*runtimeapi.CDIDevice
	for _, name := range names {
		list = append(list, &runtimeapi.CDIDevice{Name: name})
	}
	return list
}

func TestInjectedDevicesReachTheEnvironmentAndTheRecord(t *testing.T) {
	n := startNode(t)
	check(t, os.WriteFile(n.path("cdi/claim.json"), []byte(gpuSpec), 0o644))
	config := shell(`echo "$SHARED $GPU_0 $OVERRIDDEN $OWN"`)
	config.Envs = []*runtimeapi.KeyValue{{Key: "OVERRIDDEN", Value: []byte("pod")}, {Key: "OWN", Value: []byte("pod")}}
	config.CDIDevices = devices("gpu.muster.dev/claim=uid-gpu-0")
	id, err := n.create(n.sandbox("rank-0"), config)
	check(t, err)
	check(t, n.startContainer(id))
	n.waitExited(id)
	if !strings.Contains(n.log("rank-0"), "1 first cdi pod\n") {
		t.Errorf("the container's environment is not what CDI and the pod say: %s", n.log("rank-0"))
	}
	started := n.record()[0]
	for field, want := range map[string]any{
		"cdiDevices":  []any{"gpu.muster.dev/claim=uid-gpu-0"},
		"env":         map[string]any{"SHARED": "1", "GPU_0": "first", "OVERRIDDEN": "cdi"},
		"deviceNodes": []any{"/dev/null", "/dev/muster0"},
		"mounts":      []any{map[string]any{"hostPath": "/opt/library", "containerPath": "/usr/lib/library"}},
		"hooks":       []any{"createContainer: ldconfig -r"},
	} {
		if !reflect.DeepEqual(started[field], want) {
			t.Errorf("record: %s is %v, want %v", field, started[field], want)
		}
	}
}

func TestWhatDoesNotResolveFailsTheContainer(t *testing.T) {
	n := startNode(t)
	check(t, os.WriteFile(n.path("cdi/claim.json"), []byte(gpuSpec), 0o644))
	sandbox := n.sandbox("rank-0")
	for device, reason := range map[string]string{
		"gpu.muster.dev/claim=uid-gpu-7": "unresolvable CDI devices gpu.muster.dev/claim=uid-gpu-7",
		"gpu.muster.dev/claim=no-node":   `failed to stat CDI host device "/dev/none-of-ours"`,
	} {
		config := shell("true")
		config.CDIDevices = devices("gpu.muster.dev/claim=uid-gpu-0", device)
		if _, err := n.create(sandbox, config); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want an error with %q", device, err, reason)
		}
	}
	// A spec that appears is seen by the next container, without a restart.
	config := shell("true")
	config.CDIDevices = devices("late.dev/gpu=0")
	if _, err := n.create(sandbox, config); err == nil {
		t.Error("a device without a spec was injected")
	}
	check(t, os.WriteFile(n.path("cdi/late.json"), []byte(`{"cdiVersion": "0.8.0", "kind": "late.dev/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=b"]}}]}`), 0o644))
	if _, err := n.create(sandbox, config); err != nil {
		t.Error(err)
	}
	if len(n.record()) != 0 {
		t.Errorf("containers that never ran are in the record: %v", n.record())
	}
}
