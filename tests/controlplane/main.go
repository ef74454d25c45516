// Command kubebin is the real Kubernetes control plane, node agent and client in one
// multi-call binary, so that tests and the demo run against what users run; with it comes
// process-runtime, the container runtime of the tests, whose containers are plain processes.
//
// The program is chosen by the base name of argv[0] or, failing that, by the first argument.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // version metrics
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"muster.dev/tests/controlplane/processruntime"
)

// programs are built inside closures: their constructors install flags and a
// signal context, and a second call in one process panics.
var programs = map[string]func(args []string){
	"etcd":                    etcdmain.Main,
	"kube-apiserver":          run(func() *cobra.Command { return apiserver.NewAPIServerCommand() }),
	"kube-controller-manager": run(func() *cobra.Command { return controllermanager.NewControllerManagerCommand() }),
	"kube-proxy":              run(func() *cobra.Command { return proxy.NewProxyCommand() }),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 run(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 run(func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() }),
	"process-runtime":         processruntime.Main,
}

func run(build func() *cobra.Command) func([]string) {
	return func(args []string) {
		os.Args = args
		os.Exit(cli.Run(build()))
	}
}

func main() {
	name := filepath.Base(os.Args[0])
	args := os.Args
	program, found := programs[name]
	if !found && len(os.Args) > 1 {
		name, args = os.Args[1], os.Args[1:]
		program, found = programs[name]
	}
	if !found {
		fmt.Fprintf(os.Stderr, "kubebin: %q is none of its programs, which are: %s\n", name, strings.Join(slices.Sorted(maps.Keys(programs)), ", "))
		os.Exit(2)
	}
	program(args)
}
