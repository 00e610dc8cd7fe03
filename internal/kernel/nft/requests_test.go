package nft

import (
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// recorder passes requests on to the kernel and keeps them.
func recorder(t *testing.T, ns *netnstest.NS, requests *[]netlink.Message) socket {
	t.Helper()
	kernel, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kernel.Close() })
	return socket{nltest.Dial(func(sent []netlink.Message) ([]netlink.Message, error) {
		m := sent[0]
		*requests = append(*requests, m)
		m.Header.Sequence, m.Header.PID = 0, 0
		answer, err := kernel.Execute(m)
		if err != nil {
			return nil, err
		}
		for i := range answer {
			answer[i].Header.Sequence, answer[i].Header.PID = sent[0].Header.Sequence, sent[0].Header.PID
		}
		if m.Header.Flags&netlink.Dump != 0 {
			// A list ends with a mark, which an empty one has alone.
			answer = append(answer, netlink.Message{Header: netlink.Header{Type: netlink.Done, Flags: netlink.Multi,
				Sequence: sent[0].Header.Sequence, PID: sent[0].Header.PID}, Data: make([]byte, 4)})
		}
		return answer, nil
	})}
}

// TestOnlyOurTableIsAsked: whatever else there is, of the same family too, no request is about it.
func TestOnlyOurTableIsAsked(t *testing.T) {
	ns := netnstest.New(t)
	part := Part{Prefixes: []string{"own-"}, Former: []string{"own-former"}, Chains: []Chain{
		{Name: "own-chain", Rules: []Rule{NewRule("", In("own-set", IPv4.Src), Count())}},
	}, Sets: []Set{{Name: "own-set", Key: []Type{IPv4Addr}, Elements: []Element{{First: "\x0a\x00\x00\x01"}}}}}
	if _, err := NewAt(ns.Namespace).Sync(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"inet", "ip", "ip6"} {
		ns.Run(t, "nft", "add table "+family+" other; add chain "+family+" other own-chain; add rule "+family+" other own-chain counter; add set "+family+" other own-set { type ipv4_addr; }")
	}
	var requests []netlink.Message
	s := recorder(t, ns, &requests)
	have, err := s.read(part)
	if err != nil {
		t.Fatal(err)
	}
	if len(have.chains) != 1 || len(have.chains["own-chain"].rules) != 1 || len(have.sets) != 1 || len(have.sets["own-set"].elements) != 1 {
		t.Errorf("read %+v, want the one chain with its rule, and the set with its element", have)
	}
	if len(requests) < 6 {
		t.Errorf("only %d requests were seen", len(requests))
	}
	for _, m := range requests {
		table := text(find(m.Data[4:], unix.NFTA_TABLE_NAME))
		listsChains := m.Header.Type == subsystem|unix.NFT_MSG_GETCHAIN && m.Header.Flags&netlink.Dump != 0
		if m.Data[0] != family || table != TableName || listsChains {
			t.Errorf("request %v of family %d is about table %q; chains of all tables: %v", m.Header, m.Data[0], table, listsChains)
		}
	}
}
