package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	bgplog "github.com/osrg/gobgp/v3/pkg/log"
)

// logger carries GoBGP's log to slog and reads from it why a session fails, which GoBGP tells nobody else.
type logger struct {
	log  *slog.Logger
	hist *histories
}

// quiet are entries that an unknown or eager peer repeats at will.
var quiet = map[string]bool{
	"Can't find configuration for a new passive connection": true,
	"Closed an accepted connection":                         true,
	"accepted conn is closed to avoid be blocked":           true,
}

// Panic must not panic: GoBGP means "this can't be", and the session that it happened to ends by its hold timer.
func (l *logger) Panic(msg string, fields bgplog.Fields) {
	l.write(slog.LevelError, "GoBGP panic: "+msg, fields)
}

// Fatal must not exit: the agent keeps the node's routes, whatever became of BGP.
func (l *logger) Fatal(msg string, fields bgplog.Fields) {
	l.write(slog.LevelError, "GoBGP fatal: "+msg, fields)
}

func (l *logger) Error(msg string, fields bgplog.Fields) { l.write(slog.LevelError, msg, fields) }
func (l *logger) Warn(msg string, fields bgplog.Fields)  { l.write(slog.LevelWarn, msg, fields) }
func (l *logger) Info(msg string, fields bgplog.Fields)  { l.write(slog.LevelInfo, msg, fields) }
func (l *logger) Debug(msg string, fields bgplog.Fields) { l.write(slog.LevelDebug, msg, fields) }

// SetLevel does nothing: the level is slog's handler's.
func (l *logger) SetLevel(bgplog.LogLevel) {}

// GetLevel asks for debug entries while a session that we open is down, because a refused connection is only mentioned
// there. Else it does not: GoBGP builds an entry per path and peer then, which doubles the cost of an UPDATE.
func (l *logger) GetLevel() bgplog.LogLevel {
	if l.hist.anyDialing() || l.log.Enabled(context.Background(), slog.LevelDebug) {
		return bgplog.DebugLevel
	}
	return bgplog.InfoLevel
}

func (l *logger) write(level slog.Level, msg string, fields bgplog.Fields) {
	l.learn(msg, fields)
	if quiet[msg] {
		level = slog.LevelDebug
	}
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	attrs := make([]slog.Attr, 0, len(fields))
	for key, value := range fields {
		if key == "Topic" {
			continue
		}
		// Values can be live objects of GoBGP: they are turned into text now, not in a handler's own time.
		attrs = append(attrs, slog.String(strings.ToLower(key), fmt.Sprint(value)))
	}
	l.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// learn keeps what an entry says about the failure of a session.
func (l *logger) learn(msg string, fields bgplog.Fields) {
	addr, err := netip.ParseAddr(fmt.Sprint(fields["Key"]))
	if err != nil {
		return
	}
	if msg == "state changed" {
		if reason := openFailure(fmt.Sprint(fields["old"]), fmt.Sprint(fields["new"]), fmt.Sprint(fields["reason"])); reason != "" {
			l.hist.guessed(addr, reason)
		}
		return
	}
	if reason := diagnose(msg, fields); reason != "" {
		l.hist.failed(addr, reason)
	}
}

// diagnose says in words why a session failed, if that is what an entry of GoBGP's log is about. The texts are those of
// v3.37.0; TestDiagnoseRealSessions fails when an upgrade changes them.
func diagnose(msg string, fields bgplog.Fields) string {
	switch msg {
	case "failed to connect":
		err, _ := fields["Error"].(error)
		return dialFailure(err)
	case "Mismatched local address":
		return fmt.Sprintf("it connected to our address %v but we speak from %v", fields["Addr"], fields["Configured addr"])
	case "Peer Down":
		return downReason(fmt.Sprint(fields["Reason"]))
	case "sent notification":
		// Of the two kinds of this entry, the one with an error is about a handshake.
		if err, ok := fields["Data"].(error); ok {
			return "we ended the handshake: " + err.Error()
		}
	case "graceful restart timer expired":
		return "it did not come back within its restart time, its paths are dropped"
	}
	return ""
}

// dialFailure names the cause of a failed connect and where to look.
func dialFailure(err error) string {
	port := "179"
	var op *net.OpError
	if errors.As(err, &op) {
		if to, ok := op.Addr.(*net.TCPAddr); ok {
			port = fmt.Sprint(to.Port)
		}
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "TCP refused on port " + port + ": no BGP speaker listens there, or a firewall rejects"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return "no TCP answer on port " + port + ": the node is down, or a firewall drops"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "host unreachable: the node is down or not on this network"
	case errors.Is(err, syscall.ENETUNREACH):
		return "network unreachable: this node has no route to it"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "our own address is not on this node any more: check the node address"
	case err == nil:
		return "connect failed"
	}
	return "connect failed: " + err.Error()
}

// downReason turns GoBGP's reason for the end of an established session into words.
func downReason(reason string) string {
	switch reason {
	case "dying": // we removed it
		return ""
	case "graceful-restart":
		return "connection lost; its paths are kept for its restart time"
	case "read-failed":
		return "connection lost"
	case "write-failed":
		return "could not send to it within the hold time"
	case "hard-reset":
		return "it ended the session for good (Cease, hard reset), its paths are dropped"
	case "hold-timer-expired":
		return "nothing heard from it for the hold time"
	}
	if text, ok := strings.CutPrefix(reason, "notification-received "); ok {
		return "it ended the session: " + text
	}
	if text, ok := strings.CutPrefix(reason, "notification-sent "); ok {
		return "we ended the session: " + text
	}
	return reason
}

// openFailure explains a handshake that did not end in an established session.
func openFailure(from, to, reason string) string {
	if to != "BGP_FSM_IDLE" || (from != "BGP_FSM_OPENSENT" && from != "BGP_FSM_OPENCONFIRM") {
		return ""
	}
	switch reason {
	case "read-failed":
		return "it closed the connection during the handshake: is this node a peer there, with this address?"
	case "invalid-msg":
		return "it refused our OPEN: AS numbers, router IDs or capabilities do not match"
	}
	return ""
}
