package difftest

import (
	"net/netip"
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
