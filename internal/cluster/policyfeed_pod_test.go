package cluster

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// podText is a Pod of a node as the API server sends it.
func podText(meta, spec, status string) string {
	if spec != "" {
		spec = "," + spec
	}
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"ns","uid":"u","resourceVersion":"1",
		"creationTimestamp":"2026-11-23T07:00:00Z"%s},"spec":{"nodeName":"n"%s},"status":{%s}}`, meta, spec, status)
}

func noted(annotations string) string { return `,"annotations":{` + annotations + `}` }

const (
	podIP  = `"cni.projectcalico.org/podIP":`
	podIPs = `"cni.projectcalico.org/podIPs":`
)

func TestPodsAsPoliciesSeeThem(t *testing.T) {
	const reported = `"phase":"Running","podIP":"10.9.9.9","podIPs":[{"ip":"10.9.9.9"},{"ip":"fd00::99"}]`
	for name, c := range map[string]struct {
		meta, spec, status string
		want               string // addresses; "none": no pod
	}{
		"both notes": {noted(podIP + `"10.0.0.1/32",` + podIPs + `"10.0.0.1/32,fd00::1/128"`), "", "",
			"[10.0.0.1 fd00::1] [2 2]"},
		"notes that differ": {noted(podIP + `"10.0.0.1/32",` + podIPs + `"10.0.0.1/32,fd00::1/128"`), "", reported,
			"[10.0.0.1 10.9.9.9 fd00::1 fd00::99] [3 1 3 1]"},
		"notes of one family":          {noted(podIPs + `"10.0.0.1/32"`), "", reported, "[10.0.0.1 10.9.9.9 fd00::99] [3 1 0]"},
		"notes that say less":          {noted(podIPs + `"10.9.9.9/32"`), "", reported, "[10.9.9.9 fd00::99] [0 0]"},
		"notes that agree":             {noted(podIPs + `"10.9.9.9/32,fd00::99/128"`), "", reported, "[10.9.9.9 fd00::99] [0 0]"},
		"one note":                     {noted(podIP + `"10.0.0.1/32"`), "", "", "[10.0.0.1] [2]"},
		"an empty list and an address": {noted(podIPs + `"",` + podIP + `"10.0.0.1/32"`), "", "", "[10.0.0.1] [2]"},
		"another notation":             {noted(podIPs + `"::ffff:10.0.0.1, FD00:0::1"`), "", "", "[10.0.0.1 fd00::1] [2 2]"},
		"nonsense beside an address":   {noted(podIPs + `"10.0.0.1,x"`), "", "", "[10.0.0.1] [2]"},
		"more than a pod can have": {noted(podIPs + `"` + strings.Repeat("10.0.0.9,", 7) + `10.0.0.1,10.0.0.2,10.0.0.3"`), "", "",
			"[10.0.0.1 10.0.0.9] [2 2]"},
		"reported":                      {"", "", reported, "[10.9.9.9 fd00::99] [0 0]"},
		"not connected yet":             {"", "", `"phase":"Pending"`, "[] []"},
		"a note before there is a node": {noted(podIP + `"10.0.0.1/32"`), `"nodeName":""`, `"phase":"Pending"`, "[10.0.0.1] [2]"},
		"emptied notes":                 {noted(podIP + `"",` + podIPs + `""`), "", reported, "[10.9.9.9 fd00::99] [1 1]"},
		"an emptied note":               {noted(podIPs + `""`), "", reported, "[10.9.9.9 fd00::99] [1 1]"},
		"network of the host":           {"", `"hostNetwork":true`, reported, "none"},
		"succeeded":                     {noted(podIP + `"10.0.0.1/32"`), "", `"phase":"Succeeded"`, "none"},
		"failed":                        {noted(podIP + `"10.0.0.1/32"`), "", `"phase":"Failed"`, "none"},
		"terminating": {`,"deletionTimestamp":"2026-11-23T07:01:00Z"` + noted(podIP+`"10.0.0.1/32"`), "", reported,
			"[10.0.0.1 10.9.9.9 fd00::99] [3 1 0]"},
		"terminating without a note": {`,"deletionTimestamp":"2026-11-23T07:01:00Z"`, "", reported, "[10.9.9.9 fd00::99] [0 0]"},
		"terminating and released": {`,"deletionTimestamp":"2026-11-23T07:01:00Z"` + noted(podIP+`""`), "", reported,
			"[10.9.9.9 fd00::99] [1 1]"},
	} {
		t.Run(name, func(t *testing.T) {
			var p policyPod
			errtest.Must(t, json.Unmarshal([]byte(podText(c.meta, c.spec, c.status)), &p))
			got := "none"
			if p.pod != nil {
				got = fmt.Sprint(p.pod.Addresses, p.words)
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if p.meta.Name != "p" || p.meta.Namespace != "ns" || p.meta.UID != "u" || p.created == 0 {
				t.Errorf("%+v", p)
			}
		})
	}
}

// The address of a pod that is being deleted is its own until the plugin has released it: nobody takes it by naming it
// in an annotation.
func TestTerminatingPodsKeepTheirAddresses(t *testing.T) {
	const deleted, reported = `,"deletionTimestamp":"2026-11-23T07:01:00Z"`, `"phase":"Running","podIP":"10.0.0.1"`
	for name, c := range map[string]struct {
		meta string
		want string
	}{
		"running":   {deleted + noted(podIP+`"10.0.0.1/32"`), "a[10.0.0.1]"},
		"not noted": {deleted, "a[10.0.0.1]"},
		"released":  {deleted + noted(podIP+`""`), "a[] ?[10.0.0.1] b[] ?[10.0.0.1]"},
	} {
		table := newPodTable()
		table.settle(ground{"10.0.0.0/24": "n"})
		for key, text := range map[string]string{"a": podText(c.meta, "", reported),
			"b": podText(noted(podIP+`"10.0.0.1/32"`), "", `"phase":"Pending"`)} {
			var p policyPod
			errtest.Must(t, json.Unmarshal([]byte(text), &p))
			if key == "b" {
				p.created++
			}
			p.pod.PodKey.Name = key
			table.set(p.pod.PodKey, &p, false)
		}
		if got, _, _ := strings.Cut(takeAll(table, map[policy.PodKey]*policy.Pod{}), " / "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestPodsPortsAndIdentity(t *testing.T) {
	text := podText(`,"labels":{"app":"web"},"annotations":{"kubernetes.io/config.mirror":"static"}`, `"containers":[{"ports":[
		{"name":"http","containerPort":80},{"name":"dns","protocol":"UDP","containerPort":53},{"containerPort":81},
			{"name":"odd","protocol":"X","containerPort":9}]}],
		"initContainers":[{"ports":[{"name":"once","containerPort":1}]},
			{"restartPolicy":"Always","ports":[{"name":"side","protocol":"SCTP","containerPort":2}]}]`,
		"")
	var p policyPod
	errtest.Must(t, json.Unmarshal([]byte(text), &p))
	if got := fmt.Sprint(p.pod.Ports); got != "[{http 6 80} {dns 17 53} {once 6 1} {side 132 2}]" {
		t.Error(got)
	}
	if p.pod.UID != "static" || !p.pod.Stated || p.meta.UID != "u" || p.plain || p.pod.Labels["app"] != "web" {
		t.Errorf("%+v", p.pod)
	}
}

// Any user may write the annotation by which a static pod's UID is known: what is none does not count. It would become
// a comment in the kernel's table, and one with more than 253 bytes fails the whole transaction.
func TestStatedUIDs(t *testing.T) {
	for text, want := range map[string]string{
		"0123456789abcdef0123456789abcdef":     "0123456789abcdef0123456789abcdef",
		"8a3f2c1e-0000-4000-8000-0123456789AB": "8a3f2c1e-0000-4000-8000-0123456789AB",
		"":                                     "u", "closed for x": "u", "a b": "u", strings.Repeat("a", mostUID): strings.Repeat("a", mostUID),
		strings.Repeat("a", mostUID+1): "u",
	} {
		var p policyPod
		errtest.Must(t, json.Unmarshal([]byte(podText(`,"annotations":{"kubernetes.io/config.mirror":"`+text+`"}`, `"nodeName":"n"`, "")), &p))
		if p.pod.UID != want || p.pod.Stated != (want != "u") {
			t.Errorf("%q: UID %q, stated %v, want %q", text, p.pod.UID, p.pod.Stated, want)
		}
	}
}

// knownPod returns a pod as a watch delivers it: the key's name is its name, and its UID too unless one is given.
func knownPod(name string, created int64, addrs ...string) *policyPod {
	name, uid, _ := strings.Cut(name, "#")
	p := &policy.Pod{PodKey: policy.PodKey{Namespace: "ns", Name: name}, UID: name + uid}
	for _, a := range addrs {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	return &policyPod{meta: api.Meta{UID: p.UID}, pod: p, created: created, node: "n", words: make([]word, len(addrs))}
}

// saying sets the source of all addresses of a pod.
func saying(by word, p *policyPod) *policyPod {
	for i := range p.words {
		p.words[i] = by
	}
	return p
}

// ground maps blocks to their nodes, "" for none, in a pool as large as all of them together.
type ground map[string]string

func (g ground) Place(a netip.Addr) (pooled bool, node string) {
	for block, owner := range g {
		if netip.MustParsePrefix(block).Contains(a) {
			return true, owner
		}
	}
	return false, ""
}

// tableStep is one change of a podTable, and its visible result.
type tableStep struct {
	name  string
	pod   *policyPod // nil: gone
	local bool
	want  string // pods with addresses, then what changed; "*" if pods of this node did
}

func TestPodTable(t *testing.T) {
	for name, steps := range map[string][]tableStep{
		"life of another node's pod": {
			{"a", knownPod("a", 1), false, " / "}, // without an address it matters to nobody
			{"a", knownPod("a", 1, "10.0.0.1"), false, "a[10.0.0.1] / a"},
			{"a", knownPod("a", 1, "10.0.0.1"), false, "a[10.0.0.1] / "},
			{"a", nil, false, " / a"},
		},
		"life of an own pod": {
			{"a", knownPod("a", 1), true, "a[] / * a"},
			{"a", knownPod("a", 1, "10.0.0.1"), true, "a[10.0.0.1] / * a"},
			{"a", nil, true, " / * a"},
		},
		"another pod of the same name": {
			{"a", knownPod("a#1", 1, "10.0.0.1"), false, "a[10.0.0.1] / a"},
			{"a", knownPod("a#2", 2, "10.0.0.1"), false, "a[10.0.0.1] / a"},
			{"a", knownPod("a#2", 2, "10.0.0.1"), true, "a[10.0.0.1] / * a"},
		},
		"the newest has the address, in either order": {
			{"old", knownPod("old", 1, "10.0.0.1", "10.0.0.2"), false, "old[10.0.0.1 10.0.0.2] / old"},
			{"new", knownPod("new", 2, "10.0.0.1"), false, "new[10.0.0.1] old[10.0.0.2] / new old"},
			{"older", knownPod("older", 0, "10.0.0.1"), false, "new[10.0.0.1] old[10.0.0.2] / "},
			{"new", nil, false, "old[10.0.0.1 10.0.0.2] / new old"},
			{"old", nil, false, "older[10.0.0.1] / old older"},
		},
		"of the same age that with the greater UID": {
			{"b", knownPod("b", 1, "10.0.0.1"), false, "b[10.0.0.1] / b"},
			{"a", knownPod("a", 1, "10.0.0.1"), false, "b[10.0.0.1] / "},
			{"c", knownPod("c", 1, "10.0.0.1"), false, "c[10.0.0.1] / b c"},
		},
		"who was certain is so no longer": {
			{"old", knownPod("old", 1, "10.0.0.1"), false, "old[10.0.0.1] / old"},
			{"new", saying(byNoteAgainst, knownPod("new", 2, "10.0.0.1")), false, "old[10.0.0.1] / "},
			{"old", saying(byKubeletAgainst, knownPod("old", 1, "10.0.0.1")), false, "new[] ?[10.0.0.1] old[] ?[10.0.0.1] / new old"},
		},
		"an own pod loses its address": {
			{"own", knownPod("own", 1, "10.0.0.1"), true, "own[10.0.0.1] / * own"},
			{"new", knownPod("new", 2, "10.0.0.1"), false, "new[10.0.0.1] own[] / * new own"},
			{"new", knownPod("new", 2, "10.0.0.2"), false, "new[10.0.0.2] own[10.0.0.1] / * new own"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			table, view := newPodTable(), map[policy.PodKey]*policy.Pod{}
			table.settle(ground{"10.0.0.0/24": "n"})
			for i, s := range steps {
				table.set(policy.PodKey{Namespace: "ns", Name: s.name}, s.pod, s.local)
				if got := takeAll(table, view); got != s.want {
					t.Errorf("step %d: %q, want %q", i, got, s.want)
				}
			}
			if len(table.claims) > len(view)+1 {
				t.Errorf("claims left: %v", table.claims)
			}
		})
	}
}

// takeAll describes the pods and what changed.
func takeAll(table *podTable, view map[policy.PodKey]*policy.Pod) string {
	changed, local := table.take(view)
	var pods, names []string
	for _, key := range slices.SortedFunc(maps.Keys(view), comparePodKeys) {
		text := key.Name + fmt.Sprint(view[key].Addresses)
		if unsure := view[key].Unsure; len(unsure) > 0 {
			text += " ?" + fmt.Sprint(unsure)
		}
		pods = append(pods, text)
	}
	if local {
		names = append(names, "*")
	}
	for _, key := range changed {
		names = append(names, key.Name)
	}
	return strings.Join(pods, " ") + " / " + strings.Join(names, " ")
}

// Whatever the order in which claims come and go, the same is shown.
func TestPodTableForgetsHowItCame(t *testing.T) {
	pods := []*policyPod{
		knownPod("a", 1, "10.0.0.1", "10.0.0.2"), knownPod("b", 2, "10.0.0.2", "10.0.0.3"), knownPod("c", 2, "10.0.0.3", "10.0.0.1"),
		knownPod("d", 3, "10.0.0.4"),
	}
	var want string
	for from := range pods {
		table, view := newPodTable(), map[policy.PodKey]*policy.Pod{}
		table.settle(ground{"10.0.0.0/24": "n"})
		for i := range pods {
			p := pods[(from+i)%len(pods)]
			table.set(p.pod.PodKey, p, false)
			takeAll(table, view)
		}
		table.set(pods[3].pod.PodKey, nil, false)
		got, _, _ := strings.Cut(takeAll(table, view), "/")
		if want == "" {
			want = got
		}
		if got != want || got != "b[10.0.0.2] c[10.0.0.3 10.0.0.1] " {
			t.Errorf("from %d: %q, then %q", from, want, got)
		}
		for _, p := range pods {
			table.set(p.pod.PodKey, nil, false)
		}
		if takeAll(table, view); len(view)+len(table.pods)+len(table.claims) != 0 {
			t.Errorf("left: %v %v", view, table)
		}
	}
}
