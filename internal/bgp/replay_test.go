package bgp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// outsideASN is that of the peer which sends what the advisories are about.
const outsideASN = 64513

// outsideHello is the OPEN of a router in outsideASN.
func outsideHello(id byte) []byte {
	return bytes.ReplaceAll(hello(id), []byte{0xfc, 0}, []byte{0xfc, 1})
}

func (p *rawPeer) establishOutside(id byte) {
	p.t.Helper()
	p.send(outsideHello(id), keepalive)
	for range 2 {
		if m := p.read(); m == nil {
			p.t.Fatalf("no handshake: %s", p.err)
		}
	}
}

// announceOutside is an UPDATE that is as it should be.
func announceOutside(nextHop netip.Addr, prefix ...byte) []byte {
	attributes := append([]byte{0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1, 0x40, 3, 4}, nextHop.AsSlice()...)
	return message(2, append(append([]byte{0, 0, 0, byte(len(attributes))}, attributes...), prefix...)...)
}

// What public advisories say of GoBGP does nothing here: an honest peer keeps its session, and the speaker goes on.
func TestAdvisories(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node, hostile, honest := lan.host(1).speak(), lan.host(2), lan.host(3)
	node.start(64512, false)
	node.setPeers(
		bgp.Peer{Addr: hostile.v4, ASN: outsideASN, From: node.v4, Passive: true, ConnectRetry: time.Second},
		bgp.Peer{Addr: honest.v4, ASN: 64512, From: node.v4, Passive: true})
	to := netip.AddrPortFrom(node.v4, 179)
	friend := honest.connect(honest.v4, to)
	friend.establish(3)
	friend.send(announce(honest.v4, 26, 10, 1, 3, 0))
	node.waitLearned("10.1.3.0/26")
	since := node.peer(honest.v4).Since
	for i, a := range bgp.Advisories {
		t.Run(a.ID, func(t *testing.T) {
			node.t, hostile.t = t, t
			defer func() { node.t, hostile.t = lan.t, lan.t }()
			p := hostile.connect(hostile.v4, to)
			defer p.close()
			if a.First != nil {
				p.send(a.First)
			} else {
				p.establishOutside(2)
				p.send(a.Message)
			}
			if a.Told != "" {
				if got := p.last(); got != a.Told {
					t.Errorf("the peer is told %q, want %q", got, a.Told)
				}
			} else { // the session goes on, and what the message announces is in the table only if it is sound
				good := byte(100 + i)
				p.send(announceOutside(hostile.v4, 26, 10, 1, good, 0))
				want := fmt.Sprintf("10.1.3.0/26 10.1.%d.0/26", good)
				if a.Sound {
					want += " 10.66.0.0/26"
				}
				node.waitLearned(want)
				p.send(message(2, 0, 10, 26, 10, 1, good, 0, 26, 10, 66, 0, 0, 0, 0))
			}
			node.waitLearned("10.1.3.0/26")
			node.do(call{Method: "Healthy"})
			if now := node.peer(honest.v4); now.State != bgp.Established || !now.Since.Equal(since) {
				t.Errorf("the session of an honest peer: %+v, was up since %s", now, since)
			}
		})
	}
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

// What the relay keeps from GoBGP: some of it ends the process, which is why the relay is there.
func TestAdvisoriesWithoutRelay(t *testing.T) {
	t.Parallel()
	for _, a := range bgp.Advisories {
		if a.First != nil {
			continue // that is read by nothing that Tortie links, or ends no process
		}
		t.Run(a.ID, func(t *testing.T) {
			t.Parallel()
			lan := newLAN(t)
			node, peer := lan.host(1), lan.host(2)
			self, err := os.Executable()
			errtest.Must(t, err)
			args := []string{self, aloneArg, "plain"}
			if a.Confederation {
				args[2] = inConfederation
			}
			var stderr logtest.Buffer
			cmd := node.command(args...)
			cmd.Stderr = &stderr
			in, err := cmd.StdinPipe()
			errtest.Must(t, err)
			errtest.Must(t, cmd.Start())
			eventually(t, func() error {
				if out := run(t, "ip", "netns", "exec", node.ns, "ss", "-Htln", "sport", "=", ":179"); out == "" {
					return fmt.Errorf("GoBGP does not listen: %s", &stderr)
				}
				return nil
			})
			p := peer.connect(peer.v4, netip.MustParseAddrPort("10.0.0.1:179"))
			p.establishOutside(2)
			p.send(a.Message, keepalive)
			if a.Panic == "" {
				time.Sleep(500 * time.Millisecond)
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
