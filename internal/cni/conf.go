package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// Where Calico keeps its files on a host.
const (
	defaultNodenameFile = "/var/lib/calico/nodename"
	defaultMTUFile      = "/var/lib/calico/mtu"
	defaultLockFile     = "/var/run/calico/ipam.lock"
)

// netConf is a plugin's section of the network configuration as it is written. Unknown keys are ignored, as by Calico.
type netConf struct {
	types.NetConf
	DatastoreType        string         `json:"datastore_type"`
	Nodename             string         `json:"nodename"`
	NodenameFile         string         `json:"nodename_file"`
	NodenameFileOptional bool           `json:"nodename_file_optional"`
	MTU                  int            `json:"mtu"`
	NumQueues            int            `json:"num_queues"`
	LogLevel             string         `json:"log_level"`
	LogFilePath          string         `json:"log_file_path"`
	LogFileMaxSize       int            `json:"log_file_max_size"`  // MB
	LogFileMaxAge        int            `json:"log_file_max_age"`   // days
	LogFileMaxCount      int            `json:"log_file_max_count"` // of rotated files
	IPAM                 ipamConf       `json:"ipam"`
	IPAMLockFile         string         `json:"ipam_lock_file"`
	Policy               policyConf     `json:"policy"`
	Kubernetes           kubernetesConf `json:"kubernetes"`
	ContainerSettings    containerConf  `json:"container_settings"`
}

type ipamConf struct {
	Type string `json:"type"`
	// Strings, as in Calico: only "false" and only "true" change the default.
	AssignIPv4 string   `json:"assign_ipv4"`
	AssignIPv6 string   `json:"assign_ipv6"`
	IPv4Pools  []string `json:"ipv4_pools"`
	IPv6Pools  []string `json:"ipv6_pools"`
}

type policyConf struct {
	Type string `json:"type"`
}

type kubernetesConf struct {
	Kubeconfig string `json:"kubeconfig"`
}

type containerConf struct {
	AllowIPForwarding bool `json:"allow_ip_forwarding"`
}

// request is one call of a plugin: the configuration and the arguments, checked.
type request struct {
	conf        netConf
	stdin       []byte
	containerID string
	netns       string
	ifName      string
	path        string // CNI_PATH
	namespace   string // of the pod
	pod         string
	node        string
	mtu         int // 0 leaves the kernel's default
}

// podArgs is what the kubelet's runtime passes in CNI_ARGS.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString
	K8S_POD_NAME      types.UnmarshallableString
}

var (
	networkName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)
	// objectName is what Kubernetes accepts as the name of a pod. Nothing else may become part of a URL.
	objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)
)

// parseConf reads the network configuration. Errors carry CNI's codes for malformed and for invalid configuration.
func parseConf(stdin []byte) (netConf, error) {
	var c netConf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, failure(types.ErrDecodingFailure, fmt.Errorf("network configuration: %w", err))
	}
	return c, failure(types.ErrInvalidNetworkConfig, c.validate())
}

func (c *netConf) validate() error {
	switch {
	case !networkName.MatchString(c.Name):
		return fmt.Errorf("network configuration: name %q: use letters, digits, '_', '.' and '-'", c.Name)
	case c.DatastoreType != "" && c.DatastoreType != "kubernetes":
		return fmt.Errorf("network configuration: datastore_type %q: only kubernetes is supported", c.DatastoreType)
	case c.Policy.Type != "k8s":
		return fmt.Errorf("network configuration: policy.type %q: only k8s is supported", c.Policy.Type)
	case c.Kubernetes.Kubeconfig == "":
		return errors.New("network configuration: kubernetes.kubeconfig is empty: name the file that the install container writes")
	case c.IPAM.Type == "":
		return errors.New("network configuration: ipam.type is empty: use calico-ipam")
	case c.MTU < 0 || c.MTU > 65535:
		return fmt.Errorf("network configuration: mtu %d: use 0 for automatic, or a size in bytes", c.MTU)
	case c.LogFileMaxSize < 0 || c.LogFileMaxAge < 0 || c.LogFileMaxCount < 0:
		return fmt.Errorf("network configuration: log_file_max_size %d, log_file_max_age %d, log_file_max_count %d: use 0 for the default, or more",
			c.LogFileMaxSize, c.LogFileMaxAge, c.LogFileMaxCount)
	case c.NumQueues < 0:
		return fmt.Errorf("network configuration: num_queues %d: use 1 or more", c.NumQueues)
	}
	return nil
}

func (c *netConf) wantsV4() bool { return c.IPAM.AssignIPv4 != "false" }
func (c *netConf) wantsV6() bool { return c.IPAM.AssignIPv6 == "true" }

// parseRequest checks everything that a verb needs before it touches anything.
func parseRequest(args *skel.CmdArgs) (*request, error) {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return nil, err
	}
	pod, err := parseArgs(args.Args)
	if err != nil {
		return nil, failure(types.ErrInvalidEnvironmentVariables, fmt.Errorf("CNI_ARGS: %w", err))
	}
	r := &request{
		conf:        conf,
		stdin:       args.StdinData,
		containerID: args.ContainerID,
		netns:       args.Netns,
		ifName:      args.IfName,
		path:        args.Path,
		namespace:   string(pod.K8S_POD_NAMESPACE),
		pod:         string(pod.K8S_POD_NAME),
	}
	if r.node, err = nodeName(&conf); err != nil {
		return nil, err
	}
	return r, nil
}

// parseArgs reads CNI_ARGS. What is there for other plugins is none of our business.
func parseArgs(text string) (podArgs, error) {
	var args podArgs
	if err := types.LoadArgs(strings.TrimSuffix("IgnoreUnknown=1;"+text, ";"), &args); err != nil {
		return args, err
	}
	for key, value := range map[string]types.UnmarshallableString{"K8S_POD_NAMESPACE": args.K8S_POD_NAMESPACE, "K8S_POD_NAME": args.K8S_POD_NAME} {
		if value == "" {
			return args, fmt.Errorf("%s is missing: only pods of Kubernetes are supported", key)
		}
		if !objectName.MatchString(string(value)) {
			return args, fmt.Errorf("%s %q is no name of a Kubernetes object", key, value)
		}
	}
	return args, nil
}

// nodeName returns the node's name. The file is also the sign that the agent has run on this node.
func nodeName(c *netConf) (string, error) {
	file := c.NodenameFile
	if file == "" {
		file = defaultNodenameFile
	}
	data, err := os.ReadFile(file)
	if err != nil && !c.NodenameFileOptional {
		return "", failure(types.ErrTryAgainLater,
			fmt.Errorf("%w: the agent tortie-node has not run on this node yet, or does not mount /var/lib/calico: kubectl -n kube-system get pods -o wide", err))
	}
	for _, name := range []string{c.Nodename, strings.TrimSpace(string(data))} {
		if name != "" {
			return name, nil
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return "", failure(types.ErrInvalidNetworkConfig, fmt.Errorf("network configuration: nodename is empty, and %w", err))
	}
	return strings.ToLower(host), nil
}

// podMTU returns the configured MTU, else the one that the agent found out, else 0 for the kernel's default.
func podMTU(c *netConf, file string) (int, error) {
	if c.MTU != 0 {
		return c.MTU, nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, failure(types.ErrIOFailure, err)
	}
	mtu, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || mtu < 68 || mtu > 65535 {
		return 0, failure(types.ErrInvalidNetworkConfig, fmt.Errorf("%s holds %.20q, which is no MTU: restart tortie-node on this node", file, data))
	}
	return mtu, nil
}
