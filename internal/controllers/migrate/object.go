package migrate

import (
	"encoding/json"

	"github.com/tortie-net/tortie/internal/api"
)

// kinds are the moved kinds, in order: tiers before their policies, configuration before the objects that it
// configures, addresses last. It is the order of Calico's own migration. ClusterInformation, which has the locks, is
// not included.
var kinds = []api.Type{
	(*api.CalicoTier)(nil).ResourceType(),
	(*api.FelixConfiguration)(nil).ResourceType(),
	(*api.BGPConfiguration)(nil).ResourceType(),
	(*api.KubeControllersConfiguration)(nil).ResourceType(),
	(*api.IPPool)(nil).ResourceType(),
	(*api.IPReservation)(nil).ResourceType(),
	(*api.BGPPeer)(nil).ResourceType(),
	(*api.BGPFilter)(nil).ResourceType(),
	(*api.CalicoNetworkPolicy)(nil).ResourceType(),
	(*api.CalicoGlobalNetworkPolicy)(nil).ResourceType(),
	(*api.CalicoStagedNetworkPolicy)(nil).ResourceType(),
	(*api.CalicoStagedGlobalNetworkPolicy)(nil).ResourceType(),
	(*api.CalicoStagedKubernetesNetworkPolicy)(nil).ResourceType(),
	(*api.CalicoNetworkSet)(nil).ResourceType(),
	(*api.CalicoGlobalNetworkSet)(nil).ResourceType(),
	(*api.CalicoHostEndpoint)(nil).ResourceType(),
	(*api.IPAMConfig)(nil).ResourceType(),
	(*api.IPAMBlock)(nil).ResourceType(),
	(*api.BlockAffinity)(nil).ResourceType(),
	(*api.IPAMHandle)(nil).ResourceType(),
	(*api.CalicoNodeStatus)(nil).ResourceType(),
}

var information = (*api.ClusterInformation)(nil).ResourceType()

// object is an object of any kind. The Go types of internal/api lack fields that this project does not use, and that
// must not be lost. The status is left out: its writer writes it again (of pools see keepPools).
type object struct {
	api.Meta `json:"metadata"`
	Spec     json.RawMessage `json:"spec,omitempty"`
	of       api.Type
}

// ResourceType implements api.Resource.
func (o *object) ResourceType() api.Type {
	if o == nil {
		return api.Type{}
	}
	return o.of
}

// MarkedDeleted implements api.Deletable, for the form of the mark in both groups.
func (o *object) MarkedDeleted() bool {
	var spec struct{ Deleted api.Mark }
	return json.Unmarshal(o.Spec, &spec) == nil && bool(spec.Deleted)
}

// key identifies an object within its kind.
func (o *object) key() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// list is all objects of a kind.
type list struct {
	of api.Type
	// marked: items include objects that are marked deleted.
	marked bool
	items  []*object
}

// ItemType implements api.ResourceList.
func (l *list) ItemType() api.Type { return l.of }

// NewItem implements api.ResourceList.
func (l *list) NewItem() api.Resource { return &object{of: l.of} }

// Add implements api.ResourceList. In the source, an object that is marked deleted is left out: its deleter died
// between its two steps. In the target, it is in the way of an object of that name.
func (l *list) Add(item api.Resource) {
	if o, ok := item.(*object); ok && (l.marked || !o.MarkedDeleted()) {
		l.items = append(l.items, o)
	}
}
