package fence

// Container is a container of the chart with its access to the host: all that is available to an attacker who controls
// it.
type Container struct {
	Name string
	// Root: runs as user 0. HostNetwork: uses the host's network namespace.
	Root, HostNetwork bool
	Capabilities      []Capability
	Paths             []Path
}

// Capability is a Linux capability of a container.
type Capability struct{ Name, Why string }

// Path is a host directory that is mounted into a container.
type Path struct {
	Path  string
	Write bool
	// What describes the directory and the effects of access to it.
	What string
}

// Containers are all containers of the chart, with every value enabled.
var Containers = []Container{
	{
		Name: "node", Root: true, HostNetwork: true,
		Capabilities: []Capability{
			{"NET_ADMIN",
				"links, addresses, routes, rules, nftables, the TCP MD5 key of a BGP session: the attacker controls the host's whole network"},
			{"NET_RAW", "raw sockets: router advertisements, probes of node diagnose, rules of the old iptables; the attacker reads and " +
				"forges the host's packets"},
			{"NET_BIND_SERVICE", "BGP's port 179"},
		},
		Paths: []Path{
			{"/proc/sys/net", true, "network parameters; a container's own /proc/sys cannot be written"},
			{"/sys/devices/virtual/net", true, "threads of WireGuard's devices, with the value wireguard.threaded. The attacker has the links' " +
				"other settings, which NET_ADMIN allows anyway, and has udev see their events again"},
			{"/var/lib/calico", true, "nodename, mtu, and in tortie/journal addresses that plugins could not release. The attacker stops pods of " +
				"this node and has their addresses released; the fence refuses another node's name for the plugins, and others' addresses"},
			{"/var/log/calico/flowlogs", true, "flow records, with the value policy.flows.file"},
			{"/var/run/calico/tortie", true, "the plugins' facts and last block: this node's pods get no address, each other's, or one that no " +
				"other node knows; notes on refused tokens: the installer asks for another, after a pause"},
			{"/etc/cni/net.d", false, "for node diagnose. The attacker reads the plugins' token, which the fence keeps to this node"},
			{"/var/lib/cni", false, "for node diagnose: how much room is left. The attacker reads the results of the runtime's plugins: names and " +
				"addresses of this node's pods"},
			{"/var/log/calico/cni", false, "likewise. The attacker reads the plugins' log"},
		},
	},
	{
		Name: "install", Root: true, HostNetwork: true,
		Capabilities: []Capability{{"DAC_OVERRIDE", "/opt/cni/bin may belong to another user"}},
		Paths: []Path{
			{"/opt/cni/bin", true, "the plugins, which the host's root executes: the attacker is root on the host"},
			{"/etc/cni/net.d", true, "the conflist, the kubeconfig, and the ledger of replaced files: likewise"},
			{"/var/lib/calico", true, "copies of replaced files"},
			{"/var/run/calico/tortie", true, "plugins' notes on refused tokens"},
		},
	},
	{
		Name: "migrate", Root: true, HostNetwork: true,
		Capabilities: []Capability{{"DAC_OVERRIDE", "as install"}},
		Paths: []Path{
			{"/opt/cni/bin", true, "removes the plugins while addresses are taken over: as install"},
			{"/var/lib/cni/networks", true, "addresses that host-local has assigned"},
		},
	},
	{
		Name: "files", Root: true, HostNetwork: true,
		Capabilities: []Capability{{"DAC_OVERRIDE", "as install"}},
		Paths: []Path{
			{"/opt/cni/bin", true, "as install, while helm uninstall runs"},
			{"/etc/cni/net.d", true, "likewise"},
			{"/var/lib/calico", true, "files of agent and plugins"},
			{"/var/run/calico", true, "likewise, with the plugins' lock"},
			{"/var/log/calico", true, "the plugins' log"},
		},
	},
	{Name: "kernel", Root: true, HostNetwork: true, Capabilities: []Capability{{"NET_ADMIN", "removes the agent's links, routes and rules"}}},
	{Name: "kube-controllers", HostNetwork: true},
	{Name: "definitions", HostNetwork: true},
	{Name: "uninstall", HostNetwork: true},
	{Name: "test", HostNetwork: true},
	{Name: "probe"},
}

// Has returns the items of a container's host access.
func (c *Container) Has() []string {
	var all []string
	if c.Root {
		all = append(all, "user 0")
	}
	if c.HostNetwork {
		all = append(all, "the host's network")
	}
	for _, capability := range c.Capabilities {
		all = append(all, "capability "+capability.Name)
	}
	for _, p := range c.Paths {
		all = append(all, p.String())
	}
	return all
}

func (p Path) String() string {
	if p.Write {
		return p.Path + ", to write"
	}
	return p.Path + ", to read"
}

// HostRows returns Containers as rows of a table.
func HostRows() [][]string {
	rows := [][]string{{"Container", "User", "Right on the host", "Reason; use to an attacker"}}
	root := "writes its files as root; connects as the host does, also to services on 127.0.0.1 or on abstract Unix sockets"
	for _, c := range Containers {
		user := "65532"
		if c.Root {
			user = "0"
		}
		switch {
		case c.Root && c.HostNetwork:
			rows = append(rows, []string{c.Name, user, "network namespace", root})
			root = "as " + Containers[0].Name
		case c.HostNetwork:
			rows = append(rows, []string{c.Name, user, "network namespace", "runs before there is a pod network; connects as the host does"})
		default:
			rows = append(rows, []string{c.Name, user, "none", ""})
		}
		for _, capability := range c.Capabilities {
			rows = append(rows, []string{c.Name, user, "capability " + capability.Name, capability.Why})
		}
		for _, p := range c.Paths {
			rows = append(rows, []string{c.Name, user, p.String(), p.What})
		}
	}
	return rows
}
