package podnet_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// dump describes a namespace in the form of the golden files.
func dump(t *testing.T, ns *netnstest.NS) string {
	t.Helper()
	var b strings.Builder
	for _, cmd := range []string{"-d addr", "route show table all", "-6 route show table all", "rule"} {
		title := strings.ReplaceAll(cmd, " show", "")
		fmt.Fprintf(&b, "# ip %s\n%s", title, ns.Run(t, "ip", strings.Fields(cmd)...))
	}
	return b.String()
}

// golden reads a file of testdata without its neighbour table, which depends on the traffic of the moment.
func golden(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	errtest.Must(t, err)
	text, _, _ := strings.Cut(string(b), "# ip neigh\n")
	return text
}

var volatile = []struct {
	find *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`(?m)^\d+: `), "N: "},
	{regexp.MustCompile(`@if\d+`), "@ifN"},
	{regexp.MustCompile(`link-netns(id)? \S+`), "link-netns NS"},
	{regexp.MustCompile(`link/ether (\S+)`), "link/ether MAC"},
	{regexp.MustCompile(`fe80::[0-9a-f:]+/64 scope`), "LL/64 scope"},
	// Link-local addresses are tentative at first; their local routes appear when they no longer are.
	{regexp.MustCompile(` tentative| proto kernel_ll`), ""},
	{regexp.MustCompile(`(?m)^(local|anycast) fe80:\S* .*\n`), ""},
	// Offload limits differ between kernels, and newer ip commands print more of them.
	{regexp.MustCompile(`(?m) gso_max_size .*$`), ""},
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
}

// fallback matches devices that kernels with tunnels built in put into every namespace.
var fallback = regexp.MustCompile(`(?m)^\d+: (tunl0|sit0|ip6tnl0|gre0|gretap0|erspan0|ip_vti0|ip6_vti0|ip6gre0)@.*\n([ \t].*\n)*`)

// normalize removes what differs from run to run. The node's fixed MAC and link-local address stay.
func normalize(text string) string {
	text = fallback.ReplaceAllString(text, "")
	text = strings.ReplaceAll(text, "link/ether ee:ee:ee:ee:ee:ee", "link fixed")
	text = strings.ReplaceAll(text, "fe80::ecee:eeff:feee:eeee", "LL-fixed")
	for _, v := range volatile {
		text = v.find.ReplaceAllString(text, v.with)
	}
	return text
}

// wantDump waits for the namespace to look as in the file: the kernel reports carrier and makes link-local addresses up
// to a second after a link came up.
func wantDump(t *testing.T, ns *netnstest.NS, file string) {
	t.Helper()
	want := normalize(golden(t, file))
	waittest.For(t, 5*time.Second, func() error {
		if diff := cmp.Diff(want, normalize(dump(t, ns))); diff != "" {
			return fmt.Errorf("differs from what Calico left in %s (-Calico +here):\n%s", file, diff)
		}
		return nil
	})
}

// parameters reads all of the namespace's /proc/sys/net, with dotted keys as in the golden files. Statistics and
// write-only parameters are left out.
func parameters(t *testing.T, ns *netnstest.NS) map[string]string {
	t.Helper()
	values := map[string]string{}
	root := string(sysctl.DefaultRoot)
	ns.Within(t, func() error {
		return filepath.WalkDir(filepath.Join(root, "net"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			key := strings.ReplaceAll(strings.TrimPrefix(path, root+"/"), "/", ".")
			if b, err := os.ReadFile(path); err == nil && !strings.HasSuffix(key, "_count") {
				values[key] = strings.TrimSpace(string(b))
			}
			return nil
		})
	})
	return values
}

// changes returns the former parameters that changed, and the new link's that differ from the defaults, in the form of
// the golden files.
func changes(before, after map[string]string, link string) string {
	var changed, special []string
	for key, value := range after {
		if old, there := before[key]; there {
			if old != value {
				changed = append(changed, key+" = "+value)
			}
			continue
		}
		like := ".default."
		if strings.Contains(key, ".neigh.") {
			like = ".lo." // namespaces but the first don't show neigh.default
		}
		if base := strings.Replace(key, "."+link+".", like, 1); base != key && after[base] != value {
			special = append(special, key+" = "+value)
		}
	}
	return strings.Join(sorted(changed), "\n") + "\n--\n" + strings.Join(sorted(special), "\n")
}

// goldenChanges reads such a file; the second half of each line ("default 0") is a comment.
func goldenChanges(t *testing.T, name string) string {
	t.Helper()
	_, rest, _ := strings.Cut(golden(t, name), "\n")
	changed, special, ok := strings.Cut(rest, "# keys of the new interface that differ from the same key under \"default\"\n")
	if !ok {
		t.Fatalf("testdata/%s is not of the form expected", name)
	}
	lines := func(text string) string {
		var out []string
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, " (default")
			out = append(out, strings.TrimSpace(line))
		}
		return strings.Join(sorted(out), "\n")
	}
	// Unlike Calico's plugin, ours filters sources of ARP itself, and keeps pods off the node's 127.0.0.0/8: see
	// hostSettings.
	special = strings.ReplaceAll(special, ".route_localnet = 1", ".rp_filter = 1")
	return lines(changed) + "\n--\n" + lines(special)
}
