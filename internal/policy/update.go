package policy

import (
	"net/netip"
	"slices"
)

// Update follows changes of pods that are not local: those that came, went, or have other labels, ports or addresses. It changes Members in place
// and returns the addresses for which they differ. If ok is false more than Members has changed: Compile again, this Compiled is of no more use.
// All else of the state must be as it was.
func (c *Compiled) Update(state State, changed []PodKey) (touched []netip.Addr, ok bool) {
	before := map[declaredAt]bool{}
	var addresses []netip.Addr
	for _, key := range changed {
		pod := state.Pods[key]
		if c.local[key] || pod != nil && c.newlyKnown(state, pod) {
			return nil, false
		}
		if old := c.pods[key]; old != nil {
			c.noteDeclared(before, old.pod)
			addresses = append(addresses, old.addresses...)
			c.remove(key)
		}
		if pod != nil {
			c.noteDeclared(before, pod)
			c.add(key, pod)
			addresses = append(addresses, c.pods[key].addresses...)
		}
	}
	for d, was := range before {
		if was != (c.declaring[d] > 0) {
			return nil, false
		}
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range slices.Compact(addresses) {
		if c.renew(a) {
			touched = append(touched, a)
		}
	}
	return touched, true
}

// noteDeclared remembers whether any pod declared the ports of this one before the change: if not, or none of its namespace does after it, programs change.
func (c *Compiled) noteDeclared(before map[declaredAt]bool, pod *Pod) {
	for _, port := range c.declares(pod) {
		d := c.declaredAt(port, pod)
		if _, noted := before[d]; !noted {
			before[d] = c.declaring[d] > 0
		}
	}
}

// newlyKnown reports whether labels of the pod's namespace, or service account, have become known.
func (c *Compiled) newlyKnown(state State, pod *Pod) bool {
	namespace, account := c.knows(pod)
	namespaceNow, accountNow := state.directory().knows(pod)
	return namespaceNow != namespace || accountNow != account
}

func (c *Compiled) renew(addr netip.Addr) (changed bool) {
	ids := c.of(addr)
	if slices.Equal(ids, c.Members[addr]) {
		return false
	}
	if len(ids) == 0 {
		delete(c.Members, addr)
	} else {
		c.Members[addr] = ids
	}
	return true
}
