package netlinkx

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Scope is how far an address or route is meaningful.
type Scope uint8

// The kernel's scopes.
const (
	ScopeLink Scope = unix.RT_SCOPE_LINK
)

// Family is an address family; the zero value stands for both.
type Family int

// The families.
const (
	FamilyAll Family = unix.AF_UNSPEC
	IPv4      Family = unix.AF_INET
	IPv6      Family = unix.AF_INET6
)

// FamilyOf returns the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Addr is an address on a link.
type Addr struct {
	Prefix    netip.Prefix // the address itself with the length of its subnet
	Link      int          // index
	Tentative bool         // IPv6: not usable yet, or a duplicate
	Passing   bool         // IPv6: made for privacy and soon replaced, or deprecated
	Ending    bool         // it has a lifetime, as one that a router advertisement made
}

// Addrs lists the addresses of the link with the index given, or of all links for index 0.
func (c *Conn) Addrs(index int, family Family) ([]Addr, error) {
	found, err := retryDump("addresses", func() ([]netlink.Addr, error) { return c.requests.AddrList(nil, int(family)) })
	if err != nil {
		return nil, err
	}
	addrs := make([]Addr, 0, len(found))
	for _, a := range found {
		if index != 0 && a.LinkIndex != index {
			continue
		}
		addrs = append(addrs, Addr{
			Prefix: prefixFromIPNet(a.IPNet), Link: a.LinkIndex,
			Tentative: a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0,
			Ending:    a.Flags&unix.IFA_F_PERMANENT == 0,
			Passing:   prefixFromIPNet(a.IPNet).Addr().Is6() && a.Flags&(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED) != 0,
		})
	}
	return addrs, nil
}

// AddUniqueAddr adds an address to a link without duplicate address detection, so that it can be used at once; IsExist
// holds for the error if the link has it already.
func (c *Conn) AddUniqueAddr(index int, p netip.Prefix) error {
	// The library makes up a broadcast address unless it gets this one.
	addr := &netlink.Addr{IPNet: ipNet(p), Broadcast: net.IPv4zero}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := c.requests.AddrAdd(handle(index), addr); err != nil {
		return fmt.Errorf("add address %s to link with index %d: %w", p, index, err)
	}
	return nil
}

// SoleAddr makes want, without duplicate address detection, the link's only address of a family, or of both; with the
// zero Prefix it removes all. It adds before it removes: with the last address the kernel drops routes, and the node's
// own packets lose their source. IPv6 link-local addresses stay. It returns the differences, such as "lacked address
// 10.0.0.1/32".
func (c *Conn) SoleAddr(index int, family Family, want netip.Prefix) (was []string, err error) {
	have, err := c.Addrs(index, family)
	if err != nil {
		return nil, err
	}
	is := func(a Addr) bool { return a.Prefix == want }
	if want.IsValid() && !slices.ContainsFunc(have, is) {
		was = append(was, fmt.Sprintf("lacked address %s", want))
		if err := c.AddUniqueAddr(index, want); err != nil && !IsExist(err) {
			return was, err
		}
	}
	var errs []error
	for _, a := range have {
		if is(a) || a.Prefix.Addr().Is6() && a.Prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		was = append(was, fmt.Sprintf("had address %s", a.Prefix))
		if err := c.DeleteAddr(index, a.Prefix); err != nil && !IsNotExist(err) {
			errs = append(errs, err)
		}
	}
	return was, errors.Join(errs...)
}

// DeleteAddr removes an address from a link; IsNotExist holds for the error if the link does not have it.
func (c *Conn) DeleteAddr(index int, p netip.Prefix) error {
	if err := c.requests.AddrDel(handle(index), &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return fmt.Errorf("delete address %s from link with index %d: %w", p, index, err)
	}
	return nil
}

// Delivers reports whether the kernel delivers packets to an address that come in by a link: for IPv6 it does so only
// some time after the address was added.
func (c *Conn) Delivers(index int, a netip.Addr) (bool, error) {
	routes, err := c.requests.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{OifIndex: index})
	if err != nil {
		return false, fmt.Errorf("ask for the route to %s: %w", a, err)
	}
	return len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL, nil
}

// Source returns the address that the kernel would send packets to dst from.
func (c *Conn) Source(dst netip.Addr) (netip.Addr, error) {
	routes, err := c.requests.RouteGet(dst.AsSlice())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ask for the route to %s: %w", dst, err)
	}
	if len(routes) == 0 || !addrFromIP(routes[0].Src).IsValid() {
		return netip.Addr{}, fmt.Errorf("the route to %s has no source address", dst)
	}
	return addrFromIP(routes[0].Src), nil
}
