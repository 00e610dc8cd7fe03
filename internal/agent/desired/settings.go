package desired

import (
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// settings are the cluster's settings that can be invalid by themselves. An invalid one leaves the last good one in
// force: a mistake in an object must not close every session.
type settings struct {
	password passwordSetting
	// restart is the graceful restart time sent to peers; 0 is the speaker's default.
	restart time.Duration
	// bfd is the BFD of the mesh's sessions; the zero value means none.
	bfd bfd.Config
	// tunnelMTU is the MTU of tunl0; 0 derives it from the link.
	tunnelMTU int
}

// passwordSetting is the mesh's password. While a configured password is not known there are no sessions: without it
// peers would refuse them, or worse, accept them.
type passwordSetting struct {
	text    string
	unknown bool
}

// maxRestart is the largest restart time of a graceful restart capability, 12 bits of seconds (RFC 4724).
const maxRestart = 4095 * time.Second

// next returns the settings of a state, given those in force; with first none are in force yet.
func (in settings) next(w state.Cluster, first bool) (settings, []error) {
	out := in
	var problems []error
	switch p := w.MeshPassword; {
	case p.Err != nil:
		out.password.unknown = in.password.unknown || first
		if !p.Pending {
			problems = append(problems, inBGP(fmt.Errorf("spec.nodeMeshPassword: %w: %s", p.Err, out.password.meanwhile())))
		}
	case !p.Set:
		out.password = passwordSetting{}
	default:
		out.password = passwordSetting{text: p.Text}
	}
	if restart, err := parseRestart(w.BGP.NodeMeshMaxRestartTime); err != nil {
		problems = append(problems, inBGP(err))
	} else {
		out.restart = restart
	}
	if detection, err := parseBFD(w.MeshBFD, out.password); err != nil {
		problems = append(problems,
			inBGP(fmt.Errorf("annotation %s %q: %w; the last good value stays in force", api.AnnotationBFD, cut(w.MeshBFD), err)))
	} else {
		out.bfd = detection
	}
	switch m := w.Felix.IPIPMTU; {
	case m == nil:
		out.tunnelMTU = 0
	case *m != 0 && (*m < minTunnelMTU || *m > maxTunnelMTU):
		err := fmt.Errorf("spec.ipipMTU %d: use %d to %d, or 0 to derive it from the link; the last good value stays in force", *m,
			minTunnelMTU, maxTunnelMTU)
		problems = append(problems, InObject((*api.FelixConfiguration)(nil).ResourceType(), api.Meta{Name: api.DefaultName}, err))
	default:
		out.tunnelMTU = *m
	}
	return out, problems
}

func (p passwordSetting) meanwhile() string {
	if p.unknown {
		return "without it this node has no BGP sessions"
	}
	return "sessions continue with the last known one"
}

func parseRestart(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > maxRestart {
		return 0, fmt.Errorf("spec.nodeMeshMaxRestartTime %q: use a duration from 1s to %s, such as 120s", text, maxRestart)
	}
	return d.Truncate(time.Second), nil
}

// parseBFD reads the mesh's BFD. While its key is not known there are no sessions.
func parseBFD(text string, key passwordSetting) (bfd.Config, error) {
	if text == "" || key.unknown {
		return bfd.Config{}, nil
	}
	c, err := bfd.Parse(text)
	if err != nil {
		return c, err
	}
	return c.WithKey(key.text)
}

// inBGP names the cluster's BGPConfiguration as the object of an error.
func inBGP(err error) error {
	return InObject((*api.BGPConfiguration)(nil).ResourceType(), api.Meta{Name: api.DefaultName}, err)
}
