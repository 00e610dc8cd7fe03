package nodestatus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// served is an HTTP server with one answer on every path; its address is host:port.
func served(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func agent(t *testing.T, r *Report) string {
	t.Helper()
	return served(t, func(w http.ResponseWriter, q *http.Request) {
		if q.Method != http.MethodGet || q.URL.Path != "/status" {
			http.NotFound(w, q)
			return
		}
		_ = json.NewEncoder(w).Encode(r)
	})
}

// execute runs a command as a shell would.
func execute(t *testing.T, address string, args ...string) (string, error) {
	t.Helper()
	var out, usage bytes.Buffer
	err := Run(t.Context(), args, address, Output{&out, &usage})
	if err != nil && out.Len() > 0 {
		t.Errorf("%v failed with %v and wrote %q", args, err, &out)
	}
	return out.String(), err
}

func TestFormatsHoldTheWholeAnswer(t *testing.T) {
	for name, want := range map[string]*Report{"starting": starting(), "healthy": healthy(), "troubled": troubled(),
		"dual": dual(), "routed": routed()} {
		address := agent(t, want)
		for format, decode := range map[string]func([]byte, any) error{
			"json": func(text []byte, v any) error {
				strict := json.NewDecoder(bytes.NewReader(text))
				strict.DisallowUnknownFields()
				return strict.Decode(v)
			},
			"yaml": func(text []byte, v any) error { return yaml.UnmarshalStrict(text, v) },
		} {
			t.Run(name+" "+format, func(t *testing.T) {
				got := &Report{}
				decodeOutput(t, address, decode, "status", format, got)
				difftest.Want(t, "status", want, got)
				var peers []Peer
				decodeOutput(t, address, decode, "peers", format, &peers)
				difftest.Want(t, "peers", want.Peers, peers)
				var routes RoutesAnswer
				decodeOutput(t, address, decode, "routes", format, &routes)
				difftest.Want(t, "routes", RoutesAnswer{want.Routes, want.Announced}, routes)
			})
		}
	}
}

func decodeOutput(t *testing.T, address string, decode func([]byte, any) error, command, format string, into any) {
	t.Helper()
	text, err := execute(t, address, command, "-o", format)
	errtest.Must(t, err)
	if err := decode([]byte(text), into); err != nil {
		t.Fatalf("%s -o %s: %v in\n%s", command, format, err, text)
	}
}

func TestTextIsTheDefaultAndTheFlagWins(t *testing.T) {
	want, err := execute(t, agent(t, healthy()), "status")
	if err != nil || !strings.HasPrefix(want, "Node ") {
		t.Fatalf("%v:\n%s", err, want)
	}
	got, err := execute(t, "127.0.0.1:1", "status", "-o", "text", "-address", agent(t, healthy()))
	if err != nil || got != want {
		t.Errorf("%v:\n%s", err, got)
	}
}

// refusing returns an address on which nothing listens, and that no other program can get while the test runs.
func refusing(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	errtest.Must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	errtest.Must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at, err := unix.Getsockname(fd)
	errtest.Must(t, err)
	return fmt.Sprintf("127.0.0.1:%d", at.(*unix.SockaddrInet4).Port)
}

func TestErrorsSayWhatToDo(t *testing.T) {
	nobody := refusing(t)
	text := served(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	object := served(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
	felix := served(t, http.NotFound)
	for _, c := range []struct {
		args    []string
		address string
		want    []string
	}{
		{[]string{"status"}, nobody, []string{nobody, "refused", "kubectl -n kube-system exec", "FELIX_HEALTHPORT", "-address"}},
		{[]string{"peers"}, felix, []string{felix, "404", "FELIX_HEALTHPORT", "-address"}},
		{[]string{"routes"}, text, []string{text, "invalid character", "FELIX_HEALTHPORT"}},
		{[]string{"routes"}, object, []string{object, "JSON", "FELIX_HEALTHPORT"}},
		{[]string{"status"}, "local host:9099", []string{`"local host:9099"`, "host:port"}},
		{[]string{"status", "-o", "xml"}, nobody, []string{`-o "xml"`, "json"}},
		{[]string{"status", "node2"}, nobody, []string{`"node2"`, "flags"}},
		{[]string{"peers", "node2", "node3"}, nobody, []string{`"node3"`, "one"}},
		{[]string{"peers", "-x", "node3"}, nobody, []string{"-x"}},
		{[]string{"peers", "node3", "-x"}, nobody, []string{"-x"}},
		{[]string{"peers", "node9"}, agent(t, routed()), []string{`"node9"`, "node peers"}},
		{[]string{"routes", "node9"}, agent(t, routed()), []string{`"node9"`, "address"}},
		{[]string{"routes", "10.9.9.9"}, agent(t, routed()), []string{"ip route get 10.9.9.9"}},
		{[]string{"restart"}, nobody, []string{`"restart"`, "peers", "routes", "status"}},
		{[]string{"status", "-x"}, nobody, []string{"-x"}},
	} {
		_, err := execute(t, c.address, c.args...)
		if err == nil {
			t.Errorf("%v at %s: no error", c.args, c.address)
			continue
		}
		difftest.Contains(t, err.Error(), c.want...)
	}
	if _, err := execute(t, nobody, "status", "-h"); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

// A stuck agent accepts connections and sends nothing, or stops in the middle of an answer.
func TestAStuckAgentIsNotWaitedFor(t *testing.T) {
	for name, begin := range map[string]string{"silent": "", "half an answer": `{"node": "n`} {
		address := served(t, func(w http.ResponseWriter, q *http.Request) {
			if begin != "" {
				_, _ = w.Write([]byte(begin))
				_ = http.NewResponseController(w).Flush()
			}
			<-q.Context().Done()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := Fetch(ctx, address)
		if err == nil || !strings.Contains(err.Error(), "answer") || !strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDialable(t *testing.T) {
	for served, want := range map[string]string{
		"0.0.0.0:9099": "127.0.0.1:9099", ":9099": "127.0.0.1:9099", "[::]:9099": "[::1]:9099",
		"10.0.0.5:9099": "10.0.0.5:9099", "localhost:1": "localhost:1", "nonsense": "nonsense",
	} {
		if got := dialable(served); got != want {
			t.Errorf("%s: %s, want %s", served, got, want)
		}
	}
}

// An argument keeps what it names, with flags before or after it.
func TestPicking(t *testing.T) {
	address := agent(t, routed())
	for _, c := range []struct {
		args []string
		want []string
		not  []string
	}{
		{[]string{"peers", "10.0.0.1"}, []string{"10.0.0.1 ", "Not taken", "no-default"}, []string{"10.0.0.2", "10.0.0.7"}},
		{[]string{"peers", "rack-a"}, []string{"10.0.0.1 ", "10.0.0.2 ", "its table is not whole yet"}, []string{"10.0.0.7"}},
		{[]string{"peers", "node2", "-o", "json"}, []string{`"address": "10.0.0.7"`, `"client": true`}, []string{"10.0.0.1"}},
		{[]string{"routes", "192.168.1.9"}, []string{"192.168.1.0/26", "own block", "64512:100"}, []string{"192.168.2.0", "172.20"}},
		{[]string{"routes", "-o", "yaml", "172.20.5.0/24"}, []string{"destination: 172.20.0.0/16"}, []string{"192.168"}},
		{[]string{"routes", "198.51.100.0/24"}, []string{"198.51.100.7/32  service"}, []string{"10.96.0.0/12  "}},
		{[]string{"routes", "::ffff:172.20.0.1"}, []string{"172.20.0.0/16"}, []string{"192.168.2"}},
	} {
		got, err := execute(t, address, c.args...)
		if err != nil {
			t.Errorf("%v: %v", c.args, err)
		}
		difftest.Contains(t, got, c.want...)
		for _, not := range c.not {
			if strings.Contains(got, not) {
				t.Errorf("%v: %q is in\n%s", c.args, not, got)
			}
		}
	}
}

// Of several routes for an address the longest is the first.
func TestLongestRouteFirst(t *testing.T) {
	r := &Report{Routes: Routes{List: []Route{{Destination: "0.0.0.0/0"}, {Destination: "10.1.2.0/26"}, {Destination: "10.1.2.9/32"},
		{Destination: "fd00::/64"}, {Destination: "odd"}}}}
	errtest.Must(t, r.PickRoutes("10.1.2.9"))
	var got []string
	for _, x := range r.Routes.List {
		got = append(got, x.Destination)
	}
	difftest.Want(t, "", []string{"10.1.2.9/32", "10.1.2.0/26", "0.0.0.0/0"}, got)
}

// Prefixes passed on for an address are shown as announced.
func TestPassedOnIsAnnounced(t *testing.T) {
	r := &Report{Announced: []Announced{{Prefix: "10.1.0.0/26", Origin: "own block"}},
		PassedOn: []Announced{{Prefix: "10.1.2.0/26", Origin: "learned"}, {Prefix: "10.1.3.0/26", Origin: "learned"}}}
	errtest.Must(t, r.PickRoutes("10.1.2.9"))
	difftest.Want(t, "", []Announced{{Prefix: "10.1.2.0/26", Origin: "learned"}}, r.Announced)
}
