package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Update follows changes of pods. changed names pods that came, went, or have other labels, ports or addresses; pods
// that came to Local or left it need not be named. It changes Members and Endpoints in place and returns the addresses
// with other Members. A program without pods stays, as pods that come and go mostly have it again: see Unused. If ok is
// false neither has changed, but more would have to, such as a program that no pod had: the caller must Compile again
// and drop c. All else of the state must be unchanged.
func (c *Compiled) Update(state State, changed []PodKey) (touched []netip.Addr, ok bool) {
	links, changed := c.moved(state, changed)
	before := map[declaredAt]bool{}
	var addresses []netip.Addr
	for _, key := range changed {
		pod := state.Pods[key]
		if pod != nil && c.newlyKnown(state, pod) {
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
	if !c.follow(state, links) {
		return nil, false
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	for _, a := range slices.Compact(addresses) {
		if c.renew(a) {
			touched = append(touched, a)
		}
	}
	return touched, true
}

// moved returns the links with changed or other pods, and changed with the pods that came to these links or left them.
func (c *Compiled) moved(state State, changed []PodKey) (links []string, all []PodKey) {
	for _, key := range changed {
		if link := c.links[key]; link != "" {
			links = append(links, link)
		}
	}
	if maps.Equal(c.local, state.Local) {
		slices.Sort(links)
		return slices.Compact(links), changed
	}
	differ := func(these, those map[string]PodKey) {
		for link, key := range these {
			if those[link] != key {
				links, changed = append(links, link), append(changed, key)
			}
		}
	}
	changed = slices.Clip(changed)
	differ(c.local, state.Local)
	differ(state.Local, c.local)
	slices.Sort(links)
	slices.SortFunc(changed, PodKey.compare)
	c.local, c.links = maps.Clone(state.Local), linksOf(state.Local)
	return slices.Compact(links), slices.Compact(changed)
}

func linksOf(local map[string]PodKey) map[PodKey]string {
	links := make(map[PodKey]string, len(local))
	for link, key := range local {
		links[key] = link
	}
	return links
}

// entry is the result of Select and Compile for a local pod.
type entry struct {
	policies [2][]int
	programs [2]*shared
	Endpoint
}

// Unused reports whether there may be programs without pods, and sets only they use: Compile leaves them out.
func (c *Compiled) Unused() bool { return c.unused }

// follow assigns existing programs to the pods of links. ok is false, and nothing is changed, if a pod needs a new
// program, or if the last pod of a program that was too large goes.
func (c *Compiled) follow(state State, links []string) (ok bool) {
	if len(links) == 0 {
		return true
	}
	c.compiler.state.Pods, c.compiler.state.Local = state.Pods, state.Local
	c.selection.state.Pods, c.selection.state.Local = state.Pods, state.Local
	entries, more := map[string]entry{}, map[*shared]int{}
	for _, link := range links {
		if programs, had := c.byLink[link]; had {
			more[programs[Ingress]]--
			more[programs[Egress]]--
		}
		pod := state.Pods[state.Local[link]]
		if pod == nil {
			continue
		}
		e, ok := c.entry(pod)
		if !ok {
			return false
		}
		entries[link] = e
		more[e.programs[Ingress]]++
		more[e.programs[Egress]]++
	}
	for p, n := range more {
		if p.tooLarge && p.pods+n == 0 {
			return false
		}
	}
	for p, n := range more {
		p.pods += n
		c.unused = c.unused || p.pods == 0
	}
	for _, link := range links {
		c.enter(link, entries)
	}
	return true
}

func (c *Compiled) entry(pod *Pod) (e entry, ok bool) {
	if c.selection.undecided(pod) {
		return e, false
	}
	e.policies, e.UID = c.selection.policiesOf(pod), pod.UID
	for d, policies := range e.policies {
		p := c.known[c.compiler.profile(Direction(d), policies, pod)]
		if p == nil {
			return e, false
		}
		e.programs[d], e.Programs[d] = p, p.key
	}
	return e, true
}

func (c *Compiled) enter(link string, entries map[string]entry) {
	e, known := entries[link]
	if !known {
		delete(c.byLink, link)
		delete(c.Endpoints, link)
		delete(c.selection.byLink, link)
		return
	}
	c.byLink[link], c.Endpoints[link], c.selection.byLink[link] = e.programs, e.Endpoint, e.policies
}

// noteDeclared records whether any pod declared the ports of this pod before the change. Programs change if that
// differs afterwards; the namespace counts where rules depend on it.
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
