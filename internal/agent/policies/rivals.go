package policies

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/takeover"
)

const (
	// lookPause is the pause between checks for another engine that enforces on the node. An agent that enforces leaves
	// the node to it only after yieldTime without a break: rules that come and go must not open the node.
	lookPause = 10 * time.Second
	yieldTime = 25 * time.Second
	// idlePause is lookPause while another engine enforces: when it goes, pods are without policy for so long.
	idlePause = 2 * time.Second
)

// Reasons why policies are not enforced, as in metrics.
const (
	reasonOff      = "off"
	reasonFelix    = "felix"
	reasonCilium   = "cilium"
	reasonAntrea   = "antrea"
	reasonStarting = "starting"
	reasonFailing  = "failing"
	// reasonIPVS: policies are enforced, but see IPVSText.
	reasonIPVS = "ipvs"
)

// Reasons lists the reasons for metrics, without reasonOff.
var Reasons = []string{reasonFelix, reasonCilium, reasonAntrea, reasonStarting, reasonFailing, reasonIPVS}

// rival is another engine that enforces on the node. The zero value means none.
type rival struct{ reason, text string }

// engines are other engines, each with its link and the type of its plugin. Both must be there. A link alone proves
// nothing: a pod with CAP_NET_ADMIN can create a link of any name in the node's namespace (RTM_NEWLINK with
// IFLA_TARGET_NETNSID, as the node has the other end of its eth0). An operator installs the plugin's configuration; one
// that is not the first, or has no link, may be a leftover.
var engines = []struct{ link, plugin, reason, name string }{
	{"cilium_host", "cilium-cni", reasonCilium, "Cilium"},
	{"antrea-gw0", "antrea", reasonAntrea, "Antrea"},
}

// findRival returns another engine that enforces. A setting that turns enforcement off counts as one.
func (w *Worker) findRival(ctx context.Context, links map[string]bool) (rival, error) {
	switch w.Mode {
	case config.PolicyAuto:
	case config.PolicyOn:
		return rival{}, nil
	default:
		return rival{reason: reasonOff}, nil
	}
	config, err := w.configured()
	if err != nil {
		return rival{}, err
	}
	for _, e := range engines {
		if links[e.link] && slices.Contains(config.Types, e.plugin) {
			return rival{e.reason, fmt.Sprintf(
				"%s enforces on this node, as its link %s and its configuration %s are there: if it does not run here any more, remove them",
				e.name, e.link, filepath.Join(w.ConfDir, config.Name))}, nil
		}
	}
	if w.FelixGoes {
		return rival{}, nil
	}
	// A pod cannot write these rules: nftables are per network namespace.
	rules, err := takeover.FelixPolicies(ctx, w.Kernel, w.Table)
	if err != nil || rules == "" {
		return rival{}, err
	}
	return rival{reasonFelix, fmt.Sprintf("Calico's Felix enforces on this node, as its rules are there (%s): if it does not run here any "+
		"more, set TORTIE_REMOVE_CALICO_RULES=true, and they go once the agent's own are in force", rules)}, nil
}

// configured returns the network configuration that the runtime uses, the first one: others may be leftovers. The zero
// File means none.
func (w *Worker) configured() (cniconf.File, error) {
	files, err := cniconf.Read(w.ConfDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(files) == 0 {
		return cniconf.File{}, nil
	}
	if err != nil {
		return cniconf.File{}, err
	}
	return files[0], nil
}

// usesIPVS reports whether kube-proxy uses IPVS: it keeps the addresses of Services on its link. A pod can create a
// link of this name in the node's namespace, and have it accept an address from a router advertisement, but no address
// with unlimited lifetime.
func (w *Worker) usesIPVS() (bool, error) {
	link, err := w.Kernel.LinkByName("kube-ipvs0")
	if netlinkx.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	addrs, err := w.Kernel.Addrs(link.Index, netlinkx.FamilyAll)
	return slices.ContainsFunc(addrs, func(a netlinkx.Addr) bool { return !a.Ending && !a.Prefix.Addr().IsLinkLocalUnicast() }), err
}

// engineLinks returns the links of other engines that exist.
func (w *Worker) engineLinks() (map[string]bool, error) {
	there := map[string]bool{}
	for _, e := range engines {
		switch _, err := w.Kernel.LinkByName(e.link); {
		case err == nil:
			there[e.link] = true
		case !netlinkx.IsNotExist(err):
			return nil, err
		}
	}
	return there, nil
}

// decision holds whether this agent enforces.
type decision struct {
	made   bool
	rival  rival     // enforces instead
	met    time.Time // since when a rival is seen, while this agent still enforces
	looked time.Time
}

// decide updates the decision, at most once per lookPause.
func (w *Worker) decide(ctx context.Context, now time.Time) error {
	d := &w.decision
	if d.made && now.Sub(d.looked) < w.lookPause() {
		return nil
	}
	ipvs, err := w.usesIPVS()
	if err != nil {
		return err
	}
	links, err := w.engineLinks()
	if err != nil {
		return err
	}
	found, err := w.findRival(ctx, links)
	if err != nil {
		return fmt.Errorf("look for another engine of policies: %w", err)
	}
	d.looked = now
	w.note(func(s *Seen) { // before anything is in force
		s.IPVS = ipvs && found == rival{}
		if s.Unproven = nil; found == (rival{}) && w.Mode == config.PolicyAuto {
			s.Unproven = slices.Sorted(maps.Keys(links))
		}
	})
	switch enforcing := d.made && d.rival == (rival{}); {
	case found == (rival{}) || !enforcing:
		d.rival, d.met = found, time.Time{}
	case d.met.IsZero():
		d.met = now
	case now.Sub(d.met) >= yieldTime:
		d.rival, d.met = found, time.Time{}
	}
	d.made = true
	return nil
}

func (w *Worker) lookPause() time.Duration {
	switch w.decision.rival.reason {
	case "", reasonOff:
		return lookPause
	}
	return idlePause
}
