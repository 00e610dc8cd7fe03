package labtest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Kind describes servers that tests may hand on to each other.
type Kind struct {
	Group   groups.Group // it has the definitions of this group, and none of the other
	Audited bool         // with an audit log of the chart's accounts
	Fenced  bool         // with the chart's default admission policies in force, as after Fence
}

// lanes bounds the concurrent servers of this binary's tests: a start costs seconds of processor time, and a server
// some hundred MB, which a test saves that waits for another test's server.
var lanes = make(chan struct{}, 4)

// idle has the servers that tests of this binary have handed on.
var idle = struct {
	sync.Mutex // guards of
	of         map[Kind][]*Server
}{of: map[Kind][]*Server{}}

// takeIdle returns a server that a test has handed on, or nil.
func takeIdle(k Kind) *Server {
	idle.Lock()
	defer idle.Unlock()
	all := idle.of[k]
	if len(all) == 0 {
		return nil
	}
	idle.of[k] = all[:len(all)-1]
	return all[len(all)-1]
}

// TakeServer returns a server for one test at a time: one that an earlier test has handed on, or a new one. The test
// may create, change and delete any object, and may kill the server. While four tests have one, further ones wait: a
// test takes at most one, and none of its subtests another.
//
// At the test's end its objects are removed, and the server is handed on. It ends instead if the test failed or killed
// it, or left objects that the API server may follow even after their deletion: definitions, webhooks, admission
// policies, and changes of objects that each server has from its start. The behaviour of a server in its first seconds,
// such as refusing requests while it knows no roles yet, occurs only on a server of NewServer.
func TakeServer(t testing.TB, k Kind) *Server {
	t.Helper()
	lanes <- struct{}{}
	t.Cleanup(func() { <-lanes })
	s := takeIdle(k)
	if s == nil {
		s = startKind(t, k)
	}
	s.since = time.Now()
	t.Cleanup(func() { handOn(t, k, s) })
	return s
}

func startKind(t testing.TB, k Kind) *Server {
	t.Helper()
	c, err := launch(Binary(t), apiArgs(auditArgs(k.Audited)...)...)
	errtest.Must(t, err)
	s := &Server{child: c}
	s.kubeconfig, err = c.ready()
	errtest.Must(t, err)
	s.Define(t, k.Group)
	admin, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	errtest.Must(t, err)
	admin.QPS, admin.WarningHandler = -1, rest.NoWarnings{}
	if k.Fenced {
		Fence(t, admin)
	}
	ctx, cancel := context.WithTimeout(t.Context(), definePatience)
	defer cancel()
	s.own, err = newBaseline(ctx, admin)
	errtest.Must(t, err)
	return s
}

// handOn removes the objects of a test from a server, and keeps it for the next one, or ends it.
func handOn(t testing.TB, k Kind, s *Server) {
	ctx, cancel := context.WithTimeout(context.Background(), definePatience)
	defer cancel()
	err := errors.New("the test failed")
	switch {
	case s.killed:
		err = errors.New("the test killed it")
	case !t.Failed():
		err = s.own.restore(ctx)
	}
	if err != nil {
		t.Logf("the API server is not handed on: %v", err)
		s.child.end()
		return
	}
	if k.Audited {
		s.read = 1 + bytes.LastIndexByte(s.auditLog(t), '\n')
	}
	idle.Lock()
	defer idle.Unlock()
	idle.of[k] = append(idle.of[k], s)
}
