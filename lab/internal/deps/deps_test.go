package deps

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestMissing(t *testing.T) {
	places := Places{Root: t.TempDir(), Cache: t.TempDir()}
	needs := slices.Concat(Lab, Tests, VM)
	for _, f := range []string{"/usr/bin/containerd", "/usr/sbin/runc", "/usr/libexec/virtiofsd", "/usr/sbin/iptables"} {
		touch(t, places.Root+f)
	}
	// An installed BIRD 2 has files of the same names.
	touch(t, places.Root+"/usr/sbin/bird")
	missing := places.Missing(needs)
	if got, want := Command(missing), "make deps"; got != want {
		t.Errorf("without BIRD 1.6:\n got %s\nwant %s", got, want)
	}
	touch(t, places.Cache+"/bird-1.6/usr/sbin/bird")
	got := Command(places.Missing(needs))
	want := "apt-get install --no-install-recommends busybox-static iproute2 nftables tcpdump procps iperf3 frr qemu-system-x86"
	if got != want {
		t.Errorf("with containerd, runc, iptables, both BIRDs and Debian 13's virtiofsd:\n got %s\nwant %s", got, want)
	}
	for _, n := range places.Missing(needs) {
		touch(t, places.Root+n.Files[len(n.Files)-1])
	}
	if left := places.Missing(needs); len(left) > 0 {
		t.Errorf("with all: %v", left)
	}
}

// TestForbidServicesAgain tests the remains of a killed process.
func TestForbidServicesAgain(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	if _, err := forbidServices(policy); err != nil {
		t.Fatal(err)
	}
	restore, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(policy); !os.IsNotExist(err) {
		t.Errorf("the policy of a killed process is left: %v", err)
	}
}

func TestForbidServices(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	const others = "#!/bin/sh\nexit 0\n"
	if err := os.WriteFile(policy, []byte(others), 0o755); err != nil {
		t.Fatal(err)
	}
	leave, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(policy); err != nil || string(b) != others {
		t.Fatalf("the machine's own policy is %q now (%v)", b, err)
	}
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	restore, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(policy)
	if err != nil || string(b) != denyAll {
		t.Fatalf("policy is %q (%v)", b, err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(policy); !os.IsNotExist(err) {
		t.Errorf("our policy is left: %v", err)
	}
}
