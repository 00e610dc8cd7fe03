package main

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lab etcd serves only clients with a certificate, and can be restarted after a kill.
func TestEtcd(t *testing.T) {
	dir := t.TempDir()
	a := start(t, program(t, "etcd", "-tls", "-dir", dir))
	ready := a.listen(t)
	endpoint, ok := strings.CutPrefix(strings.TrimSuffix(ready, " DIR="+dir), "ready ENDPOINT=")
	if !ok || !strings.HasPrefix(endpoint, "https://127.0.0.1:") {
		t.Fatalf("lab etcd printed %q", ready)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(certificates ...tls.Certificate) error {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: certificates, MinVersion: tls.VersionTLS12}}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr}).Get(endpoint + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := ask(pair); err != nil {
		t.Error(err)
	}
	if err := ask(); err == nil {
		t.Error("a client without a certificate is served")
	}
	if reply := a.send(t, "kill"); reply != "killed" || ask(pair) == nil {
		t.Errorf("after kill it prints %q", reply)
	}
	if reply := a.send(t, "start"); reply != ready {
		t.Errorf("after start it prints %q, want %q", reply, ready)
	}
	if err := ask(pair); err != nil {
		t.Error(err)
	}
	if err := a.stdin.Close(); err != nil {
		t.Fatal(err)
	}
	a.wait(t)
	if left, _ := os.ReadDir(dir); len(left) > 0 || len(inDirectory(t, dir)) > 0 {
		t.Errorf("left: %v, %q", left, inDirectory(t, dir))
	}
}
