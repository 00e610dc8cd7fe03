package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/thread"
)

// Addresses on the link between the agent and the host of the other nodes' addresses, which are in nodesCIDR.
const (
	nodesCIDR     = "10.251.0.0/22"
	agentOnLink   = "10.251.255.254"
	answerOnLink  = "10.251.255.253"
	answerMAC     = "02:00:00:00:00:01"
	answerASN     = 64512
	answerHold    = 90 * time.Second
	answerRestart = 120 // s
)

const (
	// heardTimeout is the limit for all sessions and paths.
	heardTimeout = 5 * time.Minute
	dialTimeout  = 5 * time.Second
)

// answering is the other nodes of the large cluster as BGP peers: a session from each one's address, which announces its blocks. They do nothing
// with what the agent announces.
type answering struct {
	host  *thread.Thread
	stop  context.CancelFunc
	peers sync.WaitGroup
}

// startAnswering connects the peers' host with the agent's node, and lets them connect to the agent until they reach it.
func startAnswering(ctx context.Context, n *node, count int) (*answering, error) {
	host, err := thread.New(thread.OwnNetwork)
	if err != nil {
		return nil, err
	}
	if err := linkAnswering(host, n, count); err != nil {
		host.Close()
		return nil, err
	}
	a := &answering{host: host}
	ctx, a.stop = context.WithCancel(ctx)
	for i := range count {
		a.peers.Go(func() { a.attend(ctx, i) })
	}
	return a, nil
}

// linkAnswering makes the link. Its neighbours are permanent: others count for the kernel's limit of 1,024, which all namespaces share.
func linkAnswering(host *thread.Thread, n *node, count int) error {
	err := host.Do(func() error {
		return ip(fmt.Sprintf("link set lo up\nlink add bgp0 address %s type veth peer name bgp0 netns %s\naddr add %s/16 dev bgp0\nlink set bgp0 up\n"+
			"route add local %s dev lo\n", answerMAC, n.NetNS(), answerOnLink, nodesCIDR))
	})
	if err != nil {
		return err
	}
	commands := strings.Builder{}
	fmt.Fprintf(&commands, "addr add %s/16 dev bgp0\nlink set bgp0 up\n", agentOnLink)
	for i := range count {
		fmt.Fprintf(&commands, "neigh add %s lladdr %s dev bgp0 nud permanent\n", bigNodeAddress(i), answerMAC)
	}
	return n.Do(func() error { return ip(commands.String()) })
}

// attend keeps up a node's session. The agent refuses it until it knows the node.
func (a *answering) attend(ctx context.Context, i int) {
	for ctx.Err() == nil {
		if conn, err := a.dial(ctx, bigNodeAddress(i)); err == nil {
			speak(ctx, conn, i)
			_ = conn.Close()
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func (a *answering) dial(ctx context.Context, from netip.Addr) (conn net.Conn, err error) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: dialTimeout}
	err = a.host.Do(func() error { conn, err = dialer.DialContext(ctx, "tcp", agentOnLink+":179"); return err })
	return conn, err
}

// speak announces a node's blocks and the end of the table, and sends KEEPALIVEs until the session ends.
func speak(ctx context.Context, conn net.Conn, i int) {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	}()
	address, keepalive := bigNodeAddress(i), wire.NewKeepalive()
	open := wire.LocalOpen{ASN: answerASN, ID: address, HoldTime: uint16(answerHold / time.Second), RestartTime: answerRestart}
	next := slices.Concat(open.Bytes(wire.FamiliesOf(address), false), keepalive, announcement(i), update(nil, nil))
	tick := time.NewTicker(answerHold / 3)
	defer tick.Stop()
	for {
		if _, err := conn.Write(next); err != nil {
			return
		}
		next = keepalive
		select {
		case <-tick.C:
		case <-ended:
			return
		case <-ctx.Done():
			return
		}
	}
}

// announcement is the UPDATE with a node's blocks, as a node of the same AS sends it.
// Package bgptest, which has the like, would bring GoBGP into this module.
func announcement(i int) []byte {
	attributes := append([]byte{
		0x40, 1, 1, 0, // ORIGIN IGP
		0x40, 2, 0, // AS_PATH, empty
		0x40, 5, 4, 0, 0, 0, 100, // LOCAL_PREF
		0x40, 3, 4, // NEXT_HOP
	}, bigNodeAddress(i).AsSlice()...)
	var blocks []byte
	for b := range blocksPerNode {
		cidr := bigBlock(blocksPerNode*i + b)
		blocks = append(append(blocks, byte(cidr.Bits())), cidr.Addr().AsSlice()...)
	}
	return update(attributes, blocks)
}

// update returns an UPDATE without withdrawn routes (RFC 4271 section 4.3); an empty one is the End-of-RIB of IPv4 (RFC 4724).
func update(attributes, announced []byte) []byte {
	message := bytes.Repeat([]byte{0xff}, 16)
	message = binary.BigEndian.AppendUint16(message, uint16(23+len(attributes)+len(announced)))
	message = append(message, byte(wire.Update), 0, 0)
	message = binary.BigEndian.AppendUint16(message, uint16(len(attributes)))
	return slices.Concat(message, attributes, announced)
}

func (a *answering) end() {
	a.stop()
	a.peers.Wait()
	a.host.Close()
}

var receivedMetric = regexp.MustCompile(`(?m)^tortie_bgp_received_prefixes(?:\{[^}]*\})? ([0-9.e+]+)$`)

// awaitHeard waits until the node's agent has heard the blocks of all other nodes.
func (n *node) awaitHeard(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, heardTimeout, fmt.Errorf("not within %v", heardTimeout))
	defer cancel()
	for {
		have := 0
		text, err := n.agentSays("/metrics")
		if err == nil {
			have, err = sumMetric(text, receivedMetric)
		}
		if err == nil && have == want {
			return nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("the agent has heard %d of %d blocks: %w", have, want, errors.Join(context.Cause(ctx), err))
		}
	}
}
