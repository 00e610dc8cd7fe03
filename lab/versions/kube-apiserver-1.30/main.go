// Command kube-apiserver-1.30 is Kubernetes' API server of that release, for the tests of what the chart asks of API servers.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) }
