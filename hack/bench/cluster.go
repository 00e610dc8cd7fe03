package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const (
	namespace       = "bench"
	poolCIDR        = "10.244.0.0/16"
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	systemPath      = "/api/v1/namespaces/kube-system/serviceaccounts"
	// labTimeout leaves room for the first start, in which the lab builds kube-apiserver.
	labTimeout = 30 * time.Minute
)

// cluster is a real etcd and kube-apiserver in the underlay, with the objects of an installed Tortie, and nodes.
type cluster struct {
	*client
	underlay *underlay
	lab      *exec.Cmd
	stop     io.Closer // the lab's standard input
	server   int       // process id of kube-apiserver
	token    string    // the plugins'
	nodes    []*node
}

// newCluster starts the API server and returns when the plugins' account can use it.
func newCluster(ctx context.Context, root string) (_ *cluster, err error) {
	c := &cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.end())
		}
	}()
	if c.underlay, err = newUnderlay(); err != nil {
		return nil, err
	}
	kubeconfig, err := c.startLab(ctx, filepath.Join(root, "bin", "lab"))
	if err != nil {
		return nil, err
	}
	if c.client, err = newClient(kubeconfig, c.underlay); err != nil {
		return nil, err
	}
	if c.server, err = findServer(c.lab.Process.Pid); err != nil {
		return nil, err
	}
	if err := c.install(ctx, filepath.Join(root, "manifests", "tortie.yaml")); err != nil {
		return nil, fmt.Errorf("install what the plugins need: %w", err)
	}
	return c, nil
}

// startLab runs `lab api`, which ends when its standard input is closed, also when this process is killed.
func (c *cluster) startLab(ctx context.Context, lab string) (kubeconfig string, err error) {
	c.lab = exec.Command(lab, "api", "-address", apiAddress)
	c.lab.Stderr = os.Stderr
	if c.stop, err = c.lab.StdinPipe(); err != nil {
		return "", err
	}
	out, err := c.lab.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := c.underlay.Do(c.lab.Start); err != nil {
		return "", fmt.Errorf("start the API server: %w (run `make bin/lab`)", err)
	}
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(out).ReadString('\n') // other output is reported below
		line <- strings.TrimSpace(text)
	}()
	select {
	case text := <-line:
		if path, ok := strings.CutPrefix(text, "ready KUBECONFIG="); ok {
			return path, nil
		}
		return "", fmt.Errorf("`lab api` ended before it was ready: %s", text)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-time.After(labTimeout):
		return "", fmt.Errorf("`lab api` was not ready within %v", labTimeout)
	}
}

// end stops the API server and removes the nodes.
func (c *cluster) end() error {
	for _, n := range c.nodes {
		n.end()
	}
	var err error
	if c.lab != nil && c.lab.Process != nil {
		err = errors.Join(c.stop.Close(), c.lab.Wait())
	}
	if c.underlay != nil {
		c.underlay.Close()
	}
	return err
}

// findServer returns kube-apiserver among the lab's processes.
func findServer(lab int) (int, error) {
	for _, pid := range descendants(lab) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(line), "kube-apiserver\x00") {
			return pid, nil
		}
	}
	return 0, errors.New("no kube-apiserver among the lab's processes")
}

// install creates the manifest's objects for the plugins: definitions, their account, its role.
func (c *cluster) install(ctx context.Context, manifest string) error {
	text, err := os.ReadFile(manifest)
	if err != nil {
		return err
	}
	var definitions []string
	for _, doc := range strings.Split(string(text), "\n---\n") {
		var obj object
		if err := yaml.Unmarshal([]byte(doc), &obj); err != nil {
			return fmt.Errorf("%s: %w", manifest, err)
		}
		path := map[any]string{
			"CustomResourceDefinition": definitionsPath,
			"ClusterRole":              "/apis/rbac.authorization.k8s.io/v1/clusterroles",
			"ClusterRoleBinding":       "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
			"ServiceAccount":           systemPath,
		}[obj["kind"]]
		if path == "" {
			continue
		}
		if err := c.do(http.MethodPost, path, obj, nil); err != nil {
			return err
		}
		if obj["kind"] == "CustomResourceDefinition" {
			name, _, _ := strings.Cut(obj["metadata"].(object)["name"].(string), ".")
			definitions = append(definitions, name)
		}
	}
	for _, name := range definitions {
		if err := c.await(ctx, groupPath(groups.V1)+name); err != nil {
			return err
		}
	}
	return c.populate(ctx)
}

// populate creates the objects that the agent creates at its first start, and a namespace for pods.
func (c *cluster) populate(ctx context.Context) error {
	if err := c.setUp(groups.V1, poolCIDR); err != nil {
		return err
	}
	if err := c.do(http.MethodPost, "/api/v1/namespaces", object{"metadata": object{"name": namespace}}, nil); err != nil {
		return err
	}
	var request struct{ Status struct{ Token string } }
	if err := c.do(http.MethodPost, systemPath+"/tortie-cni/token", object{"spec": object{}}, &request); err != nil {
		return err
	}
	c.token = request.Status.Token
	asPlugin := *c.client
	asPlugin.token = c.token
	return asPlugin.await(ctx, "/api/v1/namespaces/"+namespace)
}

// groupPath returns the path of the objects of one of Calico's API groups.
func groupPath(in groups.Group) string { return "/apis/" + string(in) + "/" }

// setUp creates the objects of a group that an assignment of addresses requires.
func (c *cluster) setUp(in groups.Group, cidr string) error {
	custom := func(plural, kind, name string, spec object) error {
		obj := object{"apiVersion": string(in), "kind": kind, "metadata": object{"name": name}, "spec": spec}
		return c.do(http.MethodPost, groupPath(in)+plural, obj, nil)
	}
	if err := custom("clusterinformations", "ClusterInformation", "default", object{"datastoreReady": true}); err != nil {
		return err
	}
	// a kernel may have no IPIP
	return custom("ippools", "IPPool", "default-ipv4-ippool",
		object{"cidr": cidr, "blockSize": 26, "ipipMode": "Never", "natOutgoing": true})
}

// await requests a path until it succeeds: new definitions and roles take effect after a moment.
func (c *client) await(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := c.do(http.MethodGet, path, nil, nil)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server: %w", err)
		}
	}
}

// addNodes adds nodes up to count, with the programs of a directory and this number of pods on each.
func (c *cluster) addNodes(count int, bin string, pods int) error {
	for len(c.nodes) < count {
		n, err := newNode(c.underlay, len(c.nodes), bin, pods)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
		if err := n.write(kubeconfigPath, labtest.PluginKubeconfig(c.client.server, c.ca, c.token)); err != nil {
			return err
		}
		if err := c.do(http.MethodPost, "/api/v1/nodes", object{"metadata": object{"name": n.name}}, nil); err != nil {
			return err
		}
		if err := c.createPods(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) createPods(n *node) error {
	var g errgroup.Group
	g.SetLimit(8)
	for i, s := range n.slots {
		pod := object{"metadata": object{"name": podName(n, s)}, "spec": object{
			"nodeName": n.name, "containers": []object{{"name": "c", "image": "none"}},
		}}
		g.Go(func() error {
			var created struct{ Metadata struct{ UID string } }
			err := c.do(http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", pod, &created)
			n.slots[i].uid = created.Metadata.UID
			return err
		})
	}
	return g.Wait()
}

func podName(n *node, s slot) string { return fmt.Sprintf("pod-%d-%d", n.index, s.index) }

// conflicts returns the API server's count of conflicting writes.
func (c *cluster) conflicts() (int, error) {
	text, err := c.raw(http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return sumMetric(string(text), conflictMetric)
}

var conflictMetric = regexp.MustCompile(`(?m)^apiserver_request_total\{[^}]*code="409"[^}]*resource="(?:ipam|blockaff)[^}]*\} ([0-9.e+]+)$`)

// sumMetric returns the sum of all matching lines.
func sumMetric(text string, line *regexp.Regexp) (int, error) {
	sum := 0.0
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, fmt.Errorf("the API server's metric %s: %w", m[0], err)
		}
		sum += value
	}
	return int(sum), nil
}

// serverCPU returns the CPU time of kube-apiserver.
func (c *cluster) serverCPU() (time.Duration, error) { return processorTime(c.server) }
