package ipam

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
)

// Default prefix lengths of blocks: 64 addresses in both families.
const (
	defaultBlockSizeV4 = 26
	defaultBlockSizeV6 = 122
)

// Pool is a checked IPPool. With Err, only Name, Err, Reason and Why are set.
type Pool struct {
	Name       string
	CIDR       netip.Prefix
	BlockBits  int    // prefix length of the pool's blocks
	Enabled    bool   // addresses may be assigned
	Reason     string // of the condition Allocatable that the pool should have
	Why        string // why Enabled is false
	Err        error  // names the pool, the field and the value that make it useless
	Automatic  bool
	Uses       []api.AllowedUse
	Nodes      selector.Selector
	Namespaces selector.Selector
}

// ParsePools checks all stored pools, and decides for each whether addresses may be assigned from it. Nothing else
// judges a pool: its condition, the agents, the plugins, the controllers and `ipam check` use this. The results are in
// the order of the objects.
func ParsePools(objs []api.IPPool) []Pool {
	pools := make([]Pool, len(objs))
	for i := range objs {
		p, err := parsePool(&objs[i])
		if err != nil {
			p = Pool{Name: objs[i].Name, Err: fmt.Errorf("IPPool %s: %w", objs[i].Name, err)}
		}
		pools[i] = p
	}
	for i := range pools {
		pools[i].judge(&objs[i], olderOverlap(objs, pools, i))
	}
	return pools
}

// ValidPools returns the pools that have no Err.
func ValidPools(objs []api.IPPool) []Pool {
	return slices.DeleteFunc(ParsePools(objs), func(p Pool) bool { return p.Err != nil })
}

// judge decides whether addresses may be assigned. A condition that is False counts too: of two pools that overlap,
// Calico's controller may prefer another. The object's own fields are newer than a condition that repeats them.
func (p *Pool) judge(obj *api.IPPool, older *Pool) {
	p.Reason = api.PoolOK
	switch {
	case obj.DeletionTimestamp != "":
		p.Reason, p.Why = api.PoolTerminating, "it is being deleted"
	case obj.Spec.Disabled:
		p.Reason, p.Why = api.PoolDisabled, "spec.disabled is true"
	case p.Err != nil:
		p.Reason, p.Why = api.PoolInvalid, errors.Unwrap(p.Err).Error()
	case older != nil:
		p.Reason = api.PoolOverlap
		p.Why = fmt.Sprintf("%s overlaps %s of the older IPPool %s: an address could be in two blocks", p.CIDR, older.CIDR, older.Name)
	case obj.Status != nil:
		for _, c := range obj.Status.Conditions {
			if c.Type == api.Allocatable && c.Status == "False" &&
				!slices.Contains([]string{api.PoolDisabled, "Disabled", api.PoolInvalid}, c.Reason) {
				p.Why = fmt.Sprintf("its condition %s is False: %s %s", c.Type, c.Reason, c.Message)
			}
		}
	}
	p.Enabled = p.Why == ""
}

func parsePool(obj *api.IPPool) (Pool, error) {
	s := &obj.Spec
	cidr, err := netip.ParsePrefix(s.CIDR)
	if err != nil || cidr != cidr.Masked() || cidr.Addr().Is4In6() {
		return Pool{}, fmt.Errorf("spec.cidr %q is no CIDR with its host bits zero, such as 192.168.0.0/16", s.CIDR)
	}
	blockBits, err := blockBits(cidr, s.BlockSize)
	if err != nil {
		return Pool{}, err
	}
	nodes, err := selector.Parse(s.NodeSelector)
	if err != nil {
		return Pool{}, fmt.Errorf("spec.nodeSelector: %w", err)
	}
	namespaces, err := selector.Parse(s.NamespaceSelector)
	if err != nil {
		return Pool{}, fmt.Errorf("spec.namespaceSelector: %w", err)
	}
	uses := s.AllowedUses
	if len(uses) == 0 {
		uses = []api.AllowedUse{api.UseWorkload, api.UseTunnel}
	}
	return Pool{
		Name:       obj.Name,
		CIDR:       cidr,
		BlockBits:  blockBits,
		Automatic:  s.AssignmentMode != api.AssignManual,
		Uses:       uses,
		Nodes:      nodes,
		Namespaces: namespaces,
	}, nil
}

func blockBits(cidr netip.Prefix, size int) (int, error) {
	lo, hi, def := 20, 32, defaultBlockSizeV4
	if cidr.Addr().Is6() {
		lo, hi, def = 116, 128, defaultBlockSizeV6
	}
	if size == 0 {
		size = def
	}
	if size < lo || size > hi || size < cidr.Bits() {
		return 0, fmt.Errorf("spec.blockSize %d: use %d to %d, and not less than the pool's own /%d", size, lo, hi, cidr.Bits())
	}
	return size, nil
}

// Has reports whether a range lies in the pool.
func (p Pool) Has(r netip.Prefix) bool { return contains(p.CIDR, r) }

// contains reports whether all of a range lies in another.
func contains(outer, r netip.Prefix) bool {
	return outer.Bits() <= r.Bits() && outer.Contains(r.Addr())
}

// blockCount returns how many blocks the pool has, or 2^32 if it has more.
func (p Pool) blockCount() uint64 { return 1 << min(p.BlockBits-p.CIDR.Bits(), 32) }

// block returns the i-th block.
func (p Pool) block(i uint64) netip.Prefix {
	first := offset(p.CIDR.Addr(), i, p.CIDR.Addr().BitLen()-p.BlockBits)
	return netip.PrefixFrom(first, p.BlockBits)
}

// blocksAfter returns how many blocks of the pool after the i-th lie in the same range r. An IPv6 range has too many to
// try each.
func (p Pool) blocksAfter(i uint64, r netip.Prefix) uint64 {
	size := uint64(1) << min(p.BlockBits-r.Bits(), 32)
	return size - 1 - i%size
}

// usablePools returns the pools of a family that a request may use, in the order to try them. If the request names
// pools, their order is the request's and their selectors do not matter. If there are none, the error has the reason
// for each pool.
func usablePools(st *State, req *Request, v6 bool) ([]Pool, error) {
	wanted := req.PoolsV4
	if v6 {
		wanted = req.PoolsV6
	}
	candidates, err := candidatePools(st, wanted)
	if err != nil {
		return nil, err
	}
	var usable []Pool
	var reasons []string
	for _, p := range candidates {
		if p.CIDR.Addr().Is6() != v6 {
			continue
		}
		if why := unusable(p, st, req, len(wanted) > 0); why != "" {
			reasons = append(reasons, p.Name+" ("+why+")")
			continue
		}
		if len(wanted) == 0 && !st.HaveLabels && len(p.Nodes.Keys()) > 0 { // its selector was not evaluated yet
			return nil, &need{labels: true}
		}
		usable = append(usable, p)
	}
	family := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
	switch {
	case len(usable) > 0:
		return usable, nil
	case len(reasons) > 0:
		return nil, fmt.Errorf("%w: %s%s", ErrNoPool, strings.Join(reasons, ", "), st.flaws())
	case len(wanted) > 0:
		return nil, fmt.Errorf("%w: none of the IPPools that were asked for (%s) is an %s pool", ErrNoPool, strings.Join(wanted, ", "), family)
	}
	return nil, fmt.Errorf("%w: there is no %s IPPool: create one, or let kube-controllers create the default one (CALICO_IPV4POOL_CIDR)%s",
		ErrNoPool, family, st.flaws())
}

// candidatePools returns the requested pools in that order, or all if none was requested. Each requested pool must
// exist and be enabled, as in Calico: falling back to the others would hide the mistake. The error begins with Calico's
// text, which people search for.
func candidatePools(st *State, wanted []string) ([]Pool, error) {
	pools := st.Pools
	if len(wanted) == 0 {
		return pools, nil
	}
	var asked []Pool
	for _, w := range wanted {
		i := slices.IndexFunc(pools, func(p Pool) bool { return p.is(w) })
		if i < 0 {
			return nil, fmt.Errorf("%w: the given pool (%s) %s", ErrNoPool, w, cmp.Or(st.refused[w], "does not exist"+st.flaws()))
		}
		if !pools[i].Enabled {
			return nil, fmt.Errorf("%w: the given pool (%s) cannot be used: %s", ErrNoPool, w, pools[i].Why)
		}
		asked = append(asked, pools[i])
	}
	return asked, nil
}

// is reports whether a name or CIDR in a request means the pool.
func (p Pool) is(nameOrCIDR string) bool {
	return p.Name == nameOrCIDR || p.CIDR.String() == nameOrCIDR
}

// unusable returns why a request may not use a pool; empty if it may.
func unusable(p Pool, st *State, req *Request, asked bool) string {
	switch {
	case !p.Enabled:
		return p.Why
	case !slices.Contains(p.Uses, req.Use):
		return fmt.Sprintf("spec.allowedUses has no %s", req.Use)
	case asked:
		return ""
	case !p.Automatic:
		return "spec.assignmentMode is Manual"
	case (st.HaveLabels || len(p.Nodes.Keys()) == 0) && !p.Nodes.Matches(st.NodeLabels):
		return fmt.Sprintf("spec.nodeSelector %s does not select node %s", p.Nodes, req.Host)
	case !req.AnyNamespace && !p.Namespaces.Matches(req.NamespaceLabels):
		return fmt.Sprintf("spec.namespaceSelector %s does not select the pod's namespace", p.Namespaces)
	}
	return ""
}
