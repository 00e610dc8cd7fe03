package cluster

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	// fewObjects: with so many known objects or fewer, any list that is not empty is believed.
	fewObjects = 10
	// firstDoubt and mostDoubt bound the pause before the second list, which doubles while lists disagree.
	firstDoubt, mostDoubt = time.Second, 30 * time.Second
)

// doubtfulStore keeps its objects when a list lacks all or most of them, until a second request confirms it: an API
// server that has just started, or whose etcd member is behind or empty, lists too few. Deletions that a watch reports
// are believed.
type doubtfulStore[T any] struct {
	*objectStore[T]
	by    *follower
	again func(context.Context) (runtime.Object, error)
	pause wait.Backoff
}

// Replace implements cache.ReflectorStore. After an error the store is unchanged, and the reflector lists again.
func (s *doubtfulStore[T]) Replace(list []any, revision string) error {
	known := s.keys()
	left := make([]*object[T], 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(*object[T]); ok {
			left = append(left, o)
		}
	}
	if gone := missingOf(known, left); mostGone(len(known), gone) {
		if err := s.confirm(known, gone); err != nil {
			s.by.note(s.by.ctx, err)
			return err
		}
	}
	s.pause.Reset()
	return s.objectStore.Replace(list, revision)
}

func (s *doubtfulStore[T]) confirm(known map[string]bool, gone int) error {
	log := s.by.log.With("kind", s.by.name, "known", len(known), "missing", gone)
	log.Warn("list of the API server lacks most objects; what was known stays in force until a second list says the same")
	if !wait.Sleep(s.by.ctx, s.pause.Next()) {
		return context.Cause(s.by.ctx)
	}
	list, err := s.again(s.by.ctx)
	if err != nil {
		return fmt.Errorf("second list: %w", err)
	}
	var second []*object[T]
	if l, ok := list.(*objectList[T]); ok {
		second = l.Items
	}
	if missing := missingOf(known, second); !mostGone(len(known), missing) {
		return fmt.Errorf("lists disagree: one lacks %d of %d known objects, the next %d", gone, len(known), missing)
	}
	log.Info("second list of the API server lacks most objects too: they are gone")
	return nil
}

// mostGone reports whether more objects are gone than a cluster is expected to lose while a watch is interrupted.
func mostGone(known, gone int) bool {
	return known > 0 && gone == known || known > fewObjects && gone > known/2
}

// missingOf returns how many of the known objects a list lacks.
func missingOf[T any](known map[string]bool, list []*object[T]) int {
	found := map[string]bool{}
	for _, o := range list {
		if k := key(o.meta()); known[k] {
			found[k] = true
		}
	}
	return len(known) - len(found)
}

// listAgain lists the names of a source's objects at the most recent revision. It returns nil for an optional kind
// without definition, which counts as an empty list.
func listAgain(request requester, optional bool, asked *versions) func(context.Context) (runtime.Object, error) {
	return func(ctx context.Context) (runtime.Object, error) {
		asked.begin()
		list, err := inServed(ctx, asked, func(client *clients) (runtime.Object, error) {
			return request(client, metav1.ListOptions{}, asPartialList).SetHeader("Accept", asPartialList).Do(ctx).Get()
		})
		if optional && missing(err) {
			return nil, nil
		}
		return list, err
	}
}
