//go:build ignore

// Command veth configures the kernel for a pod with the netlink library of other plugins and without an API server: a
// veth pair, an address, the routes on both sides and four sysctls. DEL removes the pair.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// config names the host's end of the pair and the pod's address.
type config struct{ Link, Address string }

func main() {
	runtime.LockOSThread()
	var c config
	err := json.NewDecoder(os.Stdin).Decode(&c)
	switch {
	case err != nil:
	case os.Getenv("CNI_COMMAND") == "ADD":
		err = add(c)
	default:
		err = del(c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "veth:", err)
		os.Exit(1)
	}
	fmt.Printf(`{"cniVersion":"1.0.0","ips":[{"address":"%s/32"}]}`, c.Address)
}

func add(c config) error {
	pod, err := netns.GetFromPath(os.Getenv("CNI_NETNS"))
	if err != nil {
		return err
	}
	name := os.Getenv("CNI_IFNAME")
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: c.Link}, PeerName: name, PeerNamespace: netlink.NsFd(pod)}
	if err := netlink.LinkAdd(pair); err != nil {
		return err
	}
	if err := inHost(c); err != nil {
		return err
	}
	if err := netns.Set(pod); err != nil {
		return err
	}
	return inPod(name, c)
}

func inHost(c config) error {
	link, err := netlink.LinkByName(c.Link)
	if err != nil {
		return err
	}
	for key, value := range map[string]string{
		"conf/" + c.Link + "/rp_filter": "1", "neigh/" + c.Link + "/proxy_delay": "0",
		"conf/" + c.Link + "/proxy_arp": "1", "conf/" + c.Link + "/forwarding": "1",
	} {
		if err := os.WriteFile("/proc/sys/net/ipv4/"+key, []byte(value), 0); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: only(net.ParseIP(c.Address)), Scope: netlink.SCOPE_LINK})
}

func inPod(name string, c config) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	gateway := net.IPv4(169, 254, 1, 1)
	index := link.Attrs().Index
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: only(gateway), Scope: netlink.SCOPE_LINK}); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gateway}); err != nil {
		return err
	}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: only(net.ParseIP(c.Address))})
}

func del(c config) error {
	link, err := netlink.LinkByName(c.Link)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

func only(ip net.IP) *net.IPNet { return &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)} }
