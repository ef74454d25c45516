package processruntime

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// watchdogScript kills the process groups it was told of when its standard input ends.
const watchdogScript = `trap '' HUP INT TERM
while read -r verb group; do
    case $verb in
    watch) groups="$groups $group" ;;
    forget)
        rest=
        for known in $groups; do
            [ "$known" = "$group" ] || rest="$rest $known"
        done
        groups=$rest
        ;;
    esac
done
for group in $groups; do
    kill -s KILL -- "-$group" 2>/dev/null
done`

// watchdog makes sure that nothing outlives the runtime, even one that is killed with SIGKILL. The
// parent-death signal reaches only the leaders of the containers, not their children; for those a
// small shell waits at the other end of a pipe, which the kernel closes when the runtime ends.
type watchdog struct {
	pipe  io.WriteCloser
	shell *exec.Cmd
}

func startWatchdog() (*watchdog, error) {
	shell := exec.Command("/bin/sh", "-c", watchdogScript)
	shell.Env = []string{"PATH=" + defaultPath}
	shell.Dir = "/"
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal to the runtime's group must spare it
	pipe, err := shell.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := shell.Start(); err != nil {
		return nil, fmt.Errorf("the watchdog, which needs /bin/sh: %w", err)
	}
	return &watchdog{pipe: pipe, shell: shell}, nil
}

func (w *watchdog) watch(group int) error {
	if _, err := fmt.Fprintf(w.pipe, "watch %d\n", group); err != nil {
		return fmt.Errorf("the watchdog is gone, and no container is started without it: %w", err)
	}
	return nil
}

func (w *watchdog) forget(group int) {
	// If the watchdog is gone there is nothing to forget.
	_, _ = fmt.Fprintf(w.pipe, "forget %d\n", group)
}

// stop ends the watchdog, which kills what it still watches.
func (w *watchdog) stop() {
	w.pipe.Close()
	_ = w.shell.Wait()
}
