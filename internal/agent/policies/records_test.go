package policies_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/flows"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// record makes the node's Worker record flows, with the rights of an administrator: the chart grants those for staged
// policies on request.
func (n *node) record(t *testing.T, file *flows.File) *flows.Recorder {
	t.Helper()
	n.api = n.admin
	r := flows.New(flows.Options{
		Node: n.name, Interval: 200 * time.Millisecond, Kernel: n.ns.Conn, File: file, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	before := n.configure
	n.configure = func(o *policies.Options) {
		if before != nil {
			before(o)
		}
		o.Flows = r
		if err := o.Feed.(*cluster.PolicyFeed).WatchStaged(); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// summed adds up the records by connection: "dst allow a -> b:53/udp by X".
func summed(r *flows.Recorder) map[string]flows.Record {
	sums := map[string]flows.Record{}
	answer := r.Answer(0)
	for _, f := range answer.Records {
		key := fmt.Sprintf("%s %s %s -> %s:%d/%s by %v", f.Reporter, f.Action, f.Source, f.Dest, f.Port, f.Protocol, f.Policies.Enforced)
		if f.Policies.Action != "" {
			key += fmt.Sprintf(" staged %s %v", f.Policies.Action, f.Policies.Pending)
		}
		sum := sums[key]
		sum.Started, sum.Completed, sum.Flows = sum.Started+f.Started, sum.Completed+f.Completed, sum.Flows+f.Flows
		sum.OutPkts, sum.OutBytes, sum.InPkts, sum.InBytes = sum.OutPkts+f.OutPkts, sum.OutBytes+f.OutBytes, sum.InPkts+
			f.InPkts, sum.InBytes+f.InBytes
		sums[key] = sum
	}
	return sums
}

// awaitFlow waits for a connection with the text in its description that meets the condition.
func awaitFlow(t *testing.T, r *flows.Recorder, text string, condition func(flows.Record) bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			for key, sum := range summed(r) {
				t.Logf("%s: %+v", key, sum)
			}
		}
	}()
	eventually(t, soon, text, func() bool {
		for key, sum := range summed(r) {
			if strings.HasPrefix(key, text) && condition(sum) {
				return true
			}
		}
		return false
	})
}

// Real connections are recorded with the deciding policy, and the effect of staged policies.
func TestConnectionsAreRecorded(t *testing.T) {
	n := newNode(t)
	server, client := n.start(t, "server", "10.90.6.1"), n.start(t, "client", "10.90.6.2")
	server6, client6 := n.start(t, "server6", "fd00:90:6::1"), n.start(t, "client6", "fd00:90:6::2")
	n.policy(t, "web",
		`{"podSelector":{"matchLabels":{"app":"server"}},"ingress":[{"ports":[{"port":7001}]},{"ports":[{"port":53,"protocol":"UDP"}]}]}`)
	path := filepath.Join(t.TempDir(), "logs", "flows.log")
	n.bind(t, "far", "elsewhere") // no policy names it
	n.note(t, "far", "10.90.7.9/32")
	netnstest.Cable(t, n.ns, "away", netnstest.New(t), "eth0")
	n.ns.Run(t, "ip", "route", "add", "10.90.7.0/24", "dev", "away")
	r := n.record(t, &flows.File{Path: path, Size: 1 << 20, Old: 1})
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing })
	var counts string
	eventually(t, soon, "the kernel counts", func() bool {
		n.ns.Within(t, func() (err error) {
			counts, err = sysctl.DefaultRoot.Get(sysctl.Key{"net", "netfilter", "nf_conntrack_acct"})
			return err
		})
		return counts == "1"
	})
	name := func(side, action, from, to, by string) string {
		return fmt.Sprintf("%s %s %s/%s -> %s/%s by [%s]", side, action, n.name, from, n.name, to, by)
	}
	server.EchoUDP(t, "10.90.6.1:53")
	server6.EchoUDP(t, "[fd00:90:6::1]:54")
	if !reaches(t, client, "10.90.6.1:53") || !reaches(t, client6, "[fd00:90:6::1]:54") {
		t.Fatal("not reached")
	}
	connect(t, client, server, "7001", true, true)
	if reaches(t, client, "10.90.6.1:99") {
		t.Fatal("reached a denied port")
	}
	byWeb := "default|NetworkPolicy " + n.name + "/web"
	allowed := func(f flows.Record) bool { return f.Started == 1 && f.OutPkts > 0 && f.InBytes > 0 }
	awaitFlow(t, r, name("dst", "allow", "client", "server:53/udp", byWeb+"|allow|1"), allowed)
	awaitFlow(t, r, name("src", "allow", "client", "server:53/udp", ""), allowed)
	awaitFlow(t, r, name("dst", "allow", "client6", "server6:54/udp", ""), allowed)
	awaitFlow(t, r, name("dst", "allow", "client", "server:7001/tcp", byWeb+"|allow|0"), func(f flows.Record) bool {
		return f.Started == 1 && f.Completed == 0 && f.Flows > 2 && f.OutBytes > 1000 && f.InBytes > 1000 // of several lists
	})
	awaitFlow(t, r, name("dst", "deny", "client", "server:99/udp", byWeb+"|deny|-1"),
		func(f flows.Record) bool { return f.OutPkts > 0 && f.OutBytes >= 33 })
	eventually(t, soon, "among the denials", func() bool {
		for _, d := range w.Denials() {
			if d.Why == "ingress NetworkPolicy "+n.name+"/web" && d.Src.String() == "10.90.6.2" && d.Dst.String() == "10.90.6.1" &&
				d.Port == 99 && d.Packets > 0 {
				return true
			}
		}
		return false
	})
	if reaches(t, client, "10.90.7.9:77") {
		t.Fatal("reached a pod that is not there")
	}
	awaitFlow(t, r, name("src", "allow", "client", "far:77/udp", ""), func(f flows.Record) bool { return f.OutPkts > 0 })
	n.stage(t, r, w, server, client, byWeb)
	lines, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(lines), `"enforced":["`+byWeb+`|allow|1"]`) {
		t.Errorf("%v: %s", err, lines)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v: %v", info.Mode(), err)
	}
}

// stage tries policies out.
func (n *node) stage(t *testing.T, r *flows.Recorder, w *policies.Worker, _, client *pod, byWeb string) {
	t.Helper()
	const crds = "/apis/crd.projectcalico.org/v1/"
	in := crds + "namespaces/" + n.name + "/"
	n.put(t, in+"stagednetworkpolicies", "default.tried", fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"StagedNetworkPolicy",
		"metadata":{"name":"default.tried","namespace":%q},"spec":{"order":1,"selector":"app == 'server'","types":["Ingress"],
		"ingress":[{"action":"Deny","protocol":"UDP","destination":{"ports":[53]}}]}}`, n.name))
	n.put(t, in+"stagedkubernetesnetworkpolicies", "web",
		fmt.Sprintf(`{"apiVersion":"crd.projectcalico.org/v1","kind":"StagedKubernetesNetworkPolicy",
		"metadata":{"name":"web","namespace":%q},"spec":{"stagedAction":"Delete"}}`, n.name))
	staged := "StagedNetworkPolicy " + n.name + "/default.tried"
	applies := w.Seen().Applies
	eventually(t, soon, "what staged policies would do is recorded", func() bool {
		_, _ = client.AskUDP(t, "", "10.90.6.1:99", "x", 0)
		if !reaches(t, client, "10.90.6.1:53") {
			t.Fatal("a staged policy has denied")
		}
		would := 0
		for key := range summed(r) {
			if strings.Contains(key, "staged deny [default|"+staged+"|deny|0]") && strings.HasPrefix(key, "dst allow") &&
				strings.Contains(key, byWeb+"|allow|1") || strings.Contains(key, ":99/udp") && strings.HasPrefix(key, "dst deny") &&
				strings.Contains(key, "staged deny [default|"+staged+"|deny|-1]") {
				would++
			}
		}
		return would == 2
	})
	if slices.Collect(func(yield func(string) bool) {
		for total := range r.Totals() {
			if total.Staged && total.Allow && !total.Pending && total.By.String() == staged && !yield(staged) {
				return
			}
		}
	}) == nil {
		t.Errorf("no counter of %s: %v", staged, r.Totals())
	}
	text := n.table(t)
	if strings.Contains(text, "tried") {
		t.Errorf("a staged policy is in the kernel (%d applies before):\n%s", applies, text)
	}
}
