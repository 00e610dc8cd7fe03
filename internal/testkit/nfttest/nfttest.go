// Package nfttest observes nftables in tests, independently of the package under test.
package nfttest

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Generation returns the nftables generation ID of the namespace: it counts the transactions of all programs.
func Generation(t testing.TB, ns *netnstest.NS) uint32 {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, 4), // struct nfgenmsg
	})
	if err != nil || len(got) != 1 || len(got[0].Data) < 12 {
		t.Fatalf("ask for the generation: %v, %v", got, err)
	}
	return binary.BigEndian.Uint32(got[0].Data[8:]) // after the header of the first attribute
}
