package controllers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// lands is a cluster in simulated time, with objects that plans change.
type lands struct {
	t      testing.TB
	nodes  map[string]*inventory.Node
	peer   *api.BGPPeer
	config *api.BGPConfiguration
	few    time.Time
	now    time.Time
	last   time.Time // of the last paced change
	log    []string
}

const pauseOfLands = 90 * time.Second

func newLands(t testing.TB, count int) *lands {
	l := &lands{t: t, nodes: map[string]*inventory.Node{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	l.last = l.now.Add(-time.Hour)
	for range count {
		l.add()
	}
	l.now = l.now.Add(time.Hour)
	return l
}

// add adds a node that is Ready, in the next of three zones.
func (l *lands) add() {
	i := 1
	for l.nodes[fmt.Sprintf("n%03d", i)] != nil {
		i++
	}
	at := l.now.Format(time.RFC3339)
	n := &inventory.Node{
		Meta: api.Meta{Name: fmt.Sprintf("n%03d", i), CreationTimestamp: at,
			Labels: map[string]string{api.LabelZone: fmt.Sprintf("zone-%d", i%3)}},
		Stated:  []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		Routing: inventory.Routing{Ready: true, Since: at},
	}
	l.nodes[n.Name] = n
}

func (l *lands) ready(n *inventory.Node, ready bool) {
	n.Routing.Ready, n.Routing.Since = ready, l.now.Format(time.RFC3339)
}

func (l *lands) view() *reflection {
	r := &reflection{Reflectors: config.Reflectors{Above: 20, Count: 3, Pause: pauseOfLands}, peer: l.peer, config: l.config, now: l.now}
	for _, n := range l.nodes {
		r.nodes = append(r.nodes, *n)
	}
	r.count()
	switch {
	case !r.isFew():
		l.few = time.Time{}
	case l.few.IsZero():
		l.few = l.now
	}
	r.few = l.few
	return r
}

// step carries out the next change, and checks what must hold with each.
func (l *lands) step() reflectorPlan {
	r := l.view()
	p := r.plan()
	l.now = l.now.Add(10 * time.Second)
	if p.act == "" {
		return p
	}
	name := ""
	if p.node != nil {
		name = " " + p.node.Name
	}
	l.log = append(l.log, string(p.act)+name)
	if p.act.paced() {
		if since := r.now.Sub(l.last); since < pauseOfLands {
			l.t.Fatalf("%s%s %s after the change before: %q", p.act, name, since, l.log)
		}
		l.last = r.now
		l.peer.Annotations[api.AnnotationReflectors] = r.now.Format(time.RFC3339Nano)
	}
	l.apply(r, p)
	return p
}

func (l *lands) apply(r *reflection, p reflectorPlan) {
	switch p.act {
	case createPeer, copyMesh:
		at := ""
		if l.peer != nil {
			at = l.peer.Annotations[api.AnnotationReflectors]
		}
		if l.peer = newReflectorsPeer(r); at != "" {
			l.peer.Annotations[api.AnnotationReflectors] = at
		}
	case addNode:
		n := l.nodes[p.node.Name]
		if _, other := n.Labels[api.LabelReflector]; n.Routing.ClusterID != "" && !other {
			l.t.Fatalf("%s is an operator's reflector: %q", n.Name, l.log)
		}
		n.Labels[api.LabelReflector], n.Routing.ClusterID = "", clusterIDOf(n)
	case removeNode:
		n := l.nodes[p.node.Name]
		if len(r.present()) <= 1 && !l.view().meshIsOn() {
			l.t.Fatalf("the last reflector is taken without a mesh: %q", l.log)
		}
		delete(n.Labels, api.LabelReflector)
		n.Routing.ClusterID = ""
	case meshOff, meshOn:
		on := p.act == meshOn
		l.config = &api.BGPConfiguration{Meta: api.Meta{Annotations: map[string]string{}}}
		if l.config.Spec.NodeToNodeMeshEnabled = &on; !on {
			l.config.Annotations[api.AnnotationReflectors] = "mesh"
		}
	case deletePeer:
		l.peer = nil
	}
}

// rest runs until nothing has changed for twenty minutes, and returns the changes.
func (l *lands) rest() []string {
	l.t.Helper()
	from := len(l.log)
	for quiet, rounds := 0, 0; quiet < 120; rounds++ {
		if quiet++; l.step().act != "" {
			quiet = 0
		}
		if rounds > 5000 {
			l.t.Fatalf("no rest: %q", l.log[max(0, len(l.log)-20):])
		}
	}
	return l.log[from:]
}

func (l *lands) reflectors() string {
	var names []string
	for _, n := range l.view().present() {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The way of a cluster from the mesh to reflectors and back.
func TestReflectorsComeAndGo(t *testing.T) {
	l := newLands(t, 19)
	difftest.Want(t, "too few nodes", 0, len(l.rest()))
	l.add()
	difftest.Want(t, "enough", []string{string(createPeer), "add a reflector n001", "add a reflector n002", "add a reflector n003",
		string(meshOff)}, l.rest())
	for i := range 5 {
		delete(l.nodes, fmt.Sprintf("n%03d", 10+i))
	}
	difftest.Want(t, "three quarters", 0, len(l.rest()))
	delete(l.nodes, "n019")
	difftest.Want(t, "fewer", []string{string(meshOn), "remove a reflector n001", "remove a reflector n002", "remove a reflector n003",
		string(deletePeer)}, l.rest())
}

// What becomes of a cluster with reflectors when one thing changes.
func TestReflectorsAreReplaced(t *testing.T) {
	for _, tc := range []struct {
		what   string
		change func(l *lands)
		want   []string
	}{
		{"more nodes", func(l *lands) { l.add(); l.add() }, nil},
		{"a Node is deleted", func(l *lands) { delete(l.nodes, "n002") }, []string{"add a reflector n005"}},
		{"two Nodes are deleted", func(l *lands) { delete(l.nodes, "n002"); delete(l.nodes, "n003") },
			[]string{"add a reflector n005", "add a reflector n006"}},
		{"a node is not Ready", func(l *lands) { l.ready(l.nodes["n001"], false) },
			[]string{"add a reflector n004", "remove a reflector n001"}},
		{"a node is cordoned", func(l *lands) { l.nodes["n003"].Routing.Barred = true },
			[]string{"add a reflector n006", "remove a reflector n003"}},
		{"a node is in another AS", func(l *lands) { l.nodes["n003"].Routing.ASN = "64999" },
			[]string{"add a reflector n006", "remove a reflector n003"}},
		{"a kubelet writes the annotation", func(l *lands) { l.nodes["n009"].Routing.ClusterID = "10.9.9.9" }, nil},
		{"an annotation is removed", func(l *lands) { l.nodes["n001"].Routing.ClusterID = "" }, []string{"add a reflector n001"}},
		{"the label is removed", func(l *lands) {
			delete(l.nodes["n001"].Labels, api.LabelReflector)
			l.nodes["n001"].Routing.ClusterID = ""
		},
			[]string{"add a reflector n001"}},
		{"the BGPPeer is deleted", func(l *lands) { l.peer = nil; delete(l.nodes, "n002") },
			[]string{string(createPeer), "add a reflector n005"}},
		{"a zone is new", func(l *lands) {
			for _, n := range l.nodes {
				n.Labels[api.LabelZone] = "zone-0"
			}
			l.rest()
			l.nodes["n020"].Labels[api.LabelZone] = "zone-9"
		}, []string{"add a reflector n020", "remove a reflector n003"}},
		{"another writer's BGPPeer", func(l *lands) { delete(l.peer.Annotations, api.AnnotationReflectors); delete(l.nodes, "n001") }, nil},
		{"the mesh is turned on", func(l *lands) { yes := true; l.config.Spec.NodeToNodeMeshEnabled = &yes }, nil},
		{"the mesh is turned on and the annotation goes", func(l *lands) { l.config = nil }, []string{string(meshOff)}},
	} {
		l := newLands(t, 20)
		l.rest()
		tc.change(l)
		difftest.Want(t, tc.what, append([]string{}, tc.want...), append([]string{}, l.rest()...))
	}
}

// Obstacles to reflectors, and their reports to the operator.
func TestReflectorsBegin(t *testing.T) {
	for _, tc := range []struct {
		what, problem string
		change        func(l *lands)
	}{
		{"an operator's reflector", "Node n007: annotation " + api.AnnotationReflector,
			func(l *lands) { l.nodes["n007"].Routing.ClusterID = "244.0.0.1" }},
		{"another AS", "Node n008: annotation " + api.AnnotationASNumber + " is 64999",
			func(l *lands) { l.nodes["n008"].Routing.ASN = "64999" }},
		{"no mesh", "BGPConfiguration default: spec.nodeToNodeMeshEnabled is false", func(l *lands) {
			off := false
			l.config = &api.BGPConfiguration{Meta: api.Meta{Name: "default"}, Spec: api.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off}}
		}},
		{"another writer's BGPPeer", "BGPPeer tortie-reflectors: it is not kube-controllers'",
			func(l *lands) { l.peer = &api.BGPPeer{Meta: api.Meta{Name: api.ReflectorsPeer}} }},
	} {
		l := newLands(t, 20)
		tc.change(l)
		p := l.step()
		if got := fmt.Sprintf("%s %s: %s", p.about.Kind, p.about.Name, p.problem); !strings.HasPrefix(got, tc.problem) || p.act != "" {
			t.Errorf("%s: %q, %q", tc.what, p.act, got)
		}
		if changes := l.rest(); len(changes) > 0 {
			t.Errorf("%s: %q", tc.what, changes)
		}
	}
}

// The agents' former reflectors are the first ones, and nodes of one family are none among nodes of two.
func TestFirstReflectors(t *testing.T) {
	l := newLands(t, 20)
	for _, n := range l.nodes {
		if n.Name != "n001" {
			n.Stated = append(n.Stated, netip.AddrFrom16([16]byte{0xfd, 15: n.Stated[0].As4()[3]}))
		}
	}
	for _, name := range []string{"n011", "n015"} {
		l.nodes[name].Routing.Word = "reflector"
	}
	l.rest()
	if got := l.reflectors(); got != "n004 n011 n015" {
		t.Error(got)
	}
}

// The BGPPeer follows the mesh's settings until it has them alone.
func TestSettingsOfTheMesh(t *testing.T) {
	l := newLands(t, 20)
	secret := func(name string) *api.BGPPassword {
		return &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: name, Key: "k"}}
	}
	l.config = &api.BGPConfiguration{Meta: api.Meta{Name: "default", Annotations: map[string]string{api.AnnotationBFD: "on"}},
		Spec: api.BGPConfigurationSpec{NodeMeshPassword: secret("one"), NodeMeshMaxRestartTime: "60s"}}
	l.step()
	l.config.Spec.NodeMeshPassword = secret("two")
	if p := l.step(); p.act != copyMesh {
		t.Fatalf("%q", p.act)
	}
	want := sessionSettings{api.Place{Name: "two", Key: "k"}, true, "60s", "on"}
	if got := settingsOfPeer(l.peer); got != want {
		t.Errorf("%+v", got)
	}
	l.rest()
	if got := settingsOfPeer(l.peer); got != want || l.view().meshIsOn() {
		t.Errorf("without the mesh: %+v", got)
	}
}

// Whatever happens to nodes, the cluster comes to rest with three fit reflectors in as many zones as there are, or
// without any; changes are a pause apart, as step checks.
func TestReflectorsOfAnyHistory(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		l := newLands(t, 16+random.IntN(12))
		for range 40 {
			l.disturb(random)
			for range random.IntN(60) {
				l.step()
			}
		}
		l.rest()
		r := l.view()
		fit, unfit, altered := r.split(r.present())
		few, possible := r.isFew(), map[string]bool{}
		for i := range r.nodes {
			if n := &r.nodes[i]; r.able(n) && n.Routing.Ready {
				possible[zone(n)] = true
			}
		}
		none := len(fit)+len(unfit) == 0 && l.peer == nil && r.meshIsOn()
		whole := len(fit) == 3 && len(unfit) == 0 && altered == nil && !r.meshIsOn() && len(zones(fit)) >= min(3, len(possible))
		if !(few && none || !few && (whole || none && r.agents < r.Above)) {
			t.Fatalf("seed %d: %d nodes, fit %d, unfit %d, %d zones: %q", seed, len(l.nodes), len(fit), len(unfit), len(zones(fit)), l.log)
		}
	}
}

// disturb changes one thing.
func (l *lands) disturb(random *rand.Rand) {
	names := make([]string, 0, len(l.nodes))
	for name := range l.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	n := l.nodes[names[random.IntN(len(names))]]
	switch random.IntN(6) {
	case 0, 1:
		l.add()
	case 2:
		if len(l.nodes) > 14 {
			delete(l.nodes, n.Name)
		}
	case 3:
		l.ready(n, !n.Routing.Ready)
	case 4:
		n.Routing.Barred = !n.Routing.Barred
	case 5:
		if present := l.view().present(); len(present) > 0 {
			delete(l.nodes, present[random.IntN(len(present))].Name)
		}
	}
}
