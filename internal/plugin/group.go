package plugin

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// place returns in which API group the cluster keeps Calico's objects: as the configuration says, else the agent, else
// the cluster's ClusterInformation. To look there takes the one request that s.ready saves then; two if the group is not
// the one in which the last plugin found it.
func (s *session) place(ctx context.Context) (groups.Group, error) {
	if in, _ := groups.Parse(s.conf.CalicoAPIGroup); in != "" { // checked by netConf
		return in, nil
	}
	if s.facts != nil {
		return cmp.Or(s.facts.Group, groups.V1), nil
	}
	last := lastGroup()
	in, lock, err := s.kube.Find(ctx, last)
	if err != nil {
		return "", err
	}
	if in == "" {
		return "", errNoInformation
	}
	s.lock = &lock
	if in != last {
		if _, err := hostfile.Replace(facts.GroupFile, []byte(in), 0o644); err != nil {
			s.log.Debug("the next plugin will have to look for the API group of Calico's objects, too", "why", err)
		}
	}
	return in, nil
}

// lastGroup returns where Calico's objects were found last, groups.V1 if that is not known.
func lastGroup() groups.Group {
	text, err := hostfile.ReadFile(facts.GroupFile)
	if err != nil {
		return groups.V1
	}
	last, _ := groups.Parse(strings.TrimSpace(string(text)))
	return cmp.Or(last, groups.V1)
}

// errNoInformation: the cluster has not been set up.
var errNoInformation = fmt.Errorf("%w: there is no ClusterInformation default: tortie-node creates it at its first start", errDatastoreNotReady)
