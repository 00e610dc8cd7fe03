//go:build ignore

// Command get makes one authenticated GET like the plugins' client and reads the response: the floor of a plugin with
// one request to the API server.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
)

type question struct{ Server, CA, Token, Path string }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "get:", err)
		os.Exit(1)
	}
}

func run() error {
	var q question
	if err := json.NewDecoder(os.Stdin).Decode(&q); err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(q.CA)) {
		return fmt.Errorf("no certificate of the authority")
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}}
	req, err := http.NewRequest(http.MethodGet, q.Server+q.Path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+q.Token)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}
