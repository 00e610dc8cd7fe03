package install

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/config"
	"github.com/tortie-net/tortie/internal/hostfile"
)

const (
	// firstTokenLimit is how long an installation waits for its token. Then it gives up, and the kubelet starts it again.
	firstTokenLimit = 30 * time.Second
	// minRenewal keeps a token that is about to die from making a storm of requests.
	minRenewal = 5 * time.Second
	firstRetry = time.Second
	maxRetry   = time.Minute
)

// Installer puts the plugins and their configuration onto the host.
type Installer struct {
	cfg    config.Install
	tokens TokenSource
	log    *slog.Logger
	// changes reports that this pod was given another token or CA.
	changes func(context.Context) <-chan struct{}
}

// New returns the Installer of a configuration that LoadInstall accepted.
func New(cfg config.Install, tokens TokenSource, log *slog.Logger) *Installer {
	changes := func(ctx context.Context) <-chan struct{} { return accountChanges(ctx, cfg.AccountDir, log) }
	return &Installer{cfg: cfg, tokens: tokens, log: log, changes: changes}
}

// Run installs and then keeps the plugins' token fresh until ctx is done, which is no error.
func (i *Installer) Run(ctx context.Context) error {
	token, err := i.install(ctx)
	if err != nil {
		return err
	}
	i.keepFresh(ctx, token.Expires)
	return nil
}

// Install writes everything once. It may be repeated: what is right is left alone.
//
// The order is binaries, kubeconfig, conflist. A runtime starts to use the network when it sees the conflist, so a run that
// is killed between any two files leaves a node that works as before or not yet, and never one that half works.
func (i *Installer) Install(ctx context.Context) error {
	_, err := i.install(ctx)
	return err
}

func (i *Installer) install(ctx context.Context) (_ Token, err error) {
	conflist, err := renderConflist(i.cfg) // first: what cannot end well should not begin
	if err != nil {
		return Token{}, err
	}
	unlock, err := hostfile.Lock(ctx, i.cfg.HostNetDir)
	if err != nil {
		return Token{}, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	for _, dir := range append(slices.Clone(i.cfg.HostBinDirs), i.cfg.HostNetDir) {
		if err := hostfile.Sweep(dir); err != nil {
			return Token{}, err
		}
	}
	written, err := copyBinaries(i.cfg.SourceDir, i.cfg.HostBinDirs)
	if err != nil {
		return Token{}, err
	}
	i.log.Info("plugins are in place", "dirs", i.cfg.HostBinDirs, "written", written)
	token, err := i.firstToken(ctx)
	if err != nil {
		return Token{}, err
	}
	if err := i.writeKubeconfig(token); err != nil {
		return Token{}, err
	}
	path := filepath.Join(i.cfg.HostNetDir, i.cfg.ConfName)
	changed, err := hostfile.Replace(path, conflist, 0o600)
	if err != nil {
		return Token{}, err
	}
	i.log.Info("conflist is in place", "path", path, "changed", changed)
	return token, nil
}

func (i *Installer) writeKubeconfig(token Token) error {
	text, err := renderKubeconfig(i.cfg.APIServer(), i.cfg.AccountDir, token.Value)
	if err != nil {
		return err
	}
	path := filepath.Join(i.cfg.HostNetDir, KubeconfigName)
	if _, err := hostfile.Replace(path, text, 0o600); err != nil {
		return err
	}
	i.log.Info("kubeconfig is in place", "path", path, "expires", token.Expires.UTC())
	return nil
}

// firstToken tries again for a while: on a starting node the way to the API server may appear after this container.
func (i *Installer) firstToken(ctx context.Context) (Token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, firstTokenLimit, fmt.Errorf("gave up after %v", firstTokenLimit))
	defer cancel()
	for retry := firstRetry; ; retry = min(2*retry, maxRetry) {
		token, err := i.token(ctx)
		if err == nil {
			return token, nil
		}
		wait := withJitter(retry)
		i.log.Warn("no token yet", "error", err, "retry", wait)
		if !sleep(ctx, wait) {
			return Token{}, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

func (i *Installer) token(ctx context.Context) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return i.tokens.Token(ctx)
}

// keepFresh renews the token early and without end: as long as the plugins are on the host they need one. It also writes the
// kubeconfig anew as soon as the kubelet has given this pod another CA.
func (i *Installer) keepFresh(ctx context.Context, expires time.Time) {
	changed := i.changes(ctx)
	retry := firstRetry
	wait := untilRenewal(expires)
	for pause(ctx, wait, changed) {
		token, err := i.token(ctx)
		if err == nil {
			err = i.writeKubeconfig(token)
		}
		if err != nil {
			retry = min(2*retry, maxRetry)
			wait = max(minRenewal, withJitter(retry))
			i.log.Error("token not renewed", "error", err, "expires", expires.UTC(), "retry", wait)
			continue
		}
		retry = firstRetry
		expires = token.Expires
		wait = untilRenewal(expires)
	}
}

// untilRenewal is a quarter of the remaining life plus up to as much again: early enough for many tries, and spread, so
// that a cluster's nodes do not ask together.
func untilRenewal(expires time.Time) time.Duration {
	return max(minRenewal, withJitter(time.Until(expires)/4))
}

// withJitter returns a random duration between d and twice d.
func withJitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d + rand.N(d)
}

// pause is sleep that a change ends early.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-changed:
	}
	return true
}

// sleep reports false when ctx was done first.
func sleep(ctx context.Context, d time.Duration) bool {
	return pause(ctx, d, nil)
}
