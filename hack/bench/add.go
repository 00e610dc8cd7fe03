package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Names of figures of the part add.
const (
	ofServer = ", CPU of the API server"
	largest  = "memory of the largest process"
)

// adds runs rounds of ADDs and then DELs, one after another on one node, alternating between the subjects.
func (b *bench) adds(ctx context.Context) error {
	idle, err := b.cluster.idle()
	if err != nil {
		return err
	}
	for round := range b.size.rounds {
		for i := range b.subjects {
			if round%2 == 1 { // in reverse order, so that the predecessor of a subject varies
				i = len(b.subjects) - 1 - i
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := b.addRound(b.subjects[i], idle); err != nil {
				return fmt.Errorf("%s, round %d: %w", b.subjects[i].name, round+1, err)
			}
		}
	}
	for _, s := range b.subjects {
		if err := b.weigh(s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (s subject) verbs() []string {
	if s.del {
		return []string{"ADD", "DEL"}
	}
	return []string{"ADD"}
}

// addRound runs ADDs and then their DELs. The agent's facts are updated with the writes between them.
func (b *bench) addRound(s subject, idle float64) error {
	boxes := sandboxes(s, b.cluster.nodes[0], b.size.perRound)
	for _, verb := range s.verbs() {
		if err := s.prepare(b.cluster, b.cluster.nodes[0]); err != nil {
			return err
		}
		if err := b.series(boxes, verb, idle); err != nil {
			return err
		}
	}
	return nil
}

// series executes a verb for each sandbox.
func (b *bench) series(boxes []sandbox, verb string, idle float64) error {
	before, err := b.cluster.serverCPU()
	if err != nil {
		return err
	}
	start := time.Now()
	var wall, cpu []float64
	var addresses []string
	for _, box := range boxes {
		took, address, err := box.do(b.cluster, verb)
		if err != nil {
			return err
		}
		wall, cpu = append(wall, milliseconds(took.wall)), append(cpu, milliseconds(took.cpu))
		addresses = append(addresses, address)
	}
	after, err := b.cluster.serverCPU()
	if err != nil {
		return err
	}
	s := boxes[0].subject
	b.record(key{"add", s.name, 0, verb, "ms"}, wall...)
	b.record(key{"add", s.name, 0, verb + ", CPU", "ms"}, cpu...)
	if s.asksAPI { // others would show its noise
		used := after - before - time.Duration(idle*float64(time.Since(start)))
		b.record(key{"add", s.name, 0, verb + ofServer, "ms"}, milliseconds(max(used, 0))/float64(len(boxes)))
	}
	return distinct(addresses)
}

const (
	quietShare = 0.05
	quietTries = 20
)

// idle returns the API server's CPU usage without requests, once it is small: after new definitions the server still
// works in the background.
func (c *cluster) idle() (share float64, err error) {
	const pause = time.Second
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

// weigh executes each verb once more below the program weigh. The memory of a process that this one starts itself would
// include this one's, as exec carries over the largest resident set (fs/exec.c, exec_mmap).
func (b *bench) weigh(s subject) error {
	n := b.cluster.nodes[0]
	box := newSandbox(s, n, n.slots[0])
	for _, verb := range s.verbs() {
		if err := s.prepare(b.cluster, n); err != nil {
			return err
		}
		e, err := box.execution(b.cluster, verb)
		if err != nil {
			return err
		}
		e.program, e.args = cniBin+"/weigh", []string{e.program}
		_, out, err := n.run(e)
		if err != nil {
			return err
		}
		kB, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil {
			return errors.New("weigh: no memory in " + string(out))
		}
		b.record(key{"add", s.name, 0, largest, "MiB"}, kB/1024)
	}
	return nil
}
