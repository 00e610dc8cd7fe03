package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Names of figures of the part burst.
const (
	allADDs   = "all ADDs"
	conflicts = "conflicts of an ADD"
)

// bursts runs bursts of each size on one node, alternating between the subjects that leave state behind.
func (b *bench) bursts(ctx context.Context) error {
	for range b.size.repeats {
		for _, count := range b.size.bursts {
			for _, s := range b.subjects {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if !s.del {
					continue
				}
				if err := b.burst(s, count); err != nil {
					return fmt.Errorf("%s, %d at once: %w", s.name, count, err)
				}
			}
		}
	}
	return nil
}

// burst runs one burst of ADDs and one of DELs.
func (b *bench) burst(s subject, count int) error {
	boxes := sandboxes(s, b.cluster.nodes[0], count)
	before, err := b.cluster.conflicts()
	if err != nil {
		return err
	}
	for _, verb := range s.verbs() {
		if err := s.prepare(b.cluster, b.cluster.nodes[0]); err != nil {
			return err
		}
		makespan, took, err := runConcurrently(b.cluster, boxes, verb)
		if err != nil {
			return err
		}
		b.record(key{"burst", s.name, count, "all " + verb + "s", "ms"}, makespan)
		b.record(key{"burst", s.name, count, verb, "ms"}, took...)
		if verb != "ADD" || !s.asksAPI {
			continue
		}
		after, err := b.cluster.conflicts()
		if err != nil {
			return err
		}
		b.record(key{"burst", s.name, count, conflicts, ""}, float64(after-before)/float64(count))
	}
	return nil
}

func sandboxes(s subject, n *node, count int) []sandbox {
	var boxes []sandbox
	for _, slot := range n.slots[:count] {
		boxes = append(boxes, newSandbox(s, n, slot))
	}
	return boxes
}

// runConcurrently executes a verb for all sandboxes at once, and returns the milliseconds until all have, and until
// each has. All must succeed, with distinct addresses.
func runConcurrently(c *cluster, boxes []sandbox, verb string) (makespan float64, took []float64, err error) {
	var wg sync.WaitGroup
	took = make([]float64, len(boxes))
	addresses, errs := make([]string, len(boxes)), make([]error, len(boxes))
	start := time.Now()
	for i, box := range boxes {
		wg.Go(func() {
			_, addresses[i], errs[i] = box.do(c, verb)
			took[i] = milliseconds(time.Since(start))
		})
	}
	wg.Wait()
	makespan = milliseconds(time.Since(start))
	return makespan, took, errors.Join(errors.Join(errs...), distinct(addresses))
}
