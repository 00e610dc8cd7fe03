package policytest

import "testing"

// The reference decides each case as its author expects.
func TestCorpus(t *testing.T) {
	cases, err := Corpus()
	if err != nil {
		t.Fatal(err)
	}
	policies := 0
	for _, c := range cases {
		policies += c.Policies
		t.Run(c.Name, func(t *testing.T) {
			for _, text := range c.Allow {
				c.expect(t, text, "allows", c.allowed, true)
			}
			for _, text := range c.Deny {
				c.expect(t, text, "allows", c.allowed, false)
			}
			for _, text := range c.Logs {
				c.expect(t, text, "logs", c.logged, true)
			}
			for _, text := range c.Silent {
				c.expect(t, text, "logs", c.logged, false)
			}
		})
	}
	if policies < 60 {
		t.Errorf("the corpus has %d policies in %d cases", policies, len(cases))
	}
}

func (c *Case) allowed(p Packet) bool { return c.Allowed(p) && (!c.Hosts || c.HostAllows(p)) }

func (c *Case) logged(p Packet) bool {
	from, to := c.PodAt(p.From), c.PodAt(p.To)
	return from != nil && len(c.Judge(from, false, p).Logs) > 0 || to != nil && len(c.Judge(to, true, p).Logs) > 0
}

func (c *Case) expect(t *testing.T, text, what string, of func(Packet) bool, want bool) {
	t.Helper()
	p, err := c.Packet(text)
	if err != nil {
		t.Fatal(err)
	}
	if of(p) != want {
		t.Errorf("%s %v: %s", what, !want, text)
	}
}
