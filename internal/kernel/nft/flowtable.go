package nft

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Flowtables in linux/netfilter/nf_tables.h.
const (
	flowtableName     = 2   // NFTA_FLOWTABLE_NAME
	flowtableHook     = 3   // NFTA_FLOWTABLE_HOOK
	flowtableFlags    = 7   // NFTA_FLOWTABLE_FLAGS
	flowtableNumber   = 1   // NFTA_FLOWTABLE_HOOK_NUM
	flowtablePriority = 2   // NFTA_FLOWTABLE_HOOK_PRIORITY
	flowtableDevices  = 3   // NFTA_FLOWTABLE_HOOK_DEVS
	deviceName        = 1   // NFTA_DEVICE_NAME
	flowtableCounter  = 2   // NFT_FLOWTABLE_COUNTER
	flowTableName     = 1   // NFTA_FLOW_TABLE_NAME, of the expression
	netdevIngress     = 0   // NF_NETDEV_INGRESS
	devicesAtOnce     = 100 // in one request: the kernel accepts 256 (NFT_NETDEVICE_MAX), but its event is one page
)

// Offload adds the packet's connection to a flowtable of the same table: from then on its packets pass from device to
// device before all hooks. The kernel accepts connections of TCP, UDP and GRE that it tracks in both directions. It is
// for the forward hook.
func Offload(flowtable string) Term {
	return Term{expr("flow_offload", func(a *nlmsg.Attributes) { a.Text(flowTableName, flowtable) })}
}

// offloadable matches if the conntrack status of the packet's connection has all bits of has and none of hasNot.
func offloadable(has, hasNot uint32) Term {
	load := expr("ct", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_CT_KEY, unix.NFT_CT_STATUS)
		a.Number(unix.NFTA_CT_DREG, register)
	})
	is := expr("cmp", func(a *nlmsg.Attributes) {
		a.Number(unix.NFTA_CMP_SREG, register)
		a.Number(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		a.Nest(unix.NFTA_CMP_DATA, data(WordKey(has)))
	})
	return Term{load, masked(register, WordKey(has|hasNot), none), is}
}

// The bits of a connection's status: IPS_ASSURED and IPS_DST_NAT.
const (
	statusAssured    = 1 << 2
	statusTranslated = 1 << 5
)

// Assured matches packets of connections that have proven to last: TCP after its handshake, UDP when both ends still
// send after two seconds.
func Assured() Term { return offloadable(statusAssured, 0) }

// AssuredAsSent is Assured for connections without a translated destination.
func AssuredAsSent() Term { return offloadable(statusAssured, statusTranslated) }

// MakeFlowtable makes a flowtable without devices, which updates conntrack's counters; an existing one stays as it is.
func (c *Change) MakeFlowtable(name string) {
	a := c.in(flowtableName, name)
	var hook nlmsg.Attributes
	hook.Number(flowtableNumber, netdevIngress)
	hook.Number(flowtablePriority, PriorityFilter)
	a.Nest(flowtableHook, hook)
	a.Number(flowtableFlags, flowtableCounter)
	c.request(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, a)
}

// AddDevices adds devices to a flowtable, which must exist.
func (c *Change) AddDevices(flowtable string, devices []string) {
	c.devices(unix.NFT_MSG_NEWFLOWTABLE, unix.NLM_F_CREATE, flowtable, devices)
}

// RemoveDevices removes devices from a flowtable, which must have them. Its connections stay until they are idle.
func (c *Change) RemoveDevices(flowtable string, devices []string) {
	c.devices(unix.NFT_MSG_DELFLOWTABLE, 0, flowtable, devices)
}

func (c *Change) devices(kind int, flags uint16, flowtable string, devices []string) {
	for some := range slices.Chunk(devices, devicesAtOnce) {
		a := c.in(flowtableName, flowtable)
		var hook, list nlmsg.Attributes
		hook.Number(flowtableNumber, netdevIngress)
		hook.Number(flowtablePriority, PriorityFilter)
		for _, d := range some {
			list.Text(deviceName, d)
		}
		hook.Nest(flowtableDevices, list)
		a.Nest(flowtableHook, hook)
		c.request(kind, flags, a)
	}
}

// Devices returns the devices of a flowtable, sorted. exists is false if there is none of that name.
func (o *Owned) Devices(ctx context.Context, flowtable string) (devices []string, exists bool, err error) {
	s, err := o.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	b := batch{table: o.name}
	take := func(_ uint8, part []byte) {
		if nlmsg.Text(nlmsg.Find(part, flowtableName)) != flowtable {
			return
		}
		exists = true
		// A device that is cut off is not found, and added again.
		_ = nlmsg.Each(nlmsg.Find(nlmsg.Find(part, flowtableHook), flowtableDevices), func(kind uint16, name []byte) {
			if kind == deviceName {
				devices = append(devices, nlmsg.Text(name))
			}
		})
	}
	err = s.ask(message(unix.NFT_MSG_GETFLOWTABLE, 0, b.in(flowtableName, flowtable)), take)
	if errors.Is(err, unix.EPERM) { // the kernel's error if the answer exceeds a page; a dump has more room
		err = s.ask(message(unix.NFT_MSG_GETFLOWTABLE, unix.NLM_F_DUMP, b.in(flowtableName, flowtable)), take)
		if err == nil && !exists {
			err = errors.New("too many devices")
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		o.hangUp()
		return nil, false, fmt.Errorf("read flowtable %s of nftables table inet %s: %w", flowtable, o.name, err)
	}
	slices.Sort(devices)
	return devices, exists, nil
}
