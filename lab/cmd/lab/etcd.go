package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/tortie-net/tortie/lab/internal/plane"
	"github.com/tortie-net/tortie/lab/internal/proc"
)

// etcdTimeout has the same reserve as apiTimeout.
const etcdTimeout = 3 * time.Minute

// runEtcd runs an empty etcd, for tests of a datastore without an API server.
func runEtcd(ctx context.Context, args []string) (err error) {
	f := flags("etcd")
	dir := f.String("dir", "", "directory for the state and the certificates (default: a temporary one)")
	secure := f.Bool("tls", false, "serve over TLS to clients that have a certificate: ca.crt, client.crt and client.key in the directory")
	if err := parse(f, args, false); err != nil {
		return err
	}
	hyperkube, state, clean, err := serverFiles(ctx, *dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, clean()) }()
	e, err := plane.StartEtcd(ctx, plane.EtcdConfig{
		Dir: state, Hyperkube: hyperkube, Spawner: proc.NewSpawner(),
		Address: netip.MustParseAddr("127.0.0.1"), TLS: *secure, Timeout: etcdTimeout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Stop(context.WithoutCancel(ctx))) }()
	ready := fmt.Sprintf("ready ENDPOINT=%s DIR=%s", e.Endpoint(), state)
	fmt.Println(ready)
	return serve(ctx, e, ready, lines(os.Stdin))
}
