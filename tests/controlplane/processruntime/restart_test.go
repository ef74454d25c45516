package processruntime

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// serveApart runs the program as a process of its own.
func serveApart(n *node) *exec.Cmd {
	n.t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), serveVariable+"=process-runtime --listen=unix://"+n.path("cri.sock")+" --cdi-dir="+n.path("cdi")+
		" --state-dir="+n.path("state")+" --address-prefix=127.77.1 --record="+n.path("record")+" --uses="+n.path("uses"))
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(n.t, command.Start())
	n.t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	eventually(n.t, "the runtime serves", func() bool { return canDial(n.path("cri.sock")) })
	n.connect()
	return command
}

// The children of a container do not get the parent-death signal; the watchdog is for them.
const family = `sh -c 'trap "" TERM; sleep 1000 & sleep 1000' & echo up; sleep 1000`

func TestNothingOutlivesARuntimeThatIsKilled(t *testing.T) {
	n := &node{t: t, directory: newDirectory(t)}
	program := serveApart(n)
	id, sandbox := n.run("pod", family)
	n.waitLog("pod", "up")
	group := int(n.record()[0]["pid"].(float64))
	check(t, program.Process.Kill())
	program.Wait()
	eventually(t, "the group is dead", func() bool { return groupIsDead(group) })

	// The next one finds the container exited and says so in the record, and takes over.
	n.start()
	t.Cleanup(n.stop)
	if status := n.status(id); status.State != runtimeapi.ContainerState_CONTAINER_EXITED || status.ExitCode != 137 {
		t.Errorf("status %v", status)
	}
	lines := n.record()
	if len(lines) != 2 || lines[1]["event"] != "exited" || lines[1]["containerId"] != id || lines[1]["podName"] != "pod" {
		t.Errorf("record %v", lines)
	}
	response, err := n.PodSandboxStatus(n.context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	check(t, err)
	if response.Status.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox %v", response)
	}
	_, err = n.RemovePodSandbox(n.context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	check(t, err)
}

func TestARuntimeThatIsAskedToEndKillsAndRecords(t *testing.T) {
	n := &node{t: t, directory: newDirectory(t)}
	program := serveApart(n)
	n.run("pod", family)
	n.waitLog("pod", "up")
	check(t, program.Process.Signal(syscall.SIGTERM))
	check(t, program.Wait())
	lines := n.record()
	if len(lines) != 2 || lines[1]["event"] != "exited" || !groupIsDead(int(lines[0]["pid"].(float64))) {
		t.Errorf("record %v", lines)
	}
}

func TestTwoRuntimesKeepApart(t *testing.T) {
	n := startNode(t)
	if _, err := New(Options{CDIDirectory: "x", StateDirectory: n.path("state"), AddressPrefix: "127.77.1", Record: n.path("record")}); err == nil || !strings.Contains(err.Error(), "in use by another runtime") {
		t.Errorf("one state directory for two: %v", err)
	}
	if _, err := listenUnix(n.path("cri.sock")); err == nil || !strings.Contains(err.Error(), "another program serves") {
		t.Errorf("one socket for two: %v", err)
	}
	for _, prefix := range []string{"", "127.0.0", "10.1.2", "127.1", "127.1.2.3"} {
		if _, err := newAddressPool(prefix); err == nil {
			t.Errorf("the address prefix %q was taken", prefix)
		}
	}
}
