package flows

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/policy"
)

// Limits of a Recorder: some 15 MB in all, whatever pods do.
const (
	mostKeys    = 4096 // of an interval
	mostLive    = 16384
	mostLabels  = 8192
	mostRecords = 8192
	mostBytes   = 6 << 20 // of records
	mostTotals  = 2000
	eventBytes  = 2 << 20 // buffered by the kernel until they are read
)

const (
	// eventPause is the least time between two reads of events. A read takes workTime at most, and a pause of restFactor
	// times its duration follows: events take a tenth of a processor, and more are lost.
	eventPause = 50 * time.Millisecond
	workTime   = 10 * time.Millisecond
	restFactor = 9
	// listTime bounds how long new connections of a list are judged. A list takes at most one part in listFactor of the
	// time, as the kernel walks its whole table.
	listTime   = 200 * time.Millisecond
	listFactor = 50
	retryTime  = time.Minute
)

// Options are the parts and settings of a Recorder.
type Options struct {
	Node     string
	Interval time.Duration
	Kernel   *netlinkx.Conn
	Sysctls  sysctl.Root
	File     *File // nil: none
	Log      *slog.Logger
}

// Recorder makes Records. It is safe for concurrent use.
type Recorder struct {
	Options

	ready func() // closes wait once the policies in force are known
	wait  <-chan struct{}

	mu       sync.Mutex // guards the rest
	judge    *policy.Judge
	pending  *policy.Judge // nil: there are no staged policies
	stagedBy map[policy.ID]policy.ID
	sources  bool                  // source ports may matter to a decision
	own      map[netip.Addr]string // the node's addresses, with their links
	labels   map[question]*label
	table    *table
	live     live
	ring     ring
	totals   totals
	lost     Lost
	interval uint32
	lists    uint32
	begun    time.Time // start of the interval
}

// New returns a Recorder for Run.
func New(o Options) *Recorder {
	known := make(chan struct{})
	return &Recorder{
		Options: o, ready: sync.OnceFunc(func() { close(known) }), wait: known, labels: map[question]*label{}, table: newTable(mostKeys),
		live: live{mostLive, map[liveKey]*liveFlow{}},
		ring: ring{most: mostRecords, mostBytes: mostBytes}, totals: totals{}, begun: time.Now(),
	}
}

// NotInForce stops recording because another engine enforces.
func (r *Recorder) NotInForce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.judge, r.pending = nil, nil
	clear(r.live.of)
}

// InForce sets the policies by which connections are judged from now on. pending has them with staged policies in
// force; nil if there are none.
func (r *Recorder) InForce(selection *policy.Selection, pods map[policy.PodKey]*policy.Pod, pending *policy.Selection,
	stagedBy map[policy.ID]policy.ID) {
	judge := policy.NewJudge(selection, pods)
	sources := judge.ReadsSources()
	var staged *policy.Judge
	if pending != nil {
		staged = judge.With(pending)
		sources = sources || staged.ReadsSources()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.judge, r.pending, r.stagedBy, r.sources = judge, staged, stagedBy, sources
	clear(r.labels)
	r.ready()
}

// Replace updates pods of other nodes; nil means that the pod is gone.
func (r *Recorder) Replace(pods map[policy.PodKey]*policy.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judge != nil {
		r.judge.Replace(pods)
		clear(r.labels)
	}
}

// Run records until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.wait:
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { r.follow(ctx); return nil })
	g.Go(func() error { r.intervals(ctx); return nil })
	return g.Wait()
}

// follow reads events until ctx ends.
func (r *Recorder) follow(ctx context.Context) {
	var reported progress.Changes
	for backoff := (wait.Backoff{First: time.Second, Most: retryTime}); ctx.Err() == nil; wait.Sleep(ctx, backoff.Next()) {
		if err := r.readEvents(ctx); reported.New(err) && ctx.Err() == nil {
			r.Log.Warn("cannot follow connections for flow records", "err", err)
		}
	}
}

func (r *Recorder) readEvents(ctx context.Context) error {
	if err := r.Kernel.CountFlows(r.Sysctls); err != nil {
		return err
	}
	events, err := r.Kernel.FlowEvents(eventBytes)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = events.Close() })
	defer func() {
		stop()
		_ = events.Close()
	}()
	for {
		var begun time.Time
		lost, err := events.Read(func(e netlinkx.FlowEvent) bool {
			if begun.IsZero() {
				begun = time.Now()
			}
			r.take(&e)
			return time.Since(begun) < workTime
		})
		if err != nil {
			return fmt.Errorf("read events of connections: %w", err)
		}
		if lost {
			r.overrun()
		}
		pause := eventPause
		if !begun.IsZero() {
			pause = max(pause, restFactor*time.Since(begun))
		}
		if !wait.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func (r *Recorder) overrun() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost.Overruns++
}

// take counts an event.
func (r *Recorder) take(e *netlinkx.FlowEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(&e.TrackedFlow)
	f := r.live.of[key]
	if f == nil {
		if f = r.begin(&e.TrackedFlow); f == nil {
			return
		}
		if !e.Ended { // if it ended, it had no room before or its beginning was lost
			r.started(f)
		}
		if !e.Ended && len(r.live.of) < r.live.most {
			r.live.of[key] = f
		}
	}
	r.count(f, &e.TrackedFlow)
	if !e.Ended {
		return
	}
	for _, l := range f.sides {
		if l != nil {
			r.counts(l).Completed++
		}
	}
	delete(r.live.of, key)
}

// begin labels a connection; nil if no end is a pod of this node or a host endpoint.
func (r *Recorder) begin(f *netlinkx.TrackedFlow) *liveFlow {
	if r.judge == nil {
		return nil
	}
	started := &liveFlow{interval: r.interval - 1, listed: r.lists}
	c := connection{
		client: f.Client.Unmap(), server: f.Server.Unmap(), expected: f.Expected,
		packet: policy.Packet{Protocol: f.Protocol, Port: f.Port, SourcePort: f.SourcePort},
	}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if r.reports(&c, d) {
			started.sides[d] = r.label(&c, d, verdict{allow: true})
		}
	}
	if started.sides == [2]*label{} {
		return nil
	}
	return started
}

// started counts a connection that began after the start of recording.
func (r *Recorder) started(f *liveFlow) {
	for _, l := range f.sides {
		if l != nil {
			r.total(l)
			r.counts(l).Started++
		}
	}
}

// total counts a connection, or a denied packet, once.
func (r *Recorder) total(l *label) {
	r.totals.add(l)
	if r.counts(l); l.crowded {
		r.lost.Crowded++
	}
}

// counts returns a label's counts in this interval. The label keeps them: to find them by Key took half of the time of
// an event.
func (r *Recorder) counts(l *label) *Counts {
	if l.counts == nil || l.interval != r.interval {
		l.counts, l.crowded = r.table.counts(&l.Key)
		l.interval = r.interval
	}
	return l.counts
}

// count adds the packets and bytes since the last call for the connection.
func (r *Recorder) count(f *liveFlow, now *netlinkx.TrackedFlow) {
	out, in := grown(f.sent, now.Sent), grown(f.received, now.Received)
	for _, l := range f.sides {
		if l == nil {
			continue
		}
		c := r.counts(l)
		if f.interval != r.interval {
			c.Flows++
		}
		add(&c.Out, out)
		add(&c.In, in)
	}
	f.interval, f.sent, f.received = r.interval, now.Sent, now.Received
}

// Denied counts a packet that policies have denied.
func (r *Recorder) Denied(d netpol.Drop) {
	by, known := d.Denied()
	if !known {
		return
	}
	packet := policy.Packet{Protocol: d.Protocol, Port: d.DstPort, SourcePort: d.SrcPort}
	if d.ICMP != 0 {
		packet.Port = d.ICMP
	}
	c := connection{client: d.Src, server: d.Dst, packet: packet}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judge == nil {
		return
	}
	if _, link := r.judge.Pod(c.subject(by.Direction)); link == "" && !byHost(by) {
		return
	}
	l := r.label(&c, by.Direction, verdict{by: by})
	r.total(l)
	counts := r.counts(l)
	counts.Flows++
	add(&counts.Out, netlinkx.Count{Packets: 1, Bytes: d.Bytes})
}

// intervals lists the connections and makes records, at the end of each interval.
func (r *Recorder) intervals(ctx context.Context) {
	var reported progress.Changes
	due := time.Now() // when the next list is due
	for first := true; ; first = false {
		if now := time.Now(); !now.Before(due) {
			err := r.list(first)
			if reported.New(err) {
				r.Log.Warn("cannot list connections for flow records", "err", err)
			}
			due = now.Add(listFactor * time.Since(now))
		}
		if !first {
			r.finish(time.Now())
		}
		if !wait.Sleep(ctx, r.Interval) {
			r.finish(time.Now())
			return
		}
	}
}

// list counts all connections in the kernel's table. Connections of the first list began before recording; they count
// from now on.
func (r *Recorder) list(first bool) error {
	addrs, err := r.Kernel.Addrs(0, netlinkx.FamilyAll)
	if err != nil {
		return fmt.Errorf("list this node's addresses: %w", err)
	}
	links, err := r.Kernel.Links()
	if err != nil {
		return fmt.Errorf("list this node's links: %w", err)
	}
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	own := make(map[netip.Addr]string, len(addrs))
	for _, a := range addrs {
		own[a.Prefix.Addr()] = names[a.Link]
	}
	r.mu.Lock()
	r.lists++
	r.own = own
	r.mu.Unlock()
	begun := time.Now()
	if err := r.Kernel.Flows(func(f netlinkx.TrackedFlow) { r.listed(&f, first, time.Since(begun) < listTime) }); err != nil {
		return err
	}
	r.forget()
	return nil
}

// listed counts a connection of a list. With judge unset, unknown connections are skipped.
func (r *Recorder) listed(f *netlinkx.TrackedFlow, first, judge bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := keyOf(f)
	known := r.live.of[key]
	if known == nil {
		if !judge || len(r.live.of) >= r.live.most {
			return
		}
		if known = r.begin(f); known == nil {
			return
		}
		r.live.of[key] = known
		if first {
			known.sent, known.received = f.Sent, f.Received
		} else {
			r.started(known)
		}
	}
	known.listed = r.lists
	r.count(known, f)
}

// forget removes connections that ended without an event.
func (r *Recorder) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, f := range r.live.of {
		if f.listed != r.lists {
			delete(r.live.of, key)
		}
	}
}

// finish ends an interval.
func (r *Recorder) finish(now time.Time) {
	r.mu.Lock()
	records := make([]stored, 0, len(r.table.of))
	for key, counts := range r.table.take() {
		records = append(records, stored{r.begun.Unix(), now.Unix(), key, *counts})
	}
	for _, s := range records {
		r.ring.add(s)
	}
	r.begun = now
	r.interval++
	r.mu.Unlock()
	r.write(records)
}

func (r *Recorder) write(records []stored) {
	if r.File == nil || len(records) == 0 {
		return
	}
	err := r.File.Append(func(encode func(any) error) error {
		for i := range records {
			if err := encode(records[i].record(r.Node)); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		return
	}
	r.mu.Lock()
	r.lost.Unwritten += uint64(len(records))
	r.mu.Unlock()
	r.Log.Warn("cannot write flow records", "err", err)
}
