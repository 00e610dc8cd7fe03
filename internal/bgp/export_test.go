package bgp

import (
	"context"
	"strconv"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
)

// ForgetSigning makes this process believe that the kernel can't sign TCP segments.
func ForgetSigning() {
	checkMD5, checkAO = func() error { return relay.ErrNoMD5 }, func() error { return tcpao.ErrNoKernel }
}

// StartSlowly makes Start take at least as long in this process.
func StartSlowly(d time.Duration) {
	checkMD5 = func() error {
		time.Sleep(d) //nolint:forbidigo // a slow kernel
		return relay.CheckMD5()
	}
}

// Neighbours returns the number of peers with which GoBGP has a session, as text.
func (s *Server) Neighbours() string {
	established := 0
	request := &api.ListPeerRequest{}
	err := s.bgp.ListPeer(context.Background(), request, func(p *api.Peer) {
		if p.GetState().GetSessionState() == api.PeerState_ESTABLISHED {
			established++
		}
	})
	if err != nil {
		panic(err)
	}
	return strconv.Itoa(established)
}

// ReadAnew has the next Snapshot read the whole of GoBGP's table.
func (s *Server) ReadAnew() string {
	s.table.valid = false
	return ""
}
