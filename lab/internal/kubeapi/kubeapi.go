// Package kubeapi is a small client of a lab's API server for starting and describing a lab, so that the launcher does
// not link client-go.
package kubeapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/lab/internal/netns"
	"github.com/tortie-net/tortie/lab/internal/pki"
)

// requestTimeout is the limit of one request: a server that has just started may accept a connection and not respond.
const requestTimeout = 10 * time.Second

// Client is a client of one API server.
type Client struct {
	base, token string
	http        *http.Client
}

// New returns a client for a kubeconfig that this lab wrote; dial may be nil for the caller's own network.
func New(kubeconfig string, dial netns.DialFunc) (*Client, error) {
	k, err := pki.ReadKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(k.CA) {
		return nil, fmt.Errorf("kubeconfig %s: no certificate in certificate-authority-data", kubeconfig)
	}
	return &Client{base: k.Server, token: k.Token, http: &http.Client{
		Timeout:   requestTimeout,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DialContext: dial},
	}}, nil
}

// Ready returns nil when /readyz returns ok.
func (c *Client) Ready(ctx context.Context) error {
	b, err := c.get(ctx, "/readyz")
	if err != nil {
		return err
	}
	if string(b) != "ok" {
		return fmt.Errorf("/readyz: %s", b)
	}
	return nil
}

// Condition is a condition of a node or a pod.
type Condition struct {
	Type, Status, Reason, Message string
}

// Node is the used part of a Node object.
type Node struct {
	Name, Kubelet, Runtime string
	// Addresses is one address of each family, separated by commas.
	Addresses  string
	Conditions []Condition
}

// Ready returns whether the node's Ready condition is true, and its message.
func (n Node) Ready() (bool, string) {
	if c, ok := n.Condition("Ready"); ok {
		return c.Status == "True", c.Message
	}
	return false, "no Ready condition yet"
}

// Condition returns the node's condition of a type, if it has it.
func (n Node) Condition(kind string) (Condition, bool) { return find(n.Conditions, kind) }

func find(conditions []Condition, kind string) (Condition, bool) {
	i := slices.IndexFunc(conditions, func(c Condition) bool { return c.Type == kind })
	if i < 0 {
		return Condition{}, false
	}
	return conditions[i], true
}

// OnlyNetworkMissing reports whether the node is Ready, or not Ready only for lack of a pod network.
func (n Node) OnlyNetworkMissing() bool {
	ready, message := n.Ready()
	return ready || strings.Contains(message, "cni plugin not initialized")
}

// Nodes lists the nodes, sorted by name as the server does.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []Condition
				Addresses  []struct{ Type, Address string }
				NodeInfo   struct{ KubeletVersion, ContainerRuntimeVersion string }
			}
		}
	}
	b, err := c.get(ctx, "/api/v1/nodes")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("decode the list of nodes: %w", err)
	}
	nodes := make([]Node, 0, len(list.Items))
	for _, i := range list.Items {
		n := Node{Name: i.Metadata.Name, Conditions: i.Status.Conditions, Kubelet: i.Status.NodeInfo.KubeletVersion,
			Runtime: i.Status.NodeInfo.ContainerRuntimeVersion}
		var addresses []string
		for _, a := range i.Status.Addresses {
			if a.Type == "InternalIP" {
				addresses = append(addresses, a.Address)
			}
		}
		n.Addresses = strings.Join(addresses, ",")
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// PodReady returns nil when a pod is Ready.
func (c *Client) PodReady(ctx context.Context, namespace, name string) error {
	var pod struct {
		Status struct {
			Phase      string
			Conditions []Condition
		}
	}
	b, err := c.get(ctx, "/api/v1/namespaces/"+namespace+"/pods/"+name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &pod); err != nil {
		return fmt.Errorf("decode pod %s/%s: %w", namespace, name, err)
	}
	if ready, ok := find(pod.Status.Conditions, "Ready"); !ok || ready.Status != "True" {
		return fmt.Errorf("pod %s/%s, %s, is not Ready: %s", namespace, name, pod.Status.Phase, ready.Message)
	}
	return nil
}

// Exists reports whether there is an object at a path such as /api/v1/namespaces/default/serviceaccounts/default.
func (c *Client) Exists(ctx context.Context, path string) (bool, error) {
	_, err := c.get(ctx, path)
	var status statusError
	if errors.As(err, &status) && status.code == http.StatusNotFound {
		return false, nil
	}
	return err == nil, err
}

type statusError struct {
	code int
	text string
}

func (e statusError) Error() string { return e.text }

func (c *Client) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError{code: resp.StatusCode, text: fmt.Sprintf("GET %s: %s: %s", path, resp.Status, strings.TrimSpace(string(b)))}
	}
	return b, nil
}

// Poll calls f at intervals until it returns nil or ctx ends; the error is then the last of f.
func Poll(ctx context.Context, every time.Duration, f func(context.Context) error) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		var fatal Fatal
		if errors.As(err, &fatal) {
			return fatal.Err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", context.Cause(ctx), err)
		case <-t.C:
		}
	}
}

// Fatal marks an error as permanent, so that Poll returns it at once.
type Fatal struct{ Err error }

func (f Fatal) Error() string { return f.Err.Error() }
func (f Fatal) Unwrap() error { return f.Err }
