package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/policy"
)

// CalicoView has the objects that only Calico's policies read, in no particular order. Objects have only the labels and
// annotations that policies read.
type CalicoView struct {
	NetworkPolicies       []*api.CalicoNetworkPolicy
	GlobalNetworkPolicies []*api.CalicoGlobalNetworkPolicy
	Tiers                 []*api.CalicoTier
	NetworkSets           []*api.CalicoNetworkSet
	GlobalNetworkSets     []*api.CalicoGlobalNetworkSet
	HostEndpoints         []*api.CalicoHostEndpoint
	// Services has the endpoints, ready or not, of the Services that policies name, and possibly of others. Accounts are
	// the labels of all service accounts, or nil. Both are empty while no policy refers to any.
	Services map[policy.Service][]policy.ServiceEndpoint
	Accounts map[policy.Account]map[string]string
}

// calicoStores hold Calico's objects.
type calicoStores struct {
	policies       *objectStore[api.CalicoNetworkPolicy]
	globalPolicies *objectStore[api.CalicoGlobalNetworkPolicy]
	tiers          *objectStore[api.CalicoTier]
	sets           *objectStore[api.CalicoNetworkSet]
	globalSets     *objectStore[api.CalicoGlobalNetworkSet]
	endpoints      *objectStore[api.CalicoHostEndpoint]
}

// addCalico makes the stores and their watches. Each kind's definition may be missing.
func (f *PolicyFeed) addCalico() error {
	c := &f.calico
	return errors.Join(
		addCalico(f, &c.policies, "Calico NetworkPolicy", partCalicoPolicies),
		addCalico(f, &c.globalPolicies, "GlobalNetworkPolicy", partCalicoGlobalPolicies),
		addCalico(f, &c.tiers, "Tier", partTiers),
		addCalico(f, &c.sets, "NetworkSet", partNetworkSets),
		addCalico(f, &c.globalSets, "GlobalNetworkSet", partGlobalNetworkSets),
		addTrimmed(f, &c.endpoints, "HostEndpoint", partHostEndpoints, trimHost),
	)
}

func addCalico[T any](f *PolicyFeed, store **objectStore[T], name string, what part) error {
	return addTrimmed(f, store, name, what, trimCalico[T])
}

func addTrimmed[T any](f *PolicyFeed, store **objectStore[T], name string, what part, trim func(*T)) error {
	*store = newObjectStore(sameCalico[T], func(*T) { f.note(what) })
	(*store).listed = func() { f.noteList(what) }
	return add(&f.feed, source[T]{name: name, doubtful: true, optional: true, pages: podPage, trim: trim}, *store)
}

// trimHost also keeps the annotations that kube-controllers give a host endpoint by a template.
func trimHost(h *api.CalicoHostEndpoint) {
	annotations := h.Annotations
	trimCalico(h)
	delete(annotations, lastApplied)
	h.Annotations = annotations
}

// lastApplied is kubectl's annotation with an earlier state of the object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// trimCalico keeps the metadata that policies and the keeper of tiers read. Calico's clients write labels into an
// annotation.
func trimCalico[T any](o *T) {
	m := metaOf(o)
	kept := bareMeta(m)
	kept.Labels, kept.DeletionTimestamp, kept.Foreign = m.Labels, m.DeletionTimestamp, m.Foreign
	if text, ok := m.Annotations[names.AnnotationMetadata]; ok {
		kept.Annotations = map[string]string{names.AnnotationMetadata: text}
	}
	*m = kept
}

func metaOf[T any](o *T) *api.Meta { return any(o).(api.Resource).GetMeta() }

// sameCalico compares everything that trimCalico keeps, except the revision.
func sameCalico[T any](a, b *T) bool {
	x, y := *a, *b
	metaOf(&x).ResourceVersion, metaOf(&y).ResourceVersion = "", ""
	return reflect.DeepEqual(x, y)
}

func (c *calicoStores) problems() []state.Problem {
	return slices.Concat(c.policies.problemsBy(key), c.globalPolicies.problemsBy(key), c.tiers.problemsBy(key), c.sets.problemsBy(key),
		c.globalSets.problemsBy(key), c.endpoints.problemsBy(key))
}

// refreshCalico rebuilds the stale parts of the view. The caller holds the lock.
func (f *PolicyFeed) refreshCalico(v *CalicoView) {
	renew(f, partCalicoPolicies, f.calico.policies, &v.NetworkPolicies)
	renew(f, partCalicoGlobalPolicies, f.calico.globalPolicies, &v.GlobalNetworkPolicies)
	renew(f, partTiers, f.calico.tiers, &v.Tiers)
	renew(f, partNetworkSets, f.calico.sets, &v.NetworkSets)
	renew(f, partGlobalNetworkSets, f.calico.globalSets, &v.GlobalNetworkSets)
	renew(f, partHostEndpoints, f.calico.endpoints, &v.HostEndpoints)
	f.findNamed()
	if f.stale&partCalicoMore != 0 {
		v.Services, v.Accounts = f.calicoWatches.services(), f.calicoWatches.labels()
	}
}

// HostEndpoints returns all HostEndpoints, in no particular order; false before they have been listed. The caller must
// not change them. The call does not affect Take.
func (f *PolicyFeed) HostEndpoints() ([]*api.CalicoHostEndpoint, bool) {
	return f.calico.endpoints.each(), f.calico.endpoints.isFull()
}

func renew[T any](f *PolicyFeed, what part, from *objectStore[T], to *[]*T) {
	if f.stale&what != 0 {
		*to = from.each()
	}
}

// calicoWatches are open while policies refer to their objects.
type calicoWatches struct {
	found        bool                   // needs belong to the present policies
	needs        map[string]policyNeeds // by UID of the policy
	accounts     *tempWatch[policyAccount]
	wantAccounts bool
	slices       []sliceWatch // the last one has the selector that was wanted last
	wantSlices   string       // a selector; empty: none
	wantServices []string     // the names in wantSlices
}

// sliceWatch is a watch of the EndpointSlices that a selector names.
type sliceWatch struct {
	*tempWatch[policySlice]
	selector string
}

// policyNeeds are the needs of an object, or of its last readable version: PolicyReader keeps that version.
type policyNeeds struct {
	of any
	policy.Needs
}

// mostServices is how many Services are selected by name, so that the selector fits into a request; for more there is
// one watch of all.
const mostServices = 50

// findNamed finds the objects that policies refer to, if these have changed. The caller holds the lock.
func (f *PolicyFeed) findNamed() {
	w := &f.calicoWatches
	if w.found {
		return
	}
	before := w.needs
	w.found, w.needs = true, map[string]policyNeeds{}
	findNeeds(w, before, f.calico.policies.each(), policy.FromCalicoNetworkPolicy)
	findNeeds(w, before, f.calico.globalPolicies.each(), policy.FromCalicoGlobalNetworkPolicy)
	f.staged.findNeeds(w, before)
	services := map[string]bool{}
	w.wantAccounts = false
	for _, n := range w.needs {
		w.wantAccounts = w.wantAccounts || n.Accounts
		for _, s := range n.Services {
			services[s.Name] = true
		}
	}
	w.wantServices = slices.Sorted(maps.Keys(services))
	w.wantSlices = slicesOf(w.wantServices)
}

// slicesOf returns the selector of the EndpointSlices of Services.
func slicesOf(services []string) string {
	switch {
	case len(services) > mostServices:
		return api.LabelServiceName
	case len(services) > 0:
		return api.LabelServiceName + " in (" + strings.Join(services, ",") + ")"
	}
	return ""
}

// selects reports whether a selector by slicesOf includes a Service.
func selects(selector, service string) bool {
	_, names, some := strings.Cut(selector, " in (")
	return !some || slices.Contains(strings.Split(strings.TrimSuffix(names, ")"), ","), service)
}

// findNeeds reads each object once. The tiers do not matter.
func findNeeds[T any](w *calicoWatches, before map[string]policyNeeds, all []*T,
	read func(*T, map[string]policy.Tier) (policy.Policy, error)) {
	for _, o := range all {
		n := before[metaOf(o).UID]
		if n.of != o {
			if p, err := read(o, nil); err == nil {
				n.Needs = p.Needs()
			}
			n.of = o
		}
		w.needs[metaOf(o).UID] = n
	}
}

// keepCalico opens and closes watches. The caller holds the lock.
func (f *PolicyFeed) keepCalico(ctx context.Context, now time.Time) {
	f.findNamed()
	w := &f.calicoWatches
	w.accounts = keepOpen(f, w.accounts, w.wantAccounts, now, partCalicoMore, func() *tempWatch[policyAccount] {
		of := newObjectStore(samePolicyAccount, func(*policyAccount) { f.note(partCalicoMore) })
		return openTemp(ctx, f, source[policyAccount]{name: "ServiceAccount", partial: true, pages: podPage, doubtful: true}, of, partCalicoMore)
	})
	f.keepSlices(ctx, now)
}

// keepSlices opens and closes watches of EndpointSlices. Watches of earlier selectors close at once; else a policy
// author could keep any number open. There are two at most: the wanted one, and the last that has been listed. The
// caller holds the lock.
func (f *PolicyFeed) keepSlices(ctx context.Context, now time.Time) {
	w := &f.calicoWatches
	if n := len(w.slices); w.wantSlices != "" && (n == 0 || w.slices[n-1].selector != w.wantSlices) {
		w.slices = append(w.slices, f.openSlices(ctx, w.wantSlices))
		f.noteLocked(partCalicoMore)
	}
	last, listed := len(w.slices)-1, false
	for i, open := range slices.Backward(w.slices) {
		keep := open.listed && !listed
		if i == last {
			keep = !open.unused(w.wantSlices == "", now)
		}
		if listed = listed || open.listed; !keep {
			open.stop()
			w.slices = slices.Delete(w.slices, i, i+1)
			f.noteLocked(partCalicoMore)
		}
	}
}

func (f *PolicyFeed) openSlices(ctx context.Context, selector string) sliceWatch {
	of := newObjectStore(samePolicySlice, func(*policySlice) { f.note(partCalicoMore) })
	src := source[policySlice]{name: "EndpointSlice", labels: selector, pages: podPage, doubtful: true}
	return sliceWatch{openTemp(ctx, f, src, of, partCalicoMore), selector}
}

// missing returns the Services, and whether there are service accounts, that policies refer to and that have not been
// listed. A Service in an earlier, listed selector is not missing: else a policy that names another Service would delay
// all policies with Services.
func (w *calicoWatches) missing() (services map[string]bool, accounts bool) {
	for _, name := range w.wantServices {
		if !w.knows(name) {
			if services == nil {
				services = map[string]bool{}
			}
			services[name] = true
		}
	}
	return services, w.wantAccounts && (w.accounts == nil || !w.accounts.listed)
}

func (w *calicoWatches) knows(service string) bool {
	return slices.ContainsFunc(w.slices, func(open sliceWatch) bool { return open.listed && selects(open.selector, service) })
}

func (w *calicoWatches) failures() (errs []error) {
	if w.accounts != nil {
		errs = append(errs, w.accounts.failure())
	}
	for _, open := range w.slices {
		errs = append(errs, open.failure())
	}
	return errs
}

// labels returns the labels of the service accounts; nil before all have been listed.
func (w *calicoWatches) labels() map[policy.Account]map[string]string {
	if w.accounts == nil || !w.accounts.listed {
		return nil
	}
	labels := map[policy.Account]map[string]string{}
	for _, a := range w.accounts.of.each() {
		labels[policy.Account{Namespace: a.Namespace, Name: a.Name}] = a.Labels
	}
	return labels
}

// services returns the endpoints by their Service. Some may occur twice.
func (w *calicoWatches) services() map[policy.Service][]policy.ServiceEndpoint {
	found := map[policy.Service][]policy.ServiceEndpoint{}
	for _, open := range w.slices {
		for _, s := range open.of.each() {
			found[s.of] = append(found[s.of], s.endpoints...)
		}
	}
	return found
}

// policyAccount is the metadata of a ServiceAccount.
type policyAccount struct {
	api.Meta `json:"metadata"`
}

// ResourceType implements api.Resource.
func (*policyAccount) ResourceType() api.Type {
	return api.Type{Version: "v1", Kind: "ServiceAccount", Plural: "serviceaccounts", Namespaced: true}
}

func samePolicyAccount(a, b *policyAccount) bool { return maps.Equal(a.Labels, b.Labels) }

// policySlice is the part of an EndpointSlice that policies depend on.
type policySlice struct {
	meta      api.Meta // see named
	of        policy.Service
	endpoints []policy.ServiceEndpoint
}

// GetMeta implements api.Resource.
func (s *policySlice) GetMeta() *api.Meta { return &s.meta }

// ResourceType implements api.Resource.
func (*policySlice) ResourceType() api.Type { return (*api.EndpointSlice)(nil).ResourceType() }

// policySliceObject has the fields of an EndpointSlice that are decoded.
type policySliceObject struct {
	Meta      api.Meta `json:"metadata"`
	Endpoints []struct {
		Addresses []string `json:"addresses"`
	} `json:"endpoints"`
	Ports []struct {
		Protocol corev1.Protocol `json:"protocol"`
		Port     *uint16         `json:"port"` // absent: not restricted
	} `json:"ports"`
}

// UnmarshalJSON reads an EndpointSlice. Like Calico it includes endpoints that are not ready.
func (s *policySlice) UnmarshalJSON(data []byte) error {
	var obj policySliceObject
	if err := json.Unmarshal(data, &obj); err != nil {
		return err
	}
	*s = policySlice{meta: named(&obj.Meta),
		of: policy.Service{Namespace: shared(obj.Meta.Namespace), Name: shared(obj.Meta.Labels[api.LabelServiceName])}}
	for _, e := range obj.Endpoints {
		for _, text := range e.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue // a name: AddressType is FQDN
			}
			s.add(addr.Unmap().WithZone(""), &obj)
		}
	}
	return nil
}

func (s *policySlice) add(addr netip.Addr, obj *policySliceObject) {
	s.endpoints = append(s.endpoints, policy.ServiceEndpoint{Address: addr})
	for _, p := range obj.Ports {
		if number, known := protocols[p.Protocol]; known && p.Port != nil {
			s.endpoints = append(s.endpoints, policy.ServiceEndpoint{Address: addr, Protocol: number, Port: *p.Port})
		}
	}
}

func samePolicySlice(a, b *policySlice) bool {
	return a.of == b.of && slices.Equal(a.endpoints, b.endpoints)
}
