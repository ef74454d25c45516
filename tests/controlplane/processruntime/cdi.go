package processruntime

import (
	"fmt"
	"log"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// injection is what CDI devices did to a container. The environment is applied; device nodes, mounts
// and hooks need a container of the kernel's kind and are recorded only.
type injection struct {
	Devices     []string          `json:"devices"`
	Environment map[string]string `json:"environment"`
	DeviceNodes []string          `json:"deviceNodes"`
	Mounts      []injectedMount   `json:"mounts,omitempty"`
	Hooks       []string          `json:"hooks,omitempty"`
}

type injectedMount struct {
	HostPath      string `json:"hostPath"`
	ContainerPath string `json:"containerPath"`
}

// injectDevices resolves the container's CDI devices against the node's directory and no other. The
// directory is read anew each time, as a runtime does that has seen a change in it; a broken file in
// it is logged and fails only what it defines, as in containerd and CRI-O.
func injectDevices(directory string, devices []*runtimeapi.CDIDevice) (injection, error) {
	result := injection{Devices: []string{}, Environment: map[string]string{}, DeviceNodes: []string{}}
	if len(devices) == 0 {
		return result, nil
	}
	for _, device := range devices {
		result.Devices = append(result.Devices, device.GetName())
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(directory), cdi.WithAutoRefresh(false))
	if err != nil {
		return result, fmt.Errorf("CDI directory %s: %w", directory, err)
	}
	if err := cache.Refresh(); err != nil {
		log.Printf("CDI directory %s: %v", directory, err)
	}
	// The environment is in Process.Env; the library writes each variable once, the last one wins.
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if _, err := cache.InjectDevices(spec, result.Devices...); err != nil {
		return result, fmt.Errorf("CDI device injection failed: %w (CDI directory %s)", err, directory)
	}
	for _, variable := range spec.Process.Env {
		name, value, _ := strings.Cut(variable, "=")
		result.Environment[name] = value
	}
	for _, node := range spec.Linux.Devices {
		result.DeviceNodes = append(result.DeviceNodes, node.Path)
	}
	for _, mount := range spec.Mounts {
		result.Mounts = append(result.Mounts, injectedMount{HostPath: mount.Source, ContainerPath: mount.Destination})
	}
	result.Hooks = hookCommands(spec.Hooks)
	return result, nil
}

// hookCommands lists the hooks as "when: command line".
func hookCommands(hooks *oci.Hooks) []string {
	if hooks == nil {
		return nil
	}
	var commands []string
	add := func(when string, list []oci.Hook) {
		for _, hook := range list {
			command := hook.Args
			if len(command) == 0 {
				command = []string{hook.Path}
			}
			commands = append(commands, when+": "+strings.Join(command, " "))
		}
	}
	add("prestart", hooks.Prestart) //nolint:staticcheck // deprecated, and still what some specs name
	add("createRuntime", hooks.CreateRuntime)
	add("createContainer", hooks.CreateContainer)
	add("startContainer", hooks.StartContainer)
	add("poststart", hooks.Poststart)
	add("poststop", hooks.Poststop)
	return commands
}
