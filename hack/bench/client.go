package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// object is an object of the Kubernetes API.
type object = map[string]any

// client is an administrator's client of the API server.
type client struct {
	server string
	ca     []byte
	token  string
	http   *http.Client
}

// newClient reads the kubeconfig that `lab api` has written. Connections are opened in the underlay.
func newClient(kubeconfig string, u *underlay) (*client, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("the lab's kubeconfig: %w", err)
	}
	c := &client{server: cfg.Host, ca: cfg.CAData, token: cfg.BearerToken}
	cfg.BearerToken, cfg.Timeout = "", time.Minute // each request has its own
	cfg.Dial = func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = u.Do(func() error { conn, err = net.Dial(network, address); return err })
		return conn, err
	}
	if c.http, err = rest.HTTPClientFor(cfg); err != nil {
		return nil, fmt.Errorf("the lab's kubeconfig: %w", err)
	}
	return c, nil
}

// do sends body unless it is nil, and decodes the response into out unless it is nil.
func (c *client) do(method, path string, body, out any) error {
	data, err := c.raw(method, path, body)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

func (c *client) raw(method, path string, body any) ([]byte, error) {
	var payload []byte
	if body != nil {
		var err error
		if payload, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequest(method, c.server+path, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("HTTP %d: %s", resp.StatusCode, data)
	}
	return data, err
}
