package diagnose

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// report returns the agent's report; an empty one without an agent.
func (o *Observations) report() *nodestatus.Report {
	if o.Agent == nil {
		return &nodestatus.Report{}
	}
	return o.Agent
}

// encapsulates reports whether pods' packets travel in IPIP.
func (o *Observations) encapsulates() bool {
	_, ok := tunnelOf(o.report(), kindIPIP, true)
	return ok
}

// poolsOf returns the pools' ranges of one family.
func (o *Observations) poolsOf(is4 bool) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range o.report().Pools {
		if cidr, err := netip.ParsePrefix(p.CIDR); err == nil && cidr.Addr().Is4() == is4 {
			all = append(all, cidr)
		}
	}
	return all
}

func (o *Observations) forwarding() []Finding {
	one := func(key string, needed bool, family string) Finding {
		value, known := o.Sysctls[key]
		f := Finding{Check: "forwarding", About: strings.ReplaceAll(key, "/", "."), Seen: "is " + value, Level: OK}
		switch {
		case !known && needed:
			f.Level, f.Seen = Unknown, "cannot be read"
		case value == "0" && needed:
			f.Level, f.Why = Problem, "without it the kernel forwards no "+family+" packet to or from a pod"
			f.Do = "set it to 1, and find the program or file that sets it to 0, such as one of /etc/sysctl.d or a firewall; the " +
				"agent sets it at each pass"
		}
		return f
	}
	findings := []Finding{one("net/ipv4/ip_forward", o.Agent == nil || len(o.poolsOf(true)) > 0, "IPv4")}
	if o.report().ForwardsIPv6 { // a pool alone does not need it: clusters have one by default
		findings = append(findings, one("net/ipv6/conf/all/forwarding", true, "IPv6"))
	}
	return findings
}

// strict is the value of rp_filter with which the kernel drops a packet unless the answer would leave by the link on
// which the packet arrived.
const strict = "1"

// reversePath checks rp_filter of the links on which packets from nodes and tunnels arrive. The kernel uses the greater
// of a link's value and the value of conf/all.
func (o *Observations) reversePath() []Finding {
	var findings []Finding
	all := o.Sysctls["net/ipv4/conf/all/rp_filter"]
	for _, link := range o.pathLinks() {
		own, known := o.Sysctls["net/ipv4/conf/"+link+"/rp_filter"]
		f := Finding{Check: "rp-filter", About: link, Level: OK, Seen: "is " + max(all, own)}
		if !known {
			f.Level, f.Seen = Unknown, "cannot be read"
		} else if max(all, own) == strict {
			f = o.strictly(f, link)
		}
		findings = append(findings, f)
	}
	return findings
}

func (o *Observations) strictly(f Finding, link string) Finding {
	f.Level, f.Seen = Warning, "is 1 (strict)"
	f.Why = "the kernel silently drops packets that arrive on " + link +
		" unless the answer would leave by it: with several links, or asymmetric routes, packets are lost"
	f.Do = fmt.Sprintf(
		"set net.ipv4.conf.all.rp_filter and net.ipv4.conf.%s.rp_filter to 2 (loose) or 0, in a file of /etc/sysctl.d too", link)
	if link != o.report().Interface {
		return f
	}
	for _, p := range o.Peers {
		if p.Addr.Is4() && p.WayErr == nil && p.Way != "" && p.Way != link {
			f.Level = Problem
			f.Seen = fmt.Sprintf("is 1 (strict), and %s is reached by %s: its packets to the node's address on %s are dropped",
				p.name(), p.Way, link)
			return f
		}
	}
	return f
}

// pathLinks returns the links on which packets from other nodes arrive.
func (o *Observations) pathLinks() []string {
	var links []string
	if l := o.report().Interface; l != "" {
		links = append(links, l)
	}
	for _, t := range o.report().Tunnels {
		if slices.ContainsFunc(o.Links, func(l netlinkx.Link) bool { return l.Name == t.Device }) {
			links = append(links, t.Device)
		}
	}
	for _, l := range o.Links {
		if ipip.IsPeer(l) {
			links = append(links, l.Name)
		}
	}
	return links
}

func (o *Observations) kernel() []Finding {
	var findings []Finding
	if o.encapsulates() {
		findings = append(findings, feature("ipip", o.Kernel.IPIP, true, "pools with IPIP need it: their packets cannot leave this node",
			"modprobe ipip, and a line \"ipip\" in /etc/modules-load.d/ipip.conf", "use a kernel built with CONFIG_NET_IPIP, or pools without IPIP"))
	}
	return append(findings,
		feature("nf_tables", o.Kernel.NFTables, true, "masquerading and the guard of the tunnels need it",
			"modprobe nf_tables", "use a kernel built with CONFIG_NF_TABLES and CONFIG_NF_TABLES_INET"),
		feature("tcp-md5", o.Kernel.MD5, false,
			"BGP passwords (BGPConfiguration default, spec.nodeMeshPassword) need it, and the agent authenticates its internal connections with it",
			"", "use a kernel built with CONFIG_TCP_MD5SIG if sessions are to have passwords"))
}

func feature(name string, has Feature, needed bool, why, load, build string) Finding {
	f := Finding{Check: "kernel", About: name, Level: OK, Seen: "there"}
	if has.Has {
		return f
	}
	f.Level, f.Why, f.Do, f.Seen = Warning, why, build, "the kernel does not have it"
	if needed {
		f.Level = Problem
	}
	switch {
	case has.Err != nil:
		f.Level, f.Seen = Unknown, has.Err.Error()
	case has.Loadable:
		f.Seen, f.Do = "its module is not loaded", load
	}
	return f
}

// cniConfigs checks which network's configuration the container runtime uses.
func (o *Observations) cniConfigs() []Finding {
	const check = "cni-config"
	c := o.Configs
	if c.Err != nil {
		f := Finding{Check: check, About: c.Dir, Level: Unknown, Seen: "could not look: " + c.Err.Error(), Do: "run the program on the host"}
		if errors.Is(c.Err, fs.ErrPermission) {
			f.Do = "run the program as root"
		}
		return []Finding{f}
	}
	if len(c.Files) == 0 {
		return []Finding{
			{Check: check, About: c.Dir, Level: Problem, Seen: "is empty", Why: "the container runtime has no network to give to pods",
				Do: "look at the log of the container install of this node's pod tortie-node: it writes the configuration"},
		}
	}
	var findings []Finding
	for i, file := range c.Files {
		f := Finding{Check: check, About: file.Name, Level: OK, Seen: "plugins " + strings.Join(file.Types, ", ")}
		switch ours := slices.Contains(file.Types, "calico"); {
		case file.Err != nil:
			f.Level, f.Seen, f.Do = Warning, "cannot be read: "+file.Err.Error(), "repair or remove it"
		case !ours && i == 0:
			f.Level, f.Why = Problem, "the runtime uses the first file by name: pods get that network instead of this one"
			f.Do = "remove the other network, then this file"
		case !ours:
			f.Level, f.Why, f.Do = Warning, "the runtime uses the first file by name: it would use this one if that went away",
				"remove it if its network is gone"
		case i > 0:
			f.Level, f.Why, f.Do = Warning, "the runtime uses the first file by name, which is "+c.Files[0].Name,
				"remove that network, then its file"
		case file.Unread != "":
			f.Level, f.Seen, f.Do = Warning, file.Unread, "change cni.conflist of the chart, or CNI_NETWORK_CONFIG"
		}
		findings = append(findings, f)
	}
	return findings
}

// otherNetwork is another network plugin, and its traces in a kernel.
type otherNetwork struct {
	name     string
	links    []string // beginnings of names
	chains   []string // beginnings of names
	protocol netlinkx.Protocol
}

// Felix's devices have the same names as the agent's, so they are no trace.
var otherNetworks = []otherNetwork{
	{"flannel", []string{"flannel.", "flannel-v6."}, []string{"FLANNEL-"}, 0},
	{"Cilium", []string{"cilium_", "lxc"}, []string{"CILIUM_"}, 0},
	{"kube-router", []string{"kube-bridge", "tun-"}, []string{"KUBE-ROUTER-"}, 0},
	{"Calico's Felix", nil, []string{"cali-", "filter-cali-", "nat-cali-"}, netlinkx.ProtocolFelix},
	{"BIRD", nil, nil, netlinkx.ProtocolBIRD},
	{"Weave", []string{"weave", "vethwe-"}, []string{"WEAVE"}, 0},
	{"Antrea", []string{"antrea-"}, []string{"ANTREA-"}, 0},
	{"OVN-Kubernetes", []string{"ovn-k8s-", "br-int"}, nil, 0},
}

// otherNetworks looks for traces of other network plugins.
func (o *Observations) otherNetworks() []Finding {
	var findings []Finding
	for _, s := range otherNetworks {
		var traces []string
		for _, l := range o.Links {
			if begins(l.Name, s.links) {
				traces = append(traces, "link "+l.Name)
			}
		}
		for _, c := range o.Chains {
			if begins(c.Chain, s.chains) {
				traces = append(traces, "chain "+c.Chain+" of table "+c.Table)
			}
		}
		for _, r := range o.Routes {
			if s.protocol != 0 && r.Protocol == s.protocol {
				traces = append(traces, "route to "+r.Dst.String())
			}
		}
		if len(traces) > 0 {
			findings = append(findings, Finding{
				Check: "other-network", About: s.name, Level: Warning, Seen: summary(traces, 3),
				Why: "it runs here, or has left these traces: two networks on one node overwrite each other's routes, rules and addresses",
				Do:  "remove it if it runs; else delete its traces, or restart the machine",
			})
		}
	}
	if len(findings) > 0 || o.LinksErr != nil || o.RoutesErr != nil {
		return findings
	}
	seen := "no links, chains or routes of known other networks"
	if o.ChainsErr != nil {
		seen += "; chains of nf_tables cannot be read: " + o.ChainsErr.Error()
	}
	return []Finding{{Check: "other-network", Level: OK, Seen: seen}}
}

// ownTunnel reports whether the agent has a device with that name. Calico's Felix uses the same names.
func (o *Observations) ownTunnel(link string) bool {
	return strings.HasPrefix(link, ipip.PeerPrefix) ||
		slices.ContainsFunc(o.report().Tunnels, func(t nodestatus.Tunnel) bool { return t.Device == link })
}

func begins(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

func summary(items []string, most int) string {
	if more := len(items) - most; more > 0 {
		items = append(slices.Clone(items[:most]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(items, ", ")
}

// foreignRoutes looks for other programs' routes into the pools: the more specific route wins, then the lower metric.
func (o *Observations) foreignRoutes() []Finding {
	const check = "foreign-routes"
	if o.RoutesErr != nil {
		return []Finding{{Check: check, Level: Unknown, Seen: o.RoutesErr.Error()}}
	}
	var into []string
	pools := append(o.poolsOf(true), o.poolsOf(false)...)
	for _, r := range o.Routes {
		inside := slices.ContainsFunc(pools, func(p netip.Prefix) bool { return p.Bits() <= r.Dst.Bits() && p.Contains(r.Dst.Addr()) })
		if inside && r.Protocol != o.Protocol && !o.toPod(r) {
			into = append(into, o.inWords(r))
		}
	}
	if len(into) == 0 {
		return []Finding{{Check: check, Level: OK, Seen: "no routes into the pools but the agent's and the plugins'"}}
	}
	return []Finding{{
		Check: check, Level: Problem, Seen: summary(into, 5),
		Why: "other programs' routes into the pools win over the agent's if they are more specific or have a lower metric, and " +
			"lead packets elsewhere",
		Do: "find the program by the routes' protocol (see /etc/iproute2/rt_protos), stop it, and delete the routes with ip route delete",
	}}
}

// toPod reports whether the plugins made a route.
func (o *Observations) toPod(r netlinkx.Route) bool {
	return r.Dst.IsSingleIP() && strings.HasPrefix(o.linkName(r.Dev), podnet.DefaultVethPrefix)
}

func (o *Observations) linkName(index int) string {
	if i := slices.IndexFunc(o.Links, func(l netlinkx.Link) bool { return l.Index == index }); i >= 0 {
		return o.Links[i].Name
	}
	return ""
}

// inWords formats a route with its link's name.
func (o *Observations) inWords(r netlinkx.Route) string {
	return strings.Replace(r.String(), fmt.Sprintf("dev #%d", r.Dev), "dev "+o.linkName(r.Dev), 1)
}

// managers checks whether a program of the host manages the agent's links or routes.
func (o *Observations) managers() []Finding {
	if errors.Is(o.Managers.Err, errNotTheHost) && len(o.Managers.Sockets) == 0 {
		return nil // in the agent's pod, without a sign that one of them runs
	}
	if errors.Is(o.Managers.Err, errNotTheHost) {
		return []Finding{{
			Check: "network-manager", Level: Unknown,
			Seen: fmt.Sprintf("such a program listens at %s; which links it manages cannot be seen here", summary(o.Managers.Sockets, 3)),
			Do: "on the host: nmcli device, or networkctl: cali*, tunl0, vxlan.calico must be unmanaged; or run this program there, or mount the " +
				"host's / and name it by -root",
		}}
	}
	if o.Managers.Err != nil {
		return []Finding{{Check: "network-manager", Level: Unknown, Seen: "could not look: " + o.Managers.Err.Error()}}
	}
	nm, nd := o.Managers.NetworkManager, o.Managers.Networkd
	findings := []Finding{
		o.managed("NetworkManager", nm, "write /etc/NetworkManager/conf.d/tortie.conf with\n[keyfile]\n"+
			"unmanaged-devices=interface-name:cali*;interface-name:tunl*\nand run systemctl reload NetworkManager"),
		o.managed("systemd-networkd", nd,
			"write /etc/systemd/network/10-tortie.network with\n[Match]\nName=cali* tunl*\n[Link]\nUnmanaged=yes\nand run networkctl reload"),
	}
	if nd.Running && !o.Managers.KeepsForeignRoutes && slices.Contains(nd.Manages, o.report().Interface) {
		findings = append(findings, Finding{
			Check: "network-manager", About: "systemd-networkd, ManageForeignRoutes", Level: Warning,
			Seen: "networkd manages " + o.report().Interface + " and may remove routes that it did not make",
			Why:  "when networkd is restarted, the agent's routes by that link go, and come back a moment later",
			Do: "write /etc/systemd/networkd.conf.d/tortie.conf with\n[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n" +
				"and restart systemd-networkd",
		})
	}
	return findings
}

func (o *Observations) managed(name string, m Manager, remedy string) Finding {
	f := Finding{Check: "network-manager", About: name, Level: OK, Seen: "does not run"}
	if !m.Running {
		return f
	}
	ours := slices.DeleteFunc(slices.Clone(m.Manages), func(l string) bool {
		return !ipip.Owns(l) && !o.ownTunnel(l) && !strings.HasPrefix(l, podnet.DefaultVethPrefix)
	})
	if len(ours) == 0 {
		f.Seen = "runs, and does not manage the agent's links"
		return f
	}
	f.Level, f.Seen = Problem, "manages "+summary(ours, 5)
	f.Why, f.Do = "it removes addresses and routes from links that it manages: pods lose their network", remedy
	return f
}
