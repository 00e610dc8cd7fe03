package netlinkx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What linux/netfilter/ipset/ip_set.h says.
const (
	ipsetSubsystem = 6 // NFNL_SUBSYS_IPSET
	ipsetDestroy   = 3 // IPSET_CMD_DESTROY
	ipsetList      = 7 // IPSET_CMD_LIST
	ipsetaProtocol = 1 // IPSET_ATTR_PROTOCOL
	ipsetaName     = 2 // IPSET_ATTR_SETNAME
	ipsetaFlags    = 6 // IPSET_ATTR_FLAGS
	ipsetProtocol  = 6
	ipsetNamesOnly = 2 // IPSET_FLAG_LIST_SETNAME
)

// ipsetModule is there if the kernel has ipsets in use. To ask without it would load the module.
const ipsetModule = "/sys/module/ip_set"

// IPSets lists the names of ipsets; a kernel that has not loaded what they need has none.
func (c *Conn) IPSets() (names []string, err error) {
	if _, err := os.Stat(ipsetModule); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	err = c.ns.Do(func() error {
		req := ipsetRequest(ipsetList, unix.NLM_F_DUMP)
		req.AddData(nl.NewRtAttr(ipsetaFlags|unix.NLA_F_NET_BYTEORDER, binary.BigEndian.AppendUint32(nil, ipsetNamesOnly)))
		answer, err := req.Execute(unix.NETLINK_NETFILTER, 0)
		if err != nil {
			return fmt.Errorf("list ipsets: %w", err)
		}
		for _, msg := range answer {
			if name := parseIPSet(msg); name != "" {
				names = append(names, name)
			}
		}
		return nil
	})
	return names, err
}

// DestroyIPSet removes one that no rule refers to.
func (c *Conn) DestroyIPSet(name string) error {
	return c.ns.Do(func() error {
		req := ipsetRequest(ipsetDestroy, unix.NLM_F_ACK)
		req.AddData(nl.NewRtAttr(ipsetaName, nl.ZeroTerminated(name)))
		if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
			return fmt.Errorf("destroy ipset %s: %w", name, err)
		}
		return nil
	})
}

func ipsetRequest(command, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(ipsetSubsystem<<8|command, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(ipsetaProtocol, []byte{ipsetProtocol}))
	return req
}

func parseIPSet(msg []byte) string {
	if len(msg) < sizeofNfgenmsg {
		return ""
	}
	attrs, err := nl.ParseRouteAttr(msg[sizeofNfgenmsg:])
	if err != nil {
		return ""
	}
	for _, a := range attrs {
		if kindOf(a) == ipsetaName {
			return strings.TrimRight(string(a.Value), "\x00")
		}
	}
	return ""
}
