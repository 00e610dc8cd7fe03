package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
)

// classified returns the error that the runtime gets from a verb that failed with err.
func classified(t *testing.T, err error) *types.Error {
	t.Helper()
	var e *types.Error
	if !errors.As(classify("calico ADD", err), &e) {
		t.Fatalf("%v is left without a code", err)
	}
	return e
}

func TestEverySentinelHasACode(t *testing.T) {
	for _, tt := range []struct {
		err    error
		code   uint
		remedy string
	}{
		{datastore.ErrUnauthorized, 100, "token"},
		{datastore.ErrRefused, 100, "the plugins' token is right"},
		{datastore.ErrLocked, 11, ""},
		{ipam.ErrNoPool, 101, ""},
		{ipam.ErrExhausted, 102, ""},
		{ipam.ErrBlockLimit, 102, ""},
		{ipam.ErrTaken, 103, "ipAddrs"},
		{errDatastoreNotReady, 11, ""},
		{datastore.ErrUnavailable, 11, "API server"},
		{datastore.ErrConflict, 11, ""},
		{datastore.ErrExists, 11, ""},
		{context.DeadlineExceeded, 11, "too slow"},
		{datastore.ErrNotFound, 999, "nodename"},
		{errors.New("anything else"), 999, ""},
	} {
		e := classified(t, fmt.Errorf("read a thing: %w: more", tt.err))
		if e.Code != tt.code || e.Msg != "calico ADD: read a thing: "+tt.err.Error()+": more" || !strings.Contains(e.Details, tt.remedy) ||
			tt.remedy == "" && e.Details != "" {
			t.Errorf("%v: %+v, want code %d and %q in the details", tt.err, e, tt.code, tt.remedy)
		}
	}
	if err := classify("calico ADD", nil); err != nil {
		t.Errorf("success became %v", err)
	}
}

// A refused token is more specific than an unavailable server.
func TestTheFirstOfSeveralSentinelsCounts(t *testing.T) {
	if e := classified(t, errors.Join(datastore.ErrUnavailable, datastore.ErrUnauthorized)); e.Code != codeUnauthorized {
		t.Errorf("%+v", e)
	}
}

func TestErrorOfTheIPAMPlugin(t *testing.T) {
	nested := types.NewError(102, "no free address", "ask for more")
	for name, tt := range map[string]struct {
		err     error
		code    uint
		msg     string
		details string
	}{
		"as it is":    {nested, 102, "no free address", "ask for more"},
		"wrapped":     {fmt.Errorf("IPAM plugin x: %w", nested), 102, "IPAM plugin x: no free address", "ask for more"},
		"before more": {fmt.Errorf("IPAM plugin x: %w; undo: lost", nested), 102, "IPAM plugin x: no free address; undo: lost", "ask for more"},
		"no details":  {fmt.Errorf("IPAM plugin x: %w", types.NewError(7, "bad", "")), 7, "IPAM plugin x: bad", ""},
		"died":        {fmt.Errorf("IPAM plugin x: %w", types.NewError(0, "signal: killed", "")), 999, "IPAM plugin x: signal: killed", ""},
	} {
		if e := classified(t, tt.err); e.Code != tt.code || e.Msg != tt.msg || e.Details != tt.details {
			t.Errorf("%s: %+v, want %+v", name, e, tt)
		}
	}
	if nested.Msg != "no free address" {
		t.Errorf("the error that was classified has changed: %+v", nested)
	}
}

func TestFailureKeepsACode(t *testing.T) {
	if err := failure(7, nil); err != nil {
		t.Errorf("no error became %v", err)
	}
	if got := code(t, failure(7, fmt.Errorf("around: %w", types.NewError(6, "m", "")))); got != 6 {
		t.Errorf("code 6 became %d", got)
	}
}

func TestPanicsDoNotReachTheUser(t *testing.T) {
	args := &skel.CmdArgs{StdinData: []byte(minimalConf), ContainerID: "c1"}
	err := verb(calico, "ADD", func(context.Context, *call) error { panic("index out of range") })(args)
	if code(t, err) != types.ErrInternal || !strings.Contains(err.Error(), "index out of range") ||
		strings.Contains(err.Error(), "goroutine") {
		t.Errorf("a panic became %v", err)
	}
}

func TestLogLevel(t *testing.T) {
	for text, want := range map[string]slog.Level{
		"": slog.LevelInfo, "info": slog.LevelInfo, "Debug": slog.LevelDebug, "WARNING": slog.LevelWarn,
		"error": slog.LevelError, "loud": slog.LevelInfo,
	} {
		if got := logLevel(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}
