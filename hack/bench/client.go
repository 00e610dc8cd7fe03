package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"sigs.k8s.io/yaml"
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
	var k struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     string `json:"certificate-authority-data"`
			}
		}
		Users []struct{ User struct{ Token string } }
	}
	text, err := os.ReadFile(kubeconfig)
	if err == nil {
		err = yaml.Unmarshal(text, &k)
	}
	if err != nil || len(k.Clusters) == 0 || len(k.Users) == 0 {
		return nil, fmt.Errorf("the lab's kubeconfig %s: no cluster or user (%w)", kubeconfig, err)
	}
	c := &client{server: k.Clusters[0].Cluster.Server, token: k.Users[0].User.Token}
	if c.ca, err = base64.StdEncoding.DecodeString(k.Clusters[0].Cluster.CA); err != nil {
		return nil, fmt.Errorf("the lab's kubeconfig: certificate-authority-data: %w", err)
	}
	tlsConfig, err := c.tls()
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			err = u.do(func() error { conn, err = net.Dial(network, address); return err })
			return conn, err
		},
	}}
	return c, nil
}

func (c *client) tls() (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.ca) {
		return nil, errors.New("the lab's kubeconfig: no certificate in certificate-authority-data")
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
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

// kubeconfigFor returns a kubeconfig as the install container writes it, for any server.
func kubeconfigFor(server string, ca []byte, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: %q, certificate-authority-data: %q}}]
users: [{name: calico, user: {token: %q}}]
contexts: [{name: calico-context, context: {cluster: local, user: calico}}]
current-context: calico-context
`, server, base64.StdEncoding.EncodeToString(ca), token)
}
