package deps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// Real messages of apt, with parts of their remedies.
func TestExplain(t *testing.T) {
	for output, remedy := range map[string]string{
		"exit status 100: E: Failed to fetch http://deb.debian.org/debian/pool/main/s/sl/sl_5.02-1%2bb1_amd64.deb  Temporary failure resolving " +
			"'deb.debian.org'\nE: Unable": "with network",
		"E: Unable to locate package sl":                                                 "main section",
		"E: Package 'quagga-core' has no installation candidate":                         "main section",
		"E: You don't have enough free space in /var/cache/apt/archives/.":               "disk is full",
		"E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1 (x)": "another apt",
	} {
		got := Explain(errors.New(output))
		if !strings.Contains(got.Error(), remedy) || strings.Contains(got.Error(), "\n") {
			t.Errorf("error for %q is %q, want %q in one line", output, got, remedy)
		}
	}
	for _, err := range []error{nil, errors.New("exit status 1: dpkg: error processing package x"),
		fmt.Errorf("Failed to fetch: %w", context.Canceled)} {
		if got := Explain(err); !errors.Is(got, err) {
			t.Errorf("error for %v is %v, want it unchanged", err, got)
		}
	}
}
