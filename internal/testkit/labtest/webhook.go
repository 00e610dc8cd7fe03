package labtest

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Silent is the code of a verdict that never comes: the API server gives up after the webhook's timeoutSeconds.
const Silent = -1

// Verdict is a webhook's answer to a request. Code 0 allows it; Silent sends no answer; any other code refuses it with
// that HTTP status and Message. The API server returns 400 for a code below, and for a refusal without a code.
type Verdict struct {
	Code    int
	Message string
}

// Webhook is an admission webhook on loopback.
type Webhook struct {
	server *httptest.Server
	ended  chan struct{}

	mu      sync.Mutex // guards all below
	verdict func(request string) Verdict
	asked   map[string]int
}

// Webhooks is a ValidatingWebhookConfiguration.
type Webhooks struct {
	api.Meta `json:"metadata"`
	Webhooks json.RawMessage `json:"webhooks"` // as Configuration returns
}

// ResourceType implements api.Resource.
func (*Webhooks) ResourceType() api.Type {
	return api.Type{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration",
		Plural: "validatingwebhookconfigurations"}
}

// NewWebhook starts a webhook that allows every request. It ends with the test.
func NewWebhook(t testing.TB) *Webhook {
	t.Helper()
	w := &Webhook{ended: make(chan struct{}), asked: map[string]int{}}
	w.Answer(func(string) Verdict { return Verdict{} })
	w.server = httptest.NewTLSServer(http.HandlerFunc(w.serve))
	t.Cleanup(func() {
		close(w.ended)
		w.server.Close()
	})
	return w
}

// Answer sets the function that decides on each request, named as "create ippools" or "create ippools (dry run)". It
// may be called concurrently.
func (w *Webhook) Answer(verdict func(request string) Verdict) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verdict = verdict
}

// Asked returns how often the webhook was called for a request, named as for Answer.
func (w *Webhook) Asked(request string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[request]
}

// Configuration returns the field webhooks of a Validating- or MutatingWebhookConfiguration in JSON: one webhook of
// that name, called for all writes of resources of an API group, with one second to answer.
func (w *Webhook) Configuration(t testing.TB, name, failurePolicy, group string, resources ...string) json.RawMessage {
	t.Helper()
	type object map[string]any
	text, err := json.Marshal([]object{{
		"name": name, "failurePolicy": failurePolicy, "sideEffects": "None", "admissionReviewVersions": []string{"v1"}, "timeoutSeconds": 1,
		"clientConfig": object{"url": w.server.URL + "/", "caBundle": pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: w.server.Certificate().Raw})},
		"rules": []object{{"operations": []string{"*"}, "apiGroups": []string{group}, "apiVersions": []string{"*"}, "resources": resources}},
	}})
	errtest.Must(t, err)
	return text
}

// serve answers an AdmissionReview.
func (w *Webhook) serve(out http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID       string
			Operation string
			DryRun    bool
			Resource  struct{ Resource string }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	verb := map[string]string{"CREATE": "create", "UPDATE": "update", "DELETE": "delete"}[review.Request.Operation]
	request := verb + " " + review.Request.Resource.Resource
	if review.Request.DryRun {
		request += " (dry run)"
	}
	w.mu.Lock()
	w.asked[request]++
	decide := w.verdict
	w.mu.Unlock()
	v := decide(request)
	if v.Code == Silent {
		select {
		case <-r.Context().Done():
		case <-w.ended:
		}
		return
	}
	message, _ := json.Marshal(v.Message) // of a string: no error
	out.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(out, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":%t,`+
		`"status":{"code":%d,"message":%s}}}`, review.Request.UID, v.Code == 0, v.Code, message)
}
