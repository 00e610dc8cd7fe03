package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func assignment(addr, block string) ipam.Assignment {
	return ipam.Assignment{Address: netip.MustParseAddr(addr), Block: netip.MustParsePrefix(block)}
}

func TestResultOfIPAM(t *testing.T) {
	got := ipamResult([]ipam.Assignment{assignment("10.0.0.5", "10.0.0.0/26"), assignment("fd00::5", "fd00::/122")})
	want := `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.5/26"},{"address":"fd00::5/122"}],"routes":[{"dst":"10.0.0.5/26"},` +
		`{"dst":"fd00::5/122"}]}`
	compareJSON(t, want, got)
}

func TestResultOfAdd(t *testing.T) {
	assigned := ipamResult([]ipam.Assignment{assignment("10.0.0.5", "10.0.0.0/26"), assignment("fd00::5", "fd00::/122")})
	assigned.DNS = types.DNS{Nameservers: []string{"10.96.0.10"}}
	addrs, err := resultAddrs(assigned)
	errtest.Must(t, err)
	mac, _ := net.ParseMAC("02:00:00:00:00:01")
	r := &session{ifName: "eth0", netns: "/n"}
	got := result(r, podnet.Result{HostVeth: "cali1", MAC: mac, MTU: 1480}, addrs, assigned)
	compareJSON(t, `{"cniVersion":"1.0.0",
		"interfaces":[{"name":"cali1"},{"name":"eth0","mac":"02:00:00:00:00:01","mtu":1480,"sandbox":"/n"}],
		"ips":[{"interface":1,"address":"10.0.0.5/32"},{"interface":1,"address":"fd00::5/128"}],
		"routes":[{"dst":"10.0.0.5/26"},{"dst":"fd00::5/122"}],"dns":{"nameservers":["10.96.0.10"]}}`, got)
}

// compareJSON compares a result as a runtime sees it in version 1.0.0.
func compareJSON(t *testing.T, want string, res *types100.Result) {
	t.Helper()
	got, err := res.GetAsVersion("1.0.0")
	errtest.Must(t, err)
	text, err := json.Marshal(got)
	errtest.Must(t, err)
	difftest.Want(t, "result", exact(t, want), exact(t, string(text)))
}

func TestAddressesOfAResult(t *testing.T) {
	mapped := &types100.Result{IPs: []*types100.IPConfig{{Address: net.IPNet{IP: net.ParseIP("10.0.0.5")}}}} // 16 bytes
	if addrs, err := resultAddrs(mapped); err != nil || len(addrs) != 1 || !addrs[0].Is4() {
		t.Errorf("an IPv4 address in 16 bytes: %v, %v", addrs, err)
	}
	for name, res := range map[string]*types100.Result{
		"none":    {},
		"invalid": {IPs: []*types100.IPConfig{{}}},
	} {
		if _, err := resultAddrs(res); err == nil || !strings.Contains(err.Error(), "address") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ipamScript makes an IPAM plugin out of a shell script, and has it found. It appends the verb of each execution to a
// file.
func ipamScript(t *testing.T, script string) (d *delegated, verbs func() string) {
	t.Helper()
	dir := t.TempDir()
	log := filepath.Join(dir, "verbs")
	text := "#!/bin/sh\necho $CNI_COMMAND >>" + log + "\n" + script
	errtest.Must(t, os.WriteFile(filepath.Join(dir, "ipam"), []byte(text), 0o755))
	t.Setenv("CNI_PATH", dir)
	r := &session{path: dir, stdin: []byte(minimalConf)}
	r.conf.IPAM.Type = "ipam"
	return &delegated{r}, func() string {
		text, err := os.ReadFile(log)
		if !errors.Is(err, fs.ErrNotExist) { // before the first
			errtest.Must(t, err)
		}
		return strings.Join(strings.Fields(string(text)), " ")
	}
}

func TestIPAMPluginThatFails(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		code         uint
		want         []string
		verbs        string
	}{
		{"says why", `echo '{"code":102,"msg":"all taken","details":"add one"}'; exit 1`, 102, []string{"all taken", "add one"}, "ADD"},
		{"crashes", `[ $CNI_COMMAND = DEL ] || kill -9 $$`, 999, []string{"signal: killed"}, "ADD DEL"},
		{"talks on standard error", `[ $CNI_COMMAND = DEL ] || { echo oops >&2; exit 2; }`, 999, []string{"oops"}, "ADD DEL"},
		{"prints no result", `echo hello`, 999, []string{"result"}, "ADD DEL"},
		{"prints another version", `echo '{"cniVersion":"9.9.9"}'`, 999, []string{"9.9.9"}, "ADD DEL"},
		{"fails to undo", `[ $CNI_COMMAND = ADD ] && exit 1; echo '{"code":7,"msg":"undo refused"}'; exit 1`, 999,
			[]string{"exit status 1", "undo refused", "DEL"}, "ADD DEL"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, verbs := ipamScript(t, tt.script)
			_, err := d.add(t.Context(), anything)
			if err == nil {
				t.Fatal("no error")
			}
			e := classified(t, err)
			if e.Code != tt.code || !strings.Contains(e.Msg, "ipam") {
				t.Errorf("%+v, want code %d", e, tt.code)
			}
			difftest.Contains(t, e.Error(), tt.want...)
			if got := verbs(); got != tt.verbs {
				t.Errorf("the plugin was executed for %s, want %s", got, tt.verbs)
			}
		})
	}
}

// expiring is a context with a deadline that passes when its inner context is canceled, with that cause.
type expiring struct{ context.Context }

func (e expiring) Err() error {
	if e.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// The deadline of a verb ends an IPAM plugin, whose code then does not count; an address that it may have assigned is
// released.
func TestIPAMPluginThatHangs(t *testing.T) {
	d, verbs := ipamScript(t, `[ $CNI_COMMAND = DEL ] || exec sleep 60`)
	ctx, expire := context.WithCancelCause(t.Context())
	defer expire(nil)
	failed := make(chan error, 1)
	go func() { _, err := d.add(expiring{ctx}, anything); failed <- err }()
	waittest.Until(t, 20*time.Second, "the plugin is not executed", func() bool { return verbs() == "ADD" })
	expire(context.DeadlineExceeded)
	err := <-failed
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v", err)
	}
	if e := classified(t, err); e.Code != types.ErrTryAgainLater {
		t.Errorf("%+v", e)
	}
	if got := verbs(); got != "ADD DEL" {
		t.Errorf("the plugin was executed for %s", got)
	}
}

func TestMissingIPAMPlugin(t *testing.T) {
	r := &session{path: "/none:/neither"}
	r.conf.IPAM.Type = "ipam"
	d := &delegated{r}
	_, addErr := d.add(t.Context(), anything)
	for verb, err := range map[string]error{"ADD": addErr, "DEL": d.del(t.Context(), cleared)} {
		if code(t, err) != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), `"ipam"`) ||
			!strings.Contains(err.Error(), "install") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// A pod that must not be served is not handed to the IPAM plugin.
func TestIPAMPluginWaitsForThePod(t *testing.T) {
	d, _ := ipamScript(t, `touch executed; exit 1`)
	refused := errors.New("refused")
	if _, err := d.add(t.Context(), func() (request, error) { return request{}, refused }); err != refused {
		t.Errorf("ADD: %v", err)
	}
	if err := d.del(t.Context(), clearance{removed: func() error { return refused }, noted: cleared.noted}); !errors.Is(err, refused) {
		t.Errorf("DEL: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.path, "verbs")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the plugin was executed: %v", err)
	}
}

func anything() (request, error) { return request{}, nil }
