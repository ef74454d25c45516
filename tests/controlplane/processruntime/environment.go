package processruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// defaultPath is what a container without a PATH gets, as from an image.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is that of the container and nothing of the runtime's: the pod's variables, then what
// CDI injected (which wins, as in production), a PATH if there is none, and the mounts.
//
// A process has no mount namespace, so a volume is not at its path in the container. Each mount whose
// two paths differ is told by a variable, numbered from 0:
//
//	MUSTER_MOUNT_0=/var/run/secrets/kubernetes.io/serviceaccount=/…/the/same/on/the/host
//
// Nothing else is rewritten: arguments and variables that name the path in the container still do.
func environment(config *runtimeapi.ContainerConfig, injected map[string]string) []string {
	values := map[string]string{}
	var order []string
	set := func(name, value string) {
		if _, known := values[name]; !known {
			order = append(order, name)
		}
		values[name] = value
	}
	for _, variable := range config.GetEnvs() {
		set(variable.GetKey(), string(variable.GetValue()))
	}
	for name, value := range injected {
		set(name, value)
	}
	if _, known := values["PATH"]; !known {
		set("PATH", defaultPath)
	}
	number := 0
	for _, mount := range config.GetMounts() {
		if mount.GetContainerPath() != mount.GetHostPath() && mount.GetHostPath() != "" {
			set(fmt.Sprintf("MUSTER_MOUNT_%d", number), mount.GetContainerPath()+"="+mount.GetHostPath())
			number++
		}
	}
	result := make([]string, 0, len(order))
	for _, name := range order {
		result = append(result, name+"="+values[name])
	}
	return result
}

// commandLine is command and args of the pod. Images are not looked at, so that a pod that relies on
// the entry point of its image cannot run here.
func commandLine(config *runtimeapi.ContainerConfig) ([]string, error) {
	if len(config.GetCommand()) == 0 {
		return nil, fmt.Errorf("container %q names no command: the process runtime has no images and so no entry points; set spec.containers[].command to a program of the host", config.GetMetadata().GetName())
	}
	return append(append([]string{}, config.GetCommand()...), config.GetArgs()...), nil
}

// findProgram resolves a program as execvp in the container would: by the container's PATH and
// working directory, not by the runtime's.
func findProgram(name string, env []string, directory string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(directory, path)
		}
		return path, executable(path)
	}
	for _, variable := range env {
		list, isPath := strings.CutPrefix(variable, "PATH=")
		if !isPath {
			continue
		}
		for _, folder := range filepath.SplitList(list) {
			if !filepath.IsAbs(folder) {
				folder = filepath.Join(directory, folder)
			}
			if path := filepath.Join(folder, name); executable(path) == nil {
				return path, nil
			}
		}
		return "", fmt.Errorf("exec: %q: executable file not found in the container's PATH (%s)", name, list)
	}
	return "", fmt.Errorf("exec: %q: the container has no PATH", name)
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return &os.PathError{Op: "exec", Path: path, Err: errors.New("not an executable file")}
	}
	return nil
}
