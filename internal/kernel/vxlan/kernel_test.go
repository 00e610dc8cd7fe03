package vxlan

import "testing"

func TestBrokenKernels(t *testing.T) {
	for release, want := range map[string]bool{
		"4.18.0-553.el8_10.x86_64": true, "5.4.0-42-generic": true, "5.6.19": true, "5.7.0": false, "5.10.0-28-cloud-amd64": false, "6.1": false,
		"10.2.3": false, "": false, "strange": false,
	} {
		if got := brokenIn(release); got != want {
			t.Errorf("%q: %t", release, got)
		}
	}
}
