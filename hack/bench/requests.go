package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// asked is the requests of one operation to the API server.
type asked struct {
	subject     string
	operation   string
	requests    [][]string // by round
	connections int
}

func (a asked) count() int {
	n := 0
	for _, round := range a.requests {
		n += len(round)
	}
	return n
}

// Operations whose requests are counted.
const (
	firstAdd = "ADD of a node's first pod"
	nthAdd   = "ADD"
	oneDel   = "DEL"
)

// runRequests counts the requests of each operation through a proxy, on a new node without a block.
func runRequests(ctx context.Context, c *cluster, subjects []subject, bin string) ([]asked, error) {
	p, err := newProxy(c)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	var all []asked
	for _, s := range subjects {
		if !s.asksAPI || !s.del {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		// A new node for each: it must not own a block.
		if err := c.addNodes(len(c.nodes)+1, bin, 3); err != nil {
			return nil, err
		}
		n := c.nodes[len(c.nodes)-1]
		if err := n.write(kubeconfigPath, p.kubeconfig(c.token)); err != nil {
			return nil, err
		}
		of, err := p.count(c, s, n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, of...)
	}
	return all, nil
}

func (p *proxy) count(c *cluster, s subject, n *node) ([]asked, error) {
	boxes := sandboxes(s, n, 3)
	var all []asked
	for _, step := range []struct {
		name, verb string
		box        sandbox
	}{{firstAdd, "ADD", boxes[0]}, {nthAdd, "ADD", boxes[1]}, {oneDel, "DEL", boxes[1]}, {"", "DEL", boxes[0]}} {
		if err := s.prepare(c, n); err != nil {
			return nil, err
		}
		if err := c.settle(); err != nil {
			return nil, err
		}
		p.take()
		if _, _, err := step.box.do(c, step.verb); err != nil {
			return nil, err
		}
		requests, connections := p.take()
		if step.name != "" {
			all = append(all, asked{s.name, step.name, requests, connections})
		}
	}
	return all, nil
}

// settle waits until lists from the API server's cache are current: otherwise a plugin may have to retry.
func (c *cluster) settle() error {
	for _, kind := range []string{"ippools", "ipreservations", "blockaffinities", "ipamblocks"} {
		var list struct {
			Metadata struct{ ResourceVersion string }
		}
		if err := c.do(http.MethodGet, crdPath+kind, nil, &list); err != nil {
			return err
		}
		fresh := "?resourceVersionMatch=NotOlderThan&resourceVersion=" + list.Metadata.ResourceVersion
		if err := c.do(http.MethodGet, crdPath+kind+fresh, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// summary lists requests with their counts, by round.
func summary(requests [][]string) string {
	var texts []string
	for i, round := range requests {
		times := map[string]int{}
		for _, r := range round {
			times[r]++
		}
		var parts []string
		for _, r := range slices.Sorted(maps.Keys(times)) {
			if times[r] > 1 {
				r = fmt.Sprintf("%s ×%d", r, times[r])
			}
			parts = append(parts, r)
		}
		texts = append(texts, fmt.Sprintf("%d: %s", i+1, strings.Join(parts, ", ")))
	}
	return strings.Join(texts, "; ")
}
