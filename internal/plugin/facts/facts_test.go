package facts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func sample() Facts {
	free := 12
	return Facts{
		Written: noon, AgentReady: true, DatastoreReady: true, Node: "node-1", NodeLabels: map[string]string{"zone": "a"},
		Config:       api.IPAMConfigSpec{AutoAllocateBlocks: true, MaxBlocksPerHost: 4},
		Pools:        []api.IPPool{{Meta: api.Meta{Name: "pool"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16"}}},
		Reservations: []api.IPReservation{{Meta: api.Meta{Name: "kept"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.0.0.1"}}}},
		Affinities: []Affinity{{
			BlockAffinity: api.BlockAffinity{
				Meta: api.Meta{Name: "node-1-10-0-0-0-26", UID: "u", ResourceVersion: "7", Labels: map[string]string{"l": "v"}},
				Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "node-1", CIDR: "10.0.0.0/26"},
			},
			Free: &free,
		}},
		Namespaces: map[string]Namespace{
			"annotated": {Annotations: map[string]string{api.AnnotationIPv4Pools: `["pool"]`}},
			"labelled":  {Labels: map[string]string{"team": "blue"}},
			"default":   {}, "kube-system": {},
		},
		PlainPods: []string{"uid-2", "uid-1"},
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made/by/write/facts.json")
	errtest.Must(t, Write(path, sample()))
	got, err := Read(path, "node-1", noon.Add(time.Second))
	errtest.Must(t, err)
	if d := cmp.Diff(sample(), *got, cmpopts.IgnoreUnexported(Facts{}),
		cmpopts.IgnoreFields(Facts{}, "Format", "Namespaces", "PlainPods")); d != "" {
		t.Errorf("(-written +read):\n%s", d)
	}
	for name, want := range sample().Namespaces {
		ns, ok := got.Namespace(name)
		if d := cmp.Diff(want, ns); !ok || d != "" {
			t.Errorf("namespace %s: known %v (-written +read):\n%s", name, ok, d)
		}
	}
	for _, name := range []string{"", " ", "kube", "system", "default kube-system", "other"} {
		if ns, ok := got.Namespace(name); ok {
			t.Errorf("namespace %q is known, as %+v", name, ns)
		}
	}
	for uid, want := range map[string]bool{"uid-1": true, "uid-2": true, "": false, " ": false, "uid": false,
		"uid-1 uid-2": false, "uid-3": false} {
		if got.PlainPod(uid) != want {
			t.Errorf("pod %q: %v, want %v", uid, !want, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// An agent that has died has still decided.
func TestNoPolicies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "facts.json")
	for name, tt := range map[string]struct {
		said bool
		node string
		want bool
	}{"said": {true, "node-1", true}, "not said": {false, "node-1", false}, "of another node": {true, "node-2", false}} {
		f := sample()
		f.Written, f.NoPolicies = noon.Add(-time.Hour), tt.said
		errtest.Must(t, Write(path, f))
		if got := NoPolicies(path, tt.node); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if NoPolicies(filepath.Join(t.TempDir(), "absent"), "node-1") {
		t.Error("an absent file says so")
	}
}

func TestUnusableFiles(t *testing.T) {
	tests := map[string]struct {
		node string
		age  time.Duration
		edit func(string) string
		want string // empty: usable
	}{
		"fresh":                  {},
		"as old as may be":       {age: MaxAge},
		"too old":                {age: MaxAge + time.Millisecond, want: "30s"},
		"from a clock ahead":     {age: -time.Second},
		"from the future":        {age: -MaxAge - time.Second, want: "-31s"},
		"of another node":        {node: "node-2", want: `"node-1" "node-2"`},
		"of a later format":      {edit: func(s string) string { return strings.Replace(s, `"format":1`, `"format":2`, 1) }, want: "format 2 1"},
		"of no format":           {edit: func(string) string { return "{}" }, want: "format 0 1"},
		"torn":                   {edit: func(s string) string { return s[:len(s)/2] }, want: "unexpected end"},
		"empty":                  {edit: func(string) string { return "" }, want: "unexpected end"},
		"of another shape":       {edit: func(string) string { return `{"format":1,"pools":7}` }, want: "cannot unmarshal"},
		"with fields of its own": {edit: func(s string) string { return `{"new":{"x":1},` + s[1:] }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "facts.json")
			errtest.Must(t, Write(path, sample()))
			if tt.edit != nil {
				content, err := os.ReadFile(path)
				errtest.Must(t, err)
				errtest.Must(t, os.WriteFile(path, []byte(tt.edit(string(content))), 0o600))
			}
			node := "node-1"
			if tt.node != "" {
				node = tt.node
			}
			f, err := Read(path, node, noon.Add(tt.age))
			switch {
			case tt.want == "" && err != nil:
				t.Error(err)
			case tt.want != "" && (f != nil || !errors.Is(err, ErrUnusable) || !errtest.Names(err, tt.want)):
				t.Errorf("facts %v, error %v, want ErrUnusable that says %q", f, err, tt.want)
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "absent"), "node-1", noon); !errors.Is(err, ErrUnusable) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an absent file: %v", err)
	}
}

// Every ADD of the node reads the file: it must not grow with the cluster without bound.
func TestSizeIsBounded(t *testing.T) {
	for name, ns := range map[string]Namespace{
		"plain":     {},
		"labelled":  {Labels: map[string]string{"kubernetes.io/metadata.name": strings.Repeat("n", 40)}},
		"annotated": {Annotations: map[string]string{api.AnnotationIPv4Pools: strings.Repeat("p", 20000)}},
	} {
		t.Run(name, func(t *testing.T) {
			few, many := sample(), sample()
			few.Namespaces = nil
			many.Namespaces = map[string]Namespace{}
			for i := range 20000 {
				many.Namespaces[fmt.Sprintf("namespace-%05d", i)] = ns
			}
			path := filepath.Join(t.TempDir(), "facts.json")
			errtest.Must(t, Write(path, many))
			small, err := Encode(few)
			errtest.Must(t, err)
			info, err := os.Stat(path)
			if err != nil || info.Size() > int64(len(small))+maxNamespaces+1024 {
				t.Errorf("%d bytes, %v", info.Size(), err)
			}
			got, err := Read(path, "node-1", noon)
			errtest.Must(t, err)
			if _, ok := got.Namespace("namespace-00000"); !ok {
				t.Error("the first is not known")
			}
			if _, ok := got.Namespace("namespace-19999"); ok {
				t.Error("the last is known: so nothing was left out")
			}
		})
	}
}

func TestPodsAreBounded(t *testing.T) {
	many := sample()
	for i := range 20000 {
		many.PlainPods = append(many.PlainPods, fmt.Sprintf("uid-%05d", i))
	}
	path := filepath.Join(t.TempDir(), "facts.json")
	errtest.Must(t, Write(path, many))
	info, err := os.Stat(path)
	errtest.Must(t, err)
	got, err := Read(path, "node-1", noon)
	errtest.Must(t, err)
	if info.Size() > maxPods+4096 || !got.PlainPod("uid-00000") || got.PlainPod("uid-19999") {
		t.Errorf("%d bytes; first %v, last %v", info.Size(), got.PlainPod("uid-00000"), got.PlainPod("uid-19999"))
	}
}

// The file of an agent that does not watch pods, or is older, has none.
func TestWithoutPods(t *testing.T) {
	f := sample()
	f.PlainPods = nil
	data, err := Encode(f)
	if err != nil || strings.Contains(string(data), "plainPods") {
		t.Errorf("%v: %s", err, data)
	}
	path := filepath.Join(t.TempDir(), "facts.json")
	errtest.Must(t, os.WriteFile(path, data, 0o600))
	if got, err := Read(path, "node-1", noon); err != nil || got.PlainPod("uid-1") {
		t.Errorf("%v, %v", got, err)
	}
}

// The agent compares the bytes to find out whether facts have changed.
func TestEncodeIsDeterministic(t *testing.T) {
	first, err := Encode(sample())
	errtest.Must(t, err)
	for range 20 {
		if again, err := Encode(sample()); err != nil || string(again) != string(first) {
			t.Fatalf("%v\n%s\n%s", err, first, again)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{50, 2000} {
		b.Run(fmt.Sprint(n, " namespaces"), func(b *testing.B) {
			f := sample()
			for i := range n {
				f.Namespaces[fmt.Sprintf("team-namespace-%d", i)] = Namespace{}
			}
			path := filepath.Join(b.TempDir(), "facts.json")
			errtest.Must(b, Write(path, f))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Read(path, "node-1", noon); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Whatever is in the file, a plugin gets facts of its node and of now, or none.
func FuzzRead(f *testing.F) {
	good, err := Encode(sample())
	errtest.Must(f, err)
	for _, seed := range []string{string(good), "null", "[]",
		`{"format":1,"node":"node-1","written":"2026-11-21T12:00:00Z","affinities":[null]}`, `{"format":1e0,"Namespaces":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "facts.json")
		errtest.Must(t, os.WriteFile(path, content, 0o600))
		got, err := Read(path, "node-1", noon)
		if (got == nil) != errors.Is(err, ErrUnusable) || (got == nil) == (err == nil) {
			t.Fatalf("facts %v, error %v", got, err)
		}
		if got == nil {
			return
		}
		if age := noon.Sub(got.Written); got.Node != "node-1" || age > MaxAge || age < -MaxAge {
			t.Errorf("of node %q, written %s", got.Node, got.Written)
		}
		got.Namespace("default")
	})
}
