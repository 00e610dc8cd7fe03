// Command kube-apiserver-1.30 is the API server of Kubernetes 1.30, for tests of the chart's requirements.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) }
