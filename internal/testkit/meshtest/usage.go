package meshtest

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/usagetest"
)

// Usage returns the resources that the agent's process has used since its start.
func (n *Node) Usage(t testing.TB) usagetest.Usage {
	t.Helper()
	return usagetest.Of(t, n.Cmd.Process.Pid)
}

var requestTotal = regexp.MustCompile(`(?m)^apiserver_request_total\{(.*)\} ([0-9.e+]+)$`)

var label = regexp.MustCompile(`(\w+)="([^"]*)"`)

// Requests returns the API server's request counts by verb and resource.
func (c *Cluster) Requests(t testing.TB) map[string]int {
	t.Helper()
	client, err := rest.HTTPClientFor(c.Admin)
	errtest.Must(t, err)
	resp, err := client.Get(c.Admin.Host + "/metrics")
	errtest.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics of the API server: %s, %v", resp.Status, err)
	}
	found := map[string]int{}
	for _, m := range requestTotal.FindAllStringSubmatch(string(text), -1) {
		labels := map[string]string{}
		for _, l := range label.FindAllStringSubmatch(m[1], -1) {
			labels[l[1]] = l[2]
		}
		count, err := strconv.ParseFloat(m[2], 64)
		errtest.Must(t, err)
		found[strings.TrimSuffix(labels["verb"]+" "+labels["resource"]+"/"+labels["subresource"], "/")] += int(count)
	}
	if len(found) == 0 {
		t.Fatal("the API server counts no requests")
	}
	return found
}

// Writes returns the write requests between two calls of Requests, without those that the API server makes itself: for
// its leases, and for the Service and EndpointSlice of its own address.
func Writes(before, after map[string]int) map[string]int {
	found := map[string]int{}
	for what, n := range after {
		verb, resource, _ := strings.Cut(what, " ")
		switch verb {
		case "POST", "PUT", "PATCH", "DELETE", "APPLY", "DELETECOLLECTION":
		default:
			continue
		}
		if n -= before[what]; n > 0 && resource != "leases" {
			found[what] = n
		}
	}
	return found
}
