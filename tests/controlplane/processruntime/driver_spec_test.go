package processruntime

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// The specs that the driver writes (device/tests/golden) are read by the library that runtimes read them with: it
// checks names and the version, and each part arrives in the container.
func TestWhatTheDriverWritesIsInjectedWhole(t *testing.T) {
	const device = "gpu.muster.dev/claim=0d9a1f4e-1111-2222-3333-444455556666-gpu-3"
	for golden, hook := range map[string]string{
		"claim-own-hooks.json":     "muster-cdi-hook-0.1.0-0123456789abcdef",
		"claim-toolkit-hooks.json": "nvidia-cdi-hook",
	} {
		injected := injectGolden(t, golden, device)
		if injected.Environment["NVIDIA_VISIBLE_DEVICES"] != "void" {
			t.Errorf("%s: environment is %v", golden, injected.Environment)
		}
		nodes := []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia3"}
		slices.Sort(nodes)
		slices.Sort(injected.DeviceNodes)
		if !slices.Equal(injected.DeviceNodes, nodes) {
			t.Errorf("%s: device nodes are %v, want %v", golden, injected.DeviceNodes, nodes)
		}
		cuda := injectedMount{
			HostPath:      "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
			ContainerPath: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06",
		}
		if !slices.Contains(injected.Mounts, cuda) {
			t.Errorf("%s: mounts are %v", golden, injected.Mounts)
		}
		for index, command := range []string{"create-symlinks --link ", "update-ldcache --"} {
			if want := "createContainer: " + hook + " " + command; len(injected.Hooks) != 2 || !strings.HasPrefix(injected.Hooks[index], want) {
				t.Errorf("%s: hooks are %v, want %q", golden, injected.Hooks, want)
			}
		}
	}
}

// A container that names the whole claim gets the nodes of all its devices, each once, and no others.
func TestEachKindOfClaimIsInjectedWhole(t *testing.T) {
	const claim = "gpu.muster.dev/claim=0d9a1f4e-1111-2222-3333-444455556666-"
	common := []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
	for golden, expected := range map[string]struct{ devices, nodes []string }{
		"claim-several.json": {
			devices: []string{"gpu-0", "gpu-3", "gpu-7"},
			nodes:   []string{"/dev/nvidia-modeset", "/dev/nvidia0", "/dev/nvidia3", "/dev/nvidia7"},
		},
		"claim-slices.json": {
			devices: []string{"gpu-3-mig-1-0", "gpu-3-mig-9-2"},
			nodes: []string{
				"/dev/nvidia3",
				"/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13",
				"/dev/nvidia-caps/nvidia-cap84", "/dev/nvidia-caps/nvidia-cap87",
			},
		},
		"claim-admin.json": {
			devices: []string{"gpu-3", "gpu-3-mig-1-0"},
			nodes: []string{
				"/dev/nvidia-modeset", "/dev/nvidia3",
				"/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13",
			},
		},
	} {
		var names []string
		for _, device := range expected.devices {
			names = append(names, claim+device)
		}
		injected := injectGolden(t, golden, names...)
		nodes := append(slices.Clone(common), expected.nodes...)
		slices.Sort(nodes)
		slices.Sort(injected.DeviceNodes)
		if !slices.Equal(injected.DeviceNodes, nodes) {
			t.Errorf("%s: device nodes are %v, want %v", golden, injected.DeviceNodes, nodes)
		}
		if len(injected.Hooks) != 2 || len(injected.Mounts) == 0 {
			t.Errorf("%s: hooks are %v, mounts are %v", golden, injected.Hooks, injected.Mounts)
		}
	}
}

func injectGolden(t *testing.T, golden string, names ...string) injection {
	t.Helper()
	spec, err := os.ReadFile("../../../device/tests/golden/" + golden)
	check(t, err)
	directory := t.TempDir()
	check(t, os.WriteFile(directory+"/gpu.muster.dev-claim_x.json", spec, 0o644))
	injected, err := injectDevices(directory, devices(names...))
	check(t, err)
	return injected
}
