package install

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// KubeconfigName is the file, in the directory of CNI configuration, that the plugins reach the API server by.
const KubeconfigName = "calico-kubeconfig"

// The shape of a kubeconfig, as far as it is needed. The names local, calico and calico-context are Calico's.
type kubeconfig struct {
	APIVersion     string         `yaml:"apiVersion"`
	Kind           string         `yaml:"kind"`
	Clusters       []namedCluster `yaml:"clusters"`
	Users          []namedUser    `yaml:"users"`
	Contexts       []namedContext `yaml:"contexts"`
	CurrentContext string         `yaml:"current-context"`
}

type namedCluster struct {
	Name    string  `yaml:"name"`
	Cluster cluster `yaml:"cluster"`
}

type cluster struct {
	Server string `yaml:"server"`
	CAData string `yaml:"certificate-authority-data"`
}

type namedUser struct {
	Name string `yaml:"name"`
	User user   `yaml:"user"`
}

type user struct {
	Token string `yaml:"token"`
}

type namedContext struct {
	Name    string      `yaml:"name"`
	Context contextRefs `yaml:"context"`
}

type contextRefs struct {
	Cluster string `yaml:"cluster"`
	User    string `yaml:"user"`
}

// renderKubeconfig returns a kubeconfig for the API server at host:port. The CA is inline: the plugins run on the host, where
// this pod's files do not exist. It is read anew each time, since a cluster's CA can be rotated under a running pod.
func renderKubeconfig(server, accountDir, token string) ([]byte, error) {
	ca, err := os.ReadFile(filepath.Join(accountDir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's CA: %w (the pod needs automountServiceAccountToken)", err)
	}
	text, err := yaml.Marshal(kubeconfig{
		APIVersion: "v1",
		Kind:       "Config",
		Clusters: []namedCluster{{Name: "local", Cluster: cluster{
			Server: "https://" + server,
			CAData: base64.StdEncoding.EncodeToString(ca),
		}}},
		Users:          []namedUser{{Name: "calico", User: user{Token: token}}},
		Contexts:       []namedContext{{Name: "calico-context", Context: contextRefs{Cluster: "local", User: "calico"}}},
		CurrentContext: "calico-context",
	})
	if err != nil {
		return nil, fmt.Errorf("encoding kubeconfig: %w", err)
	}
	return text, nil
}
