package wire

import (
	"net/netip"
)

// Attributes are what an UPDATE says of the prefixes that it announces. They are parts of the message: nobody keeps them.
type Attributes struct {
	NextHop     netip.Addr
	Path        ASPath
	Communities Communities
	// LocalPref counts if HasLocalPref; so does MED.
	LocalPref, MED       uint32
	HasLocalPref, HasMED bool
	Origin               uint8
}

// Change is what becomes of one announced prefix. The zero value leaves it as it is.
type Change struct {
	// Withdraw announces it no longer; the rest does not count then.
	Withdraw bool
	// SetLocalPref makes LocalPref its LOCAL_PREF.
	SetLocalPref bool
	LocalPref    uint32
	// NextHop, if it is valid, is of the prefix' family.
	NextHop netip.Addr
	// Prepend are AS numbers that the path then begins with, Add communities that it has, too.
	Prepend []uint32
	Add     []Community
}

// Editor rewrites the UPDATEs of one direction of a session. It is used by one goroutine.
type Editor struct {
	Family Family
	// OwnAS is how many AS numbers at the head of each AS_PATH the speaker has put there for this session, 1 for what it
	// sends to another AS: Attributes does not show them, and Prepend puts numbers behind them.
	OwnAS int
	// TooLong counts prefixes that were withdrawn because they do not fit into a message any more.
	TooLong int
}

// Edit returns the messages that take the place of a whole UPDATE that is valid and has AS numbers of four octets, as
// Session.Check passes it or as the speaker behind sends it. decide is asked once for each prefix that it announces; the
// attributes are the same for all. Withdrawals, and the end of the table, stay. If nothing changes the message is returned
// as it came. The messages are valid until the next call. An error means that message is no such UPDATE.
func (e *Editor) Edit(message []byte, decide func(netip.Prefix, *Attributes) Change) ([][]byte, error) {
	return [][]byte{message}, nil // TODO(policy): being written
}
