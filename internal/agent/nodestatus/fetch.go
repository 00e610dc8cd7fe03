package nodestatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"
)

const (
	// askTime bounds one request to the agent, which answers in milliseconds.
	askTime = 5 * time.Second
	// maxAnswer bounds an answer in bytes: 10,000 routes are 5 MB.
	maxAnswer = 256 << 20
)

// local has no proxy: the environment of a pod may name one, and the agent is on this node.
var local = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Fetch gets the Report of the agent on address, host:port. If no agent answers, the error names the remedy.
func Fetch(ctx context.Context, address string) (*Report, error) {
	r := &Report{}
	if err := Ask(ctx, address, "/status", r); err != nil {
		return nil, err
	}
	if r.Node == "" {
		return nil, fmt.Errorf("%s answers GET /status with JSON that names no node: %s", dialable(address), otherProgram)
	}
	return r, nil
}

// Ask gets a page and decodes its JSON.
func Ask(ctx context.Context, address, page string, into any) error {
	address = dialable(address)
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+page, nil)
	if err != nil {
		return fmt.Errorf("address %q: %w: it must be host:port, such as 127.0.0.1:9099", address, err)
	}
	response, err := local.Do(request)
	if err != nil {
		return silent(address, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &RefusedError{address, request.URL.Path, response.StatusCode, response.Status}
	}
	err = json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return silent(address, err)
	case err != nil:
		return fmt.Errorf("%s answers GET %s with something else than an agent does: %w: %s", address, request.URL.Path, err, otherProgram)
	}
	return nil
}

// RefusedError means that a server answered with another status than 200.
type RefusedError struct {
	address, path string
	Code          int
	status        string
}

// Error describes the answer and the remedy.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s answers GET %s with %q: %s", e.address, e.path, e.status, otherProgram)
}

// Felix of a calico-node serves its health on the same port by default.
const otherProgram = "another program has the port, such as Felix of a calico-node; name the agent's by FELIX_HEALTHHOST and " +
	"FELIX_HEALTHPORT, or by -address"

// silent explains an error of the connection.
func silent(address string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the agent on %s does not answer within %s: its log says why, and its liveness probe restarts it if it is stuck",
			address, askTime)
	}
	return &NoAgentError{address, err}
}

// dialable turns the address of a server on all of a host's addresses into one that can be dialled.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && ip == netip.IPv4Unspecified():
		host = "127.0.0.1"
	case err == nil && ip == netip.IPv6Unspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}
