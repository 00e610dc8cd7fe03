package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// keep writes the conflist when the agent serves, renews the token until ctx ends, and updates or restores the plugins'
// files after changes.
func (i *Installer) keep(ctx context.Context, expires time.Time) error {
	w := i.watch(ctx)
	life := lifetime{i: i, expires: expires, renewed: time.Now(), backoff: wait.Backoff{First: firstRetry, Most: maxRetry}}
	life.plan(i.untilRenewal(expires))
	life.refused() // before the watch began
	// In the order of an installation.
	restorers := []*restorer{newRestorer(eventPluginRestored), newRestorer(eventRestored)}
	var again <-chan time.Time // when to check the files
	restore := func() {
		if w.serves != nil {
			return
		}
		again = i.restoreAll(ctx, restorers)
	}
	for {
		var err error
		select {
		case <-ctx.Done():
			return nil
		case <-w.serves:
			w.serves = nil
			if err = i.begin(ctx, restorers...); err == nil {
				err = i.activate(ctx)
			}
			if err == nil {
				restore() // plugins may have been lost meanwhile
			}
		case <-w.etcd:
			if w.serves == nil {
				err = i.activate(ctx)
			}
		case <-w.network:
			err = i.reportForeign()
			restore()
		case <-w.plugins:
			restore()
		case <-again:
			restore()
		case <-w.account:
			life.renew(ctx)
		case <-w.refusals:
			life.refused()
		case <-life.due():
			life.renew(ctx)
		}
		if errors.Is(err, errUndone) {
			i.log.Warn("host files are no longer written", "error", err)
		} else if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// restoreAll restores lost files. It returns when to check again; nil: at the next change.
func (i *Installer) restoreAll(ctx context.Context, restorers []*restorer) (again <-chan time.Time) {
	var first time.Duration
	for _, r := range restorers {
		after, err := i.restore(ctx, r)
		if after > 0 && (again == nil || after < first) {
			first, again = after, time.After(after)
		}
		if err != nil {
			i.log.Warn("trying again", "error", err, "pause", after)
		}
	}
	return again
}

// watched holds the events that a resident installer waits for. A nil channel never fires.
type watched struct {
	serves   <-chan struct{} // the agent
	account  <-chan struct{} // this pod's token, the cluster's CA, or the API server's address
	refusals <-chan struct{} // plugins with a refused token
	etcd     <-chan struct{} // certificates for etcd
	network  <-chan struct{} // configurations of networks
	plugins  <-chan struct{}
}

func (i *Installer) watch(ctx context.Context) *watched {
	w := &watched{network: i.hooks.changes(ctx, i.cfg.HostNetDir,
		"another network that comes first is reported at the next start only", i.log)}
	for _, dir := range i.cfg.HostBinDirs {
		if _, kept := i.plugins[filepath.Join(dir, mainPlugin)]; kept {
			w.plugins = either(ctx, w.plugins,
				i.hooks.changes(ctx, dir, "a plugin that another program removes is put back at the next start only", i.log))
		}
	}
	if i.tokens != nil {
		w.account = i.hooks.changes(ctx, i.cfg.AccountDir, "a new CA of the cluster reaches the plugins with their next token only", i.log)
		if i.cfg.EndpointDir != "" {
			w.account = either(ctx, w.account,
				i.hooks.changes(ctx, i.cfg.EndpointDir, "a new address of the API server reaches the plugins with their next token only", i.log))
		}
		w.refusals = i.watchRefusals(ctx)
	}
	if _, err := os.Stat(i.cfg.TLSDir); err == nil {
		w.etcd = i.hooks.changes(ctx, i.cfg.TLSDir, "new certificates for etcd reach the plugins at the next start only", i.log)
	}
	if i.cfg.AgentReadyURL != "" {
		w.serves = i.agentServes(ctx)
	} else {
		now := make(chan struct{})
		close(now)
		w.serves = now
	}
	return w
}

// either returns a channel that becomes readable after one of two does.
func either(ctx context.Context, a, b <-chan struct{}) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-a:
			case <-b:
			}
			wait.Signal(out)
		}
	}()
	return out
}

// refusalFile is the path, in this container, of the file that plugins touch.
func (i *Installer) refusalFile() string {
	return filepath.Join(i.cfg.RunDir, filepath.Base(filepath.Dir(facts.TokenRefusedFile)), filepath.Base(facts.TokenRefusedFile))
}

func (i *Installer) watchRefusals(ctx context.Context) <-chan struct{} {
	const late = "a token that the API server refuses is renewed in time only: mount the host's /var/run/calico"
	if _, err := os.Stat(i.cfg.RunDir); err != nil {
		i.log.Warn("a directory cannot be watched", "late", late, "error", err)
		return nil
	}
	dir := filepath.Dir(i.refusalFile())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		i.log.Warn("a directory cannot be watched", "late", late, "error", err)
		return nil
	}
	return i.hooks.changes(ctx, dir, late, i.log)
}

// forgetRefusal removes the marker of a refused token before a new token is requested: a later marker is about the new
// one.
func (i *Installer) forgetRefusal() {
	if err := os.Remove(i.refusalFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		i.log.Info("cannot remove the token-refused marker", "error", err)
	}
}

// lifetime plans the renewals of the token.
type lifetime struct {
	i       *Installer
	expires time.Time
	renewed time.Time // last tried
	backoff wait.Backoff
	timer   *time.Timer
}

func (l *lifetime) due() <-chan time.Time {
	if l.timer == nil {
		return nil
	}
	return l.timer.C
}

func (l *lifetime) plan(wait time.Duration) {
	if l.i.tokens == nil {
		return
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.timer = time.NewTimer(wait)
}

// renew renews the token and plans the next renewal, which is soon after a failure.
func (l *lifetime) renew(ctx context.Context) {
	l.renewed = time.Now()
	token, err := l.i.renew(ctx)
	if errors.Is(err, errUndone) {
		l.i.log.Warn("host files are no longer written", "error", err)
		l.timer.Stop()
		return
	}
	if err != nil {
		pause := max(minRenewal, l.backoff.Next())
		if ctx.Err() == nil {
			l.i.log.Error("token not renewed", "error", err, "expires", l.expires.UTC(), "retry", pause)
			l.i.warn(eventTokenNotRenewed,
				fmt.Sprintf("the plugins' token, which expires at %s, could not be renewed: %v", l.expires.UTC().Format(time.RFC3339), err))
		}
		l.plan(pause)
		return
	}
	l.backoff.Reset()
	l.expires = token.Expires
	l.plan(l.i.untilRenewal(token.Expires))
}

// refused renews at once if a plugin's token was refused, or soon if it has just been renewed.
func (l *lifetime) refused() {
	if _, err := os.Stat(l.i.refusalFile()); err != nil {
		return // another file has changed in the directory
	}
	l.i.metrics.refusals.Inc()
	wait := max(0, refusalPause-time.Since(l.renewed))
	l.i.log.Warn("the API server has refused the plugins' token", "renewed in", wait)
	l.plan(wait)
}

// untilRenewal returns the configured interval, else a quarter of the remaining life plus up to as much again: early
// enough for many tries, and spread, so that a cluster's nodes do not renew at the same time.
func (i *Installer) untilRenewal(expires time.Time) time.Duration {
	if i.cfg.Refresh > 0 {
		return i.cfg.Refresh
	}
	return max(minRenewal, withJitter(time.Until(expires)/4))
}

// withJitter returns a random duration between d and twice d.
func withJitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d + rand.N(d)
}
