package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// burst is the result of many concurrent executions.
type burst struct {
	subject   subject
	size      int
	add, del  []batch
	conflicts float64 // per ADD
	anonymous int64   // kB, the largest sum over all processes of a burst
	processes int
}

// batch is one verb, executed for all sandboxes at once.
type batch struct {
	makespan time.Duration
	took     durations
}

func (s batch) rate() float64 { return float64(len(s.took)) / s.makespan.Seconds() }

// runBursts runs bursts of each size on one node, alternating between the subjects.
func runBursts(ctx context.Context, c *cluster, subjects []subject, size sizes) ([]burst, error) {
	n := c.nodes[0]
	var all []burst
	for _, count := range size.bursts {
		for _, s := range subjects {
			all = append(all, burst{subject: s, size: count})
		}
	}
	for range size.repeats {
		for i := range all {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err := all[i].once(c, n, nil); err != nil {
				return nil, fmt.Errorf("%s, %d at once: %w", all[i].subject.name, all[i].size, err)
			}
		}
	}
	for i := range all {
		all[i].conflicts /= float64(size.repeats * all[i].size)
		// Once more for the memory: reading it would slow down the timed run.
		weighed := burst{subject: all[i].subject, size: all[i].size}
		if err := weighed.once(c, n, newScale()); err != nil {
			return nil, fmt.Errorf("%s, %d at once, weighed: %w", all[i].subject.name, all[i].size, err)
		}
		all[i].anonymous, all[i].processes = weighed.anonymous, weighed.processes
	}
	return all, nil
}

// once runs one burst of ADDs and one of DELs.
func (b *burst) once(c *cluster, n *node, scale *scale) error {
	if err := b.subject.prepare(c, n); err != nil {
		return err
	}
	boxes := sandboxes(b.subject, n, b.size)
	before, err := c.conflicts()
	if err != nil {
		return err
	}
	if scale != nil {
		go scale.run()
	}
	added, err := runConcurrently(c, boxes, "ADD")
	if scale != nil {
		b.anonymous, b.processes = scale.stop()
	}
	if err != nil {
		return err
	}
	b.add = append(b.add, added)
	after, err := c.conflicts()
	if err != nil {
		return err
	}
	b.conflicts += float64(after - before)
	if err := b.subject.prepare(c, n); err != nil {
		return err
	}
	deleted, err := runConcurrently(c, boxes, "DEL")
	b.del = append(b.del, deleted)
	return err
}

func sandboxes(s subject, n *node, count int) []sandbox {
	var boxes []sandbox
	for _, slot := range n.slots[:count] {
		boxes = append(boxes, newSandbox(s, n, slot))
	}
	return boxes
}

// runConcurrently executes a verb for all sandboxes at once. All must succeed, with distinct addresses.
func runConcurrently(c *cluster, boxes []sandbox, verb string) (batch, error) {
	var wg sync.WaitGroup
	took := make(durations, len(boxes))
	addresses := make([]string, len(boxes))
	errs := make([]error, len(boxes))
	start := time.Now()
	for i, box := range boxes {
		wg.Go(func() {
			_, addresses[i], errs[i] = box.do(c, verb)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	s := batch{makespan: time.Since(start), took: took}
	if err := errors.Join(errs...); err != nil {
		return s, err
	}
	if verb != "ADD" || !boxes[0].assigns {
		return s, nil
	}
	return s, distinct(addresses)
}

// nodesRun is the same number of pods on several nodes: sequentially on each node, and all at once.
type nodesRun struct {
	subject          subject
	nodes, pods      int
	oneByOne, atOnce batch
}

// runNodes runs the pods of all nodes.
func runNodes(ctx context.Context, c *cluster, subjects []subject, size sizes) ([]nodesRun, error) {
	var all []nodesRun
	for _, s := range subjects {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		r := nodesRun{subject: s, nodes: size.nodes, pods: size.podsPerNode}
		if err := r.run(c); err != nil {
			return nil, fmt.Errorf("%s on %d nodes: %w", s.name, r.nodes, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (r *nodesRun) run(c *cluster) error {
	for _, phase := range []struct {
		into *batch
		add  func([][]sandbox) (batch, error)
	}{
		{&r.oneByOne, func(nodes [][]sandbox) (batch, error) { return sequentially(c, nodes) }},
		{&r.atOnce, func(nodes [][]sandbox) (batch, error) { return runConcurrently(c, flat(nodes), "ADD") }},
	} {
		nodes, err := r.prepare(c)
		if err != nil {
			return err
		}
		if *phase.into, err = phase.add(nodes); err != nil {
			return err
		}
		if _, err := runConcurrently(c, flat(nodes), "DEL"); err != nil {
			return err
		}
	}
	return nil
}

func (r *nodesRun) prepare(c *cluster) ([][]sandbox, error) {
	var nodes [][]sandbox
	for _, n := range c.nodes[:r.nodes] {
		if err := r.subject.prepare(c, n); err != nil {
			return nil, err
		}
		nodes = append(nodes, sandboxes(r.subject, n, r.pods))
	}
	return nodes, nil
}

func flat(nodes [][]sandbox) []sandbox {
	var all []sandbox
	for _, boxes := range nodes {
		all = append(all, boxes...)
	}
	return all
}

// sequentially runs the ADDs of each node sequentially, and all nodes concurrently.
func sequentially(c *cluster, nodes [][]sandbox) (batch, error) {
	var mu sync.Mutex // guards s and addresses
	var s batch
	var addresses []string
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	start := time.Now()
	for i, boxes := range nodes {
		wg.Go(func() {
			for _, box := range boxes {
				took, address, err := box.do(c, "ADD")
				if errs[i] = err; err != nil {
					return
				}
				mu.Lock()
				s.took = append(s.took, took.wall)
				addresses = append(addresses, address)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	s.makespan = time.Since(start)
	if err := errors.Join(errs...); err != nil || !nodes[0][0].assigns {
		return s, err
	}
	return s, distinct(addresses)
}

// scale samples the memory of the child processes, without those that run already.
type scale struct {
	ignore    map[int]bool
	done      chan struct{}
	finished  chan struct{}
	anonymous int64
	processes int
}

const weighEvery = 5 * time.Millisecond

func newScale() *scale {
	s := &scale{ignore: map[int]bool{}, done: make(chan struct{}), finished: make(chan struct{})}
	for _, pid := range descendants(os.Getpid()) {
		s.ignore[pid] = true
	}
	return s
}

func (s *scale) run() {
	defer close(s.finished)
	tick := time.NewTicker(weighEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			s.weigh()
		}
	}
}

func (s *scale) weigh() {
	var sum int64
	count := 0
	for _, pid := range descendants(os.Getpid()) {
		if s.ignore[pid] {
			continue
		}
		if kB, ok := anonymous(pid); ok {
			sum += kB
			count++
		}
	}
	s.anonymous, s.processes = max(s.anonymous, sum), max(s.processes, count)
}

// stop returns the largest sample.
func (s *scale) stop() (anonymous int64, processes int) {
	close(s.done)
	<-s.finished
	return s.anonymous, s.processes
}

// anonymous returns the private memory of a process, in kB. A process before exec shares its parent's memory, and does not count.
func anonymous(pid int) (int64, bool) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return 0, false // it has exited
	}
	if self, err := os.Executable(); err != nil || exe == self {
		return 0, false
	}
	m, err := memoryOf(pid)
	return m.anonymous, err == nil
}
