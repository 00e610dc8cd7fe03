package ipamtool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/gc"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// settled is the minimum age before a record is trusted; it is longer than any ADD, which writes the handle first, then
// the block, and the pod's status last.
const settled = 2 * time.Minute

// young reports whether the ADD of an address may still be running. Tunnel addresses, and some of Calico's, have no
// timestamp; a clock that is ahead makes addresses young.
func young(h *audit.Holder, taken time.Time) bool {
	return slices.ContainsFunc(h.Addresses, func(a audit.Held) bool {
		return !a.Since.IsZero() && taken.Sub(a.Since) < settled
	})
}

// fix prints the repairs of the findings, and makes them with -yes.
func (t *tool) fix(ctx context.Context, found *looks, yes bool) (int, error) {
	if !found.last.Ready {
		return exitError, errNotReady
	}
	d, mends := decide(found), mendsOf(found.Findings)
	if len(d.Due)+len(mends) == 0 {
		fmt.Fprintln(t.Err, "there is nothing that could be put right from here")
		return code(found.Findings), nil
	}
	if err := table(t.Err, steps(&d, mends)); err != nil {
		return exitError, err
	}
	if !yes {
		fmt.Fprintln(t.Err, "\nNothing was changed. To do this: the same command with -fix -yes.")
		return code(found.Findings), nil
	}
	fmt.Fprintln(t.Err)
	return t.carryOut(ctx, found, &d, mends)
}

// errNotReady: the datastore may be under migration.
var errNotReady = errors.New("ClusterInformation default does not say that the datastore is ready (spec.datastoreReady): somebody " +
	"migrates it, or no agent has run yet. Nothing was changed")

// carryOut carries out the decision, and checks again.
func (t *tool) carryOut(ctx context.Context, found *looks, d *gc.Decision, mends []audit.Finding) (int, error) {
	report, err := t.sweeper().Sweep(ctx, found.last, d)
	mended, mendErr := t.mend(ctx, found.last.Config, mends)
	fmt.Fprintf(t.Err, "freed %s, removed %s, %s and %s, completed %s, mended %s; left alone %s that had changed\n",
		number(report.Addresses(), "address", "addresses"), number(report.Handles, "handle", "handles"), number(report.Blocks, "block", "blocks"),
		number(report.Affinities, "claim", "claims"), number(report.Confirmed, "claim", "claims"), number(mended, "object", "objects"),
		number(report.Spared, "holder", "holders"))
	if err := errors.Join(err, mendErr); err != nil {
		return exitError, fmt.Errorf("not all could be done, and what was done stays: %w", err)
	}
	left, err := t.read(ctx)
	if err != nil {
		return exitError, err
	}
	remaining := audit.Check(left)
	fmt.Fprintf(t.Err, "now there are %s\n", number(len(remaining), "finding", "findings"))
	return code(remaining), nil
}

func (t *tool) sweeper() *gc.Sweeper {
	return &gc.Sweeper{IPAM: t.source.IPAM, Cluster: t.source.Cluster, Client: t.client(), Log: slog.New(slog.NewTextHandler(t.Err, nil))}
}

func (t *tool) client() *ipam.Client { return ipam.NewClient(t.source.IPAM, t.now) }

// decide returns the controllers' decision, with the time between the two looks as grace period. If that is short, it
// leaves out objects that a running ADD may be writing.
func decide(found *looks) gc.Decision {
	grace := found.last.Taken.Sub(found.first.Taken)
	rules := gc.Rules{Grace: grace, NodeGrace: grace}
	state, _ := gc.Pass(gc.State{}, found.first, rules)
	_, d := gc.Pass(state, found.last, rules)
	if grace >= settled {
		return d
	}
	d.Due = slices.DeleteFunc(d.Due, func(c audit.Candidate) bool {
		return c.Holder != nil && young(c.Holder, found.last.Taken) || c.Handle != nil && youngHandle(c.Handle, found.last.Taken)
	})
	return d
}

// youngHandle reports whether an ADD may be about to assign by an empty handle. On etcd handles have no time of
// creation.
func youngHandle(h *inventory.Handle, taken time.Time) bool {
	created, err := time.Parse(time.RFC3339, h.CreationTimestamp)
	return err != nil || taken.Sub(created) < settled
}

// steps returns the rows that show the repairs of a decision and of mends.
func steps(d *gc.Decision, mends []audit.Finding) [][]string {
	rows := [][]string{{"DO", "TO", "BECAUSE"}}
	for _, c := range d.Due {
		rows = append(rows, []string{string(c.Fix), c.Object(), c.Why})
	}
	for _, f := range mends {
		to := f.Object
		if f.Address.IsValid() {
			to = f.Address.String()
		}
		rows = append(rows, []string{string(f.Fix), to, f.Detail})
	}
	return rows
}

// mendsOf returns the findings with a repair that the controllers do not make.
func mendsOf(findings []audit.Finding) []audit.Finding {
	return where(findings, func(f audit.Finding) bool {
		return f.Fix == audit.Recount || f.Fix == audit.Label || f.Fix == audit.FreeAddress || f.Kind == audit.BlockUnclaimed
	})
}

// mend makes repairs, and returns their number. An error does not stop the others.
func (t *tool) mend(ctx context.Context, cfg api.IPAMConfigSpec, mends []audit.Finding) (int, error) {
	n := 0
	var failed []error
	for _, f := range mends {
		done, err := t.mendOne(ctx, cfg, f)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s of %s: %w", f.Fix, f.Object, err))
		}
		if done {
			n++
		}
	}
	return n, errors.Join(failed...)
}

func (t *tool) mendOne(ctx context.Context, cfg api.IPAMConfigSpec, f audit.Finding) (bool, error) {
	_, name, _ := strings.Cut(f.Object, "/")
	switch f.Fix {
	case audit.Recount:
		return t.client().Recount(ctx, f.Handle)
	case audit.Claim:
		cidr, _ := names.ParseBlock(name)
		return t.client().RestoreAffinity(ctx, cidr)
	case audit.Label:
		return t.label(ctx, name)
	case audit.FreeAddress:
		cidr, _ := names.ParseBlock(name)
		of := ipam.Expired{Addresses: map[netip.Addr]ipam.Assigned{f.Address: {Block: cidr, Sequence: f.Sequence}}}
		done, err := t.client().Expire(ctx, cfg, []ipam.Expired{of})
		return len(done) > 0, err
	}
	return false, nil
}

// label writes the labels of an affinity.
func (t *tool) label(ctx context.Context, name string) (bool, error) {
	a := &api.BlockAffinity{Meta: api.Meta{Name: name}}
	if err := t.source.IPAM.Get(ctx, a); err != nil {
		return false, err
	}
	next, missing := ipam.Labelled(a)
	if !missing {
		return false, nil
	}
	err := t.source.IPAM.Update(ctx, next)
	if datastore.Contended(err) {
		return false, nil
	}
	return err == nil, err
}
