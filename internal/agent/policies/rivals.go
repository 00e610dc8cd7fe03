package policies

import (
	"context"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/takeover"
)

const (
	// lookPause is how often it is looked whether another engine enforces on the node; yieldTime is for how long it must, without a break,
	// before an agent that enforces leaves the node to it: rules that come and go must not open the node.
	lookPause = 10 * time.Second
	yieldTime = 25 * time.Second
	// idlePause is lookPause while another engine enforces: when it goes, pods are without policy for that long.
	idlePause = 2 * time.Second
)

// Reasons why policies are not enforced, as metrics have them.
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

// Reasons lists the reasons for metrics, without that of an agent that is told to enforce nothing.
var Reasons = []string{reasonFelix, reasonCilium, reasonAntrea, reasonStarting, reasonFailing, reasonIPVS}

// rival is another engine that enforces on the node. The zero value is none.
type rival struct{ reason, text string }

// engineLinks are links by which other engines are known.
var engineLinks = []struct{ link, reason, name string }{{"cilium_host", reasonCilium, "Cilium"}, {"antrea-gw0", reasonAntrea, "Antrea"}}

// findRival looks for another engine. A setting that turns enforcement off counts as one.
func (w *Worker) findRival(ctx context.Context) (rival, error) {
	switch w.Mode {
	case config.PolicyAuto:
	case config.PolicyOn:
		return rival{}, nil
	default:
		return rival{reason: reasonOff}, nil
	}
	for _, e := range engineLinks {
		there, err := w.hasLink(e.link)
		if err != nil || there {
			return rival{e.reason, fmt.Sprintf("%s enforces on this node, as its link %s is there: if it does not run here any more, remove the link (ip link delete %[2]s)", e.name, e.link)}, err
		}
	}
	if w.FelixGoes {
		return rival{}, nil
	}
	rules, err := takeover.FelixPolicies(ctx, w.Kernel, w.Table)
	if err != nil || rules == "" {
		return rival{}, err
	}
	return rival{reasonFelix, fmt.Sprintf("Calico's Felix enforces on this node, as its rules are there (%s): if it does not run here any more, "+
		"set TORTIE_REMOVE_CALICO_RULES=true, and they go once the agent's own are in force", rules)}, nil
}

func (w *Worker) hasLink(name string) (bool, error) {
	_, err := w.Kernel.LinkByName(name)
	if netlinkx.IsNotExist(err) {
		return false, nil
	}
	return err == nil, err
}

// decision is whether this agent enforces.
type decision struct {
	made   bool
	rival  rival     // that enforces instead
	met    time.Time // since when there is one, while this agent enforces all the same
	looked time.Time
}

// decide looks whether to enforce, not more often than makes sense.
func (w *Worker) decide(ctx context.Context, now time.Time) error {
	d := &w.decision
	if d.made && now.Sub(d.looked) < w.lookPause() {
		return nil
	}
	ipvs, err := w.hasLink("kube-ipvs0")
	if err != nil {
		return err
	}
	found, err := w.findRival(ctx)
	if err != nil {
		return fmt.Errorf("look for another engine of policies: %w", err)
	}
	d.looked = now
	w.note(func(s *Seen) { s.IPVS = ipvs && found == rival{} }) // before anything is in force
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
