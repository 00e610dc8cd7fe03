package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
)

const (
	partGroups = "groups"
	// secondCIDR is the range of the second group's pool, as both have the same nodes.
	secondCIDR = "10.243.0.0/16"
	// pairRounds is the number of rounds of pairs per round of the part add: the difference is small.
	pairRounds = 4
)

// groups runs ADDs and DELs in pairs, one in each of Calico's API groups of the same API server: a slow moment of the
// machine affects both. Every second pair begins with the other group.
func (b *bench) groups(ctx context.Context) error {
	if err := b.cluster.define(ctx, groups.V3, b.root); err != nil {
		return fmt.Errorf("define %s: %w", groups.V3, err)
	}
	if err := b.cluster.setUp(groups.V3, secondCIDR); err != nil {
		return err
	}
	if _, err := b.cluster.idle(); err != nil { // it waits
		return err
	}
	for round := range pairRounds * b.size.rounds {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := b.pairs(); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	return nil
}

// pairs is a round.
func (b *bench) pairs() error {
	n := b.cluster.nodes[0]
	var boxes []sandbox
	for i := range b.size.perRound / 2 * 2 {
		in := groups.All[(i+i/2)%2] // one, other, other, one
		of := own()[0]
		of.name, of.group, of.conf = string(in), in, inGroup(in)
		boxes = append(boxes, newSandbox(of, n, n.slots[i]))
	}
	for _, verb := range []string{"ADD", "DEL"} {
		took := map[groups.Group][]float64{}
		var addresses []string
		for _, box := range boxes {
			if err := box.prepare(b.cluster, n); err != nil {
				return err
			}
			cost, address, err := box.do(b.cluster, verb)
			if err != nil {
				return err
			}
			took[box.group] = append(took[box.group], milliseconds(cost.wall))
			addresses = append(addresses, address)
		}
		if err := distinct(addresses); err != nil {
			return err
		}
		for _, in := range groups.All {
			b.record(key{partGroups, string(in), 0, verb, "ms"}, took[in]...)
		}
	}
	return nil
}

// inGroup returns the configuration of Tortie's plugin for a group.
func inGroup(in groups.Group) func(*cluster, *node, slot) ([]byte, error) {
	return func(_ *cluster, n *node, _ slot) ([]byte, error) {
		conf := ownConfig(n)
		conf["calico_api_group"] = string(in)
		return json.Marshal(conf)
	}
}

// define creates this project's definitions of a group, and returns when the plugins can use them.
func (c *cluster) define(ctx context.Context, in groups.Group, root string) error {
	files, err := filepath.Glob(filepath.Join(root, in.DefinitionsDir(), "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no definitions in %s (%w)", in.DefinitionsDir(), err)
	}
	var plurals []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var obj object
		if err := yaml.Unmarshal(text, &obj); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := c.do(http.MethodPost, definitionsPath, obj, nil); err != nil {
			return err
		}
		plural, _, _ := strings.Cut(obj["metadata"].(object)["name"].(string), ".")
		plurals = append(plurals, plural)
	}
	for _, plural := range plurals {
		if err := c.await(ctx, groupPath(in)+plural); err != nil {
			return err
		}
	}
	return nil
}
