package gc

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// form is a number that stands for one state of an object.
func form(uid, revision string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(uid + "\x00" + revision))
	return h.Sum64()
}

// mix adds an address to the form of what a holder holds, in any order. It is another one when the address was released and assigned
// again: the sequence number tells.
func mix(form uint64, a *inventory.Allocation) uint64 {
	h := fnv.New64a()
	text := a.Address.As16()
	h.Write(text[:])
	h.Write(binary.BigEndian.AppendUint64(nil, a.Sequence))
	h.Write([]byte(a.Namespace + "\x00" + a.Pod + "\x00" + a.Node))
	return form + h.Sum64() // order does not matter
}
