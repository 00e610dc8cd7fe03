package plugin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
)

// The orchestrators of endpoints, and the namespace of endpoints without a pod.
const (
	orchestratorPods  = "k8s"
	orchestratorPlain = "cni"
	plainNamespace    = "default"
)

// objectEndpoint is a WorkloadEndpoint on etcd, of a pod or of a container without one.
type objectEndpoint struct{ *session }

// plain reports whether the container has no pod.
func (s *session) plain() bool { return s.pod == "" }

// attributes returns the attributes of the container's addresses in their block.
func (s *session) attributes() map[string]string {
	attrs := map[string]string{"node": s.node, "timestamp": s.began.UTC().Format(timestampFormat)}
	if !s.plain() {
		attrs["pod"], attrs["namespace"] = s.pod, s.namespace
	}
	if s.anothers {
		attrs[names.AttributeInterface] = s.ifName
	}
	return attrs
}

// legacyOwner returns the owner with the handle that a Calico before version 3 gave the container. That Calico wrote no
// attributes: an address with attributes of anything but the pod has another owner, with a handle of the same name.
func (s *session) legacyOwner() ipam.Owner {
	handle := s.containerID
	if !s.plain() {
		handle = names.LegacyPodHandle(s.namespace, s.pod)
	}
	return ipam.Owner{Handle: handle, Attrs: map[string]string{"pod": s.pod, "namespace": s.namespace}}
}

// read checks that the datastore is ready and, if the configuration has pods read, reads the pod and its namespace, in
// parallel.
func (e *objectEndpoint) read(ctx context.Context, _ bool) (*workload, error) {
	if !e.plain() && e.conf.ofPods() {
		return (&podEndpoint{e.session}).read(ctx, false)
	}
	return &workload{}, e.ready(ctx)
}

// name returns the endpoint without content.
func (e *objectEndpoint) name() *api.WorkloadEndpoint {
	if e.plain() {
		return &api.WorkloadEndpoint{Meta: api.Meta{
			Name: names.WorkloadEndpoint(e.node, orchestratorPlain, e.containerID, e.ifName), Namespace: plainNamespace,
		}}
	}
	return &api.WorkloadEndpoint{Meta: api.Meta{
		Name: names.WorkloadEndpoint(e.node, orchestratorPods, e.pod, e.ifName), Namespace: e.session.namespace,
	}}
}

// note writes the endpoint, and before it the network's profile if that is missing and used.
func (e *objectEndpoint) note(ctx context.Context, w *workload, link podnet.Result, addrs []netip.Addr) error {
	if err := e.ensureProfile(ctx); err != nil {
		return err
	}
	return e.write(ctx, e.endpointOf(w, link, addrs))
}

// write creates the endpoint, or replaces the one of an earlier sandbox of the pod.
func (e *objectEndpoint) write(ctx context.Context, want *api.WorkloadEndpoint) error {
	return again(ctx, func() error {
		fresh := *want
		err := e.store.Create(ctx, &fresh)
		if !errors.Is(err, datastore.ErrExists) {
			return err
		}
		have := e.name()
		if err := e.store.Get(ctx, have); errors.Is(err, datastore.ErrNotFound) {
			return fmt.Errorf("%w: it went away", datastore.ErrConflict)
		} else if err != nil {
			return err
		}
		have.GenerateName, have.Labels, have.Spec = want.GenerateName, want.Labels, want.Spec
		return e.store.Update(ctx, have)
	})
}

// endpointOf returns the endpoint for Felix.
func (e *objectEndpoint) endpointOf(of *workload, link podnet.Result, addrs []netip.Addr) *api.WorkloadEndpoint {
	w := e.name()
	w.Spec = api.WorkloadEndpointSpec{
		Orchestrator: orchestratorPlain, Node: e.node, ContainerID: e.containerID, Endpoint: e.ifName,
		Profiles: []string{e.conf.Name}, InterfaceName: link.HostVeth, MAC: link.MAC.String(),
	}
	for _, a := range addrs {
		w.Spec.IPNetworks = append(w.Spec.IPNetworks, netip.PrefixFrom(a, a.BitLen()).String())
	}
	if !e.plain() {
		e.describePod(w, of, addrs)
	}
	return w
}

// describePod adds to w what follows from the pod: labels and profiles, by which Calico's policy selects endpoints, and
// what its annotations allow.
func (e *objectEndpoint) describePod(w *api.WorkloadEndpoint, of *workload, addrs []netip.Addr) {
	pod := &of.pod
	account := pod.Spec.ServiceAccountName
	w.Spec.Orchestrator, w.Spec.Pod, w.Spec.ServiceAccountName = orchestratorPods, e.pod, account
	w.Labels = map[string]string{}
	for k, v := range pod.Labels {
		w.Labels[k] = v
	}
	w.Labels["projectcalico.org/namespace"] = e.session.namespace
	w.Labels["projectcalico.org/orchestrator"] = orchestratorPods
	if account != "" && len(account) <= maxLabel {
		w.Labels["projectcalico.org/serviceaccount"] = account
	}
	if !e.conf.ofPods() {
		return
	}
	w.GenerateName = pod.GenerateName
	w.Spec.Profiles = []string{"kns." + e.session.namespace}
	if account != "" {
		w.Spec.Profiles = append(w.Spec.Profiles, "ksa."+e.session.namespace+"."+account)
	}
	w.Spec.Ports = endpointPorts(pod)
	e.describeAnnotations(w, of, addrs)
}

// maxLabel is the longest value that a label may have.
const maxLabel = 63

// describeAnnotations adds the annotations that Felix reads. ADD has already refused invalid ones.
func (e *objectEndpoint) describeAnnotations(w *api.WorkloadEndpoint, of *workload, addrs []netip.Addr) {
	var want request
	if readAnnotations(of, &want) != nil {
		return
	}
	for _, f := range want.floating {
		for _, a := range addrs {
			if a.Is4() == f.Is4() {
				w.Spec.IPNATs = append(w.Spec.IPNATs, api.EndpointNAT{InternalIP: a.String(), ExternalIP: f.String()})
			}
		}
	}
	for _, p := range want.sources {
		w.Spec.AllowSpoofedSourcePrefixes = append(w.Spec.AllowSpoofedSourcePrefixes, p.Masked().String())
	}
}

// endpointPorts returns the ports with a name, which policy may use, or a port of the host.
func endpointPorts(pod *api.Pod) []api.EndpointPort {
	var ports []api.EndpointPort
	for _, containers := range [][]api.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, c := range containers {
			for _, p := range c.Ports {
				if p.Name == "" && p.HostPort == 0 {
					continue
				}
				protocol := p.Protocol
				if protocol == "" {
					protocol = "TCP"
				}
				ports = append(ports, api.EndpointPort{Name: p.Name, Protocol: protocol, Port: p.ContainerPort, HostPort: p.HostPort, HostIP: p.HostIP})
			}
		}
	}
	return ports
}

// ensureProfile creates the network's profile if there is none. It allows ingress to pods from everywhere, and to other
// containers from containers of the same network. An existing profile stays as it is.
func (e *objectEndpoint) ensureProfile(ctx context.Context) error {
	if e.conf.Policy.Type != "" {
		return nil
	}
	p := &api.Profile{Meta: api.Meta{Name: e.conf.Name}}
	err := e.store.Get(ctx, p)
	if !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	ingress := api.Rule{Action: "Allow"}
	if e.plain() {
		ingress.Source.Selector = "has(" + e.conf.Name + ")"
	}
	p.Spec = api.ProfileSpec{Ingress: []api.Rule{ingress}, Egress: []api.Rule{{Action: "Allow"}},
		LabelsToApply: map[string]string{e.conf.Name: ""}}
	if err := e.store.Create(ctx, p); !errors.Is(err, datastore.ErrExists) {
		return err
	}
	return nil
}

// clear deletes the endpoint if it is this container's. One that this network has only joined stays for the first
// network.
func (e *objectEndpoint) clear(ctx context.Context) error {
	return again(ctx, func() error {
		w := e.name()
		err := e.store.Get(ctx, w)
		if errors.Is(err, datastore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if w.Spec.ContainerID != "" && w.Spec.ContainerID != e.containerID {
			e.log.Info("endpoint not deleted: the pod has a newer sandbox", "sandbox", w.Spec.ContainerID)
			return nil
		}
		if e.joined(w) {
			return nil
		}
		return e.store.Delete(ctx, w)
	})
}

// clearAll removes the container's endpoints of this network, whatever their interfaces are called.
func (e *objectEndpoint) clearAll(ctx context.Context) error {
	return again(ctx, func() error {
		own, err := e.list(ctx)
		for i := range own {
			if w := &own[i]; e.ofNetwork(w) {
				err = errors.Join(err, e.store.Delete(ctx, w))
			}
		}
		return err
	})
}

// lister lists endpoints by name prefix, which only etcd can.
type lister interface {
	ListNamed(ctx context.Context, list api.ResourceList, namespace, prefix string) error
}

// list returns the container's endpoints.
func (e *objectEndpoint) list(ctx context.Context) ([]api.WorkloadEndpoint, error) {
	store, ok := e.store.(lister)
	if !ok {
		return nil, fmt.Errorf("%T lists no endpoints", e.store)
	}
	anyInterface := *e.session
	anyInterface.ifName = ""
	prefix := (&objectEndpoint{&anyInterface}).name()
	var list api.WorkloadEndpointList
	if err := store.ListNamed(ctx, &list, prefix.Namespace, prefix.Name); err != nil {
		return nil, err
	}
	// Dashes are doubled: the name of an endpoint of pod web-0 begins like a name of pod web.
	return slices.DeleteFunc(list.Items, func(w api.WorkloadEndpoint) bool { return w.Spec.ContainerID != e.containerID }), nil
}

// ofNetwork reports whether this network made the endpoint, not one that the container was in before.
func (e *objectEndpoint) ofNetwork(w *api.WorkloadEndpoint) bool {
	return !e.plain() || len(w.Spec.Profiles) == 0 || w.Spec.Profiles[0] == e.conf.Name
}
