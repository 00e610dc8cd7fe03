package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/lab/internal/demo"
	"github.com/tortie-net/tortie/lab/internal/probe"
)

func TestChooseEncap(t *testing.T) {
	yes := func(context.Context) error { return nil }
	no := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	broken := errors.New("root is needed")
	both := kernel{yes, yes}
	onlyIPIP := kernel{yes, no(probe.ErrNoVXLAN)}
	onlyVXLAN := kernel{no(probe.ErrNoIPIP), yes}
	neither := kernel{no(probe.ErrNoIPIP), no(probe.ErrNoVXLAN)}
	for _, test := range []struct {
		want  string
		has   kernel
		encap *demo.Encap
		inVM  bool
		say   string // "" is nothing
		err   string
	}{
		{want: "auto", has: both, encap: demo.IPIP},
		{want: "auto", has: onlyVXLAN, encap: demo.VXLAN, say: "make demo ENCAP=ipip"},
		{want: "auto", has: neither, encap: demo.IPIP, inVM: true, say: "virtual machine"},
		{want: "auto", has: kernel{no(broken), yes}, err: "root is needed"},
		{want: "auto", has: kernel{no(probe.ErrNoIPIP), no(broken)}, err: "root is needed"},
		{want: "ipip", has: both, encap: demo.IPIP},
		{want: "ipip", has: onlyVXLAN, encap: demo.IPIP, inVM: true, say: "virtual machine"},
		{want: "vxlan", has: both, encap: demo.VXLAN},
		{want: "vxlan", has: onlyIPIP, err: "no VXLAN (module vxlan): make demo ENCAP=ipip"},
		{want: "geneve", has: both, err: "-encap geneve: auto, ipip or vxlan"},
	} {
		got, err := chooseEncap(t.Context(), test.want, test.has)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("-encap %s: %v, want %q", test.want, err, test.err)
			}
			continue
		}
		if err != nil || got.inVM != test.inVM || (got.say == "") != (test.say == "") || !strings.Contains(got.say, test.say) ||
			got.encap != test.encap {
			t.Errorf("-encap %s: %+v, %v; want %+v", test.want, got, err, test)
		}
	}
}
