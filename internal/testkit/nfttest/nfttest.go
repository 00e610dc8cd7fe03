// Package nfttest tells tests what has been done to nftables. It looks by itself, past the package that it helps to test.
package nfttest

import (
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// Generation counts the transactions that the namespace's nftables have seen, whosever they were.
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
	return binary.BigEndian.Uint32(got[0].Data[8:]) // behind the attribute's header, which is the first
}
