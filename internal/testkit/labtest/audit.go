package labtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// NewAuditedServer is NewServer with an audit log of the chart's accounts.
func NewAuditedServer(t testing.TB) *Server {
	t.Helper()
	return NewAuditedServerOf(t, Group(t))
}

// NewAuditedServerOf is NewServerOf with an audit log of the chart's accounts.
func NewAuditedServerOf(t testing.TB, g groups.Group) *Server {
	t.Helper()
	s := newServer(t, auditArgs(true)...)
	s.Define(t, g)
	return s
}

// auditArgs returns the options of `lab api` for an audit log of the chart's accounts, or none.
func auditArgs(audited bool) []string {
	if !audited {
		return nil
	}
	return []string{"-audit", "system:serviceaccounts:" + chartNamespace}
}

// AuditedRequest is a request of one of the chart's accounts.
type AuditedRequest struct {
	Account   string
	Verb      string // as in RBAC
	Group     string
	Resource  string // with its subresource, as in RBAC
	Namespace string
	Name      string
	Forbidden bool // denied by RBAC
}

// auditEvent is the decoded part of an audit.k8s.io/v1 Event.
type auditEvent struct {
	Verb      string
	User      struct{ Username string }
	ObjectRef *struct {
		Resource, Subresource, APIGroup, Namespace, Name string
	}
	Annotations              map[string]string
	RequestReceivedTimestamp time.Time
}

func (s *Server) auditLog(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(filepath.Dir(s.kubeconfig), "audit.log"))
	errtest.Must(t, err)
	return text
}

// AuditedRequests returns the requests of the chart's accounts to an audited server, in the order of its responses,
// except requests from before the test took the server. The server records a request after it has responded: the last
// ones may be missing for a moment.
func (s *Server) AuditedRequests(t testing.TB) []AuditedRequest {
	t.Helper()
	var all []AuditedRequest
	for line := range strings.Lines(string(s.auditLog(t)[s.read:])) {
		if !strings.HasSuffix(line, "\n") { // being written
			break
		}
		var e auditEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("audit.log: %v in %s", err, line)
		}
		if e.RequestReceivedTimestamp.Before(s.since.Truncate(time.Microsecond)) { // of a test before
			continue
		}
		if e.ObjectRef == nil { // non-resource request that every account may make, such as /version
			continue
		}
		_, account, _ := strings.Cut(e.User.Username, "system:serviceaccount:"+chartNamespace+":")
		resource := strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
		all = append(all, AuditedRequest{
			Account: account, Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: resource, Namespace: e.ObjectRef.Namespace,
			Name: e.ObjectRef.Name, Forbidden: e.Annotations["authorization.k8s.io/decision"] == "forbid",
		})
	}
	return all
}
