package plugin

import (
	"context"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

// IPAMFuncs returns the verbs of calico-ipam.
func IPAMFuncs() skel.CNIFuncs {
	return skel.CNIFuncs{
		Add: verb(calicoIPAM, "ADD", ipamAdd), Del: verb(calicoIPAM, "DEL", ipamDel), Check: verb(calicoIPAM, "CHECK", ipamCheck),
		GC: verb(calicoIPAM, "GC", ipamGC), Status: verb(calicoIPAM, "STATUS", ipamStatus),
	}
}

// ipamAdd assigns the addresses that the configuration asks for. The namespace's labels decide which pools may serve
// it.
func ipamAdd(ctx context.Context, c *call) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	if err := journal.DefaultDir.Withdraw(ctx, s.handle()); err != nil {
		return err
	}
	wanted := ask(func() (request, error) {
		namespace := api.Namespace{Meta: api.Meta{Name: s.namespace}}
		if err := s.getNamespace(ctx, &namespace); err != nil {
			return request{}, fmt.Errorf("read the pod's namespace: %w", err)
		}
		return s.configuredRequest(namespace.Labels)
	})
	assigned, err := (&inProcess{s}).add(ctx, wanted)
	if err != nil {
		return err
	}
	return types.PrintResult((&inProcess{s}).resultFor(assigned), s.conf.CNIVersion)
}

func ipamDel(ctx context.Context, c *call) error {
	s, err := c.open()
	if err != nil {
		return err
	}
	return (&inProcess{s}).del(ctx, cleared)
}
