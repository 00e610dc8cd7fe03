package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp"
)

const (
	// endsFile, in the state directory, has the ends of BGP sessions.
	endsFile = "tortie/bgp-sessions.json"
	// endsPause is the least time between two writes of the file.
	endsPause = 2 * time.Second
)

// sessionLog keeps the ends of BGP sessions over restarts of the agent.
type sessionLog struct {
	path string
	ends *bgp.Ends
	log  *slog.Logger
}

// recall reads the file of an earlier agent of this node. The agent works without it.
func (l sessionLog) recall() {
	text, err := os.ReadFile(l.path)
	if err == nil {
		err = l.ends.Recall(text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.log.Warn("cannot read how earlier BGP sessions ended, beginning anew", "path", l.path, "err", err)
	}
}

// run writes changes until ctx ends, and then once more.
func (l sessionLog) run(ctx context.Context) error {
	var reported progress.Changes
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-l.ends.Changed():
		}
		if err := l.save(); reported.New(err) {
			l.log.Warn("cannot keep how BGP sessions end for the next agent", "err", err)
		}
		wait.Sleep(ctx, endsPause)
	}
	return nil
}

func (l sessionLog) save() error {
	text, err := l.ends.Text()
	if err == nil {
		err = os.MkdirAll(filepath.Dir(l.path), 0o755)
	}
	if err == nil {
		_, err = hostfile.Replace(l.path, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	return nil
}
