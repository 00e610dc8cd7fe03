package ipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// Cooldown is how long a released address stays out of use, and the current time. The zero Cooldown is none.
type Cooldown struct {
	Now    time.Time
	Period time.Duration
}

// cooldown returns an IPAMConfig's cooldown. Unset is none, as in Calico: its nodes before 3.33 do not know releasedAt
// and drop it with their next write of the block, which leaves the address allocated without an owner for ever.
func cooldown(cfg api.IPAMConfigSpec, now time.Time) Cooldown {
	return Cooldown{Now: now, Period: time.Duration(cfg.IPCooldownSeconds) * time.Second}
}

// cool marks addresses as released now: allocated, without an owner, until they have cooled down.
func (b *Block) cool(released []netip.Addr, now time.Time) {
	s := &b.obj.Spec
	mark := api.AllocationAttribute{ReleasedAt: now.UTC().Format(time.RFC3339)}
	s.Attributes = append(s.Attributes, mark)
	at := len(s.Attributes) - 1
	for _, a := range released {
		s.Allocations[b.ordinal(a)] = &at
	}
}

// FreeCooled frees the addresses whose cooldown is over: those that were released first are assigned first. It is
// called whenever a block is read; the result is stored with the block's next write.
func (b *Block) FreeCooled(cool Cooldown) {
	s := &b.obj.Spec
	type thawed struct {
		ordinal int
		since   time.Time
	}
	var free []thawed
	for ordinal, at := range s.Allocations {
		if at == nil || s.Attributes[*at].ReleasedAt == "" {
			continue
		}
		since, err := time.Parse(time.RFC3339, s.Attributes[*at].ReleasedAt)
		if err != nil { // ParseBlock refuses such a block
			continue
		}
		if cool.Period <= 0 || cool.Now.Sub(since) >= cool.Period {
			free = append(free, thawed{ordinal, since})
		}
	}
	if len(free) == 0 {
		return
	}
	slices.SortStableFunc(free, func(a, b thawed) int { return cmp.Or(a.since.Compare(b.since), a.ordinal-b.ordinal) })
	for _, t := range free {
		s.Allocations[t.ordinal] = nil
		s.Unallocated = append(s.Unallocated, t.ordinal)
	}
	b.dropUnusedAttributes()
}

// coolingUntil returns when an address of the block will be free again; false if it does not cool down.
func (b *Block) coolingUntil(a netip.Addr, cool Cooldown) (time.Time, bool) {
	at := b.obj.Spec.Allocations[b.ordinal(a)]
	if at == nil {
		return time.Time{}, false
	}
	since, err := time.Parse(time.RFC3339, b.obj.Spec.Attributes[*at].ReleasedAt)
	return since.Add(cool.Period), err == nil
}
