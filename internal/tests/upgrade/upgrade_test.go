package upgrade

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// patience is the limit for operations of many containers on a busy machine.
const patience = 4 * time.Minute

// timeout is patience as programs take it.
var timeout = "--timeout=" + (patience * labtest.TimeScale).String()

var nodes = []string{"master", "node1", "node2"}

// values make most of what an agent can leave on a node: a tunnel, its addresses, routes of both families.
var values = []string{"--set", "ipPool.vxlanMode=Always,ipFamilies={IPv4,IPv6},ipv6Pool.cidr=fd00:192:168::/48"}

// Tags of the images, which are also the versions that their programs print.
const (
	lastTag = "last"
	nextTag = "next"
)

// cluster is a lab with one pod on each node.
type cluster struct {
	*labtest.Lab
	pods map[string]*meshtest.Pod // by node
}

// TestUpgrade upgrades a cluster of the last release to these sources and rolls it back. No packet is lost, and pods
// are replaced all the while.
func TestUpgrade(t *testing.T) {
	labtest.OnlyIn(t, groups.V1, "the last release knows no other group")
	release, sources := lastRelease(t)
	t.Logf("the last release: %s", release)
	c := &cluster{Lab: labtest.NewLab(t, len(nodes), "-ipv6",
		"-image", labtest.BuildImage(t, sources, lastTag), "-image", labtest.BuildImage(t, labtest.Root(), nextTag))}
	t.Cleanup(func() { c.LogDiagnostics(t) })

	c.ReleaseOf(t, sources, "install", lastTag, values...)
	c.ready(t, lastTag)
	c.start(t)
	c.under(t, nextTag, func() { c.Release(t, "upgrade", nextTag, values...) })
	c.under(t, lastTag, func() {
		c.Run(t, "helm", "rollback", "tortie", "1", "--namespace", "kube-system", "--wait", timeout)
	})
}

// start starts a pod on each node, named as the node.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.pods = map[string]*meshtest.Pod{}
	for _, node := range nodes {
		c.StartPod(t, node, node)
		facts := strings.Fields(c.Kubectl(t, "get", "pod", node, "-o", "jsonpath={.metadata.uid} {.status.podIPs[*].ip}"))
		if len(facts) != 3 {
			t.Fatalf("pod %s has no address of each family: %q", node, facts)
		}
		c.pods[node] = &meshtest.Pod{NS: c.Pod(t, facts[0]), V4: netip.MustParseAddr(facts[1]), V6: netip.MustParseAddr(facts[2])}
	}
}

// ready waits until all nodes run the version of a tag.
func (c *cluster) ready(t *testing.T, tag string) {
	t.Helper()
	// Helm 3 waits for all but maxUnavailable of a DaemonSet's pods.
	for _, workload := range []string{"daemonset/tortie-node", "deployment/tortie-kube-controllers"} {
		c.rolledOut(t, workload, "--namespace=kube-system")
	}
	c.Kubectl(t, "wait", "--for=condition=Ready", "node", "--all", timeout)
	images := strings.Fields(c.Kubectl(t, "get", "pods", "-n", "kube-system",
		"-l", "app.kubernetes.io/name=tortie,app.kubernetes.io/component=node", "-o", "jsonpath={.items[*].spec.containers[*].image}"))
	if len(images) < len(nodes) {
		t.Errorf("containers of agents: %q", images)
	}
	for _, image := range images {
		if want := labtest.ImageRepository + ":" + tag; image != want {
			t.Errorf("an agent's container has the image %s, want %s", image, want)
		}
	}
	for _, node := range nodes {
		if out := c.On(t, node, "/opt/cni/bin/calico -v"); !strings.Contains(out, tag) {
			t.Errorf("%s has the plugins of %s, want %s", node, out, tag)
		}
	}
}

func (c *cluster) rolledOut(t *testing.T, workload string, options ...string) {
	t.Helper()
	c.Kubectl(t, append([]string{"rollout", "status", workload, timeout}, options...)...)
}

// under makes a change to another version under traffic between all pairs of nodes, in both directions and families,
// while pods come and go.
func (c *cluster) under(t *testing.T, tag string, change func()) {
	t.Helper()
	web := filepath.Join(labtest.Root(), "internal/tests/cluster/testdata/web.yaml")
	c.Kubectl(t, "apply", "-f", web)
	c.rolledOut(t, "deployment/web")
	var traffic meshtest.Traffic
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			traffic = append(traffic, meshtest.StartTraffic(t, c.pods[a], c.pods[b])...)
		}
	}
	stop := c.renew(t)
	change()
	c.ready(t, tag)
	stop()
	traffic.Intact(t)
	c.Kubectl(t, "delete", "--cascade=foreground", "-f", web)
}

// renew replaces the pods of deployment web again and again, at least once, until stop is called.
func (c *cluster) renew(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended, result := make(chan struct{}), make(chan error, 1)
	rounds := 0
	go func() {
		for {
			_, restart := c.Do(ctx, "kubectl", "rollout", "restart", "deployment/web")
			_, status := c.Do(ctx, "kubectl", "rollout", "status", "deployment/web", timeout)
			if err := errors.Join(restart, status); err != nil {
				result <- err
				return
			}
			rounds++
			select {
			case <-ended:
				result <- nil
				return
			default:
			}
		}
	}()
	return func() {
		t.Helper()
		close(ended)
		err := <-result
		cancel()
		errtest.Must(t, err)
		t.Logf("the pods of deployment web were replaced %d times", rounds)
	}
}
