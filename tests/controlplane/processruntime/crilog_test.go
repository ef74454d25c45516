package processruntime

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var logLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([PF]) (.*)$`)

func TestLogLinesAreSplitAndTagged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "main.log")
	log, err := openContainerLog(path)
	check(t, err)
	long := strings.Repeat("x", longestLogLine+5)
	log.follow("stdout", strings.NewReader("short\n\n"+long+"\nno newline"))
	log.close()
	content, err := os.ReadFile(path)
	check(t, err)
	var got []string
	for _, line := range strings.Split(strings.TrimSuffix(string(content), "\n"), "\n") {
		parts := logLine.FindStringSubmatch(line)
		if parts == nil {
			t.Fatalf("not a CRI log line: %.80q", line)
		}
		got = append(got, parts[2]+parts[3])
	}
	want := []string{"Fshort", "F", "P" + long[:longestLogLine], "Fxxxxx", "Fno newline"}
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("line %d: %.40q, want %.40q", i, got[i], want[i])
		}
	}
}

func TestLogOfAContainerIsWholeWhenItIsExitedAndCanBeRotated(t *testing.T) {
	n := startNode(t)
	id, _ := n.run("talker", `echo out; echo err >&2; while [ ! -e `+n.path("go")+` ]; do sleep 0.02; done; echo after`)
	n.waitLog("talker", "stderr F err\n")
	check(t, os.Rename(n.path("logs/talker/main.log"), n.path("logs/talker/old.log")))
	_, err := n.ReopenContainerLog(n.context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	check(t, err)
	check(t, os.WriteFile(n.path("go"), nil, 0o644))
	n.waitExited(id)
	if log := n.log("talker"); !strings.HasSuffix(log, " stdout F after\n") || strings.Contains(log, " F out\n") {
		t.Errorf("the new log is %q", log)
	}
	if _, err := n.ReopenContainerLog(n.context(), &runtimeapi.ReopenContainerLogRequest{ContainerId: id}); err == nil {
		t.Error("the log of a container that has exited was reopened")
	}
}
