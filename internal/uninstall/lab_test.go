package uninstall_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/labtest"
)

// cluster is a real one of two nodes, with the image of these sources (make image).
type cluster struct {
	*labtest.Lab
	t *testing.T
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	return cluster{labtest.NewLab(t, 2, "-image", filepath.Join(labtest.Root(), "dist", "tortie.tar")), t}
}

var nodes = []string{"master", "node1"}

func (c cluster) do(command string, args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Minute)
	defer cancel()
	out, err := c.Do(ctx, command, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// helm runs Helm on the chart with values for this cluster, whose kernel need not have IPIP.
func (c cluster) helm(verb string, flags ...string) string {
	c.t.Helper()
	args := []string{verb, "tortie", filepath.Join(labtest.Root(), "charts", "tortie"), "-n", "kube-system", "--wait", "--timeout", "2m",
		"--set", "image.repository=docker.io/tortie-net/tortie,image.tag=dev,ipPool.ipipMode=Never,ipPool.vxlanMode=Always,ipFamilies={IPv4,IPv6},nodeAddress.ipv6=interface=eth0"}
	return c.do("helm", append(args, flags...)...)
}

// prepare brings the hosts to where they are without a pod network: kube-proxy has made its tables, they have addresses of both families,
// and they forward, as Kubernetes demands of every node. Forwarding stays when Tortie goes, since whatever came meanwhile may count on it. The directories are those
// that the kubelet makes in order to mount them, and nobody can remove from inside the mount.
const prepare = `for i in $(seq 600); do nft list table ip6 kube-proxy >/dev/null 2>&1 && break; sleep 0.1; done
ip -6 addr add fd00:172:30::$(ip -4 -o addr show eth0 | sed 's,.*inet 172.30.0.\([0-9]*\)/.*,\1,')/64 dev eth0 nodad
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
mkdir -p /opt/cni/bin /etc/cni/net.d /var/lib/calico /var/run/calico /var/log/calico`

// listing is what there is on a host: links, addresses, routes of all tables, rules, tables of nftables, files, parameters of the kernel.
// Left out are counters, ages and random numbers, what other nodes are neighbours, and libcni's own notes on a pod that still runs
// (/var/lib/cni).
const listing = `echo LINKS; ip -o link | sed 's/^[0-9]*: //; s/[@:].*//'
echo ADDRESSES; ip -o addr | sed 's/^[0-9]*: //; s/valid_lft.*//'
for f in -4 -6; do echo "ROUTES $f"; ip $f route show table all; echo "RULES $f"; ip $f rule; done
echo TABLES; nft list tables
echo FILES; find /etc/cni /opt/cni /var/lib/calico /var/run/calico/ /var/log/calico -printf '%p %y %m %s\n' | grep -v ' d ' | sort
echo DIRECTORIES; find /etc/cni /opt/cni /var/lib/calico /var/run/calico/ /var/log/calico -type d | sort
echo PARAMETERS; sysctl -a 2>/dev/null | grep ^net. | grep -vE 'count|random|neigh|secret|fastopen_key'`

func (c cluster) hosts() map[string]string {
	c.t.Helper()
	all := map[string]string{}
	for _, node := range nodes {
		all[node] = c.do("exec", node, "sh", "-c", listing)
	}
	return all
}

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
		c.do("exec", node, "sh", "-c", prepare)
	}
	before := c.hosts()
	file := filepath.Join(t.TempDir(), "theirs.yaml")
	if err := os.WriteFile(file, []byte(theirPools), 0o600); err != nil {
		t.Fatal(err)
	}
	c.do("kubectl", "apply", "-f", file)
	c.do("kubectl", "wait", "--for=condition=Established", "--timeout=60s", "crd/ippools.crd.projectcalico.org")

	c.helm("install", "--skip-crds") // Helm 4 fails on theirs, and Helm 3 skips them
	pools := c.do("kubectl", "get", "crd", "ippools.crd.projectcalico.org", "-o", "yaml")
	for _, field := range []string{"theirOwn:", "blockSize:", "vxlanMode:"} {
		if !strings.Contains(pools, field) {
			t.Errorf("the definition of pools lacks %s after the installation", field)
		}
	}
	if out := c.do("helm", "test", "tortie", "-n", "kube-system", "--timeout", "3m", "--logs"); strings.Count(out, "25 of 25 packets answered") < 4 {
		t.Errorf("helm test sends packets both ways in both families:\n%s", out)
	}
	c.do("kubectl", "delete", "crd", "bgpfilters.crd.projectcalico.org")
	c.helm("upgrade")
	c.do("kubectl", "get", "bgpfilters.crd.projectcalico.org")

	c.do("kubectl", "run", "web", "--image=docker.io/tortie-net/debug:dev", `--overrides={"spec":{"nodeName":"node1"}}`, "--", "sleep", "1000")
	c.do("kubectl", "wait", "--for=condition=Ready", "--timeout=120s", "pod/web")
	if c.hosts()["node1"] == before["node1"] {
		t.Fatal("the listing does not show what an installation does to a host")
	}
	c.do("helm", "uninstall", "tortie", "-n", "kube-system", "--timeout", "5m")
	if diff := cmp.Diff(before, c.hosts()); diff != "" {
		t.Errorf("the hosts are not what they were (-before +after):\n%s", diff)
	}
	c.wantNoTrace()
}

// wantNoTrace looks at the API: the release and what agents wrote on Nodes have gone; data stay, and nothing holds them.
func (c cluster) wantNoTrace() {
	c.t.Helper()
	all := c.do("kubectl", "get", "nodes", "-o", "yaml")
	for _, trace := range []string{"projectcalico.org", "tortie.io", "NetworkUnavailable"} {
		if strings.Contains(all, trace) {
			c.t.Errorf("a Node still has %s:\n%s", trace, all)
		}
	}
	const kinds = "daemonsets,deployments,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,services,leases,jobs"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		left := c.do("kubectl", "get", "-n", "kube-system", "-l", "app.kubernetes.io/part-of=tortie", "-o", "name", kinds+",pods")
		// The pod of the test stays, so that its logs can be read.
		left = strings.TrimSpace(strings.ReplaceAll(left, "pod/tortie-test\n", ""))
		if left == "" {
			break
		}
		if time.Now().After(deadline) {
			c.t.Errorf("of the release there is still:\n%s", left)
			break
		}
	}
	for _, kind := range []string{"ippools", "ipamblocks", "blockaffinities", "ipamhandles"} {
		if out := c.do("kubectl", "get", kind, "-o", "yaml"); !strings.Contains(out, "cidr") && !strings.Contains(out, "handleID") || strings.Contains(out, "finalizers") {
			c.t.Errorf("%s are data, which stay, and which nothing may hold:\n%s", kind, out)
		}
	}
	c.do("kubectl", "delete", "ippools", "--all", "--timeout=30s")
}
