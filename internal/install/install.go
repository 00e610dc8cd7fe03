package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// firstTokenLimit bounds an installation's wait for a working token. Then it fails, and the kubelet restarts it.
	firstTokenLimit = 30 * time.Second
	// renewalLimit bounds one try to renew the token, two requests and the lock.
	renewalLimit = 30 * time.Second
	// onceAgentLimit is how long an installation that does not stay waits for the agent.
	onceAgentLimit = 2 * time.Minute
	// minRenewal prevents a storm of requests for a token that is about to expire.
	minRenewal = 5 * time.Second
	// refusalPause is the minimum time between two renewals after refusals: a plugin may have read the old token just
	// before it was replaced.
	refusalPause = 30 * time.Second
	firstRetry   = time.Second
	maxRetry     = time.Minute
)

// The reasons of Events.
const (
	EventFailed          = "InstallFailed"
	eventForeign         = "OtherNetworkPreferred"
	eventUnread          = "ConflistKeyUnused"
	eventTokenNotRenewed = "TokenNotRenewed"
	eventAgentNotServing = "AgentNotServing"
)

// Installer installs the plugins and their configuration on the host.
type Installer struct {
	cfg     config.Install
	tokens  TokenSource // nil if there is no API server
	log     *slog.Logger
	warn    func(reason, text string)
	past    func(reason, text string)
	metrics *Metrics
	hooks   hooks
	noted   bool // the ledger records what this process wrote

	conflist []byte            // as written last
	plugins  map[string]string // digests of the required plugins that this installer keeps, by path
}

// errUndone prevents a resident installer from overwriting what a rollback or an uninstallation has restored.
var errUndone = errors.New(
	"this host was rolled back or uninstalled while the installer ran: it writes nothing more until it is started again")

// replaceFunc is hostfile.Replace.
type replaceFunc func(path string, content []byte, mode fs.FileMode) (written bool, err error)

// hooks are functions that tests replace: to stop between two writes, and to let days pass.
type hooks struct {
	replace replaceFunc
	prove   func(ctx context.Context, kubeconfig string) error
	changes func(ctx context.Context, dir, late string, log *slog.Logger) <-chan struct{}
}

// Options are the parts and settings of an Installer.
type Options struct {
	Tokens  TokenSource // nil if there is no API server: no kubeconfig is written
	Log     *slog.Logger
	Warn    func(reason, text string) // reports a lasting problem to operators by an Event; nil: none
	Past    func(reason, text string) // reports a past problem once; nil: none
	Metrics *Metrics
}

// New returns the Installer of a configuration that LoadInstall accepted.
func New(cfg config.Install, o Options) *Installer {
	if o.Warn == nil {
		o.Warn = func(string, string) {}
	}
	if o.Past == nil {
		o.Past = func(string, string) {}
	}
	return &Installer{
		cfg: cfg, tokens: o.Tokens, log: o.Log, warn: o.Warn, past: o.Past, metrics: o.Metrics,
		hooks: hooks{replace: hostfile.Replace, prove: proveKubeconfig, changes: changesIn},
	}
}

// Run installs and then keeps the plugins' token fresh until ctx is done, which is no error.
func (i *Installer) Run(ctx context.Context) error {
	expires, err := i.prepare(ctx)
	if err != nil {
		return err
	}
	return i.keep(ctx, expires)
}

// Install writes everything once. It may be repeated: correct files are left alone.
//
// The order is binaries, kubeconfig, conflist. A runtime starts to use the network when it finds the conflist, so a run
// that is killed between any two files leaves a node that works as before or not yet, and never one that half works.
// The conflist is written when the agent serves, and when plugins and kubeconfig are proven to work on this host.
func (i *Installer) Install(ctx context.Context) error {
	if _, err := i.prepare(ctx); err != nil {
		return err
	}
	if i.cfg.AgentReadyURL != "" {
		ctx, cancel := context.WithTimeout(ctx, onceAgentLimit)
		defer cancel()
		select {
		case <-i.agentServes(ctx):
		case <-ctx.Done():
			return fmt.Errorf("this node's agent does not serve at TORTIE_AGENT_READY_URL %s: %w (gave up after %v; a container that "+
				"must end before the agent starts cannot wait for it)", i.cfg.AgentReadyURL, ctx.Err(), onceAgentLimit)
		}
	}
	return i.activate(ctx)
}

// prepare does all but the conflist. It returns the expiry of the token.
func (i *Installer) prepare(ctx context.Context) (expires time.Time, err error) {
	defer func(start time.Time) { i.metrics.seconds.Set(time.Since(start).Seconds()) }(time.Now())
	conflist, err := renderConflist(i.cfg)
	if err != nil { // checked first: without a conflist nothing else should be written
		return time.Time{}, err
	}
	var plugins []string
	err = i.locked(ctx, func(l *ledger) (err error) {
		if err := sweep(i.cfg.InstallHost); err != nil {
			return err
		}
		plugins, err = i.putPlugins(l, conflist)
		return err
	})
	if err != nil {
		return time.Time{}, err
	}
	i.log.Info("plugins are in place", "files", plugins)
	said := progress.Say(i.log, "executing the plugins to prove them")
	err = proveBinaries(ctx, plugins)
	said()
	if err != nil {
		return time.Time{}, err
	}
	if i.tokens == nil {
		return time.Time{}, nil
	}
	token, err := i.firstToken(ctx)
	return token.Expires, err
}

// activate writes the conflist, which makes a runtime use the network, and etcd's certificates before it.
func (i *Installer) activate(ctx context.Context) error {
	conflist, err := renderConflist(i.cfg)
	if err != nil {
		return err
	}
	err = i.locked(ctx, func(l *ledger) error {
		if err := l.putEtcdFiles(i.cfg, i.hooks.replace); err != nil {
			return err
		}
		if err := i.put(l, file{i.cfg.Conf(), conflist, i.cfg.ConfMode}); err != nil {
			return err
		}
		i.log.Info("conflist is in place", "path", i.cfg.Conf())
		return i.removeOld(l)
	})
	if err != nil {
		return err
	}
	i.conflist = conflist
	i.metrics.active.Set(1)
	if text := cniconf.Unread(conflist); text != "" {
		text = fmt.Sprintf("%s has %s", i.cfg.ConfName, text)
		i.log.Warn("keys of the conflist have no effect", "remedy", text)
		i.warn(eventUnread, text)
	}
	return i.reportForeign()
}

// removeOld removes the configurations that earlier installations wrote under other names.
func (i *Installer) removeOld(l *ledger) error {
	for _, path := range earlierConfs(i.cfg.InstallHost, slices.Collect(maps.Keys(l.files))) {
		if path != filepath.Join(i.cfg.HostNetDir, i.cfg.OldConfName) && !l.isOurs(path) {
			continue // it was changed since, or is gone
		}
		removed, err := l.remove(path)
		if err != nil {
			return err
		}
		if removed {
			i.log.Info("the configuration under an earlier name is removed", "path", path)
		}
	}
	return nil
}

// earlierConfs returns the paths of configurations besides the present one: OldConfName, and those in the ledger, which
// knows further names.
func earlierConfs(cfg config.InstallHost, known []string) []string {
	paths := append(known, filepath.Join(cfg.HostNetDir, cfg.OldConfName))
	slices.Sort(paths)
	return slices.DeleteFunc(slices.Compact(paths), func(path string) bool {
		return path == cfg.Conf() || filepath.Dir(path) != cfg.HostNetDir || !cniconf.Is(path)
	})
}

// locked is the function locked, but fails with errUndone after a rollback or an uninstallation.
func (i *Installer) locked(ctx context.Context, do func(*ledger) error) error {
	return locked(ctx, i.cfg.InstallHost, i.log, func(l *ledger) error {
		if i.noted && len(l.files) == 0 {
			return errUndone
		}
		err := do(l)
		i.noted = l.dir != "" && len(l.files) > 0
		return err
	})
}

func (i *Installer) put(l *ledger, files ...file) error {
	written, err := l.put(i.hooks.replace, files...)
	i.metrics.written.Add(float64(len(written)))
	if len(written) > 0 {
		i.log.Info("written", "files", written)
	}
	return err
}

// reportForeign reports the other networks that a runtime prefers.
func (i *Installer) reportForeign() error {
	foreign, meta, err := preferred(i.cfg.HostNetDir, i.cfg.ConfName)
	if err != nil {
		return err
	}
	i.metrics.foreign.Set(float64(len(foreign)))
	if len(meta) > 0 {
		i.log.Info("a meta plugin's configuration comes first, as intended", "files", meta)
	}
	if len(foreign) > 0 {
		text := fmt.Sprintf("the runtime takes %s instead of %s, as it comes first in lexical order: remove it from %s on this node, or set "+
			"CNI_CONF_NAME to a name that comes before", strings.Join(foreign, ", "), i.cfg.ConfName, i.cfg.NetDir)
		i.log.Warn("the runtime prefers another network", "files", foreign, "remedy", text)
		i.warn(eventForeign, text)
	}
	return nil
}

// renew gives the plugins a new token, and proves it by a request with the plugins' own kubeconfig.
func (i *Installer) renew(ctx context.Context) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, renewalLimit)
	defer cancel()
	token, err := i.tryRenew(ctx)
	if err != nil {
		i.metrics.renewals.WithLabelValues(resultFailed).Inc()
		return Token{}, err
	}
	i.metrics.renewed(token)
	i.log.Info("kubeconfig is in place and works", "path", i.kubeconfig(), "expires", token.Expires.UTC())
	return token, nil
}

func (i *Installer) tryRenew(ctx context.Context) (Token, error) {
	i.forgetRefusal()
	token, err := i.token(ctx)
	if err != nil {
		return Token{}, err
	}
	if err := i.writeKubeconfig(ctx, token); err != nil {
		return Token{}, &lasting{err}
	}
	err = i.hooks.prove(ctx, i.kubeconfig())
	if i.cfg.Datastore != "kubernetes" && errors.Is(err, datastore.ErrUnauthorized) && !errors.Is(err, datastore.ErrUnauthenticated) {
		err = nil // with etcd the plugins read other kinds; the API server has accepted the token
	}
	return token, err
}

func (i *Installer) writeKubeconfig(ctx context.Context, token Token) error {
	cfg, err := withEndpoint(i.cfg)
	if err != nil {
		return err
	}
	text, err := renderKubeconfig(cfg, token.Value)
	if err != nil {
		return err
	}
	return i.locked(ctx, func(l *ledger) error {
		return i.put(l, file{i.kubeconfig(), text, 0o600})
	})
}

// lasting marks a failure on this host, which, unlike the API server's, does not pass.
type lasting struct{ error }

func (l *lasting) Unwrap() error { return l.error }

func (i *Installer) token(ctx context.Context) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return i.tokens.Token(ctx)
}

func (i *Installer) kubeconfig() string { return filepath.Join(i.cfg.HostNetDir, KubeconfigName) }

// firstToken retries for firstTokenLimit: on a starting node the route to the API server may appear after this
// container. It returns the error of the last try that the limit did not interrupt, if there is one: an interrupted try
// does not show why the token does not work.
func (i *Installer) firstToken(ctx context.Context) (Token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, firstTokenLimit, fmt.Errorf("gave up after %v", firstTokenLimit))
	defer cancel()
	var reason error
	for backoff := (wait.Backoff{First: firstRetry, Most: minRenewal}); ; {
		token, err := i.renew(ctx)
		if err == nil {
			return token, nil
		}
		if errors.As(err, new(*lasting)) {
			return Token{}, err
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		pause := backoff.Next()
		i.log.Warn("cannot get a working token yet", "error", err, "retry", pause)
		if !wait.Sleep(ctx, pause) {
			return Token{}, fmt.Errorf("%w (%w)", reason, context.Cause(ctx))
		}
	}
}
