package bgp_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

var speakersFile = flag.String("speakers", "", "file to write what real speakers cost to, in JSON; makes them many")

const (
	asn = 64512
	// blocksEach is how many each node announces.
	blocksEach = 2
	// reflecting is how many reflectors there are.
	reflecting = 3
)

var podsOfAll = netip.MustParsePrefix("10.128.0.0/9")

// reflectedCrowd is real speakers, the first of which reflect for all others.
type reflectedCrowd struct {
	hosts    []*bgptest.Host
	speakers []*bgptest.Speaker
}

// cost is the measured cost of a reflectedCrowd.
type cost struct {
	Speakers               int
	Sessions, Clients      int     // of a reflector; of a client
	ReflectorMiB           float64 // RSS, mean
	ClientMiB              float64
	ReflectorCPU           float64 // seconds until all have all paths, mean
	ClientCPU              float64
	Converged              float64 // seconds until all have all paths, from the first session on
	Spread                 float64 // seconds until all know a new prefix
	Missed                 float64 // seconds until all have a new prefix after a reflector's death
	Replaced               float64 // seconds until all have another reflector's whole table
	Withdrawn              float64 // seconds until no speaker has a withdrawn prefix
	ReflectorPaths, Client int     // paths that a reflector, and a client, has learned
}

func write(t *testing.T, file string, all any) {
	t.Helper()
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(file, text, 0o644)
	}
	errtest.Must(t, err)
}

// Real speakers as clients and reflectors: all learn all, also when a reflector dies and another stands in.
func TestSpeakers(t *testing.T) {
	sizes := []int{12}
	if *speakersFile != "" {
		sizes = []int{1, 50, 100, 200}
	}
	var all []cost
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := measure(t, n)
			t.Logf("%+v", c)
			all = append(all, c)
		})
	}
	if *speakersFile != "" {
		write(t, *speakersFile, all)
	}
}

func measure(t *testing.T, n int) cost {
	c := &reflectedCrowd{hosts: bgptest.SharedHosts(t, n)}
	for i, h := range c.hosts {
		s := h.Speaker()
		s.StartLocal(bgp.Local{ASN: asn})
		s.Originate(own(i)...)
		c.speakers = append(c.speakers, s)
	}
	result := cost{Speakers: n}
	if n == 1 { // a speaker without peers
		s := c.speakers[0]
		result.ReflectorMiB, result.ClientMiB = mebibytes(s), mebibytes(s)
		result.ReflectorCPU, result.ClientCPU = s.Usage().CPU.Seconds(), s.Usage().CPU.Seconds()
		return result
	}
	begun := time.Now()
	for i := range reflecting {
		c.reflect(i, reflecting)
	}
	for i := reflecting; i < n; i++ {
		c.follow(i, reflecting)
	}
	c.await(t, reflecting, blocksEach*(n-1))
	result.Converged = time.Since(begun).Seconds()
	c.account(&result)

	begun = time.Now()
	c.speakers[n-1].Originate(append(own(n-1), "10.255.0.0/26")...)
	c.await(t, reflecting, blocksEach*(n-1)+1)
	result.Spread = time.Since(begun).Seconds()
	begun = time.Now()
	c.speakers[n-1].Originate(own(n - 1)...) // no reflector keeps a path of another one
	c.await(t, reflecting, blocksEach*(n-1))
	result.Withdrawn = time.Since(begun).Seconds()

	c.speakers[0].End(syscall.SIGKILL)
	begun = time.Now()
	c.speakers[n-1].Originate(append(own(n-1), "10.255.0.0/26", "10.255.1.0/26")...)
	c.awaitFrom(t, 1, reflecting, blocksEach*(n-1)+2)
	result.Missed = time.Since(begun).Seconds()

	begun = time.Now()
	c.reflect(reflecting, reflecting+1)
	for i := 1; i < n; i++ {
		if i < reflecting {
			c.reflect(i, reflecting+1)
		} else if i > reflecting {
			c.follow(i, reflecting+1)
		}
	}
	c.awaitFrom(t, 1, reflecting+1, blocksEach*(n-1)+2)
	result.Replaced = time.Since(begun).Seconds()
	return result
}

// own returns the blocksEach prefixes of a node.
func own(i int) (prefixes []string) {
	for b := range blocksEach {
		prefixes = append(prefixes, fmt.Sprintf("10.%d.%d.%d/26", 128+i/64, i%64*4, 64*b))
	}
	return prefixes
}

// session returns the session of one speaker with another.
func (c *reflectedCrowd) session(i, other int) bgp.Peer {
	return bgp.Peer{Addr: c.hosts[other].V4, ASN: asn, From: c.hosts[i].V4, Passive: i < other}
}

// reflect makes a speaker a reflector for all but the first ones, which also reflect.
func (c *reflectedCrowd) reflect(i, count int) {
	s := c.speakers[i]
	s.SetPolicy(bgp.Policy{Transit: []netip.Prefix{podsOfAll}}, nil)
	s.SetLocal(bgp.Local{ASN: asn, ClusterID: c.hosts[i].V4})
	var peers []bgp.Peer
	for other := range c.hosts {
		if other != i {
			p := c.session(i, other)
			p.Client = other >= count
			peers = append(peers, p)
		}
	}
	s.SetPeers(peers...)
}

// follow makes one a client of the first ones.
func (c *reflectedCrowd) follow(i, count int) {
	var peers []bgp.Peer
	for other := range count {
		if other != i {
			peers = append(peers, c.session(i, other))
		}
	}
	c.speakers[i].SetPeers(peers...)
}

func (c *reflectedCrowd) await(t *testing.T, count, paths int) {
	t.Helper()
	c.awaitFrom(t, 0, count, paths)
}

// awaitFrom waits until each client has that many paths from each reflector, excluding its own.
func (c *reflectedCrowd) awaitFrom(t *testing.T, first, count, paths int) {
	t.Helper()
	for i := count; i < len(c.speakers); i++ {
		waittest.For(t, 5*time.Minute, func() error { return c.complete(i, first, count, paths) })
	}
}

func (c *reflectedCrowd) complete(i, first, count, paths int) error {
	if i == len(c.speakers)-1 {
		paths = blocksEach * (len(c.speakers) - 1) // the new paths are its own
	}
	for _, p := range c.speakers[i].Peers() {
		for r := first; r < count; r++ {
			if p.Addr == c.hosts[r].V4 && (p.State != bgp.Established || p.Received != paths) {
				return fmt.Errorf("%s has %d paths from reflector %s, want %d; the session is %s: %s", c.hosts[i].V4, p.Received, p.Addr,
					paths, p.State, p.LastError)
			}
		}
	}
	return nil
}

func mebibytes(s *bgptest.Speaker) float64 { return float64(s.Usage().RSS) / (1 << 10) }

// account adds up the speakers' cost so far.
func (c *reflectedCrowd) account(into *cost) {
	clients := float64(len(c.speakers) - reflecting)
	for i, s := range c.speakers {
		if i < reflecting {
			into.ReflectorMiB += mebibytes(s) / reflecting
			into.ReflectorCPU += s.Usage().CPU.Seconds() / reflecting
		} else {
			into.ClientMiB += mebibytes(s) / clients
			into.ClientCPU += s.Usage().CPU.Seconds() / clients
		}
	}
	received := func(i int) (sessions, paths int) {
		for _, p := range c.speakers[i].Peers() {
			sessions++
			paths += p.Received
		}
		return sessions, paths
	}
	into.Sessions, into.ReflectorPaths = received(0)
	into.Clients, into.Client = received(len(c.speakers) - 1)
}
