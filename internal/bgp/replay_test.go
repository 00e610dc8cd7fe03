package bgp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// outsideASN is the AS number of the peer that sends the advisories' messages.
const outsideASN = 64513

// outsideHello is the OPEN of a router in outsideASN.
func outsideHello(id byte) []byte {
	return bytes.ReplaceAll(hello(id), []byte{0xfc, 0}, []byte{0xfc, 1})
}

// announceOutside returns a valid UPDATE.
func announceOutside(nextHop netip.Addr, prefix ...byte) []byte {
	attributes := append([]byte{0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1, 0x40, 3, 4}, nextHop.AsSlice()...)
	return bgptest.Message(2, append(append([]byte{0, 0, 0, byte(len(attributes))}, attributes...), prefix...)...)
}

// The messages of public advisories on GoBGP have no effect here: an honest peer keeps its session, and the speaker
// goes on.
func TestAdvisories(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node, hostile, honest := lan.Host(1).Speaker(), lan.Host(2), lan.Host(3)
	node.Start(64512, false)
	node.SetPeers(
		bgp.Peer{Addr: hostile.V4, ASN: outsideASN, From: node.V4, Passive: true, ConnectRetry: time.Second},
		bgp.Peer{Addr: honest.V4, ASN: 64512, From: node.V4, Passive: true})
	to := netip.AddrPortFrom(node.V4, 179)
	friend := established(honest, to, hello(3))
	friend.send(announce(honest.V4, 26, 10, 1, 3, 0))
	node.WaitLearned("10.1.3.0/26")
	since := node.Peer(honest.V4).Since
	for i, a := range bgp.Advisories {
		t.Run(a.ID, func(t *testing.T) {
			node.T, hostile.T = t, t
			defer func() { node.T, hostile.T = honest.T, honest.T }()
			if a.First != nil {
				told(hostile, to, a.Told, a.First)
			} else {
				afterHandshake(t, node, established(hostile, to, outsideHello(2)), a, byte(100+i))
			}
			node.WaitLearned("10.1.3.0/26")
			node.Call(bgptest.Call{Method: "Healthy"})
			if now := node.Peer(honest.V4); now.State != bgp.Established || !now.Since.Equal(since) {
				t.Errorf("the session of an honest peer: %+v, was up since %s", now, since)
			}
		})
	}
}

// afterHandshake sends an advisory's message, and ends the connection. If the session goes on, then the message's
// prefix is learned only if it is sound.
func afterHandshake(t *testing.T, node *bgptest.Speaker, p *rawPeer, a bgp.Advisory, good byte) {
	t.Helper()
	defer p.Close()
	p.send(a.Message)
	if a.Told != "" {
		if got := p.last(); got != a.Told {
			t.Errorf("the peer is told %q, want %q", got, a.Told)
		}
		return
	}
	p.send(announceOutside(netip.MustParseAddr("10.0.0.2"), 26, 10, 1, good, 0))
	want := fmt.Sprintf("10.1.3.0/26 10.1.%d.0/26", good)
	if a.Sound {
		want += " 10.66.0.0/26"
	}
	node.WaitLearned(want)
	p.send(bgptest.Message(2, 0, 10, 26, 10, 1, good, 0, 26, 10, 66, 0, 0, 0, 0))
}

// aloneArg makes the test binary GoBGP without a relay, which waits on port 179 of 10.0.0.1 for a peer at 10.0.0.2.
const aloneArg = "bgp-alone"

// inConfederation, as the second argument, makes it a member of one.
const inConfederation = "confederation"

func alone(confederation bool, until io.Reader) error {
	ctx := context.Background()
	s := server.NewBgpServer()
	go s.Serve()
	global := &api.Global{Asn: 64512, RouterId: "10.0.0.1", ListenPort: 179, ListenAddresses: []string{"10.0.0.1"}}
	if confederation {
		global.Confederation = &api.Confederation{Enabled: true, Identifier: 64999, MemberAsList: []uint32{outsideASN}}
	}
	if err := s.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return err
	}
	peer := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: "10.0.0.2", PeerAsn: outsideASN},
		Transport: &api.Transport{PassiveMode: true},
		Timers:    &api.Timers{Config: &api.TimersConfig{IdleHoldTimeAfterReset: 1}},
	}
	if err := s.AddPeer(ctx, &api.AddPeerRequest{Peer: peer}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, until)
	return err
}

// Messages that the relay keeps from GoBGP: some of them end the process, which is why the relay exists.
func TestAdvisoriesWithoutRelay(t *testing.T) {
	t.Parallel()
	for _, a := range bgp.Advisories {
		if a.First != nil {
			continue // Tortie links no reader of it, or it ends no process
		}
		t.Run(a.ID, func(t *testing.T) {
			t.Parallel()
			lan := bgptest.NewLAN(t)
			node, peer := lan.Host(1), lan.Host(2)
			self, err := os.Executable()
			errtest.Must(t, err)
			args := []string{self, aloneArg, "plain"}
			if a.Confederation {
				args[2] = inConfederation
			}
			var stderr logtest.Buffer
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Stderr = &stderr
			in, err := cmd.StdinPipe()
			errtest.Must(t, err)
			node.Within(t, cmd.Start)
			bgptest.Eventually(t, func() error {
				if out := node.Run(t, "ss", "-Htln", "sport", "=", ":179"); out == "" {
					return fmt.Errorf("GoBGP does not listen: %s", &stderr)
				}
				return nil
			})
			p := established(peer, netip.MustParseAddrPort("10.0.0.1:179"), outsideHello(2))
			p.send(a.Message, keepalive)
			if a.Panic == "" { // GoBGP has processed the message when it accepts the next session
				p.Close()
				established(peer, netip.MustParseAddrPort("10.0.0.1:179"), outsideHello(2))
			} else {
				_ = p.last()
			}
			_ = in.Close()
			err = cmd.Wait()
			if ended := err != nil; ended != (a.Panic != "") || !strings.Contains(stderr.String(), a.Panic) {
				t.Errorf("GoBGP alone: %v, want a panic in %q:\n%s", err, a.Panic, &stderr)
			}
		})
	}
}
