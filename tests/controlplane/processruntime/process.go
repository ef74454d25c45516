package processruntime

import (
	"errors"
	"log"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is the one a container runs: the leader of a session and process group of its own.
type process struct {
	command *exec.Cmd
	group   int
}

// spawner starts processes that the kernel kills when the runtime dies. The parent-death signal is
// sent when the *thread* that forked ends, and Go's threads come and go, so that all forks are done by
// one thread that stays.
type spawner struct {
	requests chan spawnRequest
}

type spawnRequest struct {
	command *exec.Cmd
	done    chan error
}

func newSpawner() (*spawner, error) {
	// Orphans of a container come to us and not to the init of the machine, so that their group can be
	// seen to be empty: a process that nobody has waited for still counts.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	s := &spawner{requests: make(chan spawnRequest)}
	go func() {
		runtime.LockOSThread() // and never unlocked
		for request := range s.requests {
			request.done <- request.command.Start()
		}
	}()
	return s, nil
}

// start runs a program. Its standard input is empty.
func (s *spawner) start(path string, arguments, env []string, directory string, stdout, stderr *os.File) (*process, error) {
	command := &exec.Cmd{
		Path: path, Args: arguments, Env: env, Dir: directory, Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	request := spawnRequest{command: command, done: make(chan error, 1)}
	s.requests <- request
	if err := <-request.done; err != nil {
		return nil, err
	}
	return &process{command: command, group: command.Process.Pid}, nil
}

// signal reaches every process of the group; none left is no error.
func (p *process) signal(signal syscall.Signal) error {
	err := syscall.Kill(-p.group, signal)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// wait returns the exit code of the leader, by the shell's convention 128 plus the signal that ended
// it, once the whole group is dead. As in a container, what the leader leaves behind is killed.
func (p *process) wait() int32 {
	_ = p.command.Wait() // an error here is an exit code other than 0, read below
	endGroup(p.group)
	status, isUnix := p.command.ProcessState.Sys().(syscall.WaitStatus)
	if isUnix && status.Signaled() {
		return 128 + int32(status.Signal())
	}
	return int32(p.command.ProcessState.ExitCode())
}

// endGroup kills what is left of a group whose leader is dead, and returns once nothing is.
func endGroup(group int) {
	start, warned := time.Now(), false
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := syscall.Kill(-group, syscall.SIGKILL)
		for {
			// Only orphans of this group: waiting for any child would take others' from their waiters.
			reaped, waitError := syscall.Wait4(-group, nil, syscall.WNOHANG, nil)
			if waitError != nil || reaped <= 0 {
				break
			}
		}
		if errors.Is(err, syscall.ESRCH) {
			return
		}
		if time.Since(start) > 5*time.Second && !warned {
			log.Printf("process group %d is not dead 5 s after SIGKILL; still waiting (%v)", group, err)
			warned = true
		}
		time.Sleep(pause)
	}
}
