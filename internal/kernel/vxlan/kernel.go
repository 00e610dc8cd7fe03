package vxlan

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ChecksumsBroken reports whether this kernel, Linux before 5.7, sends packets with a wrong outer checksum if a device
// computes the inner one and the outer packet is translated, for example by kube-proxy's masquerading for Services
// (calico #3145). Distributors have backported the fix, which the version does not show.
func ChecksumsBroken() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	return brokenIn(unix.ByteSliceToString(name.Release[:]))
}

// brokenIn is ChecksumsBroken for a release such as 5.4.0-42-generic.
func brokenIn(release string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major < 5 || major == 5 && minor < 7
}
