package netlinkx

import (
	"encoding/binary"
	"slices"
	"testing"
)

// chainEntry is what begins a chain of a table of IPv4.
func chainEntry(name string) []byte {
	const entry, target = 112, 64
	b := make([]byte, entry+target)
	binary.NativeEndian.PutUint16(b[88:], entry)
	binary.NativeEndian.PutUint16(b[90:], entry+target)
	binary.NativeEndian.PutUint16(b[entry:], target)
	copy(b[entry+targetName:], "ERROR")
	copy(b[entry+targetData:], name)
	return b
}

// FuzzLegacyChains: whatever the kernel might answer, the reader comes to an end.
func FuzzLegacyChains(f *testing.F) {
	two := slices.Concat(chainEntry("cali-FORWARD"), chainEntry("mine"), chainEntry("ERROR"))
	f.Add(two)
	f.Add(two[:200])
	if got := legacyFamilies[0].parse(two); !slices.Equal(got, []string{"cali-FORWARD", "mine"}) {
		f.Fatalf("%q", got)
	}
	f.Fuzz(func(t *testing.T, entries []byte) {
		for _, family := range legacyFamilies {
			for _, name := range family.parse(entries) {
				if len(name) > chainNameSize {
					t.Errorf("a chain named %q", name)
				}
			}
		}
	})
}
