package policy

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// FromCalicoNetworkSet converts a NetworkSet and returns its problems; it leaves out unreadable networks.
func FromCalicoNetworkSet(s *api.CalicoNetworkSet) (NetworkSet, []string) {
	return networkSet(&s.Meta, s.Spec.Nets)
}

// FromCalicoGlobalNetworkSet is FromCalicoNetworkSet for a GlobalNetworkSet.
func FromCalicoGlobalNetworkSet(s *api.CalicoGlobalNetworkSet) (NetworkSet, []string) {
	return networkSet(&s.Meta, s.Spec.Nets)
}

func networkSet(m *api.Meta, texts []string) (NetworkSet, []string) {
	r := &reader{}
	nets, _ := r.nets("spec.nets", texts)
	return NetworkSet{Namespace: m.Namespace, Name: m.Name, Labels: names.Labels(m), Nets: nets}, r.problems
}

// ProfileAllows is the one Profile that exists without an object: it allows what no policy decides. profileOfNamespace
// is the prefix of a namespace's profile, which allows the same.
const (
	ProfileAllows      = "projectcalico-default-allow"
	profileOfNamespace = "kns."
	profileOfAccount   = "ksa." // followed by the namespace, which has no dot, and a dot
)

// mostInterface is the longest name of an interface.
const mostInterface = 15

// FromCalicoHostEndpoint converts a HostEndpoint and returns its problems; it leaves out unreadable addresses and
// ports. If the first profile is unknown no profile counts, as in Felix: what no policy decides is denied, as without
// profiles. The same holds after a service account's profile, which decides nothing itself. There Felix goes on to the
// next profile if the account exists, but the account need not be known here.
func FromCalicoHostEndpoint(h *api.CalicoHostEndpoint) (HostEndpoint, []string) {
	r := &reader{}
	to := HostEndpoint{Name: h.Name, Labels: names.Labels(&h.Meta), Node: h.Spec.Node, Interface: h.Spec.InterfaceName}
	if len(h.Spec.Profiles) > 0 {
		first := h.Spec.Profiles[0]
		switch namespace, found := strings.CutPrefix(first, profileOfNamespace); {
		case first == ProfileAllows:
			to.Allows = true
		case found && namespace != "":
			to.AllowsWith = namespace
		default:
			r.problem("spec.profiles[0]", first,
				"is not known, so that what no policy decides is denied: use "+ProfileAllows+", or a GlobalNetworkPolicy")
		}
	}
	for _, profile := range h.Spec.Profiles {
		if namespace, found := strings.CutPrefix(profile, profileOfNamespace); found {
			to.Inherits = append(to.Inherits, Account{Namespace: namespace})
		}
		if of, found := strings.CutPrefix(profile, profileOfAccount); found {
			namespace, name, _ := strings.Cut(of, ".")
			to.Inherits = append(to.Inherits, Account{namespace, name})
		}
	}
	if len(to.Interface) > mostInterface {
		r.problem("spec.interfaceName", to.Interface,
			"is no name of an interface, so that the endpoint is an address in rules alone: give up to 15 characters, or *")
		to.Node = ""
	}
	for i, text := range h.Spec.ExpectedIPs {
		field := fmt.Sprintf("spec.expectedIPs[%d]", i)
		if net, ok := r.net(field, text); ok && net.IsSingleIP() {
			to.Addresses = append(to.Addresses, net.Addr())
		} else if ok {
			r.problem(field, text, "is a range: give an address")
		}
	}
	for i, p := range h.Spec.Ports {
		if port, ok := r.endpointPort(fmt.Sprintf("spec.ports[%d]", i), p); ok {
			to.Ports = append(to.Ports, port)
		}
	}
	return to, r.problems
}

func (r *reader) endpointPort(field string, p api.CalicoEndpointPort) (NamedPort, bool) {
	protocol, _ := calicoProtocol(p.Protocol)
	switch {
	case protocol != TCP && protocol != UDP && protocol != SCTP:
		return NamedPort{}, r.problem(field+".protocol", p.Protocol, "has no ports: use TCP, UDP or SCTP")
	case p.Port < 0 || p.Port > lastPort:
		return NamedPort{}, r.problem(field+".port", p.Port, "is no port: give a number from 0 to 65535")
	}
	return NamedPort{Name: p.Name, Protocol: protocol, Port: uint16(p.Port)}, r.calicoName(field+".name", p.Name)
}
