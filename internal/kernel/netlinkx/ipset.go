package netlinkx

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// From linux/netfilter/ipset/ip_set.h.
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

// ipsetModule exists if the kernel has ipsets in use. A request without it would load the module.
const ipsetModule = "/sys/module/ip_set"

// IPSets lists the names of ipsets; a kernel that has not loaded their module has none.
func (c *Conn) IPSets() (names []string, err error) {
	if _, err := os.Stat(ipsetModule); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var flags nlmsg.Attributes
	flags.Number(ipsetaFlags|unix.NLA_F_NET_BYTEORDER, ipsetNamesOnly)
	err = c.ipset(ipsetList, unix.NLM_F_DUMP, flags, func(m nlmsg.Message) error {
		if len(m.Body) >= nlmsg.SizeofNfgenmsg {
			if name := nlmsg.Text(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], ipsetaName)); name != "" {
				names = append(names, name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	return names, nil
}

// DestroyIPSet removes an ipset that no rule refers to.
func (c *Conn) DestroyIPSet(name string) error {
	var attrs nlmsg.Attributes
	attrs.Text(ipsetaName, name)
	if err := c.ipset(ipsetDestroy, unix.NLM_F_ACK, attrs, func(nlmsg.Message) error { return nil }); err != nil {
		return fmt.Errorf("destroy ipset %s: %w", name, err)
	}
	return nil
}

func (c *Conn) ipset(command int, flags uint16, more nlmsg.Attributes, take func(nlmsg.Message) error) error {
	var attrs nlmsg.Attributes
	attrs.Add(ipsetaProtocol, []byte{ipsetProtocol})
	return c.ns.Do(func() error {
		s, err := nlmsg.Open(unix.NETLINK_NETFILTER, answerTimeout)
		if err != nil {
			return err
		}
		defer s.Close()
		return s.Execute(nlmsg.Netfilter(ipsetSubsystem, command, flags, unix.AF_INET, append(attrs, more...)), take)
	})
}
