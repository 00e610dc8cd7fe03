package cni

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
)

// The plugin's own error codes; CNI leaves those from 100 on to plugins.
const (
	codeUnauthorized uint = 100 // the API server refuses the plugins' token or its permissions
	codeNoPool       uint = 101 // no IPPool may serve the pod
	codeExhausted    uint = 102 // the pools have no free address, or the node no more blocks
)

// errDatastoreNotReady: an operator has locked the datastore.
var errDatastoreNotReady = errors.New("the datastore is not ready")

// codes maps errors to codes: the first that matches. A runtime tries again after any error; ErrTryAgainLater tells people
// and tools that nothing needs to be done.
var codes = []struct {
	is   error
	code uint
}{
	{datastore.ErrUnauthorized, codeUnauthorized},
	{ipam.ErrNoPool, codeNoPool},
	{ipam.ErrExhausted, codeExhausted},
	{ipam.ErrBlockLimit, codeExhausted},
	{errDatastoreNotReady, types.ErrTryAgainLater},
	{datastore.ErrUnavailable, types.ErrTryAgainLater},
	{datastore.ErrConflict, types.ErrTryAgainLater},
	{datastore.ErrExists, types.ErrTryAgainLater},
	{context.DeadlineExceeded, types.ErrTryAgainLater},
}

// remedies say what a person can do about a code.
var remedies = map[uint]string{
	codeUnauthorized: "the token in the plugins' kubeconfig is expired or lacks permissions: see the log of container install of tortie-node on this node, and kubectl describe clusterrole tortie-cni",
}

// failure gives err a code, unless it carries one already. nil stays nil.
func failure(code uint, err error) error {
	var e *types.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return types.NewError(code, err.Error(), "")
}

// classify is the one place where an error that a verb returns gets its code.
func classify(verb string, err error) error {
	if err == nil {
		return nil
	}
	var e *types.Error
	if errors.As(err, &e) {
		// Of ours, or of the IPAM plugin: what was being done when it happened goes before its message.
		out := *e
		if around := strings.TrimSuffix(err.Error(), e.Error()); around != err.Error() {
			out.Msg = around + e.Msg
		}
		return &out
	}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			return types.NewError(c.code, fmt.Sprintf("%s: %v", verb, err), remedies[c.code])
		}
	}
	return types.NewError(types.ErrInternal, fmt.Sprintf("%s: %v", verb, err), "")
}
