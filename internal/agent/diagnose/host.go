package diagnose

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
)

// host looks at this machine below a root directory, which is / unless the host's file system is mounted elsewhere.
// Files of the kernel are always read below this process's /.
type host struct {
	root   string
	kernel *netlinkx.Conn
}

func (h host) path(p string) string { return filepath.Join(h.root, p) }

// look fills in the observations of the host.
func (h host) look(ctx context.Context, o *Observations) {
	o.Links, o.LinksErr = h.kernel.Links()
	o.Routes, o.RoutesErr = h.routes()
	o.Chains, o.ChainsErr = nft.New(nil).Chains(ctx)
	if o.ChainsErr == nil { // else the kernel has no nf_tables, or denies access
		o.Closings, o.ClosingsErr = nft.New(nil).Closings(ctx)
	}
	o.Space = h.space()
	o.Sysctls = readSysctls(o.Links)
	o.Kernel = h.features(o)
	o.Configs.Dir = h.path(cniconf.Dir)
	o.Configs.Files, o.Configs.Err = cniconf.Read(o.Configs.Dir)
	o.Managers = h.managers(o.Links)
}

func (h host) routes() ([]netlinkx.Route, error) {
	all, err := h.kernel.Routes(netlinkx.RouteFilter{})
	return slices.DeleteFunc(all, func(r netlinkx.Route) bool { return r.Protocol == netlinkx.ProtocolKernel }), err
}

// readSysctls reads the parameters that the checks need.
func readSysctls(links []netlinkx.Link) map[string]string {
	keys := []sysctl.Key{{"net", "ipv4", "ip_forward"}, {"net", "ipv6", "conf", "all", "forwarding"},
		{"net", "ipv4", "conf", "all", "rp_filter"}}
	for _, l := range links {
		keys = append(keys, sysctl.Key{"net", "ipv4", "conf", l.Name, "rp_filter"})
	}
	values := map[string]string{}
	for _, k := range keys {
		if v, err := sysctl.DefaultRoot.Get(k); err == nil {
			values[k.String()] = v
		}
	}
	return values
}

// features looks which features the kernel has, without loading a module.
func (h host) features(o *Observations) Kernel {
	k := Kernel{IPIP: h.module("ipip"), NFTables: Feature{Has: o.ChainsErr == nil}, MD5: md5()}
	if slices.ContainsFunc(o.Links, func(l netlinkx.Link) bool { return l.Kind == "ipip" }) {
		k.IPIP = Feature{Has: true}
	}
	if !k.NFTables.Has {
		k.NFTables = h.module("nf_tables")
		if k.NFTables.Has || k.NFTables.Err != nil {
			k.NFTables = Feature{Err: o.ChainsErr} // it is there, but access is denied
		}
	}
	return k
}

// module looks whether a module is loaded or built in, or could be loaded.
func (h host) module(name string) Feature {
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return Feature{Has: true}
	}
	var uname unix.Utsname
	if err := unix.Uname(&uname); err != nil {
		return Feature{Err: err}
	}
	dir := filepath.Join(h.root, "/lib/modules", unix.ByteSliceToString(uname.Release[:]))
	builtin, err := mentions(filepath.Join(dir, "modules.builtin"), "/"+name+".ko")
	if err != nil {
		return Feature{Err: fmt.Errorf("neither loaded, nor are the kernel's modules to be seen here: %w", err)}
	}
	loadable, err := mentions(filepath.Join(dir, "modules.dep"), "/"+name+".ko")
	if err != nil {
		return Feature{Err: err}
	}
	return Feature{Has: builtin, Loadable: loadable && !builtin}
}

// mentions reports whether a file contains a text.
func mentions(path, text string) (bool, error) {
	b, err := os.ReadFile(path)
	return strings.Contains(string(b), text), err
}

// md5 tests whether TCP connections can have passwords (RFC 2385).
func md5() Feature {
	err := relay.CheckMD5()
	if errors.Is(err, relay.ErrNoMD5) {
		return Feature{}
	}
	return Feature{Has: err == nil, Err: err}
}

// errNotTheHost means that this process sees another file system than the host's.
var errNotTheHost = errors.New("this is not the host's file system")

// managers looks for programs that configure links, by their state files about our links.
func (h host) managers(links []netlinkx.Link) Managers {
	if _, err := os.Stat(h.path("/etc/os-release")); err != nil {
		if _, err := os.Stat(h.path("/usr/lib/os-release")); err != nil {
			return Managers{Err: errNotTheHost, Sockets: managerSockets()}
		}
	}
	m := Managers{
		NetworkManager: h.manager(links, "/run/NetworkManager/devices", "managed=true"),
		Networkd:       h.manager(links, "/run/systemd/netif/links", "ADMIN_STATE=configur"), // configuring, configured
	}
	m.KeepsForeignRoutes = h.keepsForeignRoutes()
	return m
}

// managerSockets lists the UNIX sockets of NetworkManager and systemd-networkd in this network namespace: unix(7).
func managerSockets() (found []string) {
	text, err := os.ReadFile("/proc/thread-self/net/unix")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 8 {
			continue
		}
		ofManager := strings.Contains(fields[7], "/NetworkManager/") || strings.Contains(fields[7], "/systemd/netif/")
		if ofManager && !slices.Contains(found, fields[7]) {
			found = append(found, fields[7])
		}
	}
	return found
}

// manager reads a directory with a file per link, named by the link's index.
func (h host) manager(links []netlinkx.Link, dir, managed string) Manager {
	var m Manager
	if _, err := os.Stat(h.path(dir)); err != nil {
		return m
	}
	m.Running = true
	for _, l := range links {
		text, err := os.ReadFile(filepath.Join(h.path(dir), strconv.Itoa(l.Index)))
		if err == nil && strings.Contains(string(text), managed) {
			m.Manages = append(m.Manages, l.Name)
		}
	}
	return m
}

// keepsForeignRoutes reads networkd's setting; the last file with it counts.
func (h host) keepsForeignRoutes() (keeps bool) {
	files := []string{"/usr/lib/systemd/networkd.conf", "/etc/systemd/networkd.conf"}
	for _, dir := range []string{"/usr/lib/systemd/networkd.conf.d", "/run/systemd/networkd.conf.d", "/etc/systemd/networkd.conf.d"} {
		more, _ := filepath.Glob(h.path(dir + "/*.conf"))
		for _, m := range more {
			files = append(files, strings.TrimPrefix(m, strings.TrimSuffix(h.root, "/")))
		}
	}
	for _, f := range files {
		text, err := os.ReadFile(h.path(f))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			if strings.TrimSpace(key) == "ManageForeignRoutes" {
				keeps = slices.Contains([]string{"no", "false", "0", "off"}, strings.ToLower(strings.TrimSpace(value)))
			}
		}
	}
	return keeps
}
