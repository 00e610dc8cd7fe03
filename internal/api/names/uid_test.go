package names

import "testing"

// The bits of each byte are reversed, but for bytes 6 and 8; the way back is the same.
func TestConvertUID(t *testing.T) {
	for uid, want := range map[string]string{
		"80010203-0405-4607-88ff-0a0b0c0d0e0f": "018040c0-20a0-46e0-88ff-50d030b070f0",
		"edfaca1c-089a-4383-aa27-719355a808a7": "b75f5338-1059-43c1-aae4-8ec9aa1510e5",
		"":                                     "", "no-uid": "no-uid",
	} {
		got := ConvertUID(uid)
		if got != want {
			t.Errorf("%s: %s, want %s", uid, got, want)
		}
		if back := ConvertUID(got); back != uid {
			t.Errorf("%s comes back as %s", uid, back)
		}
	}
}
