package deps

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMissing(t *testing.T) {
	root := t.TempDir()
	for _, f := range []string{"/usr/bin/containerd", "/usr/sbin/runc", "/usr/libexec/virtiofsd"} {
		if err := os.MkdirAll(filepath.Dir(root+f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+f, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := Command(Missing(root, append(Lab, VM...)))
	want := "apt-get install --no-install-recommends busybox-static iproute2 nftables tcpdump procps bird2 qemu-system-x86"
	if got != want {
		t.Errorf("with containerd, runc and Debian 13's virtiofsd:\n got %s\nwant %s", got, want)
	}
}

func TestForbidServices(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	restore, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(policy)
	if err != nil || string(b) != denyAll {
		t.Fatalf("policy is %q (%v)", b, err)
	}
	// A second one, as of a machine that has a policy of its own, must leave the first.
	second, err := forbidServices(policy)
	if err != nil {
		t.Fatal(err)
	}
	if err := second(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(policy); err != nil {
		t.Fatalf("another's policy was removed: %v", err)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(policy); !os.IsNotExist(err) {
		t.Errorf("our policy is left: %v", err)
	}
}
