package difftest

import (
	"net/netip"
	"os"
	"testing"
)

// recorder is a test that counts its errors.
type recorder struct {
	testing.TB
	errors int
}

func (*recorder) Helper() {}

func (r *recorder) Errorf(string, ...any) { r.errors++ }

func TestWant(t *testing.T) {
	r := &recorder{}
	Want(r, "equal", []netip.Addr{netip.IPv6Unspecified()}, []netip.Addr{netip.IPv6Unspecified()})
	if r.errors != 0 {
		t.Error("equal values differ")
	}
	Want(r, "different", []netip.Addr{netip.IPv6Unspecified()}, []netip.Addr{netip.IPv4Unspecified()})
	if r.errors != 1 {
		t.Error("different values are equal")
	}
}

func TestContains(t *testing.T) {
	r := &recorder{}
	Contains(r, "all of it", "all", "it")
	if r.errors != 0 {
		t.Error("a part is missed")
	}
	Contains(r, "all of it", "all", "none", "nothing")
	if r.errors != 2 {
		t.Errorf("%d missing parts, want 2", r.errors)
	}
}

// The file is written only with -update.
func TestGolden(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	*update = true
	Golden(r, "it.txt", "old\n")
	*update = false
	Golden(r, "it.txt", "old\n")
	if r.errors != 0 {
		t.Error("equal texts differ")
	}
	Golden(r, "it.txt", "new\n")
	Golden(r, "it.txt", "new\n")
	if r.errors != 2 {
		t.Errorf("%d errors of two different texts", r.errors)
	}
}
