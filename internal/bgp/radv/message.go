package radv

import (
	"errors"
	"net/netip"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// kind is the type of an ICMPv6 message.
type kind byte

// Kinds.
const (
	solicitationKind  kind = 133
	advertisementKind kind = 134
)

// Lengths of the messages without options.
const (
	solicitationSize  = 8
	advertisementSize = 16
)

// maxHops is the hop limit of a packet that no router has forwarded.
const maxHops = 255

// advertisement has a router lifetime of 0, so that no host takes this node for its default router, and does not set
// hosts' hop limit and timers. The kernel fills in the checksum.
var advertisement = append([]byte{byte(advertisementKind)}, make([]byte, advertisementSize-1)...)

// solicitation asks routers to advertise themselves at once.
var solicitation = append([]byte{byte(solicitationKind)}, make([]byte, solicitationSize-1)...)

// Errors of messages that must be ignored.
var (
	errKind    = errors.New("neither a router advertisement nor a router solicitation")
	errHops    = errors.New("hop limit below 255: a router has passed it on")
	errCode    = errors.New("ICMP code is not 0")
	errShort   = errors.New("message is too short")
	errOptions = errors.New("an option has length 0, or goes beyond the message")
	errSource  = errors.New("source of a router advertisement is no link-local address of one router")
)

// parse checks a message as RFC 4861 sections 6.1.1 and 6.1.2 require, except for the checksum, which the kernel has
// checked.
func parse(b []byte, hops int, source netip.Addr) (kind, error) {
	if len(b) < solicitationSize {
		return 0, errShort
	}
	k, size := kind(b[0]), solicitationSize
	switch {
	case k != advertisementKind && k != solicitationKind:
		return 0, errKind
	case hops != maxHops:
		return 0, errHops
	case b[1] != 0:
		return 0, errCode
	case k == advertisementKind:
		size = advertisementSize
		if !wire.LinkLocal(source) || source == wire.AnyRouter {
			return 0, errSource
		}
	}
	if len(b) < size {
		return 0, errShort
	}
	for options := b[size:]; len(options) > 0; {
		if len(options) < 2 || options[1] == 0 || len(options) < 8*int(options[1]) {
			return 0, errOptions
		}
		options = options[8*int(options[1]):]
	}
	return k, nil
}
