package names

import (
	"encoding/hex"
	"math/bits"
	"strings"
)

// ConvertUID returns the UID by which Calico's clients know an object of crd.projectcalico.org/v1, and the inverse: the
// bits of each byte in reverse order, except in bytes 6 and 8, which hold the version and the variant. Text that is not
// a UID is returned unchanged.
func ConvertUID(uid string) string {
	raw, err := hex.DecodeString(strings.ReplaceAll(uid, "-", ""))
	if err != nil || len(raw) != 16 {
		return uid
	}
	for i := range raw {
		if i != 6 && i != 8 {
			raw[i] = bits.Reverse8(raw[i])
		}
	}
	h := hex.EncodeToString(raw)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
