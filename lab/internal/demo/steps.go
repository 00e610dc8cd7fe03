package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

const intro = `Real output of a cluster on this machine: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, and three nodes
with containerd, kubelet and kube-proxy, each in namespaces of its own, without a pod network yet.

Lines after $ run next to the control plane (lab kubectl, lab helm), lines after node1# on that node (lab exec node1). The demo waits until
nodes and pods are Ready.`

// Names that the steps share. The veth's name follows from namespace and pod, by Calico's hash.
const (
	debugImage = "docker.io/tortie-net/debug:dev"
	testVeth   = "cali7fba7a35b74"
	status     = "busybox wget -qO- http://127.0.0.1:9099/status"
	// web serves the pod's own name.
	web = `sh -c 'mkdir /www && hostname > /www/index.html && exec httpd -f -p 80 -h /www'`
)

var installStep = step{
	"Helm installs Tortie",
	"One chart: the custom resources of crd.projectcalico.org, what the pods may do, and a DaemonSet.",
	(*Demo).install,
}

// steps returns the steps after installStep.
func (d *Demo) steps() []step {
	return []step{
		{"The components run",
			`The nodes are Ready, as each has a pod network. Beside containerd, kubelet and kube-proxy runs Tortie's agent, "node"; "install" has put
the CNI plugins on the node and renews their token.`, (*Demo).components},
		{"A pod on node1", "Without the scheduler, so that the pod is where we look. It serves its name by HTTP.", (*Demo).runPod},
		{"The kubelet has the runtime make a sandbox",
			`containerd holds the pod's namespaces open with a container of its own, "pause", and calls CNI for the network namespace, cni-...`,
			(*Demo).sandbox},
		{"The runtime reads the conflist",
			`containerd takes the first file in /etc/cni/net.d. It was written after the plugins and their kubeconfig: a node is never Ready with
half an installation.`, (*Demo).conflist},
		{`The runtime executes "calico"`,
			"The plugin, a small static program, makes interfaces and routes; nothing of it stays running.", (*Demo).calico},
		{`"calico" assigns an address`,
			`As ipam.type is calico-ipam it does that itself: a second process would double the time. It updates the API's objects, asks no agent,
and notes the address in a handle, by which DEL finds it. What the agent has written down of pools and claims only saves requests.`,
			(*Demo).calicoIPAM},
		{"Pool, block, affinity",
			`The pool is cut into blocks of 64 addresses. A node claims a block by creating a BlockAffinity, and each address by updating the
IPAMBlock, guarded by resource versions.`, (*Demo).blocks},
		{"The pod's address", "The kubelet reports it from the CNI result. The plugin has noted it on the pod too, where agents find it at once.",
			(*Demo).podAddress},
		{"BlockAffinities of all nodes",
			`An affinity says which node a block is for: all that routing needs. The IPAMBlock, which only plugins read, says which addresses are
taken by which handle. The first address of each block is the node's own, for its tunnel.`, (*Demo).affinities},
		{"The pod's route and interface",
			`On the host the pod is a /32 route to its veth, named by a hash of namespace and name. The pod's only neighbour is 169.254.1.1,
which no interface has: the host's end of the veth answers for it by proxy ARP.`, (*Demo).podRoute},
		{"What the agent watches",
			`Besides Nodes and Namespaces, every agent watches ten of Calico's resources, three of them only for its node's plugins: these are the
watches that the API server counts. (A fourth of each is kube-controller-manager's garbage collector's, a fifth of some kube-controllers';
one of the pools is the API server's own, for node fencing.) For policies an agent watches its node's pods, and of others those that these
name.`, (*Demo).watches},
		{"BGP sessions", "Every agent has one BGP session with every other node, on port 179. A node announces its blocks.", (*Demo).sessions},
		d.Encap.routes,
		{"From node to node",
			`A second pod on node2, and a third on node1 that calls it. Time to live is 62 of 64: each node takes one, the tunnel none.`,
			(*Demo).traffic},
		d.Encap.wire,
		{"The pool", "The IPPool says all of it: range, block size, encapsulation, masquerading for what leaves the pool.", (*Demo).pool},
		{"Deny all, then allow one",
			`A NetworkPolicy without rules: no pod may send to the namespace's pods; connections are dropped on the destination's node. A second one
lets debug in, at one port; test-pod stays outside.`, (*Demo).policy},
	}
}

func (d *Demo) install(ctx context.Context) error {
	out, err := d.kubectl(ctx, "helm install tortie charts/tortie --namespace kube-system --wait --hide-notes --timeout "+d.timeout()+
		" --set image.repository="+Image+",image.tag=dev"+d.Encap.values)
	if err != nil {
		return err
	}
	return expect(out, "^STATUS: deployed$")
}

func (d *Demo) components(ctx context.Context) error {
	if err := d.waitNodes(ctx); err != nil {
		return err
	}
	out, err := d.kubectl(ctx, `kubectl get nodes,pods -n kube-system --no-headers -o custom-columns='KIND:.kind,NAME:.metadata.name,`+
		`ADDRESS:.status.addresses[0].address,NODE:.spec.nodeName,READY:.status.conditions[?(@.type=="Ready")].status,NETWORK `+
		`UNAVAILABLE:.status.conditions[?(@.type=="NetworkUnavailable")].status'`)
	if err != nil {
		return err
	}
	nodes, pods := ofKind(out, "Node"), ofKind(out, "Pod")
	d.facts.addresses = columns(nodes)
	procs, err := d.node(ctx, "node1", "ps -C containerd,kubelet,kube-proxy,node,install -o comm= | sort")
	if err != nil {
		return err
	}
	return errors.Join(
		expectLines(nodes, len(Nodes), `^(master|node1|node2)\s+[0-9.]+\s+<none>\s+True\s+False\s*$`),
		expectLines(pods, len(Nodes), `^tortie-node-\S+\s+<none>\s+(master|node1|node2)\s+True\s`),
		expect(procs, `^containerd$`, `^kubelet$`, `^kube-proxy$`, `^node$`, `^install$`))
}

func (d *Demo) runOn(ctx context.Context, node, pod, command string) error {
	overrides := fmt.Sprintf(`{"spec":{"nodeName":"%s","terminationGracePeriodSeconds":0}}`, node)
	_, err := d.kubectl(ctx, fmt.Sprintf("kubectl run %s --image=%s --overrides='%s' -- %s", pod, debugImage, overrides, command))
	return err
}

func (d *Demo) runPod(ctx context.Context) error {
	if err := d.runOn(ctx, "node1", "test-pod", web); err != nil {
		return err
	}
	return d.waitPods(ctx, "test-pod")
}

func (d *Demo) sandbox(ctx context.Context) error {
	containers, err := d.node(ctx, "node1", "ctr -n k8s.io containers list")
	if err != nil {
		return err
	}
	namespaces, err := d.node(ctx, "node1", "ls /run/netns")
	if err != nil {
		return err
	}
	return errors.Join(
		expectSome(containers, 2, `docker\.io/tortie-net/pause:`), // of test-pod and of tortie-node, and perhaps of kube-controllers
		expectLines(containers, 1, quote(debugImage)),
		expectLines(namespaces, 1, `^cni-[0-9a-f-]{36}$`))
}

func (d *Demo) conflist(ctx context.Context) error {
	files, err := d.node(ctx, "node1", "ls -l --time-style=+ /etc/cni/net.d")
	if err != nil {
		return err
	}
	text, err := d.node(ctx, "node1", "cat /etc/cni/net.d/10-calico.conflist")
	if err != nil {
		return err
	}
	var list struct {
		Plugins []struct {
			Type, Nodename string
			IPAM           struct{ Type string }
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return fmt.Errorf("the conflist is no JSON: %w", err)
	}
	if len(list.Plugins) == 0 || list.Plugins[0].Type != "calico" || list.Plugins[0].IPAM.Type != "calico-ipam" ||
		list.Plugins[0].Nodename != "node1" {
		return errors.New("the conflist does not begin with calico and calico-ipam for node1")
	}
	return expectLines(files, 2, `^-rw------- 1 root root .*(10-calico\.conflist|calico-kubeconfig)$`)
}

func (d *Demo) calico(ctx context.Context) error {
	plugins, err := d.node(ctx, "node1", "ls -l --time-style=+ /opt/cni/bin")
	if err != nil {
		return err
	}
	log, err := d.node(ctx, "node1", "grep 'msg=\"pod network configured\" plugin=calico ' /var/log/calico/cni/cni.log")
	if err != nil {
		return err
	}
	return errors.Join(
		expectLines(plugins, 5, `^-rwxr-xr-x 1 root root .*(bandwidth|calico|calico-ipam|loopback|portmap)$`),
		expectLines(log, 1, `msg="pod network configured" plugin=calico .*pod=default/test-pod link=`+testVeth+` `))
}

func (d *Demo) calicoIPAM(ctx context.Context) error {
	log, err := d.node(ctx, "node1", "grep 'msg=\"addresses assigned\" plugin=calico ' /var/log/calico/cni/cni.log")
	if err != nil {
		return err
	}
	facts, err := d.node(ctx, "node1", `grep -o '"pools":.*"reservations"' /var/run/calico/tortie/facts.json`)
	if err != nil {
		return err
	}
	handles, err := d.kubectl(ctx, "kubectl get ipamhandles --no-headers -o custom-columns='HANDLE:.metadata.name,BLOCKS:.spec.block'")
	if err != nil {
		return err
	}
	return errors.Join(
		expectLines(log, 1, `msg="addresses assigned" plugin=calico .*192\.168\.`),
		expectLines(facts, 1, `"cidr":"192\.168\.0\.0/16"`),
		expectLines(handles, len(Nodes), `^`+d.Encap.handle+`(master|node1|node2)\s`),
		expectLines(handles, 1, `^k8s-pod-network\.[0-9a-f]{64}\s+map\[`))
}

func (d *Demo) blocks(ctx context.Context) error {
	out, err := d.kubectl(ctx, "kubectl get ippools,blockaffinities,ipamblocks")
	if err != nil {
		return err
	}
	return errors.Join(
		expectLines(out, 1, `^ippool\S+/default-ipv4-ippool\s+192\.168\.0\.0/16\s+26\s+`+d.Encap.printed+`\s`),
		expectLines(out, len(Nodes), `^blockaffinity\S+/(master|node1|node2)-192-168-\S+-26\s+192\.168\.\S+/26\s`),
		expectLines(out, len(Nodes), `^ipamblock\S+/192-168-\S+-26\s+192\.168\.\S+/26\s`))
}

func (d *Demo) podAddress(ctx context.Context) error {
	out, err := d.kubectl(ctx, `kubectl get pod test-pod --no-headers -o custom-columns='POD:.metadata.name,IP:.status.podIP,`+
		`NODE:.spec.nodeName,ANNOTATED:.metadata.annotations.cni\.projectcalico\.org/podIP'`)
	if err != nil {
		return err
	}
	d.facts.podIP = columns(out)["test-pod"]
	if _, err := netip.ParseAddr(d.facts.podIP); err != nil {
		return fmt.Errorf("the pod's address: %w", err)
	}
	return expect(out, `^test-pod\s+`+quote(d.facts.podIP)+`\s+node1\s+`+quote(d.facts.podIP)+`/32`)
}

func (d *Demo) affinities(ctx context.Context) error {
	out, err := d.kubectl(ctx, "kubectl get blockaffinities,ipamblocks --no-headers -o "+
		"custom-columns='KIND:.kind,NODE:.spec.node,BLOCK:.spec.cidr,STATE:.spec.state,DELETED:.spec.deleted,"+
		"AFFINITY:.spec.affinity,HANDLES:.spec.attributes[*].handle_id'")
	if err != nil {
		return err
	}
	affinities, blocks := ofKind(out, "BlockAffinity"), ofKind(out, "IPAMBlock")
	d.facts.blocks = columns(affinities)
	errs := []error{expectLines(affinities, len(Nodes), `/26\s+confirmed\s+false\s+<none>\s+<none>\s*$`), expectLines(blocks, len(Nodes), `.`)}
	for _, n := range Nodes {
		errs = append(errs,
			expect(blocks, `^<none>\s+`+quote(d.facts.blocks[n])+`\s+<none>\s+(<none>|false)\s+host:`+n+`\s+\S*`+d.Encap.handle+n))
	}
	errs = append(errs, expect(blocks, `host:node1\s+\S*k8s-pod-network\.[0-9a-f]{64}`), inside(d.facts.podIP, d.facts.blocks["node1"]))
	return errors.Join(errs...)
}

func inside(addr, block string) error {
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return err
	}
	p, err := netip.ParsePrefix(block)
	if err != nil {
		return err
	}
	if !p.Contains(a) {
		return fmt.Errorf("%s is not in the node's block %s", addr, block)
	}
	return nil
}

func (d *Demo) podRoute(ctx context.Context) error {
	route, err := d.node(ctx, "node1", "ip route show "+d.facts.podIP)
	if err != nil {
		return err
	}
	link, err := d.node(ctx, "node1", "ip link show "+testVeth)
	if err != nil {
		return err
	}
	proxy, err := d.node(ctx, "node1", "sysctl net.ipv4.conf."+testVeth+".proxy_arp")
	if err != nil {
		return err
	}
	inside, err := d.kubectl(ctx, "kubectl exec test-pod -- sh -c 'ip -4 addr show eth0; ip route'")
	if err != nil {
		return err
	}
	return errors.Join(
		expect(route, `^`+quote(d.facts.podIP)+` dev `+testVeth+` scope link`),
		expect(link, testVeth+fmt.Sprintf(`@.* mtu %d .*state UP`, d.Encap.mtu), `link/ether ee:ee:ee:ee:ee:ee`),
		expect(proxy, `= 1$`),
		expect(inside, `inet `+quote(d.facts.podIP)+`/32`),
		expect(inside, `^default via 169\.254\.1\.1 dev eth0`, `^169\.254\.1\.1 dev eth0`))
}

// watched are the resources that each agent watches.
var watched = []string{
	"bgpconfigurations", "bgpfilters", "bgppeers", "blockaffinities", "caliconodestatuses", "clusterinformations", "felixconfigurations",
	"ipamconfigs", "ippools", "ipreservations",
}

func (d *Demo) watches(ctx context.Context) error {
	out, err := d.kubectl(ctx, `kubectl get --raw /metrics | sed -nE 's/^apiserver_longrunning_requests.*resource="(`+
		strings.Join(watched, "|")+`)".*verb="(WATCH)".* ([0-9]+)$/\1 \2 \3/p' | sort`)
	if err != nil {
		return err
	}
	errs := []error{expectLines(out, len(watched), `WATCH`)}
	for _, resource := range watched {
		// One watch of each agent, perhaps one of the garbage collector, and one of kube-controllers for some. The API server
		// watches pools itself, which are the parameters of the fence's policy on the size of claims.
		most := len(Nodes) + 2
		if resource == "ippools" {
			most++
		}
		errs = append(errs, expect(out, fmt.Sprintf("^%s WATCH [%d-%d]$", resource, len(Nodes), most)))
	}
	return errors.Join(errs...)
}

func (d *Demo) sessions(ctx context.Context) error {
	var errs []error
	for _, n := range Nodes {
		out, err := d.node(ctx, n, "ss -tnH state established '( sport = :179 or dport = :179 )'")
		if err != nil {
			return err
		}
		errs = append(errs, expectLines(out, len(Nodes)-1, `:179\s`))
		for _, other := range Nodes {
			if other != n {
				errs = append(errs, expect(out, quote(d.facts.addresses[other])+`:\d+\s*$`))
			}
		}
	}
	out, err := d.node(ctx, "node1", status+` | grep '"state"'`)
	if err != nil {
		return err
	}
	errs = append(errs, expectLines(out, len(Nodes)-1, `"state": "Established"`))
	return errors.Join(errs...)
}

func (d *Demo) traffic(ctx context.Context) error {
	if err := d.runOn(ctx, "node2", "test-pod2", web); err != nil {
		return err
	}
	if err := d.runOn(ctx, "node1", "debug", "sleep infinity"); err != nil {
		return err
	}
	if err := d.waitPods(ctx, "test-pod2", "debug"); err != nil {
		return err
	}
	out, err := d.kubectl(ctx, "kubectl get pods --no-headers -o custom-columns='POD:.metadata.name,IP:.status.podIP,NODE:.spec.nodeName'")
	if err != nil {
		return err
	}
	d.facts.pod2IP = columns(out)["test-pod2"]
	said, err := d.kubectl(ctx, fmt.Sprintf("kubectl exec debug -- sh -c 'ping -c 5 -i 0.2 %[1]s; wget -qO- http://%[1]s/'", d.facts.pod2IP))
	if err != nil {
		return err
	}
	return errors.Join(
		inside(d.facts.pod2IP, d.facts.blocks["node2"]),
		expect(out, `^test-pod\s+`+quote(d.facts.podIP)+`\s+node1\s*$`, `^test-pod2\s+`+quote(d.facts.pod2IP)+`\s+node2\s*$`,
			`^debug\s+\S+\s+node1\s*$`), expect(said, `5 packets received, 0% packet loss`), expectLines(said, 5, ` ttl=62 `),
		expect(said, `^test-pod2$`))
}

func (d *Demo) pool(ctx context.Context) error {
	// The controllers write the status in their own time.
	out, err := d.kubectl(ctx, "kubectl get ippool default-ipv4-ippool -o yaml | sed '/^status:/,$d'")
	if err != nil {
		return err
	}
	errs := []error{expect(out, `^  cidr: 192\.168\.0\.0/16$`, `^  blockSize: 26$`, `^  natOutgoing: true$`)}
	for _, mode := range d.Encap.pool {
		errs = append(errs, expect(out, `^  `+mode+`$`))
	}
	return errors.Join(errs...)
}
