// Package nfttest observes nftables in tests, independently of the package under test.
package nfttest

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Generation returns the nftables generation ID of the namespace: it counts the transactions of all programs.
func Generation(t testing.TB, ns *netnstest.NS) uint32 {
	t.Helper()
	var generation uint32
	ns.Within(t, func() error {
		s, err := nlmsg.Open(unix.NETLINK_NETFILTER, time.Minute)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Execute(nlmsg.Netfilter(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil),
			func(m nlmsg.Message) error {
				generation = nlmsg.Number(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], unix.NFTA_GEN_ID))
				return nil
			})
	})
	if generation == 0 {
		t.Fatal("the kernel did not tell the generation of nftables")
	}
	return generation
}
