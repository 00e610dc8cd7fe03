package wire

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error codes of RFC 4271 section 4.5 and RFC 7313.
const (
	HeaderError       uint8 = 1
	OpenError         uint8 = 2
	UpdateError       uint8 = 3
	HoldTimerExpired  uint8 = 4
	StateError        uint8 = 5
	Cease             uint8 = 6
	RouteRefreshError uint8 = 7
)

// Subcodes of Cease, RFC 4486, RFC 8538 and RFC 9384.
const (
	MaxPrefixesReached uint8 = 1
	AdminShutdown      uint8 = 2
	PeerDeconfigured   uint8 = 3
	AdminReset         uint8 = 4
	ConnectionRejected uint8 = 5
	Collision          uint8 = 7
	HardReset          uint8 = 9
	BFDDown            uint8 = 10
)

// Notification is a NOTIFICATION message: an error code, its subcode, and data that depends on them.
type Notification struct {
	Code, Subcode uint8
	Data          []byte
	// Reason describes the error, if it adds to the code's name.
	Reason string
}

// Error implements error.
func (n *Notification) Error() string {
	if n.Reason != "" {
		return n.Reason
	}
	return n.Words()
}

// Collides reports whether n ends one of two crossing connections (RFC 4271 section 6.8).
func (n *Notification) Collides() bool { return n.Code == Cease && n.Subcode == Collision }

// Bytes returns the message. Data that does not fit is cut.
func (n *Notification) Bytes() []byte {
	data := n.Data[:min(len(n.Data), MaxLen-headerLen-2)]
	return end(append(append(begin(Notify), n.Code, n.Subcode), data...))
}

// ParseNotification reads a whole NOTIFICATION message.
func ParseNotification(message []byte) *Notification {
	b := body(message)
	return &Notification{Code: b[0], Subcode: b[1], Data: append([]byte(nil), b[2:]...)}
}

var codes = map[uint8]string{
	HeaderError: "Message Header Error", OpenError: "OPEN Message Error", UpdateError: "UPDATE Message Error",
	HoldTimerExpired: "Hold Timer Expired", StateError: "Finite State Machine Error", Cease: "Cease",
	RouteRefreshError: "ROUTE-REFRESH Message Error",
}

var subcodes = map[[2]uint8]string{
	{HeaderError, 1}: "Connection Not Synchronized", {HeaderError, 2}: "Bad Message Length", {HeaderError, 3}: "Bad Message Type",
	{OpenError, 1}: "Unsupported Version Number", {OpenError, 2}: "Bad Peer AS", {OpenError, 3}: "Bad BGP Identifier",
	{OpenError, 4}: "Unsupported Optional Parameter", {OpenError, 5}: "Authentication Failure",
	{OpenError, 6}: "Unacceptable Hold Time", {OpenError, 7}: "Unsupported Capability", {OpenError, 11}: "Role Mismatch",
	{UpdateError, 1}: "Malformed Attribute List", {UpdateError, 2}: "Unrecognized Well-known Attribute",
	{UpdateError, 3}: "Missing Well-known Attribute", {UpdateError, 4}: "Attribute Flags Error",
	{UpdateError, 5}: "Attribute Length Error", {UpdateError, 6}: "Invalid ORIGIN Attribute",
	{UpdateError, 8}: "Invalid NEXT_HOP Attribute", {UpdateError, 9}: "Optional Attribute Error",
	{UpdateError, 10}: "Invalid Network Field", {UpdateError, 11}: "Malformed AS_PATH",
	{StateError, 1}: "Unexpected Message in OpenSent", {StateError, 2}: "Unexpected Message in OpenConfirm",
	{StateError, 3}:             "Unexpected Message in Established",
	{Cease, MaxPrefixesReached}: "Maximum Number of Prefixes Reached", {Cease, AdminShutdown}: "Administrative Shutdown",
	{Cease, PeerDeconfigured}: "Peer De-configured", {Cease, AdminReset}: "Administrative Reset",
	{Cease, ConnectionRejected}: "Connection Rejected", {Cease, 6}: "Other Configuration Change",
	{Cease, Collision}: "Connection Collision Resolution", {Cease, 8}: "Out of Resources", {Cease, HardReset}: "Hard Reset",
	{Cease, BFDDown}: "BFD Down", {RouteRefreshError, 1}: "Invalid Message Length",
}

// Words returns the error's name in IANA's registry, with the peer's shutdown communication, if any (RFC 9003).
func (n *Notification) Words() string {
	name, ok := codes[n.Code]
	if !ok {
		name = fmt.Sprintf("Error %d", n.Code)
	}
	if sub, ok := subcodes[[2]uint8{n.Code, n.Subcode}]; ok {
		name += "/" + sub
	} else if n.Subcode != 0 {
		name += fmt.Sprintf("/%d", n.Subcode)
	}
	if n.Code == Cease && n.Subcode == HardReset && len(n.Data) >= 2 {
		inner := Notification{Code: n.Data[0], Subcode: n.Data[1], Data: n.Data[2:]}
		if inner.Code != Cease || inner.Subcode != HardReset {
			return name + " for " + inner.Words()
		}
	}
	if text := n.communication(); text != "" {
		name += ": " + text
	}
	return name
}

// communication returns the text of an administrative Cease. It comes from the peer: characters that could harm a
// terminal or a log are left out.
func (n *Notification) communication() string {
	if n.Code != Cease || (n.Subcode != AdminShutdown && n.Subcode != AdminReset) || len(n.Data) < 2 {
		return ""
	}
	text := n.Data[1:]
	text = text[:min(len(text), int(n.Data[0]))]
	if !utf8.Valid(text) {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, string(text))
}
