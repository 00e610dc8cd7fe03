package bgptest

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// bird is BIRD: one process for both families from version 2 on, one process per family in version 1.6.
type bird struct {
	*Host
	kind   Kind
	config Config
	dir    string
	log    *logtest.Buffer
	parts  []*birdProcess
}

type birdProcess struct {
	*process
	b      *bird
	family string // ipv4, ipv6 or both
	names  birdNames
}

// birdNames is the programs and files of a process.
type birdNames struct {
	daemon, client      []string // with their loader, if it is not the system's
	config, socket, pid string
}

// birdTemplate follows calico-node's templates for a mesh without encapsulation: own blocks as blackholes, a multihop
// session to each node with next hops resolved by the kernel's routes, add-path offered, and Calico's timers. In BIRD 2
// routes have a family.
var birdTemplate = template.Must(template.New("bird.conf").Parse(`
router id {{.RouterID}};
log stderr all;
{{define "filter"}}filter { if source = RTS_STATIC then {
    {{- if .LocalPref}} bgp_local_pref = {{.LocalPref}};{{end}}
    {{- range .Standard}} bgp_community.add(({{.}}));{{end}}
    {{- range .Large}} bgp_large_community.add(({{.}}));{{end}} accept; }
    {{- if .Readvertise}} if source = RTS_BGP then accept;{{end}} reject; }{{end -}}
{{if .V1}}listen bgp address {{.Listen}} port 179;
{{end -}}
protocol device { scan time 2; }
protocol direct { {{range .Families}}{{.}}; {{end}}interface "*"; }
{{with .BFD}}protocol bfd {
  interface "*" {
    interval {{.BFD.Milliseconds}} ms;
    multiplier 3;
    {{if .BFDKey}}authentication {{.BFDAuth}};
    password "{{.BFDKey}}" { id 7; };{{end}}
  };
}{{end}}
{{range $f := .Channels}}
protocol static {
  {{$f.Open}}{{$f.Close}}
  {{range $f.Announce}}route {{.}} blackhole;
  {{end -}}
}
protocol kernel {
  learn;
  persist;
  scan time 2;
  graceful restart;
  merge paths on;
  {{$f.Open}} import all; export all; {{$f.Close}}
}
template bgp mesh_{{$f.Name}} {
  debug { states };
  local as {{$.ASN}};
  {{if $.RestartTime}}graceful restart time {{$.RestartTime}};{{end}}
  graceful restart;
  connect delay time 2;
  connect retry time 5;
  error wait time 5,30;
  {{$f.Open}} gateway recursive; import all; export {{template "filter" $}}; add paths on; {{$f.Close}}
}
{{range $f.Sessions}}protocol bgp {{.Name}} from mesh_{{$f.Name}} {
  neighbor {{.Peer}}{{if .Port}} port {{.Port}}{{end}} as {{.ASN}};
  source address {{.From}};
  {{if .TTLSecurity}}multihop {{.TTLSecurity}}; ttl security on;{{else if .BFD}}direct; bfd {{if .BFDGraceful}}graceful{{else}}on{{end}};
      {{else}}multihop;{{end}}
  {{if .Client}}rr client; rr cluster id {{$.ClusterID}};{{end}}
  {{if .NextHopSelf}}{{$f.Open}} next hop self; {{$f.Close}}{{end}}
  {{if .Passive}}passive on;{{end}}
  {{if .Password}}password "{{.Password}}";{{end}}
  {{if .HoldTime}}hold time {{.HoldTime.Seconds}};{{end}}
}
{{end}}{{end}}`))

// birdValues is the template's values.
type birdValues struct {
	V1               bool
	RouterID, Listen netip.Addr
	ASN              uint32
	RestartTime      int
	LocalPref        uint32
	Readvertise      bool
	Standard, Large  []string // communities in BIRD's syntax: 64512,100
	ClusterID        netip.Addr
	Families         []string // families with channels without options
	Channels         []birdChannel
	BFD              *Session
}

type birdChannel struct {
	Name, Open, Close string
	Announce          []netip.Prefix
	Sessions          []birdSession
}

type birdSession struct {
	Session
	Name string
	From netip.Addr
}

// session returns the protocol name of the session with a peer, which Config.Text may choose.
func (b *bird) session(peer netip.Addr) string {
	b.T.Helper()
	if b.config.Text == "" {
		return birdSessionName(peer)
	}
	name := ""
	for line := range strings.Lines(b.ask(peer, "show", "protocols", "all")) {
		fields := strings.Fields(line)
		if len(fields) > 1 && fields[1] == "BGP" && line[0] != ' ' {
			name = fields[0]
		}
		if len(fields) == 3 && fields[1] == "address:" && fields[0] == "Neighbor" && fields[2] == peer.String() {
			return name
		}
	}
	b.T.Fatalf("%s on %s has no session with %s", b.kind, b.V4, peer)
	return ""
}

// birdSessionName returns the protocol name that Calico uses.
func birdSessionName(peer netip.Addr) string {
	return "Mesh_" + strings.NewReplacer(".", "_", ":", "_").Replace(peer.String())
}

func (h *Host) bird(kind Kind, config Config) *bird {
	h.T.Helper()
	b := &bird{Host: h, kind: kind, config: config, dir: h.T.TempDir(), log: &logtest.Buffer{}}
	h.T.Cleanup(func() {
		if h.T.Failed() {
			h.T.Logf("log of %s on %s:\n%s", kind, h.V4, b.log.Tail())
		}
	})
	families := []string{"both"}
	switch {
	case kind == BIRD1 && h.V6.IsValid():
		families = []string{"ipv4", "ipv6"}
	case kind == BIRD1:
		families = []string{"ipv4"}
	}
	for _, family := range families {
		b.parts = append(b.parts, &birdProcess{b: b, family: family, names: b.names(family)})
	}
	for _, p := range b.parts {
		p.configure()
		p.launch()
	}
	b.ready()
	return b
}

func (b *bird) names(family string) birdNames {
	b.T.Helper()
	file := func(name string) string { return filepath.Join(b.dir, family+"."+name) }
	// The control sockets have Calico's names, by which an agent detects a running BIRD.
	socket := map[string]string{"ipv6": "bird6.ctl"}[family]
	n := birdNames{config: file("conf"), socket: filepath.Join(b.dir, cmp.Or(socket, "bird.ctl")), pid: file("pid")}
	dir, suffix := "/usr/sbin/", ""
	switch b.kind {
	case BIRD1:
		cache, err := os.UserCacheDir()
		errtest.Must(b.T, err)
		dir, suffix = filepath.Join(cache, "tortie/bird-1.6")+dir, strings.TrimPrefix(strings.TrimPrefix(family, "ipv4"), "ipv")
	case BIRD3:
		dir = "/bird3" + dir
	}
	n.daemon, n.client = []string{dir + "bird" + suffix}, []string{dir + "birdc" + suffix}
	if _, err := os.Stat(n.daemon[0]); err != nil {
		b.T.Fatalf("%s is missing: %v: make deps", b.kind, err)
	}
	if b.kind == BIRD3 {
		n.daemon, n.client = unstable("/bird", n.daemon[0]), unstable("/bird", n.client[0])
	}
	return n
}

// unstable returns the arguments that run a program of Debian's unstable release by its loader and with its libraries,
// which are in a directory.
func unstable(dir, program string, args ...string) []string {
	find := func(name string) string {
		found, _ := filepath.Glob(filepath.Join(dir, "usr/lib/*-linux-gnu", name))
		return strings.Join(append(found, "missing-"+name)[:1], "")
	}
	return append([]string{find("ld-linux-*"), "--library-path", find(""), program}, args...)
}

// configure writes the configuration file.
func (p *birdProcess) configure() {
	p.b.T.Helper()
	text := p.b.config.Text
	if text == "" {
		text = p.b.BirdText(p.b.kind, p.b.config, p.family)
	}
	errtest.Must(p.b.T, os.WriteFile(p.names.config, []byte(text), 0o600))
}

// BirdText returns the configuration of a BIRD on the host, for family ipv4, ipv6 or both, for tests that start it
// themselves.
func (h *Host) BirdText(kind Kind, config Config, family string) string {
	h.T.Helper()
	v := birdValues{V1: kind == BIRD1, RouterID: h.V4, Listen: h.V4, ASN: config.ASN, RestartTime: int(config.RestartTime / time.Second)}
	v.LocalPref, v.Readvertise, v.ClusterID, v.BFD = config.LocalPref, config.Readvertise, config.ClusterID, config.bfd()
	for _, c := range config.Communities {
		words := strings.ReplaceAll(c, ":", ",")
		if large(c) {
			v.Large = append(v.Large, words)
		} else {
			v.Standard = append(v.Standard, words)
		}
	}
	if family == "ipv6" {
		v.Listen = h.V6
	}
	for _, name := range []string{"ipv4", "ipv6"} {
		if family != name && family != "both" {
			continue
		}
		c := birdChannel{Name: name}
		if family == "both" {
			c.Open, c.Close = name+" {", "};"
			v.Families = append(v.Families, name)
		}
		for _, prefix := range config.Announce {
			if prefix.Addr().Is4() == (name == "ipv4") {
				c.Announce = append(c.Announce, prefix)
			}
		}
		for _, s := range config.Sessions {
			if s.Peer.Is4() == (name == "ipv4") {
				c.Sessions = append(c.Sessions, birdSession{Session: s, Name: birdSessionName(s.Peer), From: h.from(s.Peer)})
			}
		}
		v.Channels = append(v.Channels, c)
	}
	var text strings.Builder
	errtest.Must(h.T, birdTemplate.Execute(&text, v))
	return text.String()
}

// launch starts the process, with more flags if there are any.
func (p *birdProcess) launch(extra ...string) {
	foreground := "-f"
	if p.b.kind == BIRD1 {
		foreground = "-d" // 1.6 has no -f; in the foreground it also logs debug messages
	}
	p.process = p.b.Host.launch(p.b.log,
		slices.Concat(p.names.daemon, []string{foreground, "-c", p.names.config, "-s", p.names.socket, "-P", p.names.pid}, extra)...)
}

// ready waits until the control sockets of all processes respond.
func (b *bird) ready() {
	b.T.Helper()
	for _, p := range b.parts {
		Eventually(b.T, func() error {
			if err := p.gone(); err == nil {
				b.T.Fatalf("%s on %s has ended:\n%s", b.kind, b.V4, b.log.Tail())
			}
			_, err := p.ask("show", "status")
			return err
		})
	}
}

// ask runs a command in the process' client.
func (p *birdProcess) ask(args ...string) (string, error) {
	command := slices.Concat(p.names.client, []string{"-s", p.names.socket}, args)
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return string(out), nil
}

// ask runs a command in the client of the process that has the session with peer.
func (b *bird) ask(peer netip.Addr, args ...string) string {
	b.T.Helper()
	out, err := b.part(peer).ask(args...)
	errtest.Must(b.T, err)
	return out
}

func (b *bird) part(peer netip.Addr) *birdProcess {
	if peer.Is6() {
		return b.parts[len(b.parts)-1]
	}
	return b.parts[0]
}

func (b *bird) On() *Host { return b.Host }

func (b *bird) Session(peer netip.Addr) string {
	b.T.Helper()
	return b.ask(peer, "show", "protocols", "all", b.session(peer))
}

func (b *bird) State(peer netip.Addr) string {
	b.T.Helper()
	_, rest, _ := strings.Cut(b.Session(peer), "BGP state:")
	state, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(state)
}

func (b *bird) Learned(peer netip.Addr) []Route {
	b.T.Helper()
	return sortRoutes(birdRoutes(b.ask(peer, "show", "route", "all", "protocol", b.session(peer))))
}

// birdRoutes parses "show route all": a line that starts with the prefix, and indented lines about the path.
func birdRoutes(text string) []Route {
	var routes []Route
	for line := range strings.Lines(text) {
		first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if prefix, err := netip.ParsePrefix(first); err == nil {
			routes = append(routes, Route{Prefix: prefix})
			continue
		}
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || len(routes) == 0 {
			continue
		}
		r := &routes[len(routes)-1]
		switch value = strings.TrimSpace(value); name {
		case "BGP.next_hop", "bgp_next_hop": // the latter in BIRD 3
			first, _, _ := strings.Cut(value, " ") // a link-local next hop may follow
			r.NextHop, _ = netip.ParseAddr(first)
		case "BGP.origin", "bgp_origin":
			r.Origin = value
		case "BGP.as_path", "bgp_path":
			r.ASPath = value
		case "BGP.local_pref", "bgp_local_pref":
			r.LocalPref = value
		case "BGP.community", "BGP.large_community", "bgp_community", "bgp_large_community":
			r.Communities = communities(r.Communities, value)
		}
	}
	return routes
}

func (b *bird) SetPassword(peer netip.Addr, password string) {
	b.T.Helper()
	b.config.Sessions = slices.Clone(b.config.Sessions)
	for i := range b.config.Sessions {
		if b.config.Sessions[i].Peer == peer {
			b.config.Sessions[i].Password = password
		}
	}
	b.part(peer).reconfigure()
}

// reconfigure makes the process reload its configuration.
func (p *birdProcess) reconfigure() {
	p.b.T.Helper()
	p.configure()
	out, err := p.ask("configure")
	if err != nil || !strings.Contains(out, "Reconfigur") {
		p.b.T.Fatalf("%s refuses its new configuration: %s, %v", p.b.kind, out, err)
	}
}

func (b *bird) Announce(prefixes ...netip.Prefix) {
	b.T.Helper()
	b.config.Announce = prefixes
	for _, p := range b.parts {
		p.reconfigure()
	}
}

func (b *bird) Shutdown(peer netip.Addr, message string) {
	b.T.Helper()
	b.ask(peer, "disable", b.session(peer), `"`+message+`"`)
}

func (b *bird) Reset(peer netip.Addr) {
	b.T.Helper()
	b.ask(peer, "restart", b.session(peer))
}

func (b *bird) Signal(s syscall.Signal) {
	b.T.Helper()
	for _, p := range b.parts {
		p.signalled(s)
	}
}

// Restart passes the flag with which calico-node starts BIRD: routes of an earlier process are in the kernel.
func (b *bird) Restart(announce ...netip.Prefix) {
	b.T.Helper()
	if len(announce) > 0 {
		b.config.Announce = announce
	}
	for _, p := range b.parts {
		p.configure()
		p.launch("-R")
	}
	b.ready()
}
