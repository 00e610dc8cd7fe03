package install

import (
	"context"
	"encoding/base64"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// kubeletWrites puts files into the directory of a service account as the kubelet does: a new directory, and a link to
// it that replaces the old one in one step.
func kubeletWrites(t *testing.T, dir, version, ca string) {
	t.Helper()
	data := filepath.Join(dir, version)
	errtest.Must(t, os.Mkdir(data, 0o755))
	put(t, filepath.Join(data, "ca.crt"), ca)
	link := filepath.Join(dir, "..data_tmp")
	errtest.Must(t, os.Symlink(version, link))
	errtest.Must(t, os.Rename(link, filepath.Join(dir, "..data")))
}

func TestNewCAReachesThePluginsAtOnce(t *testing.T) {
	h := newHost(t)
	ca := filepath.Join(h.cfg.AccountDir, "ca.crt")
	errtest.Must(t, os.Remove(ca))
	errtest.Must(t, os.Symlink("..data/ca.crt", ca))
	kubeletWrites(t, h.cfg.AccountDir, "..1", "the first CA")

	// The first token is for the installation. The change comes when Run is watching.
	asked := make(chan struct{}, 10)
	tokens := tokenFunc(func(context.Context) (Token, error) {
		asked <- struct{}{}
		return Token{Value: "token", Expires: time.Now().Add(tokenLife)}, nil
	})
	i := h.installer(tokens)
	watching := make(chan struct{})
	watch := i.hooks.changes
	i.hooks.changes = func(ctx context.Context, dir, late string, log *slog.Logger) <-chan struct{} {
		if dir == h.cfg.AccountDir {
			defer close(watching)
		}
		return watch(ctx, dir, late, log)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- i.Run(ctx) }()
	select {
	case <-watching:
	case err := <-ended:
		t.Fatalf("ended early: %v", err)
	}
	<-asked
	kubeletWrites(t, h.cfg.AccountDir, "..2", "the second CA")
	select {
	case <-asked:
	case <-time.After(10 * time.Second):
		t.Error("nothing was written after the CA had changed")
	}
	want := base64.StdEncoding.EncodeToString([]byte("the second CA"))
	waittest.Until(t, 10*time.Second, "the kubeconfig has the new CA",
		func() bool { return strings.Contains(read(t, h.net(KubeconfigName)), want) })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
