package ipamtool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/gc"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

var releaseCommand = command{
	name: "release", help: "free addresses: by address, handle, node or report",
	args: "[-yes] [-force] (ADDRESS... | -handle ID | -node NODE | -report FILE...)",
	text: `
Frees unused addresses: those that are named, those of a handle, those that were assigned on a node, or those that all
of the given reports of ipam audit show as unused. Addresses of one handle are freed together, or not at all.

It says what it would free, and frees it with -yes. An address that a pod, Service or node still uses is refused; right before
the write the API server is asked once more, and an address that was assigned anew since is left alone. With -force the address
is freed although a pod seems to use it: that pod keeps running, and another one can be given its address. Delete the pod
instead, if you can.`,
}

func init() { releaseCommand.run = (*tool).release }

// selection is the arguments' selection of addresses.
type selection struct {
	addresses    []netip.Addr
	handle, node string
	reports      []string
}

func (t *tool) release(ctx context.Context, args []string) (int, error) {
	flags := t.flagsOf(releaseCommand)
	var w selection
	flags.StringVar(&w.handle, "handle", "", "free what this handle, an `ID` as show prints it, holds")
	flags.StringVar(&w.node, "node", "", "free what was assigned on this `node`")
	flags.Func("report", "free the addresses that this `file` of ipam audit shows as unused; may be repeated", func(path string) error {
		w.reports = append(w.reports, path)
		return nil
	})
	yes := flags.Bool("yes", false, "do it")
	force := flags.Bool("force", false, "free what seems to be in use, too: another pod can get the address")
	rest, err := parse(flags, args)
	if err != nil {
		return exitUsage, err
	}
	if w.addresses, err = addresses(rest); err != nil {
		return exitUsage, err
	}
	if err := w.check(); err != nil {
		return exitUsage, err
	}
	if *force && len(w.addresses) == 0 && w.handle == "" {
		return exitUsage, fmt.Errorf("%w: -force frees what is named one by one: addresses, or a -handle", errUsage)
	}
	v, err := t.read(ctx)
	if err != nil {
		return exitError, err
	}
	holders, err := w.find(v)
	if err != nil {
		return exitError, err
	}
	return t.releaseHolders(ctx, v, holders, *yes, *force)
}

// check returns an error unless there is exactly one selection.
func (w *selection) check() error {
	n := 0
	for _, given := range []bool{len(w.addresses) > 0, w.handle != "", w.node != "", len(w.reports) > 0} {
		if given {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("%w: name addresses, or give one of -handle, -node and -report", errUsage)
	}
	return nil
}

// find returns the selected holders.
func (w *selection) find(v *inventory.View) ([]*audit.Holder, error) {
	matches, err := w.matcher(v)
	if err != nil {
		return nil, err
	}
	var found []*audit.Holder
	matched := map[netip.Addr]bool{}
	for _, h := range audit.Holders(v, v.Index()) {
		if slices.ContainsFunc(h.Addresses, func(a audit.Held) bool { return matches(a.Allocation) }) {
			found = append(found, h)
			for _, a := range h.Addresses {
				matched[a.Address] = true
			}
		}
	}
	for _, a := range w.addresses {
		if !matched[a] {
			return nil, fmt.Errorf("%s is held by nobody: there is nothing to free (ipam show %s tells more)", a, a)
		}
	}
	if w.handle != "" && len(found) == 0 {
		return nil, fmt.Errorf("handle %q holds nothing (ipam show ADDRESS prints the handle of an address)", w.handle)
	}
	return found, nil
}

// matcher returns a function that reports whether an address is selected.
func (w *selection) matcher(v *inventory.View) (func(*inventory.Allocation) bool, error) {
	switch {
	case w.handle != "":
		return func(a *inventory.Allocation) bool { return a.Handle == w.handle }, nil
	case w.node != "":
		index := v.Index()
		return func(a *inventory.Allocation) bool {
			verdict, _ := index.Judge(a)
			return a.Node == w.node && verdict.Unused()
		}, nil
	case len(w.reports) > 0:
		return matchReports(w.reports, v)
	}
	return func(a *inventory.Allocation) bool { return slices.Contains(w.addresses, a.Address) }, nil
}

// assignment identifies one assignment of an address.
type assignment struct {
	address  netip.Addr
	handle   string
	sequence uint64
}

// matchReports selects the assignments that are unused in all reports.
func matchReports(paths []string, v *inventory.View) (func(*inventory.Allocation) bool, error) {
	times := map[assignment]int{}
	for _, path := range paths {
		r, err := loadReport(path, v)
		if err != nil {
			return nil, err
		}
		for _, f := range r.Findings {
			if f.Fix == audit.Free || f.Fix == audit.FreeAddress {
				times[assignment{f.Address, f.Handle, f.Sequence}]++
			}
		}
	}
	return func(a *inventory.Allocation) bool {
		return times[assignment{a.Address, a.Handle, a.Sequence}] == len(paths)
	}, nil
}

// releaseHolders prints the addresses to free and the refused ones, and frees them with -yes.
func (t *tool) releaseHolders(ctx context.Context, v *inventory.View, holders []*audit.Holder, yes, force bool) (int, error) {
	if len(holders) == 0 {
		fmt.Fprintln(t.Out, "there is nothing to free")
		return exitOK, nil
	}
	rows := [][]string{{"ADDRESS", "HANDLE", "OF", "NOT IN USE", "WHAT"}}
	refused := 0
	for _, h := range holders {
		what := action(h, v.Taken, force)
		if strings.HasPrefix(what, "refused") {
			refused++
		}
		for _, a := range h.Addresses {
			rows = append(rows, []string{a.Address.String(), h.Handle, strings.TrimPrefix(a.String(), a.Address.String()+" "), h.Why, what})
		}
	}
	if err := table(t.Out, rows); err != nil {
		return exitError, err
	}
	switch {
	case !yes:
		fmt.Fprintln(t.Err, "\nNothing was changed. To do this: the same command with -yes.")
		return refusedCode(refused), nil
	case !v.Ready:
		return exitError, errNotReady
	}
	freed, err := t.free(ctx, v, holders, force)
	fmt.Fprintf(t.Out, "\nfreed %s\n", number(freed, "address", "addresses"))
	if err != nil {
		return exitError, fmt.Errorf("not all could be freed: %w", err)
	}
	wanted := 0
	for _, h := range holders {
		wanted += len(h.Addresses)
	}
	return refusedCode(wanted - freed), nil
}

// action returns the action for a holder, as it is printed.
func action(h *audit.Holder, taken time.Time, force bool) string {
	switch {
	case h.Unused && !young(h, taken):
		return "free"
	case force:
		return "free by force"
	case !h.Unused:
		return "refused: in use, or nobody can tell"
	}
	return fmt.Sprintf("refused: assigned less than %v ago, its pod may be starting", settled)
}

func refusedCode(refused int) int {
	if refused > 0 {
		return exitLeak
	}
	return exitOK
}

// free frees unused holders by the controllers' sweep, and the others by force.
func (t *tool) free(ctx context.Context, v *inventory.View, holders []*audit.Holder, force bool) (int, error) {
	var d gc.Decision
	var forced []ipam.Expired
	for _, h := range holders {
		switch action(h, v.Taken, force) {
		case "free":
			d.Due = append(d.Due, audit.Candidate{Fix: audit.Free, Why: h.Why, Holder: h})
		case "free by force":
			forced = append(forced, h.Expired())
		}
	}
	report, err := t.sweeper().Sweep(ctx, v, &d)
	if err != nil {
		return report.Addresses(), err
	}
	n := report.Addresses()
	done, err := t.client().Expire(ctx, v.Config, forced)
	for _, i := range done {
		n += len(forced[i].Addresses)
		if err == nil && forced[i].Handle != "" {
			_, err = t.client().Release(ctx, forced[i].Handle) // the handle goes too
		}
	}
	return n, err
}
