package bgptest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// frr is FRR's bgpd with its zebra, which writes the kernel's routes.
type frr struct {
	*Host
	config Config
	dir    string
	log    *logtest.Buffer
	zebra  *process
	bgpd   *process
	bfdd   *process // nil: no session has BFD
}

const frrPrograms = "/usr/lib/frr"

// frrTemplate has the same timers as the other kinds. By default FRR requires policies on eBGP sessions, and kernel
// routes for announced networks; both are turned off.
var frrTemplate = template.Must(template.New("frr.conf").Parse(`
log stdout informational
{{if .Communities -}}
route-map announced permit 10
 {{- with .Standard}}
 set community {{.}}
 {{- end}}
 {{- with .Large}}
 set large-community {{.}}
 {{- end}}
!
{{end -}}
router bgp {{.ASN}}
 {{- if .ClusterID.IsValid}}
 bgp cluster-id {{.ClusterID}}
 {{- end}}
 bgp bestpath as-path multipath-relax
 bgp router-id {{.V4}}
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 bgp graceful-restart
 bgp graceful-restart preserve-fw-state
 {{- if .Seconds}}
 bgp graceful-restart restart-time {{.Seconds}}
 {{- end}}
{{- range .Sessions}}
 neighbor {{.Peer}} remote-as {{.ASN}}
 {{- if .TTLSecurity}}
 neighbor {{.Peer}} ttl-security hops {{.TTLSecurity}}
 {{- else if ne .ASN $.ASN}}
 neighbor {{.Peer}} ebgp-multihop
 {{- end}}
 neighbor {{.Peer}} update-source {{$.From .Peer}}
 neighbor {{.Peer}} timers connect 5
 {{- if .HoldTime}}
 neighbor {{.Peer}} timers 1 {{.HoldTime.Seconds}}
 {{- end}}
 {{- if .Port}}
 neighbor {{.Peer}} port {{.Port}}
 {{- end}}
 {{- if .BFD}}
 neighbor {{.Peer}} bfd profile all
  {{- if .BFDGraceful}}
 neighbor {{.Peer}} bfd check-control-plane-failure
  {{- end}}
 {{- end}}
 {{- if .Passive}}
 neighbor {{.Peer}} passive
 {{- end}}
 {{- if .Password}}
 neighbor {{.Peer}} password {{.Password}}
 {{- end}}
{{- end}}
{{- range $family, $v4 := .Families}}
 address-family {{$family}} unicast
  maximum-paths 16
  maximum-paths ibgp 16
 {{- range $.Announce}}{{if eq .Addr.Is4 $v4}}
  network {{.}}{{if $.Communities}} route-map announced{{end}}
 {{- end}}{{end}}
 {{- range $.Sessions}}{{if eq .Peer.Is4 $v4}}
  neighbor {{.Peer}} activate
  neighbor {{.Peer}} addpath-tx-all-paths
  {{- if .Client}}
  neighbor {{.Peer}} route-reflector-client
  {{- end}}
  {{- if .NextHopSelf}}
  neighbor {{.Peer}} next-hop-self
  {{- end}}
 {{- end}}{{end}}
 exit-address-family
{{- end}}
`))

type frrValues struct {
	Config
	*Host
	Seconds  int
	Families map[string]bool // true for IPv4
}

// Standard returns the communities of RFC 1997.
func (v frrValues) Standard() string { return v.which(false) }

// Large returns the large communities of RFC 8092.
func (v frrValues) Large() string { return v.which(true) }

func (v frrValues) which(three bool) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(v.Communities), func(c string) bool { return large(c) != three }), " ")
}

// From returns the local address of a session.
func (v frrValues) From(peer netip.Addr) netip.Addr { return v.from(peer) }

func (h *Host) frr(config Config) *frr {
	h.T.Helper()
	f := &frr{Host: h, config: config, log: &logtest.Buffer{}}
	h.T.Cleanup(func() {
		if h.T.Failed() {
			h.T.Logf("log of FRR on %s:\n%s", h.V4, f.log.Tail())
		}
	})
	f.makeDir()
	f.configure()
	f.zebra = f.start("zebra")
	Eventually(h.T, func() error { _, err := os.Stat(f.file("zserv.api")); return err })
	if s := config.bfd(); s != nil || strings.Contains(config.Text, " bfd ") {
		profile := ""
		if s != nil {
			ms := s.BFD.Milliseconds()
			profile = fmt.Sprintf("bfd\n profile all\n  receive-interval %d\n  transmit-interval %d\n  detect-multiplier 3\n", ms, ms)
		}
		f.write("bfdd.conf", profile)
		f.startBFD()
	}
	f.bgpd = f.start("bgpd")
	f.ready()
	return f
}

func (f *frr) startBFD() { f.bfdd = f.start("bfdd", "--bfdctl", f.file("bfdd.sock")) }

// makeDir creates the directory that FRR's programs share, owned by the user that they switch to.
func (f *frr) makeDir() {
	f.T.Helper()
	if _, err := os.Stat(frrPrograms + "/bgpd"); err != nil {
		f.T.Fatalf("FRR is missing: %v: make deps", err)
	}
	account, err := user.Lookup("frr")
	if err != nil {
		f.T.Fatalf("FRR is not installed as by Debian's package: %v: make deps", err)
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	// Not below the test's own directory, which that user cannot read.
	if f.dir, err = os.MkdirTemp("", "bgptest-frr-"); err != nil {
		f.T.Fatal(err)
	}
	f.T.Cleanup(func() { _ = os.RemoveAll(f.dir) })
	errtest.Must(f.T, os.Chown(f.dir, uid, gid))
}

func (f *frr) file(name string) string { return filepath.Join(f.dir, name) }

func (f *frr) configure() {
	f.T.Helper()
	if f.config.Text != "" {
		f.write("bgpd.conf", f.config.Text)
		f.write("zebra.conf", "log stdout informational\n")
		return
	}
	var text strings.Builder
	err := frrTemplate.Execute(&text, frrValues{
		Config: f.config, Host: f.Host, Seconds: int(f.config.RestartTime / time.Second),
		Families: map[string]bool{"ipv4": true, "ipv6": false},
	})
	errtest.Must(f.T, err)
	f.write("bgpd.conf", text.String())
	f.write("zebra.conf", "log stdout informational\n")
}

func (f *frr) write(name, text string) {
	f.T.Helper()
	errtest.Must(f.T, os.WriteFile(f.file(name), []byte(text), 0o644))
}

func (f *frr) start(program string, more ...string) *process {
	f.T.Helper()
	args := append([]string{
		filepath.Join(frrPrograms, program), "-f", f.file(program + ".conf"), "-i", f.file(program + ".pid"),
		"-z", f.file("zserv.api"), "--vty_socket", f.dir, "-P", "0", "--log", "stdout",
	}, more...)
	if program == "zebra" {
		// Without this flag zebra replaces an IPv6 route by a deletion and an addition, for old kernels.
		args = append(args, "--v6-rr-semantics")
	}
	return f.launch(f.log, args...)
}

func (f *frr) ready() {
	f.T.Helper()
	Eventually(f.T, func() error {
		if err := f.bgpd.gone(); err == nil {
			f.T.Fatalf("FRR on %s has ended:\n%s", f.V4, f.log.Tail())
		}
		_, err := f.try("show version")
		return err
	})
}

// try runs commands of bgpd, in order.
func (f *frr) try(commands ...string) (string, error) {
	args := []string{"--vty_socket", f.dir, "-d", "bgpd"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	out, err := exec.Command("vtysh", args...).Output()
	if err != nil {
		return "", fmt.Errorf("vtysh %q: %w: %s", commands, err, out)
	}
	return string(out), nil
}

func (f *frr) ask(commands ...string) string {
	f.T.Helper()
	out, err := f.try(commands...)
	errtest.Must(f.T, err)
	return out
}

// change runs configuration commands of the BGP instance.
func (f *frr) change(commands ...string) {
	f.T.Helper()
	f.ask(append([]string{"configure terminal", fmt.Sprintf("router bgp %d", f.config.ASN)}, commands...)...)
}

func (f *frr) On() *Host { return f.Host }

func (f *frr) Session(peer netip.Addr) string {
	f.T.Helper()
	return f.ask("show bgp neighbors " + peer.String())
}

func (f *frr) State(peer netip.Addr) string {
	f.T.Helper()
	var neighbors map[string]struct{ BGPState string }
	f.decode(&neighbors, "show bgp neighbors "+peer.String()+" json")
	return neighbors[peer.String()].BGPState
}

// decode runs a command with JSON output.
func (f *frr) decode(into any, command string) {
	f.T.Helper()
	out := f.ask(command)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		f.T.Fatalf("%s on %s: %v:\n%s", command, f.V4, err, out)
	}
}

func (f *frr) Learned(peer netip.Addr) []Route {
	f.T.Helper()
	family := "ipv4"
	if peer.Is6() {
		family = "ipv6"
	}
	type path struct {
		PeerID, Path, Origin string
		LocPrf               *int
		Nexthops             []struct {
			IP    string
			Scope string
		}
	}
	var table struct{ Routes map[netip.Prefix][]path }
	f.decode(&table, "show bgp "+family+" unicast json")
	var routes []Route
	for prefix, paths := range table.Routes {
		for _, p := range paths {
			if p.PeerID != peer.String() {
				continue
			}
			r := Route{Prefix: prefix, Origin: p.Origin, ASPath: p.Path}
			if p.LocPrf != nil {
				r.LocalPref = strconv.Itoa(*p.LocPrf)
			}
			for _, hop := range p.Nexthops {
				if hop.Scope != "link-local" {
					r.NextHop, _ = netip.ParseAddr(hop.IP)
				}
			}
			routes = append(routes, r)
		}
	}
	f.addCommunities(peer, family, routes)
	return sortRoutes(routes)
}

// tooMany is the number of routes above which they are not queried one by one.
const tooMany = 100

// addCommunities queries communities, which the table does not contain, route by route.
func (f *frr) addCommunities(peer netip.Addr, family string, routes []Route) {
	f.T.Helper()
	if len(routes) == 0 || len(routes) > tooMany {
		return
	}
	var commands []string
	for _, r := range routes {
		commands = append(commands, "show bgp "+family+" unicast "+r.Prefix.String()+" json")
	}
	type text struct{ String string }
	answers := json.NewDecoder(strings.NewReader(f.ask(commands...)))
	for i := range routes {
		var detail struct {
			Paths []struct {
				Peer                      struct{ PeerID string }
				Community, LargeCommunity text
			}
		}
		if err := answers.Decode(&detail); err != nil {
			f.T.Fatalf("%s on %s: %v", commands[i], f.V4, err)
		}
		for _, p := range detail.Paths {
			if p.Peer.PeerID == peer.String() {
				routes[i].Communities = communities(p.Community.String, p.LargeCommunity.String)
			}
		}
	}
}

func (f *frr) SetPassword(peer netip.Addr, password string) {
	f.T.Helper()
	for i := range f.config.Sessions {
		if f.config.Sessions[i].Peer == peer {
			f.config.Sessions[i].Password = password
		}
	}
	f.configure()
	f.change(fmt.Sprintf("neighbor %s password %s", peer, password))
}

func (f *frr) Announce(prefixes ...netip.Prefix) {
	f.T.Helper()
	set := func(word string, prefixes []netip.Prefix) {
		for _, p := range prefixes {
			family := "ipv4"
			if p.Addr().Is6() {
				family = "ipv6"
			}
			f.change("address-family "+family+" unicast", word+" "+p.String())
		}
	}
	set("no network", f.config.Announce)
	set("network", prefixes)
	f.config.Announce = prefixes
}

func (f *frr) Shutdown(peer netip.Addr, message string) {
	f.T.Helper()
	f.change(fmt.Sprintf("neighbor %s shutdown message %s", peer, message))
}

func (f *frr) Reset(peer netip.Addr) {
	f.T.Helper()
	f.ask("clear bgp " + peer.String())
}

// Signal signals bgpd and bfdd: zebra keeps running, and the kernel's routes stay.
func (f *frr) Signal(s syscall.Signal) {
	f.T.Helper()
	if f.bfdd != nil {
		f.bfdd.signalled(s)
	}
	f.bgpd.signalled(s)
}

func (f *frr) Restart(announce ...netip.Prefix) {
	f.T.Helper()
	if len(announce) > 0 {
		f.config.Announce = announce
	}
	f.configure()
	if f.bfdd != nil && f.bfdd.ended() {
		f.startBFD()
	}
	f.bgpd = f.start("bgpd")
	f.ready()
}
