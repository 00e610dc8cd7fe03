//go:build ignore

// Command paths measures what a path between two pods carries: between the nodes themselves, between pods by routes as package routes
// makes them, through vxlan.calico as package vxlan makes it and as ip and bridge do, through tunl0 as package ipip makes it, alone and
// with the agent's part of nftables, and through tunl0 as ip makes it. It prints one line, "paths " and JSON.
//
// It needs root, iperf3, ip, bridge and a kernel with VXLAN, and with IPIP unless told otherwise. Nodes are network namespaces, joined in
// pairs by a veth pair.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// path is a path between two endpoints, with its measurements.
type path struct {
	Name   string
	Single []float64 // bits per second of one stream, of each round
	Many   []float64 // of many streams together
	RTT    []float64 // seconds for one byte there and back, the median of each round

	from, to *netlinkx.Namespace
	addr     netip.Addr     // of to
	pair     *pathtest.Mesh // an unreferenced namespace is removed
}

func main() {
	seconds := flag.Float64("seconds", 1, "how long a stream is measured")
	rounds := flag.Int("rounds", 3, "how often each path has its turn")
	streams := flag.Int("streams", 8, "how many streams many are")
	tunnels := flag.Bool("tunnels", true, "measure tunnels too, for which the kernel must have IPIP")
	flag.Parse()
	paths, err := measure(context.Background(), *tunnels, *seconds, *rounds, *streams)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(paths); err == nil {
			fmt.Printf("paths %s\n", text)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "paths: %v\n", err)
	os.Exit(1)
}

func measure(ctx context.Context, tunnels bool, seconds float64, rounds, streams int) ([]*path, error) {
	var paths []*path
	makers := []func(context.Context) ([]*path, error){withoutTunnel, throughVXLAN}
	if tunnels {
		makers = append(makers, throughTunnels)
	}
	for _, some := range makers {
		more, err := some(ctx)
		if err != nil {
			return nil, err
		}
		paths = append(paths, more...)
	}
	for round := range rounds {
		for i := range paths {
			if round%2 == 1 { // in reverse order
				i = len(paths) - 1 - i
			}
			if err := paths[i].round(ctx, seconds, streams); err != nil {
				return nil, fmt.Errorf("%s: %w", paths[i].Name, err)
			}
		}
	}
	return paths, nil
}

// withoutTunnel creates a pair of nodes: the paths between themselves, and between their pods.
func withoutTunnel(ctx context.Context) ([]*path, error) {
	pair, err := pathtest.New(ctx, pathtest.Routes)
	if err != nil {
		return nil, fmt.Errorf("nodes without encapsulation: %w", err)
	}
	from, to := pair.Nodes[0], pair.Nodes[1]
	return []*path{{Name: "hosts", from: from.NS, to: to.NS, addr: to.Addr, pair: pair}, between("routes", pair)}, nil
}

// throughVXLAN creates a pair of nodes with the agent's code, and one manually.
func throughVXLAN(ctx context.Context) ([]*path, error) {
	agent, err := pathtest.New(ctx, pathtest.VXLAN)
	if err != nil {
		return nil, fmt.Errorf("nodes with vxlan.calico: %w", err)
	}
	hand, err := pathtest.New(ctx, pathtest.VXLANByHand)
	if err != nil {
		return nil, fmt.Errorf("nodes with VXLAN by hand: %w", err)
	}
	return []*path{between("vxlan", agent), between("vxlan by hand", hand)}, nil
}

// throughTunnels creates pairs of nodes with the agent's code, without and with its rules, and one manually.
func throughTunnels(ctx context.Context) ([]*path, error) {
	tunnel, err := pathtest.New(ctx, pathtest.IPIP)
	if err != nil {
		return nil, fmt.Errorf("nodes with tunl0: %w", err)
	}
	whole, err := pathtest.New(ctx, pathtest.IPIP)
	if err == nil {
		err = whole.AddRules(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("nodes with tunl0 and nftables: %w", err)
	}
	hand, err := pathtest.New(ctx, pathtest.IPIPByHand)
	if err != nil {
		return nil, fmt.Errorf("nodes with a tunnel by hand: %w", err)
	}
	return []*path{between("tunl0", tunnel), between("by hand", hand), between("nftables", whole)}, nil
}

// between returns the path from one node's pod to the other's.
func between(name string, pair *pathtest.Mesh) *path {
	from, to := pair.Nodes[0], pair.Nodes[1]
	return &path{Name: name, from: from.Pod, to: to.Pod, addr: to.PodAddr(), pair: pair}
}

func (p *path) round(ctx context.Context, seconds float64, streams int) error {
	rtt, err := p.pingPong(time.Duration(seconds * float64(time.Second) / 2))
	if err != nil {
		return fmt.Errorf("request and response: %w", err)
	}
	p.RTT = append(p.RTT, rtt.Seconds())
	single, err := p.iperf(ctx, seconds, 1)
	if err != nil {
		return err
	}
	p.Single = append(p.Single, single)
	many, err := p.iperf(ctx, seconds, streams)
	if err != nil {
		return err
	}
	p.Many = append(p.Many, many)
	return nil
}

// iperf returns the bits per second that arrive.
func (p *path) iperf(ctx context.Context, seconds float64, streams int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second))+2*time.Minute)
	defer cancel()
	server := exec.CommandContext(ctx, "iperf3", "-s", "-1", "-B", p.addr.String())
	if err := p.to.Do(server.Start); err != nil {
		return 0, fmt.Errorf("start iperf3: %w", err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for attempt := 0; ; attempt++ { // until the server listens
		bits, err := p.client(ctx, seconds, streams)
		if err == nil || attempt == 100 || ctx.Err() != nil {
			return bits, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// client runs iperf3, which reports failures only in its JSON output.
func (p *path) client(ctx context.Context, seconds float64, streams int) (float64, error) {
	var out []byte
	err := p.from.Do(func() (err error) {
		out, err = exec.CommandContext(ctx, "iperf3", "-J", "-c", p.addr.String(), "-P", fmt.Sprint(streams), "-t", fmt.Sprint(seconds)).Output()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("iperf3: %w\n%s", err, out)
	}
	var report struct {
		Error string
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, fmt.Errorf("iperf3's report: %w", err)
	}
	if report.Error != "" || report.End.Received.Bits <= 0 {
		return 0, fmt.Errorf("iperf3: %s\n%s", report.Error, out)
	}
	return report.End.Received.Bits, nil
}

// pingPong sends one byte in both directions over TCP repeatedly, and returns the median time.
func (p *path) pingPong(duration time.Duration) (time.Duration, error) {
	var l net.Listener
	err := p.to.Do(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(p.addr, 7000).String()); return err })
	if err != nil {
		return 0, err
	}
	defer l.Close()
	go echo(l)
	var conn net.Conn
	err = p.from.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", l.Addr().String(), 30*time.Second)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	b := make([]byte, 1)
	var all []time.Duration
	for begin := time.Now(); time.Since(begin) < duration || len(all) == 0; {
		start := time.Now()
		if err := conn.SetDeadline(start.Add(30 * time.Second)); err != nil {
			return 0, err
		}
		if _, err := conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := conn.Read(b); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

func echo(l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	b := make([]byte, 1)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}
