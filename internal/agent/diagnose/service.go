package diagnose

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Service is the state of the Service kubernetes, and of the API servers behind it.
type Service struct {
	// Addr is its cluster IP; invalid if this process is in no pod.
	Addr  netip.AddrPort
	Probe Probe
	// Endpoints are the known endpoints.
	Endpoints []Endpoint
}

// Endpoint is one API server.
type Endpoint struct {
	Addr  netip.AddrPort
	Probe Probe
}

// lookAtService connects to the Service and to its endpoints. It finds the endpoints without the API server, which may
// be unreachable: in the kernel's connection tracking, and in the configuration, if that names an API server instead of
// the Service.
func lookAtService(ctx context.Context, kernel *netlinkx.Conn, settings config.Diagnose) (s Service) {
	if s.Addr = settings.Service; !s.Addr.IsValid() {
		return s
	}
	found, err := kernel.Servers(s.Addr)
	if err != nil {
		found = nil // then no endpoint is known
	}
	if direct := settings.APIServer; direct.IsValid() && direct != s.Addr && !slices.Contains(found, direct) {
		found = append(found, direct)
	}
	var p prober // the kernel chooses the source
	var group sync.WaitGroup
	group.Go(func() { s.Probe = p.connect(ctx, s.Addr.Addr(), s.Addr.Port()) })
	s.Endpoints = make([]Endpoint, len(found))
	for i, addr := range found {
		group.Go(func() { s.Endpoints[i] = Endpoint{addr, p.connect(ctx, addr.Addr(), addr.Port())} })
	}
	group.Wait()
	return s
}

// service checks the way to the API server.
func (o *Observations) service() []Finding {
	s := &o.Service
	if s.Probe.Outcome == notAProbe {
		return nil
	}
	f := Finding{Check: "service", About: "kubernetes, " + s.Addr.String(), Level: OK, Seen: "is open"}
	var open, closed []string
	for _, e := range s.Endpoints {
		if e.Probe.Outcome == Answered {
			open = append(open, e.Addr.String())
		} else {
			closed = append(closed, e.Addr.String())
		}
	}
	switch {
	case s.Probe.Outcome == Answered && len(closed) > 0:
		f.Level, f.Seen = Warning, fmt.Sprintf("is open, but not its endpoint %s", strings.Join(closed, ", "))
		f.Why, f.Do = "connections that kube-proxy gives to it wait and fail",
			"see that the API server runs there, and allow its TCP port from this node in firewalls and security groups"
	case s.Probe.Outcome == Answered:
	case len(open) > 0:
		f.Level, f.Seen = Problem, fmt.Sprintf("%s, and its endpoint %s is open: kube-proxy on this node", s.silence(), strings.Join(open, ", "))
		f.Why = "this node has no rules for Services, or they lead elsewhere: its pods reach no Service and resolve no names"
		f.Do = "see that kube-proxy runs on this node (kubectl -n kube-system get pods -o wide | grep kube-proxy), read its log and restart " +
			"it: it writes its rules anew"
	case len(closed) > 0:
		f.Level, f.Seen = Problem, fmt.Sprintf("%s, nor is its endpoint %s open", s.silence(), strings.Join(closed, ", "))
		f.Why = "this node reaches no API server: nothing follows the cluster, new pods wait"
		f.Do = "see that the API server runs there, and allow its TCP port from this node in firewalls and security groups"
	default:
		f.Level, f.Seen = Problem, s.silence()+", and none of its endpoints is known here"
		f.Why = "this node reaches no Service, or no API server"
		f.Do = "ask an API server itself from this node (kubectl get endpointslices -l kubernetes.io/service-name=kubernetes lists them): if " +
			"it answers, kube-proxy on this node is the cause, else the API server or a firewall"
	}
	return []Finding{f}
}

func (s *Service) silence() string {
	switch s.Probe.Outcome {
	case Silent:
		return "does not answer"
	case Refused:
		return "refuses connections"
	}
	return "cannot be reached: " + s.Probe.Detail
}
