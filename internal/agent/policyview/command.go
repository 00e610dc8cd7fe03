package policyview

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/policy"
)

// Command is the command's name, Help its short description.
const (
	Command = "policy"
	Help    = "the policies of this node's pods; policy explain: who decides on a connection; policy diff: what a change would do"
)

const usage = `usage: node policy [flags] [NAMESPACE/POD...]
       node policy explain [flags] FROM TO:PORT[/PROTOCOL]
       node policy diff [flags] [-delete] -f FILE

Without explain or diff: the pods of this node, the policies that select them, and whether the kernel has these in force.

explain says whether a connection is allowed, and which policy and rule decide. FROM and TO are NAMESPACE/POD, a pod of namespace default,
[NAMESPACE/]svc/NAME, [NAMESPACE/]deploy/NAME, or an address, also a Service's; PORT is a number, or the name of a port of the pod or
Service TO; PROTOCOL is TCP, UDP or SCTP. TO/ICMP and TO/ICMPv6 have no port. Services and Deployments are judged by their pods.

diff says which connections between existing pods would be allowed or denied if the policies of the file were created or changed, or with
-delete deleted, and which open connections of this node and its pods would be denied. The file may also have Tiers, NetworkSets,
GlobalNetworkSets, HostEndpoints and FelixConfigurations.

Examples: node policy shop/web
          node policy explain shop/client svc/web:80
          node policy diff -f policy.yaml

`

// answer is a command's output.
type answer interface{ WriteText(w io.Writer) error }

// command holds the settings and arguments of one run.
type command struct {
	settings config.PolicyView
	file     string
	deletes  bool
	args     []string
}

// Main runs the command; args are the arguments after its name.
func Main(ctx context.Context, args []string, settings config.PolicyView, out nodestatus.Output) error {
	run := (*command).list
	name := "node " + Command
	if len(args) > 0 && (args[0] == "explain" || args[0] == "diff") {
		run = map[string]func(*command, context.Context) (answer, error){"explain": (*command).explain, "diff": (*command).diff}[args[0]]
		name += " " + args[0]
		args = args[1:]
	}
	c := command{settings: settings}
	format, err := c.parse(name, args, out.Err)
	if err != nil {
		return err
	}
	a, err := run(&c, ctx)
	if err != nil {
		return err
	}
	if format == "json" {
		encoder := json.NewEncoder(out.Out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(a)
	} else {
		err = a.WriteText(out.Out)
	}
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// agentIsHere returns an error unless the agent of this node runs on this machine: the kernel of another machine must
// not be compared with the node's policies. An agent that does not answer is no error.
func (c *command) agentIsHere(ctx context.Context) error {
	r, err := nodestatus.Fetch(ctx, c.settings.HealthAddr)
	var none *nodestatus.NoAgentError
	switch {
	case errors.As(err, &none):
		return err
	case err == nil && r.Node != c.settings.Nodename:
		return fmt.Errorf("the agent on this machine is that of node %s, not of %s: ask the other one: %s", r.Node, c.settings.Nodename,
			nodestatus.Elsewhere(c.settings.Nodename, Command))
	}
	return nil
}

// parse reads flags before, between and after arguments.
func (c *command) parse(name string, args []string, w io.Writer) (format string, err error) {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(w)
	flags.Usage = func() { fmt.Fprint(w, usage); flags.PrintDefaults() }
	flags.StringVar(&format, "o", "text", "`format`: text or json")
	flags.StringVar(&c.settings.Nodename, "node", c.settings.Nodename, "`name` of this node; from NODENAME")
	flags.StringVar(&c.settings.HealthAddr, "address", c.settings.HealthAddr,
		"`host:port` on which the agent serves /status; from FELIX_HEALTHHOST and FELIX_HEALTHPORT")
	flags.StringVar(&c.settings.Kubeconfig, "kubeconfig", c.settings.Kubeconfig,
		"kubeconfig `file`; empty means the pod's own service account; from KUBECONFIG")
	if strings.HasSuffix(name, "diff") {
		flags.StringVar(&c.file, "f", "",
			"`file` with policies, also staged ones, which are judged as if they were enforced, and what they are about; - is standard input")
		flags.BoolVar(&c.deletes, "delete", false, "the objects of the file are deleted, not written")
	}
	for {
		if err := nodestatus.Parse(flags, args); err != nil {
			return "", err
		}
		if args = flags.Args(); len(args) == 0 {
			break
		}
		c.args, args = append(c.args, args[0]), args[1:]
	}
	switch {
	case format != "text" && format != "json":
		return "", nodestatus.Usagef("-o %q: must be text or json", format)
	case c.settings.Nodename == "":
		return "", fmt.Errorf("the node has no name: set NODENAME, or -node, to its name in Kubernetes")
	}
	return format, nil
}

// known reads policies and pods from the API server.
func (c *command) known(ctx context.Context, staged bool, want func(*known) policy.Interest) (*known, error) {
	if err := c.agentIsHere(ctx); err != nil {
		return nil, err
	}
	cfg, err := cluster.Connect(c.settings.Kubeconfig, "tortie-node-policy")
	if err != nil {
		return nil, err
	}
	at := cluster.Finding(cfg, c.settings.APIGroup)
	feed, err := cluster.NewPolicyFeed(at, c.settings.Nodename, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if staged {
		if err := feed.WatchStaged(); err != nil {
			return nil, err
		}
	}
	ground, err := c.ground(ctx)
	if err != nil {
		return nil, unreadable(err)
	}
	feed.SetGround(ground)
	k, err := read(ctx, feed, staged, want)
	if err != nil {
		return nil, err
	}
	k.group = at.Group.Known()
	return k, nil
}

// ground returns the owners of the pools' addresses, as the agent finds them.
func (c *command) ground(ctx context.Context) (*desired.Snapshot, error) {
	var pools api.List[api.IPPool, *api.IPPool]
	if err := c.fetch(ctx, "IPPools", &pools); err != nil {
		return nil, err
	}
	var affinities api.List[api.BlockAffinity, *api.BlockAffinity]
	if err := c.fetch(ctx, "BlockAffinities", &affinities); err != nil {
		return nil, err
	}
	var nodes api.List[api.Node, *api.Node]
	if err := c.fetch(ctx, "Nodes", &nodes); err != nil {
		return nil, err
	}
	s, _ := desired.Build(desired.Self{Name: c.settings.Nodename},
		state.Cluster{Pools: pools.Items, Affinities: affinities.Items, Nodes: nodes.Items})
	return &s, nil
}

// list runs the command without explain or diff.
func (c *command) list(ctx context.Context) (answer, error) {
	var keys []policy.PodKey
	for _, arg := range c.args {
		e, err := parseEnd(arg)
		if err != nil || e.addr.IsValid() {
			return nil, nodestatus.Usagef("%q: must be NAMESPACE/POD, explain or diff", arg)
		}
		keys = append(keys, e.pod)
	}
	k, err := c.known(ctx, false, ofThisNode)
	if err != nil {
		return nil, err
	}
	if err := k.addInterfaces(false); err != nil {
		return nil, err
	}
	compiled := policy.Compile(k.State)
	kernel, err := netpol.Compare(ctx, podnet.DefaultVethPrefix, &compiled.Ruleset)
	if err != nil {
		return nil, fmt.Errorf("%w: this takes CAP_NET_ADMIN in the host's network", err)
	}
	l := list(c.settings.Nodename, k, compiled, kernel)
	if !kernel.Table {
		l.Kernel = noTable
	}
	if len(keys) > 0 {
		err = l.only(keys)
	}
	return l, err
}

const noTable = "there is no table inet " + netpol.TableName +
	". The agent's log and node status say why: TORTIE_POLICY is off, another policy engine enforces, or the agent has not begun"

// diff runs `node policy diff`.
func (c *command) diff(ctx context.Context) (answer, error) {
	if c.file == "" || len(c.args) > 0 {
		return nil, nodestatus.Usagef("policy diff takes -f FILE, and no arguments but flags")
	}
	data, err := readFile(c.file)
	if err != nil {
		return nil, fmt.Errorf("-f: %w", err)
	}
	change, err := parsePolicies(c.file, data)
	if err != nil {
		return nil, err
	}
	k, err := c.known(ctx, false, everything)
	if err != nil {
		return nil, err
	}
	change.deletes, change.group = c.deletes, k.group
	ports, err := c.declared(ctx)
	if err != nil {
		return nil, err
	}
	if err := change.read(k.tiers); err != nil {
		return nil, fmt.Errorf("-f %s: %w", c.file, err)
	}
	if err := c.addHostRules(ctx, k, change); err != nil {
		return nil, err
	}
	kernel, err := netlinkx.Open()
	if err != nil {
		return nil, err
	}
	defer kernel.Close()
	open, err := c.openFlows(kernel)
	if err == nil {
		err = k.addInterfaces(change.concernsHosts())
	}
	if err != nil {
		d := diff(k.State, change, ports, nil)
		d.Unseen = fmt.Sprintf("%v: this takes CAP_NET_ADMIN in the host's network", err)
		return d, nil
	}
	return diff(k.State, change, ports, open), nil
}

func (c *command) openFlows(kernel *netlinkx.Conn) (*openFlows, error) {
	cfg, err := cluster.Connect(c.settings.Kubeconfig, "tortie-node-policy")
	if err != nil {
		return nil, err
	}
	open, err := readFlows(kernel)
	if err == nil {
		open.api = cluster.Endpoints(cfg)
	}
	return open, err
}

func readFile(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}

// fetch lists objects.
func (c *command) fetch(ctx context.Context, what string, into api.ResourceList) error {
	cfg, err := cluster.Connect(c.settings.Kubeconfig, "tortie-node-policy")
	if err != nil {
		return err
	}
	store, err := cluster.OpenStore(cluster.Finding(cfg, c.settings.APIGroup))
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.List(ctx, into, datastore.ListOptions{}); err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// addHostRules adds the ports that policies of host endpoints do not close, and to the change, if it is not nil, the
// ports after it.
func (c *command) addHostRules(ctx context.Context, k *known, to *change) error {
	if !k.HasHosts() && (to == nil || !to.concernsHosts()) {
		return nil
	}
	var found api.List[api.FelixConfiguration, *api.FelixConfiguration]
	if err := c.fetch(ctx, "FelixConfigurations", &found); err != nil {
		return err
	}
	k.Host, _ = hostRules(c.settings, found.Items) // the agent names what is invalid
	if to != nil {
		to.readFelix(c.settings, found.Items)
	}
	return nil
}

// declared returns the ports that pods declare, with a name or without.
func (c *command) declared(ctx context.Context) (map[policy.PodKey][]port, error) {
	var pods api.List[api.Pod, *api.Pod]
	if err := c.fetch(ctx, "pods", &pods); err != nil {
		return nil, err
	}
	all := make(map[policy.PodKey][]port, len(pods.Items))
	for i := range pods.Items {
		all[policy.PodKey{Namespace: pods.Items[i].Namespace, Name: pods.Items[i].Name}] = containerPorts(&pods.Items[i].Spec)
	}
	return all, nil
}

// containerPorts returns the ports of containers and of init containers, which may keep running (sidecars); each once,
// in order.
func containerPorts(spec *api.PodSpec) (ports []port) {
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, p := range c.Ports {
			if protocol, ok := protocols[cmp.Or(p.Protocol, "TCP")]; ok {
				ports = append(ports, port{protocol, p.ContainerPort})
			}
		}
	}
	slices.SortFunc(ports, comparePorts)
	return slices.Compact(ports)
}
