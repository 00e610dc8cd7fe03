package progress

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func TestWaitingShowsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		done := Say(slog.New(slog.NewTextHandler(&log, nil)), "waiting for something")
		waittest.Advance(50 * time.Second)
		done()
		synctest.Wait()
		if n := strings.Count(log.String(), "waiting for something"); n != 4 || !strings.Contains(log.String(), "waited=2s") {
			t.Errorf("%d lines in 50 seconds, want after 2, 6, 14 and 30 s:\n%s", n, &log)
		}
	})
}
