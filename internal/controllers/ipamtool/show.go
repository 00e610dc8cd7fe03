package ipamtool

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

var showCommand = command{
	name: "show", help: "how full the pools are; who has an address", args: "[-blocks] [-borrowed] [-node NODE] [-o text|json] [ADDRESS...]",
	text: `
Without an address: how full each pool is. SIZE = IN USE + RESTING + RESERVED + FREE: what rests was released less than
ipCooldownSeconds ago, what is reserved is kept by an IPReservation. An address is borrowed if its pod runs on another node
than the one whose block it is of. Blocks that are of no pool are counted in a line of their own.

With addresses: the whole story of each. Its pool, block and claim; what it is assigned to, since when, and by which handle;
what its pod says; and whether anything is wrong with it.`,
}

func init() { showCommand.run = (*tool).show }

func (t *tool) show(ctx context.Context, args []string) (int, error) {
	flags := t.flagsOf(showCommand)
	output := flags.String("o", "text", "`format`: text or json")
	blocks := flags.Bool("blocks", false, "list the blocks of each pool")
	borrowed := flags.Bool("borrowed", false, "list the addresses that are borrowed")
	node := flags.String("node", "", "list the blocks of this `node`, and the addresses on it")
	rest, err := parse(flags, args)
	if err != nil {
		return exitUsage, err
	}
	asJSON, err := format(*output)
	if err != nil {
		return exitUsage, err
	}
	addrs, err := addresses(rest)
	if err != nil {
		return exitUsage, err
	}
	v, err := t.read(ctx)
	if err != nil {
		return exitError, err
	}
	if len(addrs) > 0 {
		return exitOK, t.writeStories(v, addrs, asJSON)
	}
	all := audit.Usages(v)
	held := []Held{}
	if *borrowed || *node != "" {
		held = where(allHeld(v), func(h Held) bool { return (!*borrowed || h.Borrowed) && (*node == "" || h.Node == *node) })
	}
	if *node != "" {
		all = ofNode(all, *node)
	}
	if asJSON {
		return exitOK, writeJSON(t.Out, struct {
			Pools     []audit.Usage `json:"pools"`
			Addresses []Held        `json:"addresses,omitempty"`
		}{all, held})
	}
	if err := table(t.Out, usageRows(all, *blocks || *node != "")); err != nil {
		return exitError, err
	}
	if *borrowed || *node != "" {
		fmt.Fprintln(t.Out)
		return exitOK, table(t.Out, heldRows(held))
	}
	return exitOK, nil
}

func addresses(texts []string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%w: %q is no address such as 10.0.0.7 or fd00::7", errUsage, text)
		}
		addrs = append(addrs, a.Unmap())
	}
	return addrs, nil
}

// ofNode keeps the blocks of one node, and the pools' totals.
func ofNode(all []audit.Usage, node string) []audit.Usage {
	for i := range all {
		all[i].Blocks = where(all[i].Blocks, func(b audit.BlockUsage) bool { return b.Owner == names.HostAffinity(node) })
	}
	return all
}

// where returns the matching items of a list, never nil.
func where[T any](all []T, wanted func(T) bool) []T {
	out := []T{}
	for _, v := range all {
		if wanted(v) {
			out = append(out, v)
		}
	}
	return out
}

func usageRows(all []audit.Usage, blocks bool) [][]string {
	rows := [][]string{{"POOL", "RANGE", "OWNER", "SIZE", "IN USE", "RESTING", "RESERVED", "FREE", "BORROWED", "BLOCKS"}}
	for _, u := range all {
		cidr := ""
		if u.CIDR.IsValid() {
			cidr = u.CIDR.String()
		}
		rows = append(rows, []string{cmp.Or(u.Name, "(no pool)"), cidr, "", u.Size.String(), part(u.InUse, u.Size), fmt.Sprint(u.Cooling),
			u.Reserved.String(), u.Free.String(), fmt.Sprint(u.Borrowed), fmt.Sprint(len(u.Blocks))})
		if !blocks {
			continue
		}
		for _, b := range u.Blocks {
			rows = append(rows,
				[]string{"", b.CIDR.String(), strings.TrimPrefix(cmp.Or(b.Owner, "nobody"), api.AffinityHost+":"), fmt.Sprint(b.Size),
					part(b.InUse, big.NewInt(int64(b.Size))), fmt.Sprint(b.Cooling), fmt.Sprint(b.Reserved), fmt.Sprint(b.Free),
					fmt.Sprint(b.Borrowed), ""})
		}
	}
	return rows
}

// part returns a number with its percentage of another.
func part(n int, of *big.Int) string {
	if of.Sign() == 0 {
		return fmt.Sprint(n)
	}
	share := new(big.Int).Mul(big.NewInt(int64(n)), big.NewInt(100))
	return fmt.Sprintf("%d (%s%%)", n, share.Div(share, of))
}

// Held is an allocated address, for programs.
type Held struct {
	Address   netip.Addr `json:"address"`
	Block     string     `json:"block"`
	Owner     string     `json:"owner,omitempty"` // of the block
	Handle    string     `json:"handle,omitempty"`
	Sequence  uint64     `json:"sequence,omitempty"`
	Class     string     `json:"class"`
	Node      string     `json:"node,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Service   string     `json:"service,omitempty"`
	Since     string     `json:"since,omitempty"`
	Borrowed  bool       `json:"borrowed,omitempty"`
	Resting   bool       `json:"resting,omitempty"`
	// InUse is the controllers' judgement: false means that they free it when its grace period is over.
	InUse bool `json:"inUse"`
	// Why is the reason that it is not in use.
	Why string `json:"why,omitempty"`
}

// allHeld lists the addresses that are not free, in order.
func allHeld(v *inventory.View) []Held {
	index := v.Index()
	all := []Held{}
	for i := range v.Blocks {
		for j := range v.Blocks[i].Allocations {
			all = append(all, newHeld(&v.Blocks[i], &v.Blocks[i].Allocations[j], index))
		}
	}
	slices.SortFunc(all, func(a, b Held) int { return a.Address.Compare(b.Address) })
	return all
}

func newHeld(b *inventory.Block, a *inventory.Allocation, index *inventory.Index) Held {
	verdict, why := index.Judge(a)
	h := Held{
		Address: a.Address, Block: b.CIDR.String(), Owner: b.Affinity, Handle: a.Handle, Sequence: a.Sequence, Class: a.Class.String(),
		Node: a.Node, Namespace: a.Namespace, Pod: a.Pod, Service: a.Service, Resting: a.Cooling(), Why: why,
		InUse: !a.Cooling() && !verdict.Unused(),
	}
	h.Borrowed = b.Borrowed(a)
	if !a.Since.IsZero() {
		h.Since = a.Since.UTC().Format("2006-01-02T15:04:05Z")
	}
	return h
}

func heldRows(all []Held) [][]string {
	rows := [][]string{{"ADDRESS", "NODE", "POD", "CLASS", "BLOCK", "OF", "SINCE", "NOT IN USE"}}
	for _, h := range all {
		pod := h.Pod
		if h.Pod != "" {
			pod = h.Namespace + "/" + h.Pod
		}
		why := h.Why
		if h.Resting {
			why = "rests"
		}
		rows = append(rows,
			[]string{h.Address.String(), h.Node, pod, h.Class, h.Block, strings.TrimPrefix(h.Owner, api.AffinityHost+":"), h.Since, why})
	}
	return rows
}
