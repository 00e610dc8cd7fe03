package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// Of changed objects only those are read that may ask this node.
func TestWhatIsRead(t *testing.T) {
	now := time.Now()
	object := func(uid, revision, node string) api.CalicoNodeStatus {
		return api.CalicoNodeStatus{Meta: api.Meta{Name: "q", UID: uid, ResourceVersion: revision}, Spec: api.CalicoNodeStatusSpec{Node: node}}
	}
	for name, c := range map[string]struct {
		listed api.CalicoNodeStatus
		known  *statusRequest
		want   bool
	}{
		"new":                         {object("1", "5", ""), nil, true},
		"another under the same name": {object("2", "5", ""), &statusRequest{object: object("1", "5", "n2")}, true},
		"as it was":                   {object("1", "5", ""), &statusRequest{object: object("1", "5", "n1")}, false},
		"ours, changed":               {object("1", "6", ""), &statusRequest{object: object("1", "5", "n1"), read: now}, true},
		"another's answer":            {object("1", "6", ""), &statusRequest{object: object("1", "5", "n2"), read: now}, false},
		"another's, after a long time": {object("1", "6", ""),
			&statusRequest{object: object("1", "5", "n2"), read: now.Add(-othersAgain)}, true},
		"another's, long the same again": {object("1", "5", ""),
			&statusRequest{object: object("1", "5", "n2"), read: now.Add(-othersAgain)}, false},
	} {
		known := map[string]*statusRequest{"gone": {}}
		if c.known != nil {
			known["q"] = c.known
		}
		listed := []api.CalicoNodeStatus{c.listed}
		if got := len(toRead("n1", listed, known, now)) > 0; got != c.want {
			t.Errorf("%s: read %v", name, got)
		}
		if forget(listed, known); known["gone"] != nil || (known["q"] == nil) != (c.known == nil) {
			t.Errorf("%s: remembered %v", name, known)
		}
	}
}

// A thousand objects are not read by a thousand nodes at once: each begins with the object that has its name.
func TestQuestionsAreReadBitByBit(t *testing.T) {
	var all []api.CalicoNodeStatus
	for i := range 1000 {
		all = append(all, api.CalicoNodeStatus{Meta: api.Meta{Name: fmt.Sprint("n", i)}})
	}
	for _, node := range []string{"n777", "n888"} {
		all[888].Name = names.Question("n888")
		now, more := first(node, all)
		if len(now) != readAtOnce+1 || !strings.HasSuffix(now[readAtOnce].Name, node) || !more {
			t.Errorf("%d, %v", len(now), more)
		}
	}
	asked := toRead("n888", []api.CalicoNodeStatus{all[888], {Meta: api.Meta{Name: names.Question("n777")}}}, nil, time.Now())
	if len(asked) != 1 || asked[0].Name != names.Question("n888") {
		t.Errorf("of a move's questions to two nodes, one reads %v", asked)
	}
	if now, more := first("n777", all[:readAtOnce]); len(now) != readAtOnce || more {
		t.Errorf("%d, %v", len(now), more)
	}
}

func TestAnswerPeriods(t *testing.T) {
	seconds := func(n uint32) *uint32 { return &n }
	for _, c := range []struct {
		spec      *uint32
		questions int
		want      time.Duration
	}{
		{nil, 1, 10 * time.Second}, {seconds(0), 1, 0}, {seconds(0), 5000, 0}, {seconds(1), 1, time.Second}, {seconds(30), 50, 30 * time.Second},
		{seconds(10), 1000, 100 * time.Second},
	} {
		if got := period(api.CalicoNodeStatusSpec{UpdatePeriodSeconds: c.spec}, c.questions); got != c.want {
			t.Errorf("%v of %d: %s, want %s", c.spec, c.questions, got, c.want)
		}
	}
}

// The agent answers objects that ask it, answers again after changes, and ignores objects that ask another node or have
// become silent.
func TestAgentAnswers(t *testing.T) {
	r := newRig(t)
	proxy := labtest.NewProxy(t)
	r.api = labtest.AsOn(t, connect(t, proxy.Kubeconfig()), "tortie-node")
	r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	ask := func(name, node string, period uint32, classes ...string) *api.CalicoNodeStatus {
		t.Helper()
		q := &api.CalicoNodeStatus{Meta: api.Meta{Name: name},
			Spec: api.CalicoNodeStatusSpec{Node: node, Classes: classes, UpdatePeriodSeconds: &period}}
		labstore.Make(t, r.store, q)
		return q
	}
	read := func(q *api.CalicoNodeStatus) api.CalicoNodeStatusStatus {
		t.Helper()
		got := api.CalicoNodeStatus{Meta: api.Meta{Name: q.Name}}
		errtest.Must(t, r.store.Get(t.Context(), &got))
		return got.Status
	}
	other, off := ask("rig-asks-other", rigOther, 1, api.ClassBGP), ask("rig-asks-nothing", rigNode, 0, api.ClassBGP)
	speaker := newPeers()
	status, _ := r.agent(t, speaker)
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	mine := ask("rig-asks", rigNode, 1, api.ClassBGP, api.ClassRoutes)
	waittest.Until(t, 2*soon, "the answer", func() bool {
		s := read(mine)
		return s.LastUpdated != nil && s.Agent == nil && s.BGP != nil && s.BGP.NumberEstablishedV4 == 1 && len(s.BGP.PeersV4) == 1 &&
			s.BGP.PeersV4[0].Type == "NodeMesh" && s.Routes != nil && len(s.Routes.RoutesV4) > 0
	})
	speaker.tell(true)
	waittest.Until(t, 2*soon, "the answer follows", func() bool {
		s := read(mine)
		return s.BGP.NumberEstablishedV4 == 0 && s.BGP.NumberNotEstablishedV4 == 1
	})

	// An object of a move between API groups needs no period.
	moves := &api.CalicoNodeStatus{Meta: api.Meta{Name: names.Question(rigNode)},
		Spec: api.CalicoNodeStatusSpec{Node: rigNode, Classes: []string{api.ClassAgent}}}
	labstore.Make(t, r.store, moves)
	waittest.Until(t, 2*soon, "the answer to a move", func() bool { return read(moves).LastUpdated != nil })

	// At rest nothing is written or read.
	watch, store, log := r.watched(t) // which does not wait for these objects
	waittest.Until(t, soon, "the list of these objects", func() bool {
		return slices.ContainsFunc(watch.NodeStatuses(), func(o api.CalicoNodeStatus) bool { return o.Name == mine.Name })
	})
	another := &statusWriter{node: rigNode, watch: watch, store: store, report: status.Report, log: log, known: map[string]*statusRequest{}}
	now := time.Now()
	another.round(t.Context(), now)
	proxy.Reset()
	before := read(mine)
	for i := range time.Duration(5) {
		another.round(t.Context(), now.Add(2*time.Second*(i+1)))
	}
	if q := another.known[mine.Name]; q == nil || !q.due.After(now.Add(10*time.Second)) {
		t.Errorf("the status was not compared: %+v", q)
	}
	if d := cmp.Diff(before, read(mine)); d != "" || proxy.Requests()["patch caliconodestatuses"] > 0 ||
		proxy.Requests()["get caliconodestatuses"] > 0 {
		t.Errorf("written although nothing has changed: %v\n%s", proxy.Requests(), d)
	}
	// The question changes.
	r.update(t, mine, func() { mine.Spec.Classes = []string{api.ClassAgent} })
	waittest.Until(t, 2*soon, "the other answer", func() bool {
		s := read(mine)
		return s.BGP == nil && s.Routes == nil && s.Agent != nil && s.Agent.BIRDV4.State == "Ready" && s.Agent.BIRDV6.State == "NotReady"
	})
	for _, q := range []*api.CalicoNodeStatus{other, off} {
		if s := read(q); s.LastUpdated != nil || s.BGP != nil {
			t.Errorf("%s is answered: %+v", q.Name, s)
		}
	}
	if got := fmt.Sprint(status.Report().LastError); got != "" {
		t.Error(got)
	}
}
