package audit

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Grade is the severity of a finding.
type Grade int

// The grades, in ascending order of severity.
const (
	// Note: usual in a working cluster, if it does not last.
	Note Grade = iota
	// Leak: something is kept without a use. It costs addresses only; the controllers free it.
	Leak
	// Danger: two pods may have or get one address, or a part of IPAM does not work.
	Danger
)

func (g Grade) String() string { return [...]string{"note", "leak", "danger"}[g] }

// MarshalText writes the grade's name.
func (g Grade) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (g *Grade) UnmarshalText(text []byte) error {
	for _, known := range []Grade{Note, Leak, Danger} {
		if string(text) == known.String() {
			*g = known
			return nil
		}
	}
	return fmt.Errorf("grade %q: must be note, leak or danger", text)
}

// Kind is the type of a finding.
type Kind string

// The kinds of findings, by the object that is wrong.
const (
	BlockDamaged      Kind = "block-damaged"
	BlockUntidy       Kind = "block-untidy"
	BlockOverlap      Kind = "block-overlap"
	BlockNoPool       Kind = "block-no-pool"
	BlockUnclaimed    Kind = "block-unclaimed"
	BlockOfDeadNode   Kind = "block-of-dead-node"
	BlockOfNobody     Kind = "block-of-nobody"
	BlockBadOwner     Kind = "block-bad-owner"
	BlockSurplus      Kind = "block-surplus"
	AddressNoHandle   Kind = "address-no-handle"
	AddressNoPod      Kind = "address-no-pod"
	AddressNoService  Kind = "address-no-service"
	AddressOtherNode  Kind = "address-other-node"
	AddressOtherPod   Kind = "address-not-its-pod"
	AddressDeadNode   Kind = "address-dead-node"
	AddressUnknown    Kind = "address-unknown"
	AddressCooling    Kind = "address-cooling"
	PodUnallocated    Kind = "pod-unallocated"
	PodOutsidePools   Kind = "pod-outside-pools"
	PodTwice          Kind = "pod-address-twice"
	PodNotHolder      Kind = "pod-not-holder"
	TunnelUnallocated Kind = "tunnel-unallocated"
	TunnelNotHolder   Kind = "tunnel-not-holder"
	TunnelUnused      Kind = "tunnel-unused"
	HandleMissing     Kind = "handle-missing"
	HandleEmpty       Kind = "handle-empty"
	HandleCount       Kind = "handle-count"
	HandleName        Kind = "handle-name"
	ClaimDamaged      Kind = "claim-damaged"
	ClaimPending      Kind = "claim-pending"
	ClaimNoBlock      Kind = "claim-no-block"
	ClaimForeign      Kind = "claim-foreign"
	ClaimTwice        Kind = "claim-twice"
	ClaimOfDeadNode   Kind = "claim-of-dead-node"
	ClaimUnlabelled   Kind = "claim-unlabelled"
	ClaimName         Kind = "claim-name"
	PoolDamaged       Kind = "pool-damaged"
	PoolOverlap       Kind = "pool-overlap"
)

// kinds has the grade and the explanation of each.
var kinds = map[Kind]struct {
	grade Grade
	text  string
}{
	BlockDamaged:      {Danger, "the block contradicts itself"},
	BlockUntidy:       {Leak, "it holds what nothing refers to"},
	BlockOverlap:      {Danger, "an address is in two blocks"},
	BlockNoPool:       {Leak, "no pool has its range"},
	BlockUnclaimed:    {Leak, "its owner has no claim of it"},
	BlockOfDeadNode:   {Leak, "its owner is gone"},
	BlockOfNobody:     {Leak, "it has no owner and no addresses in use"},
	BlockBadOwner:     {Danger, "its owner is neither a node nor virtual"},
	BlockSurplus:      {Note, "it is empty, and its node has another or cannot use it"},
	AddressNoHandle:   {Leak, "allocated, and nothing releases it"},
	AddressNoPod:      {Leak, "its pod is gone, or finished"},
	AddressNoService:  {Leak, "its Service is gone, or no LoadBalancer"},
	AddressOtherNode:  {Leak, "its pod runs on another node"},
	AddressOtherPod:   {Leak, "its pod has another address"},
	AddressDeadNode:   {Leak, "it is of a node that is gone, and of no pod"},
	AddressUnknown:    {Note, "its holder is unknown"},
	AddressCooling:    {Note, "it cools down although nothing does in this cluster"},
	PodUnallocated:    {Danger, "a pod has an address that is free in IPAM"},
	PodOutsidePools:   {Note, "a pod has an address of no pool"},
	PodTwice:          {Danger, "two pods have one address"},
	PodNotHolder:      {Danger, "a pod has an address of another holder"},
	TunnelUnallocated: {Danger, "a node's tunnel has an address that is free in IPAM"},
	TunnelNotHolder:   {Danger, "a node's tunnel has an address of another holder"},
	TunnelUnused:      {Leak, "IPAM holds an address for a tunnel that does not use it"},
	HandleMissing:     {Leak, "an address has a handle that does not exist"},
	HandleEmpty:       {Leak, "a handle holds no address"},
	HandleCount:       {Leak, "a handle's counts differ from the blocks'"},
	HandleName:        {Danger, "a handle's name is not that of its ID"},
	ClaimDamaged:      {Leak, "an affinity cannot be read"},
	ClaimPending:      {Leak, "an affinity is half made or half given up"},
	ClaimNoBlock:      {Leak, "an affinity is confirmed, and there is no block"},
	ClaimForeign:      {Danger, "an affinity names a block of another node"},
	ClaimTwice:        {Danger, "two nodes have a confirmed affinity of one block"},
	ClaimOfDeadNode:   {Leak, "its node is gone"},
	ClaimUnlabelled:   {Leak, "Calico since 3.31 does not see it"},
	ClaimName:         {Leak, "its name is not that of its node and block"},
	PoolDamaged:       {Danger, "a pool cannot be read"},
	PoolOverlap:       {Danger, "two pools overlap"},
}

// Kinds returns all kinds, the gravest first, each grade's in alphabetical order.
func Kinds() []Kind {
	return slices.SortedFunc(maps.Keys(kinds), func(a, b Kind) int {
		return cmp.Or(cmp.Compare(b.Grade(), a.Grade()), cmp.Compare(a, b))
	})
}

// Explain returns the kind's short explanation.
func (k Kind) Explain() string { return kinds[k].text }

// Grade returns the severity.
func (k Kind) Grade() Grade { return kinds[k].grade }

// Fix is the repair of a finding.
type Fix string

// The fixes. Each is safe in a running cluster: it is guarded by the revision and, for addresses, the sequence number
// that was seen, and reads the pod once more.
const (
	// ByHand: a person must decide.
	ByHand Fix = ""
	// Free frees all addresses of the handle.
	Free Fix = "free"
	// FreeAddress frees the one address, which has no handle.
	FreeAddress Fix = "free-address"
	// RemoveHandle deletes a handle that holds nothing.
	RemoveHandle Fix = "remove-handle"
	// Recount sets a handle's counts from the blocks, and creates the handle if it is missing.
	Recount Fix = "recount"
	// RemoveBlock deletes an idle block and its affinity.
	RemoveBlock Fix = "remove-block"
	// RemoveClaim deletes an affinity without a block of its node.
	RemoveClaim Fix = "remove-claim"
	// Label writes an affinity's labels.
	Label Fix = "label"
	// Claim creates or confirms the affinity of a block's owner.
	Claim Fix = "claim"
)

// Finding is one thing that is wrong.
type Finding struct {
	Kind  Kind  `json:"kind"`
	Grade Grade `json:"grade"`
	// Object is the object that is wrong, as KIND/NAME.
	Object string `json:"object"`
	// Address is the affected address; invalid if there is none in particular.
	Address netip.Addr `json:"address,omitzero"`
	// Handle is the ID of the address's handle, or the object's own ID.
	Handle string `json:"handle,omitempty"`
	// Node is the affected node.
	Node string `json:"node,omitempty"`
	// Pod is NAMESPACE/NAME of the affected pod.
	Pod string `json:"pod,omitempty"`
	// Detail explains the finding in a sentence for people.
	Detail string `json:"detail"`
	// Fix is the repair; empty if people must decide.
	Fix Fix `json:"fix,omitempty"`
	// Advice is what to do without a Fix.
	Advice string `json:"advice,omitempty"`
	// Sequence is the sequence number that guards the address.
	Sequence uint64 `json:"sequence,omitempty"`
	// Revision is the object's resourceVersion when it was read.
	Revision string `json:"revision,omitempty"`
}

// key identifies a finding in two checks.
type key struct {
	kind           Kind
	object, handle string
	address        netip.Addr
	sequence       uint64
	revision       string
}

// key leaves out the revision if the finding has an address's sequence number: blocks are written all the time.
func (f Finding) key() key {
	k := key{f.Kind, f.Object, f.Handle, f.Address, f.Sequence, f.Revision}
	if f.Sequence != 0 {
		k.revision = ""
	}
	return k
}

// Persisting returns the later findings that are among those before.
func Persisting(before, later []Finding) []Finding {
	seen := map[key]bool{}
	for _, f := range before {
		seen[f.key()] = true
	}
	return slices.DeleteFunc(slices.Clone(later), func(f Finding) bool { return !seen[f.key()] })
}

// Worst returns the gravest grade of the findings; false if there are none.
func Worst(findings []Finding) (Grade, bool) {
	worst := Note
	for _, f := range findings {
		worst = max(worst, f.Grade)
	}
	return worst, len(findings) > 0
}

// sorted orders findings: the gravest first, then by kind and object.
func sorted(findings []Finding) []Finding {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return cmp.Or(int(b.Grade-a.Grade), strings.Compare(string(a.Kind), string(b.Kind)), a.Address.Compare(b.Address),
			strings.Compare(a.Object, b.Object))
	})
	return findings
}
