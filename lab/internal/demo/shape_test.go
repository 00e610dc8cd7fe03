package demo

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const oneRun = `## 7. Blocks

Text.

    $ kubectl get ipamblocks
    NAME                 CIDR                 AGE
    192-168-161-192-26   192.168.161.192/26   2m1s
    192-168-179-64-26    192.168.179.64/26    9s

    node1# ip route
    192.168.179.64/26 via 172.30.0.13 dev tunl0 proto 84 onlink
    unreachable 192.168.161.192/26 proto 84
    64 bytes from 192.168.179.66: seq=0 ttl=62 time=0.267 ms
    3: cali7fba7a35b74@if2: <UP> mtu 1480 link-netns cni-e2fc77d8-06f2-4502-3bd0-adb4de1c5332
    total 24852
    -rwxr-xr-x 1 root root 7987362  calico
        RX:  bytes packets errors dropped  missed   mcast
               3389      42      0       0       0       0
        link/ipip 0.0.0.0 brd 0.0.0.0 promiscuity 0  allmulti 0 minmtu 0 maxmtu 0
    Pod    tortie-kube-controllers-ffd5f5965-klfnp   <none>        master   True   <none>
    Pod    tortie-node-kmdcc                         <none>        node1    True   <none>
    ippools WATCH 3
    default-ipv6-ippool   fd31:4502:20b5::/48   122
    0      0      172.30.0.12:49743 172.30.0.11:179

All 16 steps showed what they should, in 74 s.
`

// The same, with other addresses and times, and the lines of an output in the other order.
const otherRun = `## 7. Blocks

Text.

    $ kubectl get ipamblocks
    NAME              CIDR              AGE
    192-168-1-0-26    192.168.1.0/26    12s
    192-168-2-64-26   192.168.2.64/26   1h2m

    node1# ip route
    unreachable 192.168.1.0/26 proto 84
    192.168.2.64/26 via 172.30.0.12 dev tunl0 proto 84 onlink
    64 bytes from 192.168.2.70: seq=0 ttl=62 time=12.1 ms
    12: cali7fba7a35b74@if3: <UP> mtu 1480 link-netns cni-11111111-06f2-4502-3bd0-adb4de1c5332
    total 8
    -rwxr-xr-x 1 root root 100  calico
        RX:  bytes packets errors dropped  missed   mcast
            1003389     142      1       0       0       0
        link/ipip 0.0.0.0 brd 0.0.0.0 promiscuity 0
    Pod    tortie-node-abcd2                          <none>        node1    True   <none>
    Pod    tortie-kube-controllers-54f7c7c799-l6l9h   <none>        node2    True   <none>
    ippools WATCH 4
    default-ipv6-ippool   fd00:2:3::/48   122
    0      0      172.30.0.11:179   172.30.0.12:1024

All 16 steps showed what they should, in 301 s.
`

func TestShapeIsTheSameForEveryRun(t *testing.T) {
	if diff := cmp.Diff(Shape(oneRun), Shape(otherRun)); diff != "" {
		t.Errorf("(-one +other):\n%s", diff)
	}
}

func TestShapeSeesWhatChanged(t *testing.T) {
	for _, change := range [][2]string{
		{"## 7. Blocks", "## 7. Block"},
		{"Text.", "Other text."},
		{"kubectl get ipamblocks", "kubectl get ippools"},
		{"CIDR ", "RANGE"},
		{"dev tunl0", "dev eth0"},
		{"<none>        node1    True", "<none>        node1    False"},
		{"    unreachable 192.168.161.192/26 proto 84\n", ""},
		{"ttl=62", "ttl=63"},
		{"proto 84", "proto 80"},
		{"<UP>", "<DOWN>"},
		{"mtu 1480", "mtu 1500"},
		{"All 16", "All 15"},
	} {
		changed := strings.Replace(oneRun, change[0], change[1], 1)
		if changed == oneRun {
			t.Fatalf("%q does not occur", change[0])
		}
		if cmp.Equal(Shape(oneRun), Shape(changed)) {
			t.Errorf("%q for %q is not seen", change[1], change[0])
		}
	}
}

func TestExpect(t *testing.T) {
	const out = "one 1\ntwo 2\ntwo 3\n"
	if err := expect(out, `^two \d$`, `1`); err != nil {
		t.Error(err)
	}
	if err := expect(out, `^three`); err == nil || !strings.Contains(err.Error(), "three") {
		t.Errorf("what is not there: %v", err)
	}
	if err := expectLines(out, 2, `^two`); err != nil {
		t.Error(err)
	}
	if err := expectLines(out, 1, `^two`); err == nil {
		t.Error("two lines pass for one")
	}
	if got := ofKind("Node a 1\nPod    b 2\nNodes c 3\nNode   d 4\n", "Node"); got != "a 1\nd 4\n" {
		t.Errorf("of kind Node: %q", got)
	}
	if err := firstOf("192.168.1.64", "192.168.1.64/26"); err != nil {
		t.Error(err)
	}
	if err := firstOf("192.168.1.65", "192.168.1.64/26"); err == nil {
		t.Error(".65 is the first of .64/26")
	}
	if got := columns(out)["one"]; got != "1" {
		t.Errorf("column %q", got)
	}
	if err := inside("192.168.1.70", "192.168.1.0/26"); err == nil {
		t.Error(".70 is in .0/26")
	}
}
