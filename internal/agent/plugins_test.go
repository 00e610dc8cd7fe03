package agent

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/datastore/podnote"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/plugin/journal"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// told returns the facts that a plugin would read now, nil if it would ask the API server.
func (r *rig) told() *facts.Facts {
	f, err := facts.Read(filepath.Join(r.runDir, factsFile), rigNode, time.Now())
	if err != nil {
		return nil
	}
	return f
}

// content returns the facts file without the time at which it was written, and that time. The time's text has no fixed
// length.
func (r *rig) content(t *testing.T) (string, time.Time) {
	t.Helper()
	for { // until nothing was written between both reads
		f := r.told()
		if f == nil {
			t.Fatal("plugins would ask the API server")
		}
		data, err := os.ReadFile(filepath.Join(r.runDir, factsFile))
		errtest.Must(t, err)
		if rest := strings.ReplaceAll(string(data), f.Written.Format(time.RFC3339Nano), ""); len(rest) < len(data) {
			return rest, f.Written
		}
	}
}

// tells waits until the facts satisfy wanted, and logs how long that took.
func (r *rig) tells(t *testing.T, what string, wanted func(f *facts.Facts) bool) {
	t.Helper()
	begun := time.Now()
	waittest.Until(t, soon, "plugins are told of "+what, func() bool { f := r.told(); return f != nil && wanted(f) })
	t.Logf("plugins were told of %s after %s", what, time.Since(begun).Round(time.Millisecond))
}

func (r *rig) update(t *testing.T, obj api.Resource, change func()) {
	t.Helper()
	errtest.Must(t, r.store.Get(t.Context(), obj))
	change()
	errtest.Must(t, r.store.Update(t.Context(), obj))
}

func TestPluginsAreToldEveryChange(t *testing.T) {
	r := newRig(t)
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	r.tells(t, "a node that is ready", func(f *facts.Facts) bool {
		return f.AgentReady && f.DatastoreReady && len(f.Pools) == 1 && f.Pools[0].Spec.CIDR == "10.90.0.0/16" && f.Config.AutoAllocateBlocks
	})

	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "rig-second"}, Spec: api.IPPoolSpec{CIDR: "10.91.0.0/16"}})
	r.tells(t, "a new pool", func(f *facts.Facts) bool { return len(f.Pools) == 2 })

	pool := &api.IPPool{Meta: api.Meta{Name: "rig-second"}}
	r.update(t, pool, func() { pool.Spec.Disabled = true })
	r.tells(t, "a disabled pool", func(f *facts.Facts) bool { return f.Pools[1].Spec.Disabled })

	labstore.Make(t, r.store,
		&api.IPReservation{Meta: api.Meta{Name: "rig"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.90.0.0/30"}}})
	r.tells(t, "a reservation", func(f *facts.Facts) bool {
		return len(f.Reservations) == 1 && f.Reservations[0].Spec.ReservedCIDRs[0] == "10.90.0.0/30"
	})

	config := &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}
	r.update(t, config, func() { config.Spec.StrictAffinity = true })
	r.tells(t, "strict affinity", func(f *facts.Facts) bool { return f.Config.StrictAffinity })

	affinity := r.affinity(t, rigNode, "10.90.1.0/26", "rig-node-10-90-1-0-26")
	r.affinity(t, rigOther, "10.90.2.0/26", "rig-other-10-90-2-0-26")
	r.tells(t, "an affinity, and none of others", func(f *facts.Facts) bool {
		return len(f.Affinities) == 1 && f.Affinities[0].Spec.CIDR == "10.90.1.0/26" &&
			f.Affinities[0].ResourceVersion == affinity.ResourceVersion
	})
	errtest.Must(t, r.store.Delete(t.Context(), affinity))
	r.tells(t, "an affinity that went", func(f *facts.Facts) bool { return len(f.Affinities) == 0 })

	// A namespace cannot be removed here, where no controller runs: another test may have made it.
	if _, ok := r.told().Namespace("rig-none"); ok {
		t.Error("plugins are told of a namespace that does not exist")
	}
	ns := &api.Namespace{Meta: api.Meta{Name: "default"}}
	r.update(t, ns, func() { ns.Annotations = map[string]string{api.AnnotationIPv4Pools: `["rig"]`, "other": "left out"} })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.store.Get(ctx, ns); err == nil {
			ns.Annotations = nil
			_ = r.store.Update(ctx, ns)
		}
	})
	r.tells(t, "a namespace's pools", func(f *facts.Facts) bool {
		n, ok := f.Namespace("default")
		return ok && n.Annotations[api.AnnotationIPv4Pools] == `["rig"]` && len(n.Annotations) == 1 && len(n.Labels) == 0
	})
	r.update(t, pool, func() { pool.Spec.NamespaceSelector = "kubernetes.io/metadata.name == 'default'" })
	r.tells(t, "labels that a pool asks for", func(f *facts.Facts) bool {
		n, ok := f.Namespace("default")
		return ok && n.Labels["kubernetes.io/metadata.name"] == "default"
	})

	node := &api.Node{Meta: api.Meta{Name: rigNode}}
	r.update(t, node, func() { node.Labels = map[string]string{"rack": "r1"} })
	r.tells(t, "the node's labels", func(f *facts.Facts) bool { return f.NodeLabels["rack"] == "r1" })

	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	locked := false
	r.update(t, info, func() { info.Spec.DatastoreReady = &locked })
	r.tells(t, "a locked datastore", func(f *facts.Facts) bool { return !f.DatastoreReady })

	waittest.Until(t, soon, "the status shows what was written", func() bool { return !status.Report().Facts.DatastoreReady })
	report := status.Report().Facts
	if report.Pools != 2 || report.Namespaces < 1 || time.Since(report.Written) > facts.MaxAge {
		t.Errorf("status: %+v", report)
	}
	errtest.Must(t, r.store.Delete(t.Context(), node))
	waittest.Until(t, soon, "no facts of a node that does not exist", func() bool {
		_, err := os.Stat(filepath.Join(r.runDir, factsFile))
		return os.IsNotExist(err)
	})
}

// Pods of the node without annotations that an ADD uses need not be read.
func TestPluginsAreToldOfPods(t *testing.T) {
	r := newRig(t)
	at, log := cluster.Server{Config: r.api, Group: labtest.Current(t)}, slog.New(slog.NewTextHandler(t.Output(), nil))
	feed, err := cluster.NewPolicyFeed(at, rigNode, log)
	errtest.Must(t, err)
	r.pods = feed
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	r.tells(t, "a node that is ready", func(f *facts.Facts) bool { return f.AgentReady })
	labtest.CreatePodOn(t, rigNode, "default", "rig-plain")
	pod := r.pod("rig-plain")
	errtest.Must(t, r.store.Get(t.Context(), pod))
	plain := func(f *facts.Facts) bool { return f.PlainPod(pod.UID) }
	if f := r.told(); f == nil || plain(f) {
		t.Errorf("plugins are told of pods that are not watched: %+v", f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { _ = feed.Run(ctx) })
	stop := func() { cancel(); watching.Wait() }
	t.Cleanup(stop)
	r.tells(t, "a pod", plain)

	annotate := func(key string, value *string) {
		t.Helper()
		patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{key: value}}}
		errtest.Must(t, r.store.PatchStatus(t.Context(), pod, patch, false))
	}
	text := "02:00:5e:10:00:01"
	annotate(api.AnnotationHwAddr, &text)
	r.tells(t, "an annotation", func(f *facts.Facts) bool { return !plain(f) })
	annotate(api.AnnotationHwAddr, nil)
	r.tells(t, "no annotation", plain)
	before, _ := r.content(t)
	annotate(api.AnnotationPodIP, &text)
	annotate(api.AnnotationHwAddr, &text) // seen after it
	r.tells(t, "an annotation again", func(f *facts.Facts) bool { return !plain(f) })
	annotate(api.AnnotationHwAddr, nil)
	r.tells(t, "the plugins' own annotation alone", plain)
	if after, _ := r.content(t); after != before {
		t.Errorf("%s\nbecame %s", before, after)
	}
	stop()
	r.tells(t, "no pods, as they are not watched any more", func(f *facts.Facts) bool { return !plain(f) })
}

// Nothing changes: the file is written as a sign of life and for nothing else; when the agent ends, it stays and ages.
func TestSteadyFactsAreOnlyHeartbeats(t *testing.T) {
	r := newRig(t)
	status, stop := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	r.tells(t, "a node that is ready", func(f *facts.Facts) bool { return f.AgentReady })
	first, last := r.content(t)
	signs := 0
	waittest.Until(t, 4*facts.Interval, "two signs of life", func() bool {
		now, written := r.content(t)
		switch {
		case now != first && signs > 0:
			t.Fatalf("without a change %s\nbecame %s", first, now)
		case now != first: // of the start
			first, last = now, written
		case !written.Equal(last):
			if signs++; written.Sub(last) < facts.Interval/2 {
				t.Fatalf("written again after %s", written.Sub(last))
			}
			last = written
		}
		return signs == 2
	})
	stop()
	if _, written := r.content(t); !written.Equal(last) {
		t.Error("an agent that ends says something new")
	}
}

// A restart must not look like trouble: the earlier agent's facts hold until the next agent writes.
func TestRestartKeepsFacts(t *testing.T) {
	r := newRig(t)
	_, stop := r.agent(t, newPeers())
	r.tells(t, "a node that is ready", func(f *facts.Facts) bool { return f.AgentReady })
	stop()
	before := r.told().Written
	killed := filepath.Join(r.runDir, "tortie/.tortie-0123456789abcdef.tmp") // what a killed plugin was about to write
	errtest.Must(t, os.WriteFile(killed, nil, 0o600))
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "the next agent's facts", func() bool {
		f := r.told()
		if f == nil || !f.AgentReady {
			t.Fatal("the restart was seen")
		}
		return f.Written.After(before) && status.Report().Facts != nil
	})
	if _, err := os.Lstat(killed); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: %v", killed, err)
	}
}

// An agent without answers must not renew its facts: silence, the worst of failures, sends no error.
func TestFactsAgeWhenTheAPIServerIsSilent(t *testing.T) {
	r := newRig(t)
	wire, wired := labtest.NewWire(t, r.api)
	r.api = wired
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	r.tells(t, "a node that is ready", func(f *facts.Facts) bool { return f.AgentReady })

	wire.Stall()
	cut := time.Now()
	for _, probe := range []string{"first", "second"} { // by the second the answer to the first has been written, if there is one
		waittest.Until(t, facts.Interval+probeTime+3*time.Second, "the "+probe+" failed probe is shown", func() bool {
			return slices.ContainsFunc(status.Report().Problems, func(p string) bool { return strings.Contains(p, "getting old") })
		})
		status.SetProblems("facts", nil)
	}
	if f := r.told(); f == nil || f.Written.After(cut) {
		t.Errorf("facts claim to hold after the network was cut at %s: %+v", cut, f)
	}
	if metrics := scrape(status); !strings.Contains(metrics, "tortie_facts_age_seconds ") {
		t.Errorf("metrics:\n%s", metrics)
	}
	wire.Resume()
	r.tells(t, "the API server's return", func(f *facts.Facts) bool { return f.Written.After(cut) })
	waittest.Until(t, soon, "the problem is gone", func() bool {
		return !slices.ContainsFunc(status.Report().Problems, func(p string) bool { return strings.Contains(p, "getting old") })
	})
}

func scrape(status *Status) string {
	answer := httptest.NewRecorder()
	status.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	return answer.Body.String()
}

func (r *rig) journal() journal.Dir { return journal.Dir(filepath.Join(r.stateDir, journalDir)) }

// left makes a container with an address, noted on its pod, that a plugin could not release.
func (r *rig) left(t *testing.T, pod, containerID string) journal.Entry {
	t.Helper()
	e := journal.Entry{
		Handle: "rig-net." + containerID, Datastore: datastoreType, Network: "rig-net", Namespace: "default", Pod: pod,
		ContainerID: containerID, IfName: "eth0", Time: time.Now(), Reason: "connection refused",
	}
	client := ipam.NewClient(r.store, time.Now)
	owner := ipam.Owner{Handle: e.Handle, Attrs: map[string]string{"node": rigNode, "pod": pod, "namespace": "default"}}
	got, err := client.Assign(t.Context(), ipam.Request{Owner: owner, Host: rigNode, V4: true, Use: api.UseWorkload})
	errtest.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, _ = client.Release(ctx, e.Handle)
	})
	if pod != "" {
		errtest.Must(t, podnote.Write(t.Context(), r.store, r.pod(pod), containerID, []netip.Addr{got[0].Address}))
	}
	return e
}

func (r *rig) pod(name string) *api.Pod {
	return &api.Pod{Meta: api.Meta{Namespace: "default", Name: name}}
}

func (r *rig) put(t *testing.T, entries ...journal.Entry) {
	t.Helper()
	for _, e := range entries {
		errtest.Must(t, r.journal().Add(t.Context(), e))
	}
}

func (r *rig) holds(t *testing.T, e journal.Entry) bool {
	t.Helper()
	held, err := ipam.NewClient(r.store, time.Now).Addresses(t.Context(), e.Handle)
	errtest.Must(t, err)
	return len(held) > 0
}

func (r *rig) noted(t *testing.T, pod string) string {
	t.Helper()
	p := r.pod(pod)
	errtest.Must(t, r.store.Get(t.Context(), p))
	return p.Annotations[api.AnnotationPodIP]
}

func (r *rig) entries(t *testing.T) int {
	t.Helper()
	n, err := r.journal().Len()
	errtest.Must(t, err)
	return n
}

// newJournalRig returns a rig that deletes its pool's blocks and affinities at the end of the test.
func newJournalRig(t *testing.T) *rig {
	r := newRig(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for _, obj := range []api.Resource{
			&api.IPAMBlock{Meta: api.Meta{Name: "10-90-0-0-26"}}, &api.BlockAffinity{Meta: api.Meta{Name: rigNode + "-10-90-0-0-26"}},
		} {
			if err := r.store.Get(ctx, obj); err == nil {
				_ = r.store.Delete(ctx, obj)
			}
		}
	})
	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "rig"}, Spec: api.IPPoolSpec{CIDR: "10.90.0.0/26"}})
	return r
}

func TestAgentFinishesTheJournal(t *testing.T) {
	r := newJournalRig(t)
	for _, name := range []string{"rig-gone", "rig-again", "rig-live"} {
		labtest.CreatePod(t, "default", name)
	}
	gone, plain := r.left(t, "rig-gone", "c1"), r.left(t, "", "c2")
	again := r.left(t, "rig-again", "c3")
	newer := r.left(t, "rig-again", "c4") // the pod has a new sandbox, which is not in the journal
	foreign := journal.Entry{Handle: "other.c5", Datastore: "etcdv3", ContainerID: "c5"}
	// Calico 2 would have given this pod the handle of the new sandbox.
	namesake := journal.Entry{Handle: "rig-net.c7", Datastore: datastoreType, Network: "rig-net", Namespace: "rig-net", Pod: "c4",
		ContainerID: "c7", IfName: "net1"}
	r.put(t, gone, plain, again, foreign, namesake)

	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "all but the other datastore's is finished", func() bool { return r.entries(t) == 1 })
	for name, e := range map[string]journal.Entry{"a pod": gone, "a container without a pod": plain, "an old sandbox": again} {
		if r.holds(t, e) {
			t.Errorf("%s still holds its address", name)
		}
	}
	if got := r.noted(t, "rig-gone"); got != "" {
		t.Errorf("the pod is still said to have %s", got)
	}
	if !r.holds(t, newer) || r.noted(t, "rig-again") == "" {
		t.Errorf("the new sandbox lost its address: held %v, noted %q", r.holds(t, newer), r.noted(t, "rig-again"))
	}
	waittest.Until(t, time.Second, "status", func() bool { return status.Report().Journal == nodestatus.Journal{Entries: 1} })
	if metrics := scrape(status); !strings.Contains(metrics, "tortie_journal_entries 1") ||
		!strings.Contains(metrics, "tortie_journal_finished_total 4") {
		t.Errorf("metrics:\n%s", metrics)
	}

	// An entry that appears while the agent runs, and a damaged one, which stops no other.
	errtest.Must(t, os.WriteFile(filepath.Join(string(r.journal()), "damaged.json"), []byte("{"), 0o600))
	live := r.left(t, "rig-live", "c6")
	r.put(t, live)
	waittest.Until(t, 2*journalPause, "the new entry is finished", func() bool { return r.entries(t) == 1 && !r.holds(t, live) })
}

func TestJournalWaitsForTheDatastore(t *testing.T) {
	r := newJournalRig(t)
	wire, wired := labtest.NewWire(t, r.api)
	r.api = wired
	status, _ := r.agent(t, newPeers())
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })

	locked, open := false, true
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	r.update(t, info, func() { info.Spec.DatastoreReady = &locked })
	r.tells(t, "a locked datastore", func(f *facts.Facts) bool { return !f.DatastoreReady })
	e := r.left(t, "", "c1")
	r.put(t, e)
	waittest.Until(t, 2*journalPause, "the reason is shown", func() bool {
		return strings.Contains(status.Report().Journal.LastError, "the datastore is locked")
	})
	if !r.holds(t, e) {
		t.Error("an address was released in a locked datastore")
	}

	watch, store, log := r.watched(t)
	wire.Stall()
	r.update(t, info, func() { info.Spec.DatastoreReady = &open })
	another := &journalWorker{dir: r.journal(), node: rigNode, store: store, ipam: ipam.NewClient(store, time.Now), watch: watch,
		status: status, log: log}
	if err := another.pass(t.Context()); err == nil || r.entries(t) != 1 || !r.holds(t, e) {
		t.Errorf("finished without the API server: %v", err)
	}
	wire.Resume()
	waittest.Until(t, 2*journalRetry, "finished after the API server's return", func() bool { return r.entries(t) == 0 && !r.holds(t, e) })
}

// Agent and plugins use the same files.
func TestDefaultPathsAreThePlugins(t *testing.T) {
	c, err := config.LoadNode(func(name string) (string, bool) { return "node-1", name == "NODENAME" })
	errtest.Must(t, err)
	if got := filepath.Join(c.RunDir, factsFile); got != facts.DefaultFile {
		t.Errorf("facts are written to %s and read from %s", got, facts.DefaultFile)
	}
	if got := filepath.Join(c.RunDir, groupFile); got != facts.GroupFile {
		t.Errorf("the group is noted in %s and read from %s", got, facts.GroupFile)
	}
	if got := journal.Dir(filepath.Join(c.StateDir, journalDir)); got != journal.DefaultDir {
		t.Errorf("the journal is read in %s and written in %s", got, journal.DefaultDir)
	}
}
