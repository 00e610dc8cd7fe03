// Package loadbalancer decides which addresses a Service of type LoadBalancer must hold in IPAM, and show in its
// status. It is pure.
package loadbalancer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
)

// class is the loadBalancerClass of this controller, and of Calico's.
const class = "calico"

// Pools are the pools for addresses of Services.
type Pools struct {
	list   []ipam.Pool
	unread bool // some cannot be read: an address of no pool may be in one of these
}

// ReadPools selects the pools for Services from all pools.
func ReadPools(all []api.IPPool) (p Pools) {
	for i, pool := range ipam.ParsePools(all) {
		switch {
		case pool.Err != nil:
			p.unread = p.unread || slices.Contains(all[i].Spec.AllowedUses, api.UseLoadBalancer)
		case slices.Contains(pool.Uses, api.UseLoadBalancer):
			p.list = append(p.list, pool)
		}
	}
	return p
}

// Any reports whether there is such a pool.
func (p *Pools) Any() bool { return len(p.list) > 0 || p.unread }

// of returns the pool of an address, nil if there is none.
func (p *Pools) of(a netip.Addr) *ipam.Pool {
	i := slices.IndexFunc(p.list, func(pool ipam.Pool) bool { return pool.CIDR.Contains(a) })
	if i < 0 {
		return nil
	}
	return &p.list[i]
}

// Managed reports whether this controller manages a Service. requestedOnly is assignIPs: RequestedServicesOnly. The
// rule is Calico's.
func Managed(s *api.Service, requestedOnly bool) bool {
	if s.Spec.Type != api.ServiceLoadBalancer || s.DeletionTimestamp != "" {
		return false
	}
	if of := s.Spec.LoadBalancerClass; of != nil {
		return *of == class
	}
	return !requestedOnly || s.Spec.LoadBalancerIP != "" ||
		slices.ContainsFunc(api.AddressAnnotations, func(key string) bool { return s.Annotations[key] != "" })
}

// Rounds divides requests so that no round has two for one address. The oldest Service's request is in the first round,
// and by name among Services of one age.
func Rounds[T any](all []T, of func(T) (*api.Service, []netip.Addr)) (rounds [][]T) {
	all = slices.SortedFunc(slices.Values(all), func(a, b T) int {
		x, _ := of(a)
		y, _ := of(b)
		return cmp.Or(cmp.Compare(x.CreationTimestamp, y.CreationTimestamp), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	next := map[netip.Addr]int{} // the first round without a request for the address
	for _, one := range all {
		_, addrs := of(one)
		round := 0
		for _, a := range addrs {
			round = max(round, next[a])
		}
		for _, a := range addrs {
			next[a] = round + 1
		}
		if round == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[round] = append(rounds[round], one)
	}
	return rounds
}

// Handle returns the ID of a Service's handle.
func Handle(s *api.Service) string { return names.ServiceHandle(s.Namespace, s.Name, s.UID) }

// Wish is a Service's request for addresses.
type Wish struct {
	// Families are its families in order: false for IPv4, true for IPv6.
	Families []bool
	// Prefer: one family is enough while the other has no address.
	Prefer bool
	// Addresses are requested ones, at most one per family.
	Addresses []netip.Addr
	// PoolsV4, PoolsV6 restrict the pools.
	PoolsV4, PoolsV6 []string
}

// Read returns a Service's wish. The error names the field, and its value if that is short.
func Read(s *api.Service) (Wish, error) {
	w := Wish{Prefer: s.Spec.IPFamilyPolicy == api.PreferDualStack}
	for _, f := range s.Spec.IPFamilies {
		w.Families = append(w.Families, f == api.AddressIPv6)
	}
	if len(w.Families) == 0 {
		w.Families = []bool{false}
	}
	var texts []string
	for _, list := range []struct {
		key  string
		into *[]string
	}{{api.AnnotationServicePoolsV4, &w.PoolsV4}, {api.AnnotationServicePoolsV6, &w.PoolsV6}, {api.AnnotationServiceAddresses, &texts}} {
		text := s.Annotations[list.key]
		if text != "" && json.Unmarshal([]byte(text), list.into) != nil {
			return Wish{}, fmt.Errorf("annotation %s %s is no JSON list of strings, such as [\"a\"]", list.key, short(text))
		}
	}
	w.PoolsV4, w.PoolsV6 = unique(w.PoolsV4), unique(w.PoolsV6) // Services with equal wishes are served together
	from := "annotation " + api.AnnotationServiceAddresses
	if s.Annotations[api.AnnotationServiceAddresses] == "" && s.Spec.LoadBalancerIP != "" {
		texts, from = []string{s.Spec.LoadBalancerIP}, "spec.loadBalancerIP"
	}
	return w, w.readAddresses(texts, from)
}

// unique removes duplicates.
func unique(list []string) (kept []string) {
	for _, one := range list {
		if !slices.Contains(kept, one) {
			kept = append(kept, one)
		}
	}
	return kept
}

// Unknown returns an error if the Service requests a pool that is not for Services: such a request must not cost more
// than this check.
func (w *Wish) Unknown(pools *Pools) error {
	if pools.unread {
		return nil
	}
	for _, list := range []struct {
		key   string
		names []string
	}{{api.AnnotationServicePoolsV4, w.PoolsV4}, {api.AnnotationServicePoolsV6, w.PoolsV6}} {
		for _, name := range list.names {
			if !slices.ContainsFunc(pools.list, func(p ipam.Pool) bool { return p.Name == name || p.CIDR.String() == name }) {
				return fmt.Errorf("annotation %s: %s is no IPPool for Services", list.key, short(name))
			}
		}
	}
	return nil
}

func short(text string) string {
	const most = 100
	if len(text) > most {
		text = text[:most] + "..."
	}
	return fmt.Sprintf("%q", text)
}

func (w *Wish) readAddresses(texts []string, from string) error {
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil || a.Zone() != "" || a.Is4In6():
			return fmt.Errorf("%s: %s is no IP address", from, short(text))
		case !slices.Contains(w.Families, a.Is6()):
			return fmt.Errorf("%s: %s is of a family that spec.ipFamilies lacks", from, a)
		}
		if other, ok := w.address(a.Is6()); ok {
			return fmt.Errorf("%s: %s and %s are of one family: give one of each", from, other, a)
		}
		w.Addresses = append(w.Addresses, a)
	}
	return nil
}

func (w *Wish) address(v6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(w.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return w.Addresses[i], true
}

// Fits reports whether the Service may keep an address that it holds.
func (w *Wish) Fits(a netip.Addr, pools *Pools) bool {
	pool := pools.of(a)
	if wanted, ok := w.address(a.Is6()); ok && wanted != a || !slices.Contains(w.Families, a.Is6()) || pool == nil {
		return pool == nil && pools.unread
	} else if ok {
		return true
	}
	asked := w.PoolsV4
	if a.Is6() {
		asked = w.PoolsV6
	}
	if len(asked) == 0 {
		return pool.Automatic
	}
	return slices.Contains(asked, pool.Name) || slices.Contains(asked, pool.CIDR.String())
}

// Split divides the addresses of a Service into the kept ones, one per family in the order of its families, and the
// others.
func (w *Wish) Split(held []netip.Addr, pools *Pools) (keep, drop []netip.Addr) {
	drop = slices.SortedFunc(slices.Values(held), netip.Addr.Compare)
	for _, v6 := range w.Families {
		i := slices.IndexFunc(drop, func(a netip.Addr) bool { return a.Is6() == v6 && w.Fits(a, pools) })
		if i >= 0 {
			keep = append(keep, drop[i])
			drop = slices.Delete(drop, i, i+1)
		}
	}
	return keep, drop
}

// Shown returns the addresses of pools that the Service's status shows and that it may keep beside keep, one per family.
func (w *Wish) Shown(s *api.Service, keep []netip.Addr, pools *Pools) []netip.Addr {
	var shown []netip.Addr
	positions(s, func(a netip.Addr) bool {
		held := func(k netip.Addr) bool { return k.Is6() == a.Is6() }
		if pools.of(a) != nil && !slices.ContainsFunc(keep, held) {
			shown = append(shown, a)
		}
		return false
	})
	fit, _ := w.Split(shown, pools)
	return fit
}

// Ask adds addresses to the requested ones.
func (w *Wish) Ask(addrs []netip.Addr) {
	for _, a := range addrs {
		if !slices.Contains(w.Addresses, a) {
			w.Addresses = append(w.Addresses, a)
		}
	}
}

// Lost returns the positions of status entries that must be removed: addresses in pools that the Service does not keep,
// and addresses that it held from deleted pools. Entries of other controllers stay.
func Lost(s *api.Service, keep, drop []netip.Addr, pools *Pools) []int {
	return positions(s, func(a netip.Addr) bool {
		return slices.Contains(drop, a) || pools.of(a) != nil && !slices.Contains(keep, a)
	})
}

// Positions returns the positions of the status entries with one of the addresses.
func Positions(s *api.Service, addrs []netip.Addr) []int {
	return positions(s, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

func positions(s *api.Service, which func(netip.Addr) bool) (at []int) {
	for i, entry := range s.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(entry.IP); err == nil && which(a) {
			at = append(at, i)
		}
	}
	return at
}

// Shows reports whether a Service's status has exactly these addresses, in any order.
func Shows(s *api.Service, addrs []netip.Addr) bool {
	return len(s.Status.LoadBalancer.Ingress) == len(addrs) && len(Positions(s, addrs)) == len(addrs)
}
