package journal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func entry(handle string) Entry {
	return Entry{
		Handle: handle, Datastore: "kubernetes", Network: "k8s-pod-network", Namespace: "default", Pod: "web-0", ContainerID: "c0ffee",
		IfName: "eth0", Time: time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC), Reason: "dial tcp 10.96.0.1:443: connect: connection refused",
	}
}

func add(t *testing.T, d Dir, entries ...Entry) {
	t.Helper()
	for _, e := range entries {
		errtest.Must(t, d.Add(t.Context(), e))
	}
}

// drain finishes everything and returns the handles in order.
func drain(t *testing.T, d Dir) []string {
	t.Helper()
	var handles []string
	errtest.Must(t, d.Each(t.Context(), func(e Entry) error { handles = append(handles, e.Handle); return nil }))
	return handles
}

func files(t *testing.T, d Dir) []string {
	t.Helper()
	all, err := os.ReadDir(string(d))
	errtest.Must(t, err)
	var names []string
	for _, f := range all {
		names = append(names, f.Name())
	}
	return names
}

func TestEntrySurvivesTheDisk(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "made/by/add"))
	want := entry("k8s-pod-network.c0ffee")
	add(t, d, want)
	if d := cmp.Diff([]string{"k8s-pod-network.c0ffee.json"}, files(t, d)); d != "" {
		t.Error(d)
	}
	info, err := os.Stat(filepath.Join(string(d), "k8s-pod-network.c0ffee.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: others may not read or add entries", info.Mode(), err)
	}
	var got Entry
	errtest.Must(t, d.Each(t.Context(), func(e Entry) error { got = e; return nil }))
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-added +read):\n%s", d)
	}
	if left := files(t, d); left != nil {
		t.Errorf("left: %v", left)
	}
}

func TestAbsentDirectoryIsEmpty(t *testing.T) {
	d := Dir(filepath.Join(t.TempDir(), "absent"))
	if n, err := d.Len(); n != 0 || err != nil {
		t.Errorf("Len: %d, %v", n, err)
	}
	if err := d.Withdraw(t.Context(), "a.b"); err != nil {
		t.Error(err)
	}
	if got := drain(t, d); got != nil {
		t.Errorf("entries %v", got)
	}
}

// Handles come from configuration and arguments. They must not lead out of the directory, nor share a file.
func TestNames(t *testing.T) {
	long := strings.Repeat("n", 300)
	handles := []string{
		"k8s-pod-network.c0ffee", "K8S-pod-network.c0ffee", "../../etc/cron.d/x", "a/b", "a\\b", ".", "..",
		".tortie-1.tmp", "x\x00y", "a b", "a\nb",
		"%2e%2e", "ü", "a\xffb", "a\xfeb", long, long + "n", "x.json", "x.damaged",
	}
	d := Dir(t.TempDir())
	seen := map[string]string{}
	for _, h := range handles {
		name := fileName(h)
		if other, ok := seen[name]; ok {
			t.Errorf("handles %q and %q share the file %s", h, other, name)
		}
		seen[name] = h
		if filepath.Base(name) != name || len(name) > 255 || strings.HasPrefix(name, ".") || !strings.HasSuffix(name, ".json") {
			t.Errorf("handle %q: file name %q", h, name)
		}
	}
	valid := []string{"../../etc/cron.d/x", "a/b", "k8s-pod-network.c0ffee", long}
	for _, h := range valid {
		add(t, d, entry(h))
	}
	if n, err := d.Len(); n != len(valid) || err != nil {
		t.Fatalf("Len: %d, %v", n, err)
	}
	for _, h := range valid {
		if err := d.Withdraw(t.Context(), h); err != nil {
			t.Error(err)
		}
	}
	if left := files(t, d); left != nil {
		t.Errorf("left: %v", left)
	}
}

func TestAddRefuses(t *testing.T) {
	d := Dir(t.TempDir())
	big := entry("a.b")
	big.Network = strings.Repeat("n", maxSize)
	for name, e := range map[string]Entry{"no handle": {}, "too big": big, "no UTF-8": entry("a\xffb")} {
		if err := d.Add(t.Context(), e); err == nil {
			t.Errorf("%s: added", name)
		}
	}
	wordy := entry("a.b")
	wordy.Reason = strings.Repeat("ü", 5000)
	add(t, d, wordy)
	if err := d.Each(t.Context(), func(e Entry) error {
		if len(e.Reason) > maxReason || len(e.Reason) < maxReason-2 || strings.Trim(e.Reason, "ü") != "" {
			t.Errorf("a long reason became %d bytes", len(e.Reason))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestFullJournalRefusesNewHandles(t *testing.T) {
	d := Dir(t.TempDir())
	add(t, d, entry("known"))
	for i := range MaxEntries - 1 {
		errtest.Must(t, os.WriteFile(filepath.Join(string(d), fmt.Sprintf("%d.json", i)), nil, 0o600))
	}
	if err := d.Add(t.Context(), entry("one-more")); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	add(t, d, entry("known")) // takes no more room
	errtest.Must(t, d.Withdraw(t.Context(), "known"))
	add(t, d, entry("one-more"))
}

func TestOneHandleHasOneEntry(t *testing.T) {
	d := Dir(t.TempDir())
	second := entry("a.b")
	second.IfName = "net1"
	add(t, d, entry("a.b"), second)
	if got := drain(t, d); len(got) != 1 {
		t.Errorf("entries %v", got)
	}
}

func TestEachGoesOnAndStops(t *testing.T) {
	poison := errors.New("block 10.0.0.0/26 is damaged")
	tests := map[string]struct {
		answers map[string]error
		left    []string
		seen    int
		reports []string
	}{
		"all done": {seen: 3},
		"one fails, others go on": {answers: map[string]error{"a": poison}, left: []string{"a.json"}, seen: 3,
			reports: []string{"handle", "default/web-0", "10.0.0.0/26"}},
		"nothing can be finished": {answers: map[string]error{"a": fmt.Errorf("%w: %w", ErrStop, context.DeadlineExceeded)},
			left: []string{"a.json", "b.json", "c.json"}, seen: 1, reports: []string{"deadline"}},
		"somebody else's is no news": {answers: map[string]error{"b": fmt.Errorf("etcdv3: %w", ErrKeep)}, left: []string{"b.json"}, seen: 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := Dir(t.TempDir())
			add(t, d, entry("a"), entry("b"), entry("c"))
			seen := 0
			err := d.Each(t.Context(), func(e Entry) error { seen++; return tt.answers[e.Handle] })
			if (err != nil) != (tt.reports != nil) {
				t.Fatalf("error %v, want it to report %q", err, tt.reports)
			}
			difftest.Contains(t, fmt.Sprint(err), tt.reports...)
			if d := cmp.Diff(tt.left, files(t, d)); d != "" || seen != tt.seen {
				t.Errorf("saw %d, want %d; left (-want +got):\n%s", seen, tt.seen, d)
			}
		})
	}
	t.Run("the caller's time is over", func(t *testing.T) {
		d := Dir(t.TempDir())
		add(t, d, entry("a"), entry("b"))
		ctx, cancel := context.WithCancel(t.Context())
		err := d.Each(ctx, func(Entry) error { cancel(); return nil })
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if d := cmp.Diff([]string{"b.json"}, files(t, d)); d != "" {
			t.Error(d)
		}
	})
}

func TestDamagedEntriesAreSetAside(t *testing.T) {
	d := Dir(t.TempDir())
	add(t, d, entry("good"))
	bad := map[string]string{
		"empty.json":        "",
		"torn.json":         `{"handle":"torn","netw`,
		"copied.json":       `{"handle":"good"}`,
		"no-handle.json":    `{}`,
		"wrong-type.json":   `{"handle":7}`,
		"huge.json":         `{"handle":"huge","reason":"` + strings.Repeat("x", maxSize) + `"}`,
		".tortie-12.tmp":    "half an entry of a plugin that was killed",
		"%not-a-hash.json":  `{"handle":"%not-a-hash"}`,
		"README":            "not ours",
		"earlier.damaged":   "reported before",
		"..json":            `{"handle":"."}`,
		"wrong-case.json":   `{"handle":"Wrong-Case"}`,
		"other-format.json": `[1,2,3]`,
	}
	for name, content := range bad {
		errtest.Must(t, os.WriteFile(filepath.Join(string(d), name), []byte(content), 0o600))
	}
	errtest.Must(t, os.Mkdir(filepath.Join(string(d), "directory.json"), 0o700))
	errtest.Must(t, syscall.Mkfifo(filepath.Join(string(d), "pipe.json"), 0o600))
	var handles []string
	err := d.Each(t.Context(), func(e Entry) error { handles = append(handles, e.Handle); return nil })
	difftest.Want(t, "finished", []string{"good"}, handles)
	for _, name := range []string{"empty", "torn", "copied", "no-handle", "wrong-type", "huge", "directory", "pipe", "%not-a-hash",
		"wrong-case", "other-format"} {
		if err == nil || !strings.Contains(err.Error(), "/"+name+".json") {
			t.Errorf("%s.json was not reported: %v", name, err)
		}
	}
	want := []string{
		"%not-a-hash.damaged", "..json", "README", "copied.damaged", "directory.damaged", "earlier.damaged", "empty.damaged", "huge.damaged",
		"no-handle.damaged", "other-format.damaged", "pipe.damaged", "torn.damaged", "wrong-case.damaged", "wrong-type.damaged",
	}
	difftest.Want(t, "files", want, files(t, d))
	if got := drain(t, d); got != nil { // and reports nothing again
		t.Errorf("second time: %v", got)
	}
}

func TestLinksAreNotFollowed(t *testing.T) {
	d := Dir(t.TempDir())
	outside := filepath.Join(t.TempDir(), "outside.json")
	errtest.Must(t, os.WriteFile(outside, []byte(`{"handle":"linked"}`), 0o600))
	errtest.Must(t, os.Symlink(outside, filepath.Join(string(d), "linked.json")))
	err := d.Each(t.Context(), func(e Entry) error { t.Errorf("read %+v through a link", e); return nil })
	if err == nil || !strings.Contains(err.Error(), "linked.json") {
		t.Errorf("error %v", err)
	}
	add(t, d, entry("linked")) // replaces the link, not what it points to
	if got, _ := os.ReadFile(outside); string(got) != `{"handle":"linked"}` {
		t.Errorf("written through the link: %s", got)
	}
}

func TestWithdrawWaitsForWhoFinishes(t *testing.T) { synctest.Test(t, withdrawWaits) }

func withdrawWaits(t *testing.T) {
	d := Dir(t.TempDir())
	add(t, d, entry("a"))
	finishing, goOn := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- d.Each(t.Context(), func(Entry) error {
			close(finishing)
			<-goOn
			finished.Store(true)
			return nil
		})
	}()
	<-finishing
	// Others leave it alone meanwhile.
	if err := d.Each(t.Context(), func(e Entry) error { t.Errorf("two at %s", e.Handle); return nil }); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("the ADD's time is over"))
	defer cancel()
	if err := d.Withdraw(short, "a"); err == nil || !strings.Contains(err.Error(), "the ADD's time is over") {
		t.Errorf("withdrawn from under who finishes it: %v", err)
	}
	withdrawn := make(chan error, 1)
	go func() {
		err := d.Withdraw(t.Context(), "a")
		if !finished.Load() {
			t.Error("withdrawn before it was finished")
		}
		withdrawn <- err
	}()
	synctest.Wait() // it waits
	close(goOn)
	if err := errors.Join(<-done, <-withdrawn); err != nil {
		t.Error(err)
	}
}

// A DEL that comes while an earlier entry of its handle is being finished leaves an entry that is still there
// afterwards.
func TestEntryReplacedMeanwhileStays(t *testing.T) {
	d := Dir(t.TempDir())
	add(t, d, entry("a"))
	newer := entry("a")
	newer.IfName = "net1"
	errtest.Must(t, d.Each(t.Context(), func(Entry) error { return d.Add(t.Context(), newer) }))
	if got := drain(t, d); len(got) != 1 {
		t.Errorf("left %v", got)
	}
}

// Plugins add and withdraw, an agent and a GC finish: each entry is finished by one at a time, and never after its
// withdrawal.
func TestManyAtOnce(t *testing.T) { synctest.Test(t, manyAtOnce) }

func manyAtOnce(t *testing.T) {
	d := Dir(t.TempDir())
	const handles, rounds = 4, 25
	var busy [handles]atomic.Int32
	var live [handles]atomic.Bool // between a withdrawal and the next DEL the container has addresses
	index := func(e Entry) int { return int(e.Handle[0] - '0') }
	finish := func(e Entry) error {
		i := index(e)
		if busy[i].Add(1) != 1 {
			t.Errorf("two finish %s", e.Handle)
		}
		if live[i].Load() {
			t.Errorf("%s is released although it was taken back", e.Handle)
		}
		waittest.Advance(time.Millisecond)
		busy[i].Add(-1)
		return nil
	}
	var plugins, readers sync.WaitGroup
	for i := range handles {
		plugins.Go(func() {
			for range rounds {
				if err := d.Add(t.Context(), entry(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
				waittest.Advance(time.Duration(i) * time.Millisecond)
				if err := d.Withdraw(t.Context(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
				live[i].Store(true)
				waittest.Advance(time.Millisecond)
				live[i].Store(false)
			}
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	for range 2 {
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := d.Each(t.Context(), finish); err != nil {
					t.Error(err)
				}
				waittest.Advance(rand.N(time.Millisecond))
			}
		})
	}
	plugins.Wait()
	stop()
	readers.Wait()
	if left := files(t, d); left != nil {
		t.Errorf("left: %v", left)
	}
}

// TestHolder is the process that TestLocksEndWithTheirHolder kills.
func TestHolder(t *testing.T) {
	dir := os.Getenv("JOURNAL_TEST_DIR")
	if dir == "" {
		return
	}
	err := Dir(dir).Each(t.Context(), func(Entry) error {
		fmt.Println("holding")
		_, err := io.Copy(io.Discard, os.Stdin) // an empty select would be a deadlock, which ends a process
		return err
	})
	errtest.Must(t, err)
}

func TestLocksEndWithTheirHolder(t *testing.T) {
	d := Dir(t.TempDir())
	add(t, d, entry("a"))
	holder := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestHolder$")
	holder.Env = append(os.Environ(), "JOURNAL_TEST_DIR="+string(d))
	out, err := holder.StdoutPipe()
	errtest.Must(t, err)
	in, err := holder.StdinPipe()
	errtest.Must(t, err)
	defer in.Close()
	errtest.Must(t, holder.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holding\n" {
		t.Fatalf("the holder said %q, %v", line, err)
	}
	if got := drain(t, d); got != nil {
		t.Errorf("finished %v, which another process holds", got)
	}
	errtest.Must(t, holder.Process.Kill())
	_ = holder.Wait() // it was killed
	difftest.Want(t, "after its death", []string{"a"}, drain(t, d))
}

// Whatever a file contains, it does no harm: it is finished under its own name, or set aside.
func FuzzStoredFile(f *testing.F) {
	good, err := encode(entry("fuzzed"))
	errtest.Must(f, err)
	for _, seed := range []string{string(good), "", "{}", `{"handle":"other"}`, `{"handle":"fuzzed","time":"yesterday"}`, "\x00", "[[[["} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		d := Dir(t.TempDir())
		errtest.Must(t, os.WriteFile(filepath.Join(string(d), "fuzzed.json"), content, 0o600))
		add(t, d, entry("good"))
		var got []string
		err := d.Each(t.Context(), func(e Entry) error { got = append(got, e.Handle); return nil })
		if err == nil && !cmp.Equal(got, []string{"fuzzed", "good"}) || err != nil && !cmp.Equal(got, []string{"good"}) {
			t.Errorf("finished %v, error %v", got, err)
		}
		if n, err := d.Len(); n != 0 || err != nil {
			t.Errorf("%d entries left, %v", n, err)
		}
	})
}

// FuzzHandle: no handle leads out of the directory or is lost.
func FuzzHandle(f *testing.F) {
	for _, seed := range []string{"k8s-pod-network.c0ffee", "../x", ".", "%", strings.Repeat("a", 201), "a\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, handle string) {
		d := Dir(filepath.Join(t.TempDir(), "journal"))
		err := d.Add(t.Context(), entry(handle))
		if handle == "" || err != nil {
			return
		}
		if n, _ := d.Len(); n != 1 {
			t.Fatalf("%d entries", n)
		}
		errtest.Must(t, d.Withdraw(t.Context(), handle))
		if n, _ := d.Len(); n != 0 {
			t.Fatalf("%d entries after the withdrawal", n)
		}
	})
}
