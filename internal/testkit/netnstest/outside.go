package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Outside makes a request of rtnetlink like a pod with CAP_NET_ADMIN and no other right, to the namespace of the other
// end of its eth0: the first one for which this namespace has a number. Without a name the request is for the link of
// this namespace with the index.
func (n *NS) Outside(kind, flags uint16, index int, attrs nlmsg.Attributes) error {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	m := nlmsg.Message{Kind: kind, Flags: flags | unix.NLM_F_ACK,
		Body: append(body, nlmsg.AppendUint32(attrs, unix.IFLA_TARGET_NETNSID, 0)...)}
	return n.Do(func() error { // on a thread that ends with it
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		caps[0].Effective, caps[0].Permitted = 1<<unix.CAP_NET_ADMIN, 1<<unix.CAP_NET_ADMIN
		if err := unix.Capset(&head, &caps[0]); err != nil {
			return err
		}
		s, err := nlmsg.Open(unix.NETLINK_ROUTE, 5*time.Second)
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.Send(m.Append(s.Request(), 1)); err != nil {
			return err
		}
		answered := errors.New("no answer")
		return errors.Join(s.Receive(1, func(m nlmsg.Message) (bool, error) { answered = m.Err(); return true, nil }), answered)
	})
}

// Swap makes a pod with CAP_NET_ADMIN replace its node's link of the given name by its own link.
func (n *NS) Swap(t testing.TB, own, name string) {
	t.Helper()
	var attrs nlmsg.Attributes
	attrs.Text(unix.IFLA_IFNAME, name)
	if err := n.Outside(unix.RTM_DELLINK, 0, 0, attrs); err != nil && !errors.Is(err, unix.ENODEV) {
		t.Fatal(fmt.Errorf("delete the node's %s: %w", name, err))
	}
	errtest.Must(t, n.Outside(unix.RTM_SETLINK, 0, n.Link(t, own).Index, attrs))
}
