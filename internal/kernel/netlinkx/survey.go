package netlinkx

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What linux/netfilter/nf_tables.h says of chains.
const (
	nftSubsystem = 10 // NFNL_SUBSYS_NFTABLES
	nftGetChain  = 4  // NFT_MSG_GETCHAIN
	nftaTable    = 1  // NFTA_CHAIN_TABLE
	nftaName     = 3  // NFTA_CHAIN_NAME
)

// NFChain names a chain of nf_tables; iptables' own are among them where its programs use nf_tables.
type NFChain struct{ Table, Name string }

// NFChains lists the names of all chains of all families. IsUnsupported or IsNotExist may hold for the error if the kernel has
// no nf_tables.
func (c *Conn) NFChains() ([]NFChain, error) {
	var chains []NFChain
	err := c.ns.Do(func() error {
		socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("open netfilter socket: %w", err)
		}
		defer socket.Close()
		timeout := unix.NsecToTimeval(int64(answerTimeout))
		if err := socket.SetReceiveTimeout(&timeout); err != nil {
			return fmt.Errorf("set timeout on netfilter socket: %w", err)
		}
		chains, err = retryDump("chains", func() (found []NFChain, err error) {
			req := nl.NewNetlinkRequest(nftSubsystem<<8|nftGetChain, unix.NLM_F_DUMP)
			req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: socket, Seq: req.Seq}}
			req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
			err = req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(msg []byte) bool {
				found = append(found, parseChain(msg))
				return true
			})
			return found, err
		})
		return err
	})
	return chains, err
}

func parseChain(msg []byte) (chain NFChain) {
	if len(msg) < sizeofNfgenmsg {
		return chain
	}
	attrs, err := nl.ParseRouteAttr(msg[sizeofNfgenmsg:])
	if err != nil {
		return chain
	}
	for _, a := range attrs {
		switch kindOf(a) {
		case nftaTable:
			chain.Table = strings.TrimRight(string(a.Value), "\x00")
		case nftaName:
			chain.Name = strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return chain
}

// Way is how the kernel would send a packet.
type Way struct {
	Dev    int // index of the output link
	Via    netip.Addr
	Source netip.Addr
}

// WayTo returns how a packet to dst leaves now; an error says that it does not.
func (c *Conn) WayTo(dst netip.Addr) (Way, error) {
	routes, err := c.requests.RouteGet(dst.AsSlice())
	if err != nil {
		return Way{}, fmt.Errorf("ask for the route to %s: %w", dst, err)
	}
	if len(routes) == 0 {
		return Way{}, fmt.Errorf("ask for the route to %s: no answer", dst)
	}
	r := routes[0]
	return Way{Dev: r.LinkIndex, Via: addrFromIP(r.Gw), Source: addrFromIP(r.Src)}, nil
}
