package main

import (
	"context"
	"fmt"
	"time"
)

// sequence is a subject's sequential ADDs and DELs on one node.
type sequence struct {
	subject              subject
	add, del             costs
	serverAdd, serverDel time.Duration // the API server's processor time for one
	addSize, delSize     footprint
}

// size returns the larger footprint of the two verbs.
func (s *sequence) size() footprint {
	return footprint{max(s.addSize.peak, s.delSize.peak), max(s.addSize.processes, s.delSize.processes)}
}

// runSequences runs the rounds, alternating between the subjects.
func runSequences(ctx context.Context, c *cluster, subjects []subject, size sizes) ([]sequence, error) {
	n := c.nodes[0]
	all := make([]sequence, len(subjects))
	for i, s := range subjects {
		all[i].subject = s
	}
	idle, err := c.idle()
	if err != nil {
		return nil, err
	}
	for round := range size.rounds {
		for i := range all {
			if round%2 == 1 { // in reverse order, so that the predecessor of a subject varies
				i = len(all) - 1 - i
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err := all[i].round(c, n, size.perRound, idle); err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", all[i].subject.name, round+1, err)
			}
		}
	}
	for i := range all {
		if err := all[i].weigh(c, n); err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].subject.name, err)
		}
		all[i].serverAdd /= time.Duration(size.rounds)
		all[i].serverDel /= time.Duration(size.rounds)
	}
	return all, nil
}

const (
	quietShare = 0.05
	quietTries = 20
)

// idle returns the API server's CPU usage without requests. It waits for that to become small: after new definitions the server works on in
// the background.
func (c *cluster) idle() (float64, error) {
	const pause = time.Second
	var share float64
	for range quietTries {
		before, err := c.serverCPU()
		if err != nil {
			return 0, err
		}
		time.Sleep(pause)
		after, err := c.serverCPU()
		if err != nil {
			return 0, err
		}
		if share = float64(after-before) / float64(pause); share <= quietShare {
			break
		}
	}
	return share, nil
}

// round runs ADDs and then their DELs.
func (s *sequence) round(c *cluster, n *node, count int, idle float64) error {
	if err := s.subject.prepare(c, n); err != nil {
		return err
	}
	var boxes []sandbox
	for _, slot := range n.slots[:count] {
		boxes = append(boxes, newSandbox(s.subject, n, slot))
	}
	added, server, err := series(c, boxes, "ADD", idle)
	if err != nil {
		return err
	}
	s.add = append(s.add, added)
	s.serverAdd += server
	if !s.subject.del {
		return nil
	}
	// The agent's facts are updated with the round's writes.
	if err := s.subject.prepare(c, n); err != nil {
		return err
	}
	deleted, server, err := series(c, boxes, "DEL", idle)
	if err != nil {
		return err
	}
	s.del = append(s.del, deleted)
	s.serverDel += server
	return nil
}

// series executes a verb for each sandbox, and also returns the API server's CPU time per execution.
func series(c *cluster, boxes []sandbox, verb string, idle float64) ([]cost, time.Duration, error) {
	before, err := c.serverCPU()
	if err != nil {
		return nil, 0, err
	}
	start := time.Now()
	var all []cost
	var addresses []string
	for _, box := range boxes {
		took, address, err := box.do(c, verb)
		if err != nil {
			return nil, 0, err
		}
		all = append(all, took)
		if address != "" {
			addresses = append(addresses, address)
		}
	}
	after, err := c.serverCPU()
	if err != nil {
		return nil, 0, err
	}
	used := after - before - time.Duration(idle*float64(time.Since(start)))
	return all, max(used, 0) / time.Duration(len(boxes)), distinct(addresses)
}

// weigh executes each verb once more under ptrace.
func (s *sequence) weigh(c *cluster, n *node) error {
	if err := s.subject.prepare(c, n); err != nil {
		return err
	}
	box := newSandbox(s.subject, n, n.slots[0])
	var err error
	if s.addSize, err = box.trace(c, "ADD"); err != nil || !s.subject.del {
		return err
	}
	s.delSize, err = box.trace(c, "DEL")
	return err
}

func (s sandbox) trace(c *cluster, verb string) (footprint, error) {
	e, err := s.execution(c, verb)
	if err != nil {
		return footprint{}, err
	}
	return s.node.trace(e)
}
