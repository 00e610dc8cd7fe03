package hostsysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// Config is the desired state.
type Config struct {
	// Forward is false if an administrator manages forwarding (FelixConfiguration ipForwarding Disabled).
	Forward bool
	// IPv6: there are pods, or node addresses, of IPv6.
	IPv6 bool
	// Tunnels are the project's tunnel devices.
	Tunnels []string
	// Pods are the links of pods that may send from addresses besides their own.
	Pods []string
	// Link is the interface with the node's address.
	Link string
}

// Setting is a parameter and the value that it must have.
type Setting struct {
	Key   sysctl.Key
	Value string
	Why   string
}

// The parameters.
var (
	forward4  = sysctl.Key{"net", "ipv4", "ip_forward"}
	forward6  = sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}
	conntrack = sysctl.Key{"net", "netfilter", "nf_conntrack_max"}
)

func filterKey(link string) sysctl.Key { return sysctl.Key{"net", "ipv4", "conf", link, "rp_filter"} }
func routerKey(link string) sysctl.Key { return sysctl.Key{"net", "ipv6", "conf", link, "accept_ra"} }

// Values of rp_filter: the condition for a packet's source.
const (
	strict = "1" // the route back to it is by the interface that the packet came by
	loose  = "2" // there is a route back to it
)

// Get reads a parameter; the error wraps fs.ErrNotExist if the kernel has none of the name.
type Get func(sysctl.Key) (string, error)

// Wanted returns the parameters that must be set, given the present ones. It is pure but for get.
func (c Config) Wanted(get Get) []Setting {
	var settings []Setting
	if c.Forward {
		settings = append(settings, Setting{forward4, "1", "pods reach no other host unless this one forwards their packets"})
		if c.IPv6 && !lacksIPv6(get) {
			settings = append(settings, Setting{forward6, "1", "pods reach no other host by IPv6 unless this one forwards their packets"})
		}
	}
	loosen := func(links []string, why string) {
		for _, link := range links {
			if filters(get, link) == strict {
				settings = append(settings, Setting{filterKey(link), loose, why})
			}
		}
	}
	loosen(c.Tunnels, "a node sends also from addresses that the way back to is not by the tunnel, and pods before the way to them is known")
	loosen(c.Pods, "the pod may send from the prefixes of its annotation")
	return settings
}

// lacksIPv6 reports that the kernel has no IPv6. A node without it is as good as any for IPv4.
func lacksIPv6(get Get) bool {
	_, err := get(forward6)
	return errors.Is(err, fs.ErrNotExist)
}

// filters returns the effective mode of a link: the greater of its own and of conf.all.
func filters(get Get, link string) string {
	all, _ := get(filterKey("all"))
	own, err := get(filterKey(link))
	if err != nil {
		return "" // no such link: nothing is filtered
	}
	return max(all, own)
}

// Notes describes the obstacles that are not ours to change, with their remedies. It is pure but for get.
func (c Config) Notes(get Get) []string {
	var notes []string
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if !c.Forward {
		for _, key := range []sysctl.Key{forward4, forward6} {
			if value, err := get(key); err == nil && value == "0" && (c.IPv6 || len(key) == len(forward4)) {
				note("%s is 0, and FelixConfiguration spec.ipForwarding Disabled keeps the agent from setting it: pods reach no other host until you "+
					"run: sysctl -w %s=1", Dotted(key), Dotted(key))
			}
		}
	}
	if value, err := get(routerKey(c.Link)); c.Forward && c.IPv6 && err == nil && value == "1" {
		note("%s is 1: a host that forwards ignores router advertisements then, and loses an IPv6 default route that came by one: run: "+
			"sysctl -w %s=2", Dotted(routerKey(c.Link)), Dotted(routerKey(c.Link)))
	}
	if c.IPv6 && lacksIPv6(get) {
		note("%s is missing: this kernel has no IPv6, and pods have none here although there is a pool for it: boot without ipv6.disable=1",
			Dotted(forward6))
	}
	if _, err := get(conntrack); errors.Is(err, fs.ErrNotExist) {
		note("%s is missing: the kernel does not track connections, without which there is neither NAT nor a Service: run: modprobe nf_conntrack",
			Dotted(conntrack))
	}
	return notes
}

// Dotted returns a key in the notation of sysctl(8). A dot in a link's name becomes a slash.
func Dotted(key sysctl.Key) string {
	parts := make([]string, len(key))
	for i, part := range key {
		parts[i] = strings.ReplaceAll(part, ".", "/")
	}
	return strings.Join(parts, ".")
}

// Forwarding returns the parameters that make the host forward packets.
func (c Config) Forwarding() (keys []sysctl.Key) {
	if c.Forward {
		keys = append(keys, forward4)
	}
	if c.Forward && c.IPv6 {
		keys = append(keys, forward6)
	}
	return keys
}

// Difference is a parameter with a wrong value.
type Difference struct {
	Setting
	Was string
}

// Differing returns the parameters that Sync would set. It is pure but for get.
func (c Config) Differing(get Get) (all []Difference) {
	for _, s := range c.Wanted(get) {
		if was, err := get(s.Key); err == nil && was != s.Value {
			all = append(all, Difference{s, was})
		}
	}
	return all
}

// Sync sets the wanted parameters below root, and writes no correct ones. The error joins the failures, each with its
// remedy.
func Sync(root sysctl.Root, c Config) error {
	var errs []error
	for _, s := range c.Wanted(root.Get) {
		if err := root.Set(s.Key, s.Value); err != nil {
			errs = append(errs, fmt.Errorf("%s must be %s (%s): %w: %s", Dotted(s.Key), s.Value, s.Why, err, remedy(s, err)))
		}
	}
	return errors.Join(errs...)
}

func remedy(s Setting, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "the kernel has no such parameter: is this a mount of /proc/sys?"
	}
	return fmt.Sprintf("run sysctl -w %s=%s on the host, or let the agent do so: TORTIE_SYSCTL_ROOT must be a writable mount of /proc/sys",
		Dotted(s.Key), s.Value)
}
