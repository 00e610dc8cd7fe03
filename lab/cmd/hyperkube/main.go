// Command hyperkube is every Kubernetes component of the lab, and a single-member etcd, in one static binary.
//
// The component is the first argument, or the name that the binary is run by. One binary instead of six: the nodes of a
// lab share one copy of its text in memory, and it links once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"github.com/tortie-net/tortie/lab/internal/etcd"
)

var components = map[string]func() *cobra.Command{
	"etcd":                    etcd.NewCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	// The kubelet installs its own signal handler, and a second one would panic ("close of closed channel").
	"kubelet": func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
}

func main() {
	name := filepath.Base(os.Args[0])
	if _, ok := components[name]; !ok && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = append([]string{name}, os.Args[2:]...)
	}
	build, ok := components[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "usage: hyperkube {%s} [flags]\n", strings.Join(names(), "|"))
		os.Exit(2)
	}
	os.Exit(cli.Run(build()))
}

func names() []string {
	all := make([]string, 0, len(components))
	for n := range components {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}
