package policies

import (
	"testing"
	"time"
)

func TestTrial(t *testing.T) {
	type question struct {
		after        int // seconds
		judged, open bool
	}
	for name, c := range map[string]struct {
		answers []question
		want    string
	}{
		"answered at once":                    {[]question{{0, true, false}}, "passed"},
		"answered late":                       {[]question{{0, false, true}, {59, true, false}}, "passed"},
		"answered after it was locked out":    {[]question{{0, false, true}, {60, false, true}, {90, true, false}}, "passed"},
		"locked out":                          {[]question{{0, false, true}, {30, false, true}, {60, false, true}}, "locked out"},
		"not long enough":                     {[]question{{0, false, true}, {59, false, true}}, "on trial"},
		"the API server is away":              {[]question{{0, false, false}, {60, false, false}, {600, false, false}}, "on trial"},
		"it comes back, and one try fails":    {[]question{{0, false, true}, {30, false, false}, {600, false, true}}, "on trial"},
		"it comes back, and all fail":         {[]question{{0, false, false}, {600, false, true}, {660, false, true}}, "locked out"},
		"it goes away when it was locked out": {[]question{{0, false, true}, {60, false, true}, {90, false, false}}, "locked out"},
	} {
		var tried answers
		begun := time.Unix(1e9, 0)
		for _, a := range c.answers {
			tried = tried.after(begun.Add(time.Duration(a.after)*time.Second), a.judged, a.open, time.Minute)
		}
		got := "on trial"
		if tried.passed {
			got = "passed"
		}
		if tried.lockedOut {
			got = "locked out"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
