package policy

import (
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// Policies of tutorials do what these describe, interpreted, explained, and to packets.
func TestCorpus(t *testing.T) {
	cases, err := policytest.Corpus()
	errtest.Must(t, err)
	n := newNode(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			v, all := newView(c.Cluster), []policytest.Packet{}
			for _, text := range slices.Concat(c.Allow, c.Deny, c.Logs, c.Silent) {
				p, err := c.Packet(text)
				errtest.Must(t, err)
				if wrong := v.wrong(p); wrong != "" {
					t.Errorf("%s: %s", text, wrong)
				}
				all = append(all, p)
			}
			try := n.try
			if n.become(t, c.Cluster); c.Hosts {
				n.becomeHost(t, c.Cluster)
				try = n.tryHost
			}
			if p, wrong := try(t, c.Cluster, onWire(c.Cluster, all)); wrong != "" {
				t.Errorf("%s: %s", p, wrong)
			}
		})
	}
}
