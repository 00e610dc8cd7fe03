package install

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// coalesce is how long to wait for more: the kubelet replaces the files of a directory in several steps.
const coalesce = 50 * time.Millisecond

// accountChanges returns a channel that becomes readable after the kubelet has replaced files in the directory of this pod's
// service account: its token, or the cluster's CA. Changes between two reads become one. A directory that cannot be watched
// is said once: then renewal in time is all there is.
func accountChanges(ctx context.Context, dir string, log *slog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	watcher, err := watchDir(dir)
	if err != nil {
		log.Warn("a new CA of the cluster will reach the plugins only with their next token", "error", err)
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
			case err := <-watcher.Errors: // some events are lost: look
				log.Warn("watching the service account's directory", "error", err)
			}
			if !sleep(ctx, coalesce) {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
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
