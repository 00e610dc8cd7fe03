package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/dialer"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// faulty is an etcd with the answers that a test sets, which a real one cannot be made to give at will.
type faulty struct {
	*httptest.Server
	*datastoretest.Script
}

// newFaulty returns a server with a script. Its requests are method and token.
func newFaulty(t *testing.T, answers ...http.HandlerFunc) *faulty {
	t.Helper()
	name := func(r *http.Request) string {
		return strings.TrimSpace(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] + " " + r.Header.Get("Token"))
	}
	f := &faulty{Script: datastoretest.NewScript(name, answers...)}
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.Protocols = new(http.Protocols)
	f.Config.Protocols.SetUnencryptedHTTP2(true)
	f.Start()
	t.Cleanup(f.Close)
	return f
}

// answer is a message and gRPC's status behind it.
func answer(msg message, code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status, Grpc-Message")
		if code == 0 {
			frame := make([]byte, prefixSize)
			binary.BigEndian.PutUint32(frame[1:], uint32(len(msg)))
			w.Write(append(frame, msg...))
		}
		w.Header().Set("Grpc-Status", fmt.Sprint(code))
		w.Header().Set("Grpc-Message", text)
	}
}

// refuse is an answer without a message: its status is in the headers.
func refuse(code int, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Grpc-Status", fmt.Sprint(code))
		w.Header().Set("Grpc-Message", text)
	}
}

func drop(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func write(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }
}

// committed is the answer to a transaction that succeeded in revision 9.
var committed = answer(message{}.sub(1, message{}.number(3, 9)).flag(2, true), 0, "")

// one is the answer to the read of a handle.
var one = answer(message{}.sub(2, message{}.text(1, "/calico/ipam/v2/handle/Net.Abc").number(3, 7).text(5, `{"block":{}}`)).number(4, 1),
	0, "")

func get(ctx context.Context, s *Store) error    { return s.Get(ctx, handle()) }
func update(ctx context.Context, s *Store) error { return s.Update(ctx, handle()) }
func remove(ctx context.Context, s *Store) error { return s.Delete(ctx, handle()) }

// Which requests are sent again, and how often: never a write that may have landed.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []http.HandlerFunc
		do      func(context.Context, *Store) error
		want    error
		sent    int
	}{
		{"a read of a member without a leader", []http.HandlerFunc{refuse(14, "etcdserver: no leader"), one}, get, nil, 2},
		{"a write to a member without a leader", []http.HandlerFunc{refuse(14, "etcdserver: no leader"), committed}, update, nil, 2},
		{"a write to a busy member", []http.HandlerFunc{refuse(8, "etcdserver: too many requests"), committed}, update, nil, 2},
		{"a member that stays so", []http.HandlerFunc{refuse(14, "etcdserver: no leader")}, update, datastore.ErrUnavailable, maxTries},
		{"a read that timed out", []http.HandlerFunc{answer(nil, 14, "etcdserver: request timed out"), one}, get, nil, 2},
		{"a write that timed out", []http.HandlerFunc{answer(nil, 14, "etcdserver: request timed out"), committed}, update,
			datastore.ErrUnavailable, 1},
		{"a write whose leader was lost", []http.HandlerFunc{answer(nil, 14, "etcdserver: leader changed"), committed}, remove,
			datastore.ErrUnavailable, 1},
		{"a read without an answer", []http.HandlerFunc{drop, one}, get, nil, 2},
		{"a write without an answer", []http.HandlerFunc{drop, committed}, update, datastore.ErrUnavailable, 1},
		{"a read with half an answer", []http.HandlerFunc{write("\x00\x00\x00\x00\x09abc"), one}, get, nil, 2},
		{"a write with half an answer", []http.HandlerFunc{write("\x00\x00"), committed}, update, datastore.ErrUnavailable, 1},
		{"a full disk", []http.HandlerFunc{answer(nil, 8, "etcdserver: mvcc: database space exceeded"), committed}, update,
			datastore.ErrUnavailable, 1},
		{"a permission", []http.HandlerFunc{refuse(7, "etcdserver: permission denied"), one}, get, datastore.ErrUnauthorized, 1},
		{"no etcd", []http.HandlerFunc{http.NotFound}, get, datastore.ErrUnavailable, maxTries},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, c.answers...)
			err := c.do(t.Context(), open(t, Config{Endpoints: []string{f.URL}}))
			if !errors.Is(err, c.want) || err != nil && c.want == nil {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if got := len(f.Requests()); got != c.sent {
				t.Errorf("%d requests were sent, want %d", got, c.sent)
			}
		})
	}
}

// A request that one member cannot serve goes to the next one.
func TestNextMember(t *testing.T) {
	t.Parallel()
	bad, good := newFaulty(t, refuse(14, "etcdserver: no leader")), newFaulty(t, one)
	s := open(t, Config{Endpoints: []string{bad.URL, good.URL}})
	for range 3 {
		errtest.Must(t, get(t.Context(), s))
	}
	if len(bad.Requests()) != 1 || len(good.Requests()) != 3 {
		t.Errorf("%d requests to the bad member, want 1; %d to the good one, want 3", len(bad.Requests()), len(good.Requests()))
	}
}

// A member that accepts connections and sends nothing costs one request its time; that request, if it is a read, and
// the others go on elsewhere.
func TestSilentMemberIsLeft(t *testing.T) {
	t.Parallel()
	silent := newFaulty(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	good := newFaulty(t, one)
	s := open(t, Config{Endpoints: []string{silent.URL, good.URL}})
	s.client.timeout = 200 * time.Millisecond
	for range 3 {
		errtest.Must(t, get(t.Context(), s))
	}
	if len(silent.Requests()) != 1 || len(good.Requests()) != 3 {
		t.Errorf("%d requests to the silent member, want 1; %d to the good one, want 3", len(silent.Requests()), len(good.Requests()))
	}
}

// A token is fetched once for all, and anew when etcd no longer accepts it; a write may be sent again then.
func TestTokens(t *testing.T) {
	t.Parallel()
	token := func(text string) http.HandlerFunc { return answer(message{}.text(2, text), 0, "") }
	f := newFaulty(t, token("one"), committed, refuse(16, "etcdserver: invalid auth token"), token("two"), committed,
		refuse(3, "etcdserver: revision of auth store is old"), token("three"), committed)
	s := open(t, Config{Endpoints: []string{f.URL}, Username: "calico", Password: password})
	for range 3 {
		errtest.Must(t, update(t.Context(), s))
	}
	want := []string{"Authenticate", "Txn one", "Txn one", "Authenticate", "Txn two", "Txn two", "Authenticate", "Txn three"}
	difftest.Want(t, "requests", want, f.Requests())
	refusing := newFaulty(t, refuse(3, "etcdserver: authentication failed, invalid user ID or password"))
	err := get(t.Context(), open(t, Config{Endpoints: []string{refusing.URL}, Username: "calico", Password: password}))
	named := errtest.Names(err, `get /calico/ipam/v2/handle/Net.Abc "calico" etcdserver: authentication 3`)
	if !named || !errors.Is(err, datastore.ErrUnauthorized) || len(refusing.Requests()) != 1 {
		t.Errorf("after %q: error %v", refusing.Requests(), err)
	}
}

// A deadline of the caller ends the tries; so does the client's own when a member accepts connections and sends
// nothing.
func TestSilentMemberIsUnavailableInBoundedTime(t *testing.T) {
	silent := func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() }
	refusing := func(*http.Request) (*http.Response, error) { return nil, &dialer.Error{Err: syscall.ECONNREFUSED} }
	for name, do := range map[string]func(context.Context, *Store) error{"get": get, "update": update} {
		synctest.Test(t, func(t *testing.T) {
			s := open(t, Config{Endpoints: []string{"http://192.0.2.1:2379"}})
			within := func(what string, ctx context.Context, answer answers, least, most time.Duration) {
				t.Helper()
				s.client.http.Transport = answer
				began := time.Now()
				err, took := do(ctx, s), time.Since(began)
				if !errors.Is(err, datastore.ErrUnavailable) || took < least || took > most {
					t.Errorf("%s, %s: error %v after %v, want %v to %v", name, what, err, took, least, most)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			within("a deadline", ctx, silent, time.Second, time.Second)
			within("silence", t.Context(), silent, requestTimeout, requestTimeout)
			within("refusals", t.Context(), refusing, 0, time.Second)
		})
	}
}

type answers func(*http.Request) (*http.Response, error)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) { return a(r) }

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg     Config
		scheme  string
		servers []string
	}{
		{Config{Endpoints: []string{"https://10.0.0.1:2379", " https://[fd00::1]/ ", ""}}, "https", []string{"10.0.0.1:2379", "[fd00::1]:2379"}},
		{Config{Endpoints: []string{"etcd-1:4001"}}, "http", []string{"etcd-1:4001"}},
		{Config{Endpoints: []string{"etcd-1"}, CAFile: "/ca"}, "https", []string{"etcd-1:2379"}},
	} {
		scheme, servers, err := c.cfg.servers()
		if d := cmp.Diff(c.servers, servers); err != nil || scheme != c.scheme || d != "" {
			t.Errorf("%v: %s, %v (-want +got):\n%s", c.cfg.Endpoints, scheme, err, d)
		}
	}
	for want, cfg := range map[string]Config{
		"endpoints":                       {Endpoints: []string{" "}},
		"http https":                      {Endpoints: []string{"http://a", "https://b"}},
		"https://calico:xxxxx@a password": {Endpoints: []string{"https://calico:" + password + "@a"}},
		`"unix:///run/etcd"`:              {Endpoints: []string{"unix:///run/etcd"}},
		"…@a:x":                           {Endpoints: []string{"https://calico:" + password + "@a:x"}},
		"authority /none":                 {Endpoints: []string{"https://a"}, CAFile: "/none"},
		"/dev/null PEM":                   {Endpoints: []string{"https://a"}, CAFile: "/dev/null"},
		`certificate "/none" key ""`:      {Endpoints: []string{"https://a"}, CertFile: "/none"},
		`certificate "" key "/none"`:      {Endpoints: []string{"https://a"}, KeyFile: "/none"},
	} {
		_, err := New(cfg)
		if !errtest.Names(err, want) || strings.Contains(err.Error(), password) {
			t.Errorf("error %v, want %q in it, without the password", err, want)
		}
	}
}

func TestDiscover(t *testing.T) {
	records := map[string][]*net.SRV{
		"_etcd-client-ssl._tcp.both.org": {{Target: "a.both.org.", Port: 2379}, {Target: "b.both.org.", Port: 2380}},
		"_etcd-client._tcp.both.org":     {{Target: "c.both.org.", Port: 2379}},
		"_etcd-client._tcp.plain.org":    {{Target: "a.plain.org.", Port: 2379}},
	}
	look := func(_ context.Context, service, proto, name string) (string, []*net.SRV, error) {
		found := records["_"+service+"._"+proto+"."+name]
		if found == nil {
			return "", nil, errors.New("no such host")
		}
		return "", found, nil
	}
	for domain, want := range map[string][]string{
		"both.org":  {"https://a.both.org:2379", "https://b.both.org:2380"},
		"plain.org": {"http://a.plain.org:2379"},
	} {
		if got, err := discover(t.Context(), look, domain); err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("%s: %v, %v, want %v", domain, got, err, want)
		}
	}
	if _, err := discover(t.Context(), look, "none.org"); !errtest.Names(err, "SRV none.org") {
		t.Errorf("error %v", err)
	}
}
