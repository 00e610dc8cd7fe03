package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	bgplog "github.com/osrg/gobgp/v3/pkg/log"
)

// logger carries GoBGP's log to slog.
type logger struct {
	log        *slog.Logger
	neighbours *neighbours
}

// quiet are messages that remote hosts can repeat at will, that the relay reports more clearly, or that are about how
// this package uses GoBGP.
var quiet = map[string]bool{
	"Can't find configuration for a new passive connection": true,
	"Closed an accepted connection":                         true,
	"accepted conn is closed to avoid be blocked":           true,
	"Send operation notification":                           true,
	"received notification":                                 true,
	// A path that was refused is withdrawn, whether it was there before or not.
	"No matching path for withdraw found, may be path was not installed into table": true,
	"sent notification":              true,
	"graceful restart timer expired": true,
}

// Panic must not panic: GoBGP calls it for an impossible state, and the affected session ends by its hold timer.
func (l *logger) Panic(msg string, fields bgplog.Fields) {
	l.write(slog.LevelError, "GoBGP panic: "+msg, fields)
}

// Fatal must not exit: the agent keeps the node's routes even without BGP.
func (l *logger) Fatal(msg string, fields bgplog.Fields) {
	l.write(slog.LevelError, "GoBGP fatal: "+msg, fields)
}

func (l *logger) Error(msg string, fields bgplog.Fields) { l.write(slog.LevelError, msg, fields) }
func (l *logger) Warn(msg string, fields bgplog.Fields)  { l.write(slog.LevelWarn, msg, fields) }
func (l *logger) Info(msg string, fields bgplog.Fields)  { l.write(slog.LevelInfo, msg, fields) }
func (l *logger) Debug(msg string, fields bgplog.Fields) { l.write(slog.LevelDebug, msg, fields) }

// SetLevel does nothing: slog's handler has the level.
func (l *logger) SetLevel(bgplog.LogLevel) {}

// GetLevel keeps GoBGP from building an entry per path and peer that is dropped later, which doubles the cost of an
// UPDATE.
func (l *logger) GetLevel() bgplog.LogLevel {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		return bgplog.DebugLevel
	}
	return bgplog.InfoLevel
}

func (l *logger) write(level slog.Level, msg string, fields bgplog.Fields) {
	if quiet[msg] {
		level = slog.LevelDebug
	}
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	peer := l.peerOf(fields["Key"])
	attrs := make([]slog.Attr, 0, len(fields))
	for key, value := range fields {
		switch {
		case key == "Topic":
		case key == "Key" && peer.IsValid():
			attrs = append(attrs, slog.String("peer", peer.String()))
		default:
			// Values can be live objects of GoBGP: they are formatted here, not later in a handler.
			attrs = append(attrs, slog.String(strings.ToLower(key), fmt.Sprint(value)))
		}
	}
	l.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// peerOf returns the peer that has the alias key; invalid if there is none.
func (l *logger) peerOf(key any) netip.Addr {
	alias, _ := netip.ParseAddr(fmt.Sprint(key)) // invalid: no peer has it
	return l.neighbours.get(alias)
}
