package labtest

import "testing"

// listing prints the state of a host: links, addresses, routes of all tables, rules, tables of nftables, files,
// parameters of the kernel. It leaves out counters, ages and random numbers, the neighbours, libcni's own notes on
// running pods (/var/lib/cni), and iptables' tables of NAT, in which portmap leaves its chains.
const listing = `echo LINKS; ip -o link | sed 's/^[0-9]*: //; s/[@:].*//'
echo ADDRESSES; ip -o addr | sed 's/^[0-9]*: //; s/valid_lft.*//'
for f in -4 -6; do echo "ROUTES $f"; ip $f route show table all; echo "RULES $f"; ip $f rule; done
echo TABLES; nft list tables | grep -vxE 'table ip6? nat'
echo FILES; find /etc/cni /opt/cni /var/lib/calico /var/run/calico/ /var/log/calico -printf '%p %y %m %s\n' | grep -v ' d ' | sort
echo DIRECTORIES; find /etc/cni /opt/cni /var/lib/calico /var/run/calico/ /var/log/calico -type d | sort
echo PARAMETERS; sysctl -a 2>/dev/null | grep ^net. | grep -vE 'count|random|neigh|secret|fastopen_key'`

// Hosts returns the state of each node that a pod network could change, as text with a heading above each part. A
// file's line has its path, type, mode and size.
func (l *Lab) Hosts(t testing.TB, nodes ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, node := range nodes {
		all[node] = l.On(t, node, listing)
	}
	return all
}
