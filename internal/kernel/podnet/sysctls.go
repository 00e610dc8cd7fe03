package podnet

import (
	"fmt"
	"log/slog"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// setting is a kernel parameter and its desired value.
type setting struct {
	key   sysctl.Key
	value string

	// optional: the pod's network works without the setting.
	optional bool
}

func conf(family, link, name string) sysctl.Key { return sysctl.Key{"net", family, "conf", link, name} }

// hostSettings returns the parameters of the node's end. Calico's plugin also sets route_localnet, with which a pod may
// send to 127.0.0.0/8 of its node, but not rp_filter, which Calico's agent sets. The programs that need route_localnet
// set it themselves: portmap for host ports, on the link of the one pod, and kube-proxy for node ports on 127.0.0.1.
// The agent's packet guard makes it harmless, but the plugin may run without an agent, or before it.
func hostSettings(c *Config) []setting {
	veth := c.HostVeth
	var s []setting
	if c.has(netlinkx.IPv4) {
		s = append(s,
			// A pod's ARP requests make entries in the neighbour table, which is small and shared by all network namespaces:
			// they must be from the pod's own addresses. The agent's packet guard does not filter ARP.
			setting{key: conf("ipv4", veth, "rp_filter"), value: "1", optional: true},
			// By default proxied ARP answers wait up to 0.8 s, in favour of other hosts on the link.
			setting{key: sysctl.Key{"net", "ipv4", "neigh", veth, "proxy_delay"}, value: "0", optional: true},
			// Answers for 169.254.1.1, which no interface has.
			setting{key: conf("ipv4", veth, "proxy_arp"), value: "1"},
			setting{key: conf("ipv4", veth, "forwarding"), value: "1"},
		)
	}
	if c.has(netlinkx.IPv6) {
		s = append(s,
			// All host-side ends share one link-local address; each is alone on its link.
			setting{key: conf("ipv6", veth, "accept_dad"), value: "0"},
			setting{key: conf("ipv6", veth, "disable_ipv6"), value: "0"},
			setting{key: conf("ipv6", veth, "proxy_ndp"), value: "1"},
			setting{key: conf("ipv6", veth, "forwarding"), value: "1"},
		)
	}
	// A pod must not be able to give the node a default route. The kernel may be without IPv6.
	return append(s, setting{key: conf("ipv6", veth, "accept_ra"), value: "0", optional: true})
}

// podSettings returns the parameters of the pod's namespace. They must be set before its link comes up: then duplicate
// address detection starts, which makes an address unusable for a second.
func podSettings(c *Config) []setting {
	forward := "0"
	if c.AllowIPForwarding {
		forward = "1"
	}
	var s []setting
	if c.has(netlinkx.IPv4) {
		s = append(s, setting{key: sysctl.Key{"net", "ipv4", "ip_forward"}, value: forward})
	}
	if !c.has(netlinkx.IPv6) {
		return s
	}
	s = append(s, setting{key: conf("ipv6", c.IfName, "accept_dad"), value: "0"})
	// Writing "all" changes all present links, but a value that is equal already is not written: so the links follow.
	for _, link := range []string{"all", "default", "lo", c.IfName} {
		s = append(s, setting{key: conf("ipv6", link, "disable_ipv6"), value: "0"})
	}
	return append(s, setting{key: conf("ipv6", "all", "forwarding"), value: forward})
}

// apply writes settings in the namespace of the calling thread.
func apply(root sysctl.Root, log *slog.Logger, settings []setting) error {
	for _, s := range settings {
		err := root.Set(s.key, s.value)
		switch {
		case err == nil:
		case s.optional:
			log.Warn("optional kernel parameter not set", "key", s.key.String(), "value", s.value, "error", err)
		default:
			return err
		}
	}
	return nil
}

// verify compares required settings with the kernel's, in the namespace of the calling thread.
func verify(root sysctl.Root, settings []setting) []error {
	var errs []error
	for _, s := range settings {
		if s.optional {
			continue
		}
		have, err := root.Get(s.key)
		if err == nil && have != s.value {
			err = fmt.Errorf("sysctl %s is %q, want %q", s.key, have, s.value)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
