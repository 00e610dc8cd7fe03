package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// password is a secret that no error may repeat.
const password = "s3cr3t-password"

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := New(cfg)
	errtest.Must(t, err)
	return s
}

// config returns how to reach an etcd without a password.
func config(e *labtest.Etcd) Config {
	return Config{Endpoints: []string{e.Endpoint}, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
}

func TestStorePassesTheCases(t *testing.T) {
	for name, tls := range map[string]bool{"in the clear": false, "over TLS": true} {
		t.Run(name, func(t *testing.T) {
			cfg := config(labtest.NewEtcd(t, tls))
			datastoretest.Run(t, func() datastore.Store { return open(t, cfg) })
		})
	}
}

// raw sends any request, as etcdctl would.
func raw(t *testing.T, s *Store, method string, msg message) []byte {
	t.Helper()
	data, err := s.client.call(t.Context(), rpc{method: method, msg: msg, what: method})
	errtest.Must(t, err)
	return data
}

func put(t *testing.T, s *Store, key, value string) {
	t.Helper()
	raw(t, s, "/etcdserverpb.KV/Put", message{}.text(1, key).text(2, value))
}

func value(t *testing.T, s *Store, key string) string {
	t.Helper()
	kv, err := s.read(t.Context(), key)
	errtest.Must(t, err)
	return string(kv.value)
}

// withPasswords starts an etcd with the users root, calico, with rights below /calico/, and nobody.
func withPasswords(t *testing.T) *labtest.Etcd {
	t.Helper()
	e := labtest.NewEtcd(t, false)
	s := open(t, config(e))
	for _, user := range []string{"root", "calico", "nobody"} {
		raw(t, s, "/etcdserverpb.Auth/UserAdd", message{}.text(1, user).text(2, password))
	}
	for user, role := range map[string]string{"root": "root", "calico": "calico"} {
		raw(t, s, "/etcdserverpb.Auth/RoleAdd", message{}.text(1, role))
		raw(t, s, "/etcdserverpb.Auth/UserGrantRole", message{}.text(1, user).text(2, role))
	}
	all := message{}.number(1, 2).text(2, "/calico/").text(3, prefixEnd("/calico/"))
	raw(t, s, "/etcdserverpb.Auth/RoleGrantPermission", message{}.text(1, "calico").sub(2, all))
	raw(t, s, "/etcdserverpb.Auth/AuthEnable", nil)
	return e
}

func TestPasswords(t *testing.T) {
	e := withPasswords(t)
	as := func(user, password string) *Store {
		cfg := config(e)
		cfg.Username, cfg.Password = user, password
		return open(t, cfg)
	}
	datastoretest.Run(t, func() datastore.Store { return as("calico", password) })
	for name, s := range map[string]*Store{
		"wrong password": as("calico", password+"-not"), "unknown user": as("eve", password), "no rights": as("nobody", password),
		"no password": as("", ""),
	} {
		for verb, err := range map[string]error{
			"get": s.Get(t.Context(), handle()), "create": s.Create(t.Context(), handle()), "update": s.Update(t.Context(), handle()),
			"list": s.List(t.Context(), &api.IPPoolList{}, datastore.ListOptions{}), "delete": s.Delete(t.Context(), handle()),
		} {
			if !errors.Is(err, datastore.ErrUnauthorized) || strings.Contains(err.Error(), password) {
				t.Errorf("%s, %s: error %v, want %v, without the password", name, verb, err, datastore.ErrUnauthorized)
			}
		}
	}
	// A member that restarts has forgotten all tokens.
	s := as("calico", password)
	h := handle()
	errtest.Must(t, s.Create(t.Context(), h))
	errtest.Must(t, e.Kill())
	errtest.Must(t, e.Start())
	h.Spec.Block["10.0.0.0/26"] = 2
	errtest.Must(t, s.Update(t.Context(), h))
	errtest.Must(t, s.Get(t.Context(), h))
}

// A password for a cluster without authentication is not sent twice, and does no harm.
func TestPasswordWithoutAuthentication(t *testing.T) {
	cfg := config(labtest.NewEtcd(t, false))
	cfg.Username, cfg.Password = "calico", password
	s := open(t, cfg)
	errtest.Must(t, s.Create(t.Context(), handle()))
	if !s.client.noAuth {
		t.Error("it would ask for a token again")
	}
}

func handle() *api.IPAMHandle {
	return &api.IPAMHandle{
		Meta: api.Meta{Name: "net.abc", ResourceVersion: "7"},
		Spec: api.IPAMHandleSpec{HandleID: "Net.Abc", Block: map[string]int{"10.0.0.0/26": 1}},
	}
}

// An etcd that was killed is unavailable, and used again when it is back.
func TestKilledEtcd(t *testing.T) {
	e := labtest.NewEtcd(t, true)
	s := open(t, config(e))
	h := handle()
	errtest.Must(t, s.Create(t.Context(), h))
	errtest.Must(t, e.Kill())
	for verb, err := range map[string]error{"get": s.Get(t.Context(), handle()), "update": s.Update(t.Context(), h)} {
		if !errors.Is(err, datastore.ErrUnavailable) || !strings.Contains(err.Error(), e.Endpoint) {
			t.Errorf("%s: error %v, want %v that names %s", verb, err, datastore.ErrUnavailable, e.Endpoint)
		}
	}
	errtest.Must(t, e.Start())
	errtest.Must(t, s.Update(t.Context(), h))
}

// Members that refuse or are silent are passed over.
func TestOneMemberOfThreeIsEnough(t *testing.T) {
	e := labtest.NewEtcd(t, true)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and sends nothing
	errtest.Must(t, err)
	defer silent.Close()
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	refusing.Close()
	cfg := config(e)
	cfg.Endpoints = []string{"https://" + refusing.Addr().String(), "https://" + silent.Addr().String(), e.Endpoint}
	s := open(t, cfg)
	errtest.Must(t, s.Create(t.Context(), handle()))
	errtest.Must(t, s.Get(t.Context(), handle()))
	if first := "https://" + s.client.servers[0]; first != cfg.Endpoints[0] {
		t.Errorf("%s is tried first: a request has failed by another", first)
	}
}

// A client without the right certificate is not served, and sends nothing to a server without the right one.
func TestWrongCertificates(t *testing.T) {
	e, other := labtest.NewEtcd(t, true), labtest.NewEtcd(t, true)
	for name, change := range map[string]func(*Config){
		"no client certificate":  func(c *Config) { c.CertFile, c.KeyFile = "", "" },
		"of another authority":   func(c *Config) { c.CertFile, c.KeyFile = other.CertFile, other.KeyFile },
		"server of another one":  func(c *Config) { c.CAFile = other.CAFile },
		"system's authorities":   func(c *Config) { c.CAFile = "" },
		"in the clear after all": func(c *Config) { c.Endpoints = []string{strings.Replace(e.Endpoint, "https:", "http:", 1)} },
	} {
		cfg := config(e)
		change(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := open(t, cfg).Get(ctx, handle()); !errors.Is(err, datastore.ErrUnavailable) {
			t.Errorf("%s: error %v, want %v", name, err, datastore.ErrUnavailable)
		}
		cancel()
	}
}

// Calico's fields that this project does not know stay in the object.
func TestUnknownFieldsStay(t *testing.T) {
	s := open(t, config(labtest.NewEtcd(t, false)))
	const key = "/calico/resources/v3/projectcalico.org/ippools/pool"
	put(t, s, key,
		`{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"pool","uid":"u","creationTimestamp":"2026-11-20T16:03:57Z",`+
			`"finalizers":["f"],"labels":{"a":"1","b":"2"}},"spec":{"cidr":"10.0.0.0/16","blockSize":26,"disabled":true,`+
			`"nodeSelector":"all()","future":{"x":[1]}}}`)
	p := &api.IPPool{Meta: api.Meta{Name: "pool"}}
	errtest.Must(t, s.Get(t.Context(), p))
	delete(p.Labels, "b")
	p.Spec.Disabled, p.Spec.NodeSelector = false, "has(x)"
	errtest.Must(t, s.Update(t.Context(), p))
	want := `{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"pool","uid":"u",` +
		`"creationTimestamp":"2026-11-20T16:03:57Z",` +
		`"finalizers":["f"],"labels":{"a":"1"}},"spec":{"cidr":"10.0.0.0/16","blockSize":26,"nodeSelector":"has(x)","future":{"x":[1]}}}`
	difftest.Want(t, "value", tree(t, want), tree(t, value(t, s, key)))
}

func tree(t *testing.T, text string) (v any) {
	t.Helper()
	errtest.Must(t, json.Unmarshal([]byte(text), &v))
	return v
}

// Keys that are not of the kind that is listed are passed over, whoever wrote them.
func TestListsPassOverWhatIsOfAnotherKind(t *testing.T) {
	s := open(t, config(labtest.NewEtcd(t, false)))
	for _, key := range []string{
		"/calico/ipam/v2/host/node-a", "/calico/ipam/v2/host/node-a/ipv4/block/10.0.0.1-26", "/calico/ipam/v2/host/node-a/ipv6/block/10.0.0.0-26",
		"/calico/ipam/v2/host/node-b/ipv4/block/10.0.0.0-26", "/calico/ipam/v2/assignment/ipv4/other", "/calico/ipam/v2/handle/a/b",
		"/calico/resources/v3/projectcalico.org/ippools/a/b", "/calico/ipam/v2/virtual/load-balancer/ipv4/block/10.1.0.0-26",
	} {
		put(t, s, key, "{}")
	}
	cidr := netip.MustParsePrefix("fd00:10:244::40/122")
	for _, host := range []string{"node", "node-a"} {
		errtest.Must(t, s.Create(t.Context(), &api.BlockAffinity{
			Meta: api.Meta{Name: names.Affinity(host, cidr)},
			Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: host, CIDR: cidr.String()},
		}))
	}
	var mine, all api.BlockAffinityList
	errtest.Must(t, s.List(t.Context(), &mine, datastore.ListOptions{Host: "node", Stale: true}))
	errtest.Must(t, s.List(t.Context(), &all, datastore.ListOptions{}))
	if len(mine.Items) != 1 || len(all.Items) != 3 {
		t.Errorf("%d affinities of node, want 1; %d in all, want 3: %+v", len(mine.Items), len(all.Items), all.Items)
	}
	for _, list := range []api.ResourceList{&api.IPAMBlockList{}, &api.IPAMHandleList{}, &api.IPPoolList{}} {
		errtest.Must(t, s.List(t.Context(), list, datastore.ListOptions{}))
		text, err := json.Marshal(list)
		errtest.Must(t, err)
		if !strings.Contains(string(text), `"items":null`) {
			t.Errorf("%s: %s, want none", list.ItemType().Kind, text)
		}
	}
}

// A value that cannot be read is an error that names its key.
func TestMalformedValue(t *testing.T) {
	s := open(t, config(labtest.NewEtcd(t, false)))
	const key = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-26"
	put(t, s, key, `{"allocations":7}`)
	errs := map[string]error{
		"get":  s.Get(t.Context(), &api.IPAMBlock{Meta: api.Meta{Name: "10-0-0-0-26"}}),
		"list": s.List(t.Context(), &api.IPAMBlockList{}, datastore.ListOptions{}),
	}
	for verb, err := range errs {
		if err == nil || !strings.Contains(err.Error(), key) || datastore.Contended(err) {
			t.Errorf("%s: error %v, want one that names %s", verb, err, key)
		}
	}
}

// Many processes that start at once, each with a connection of its own, see one datastore.
func TestManyClients(t *testing.T) {
	cfg := config(labtest.NewEtcd(t, true))
	errs := make(chan error)
	const n = 20
	for i := range n {
		go func() {
			s, err := New(cfg)
			if err == nil {
				h := handle()
				h.Spec.HandleID = fmt.Sprint("many-", i)
				err = s.Create(context.Background(), h)
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	var list api.IPAMHandleList
	errtest.Must(t, open(t, cfg).List(t.Context(), &list, datastore.ListOptions{}))
	if len(list.Items) != n {
		t.Errorf("%d handles, want %d", len(list.Items), n)
	}
}
