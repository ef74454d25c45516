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
		spec, err := os.ReadFile("../../../device/tests/golden/" + golden)
		check(t, err)
		directory := t.TempDir()
		check(t, os.WriteFile(directory+"/gpu.muster.dev-claim_x.json", spec, 0o644))
		injected, err := injectDevices(directory, devices(device))
		check(t, err)
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
