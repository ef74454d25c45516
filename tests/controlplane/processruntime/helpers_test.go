package processruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// serveVariable makes the test binary the program itself, for tests that kill it.
const serveVariable = "PROCESS_RUNTIME_TEST_ARGUMENTS"

func TestMain(m *testing.M) {
	if arguments := os.Getenv(serveVariable); arguments != "" {
		Main(strings.Fields(arguments))
		return
	}
	os.Exit(m.Run())
}

// node is a runtime with its directories, and a client that speaks to it over a unix socket.
type node struct {
	runtimeapi.RuntimeServiceClient
	images    runtimeapi.ImageServiceClient
	t         *testing.T
	directory string
	runtime   *Runtime
	server    *grpc.Server
}

// newDirectory is short, which t.TempDir is not, because a socket's path may have 107 bytes only.
func newDirectory(t *testing.T) string {
	directory, err := os.MkdirTemp("", "pr")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(directory) })
	check(t, os.Mkdir(filepath.Join(directory, "cdi"), 0o755))
	return directory
}

func startNode(t *testing.T) *node {
	n := &node{t: t, directory: newDirectory(t)}
	n.start()
	t.Cleanup(n.stop)
	return n
}

func (n *node) start() {
	n.t.Helper()
	var err error
	n.runtime, err = New(Options{
		CDIDirectory: n.path("cdi"), StateDirectory: n.path("state"), AddressPrefix: "127.77.1", Record: n.path("record"), Uses: n.path("uses"), Node: "node-a",
	})
	check(n.t, err)
	listener, err := listenUnix(n.path("cri.sock"))
	check(n.t, err)
	n.server = grpc.NewServer()
	n.runtime.Register(n.server)
	go n.server.Serve(listener)
	n.connect()
}

func (n *node) connect() {
	connection, err := grpc.NewClient("unix://"+n.path("cri.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(n.t, err)
	n.t.Cleanup(func() { connection.Close() })
	n.RuntimeServiceClient, n.images = runtimeapi.NewRuntimeServiceClient(connection), runtimeapi.NewImageServiceClient(connection)
}

func (n *node) stop() {
	if n.runtime != nil {
		n.server.Stop()
		check(n.t, n.runtime.Close())
		n.runtime = nil
	}
}

func (n *node) path(name string) string { return filepath.Join(n.directory, name) }

func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	n.t.Cleanup(cancel)
	return ctx
}

func (n *node) sandbox(pod string) string {
	n.t.Helper()
	response, err := n.RunPodSandbox(n.context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod, Namespace: "team", Uid: "uid-" + pod},
		LogDirectory: n.path("logs/" + pod), Labels: map[string]string{"pod": pod},
	}})
	check(n.t, err)
	return response.PodSandboxId
}

func (n *node) create(sandbox string, config *runtimeapi.ContainerConfig) (string, error) {
	if config.Metadata == nil {
		config.Metadata = &runtimeapi.ContainerMetadata{Name: "main"}
	}
	config.LogPath = "main.log"
	response, err := n.CreateContainer(n.context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: config})
	return response.GetContainerId(), err
}

func (n *node) startContainer(id string) error {
	_, err := n.StartContainer(n.context(), &runtimeapi.StartContainerRequest{ContainerId: id})
	return err
}

// run starts a shell script in a pod of its own.
func (n *node) run(pod, script string) (container, sandbox string) {
	n.t.Helper()
	sandbox = n.sandbox(pod)
	container, err := n.create(sandbox, shell(script))
	check(n.t, err)
	check(n.t, n.startContainer(container))
	return container, sandbox
}

func shell(script string) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{Command: []string{"/bin/sh", "-c"}, Args: []string{script}, Image: &runtimeapi.ImageSpec{Image: "any"}}
}

func (n *node) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	response, err := n.ContainerStatus(n.context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	check(n.t, err)
	return response.Status
}

func (n *node) waitExited(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	var status *runtimeapi.ContainerStatus
	eventually(n.t, "the container exits", func() bool {
		status = n.status(id)
		return status.State == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return status
}

func (n *node) log(pod string) string {
	content, err := os.ReadFile(n.path("logs/" + pod + "/main.log"))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	check(n.t, err)
	return string(content)
}

// waitLog waits for a word that the container writes.
func (n *node) waitLog(pod, word string) {
	n.t.Helper()
	eventually(n.t, "the log of "+pod+" has "+word, func() bool { return strings.Contains(n.log(pod), word) })
}

// record decodes strictly, so that the test knows every field that is written.
func (n *node) record() []map[string]any {
	n.t.Helper()
	content, err := os.ReadFile(n.path("record"))
	check(n.t, err)
	var lines []map[string]any
	for _, line := range bytes.Split(bytes.TrimSuffix(content, []byte("\n")), []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var decoded map[string]any
		check(n.t, json.Unmarshal(line, &decoded))
		lines = append(lines, decoded)
	}
	return lines
}

func (n *node) faults(content string) {
	n.t.Helper()
	path := n.path("state/faults.json")
	if content == "" {
		check(n.t, os.Remove(path))
		return
	}
	check(n.t, os.WriteFile(path+".new", []byte(content), 0o600))
	check(n.t, os.Rename(path+".new", path))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if done() {
			return
		}
	}
	t.Fatalf("not within 10 s: %s", what)
}

// groupIsDead first takes what the kernel hands to the test: runtimes in this process make it the new
// parent of orphans, and one that is not waited for counts as alive.
func groupIsDead(group int) bool {
	for {
		if reaped, err := syscall.Wait4(-group, nil, syscall.WNOHANG, nil); err != nil || reaped <= 0 {
			return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
		}
	}
}

func canDial(path string) bool {
	connection, err := net.Dial("unix", path)
	if err == nil {
		connection.Close()
	}
	return err == nil
}
