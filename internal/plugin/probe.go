package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// probeTime is how long Calico's own test of the datastore may take.
const probeTime = 2 * time.Second

// codeProbe is the code of every failure of the test, as in Calico.
const codeProbe uint = 100

// Probe returns nil if the datastore of a network configuration can be reached and used. It is for people and health
// checks: it needs no pod and changes nothing.
func Probe(stdin io.Reader) *types.Error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	e, failed := errors.AsType[*types.Error](classify("calico -t", probe(ctx, stdin)))
	if !failed {
		return nil
	}
	e.Code = codeProbe
	return e
}

func probe(ctx context.Context, stdin io.Reader) error {
	data, err := io.ReadAll(stdin)
	if err != nil {
		return fmt.Errorf("network configuration: %w", err)
	}
	conf, err := parseConf(calico, data)
	if err != nil {
		return err
	}
	s := &session{conf: conf, log: slog.New(slog.DiscardHandler)}
	if err := s.connect(calico); err != nil {
		return err
	}
	return s.ready(ctx)
}
