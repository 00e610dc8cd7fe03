package plugin_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/plugin/journal"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// gcCall is a GC that lists these sandboxes as valid.
func (w *world) gcCall(t testing.TB, plugin string, valid ...*sandbox) call {
	t.Helper()
	list := []map[string]string{}
	for _, s := range valid {
		list = append(list, map[string]string{"containerID": s.container, "ifname": "eth0"})
	}
	return call{
		plugin: plugin, command: "GC", path: "/opt/cni/bin",
		stdin: w.conf(t, set("cniVersion", "1.1.0"), set("cni.dev/valid-attachments", list)),
	}
}

func (w *world) gc(t testing.TB, valid ...*sandbox) answer {
	t.Helper()
	return w.host.call(t, w.gcCall(t, "calico", valid...))
}

// wantLinks fails the test unless exactly the sandboxes in want, of all, have their link, both ends.
func (w *world) wantLinks(t testing.TB, all, want []*sandbox) {
	t.Helper()
	for _, s := range all {
		_, node := w.host.Conn.LinkByName(s.hostVeth())
		_, pod := s.ns.Conn.LinkByName("eth0")
		there := node == nil && pod == nil
		if gone := netlinkx.IsNotExist(node) && netlinkx.IsNotExist(pod); there == gone || there != slices.Contains(want, s) {
			t.Errorf("link of %s: at the node %v, in the pod %v; want it there: %v", s.pod, node, pod, slices.Contains(want, s))
		}
	}
}

func TestGC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	held := map[netip.Addr]*sandbox{}
	pod := func(name string) *sandbox {
		s := w.newPod(t, name)
		held[address(t, s.add(t).result(t))] = s
		return s
	}
	kept, stale, unnamed, alive := pod("kept"), pod("stale"), pod("unnamed"), pod("alive")
	renewed := pod("renewed") // a new sandbox of the pod that a stale one was of
	old := &sandbox{world: w, pod: "renewed", container: strings.Repeat("0d", 32)}
	held[w.assign(t, old)] = old
	onlyAddress := &sandbox{world: w, pod: "stale", container: strings.Repeat("0a", 32)}
	held[w.assign(t, onlyAddress)] = onlyAddress
	all := []*sandbox{kept, stale, unnamed, alive, renewed}
	// As a real Calico's, or of an earlier version.
	w.host.Run(t, "ip", "link", "set", unnamed.hostVeth(), "alias", "")
	alive.ns.Start(t, "sleep", "60")
	// Not ours: another plugin's pod, one of a network that is called almost like this one, and an address of another
	// node.
	foreign := w.foreignPods(t)
	neighbour := &sandbox{world: w, pod: "stale", container: "neighbour." + strings.Repeat("0b", 32)}
	held[w.assign(t, neighbour)] = neighbour
	w.postpone(t, onlyAddress)
	// A pod with CAP_NET_ADMIN claims the address of a dead container by a link.
	w.host.Run(t, "ip", "link", "add", "califorged", "type", "veth", "peer", "name", "p0", "netns",
		strconv.Itoa(alive.ns.Start(t, "sleep", "60")))
	w.host.Run(t, "ip", "link", "set", "califorged", "up", "alias", podnet.Alias(w.network()+"."+onlyAddress.container, "eth0"))

	temp := filepath.Join(filepath.Dir(facts.DefaultFile), ".tortie-0123456789abcdef.tmp") // of a plugin that was killed
	w.host.On(t, func() error { return os.WriteFile(temp, nil, 0o600) })
	for range 2 { // the second finds nothing to do
		a := w.gc(t, kept, renewed).ok(t)
		w.host.On(t, func() error {
			if _, err := os.Lstat(temp); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", temp, err)
			}
			return nil
		})
		if a.stdout != "" {
			t.Errorf("GC printed %q", a.stdout)
		}
		for _, s := range []*sandbox{stale, unnamed, old, onlyAddress} {
			for a, holder := range held {
				if holder == s {
					delete(held, a)
				}
			}
		}
		w.wantHeld(t, held)
		w.wantLinks(t, all, []*sandbox{kept, alive, renewed})
		for _, name := range foreign {
			w.host.Link(t, name)
		}
		stale.wantAnnotations(t, "", stale.container)
		unnamed.wantAnnotations(t, "", unnamed.container)
		w.wantEmptyJournal(t)
	}
	for a, s := range held {
		if s == kept || s == renewed || s == alive {
			s.wantAnnotations(t, a.String(), s.container)
		}
	}

	// The listed pods can be taken down as ever, and the one that was alive is collected once it is dead.
	kept.del(t).ok(t)
	renewed.del(t).ok(t)
}

// assign gives a container an address and nothing else, as an ADD does that is killed right after.
func (w *world) assign(t testing.TB, s *sandbox) netip.Addr {
	t.Helper()
	c := s.call(t, "ADD")
	c.plugin, c.netns = "calico-ipam", "/var/run/netns/none"
	return address(t, w.host.call(t, c).result(t))
}

// foreignPods makes links that GC has no business with: one without an alias, one of another network, one of no pod.
func (w *world) foreignPods(t testing.TB) (names []string) {
	t.Helper()
	for i, alias := range []string{"", podnet.Alias(w.network()+".neighbour.0c0c", "eth0"), podnet.Alias("other.0c0c", "eth0"), "uplink"} {
		ns, _ := w.host.pod(t, fmt.Sprintf("foreign-%d", i))
		name := fmt.Sprintf("califoreign%d", i)
		err := w.host.Conn.AddVeth(netlinkx.Veth{Name: name, PeerName: "eth0", PeerNamespace: ns.Namespace})
		errtest.Must(t, err)
		if alias != "" {
			w.host.Run(t, "ip", "link", "set", name, "alias", alias)
		}
		w.host.Up(t, name)
		w.host.Route(t, fmt.Sprintf("10.99.99.%d/32", i), "", name)
		names = append(names, name)
	}
	return names
}

// postpone writes down that a container's address is still to be released, as a DEL does while the API server is away.
func (w *world) postpone(t testing.TB, s *sandbox) {
	t.Helper()
	w.host.On(t, func() error {
		return journal.DefaultDir.Add(t.Context(), journal.Entry{
			Handle: w.network() + "." + s.container, Datastore: "kubernetes", Network: w.network(), Namespace: w.name, Pod: s.pod,
			ContainerID: s.container, IfName: "eth0", Time: time.Now(), Reason: "a test",
		})
	})
}

// The address of a dead container leads to a link that is another pod's by its name: whoever is right, a pod uses it.
func TestGCSparesAddressInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	a := address(t, s.add(t).result(t))
	w.host.Run(t, "ip", "link", "set", s.hostVeth(), "down")
	w.host.Run(t, "ip", "link", "set", s.hostVeth(), "alias", "")
	w.host.Run(t, "ip", "link", "set", s.hostVeth(), "name", "califfffffffff", "up")
	w.host.Run(t, "ip", "route", "replace", a.String(), "dev", "califfffffffff")
	nothing := w.unchanged(t)
	if out := w.gc(t).ok(t); !strings.Contains(out.stderr, "califfffffffff") {
		t.Errorf("GC does not say what keeps the address: %s", out.stderr)
	}
	nothing()
}

func TestGCOfIPAM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept, stale := w.newPod(t, "kept"), w.newPod(t, "stale")
	a := w.assign(t, kept)
	w.assign(t, stale)
	w.host.call(t, w.gcCall(t, "calico-ipam", kept)).ok(t)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: kept})
}

// An empty list means that no container is left; a missing list is an error.
func TestGCNeedsAList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	s.add(t).ok(t)
	nothing := w.unchanged(t)
	for _, plugin := range []string{"calico", "calico-ipam"} {
		c := w.gcCall(t, plugin)
		c.stdin = w.conf(t, set("cniVersion", "1.1.0"))
		if e := w.host.call(t, c).failure(t); e.Code != types.ErrInvalidNetworkConfig || !strings.Contains(e.Msg, "cni.dev/valid-attachments") {
			t.Errorf("%s without a list: %+v", plugin, e)
		}
		c.stdin = w.conf(t, set("cniVersion", "1.1.0"), set("cni.dev/valid-attachments", "all"))
		if e := w.host.call(t, c).failure(t); e.Code != types.ErrDecodingFailure {
			t.Errorf("%s with a malformed list: %+v", plugin, e)
		}
		c.stdin = w.conf(t, set("cniVersion", "1.0.0"), set("cni.dev/valid-attachments", []string{}))
		if e := w.host.call(t, c).failure(t); e.Code != types.ErrIncompatibleCNIVersion {
			t.Errorf("%s in a version without GC: %+v", plugin, e)
		}
	}
	nothing()
}

// The API server is away: links go, addresses stay for the next GC.
func TestGCWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newPod(t, "web")
	a := address(t, s.add(t).result(t))
	w.proxy.setRule(func(_ string, _ http.ResponseWriter, _ *http.Request, _ http.Handler) { panic(http.ErrAbortHandler) })
	if e := w.gc(t).failure(t); e.Code != types.ErrTryAgainLater {
		t.Errorf("%+v", e)
	}
	w.wantLinks(t, []*sandbox{s}, nil)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: s})
	w.proxy.setRule(nil)
	w.gc(t).ok(t)
	w.wantHeld(t, nil)
}

// TestGCByLibcni has the library that is in containerd make the list.
func TestGCByLibcni(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	kept, stale := w.newPod(t, "kept"), w.newPod(t, "stale")
	a := address(t, kept.add(t).result(t))
	stale.add(t).ok(t)
	cni, list, _ := libcniFor(t, kept, "1.1.0")
	err := cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{
		ValidAttachments: []types.GCAttachment{{ContainerID: kept.container, IfName: "eth0"}},
	})
	errtest.Must(t, err)
	w.wantHeld(t, map[netip.Addr]*sandbox{a: kept})
	w.wantLinks(t, []*sandbox{kept, stale}, []*sandbox{kept})
	errtest.Must(t, cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}))
	w.wantHeld(t, nil)
}
