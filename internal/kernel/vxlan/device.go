package vxlan

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// ensure returns the device with its VNI, port, local address and parent, and the differences that it had. A difference
// in a property that the kernel cannot change makes a new device necessary.
func (s *Syncer) ensure(t Tunnel) (link netlinkx.Link, was []string, anew bool, err error) {
	parent, err := s.conn.LinkByName(t.Parent)
	if err != nil {
		return link, nil, false, err
	}
	want := netlinkx.VXLAN{ID: t.VNI, Port: t.Port, Local: t.Local, Parent: parent.Index}
	link, err = s.conn.Own(t.device(), kind)
	if netlinkx.IsNotExist(err) {
		link, err = s.add(t, want)
		return link, []string{"was missing"}, true, err
	}
	if err != nil {
		return link, nil, false, err
	}
	if link.VXLAN == want {
		return link, nil, false, nil
	}
	was = link.VXLAN.Differences(want)
	if changeable(link.VXLAN, want) && s.conn.ChangeVXLAN(link, want) == nil {
		if link, err = s.conn.LinkByName(t.device()); err == nil && link.VXLAN == want {
			return link, was, false, nil
		}
	}
	if err := s.conn.DeleteLink(link.Index); err != nil && !netlinkx.IsNotExist(err) {
		return link, was, false, err
	}
	link, err = s.add(t, want)
	return link, was, true, err
}

// changeable reports whether a working device can be changed as wanted.
func changeable(have, want netlinkx.VXLAN) bool {
	return have.ID == want.ID && have.Port == want.Port && !have.More && have.Local.Is4() == want.Local.Is4()
}

func (s *Syncer) add(t Tunnel, v netlinkx.VXLAN) (netlinkx.Link, error) {
	err := s.conn.AddVXLAN(t.device(), t.MAC, t.MTU, v)
	switch {
	case netlinkx.IsUnsupported(err):
		return netlinkx.Link{}, fmt.Errorf("%w (%w)", ErrNoVXLAN, err)
	case netlinkx.IsExist(err):
		return netlinkx.Link{}, s.rival(v, err)
	case err != nil:
		return netlinkx.Link{}, err
	}
	return s.conn.LinkByName(t.device())
}

// rival returns an error that names the device that prevents ours: a namespace has one device with a VNI and port, even
// if its link was moved elsewhere.
func (s *Syncer) rival(v netlinkx.VXLAN, exists error) error {
	links, err := s.conn.Links()
	if err != nil {
		return errors.Join(exists, err)
	}
	for _, l := range links {
		if l.Here(kind) && l.VXLAN.ID == v.ID && l.VXLAN.Port == v.Port {
			return fmt.Errorf(
				"%w: interface %s has the same VNI %d and port %d: remove it, or choose others in FelixConfiguration spec.vxlanVNI and spec.vxlanPort",
				exists, l.Name, v.ID, v.Port)
		}
	}
	return exists
}

// settings sets the properties that can be changed at any time.
func (s *Syncer) settings(m *Merged, link netlinkx.Link, t Tunnel) error {
	var errs []error
	if link.MTU != t.MTU {
		m.Was = append(m.Was, fmt.Sprintf("had MTU %d", link.MTU))
		errs = append(errs, s.conn.SetMTU(link.Index, t.MTU))
	}
	if string(link.HardwareAddr) != string(t.MAC[:]) {
		m.Was = append(m.Was, fmt.Sprintf("had MAC %s", link.HardwareAddr))
		errs = append(errs, s.conn.SetHardwareAddr(link.Index, t.MAC[:]))
	}
	return errors.Join(append(errs, s.checksums(m, link, t))...)
}

// checksums turns the device's checksums off if t requires it. Otherwise it changes nothing, as an operator may have
// turned them off.
func (s *Syncer) checksums(m *Merged, link netlinkx.Link, t Tunnel) error {
	if !t.SoftChecksums {
		return nil
	}
	on, err := s.conn.TxChecksum(link.Name)
	if err != nil || !on {
		return err
	}
	m.Was = append(m.Was, "had checksums by the device")
	return s.conn.SetTxChecksum(link.Name, false)
}

// address makes the tunnel's address the link's only one.
func (s *Syncer) address(m *Merged, link netlinkx.Link, t Tunnel) error {
	var want netip.Prefix
	if t.Addr.IsValid() {
		want = netip.PrefixFrom(t.Addr, t.Addr.BitLen())
	}
	was, err := s.conn.SoleAddr(link.Index, netlinkx.FamilyAll, want)
	m.Was = append(m.Was, was...)
	return err
}
