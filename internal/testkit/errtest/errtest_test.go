package errtest

import (
	"errors"
	"testing"
)

func TestNames(t *testing.T) {
	err := errors.New(`IPAMBlock 10-0-0-0-30: spec.cidr[0] "" is -1 of 2: use 20 to 32`)
	for words, want := range map[string]bool{
		`spec.cidr[0] "" -1 2 20 32`: true, "32 20 10-0-0-0-30": true, "": true,
		"0": false, "1": false, "spec.cid": false, "cidr[0]": false, "30": false, "2 3": false,
	} {
		if got := Names(err, words); got != want {
			t.Errorf("Names(%q, %q) = %v", err, words, got)
		}
	}
	if Names(nil, "") {
		t.Error("no error names something")
	}
}
