package policytest

import (
	"encoding/json"
	"slices"
	"time"
)

// patience bounds the time of Shrink.
const patience = 20 * time.Second

// Shrink removes what it can from a cluster within patience, one object, rule or field after the other, while fails
// still returns true.
func Shrink(c *Cluster, fails func(*Cluster) bool) *Cluster {
	tree, deadline := decode[map[string]any](c), time.Now().Add(patience)
	for again := true; again; {
		again = false
		shrink(tree, func() bool {
			ok := time.Now().Before(deadline) && failsSafely(decode[*Cluster](tree), fails)
			again = again || ok
			return ok
		})
	}
	return decode[*Cluster](tree)
}

// failsSafely is fails, or false if it panics: without some field the cluster may be invalid.
func failsSafely(c *Cluster, fails func(*Cluster) bool) (failed bool) {
	defer func() {
		if recover() != nil {
			failed = false
		}
	}()
	return fails(c)
}

// identity are the fields that identify an object, which shrink keeps.
var identity = []string{"metadata", "name", "namespace", "tier", "ip", "podIPs"}

// shrink tries to remove each member of an object, and then each part of the others.
func shrink(node any, keep func() bool) {
	object, ok := node.(map[string]any)
	if !ok {
		return
	}
	for _, key := range sortedKeys(object) {
		whole := object[key]
		if !slices.Contains(identity, key) {
			if delete(object, key); keep() {
				continue
			}
			object[key] = whole
		}
		if list, ok := whole.([]any); ok {
			shrinkList(object, key, list, keep)
			continue
		}
		shrink(whole, keep)
	}
}

func shrinkList(object map[string]any, key string, list []any, keep func() bool) {
	for i := len(list) - 1; i >= 0; i-- {
		shorter := slices.Delete(slices.Clone(list), i, i+1)
		if object[key] = shorter; keep() {
			list = shorter
		}
		object[key] = list
	}
	for _, item := range list {
		shrink(item, keep)
	}
}

// decode copies by way of JSON, as a tree without types.
func decode[T any](from any) (to T) {
	text, err := json.Marshal(from)
	if err == nil {
		err = json.Unmarshal(text, &to)
	}
	if err != nil {
		panic(err)
	}
	return to
}
