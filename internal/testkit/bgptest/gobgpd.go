package bgptest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
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

// gobgpd is GoBGP's daemon in Debian's version. It writes no kernel routes.
type gobgpd struct {
	*Host
	config Config
	file   string
	log    *logtest.Buffer
	daemon *process
}

const (
	gobgpdProgram = "/usr/bin/gobgpd"
	gobgpProgram  = "/usr/bin/gobgp"
)

// gobgpdTemplate has the same timers as the other kinds. Announced prefixes are not part of its configuration.
var gobgpdTemplate = template.Must(template.New("gobgpd.conf").Parse(`
[global.config]
  as = {{.ASN}}
  router-id = "{{.V4}}"
  local-address-list = ["{{.V4}}"{{if .V6.IsValid}}, "{{.V6}}"{{end}}]
{{range .Sessions}}
[[neighbors]]
  [neighbors.config]
    neighbor-address = "{{.Peer}}"
    peer-as = {{.ASN}}
    auth-password = "{{.Password}}"
  [neighbors.transport.config]
    passive-mode = {{.Passive}}
    local-address = "{{$.From .Peer}}"
    {{if .Port}}remote-port = {{.Port}}{{end}}
  [neighbors.timers.config]
    connect-retry = 5
    idle-hold-time-after-reset = 5
    {{if .HoldTime}}hold-time = {{.HoldTime.Seconds}}{{end}}
  [neighbors.graceful-restart.config]
    enabled = true
    restart-time = {{$.Seconds}}
  {{if .TTLSecurity}}
  [neighbors.ttl-security.config]
    enabled = true
    ttl-min = {{$.Least .TTLSecurity}}
  {{else if ne .ASN $.ASN}}
  [neighbors.ebgp-multihop.config]
    enabled = true
    multihop-ttl = 255
  {{end}}
  {{if .Client}}
  [neighbors.route-reflector.config]
    route-reflector-client = true
    route-reflector-cluster-id = "{{$.ClusterID}}"
  {{end}}
  [[neighbors.afi-safis]]
    [neighbors.afi-safis.config]
      afi-safi-name = "{{if .Peer.Is4}}ipv4{{else}}ipv6{{end}}-unicast"
    [neighbors.afi-safis.mp-graceful-restart.config]
      enabled = true
{{end}}`))

type gobgpdValues struct {
	Config
	*Host
	Seconds int
}

// From returns the local address of a session.
func (v gobgpdValues) From(peer netip.Addr) netip.Addr { return v.from(peer) }

// Least returns the minimum TTL of packets from a peer that is this number of hops away.
func (v gobgpdValues) Least(hops int) int { return 256 - hops }

func (h *Host) gobgpd(config Config) *gobgpd {
	h.T.Helper()
	g := &gobgpd{Host: h, config: config, file: filepath.Join(h.T.TempDir(), "gobgpd.conf"), log: &logtest.Buffer{}}
	h.T.Cleanup(func() {
		if h.T.Failed() {
			h.T.Logf("log of gobgpd on %s:\n%s", h.V4, g.log.Tail())
		}
	})
	if _, err := os.Stat(gobgpdProgram); err != nil {
		h.T.Fatalf("gobgpd is missing: %v: make deps", err)
	}
	g.configure()
	g.start()
	return g
}

func (g *gobgpd) configure() {
	g.T.Helper()
	var text strings.Builder
	if g.config.Text != "" {
		text.WriteString(g.config.Text)
	} else if err := gobgpdTemplate.Execute(&text, gobgpdValues{g.config, g.Host, g.seconds()}); err != nil {
		g.T.Fatal(err)
	}
	// Replaced by a rename: the daemon may still be about to read the file after an earlier signal.
	next := g.file + ".next"
	errtest.Must(g.T, os.WriteFile(next, []byte(text.String()), 0o600))
	errtest.Must(g.T, os.Rename(next, g.file))
}

func (g *gobgpd) seconds() int {
	if g.config.RestartTime == 0 {
		return 120
	}
	return int(g.config.RestartTime / time.Second)
}

// start starts the daemon, with more flags if there are any, and announces the prefixes.
func (g *gobgpd) start(extra ...string) {
	g.T.Helper()
	g.daemon = g.launch(g.log, append([]string{gobgpdProgram, "-f", g.file, "-t", "toml", "--api-hosts", "127.0.0.1:50051", "--pprof-disable"}, extra...)...)
	Eventually(g.T, func() error {
		if err := g.daemon.gone(); err == nil {
			g.T.Fatalf("gobgpd on %s has ended:\n%s", g.V4, g.log.Tail())
		}
		_, err := g.try("global")
		return err
	})
	g.announce("add", g.config.Announce)
}

// try runs a command of the gobgp client on the host.
func (g *gobgpd) try(args ...string) (out string, err error) {
	err = g.Do(func() error {
		text, err := exec.Command(gobgpProgram, args...).CombinedOutput()
		out = string(text)
		if err != nil {
			return fmt.Errorf("gobgp %s: %w: %s", strings.Join(args, " "), err, text)
		}
		return nil
	})
	return out, err
}

func (g *gobgpd) ask(args ...string) string {
	g.T.Helper()
	out, err := g.try(args...)
	errtest.Must(g.T, err)
	return out
}

func (g *gobgpd) decode(into any, args ...string) {
	g.T.Helper()
	out := g.ask(append(args, "-j")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		g.T.Fatalf("gobgp %s on %s: %v:\n%s", strings.Join(args, " "), g.V4, err, out)
	}
}

func (g *gobgpd) On() *Host { return g.Host }

func (g *gobgpd) Session(peer netip.Addr) string {
	g.T.Helper()
	return g.ask("neighbor", peer.String())
}

// gobgpdStates are the session states of RFC 4271 by the numbers of GoBGP's API.
var gobgpdStates = []string{"Unknown", "Idle", "Connect", "Active", "OpenSent", "OpenConfirm", "Established"}

func (g *gobgpd) State(peer netip.Addr) string {
	g.T.Helper()
	var neighbor struct {
		State struct {
			SessionState int `json:"session_state"`
		}
	}
	g.decode(&neighbor, "neighbor", peer.String())
	return gobgpdStates[neighbor.State.SessionState]
}

// gobgpdPath is a path as the gobgp client prints it.
type gobgpdPath struct {
	NLRI struct{ Prefix netip.Prefix }
	// Attrs are path attributes, with the type code and a value whose form depends on the type.
	Attrs []gobgpdAttribute
}

type gobgpdAttribute struct {
	Type        int
	Value       json.RawMessage
	NextHop     string
	ASPaths     []struct{ ASNs []uint32 } `json:"as_paths"`
	Communities []uint32
}

func (g *gobgpd) Learned(peer netip.Addr) []Route {
	g.T.Helper()
	var table map[string][]gobgpdPath
	family := "ipv4"
	if peer.Is6() {
		family = "ipv6"
	}
	out := g.ask("neighbor", peer.String(), "adj-in", "-a", family, "-j")
	if err := json.Unmarshal([]byte(out), &table); err != nil {
		if strings.Contains(out, "Network not in table") || strings.TrimSpace(out) == "{}" {
			return nil
		}
		g.T.Fatalf("paths of %s on %s: %v:\n%s", peer, g.V4, err, out)
	}
	var routes []Route
	for _, paths := range table {
		for _, p := range paths {
			routes = append(routes, p.route())
		}
	}
	return sortRoutes(routes)
}

// route converts a path to the common form.
func (p gobgpdPath) route() Route {
	r := Route{Prefix: p.NLRI.Prefix}
	const origin, asPath, nextHop, localPref, standard, mpReach, threeParts = 1, 2, 3, 5, 8, 14, 32
	for _, a := range p.Attrs {
		switch a.Type {
		case origin:
			r.Origin = []string{"IGP", "EGP", "Incomplete"}[min(2, len(a.Value)-1, int(a.Value[0]-'0'))]
		case asPath:
			r.ASPath = a.asPath()
		case nextHop, mpReach:
			r.NextHop, _ = netip.ParseAddr(a.NextHop)
		case localPref:
			r.LocalPref = string(a.Value)
		case standard:
			for _, c := range a.Communities {
				r.Communities = communities(r.Communities, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
			}
		case threeParts:
			r.Communities = communities(r.Communities, a.large())
		}
	}
	return r
}

func (a gobgpdAttribute) asPath() string {
	var all []string
	for _, segment := range a.ASPaths {
		for _, as := range segment.ASNs {
			all = append(all, strconv.FormatUint(uint64(as), 10))
		}
	}
	return strings.Join(all, " ")
}

func (a gobgpdAttribute) large() string {
	var values []struct{ ASN, LocalData1, LocalData2 uint32 }
	if json.Unmarshal(a.Value, &values) != nil {
		return string(a.Value)
	}
	var all []string
	for _, v := range values {
		all = append(all, fmt.Sprintf("%d:%d:%d", v.ASN, v.LocalData1, v.LocalData2))
	}
	return strings.Join(all, " ")
}

func (g *gobgpd) SetPassword(peer netip.Addr, password string) {
	g.T.Helper()
	g.config.Sessions = slices.Clone(g.config.Sessions)
	for i := range g.config.Sessions {
		if g.config.Sessions[i].Peer == peer {
			g.config.Sessions[i].Password = password
		}
	}
	g.configure()
	// Of two signals in short succession it may handle only the first.
	Eventually(g.T, func() error {
		g.daemon.signal(syscall.SIGHUP)
		time.Sleep(200 * time.Millisecond)
		var neighbor struct {
			Conf struct {
				AuthPassword string `json:"auth_password"`
			}
		}
		g.decode(&neighbor, "neighbor", peer.String())
		if neighbor.Conf.AuthPassword != password {
			return fmt.Errorf("gobgpd on %s has not taken the new password for %s", g.V4, peer)
		}
		return nil
	})
}

func (g *gobgpd) announce(word string, prefixes []netip.Prefix) {
	g.T.Helper()
	for _, p := range prefixes {
		family, hop := "ipv4", g.V4
		if p.Addr().Is6() {
			family, hop = "ipv6", g.V6
		}
		args := []string{"global", "rib", word, p.String(), "-a", family}
		if word == "add" {
			args = append(args, "nexthop", hop.String(), "origin", "igp")
			args = append(args, g.communityArgs()...)
		}
		g.ask(args...)
	}
}

// communityArgs returns the communities as arguments of the client.
func (g *gobgpd) communityArgs() []string {
	var standard, threeParts []string
	for _, c := range g.config.Communities {
		if large(c) {
			threeParts = append(threeParts, c)
		} else {
			standard = append(standard, c)
		}
	}
	var words []string
	if len(standard) > 0 {
		words = append(words, "community", strings.Join(standard, ","))
	}
	if len(threeParts) > 0 {
		words = append(words, "large-community", strings.Join(threeParts, ","))
	}
	return words
}

func (g *gobgpd) Announce(prefixes ...netip.Prefix) {
	g.T.Helper()
	g.announce("del", g.config.Announce)
	g.announce("add", prefixes)
	g.config.Announce = prefixes
}

func (g *gobgpd) Shutdown(peer netip.Addr, message string) {
	g.T.Helper()
	g.ask("neighbor", peer.String(), "shutdown", "--reason", message)
}

func (g *gobgpd) Reset(peer netip.Addr) {
	g.T.Helper()
	g.ask("neighbor", peer.String(), "reset")
}

func (g *gobgpd) Signal(s syscall.Signal) {
	g.T.Helper()
	g.daemon.signalled(s)
}

// Restart passes the flag that sets the restart state bit in the graceful restart capability.
func (g *gobgpd) Restart(announce ...netip.Prefix) {
	g.T.Helper()
	if len(announce) > 0 {
		g.config.Announce = announce
	}
	g.configure()
	g.start("-r")
}
