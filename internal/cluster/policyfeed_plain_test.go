package cluster

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// plainRig is a PolicyFeed of the node self, pods of a namespace, and what is between the feed and the API server.
type plainRig struct {
	*reader
	*faulty
	cfg       *rest.Config
	namespace string
}

func newPlainRig(t *testing.T, namespace string) *plainRig {
	t.Helper()
	cfg := labtest.RESTConfig(t)
	f, wired := newFaulty(t, cfg)
	aNamespace(t, cfg, namespace)
	return &plainRig{feedAt(t, wired), f, cfg, namespace}
}

func (r *plainRig) pod(t *testing.T, name, node, spec string) {
	t.Helper()
	aPod(t, r.cfg, r.namespace+"/"+name, node, "", spec)
}

func (r *plainRig) patch(t *testing.T, name, body string) {
	t.Helper()
	patchPod(t, r.cfg, r.namespace+"/"+name, body)
}

// plain waits until exactly the named pods are plain.
func (r *plainRig) plain(t *testing.T, what string, want ...string) {
	t.Helper()
	waittest.Until(t, 20*time.Second, what, func() bool {
		r.take()
		var uids []string
		for _, name := range want {
			if p := r.reader.pod(r.namespace + "/" + name); p != nil {
				uids = append(uids, p.UID)
			}
		}
		slices.Sort(uids)
		return len(uids) == len(want) && slices.Equal(uids, slices.Sorted(slices.Values(r.feed.PlainPods())))
	})
}

// signalled fails the test unless the reader was woken, or was not.
func (r *plainRig) signalled(t *testing.T, what string, want bool) {
	t.Helper()
	woken := false
	select {
	case <-r.feed.PlainPodsChanged():
		woken = true
	default:
	}
	if woken != want {
		t.Errorf("%s: woken %v, want %v", what, woken, want)
	}
}

func TestPlainPods(t *testing.T) {
	r := newPlainRig(t, "plain")
	r.pod(t, "early", "self", "")
	r.plain(t, "one pod", "early")
	r.signalled(t, "one pod", true)
	r.pod(t, "other", "another", "")
	r.pod(t, "host", "self", `,"hostNetwork":true`)
	r.pod(t, "late", "self", "")
	r.plain(t, "a new pod", "early", "late")
	r.signalled(t, "a new pod", true)

	r.patch(t, "late", `{"metadata":{"annotations":{"other":"x","cni.projectcalico.org/podIP":"10.0.0.5/32"}},"status":{"podIP":"10.0.0.5"}}`)
	r.has(t, "plain/late", "[10.0.0.5]")
	r.signalled(t, "a pod that has an address", false)
	r.patch(t, "late", `{"metadata":{"annotations":{"cni.projectcalico.org/hwAddr":"02:00:5e:10:00:01"}}}`)
	r.plain(t, "an annotated pod", "early")
	r.signalled(t, "an annotated pod", true)
	r.patch(t, "late", `{"metadata":{"annotations":{"cni.projectcalico.org/hwAddr":null}}}`)
	r.plain(t, "an annotation removed", "early", "late")

	r.patch(t, "early", `{"status":{"phase":"Succeeded"}}`)
	r.plain(t, "a finished pod", "late")
	errtest.Must(t, raw(t, r.cfg, http.MethodDelete, "/api/v1/namespaces/plain/pods/late", "")) // in 30 s
	r.plain(t, "a pod that is being deleted")
	r.has(t, "plain/late", "[10.0.0.5]")
	for range 2 {
		r.pod(t, "again", "self", "")
		r.plain(t, "a pod of a name", "again")
		errtest.Must(t, deletePod(t, r.cfg, "plain/again"))
		r.plain(t, "a deleted pod")
	}
}

// The pods of an interrupted watch are withdrawn, and return when it is open.
func TestPlainPodsOfAnInterruptedWatch(t *testing.T) {
	r := newPlainRig(t, "interrupted")
	r.pod(t, "early", "self", "")
	r.plain(t, "one pod", "early")
	r.answers(func(rw http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, "/pods") {
			http.Error(rw, "refused by the test", http.StatusServiceUnavailable)
			return
		}
		r.through.ServeHTTP(rw, req)
	})
	r.server.CloseClientConnections()
	r.plain(t, "an interrupted watch")
	r.answer.Store(nil)
	r.plain(t, "a watch that is open again", "early")
}

// Annotations without effect are kept of this node's pods only.
func TestUnreadOfOtherNodesIsNotKept(t *testing.T) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: map[string]string{"projectcalico.org/misspelt": "x"}}}
	o := object[policyPod]{value: newPolicyPod(&pod)}
	if len(o.value.unread) != 1 {
		t.Errorf("own: %q", o.value.unread)
	}
	src := podSource("")
	if src.prepare(groups.V1, &o); o.value.unread != nil {
		t.Errorf("another node's: %q", o.value.unread)
	}
}
