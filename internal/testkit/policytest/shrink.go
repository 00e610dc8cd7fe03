package policytest

import (
	"encoding/json"
	"slices"
	"time"
)

// patience bounds how long Shrink tries.
const patience = 20 * time.Second

// Shrink removes what it can of a cluster in 20 s, one object, rule or field after the other, while fails still reports
// true.
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

// failsSafely: what lacks a field may be no valid cluster any more.
func failsSafely(c *Cluster, fails func(*Cluster) bool) (failed bool) {
	defer func() {
		if recover() != nil {
			failed = false
		}
	}()
	return fails(c)
}

// identity are the fields without which an object is another one, or none.
var identity = []string{"metadata", "name", "namespace", "tier", "ip", "podIPs"}

// shrink tries to do without each member of an object, and then without each of what is below it.
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

// decode copies by way of JSON, whose tree has no types.
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
