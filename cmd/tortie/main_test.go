package main

import (
	"slices"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		argv []string
		name string
		args []string
	}{
		{[]string{"/usr/bin/node"}, "node", nil},
		{[]string{"node", "status", "-o", "json"}, "node", []string{"status", "-o", "json"}},
		{[]string{"/usr/bin/install", "node"}, "install", []string{"node"}},
		{[]string{"/usr/bin/tortie", "install", "-once"}, "install", []string{"-once"}},
		{[]string{"/usr/bin/tortie", "nod"}, "nod", nil},
		{[]string{"/proc/self/exe", "node", "-v"}, "node", []string{"-v"}},
		{[]string{"/usr/bin/tortie"}, "", nil},
		{nil, "", nil},
	} {
		name, args := choose(c.argv)
		if name != c.name || !slices.Equal(args, c.args) {
			t.Errorf("%q: program %q with %q, want %q with %q", c.argv, name, args, c.name, c.args)
		}
	}
}
