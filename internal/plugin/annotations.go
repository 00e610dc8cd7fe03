package plugin

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Annotation is a pod annotation that configures the pod's connection, as docs/ shows it.
type Annotation struct {
	Key         string
	OfNamespace bool // a namespace may have it, for its pods that do not
	Form        string
	Help        string
	read        func(text string, into *request) bool // false: the text has not that form
}

// annotations is the table for reading annotations and for docs/.
var annotations = []Annotation{
	{
		Key: api.AnnotationIPv4Pools, OfNamespace: true, Form: `a JSON list of names or CIDRs of IPPools, such as ["default-ipv4-ippool"]`,
		Help: "Takes the place of ipam.ipv4_pools.",
		read: func(text string, w *request) bool { return readPools(text, &w.poolsV4) },
	},
	{
		Key: api.AnnotationIPv6Pools, OfNamespace: true, Form: `a JSON list of names or CIDRs of IPPools, such as ["default-ipv6-ippool"]`,
		Help: "Takes the place of ipam.ipv6_pools.",
		read: func(text string, w *request) bool { return readPools(text, &w.poolsV6) },
	},
	{
		Key: api.AnnotationIPFamilies, OfNamespace: true, Form: `a JSON list of IPv4, IPv6 or both, such as ["IPv4","IPv6"]`,
		Help: "Takes the place of ipam.assign_ipv4 and ipam.assign_ipv6.",
		read: readFamilies,
	},
	{
		Key: api.AnnotationIPAddrs, Form: `a JSON list of at most one IPv4 and one IPv6 address, such as ["10.0.0.5"]`,
		Help: "calico-ipam assigns these addresses. An earlier sandbox of the same pod gives them up.",
		read: func(text string, w *request) bool { return readPair(text, &w.addresses) },
	},
	{
		Key: api.AnnotationIPAddrsNoIPAM, Form: `a JSON list of at most one IPv4 and one IPv6 address, such as ["10.0.0.5"]`,
		Help: "The pod gets these addresses, and IPAM does not hear of them. Allowed by feature_control.ip_addrs_no_ipam.",
		read: func(text string, w *request) bool { return readPair(text, &w.unmanaged) },
	},
	{
		Key: api.AnnotationFloatingIPs, Form: `a JSON list of 1 to 16 addresses, such as ["192.0.2.7"]`,
		Help: "calico-ipam assigns these addresses of enabled pools, and the node translates them to the pod's. Allowed by " +
			"feature_control.floating_ips, and by FelixConfiguration floatingIPs Enabled.",
		read: readFloating,
	},
	{
		Key: api.AnnotationHwAddr, Form: `a unicast MAC address of six bytes, such as 02:00:5e:10:00:01`,
		Help: "The MAC address of the pod's interface.",
		read: readMAC,
	},
	{
		Key: api.AnnotationAllowedSources, Form: `a JSON list of CIDRs, such as ["10.1.0.0/16"]`,
		Help: "The pod may send from these addresses too, if FelixConfiguration has workloadSourceSpoofing Any.",
		read: readSources,
	},
}

// Annotations lists the annotations that the plugin reads.
func Annotations() []Annotation { return append([]Annotation(nil), annotations...) }

// readAnnotations overrides into with the annotations of a pod, or else of its namespace.
func readAnnotations(w *workload, into *request) error {
	for _, a := range annotations {
		text, on := w.pod.Annotations[a.Key], "pod "+w.pod.Namespace+"/"+w.pod.Name
		if text == "" && a.OfNamespace {
			text, on = w.namespace.Annotations[a.Key], "namespace "+w.namespace.Name
		}
		if text != "" && !a.read(text, into) {
			return fmt.Errorf(`annotation %s of %s: %.200q: must be %s`, a.Key, on, text, a.Form)
		}
	}
	return nil
}

// list reads a JSON list with at least one item, none of which is null or empty.
func list(text string) []string {
	var items []string
	if json.Unmarshal([]byte(text), &items) != nil {
		return nil
	}
	for _, item := range items {
		if item == "" {
			return nil
		}
	}
	return items
}

func readPools(text string, into *[]string) bool {
	*into = list(text)
	return len(*into) > 0
}

func readFamilies(text string, w *request) bool {
	families := list(text)
	w.v4, w.v6 = false, false
	for _, f := range families {
		switch f {
		case "IPv4":
			w.v4 = true
		case "IPv6":
			w.v6 = true
		default:
			return false
		}
	}
	return len(families) > 0
}

func readAddrs(text string, into *[]netip.Addr) bool {
	*into = nil
	for _, item := range list(text) {
		a, err := netip.ParseAddr(item)
		if err != nil || a.Zone() != "" {
			return false
		}
		*into = append(*into, a.Unmap())
	}
	return len(*into) > 0
}

// mostFloating is how many floating addresses a pod may have: one pod must not take all addresses of a pool.
const mostFloating = 16

func readFloating(text string, w *request) bool {
	if !readAddrs(text, &w.floating) {
		return false
	}
	slices.SortFunc(w.floating, netip.Addr.Compare)
	w.floating = slices.Compact(w.floating)
	return len(w.floating) <= mostFloating
}

// readPair reads at most one address of each family.
func readPair(text string, into *[]netip.Addr) bool {
	return readAddrs(text, into) && (len(*into) == 1 || len(*into) == 2 && (*into)[0].Is4() != (*into)[1].Is4())
}

func readMAC(text string, w *request) bool {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00" {
		return false
	}
	w.mac = mac
	return true
}

func readSources(text string, w *request) bool {
	for _, item := range list(text) {
		p, err := netip.ParsePrefix(item)
		if err != nil {
			return false
		}
		w.sources = append(w.sources, p.Masked())
	}
	return len(w.sources) > 0
}
