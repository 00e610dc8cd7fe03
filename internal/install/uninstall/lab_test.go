package uninstall_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// cluster is a real one of two nodes, with the image of these sources (make image).
type cluster struct {
	*labtest.Lab
	t *testing.T
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{labtest.NewLab(t, 2, "-image", labtest.Image()), t}
	t.Cleanup(func() { c.LogDiagnostics(t) })
	return c
}

var nodes = []string{"master", "node1"}

// release installs or upgrades the chart with values for a cluster of both families.
func (c cluster) release(verb string, flags ...string) {
	c.t.Helper()
	values := []string{"--set", "ipPool.vxlanMode=Always,ipFamilies={IPv4,IPv6},nodeAddress.ipv6=interface=eth0"}
	c.Release(c.t, verb, labtest.ImageTag, append(values, flags...)...)
}

// prepare brings the hosts to where they are without a pod network: kube-proxy has made its tables, they have addresses of both families,
// and they forward, as Kubernetes demands of every node. Forwarding stays when Tortie goes, since whatever came meanwhile may count on it.
// The directories are those that the kubelet makes in order to mount them, and nobody can remove from inside the mount.
const prepare = `for i in $(seq 600); do nft list table ip6 kube-proxy >/dev/null 2>&1 && break; sleep 0.1; done
ip -6 addr add fd00:172:30::$(ip -4 -o addr show eth0 | sed 's,.*inet 172.30.0.\([0-9]*\)/.*,\1,')/64 dev eth0 nodad
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
mkdir -p /opt/cni/bin /etc/cni/net.d /var/lib/calico /var/run/calico /var/log/calico`

// theirPools is a definition as somebody else made it: it lacks fields that are needed, and has one of their own.
const theirPools = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ippools.crd.projectcalico.org}
spec:
  group: crd.projectcalico.org
  scope: Cluster
  names: {kind: IPPool, listKind: IPPoolList, plural: ippools, singular: ippool}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec: {type: object, properties: {cidr: {type: string}, theirOwn: {type: string}}}
`

// TestLifeOfARelease installs the chart on definitions that somebody else made, tests it, upgrades it and takes it away under a pod that
// runs: then the hosts are what they were, the Nodes bear no trace, and pools and addresses are still there.
func TestLifeOfARelease(t *testing.T) {
	c := newCluster(t)
	for _, node := range nodes {
		c.On(c.t, node, prepare)
	}
	before := c.Hosts(t, nodes...)
	file := filepath.Join(t.TempDir(), "theirs.yaml")
	errtest.Must(t, os.WriteFile(file, []byte(theirPools), 0o600))
	c.Kubectl(c.t, "apply", "-f", file)
	c.Kubectl(c.t, "wait", "--for=condition=Established", "--timeout=60s", "crd/ippools.crd.projectcalico.org")

	c.release("install", "--skip-crds") // Helm 4 fails on theirs, and Helm 3 skips them
	pools := c.Kubectl(c.t, "get", "crd", "ippools.crd.projectcalico.org", "-o", "yaml")
	difftest.Contains(t, pools, "theirOwn:", "blockSize:", "vxlanMode:")
	if out := c.Run(c.t, "helm", "test", "tortie", "-n", "kube-system", "--timeout", "3m", "--logs"); strings.Count(out, "25 of 25 packets answered") != 4 {
		t.Errorf("helm test sends packets both ways in both families, and its log is shown once:\n%s", out)
	}
	c.Kubectl(c.t, "delete", "crd", "bgpfilters.crd.projectcalico.org")
	c.release("upgrade")
	c.Kubectl(c.t, "get", "bgpfilters.crd.projectcalico.org")

	c.StartPod(t, "web", "node1")
	if c.Hosts(t, "node1")["node1"] == before["node1"] {
		t.Fatal("the listing does not show what an installation does to a host")
	}
	c.Run(c.t, "helm", "uninstall", "tortie", "-n", "kube-system", "--timeout", "5m")
	if diff := cmp.Diff(before, c.Hosts(t, nodes...)); diff != "" {
		t.Errorf("the hosts are not what they were (-before +after):\n%s", diff)
	}
	c.wantNoTrace()
}

// wantNoTrace looks at the API: the release and what agents wrote on Nodes have gone; data stay, and nothing holds them.
func (c cluster) wantNoTrace() {
	c.t.Helper()
	all := c.Kubectl(c.t, "get", "nodes", "-o", "yaml")
	for _, trace := range []string{"projectcalico.org", "tortie.io", "NetworkUnavailable"} {
		if strings.Contains(all, trace) {
			c.t.Errorf("a Node still has %s:\n%s", trace, all)
		}
	}
	const kinds = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,services,leases,jobs"
	meshtest.Eventually(c.t, func() error {
		left := strings.Fields(c.Kubectl(c.t, "get", "-n", "kube-system", "-l", "app.kubernetes.io/part-of=tortie", "-o", "name", kinds+",pods"))
		// The pod of the test stays, so that its logs can be read.
		left = slices.DeleteFunc(left, func(name string) bool { return name == "pod/tortie-test" })
		if len(left) > 0 {
			return fmt.Errorf("of the release there is still %q", left)
		}
		return nil
	})
	for _, kind := range []string{"ippools", "ipamblocks", "blockaffinities", "ipamhandles"} {
		if out := c.Kubectl(c.t, "get", kind, "-o", "yaml"); !strings.Contains(out, "cidr") && !strings.Contains(out, "handleID") || strings.Contains(out, "finalizers") {
			c.t.Errorf("%s are data, which stay, and which nothing may hold:\n%s", kind, out)
		}
	}
	c.Kubectl(c.t, "delete", "ippools", "--all", "--timeout=30s")
}
