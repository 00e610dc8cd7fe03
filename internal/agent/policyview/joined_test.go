package policyview

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
)

// Flows contain each pair of pods with a changed verdict once, however few lines they take.
func TestJoined(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		targets, want := map[string][]string{}, map[string]int{}
		density := r.IntN(10)
		for from := range 6 {
			for to := range 6 {
				if a, b := fmt.Sprint("shop/", from), fmt.Sprint("shop/", to); from != to && r.IntN(10) <= density {
					targets[a], want[a+" "+b] = append(targets[a], b), 1
				}
			}
		}
		got := map[string]int{}
		for _, f := range joined(flowKey{}, targets) {
			for _, from := range f.From {
				for _, to := range f.To {
					if from != to {
						got[from+" "+to]++
					}
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%v: flows say %v", want, got)
		}
	}
}

// Pods with changed connections among each other are one line, with pods that only send.
func TestJoinedAmongEachOther(t *testing.T) {
	flows := joined(flowKey{},
		map[string][]string{"s/a": {"s/b", "s/c"}, "s/b": {"s/a", "s/c"}, "s/c": {"s/a", "s/b"}, "s/x": {"s/a", "s/b", "s/c"}})
	if len(flows) != 1 || fmt.Sprint(flows[0].From, flows[0].To) != "[s/a s/b s/c s/x] [s/a s/b s/c]" {
		t.Errorf("%+v", flows)
	}
}
