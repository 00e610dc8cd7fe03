package install

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/tortie-net/tortie/internal/app/wait"
)

// coalesce is the wait for further events: the kubelet replaces the files of a directory in several steps.
const coalesce = 50 * time.Millisecond

// changesIn returns a channel that becomes readable after a change in a directory. Changes between two reads become
// one. If the directory cannot be watched, it logs that once, with the consequence late.
func changesIn(ctx context.Context, dir, late string, log *slog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	watcher, err := watchDir(dir)
	if err != nil {
		log.Warn("a directory cannot be watched", "late", late, "error", err)
		return changed
	}
	go func() {
		defer watcher.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-watcher.Events:
				if !ok {
					return
				}
			case err := <-watcher.Errors: // some events were lost, which counts as a change
				log.Info("watching a directory", "dir", dir, "error", err)
			}
			if !wait.Sleep(ctx, coalesce) {
				return
			}
			drain(watcher.Events)
			wait.Signal(changed)
		}
	}()
	return changed
}

func drain(events <-chan fsnotify.Event) {
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		default:
			return
		}
	}
}

func watchDir(dir string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	if err := watcher.Add(dir); err != nil {
		watcher.Close()
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	return watcher, nil
}
