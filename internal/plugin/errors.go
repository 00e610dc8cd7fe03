package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// The plugin's own error codes; CNI leaves 100 and above to plugins.
const (
	codeUnauthorized uint = 100 // the API server refuses the plugins' token or its permissions
	codeNoPool       uint = 101 // no IPPool may serve the pod
	codeExhausted    uint = 102 // the pools have no free address, or the node no more blocks
	codeTaken        uint = 103 // the requested address is held by another
)

// errDatastoreNotReady: nothing can be assigned now on this node, or on any. errLocked: on none.
var (
	errDatastoreNotReady = errors.New("the datastore is not ready")
	errLocked            = fmt.Errorf("%w: spec.datastoreReady of ClusterInformation default is not true: "+
		"tortie-node sets it at its first start, a migration at its end; before you do, read docs/apigroups.md", errDatastoreNotReady)
)

// codes maps errors to codes, and to a remedy where the error has none; the first match counts. A runtime tries again
// after any error; ErrTryAgainLater means that this is likely to help.
var codes = []struct {
	is     error
	code   uint
	remedy string
}{
	{datastore.ErrLocked, types.ErrTryAgainLater, ""},
	{datastore.ErrRefused, codeUnauthorized, "the plugins' token is right: an admission policy, webhook or quota of the cluster refuses " +
		"this write, and its text above says which and why"},
	{datastore.ErrUnauthorized, codeUnauthorized, "the token in the plugins' kubeconfig is expired or lacks permissions: " +
		"see the log of container install of tortie-node on this node, and kubectl describe clusterrole tortie-cni; " +
		"or, if etcd is the datastore, its user's password or role is wrong"},
	{ipam.ErrNoPool, codeNoPool, ""},
	{ipam.ErrExhausted, codeExhausted, ""},
	{ipam.ErrBlockLimit, codeExhausted, ""},
	{ipam.ErrTaken, codeTaken, "the address was asked for by an annotation ipAddrs or floatingIPs, or by IP in CNI_ARGS"},
	{errDatastoreNotReady, types.ErrTryAgainLater, ""},
	{datastore.ErrUnavailable, types.ErrTryAgainLater,
		"check that the API server runs, or etcd if that is the datastore, and that this node reaches its address in the plugins' kubeconfig " +
			"or configuration; the runtime tries again"},
	{datastore.ErrConflict, types.ErrTryAgainLater, ""},
	{datastore.ErrExists, types.ErrTryAgainLater, ""},
	{datastore.ErrNotFound, types.ErrInternal, "a Node that is not called as the plugin's nodename says, or a cluster without the " +
		"definitions of Calico's kinds, which the chart installs"},
	{context.DeadlineExceeded, types.ErrTryAgainLater, "the datastore, the API server or this node is too slow; the runtime tries again"},
}

// tellRefusal requests a new token from the installer if the API server does not accept the plugins' token.
func tellRefusal(log *slog.Logger, err error) {
	if !errors.Is(err, datastore.ErrUnauthenticated) {
		return
	}
	if err := hostfile.Touch(facts.TokenRefusedFile, time.Now()); err != nil {
		log.Warn("cannot write the token-refused marker", "err", err)
	}
}

// failure gives err a code, unless it carries one already. nil stays nil.
func failure(code uint, err error) error {
	var e *types.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return types.NewError(code, err.Error(), "")
}

// classify gives an error of a verb its code.
func classify(verb string, err error) error {
	if err == nil {
		return nil
	}
	var e *types.Error
	if errors.As(err, &e) {
		// An error of ours or of the IPAM plugin. Its context stays around its message, without its details, which have their
		// own field. A plugin that died has set no code.
		out := *e
		out.Msg = strings.Replace(err.Error(), e.Error(), e.Msg, 1)
		if out.Code == types.ErrUnknown {
			out.Code = types.ErrInternal
		}
		return &out
	}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			return types.NewError(c.code, fmt.Sprintf("%s: %v", verb, err), c.remedy)
		}
	}
	return types.NewError(types.ErrInternal, fmt.Sprintf("%s: %v", verb, err), "")
}
