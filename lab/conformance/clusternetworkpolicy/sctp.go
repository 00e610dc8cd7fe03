package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"sigs.k8s.io/network-policy-api/conformance"
)

// ofSCTP names the tests that send SCTP, in nearly all of their cases, even in cases about other protocols.
var ofSCTP = []string{
	"CNPAdminTierEgressSCTP", "CNPAdminTierIngressSCTP", "CNPBaselineTierEgressSCTP", "CNPBaselineTierIngressSCTP",
	"CNPAdminTierGress", "CNPBaselineTierGress", "CNPAdminTierPortRange", "CNPBaselineTierPortRange",
	"CNPAdminTierEgressInlineCIDRPeers", "CNPBaselineTierEgressInlineCIDRPeers",
	"CNPAdminTierEgressNodePeers", "CNPBaselineTierEgressNodePeers",
}

const baseManifests = "base/manifests.yaml"

// sctpServer is a container that serves SCTP, in the suite's base manifests.
var sctpServer = regexp.MustCompile(
	`(?m)^        - name: \S.*\n(?:          .*\n)*?          env:\n          - name: SERVE_SCTP_PORT_.*\n            value: .*(?:\n|\z)`)

// withoutSCTP serves the suite's base manifests without their SCTP servers, and returns the address: besides its own
// files the suite accepts only a URL with https.
func withoutSCTP(t *testing.T) string {
	t.Helper()
	manifests, err := conformance.Manifests.ReadFile(baseManifests)
	if err != nil {
		t.Fatal(err)
	}
	rest := sctpServer.ReplaceAll(manifests, nil)
	if bytes.Contains(rest, []byte("SCTP")) {
		t.Fatal("a server of SCTP has another form than expected in " + baseManifests)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(rest) // a client that is gone needs none
	}))
	t.Cleanup(server.Close)
	http.DefaultClient = server.Client()
	return server.URL + "/manifests.yaml"
}
