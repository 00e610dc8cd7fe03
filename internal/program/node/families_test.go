package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// router makes a machine that forwards IPv6, with more variables.
func router(t *testing.T, name, address string, env ...string) *machine {
	t.Helper()
	m := newMachine(t, name, address)
	dir := t.TempDir()
	for _, file := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		path := filepath.Join(dir, file)
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte("0\n"), 0o644))
	}
	program := m.env[len(m.env)-1]
	m.env = append(append(m.env[:len(m.env)-1:len(m.env)-1], "TORTIE_SYSCTL_ROOT="+dir), append(env, program)...)
	return m
}

// Two agents speak BGP in both families, and in IPv6 alone: blocks come by sessions of their own family and become
// routes.
func TestFamilies(t *testing.T) {
	store := labstore.Store(t)
	for i, tc := range []struct {
		name, v4 string
		env      []string
		sessions int
	}{
		{"both", "172.30.%d.%d", nil, 2},
		{"IPv6 alone", "none", []string{"CALICO_ROUTER_ID=hash"}, 1},
	} {
		i++ // an address with a zero in it is written otherwise
		t.Run(tc.name, func(t *testing.T) {
			names := [2]string{fmt.Sprintf("family%d-one", i), fmt.Sprintf("family%d-two", i)}
			v4 := func(host int) string { return fmt.Sprintf("172.30.%d.%d", i, host) }
			v6 := func(host int) string { return fmt.Sprintf("fd30:%d::%d", i, host) }
			objects := []api.Resource{
				&api.IPPool{Meta: api.Meta{Name: fmt.Sprintf("family%d-four", i)}, Spec: api.IPPoolSpec{CIDR: fmt.Sprintf("10.8%d.0.0/16", i)}},
				&api.IPPool{Meta: api.Meta{Name: fmt.Sprintf("family%d-six", i)}, Spec: api.IPPoolSpec{CIDR: fmt.Sprintf("fd8%d::/64", i)}},
			}
			for j, name := range names {
				objects = append(objects, &api.Node{Meta: api.Meta{Name: name}},
					block(name, fmt.Sprintf("10.8%d.%d.0/26", i, j), fmt.Sprintf("four-%d", j)),
					block(name, fmt.Sprintf("fd8%d::%d00/122", i, j+1), fmt.Sprintf("six-%d", j)))
			}
			create(t, store, objects...)
			t.Cleanup(func() { remove(store, objects...) })
			var machines [2]*machine
			for j, name := range names {
				address := tc.v4
				if address != "none" {
					address = v4(j + 1)
				}
				machines[j] = router(t, name, address, append([]string{"IP6=" + v6(j+1)}, tc.env...)...)
			}
			netnstest.Cable(t, machines[0].NS, "eth0", machines[1].NS, "eth0")
			for j, m := range machines {
				if tc.v4 != "none" {
					m.Addr(t, "eth0", v4(j+1)+"/24")
				}
				m.Addr(t, "eth0", v6(j+1)+"/64")
				m.Start(t, "env", m.env...)
			}
			eventually(t, func() error {
				for j, m := range machines {
					if peers := m.try("peers"); strings.Count(peers, names[1-j]) < tc.sessions || strings.Count(peers, "Established") != tc.sessions {
						return fmt.Errorf("%s has peers:\n%s", names[j], peers)
					}
					routes := m.Run(t, "ip", "-6", "route", "show", "proto", "84")
					if want := fmt.Sprintf("fd8%d::%d00/122 via %s dev eth0", i, 2-j, v6(2-j)); !strings.Contains(routes, want) {
						return fmt.Errorf("%s has no route %q:\n%s", names[j], want, routes)
					}
					if told := m.try("routes"); !strings.Contains(told, "BGP "+v6(2-j)) || tc.v4 != "none" && !strings.Contains(told, "BGP "+v4(2-j)) {
						return fmt.Errorf("%s knows of its routes:\n%s", names[j], told)
					}
				}
				return nil
			})
			t.Log(machines[0].node(t, "status"))
		})
	}
}

// remove deletes objects that would affect other tests.
func remove(store *kubernetes.Store, objects ...api.Resource) {
	for _, obj := range objects {
		meta := *obj.GetMeta()
		*obj.GetMeta() = api.Meta{Name: meta.Name}
		if err := store.Get(context.Background(), obj); err == nil {
			_ = store.Delete(context.Background(), obj)
		}
	}
}
