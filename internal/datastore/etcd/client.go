package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/dialer"
)

const (
	// requestTimeout bounds one try of one request. It is longer than dialer.DeadAfter, so that requests on the
	// dead connection of an unreachable member fail first, and a read is retried on another.
	requestTimeout = 10 * time.Second
	// totalTimeout bounds all tries of one request together, and the pauses between them.
	totalTimeout = 20 * time.Second
	// maxTries bounds the tries of one request.
	maxTries = 4
	// maxResponse bounds what is read of an answer: a list of 10,000 blocks is 40 MB.
	maxResponse = 256 << 20
)

// client sends requests to one member at a time. Requests that run at once share one connection.
type client struct {
	scheme         string
	connect        func(servers []string) http.RoundTripper
	user, password string
	timeout        time.Duration // of one try

	mu      sync.Mutex // guards http and servers
	http    *http.Client
	servers []string // the one to try first comes first

	authMu sync.Mutex // guards all below; held while a token is fetched, so that one is enough
	token  string
	noAuth bool // the cluster has no authentication
}

func newClient(cfg Config) (*client, error) {
	scheme, servers, err := cfg.servers()
	if err != nil {
		return nil, err
	}
	t, err := cfg.tls(scheme)
	if err != nil {
		return nil, err
	}
	c := &client{
		scheme:  scheme,
		connect: func(servers []string) http.RoundTripper { return dialer.Transport(t, servers...) },
		timeout: requestTimeout,
		servers: servers,
		noAuth:  cfg.Username == "" || cfg.Password == "",
		user:    cfg.Username, password: cfg.Password,
	}
	c.http = &http.Client{Transport: c.connect(servers)}
	return c, nil
}

// rpc is one call.
type rpc struct {
	method string
	msg    message
	what   string // for errors: what is done to which key
	read   bool   // it changes nothing, so that it may be sent again
}

// call sends a request and returns the answer's message.
//
// It retries, with growing and jittered pauses and the next member, if the request was not sent, if the member answers
// that it did not accept it and, for reads, if there was no answer. A write that was sent may have been applied: the
// caller gets ErrUnavailable and has to read before it decides.
func (c *client) call(ctx context.Context, r rpc) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	for try := 1; ; try++ {
		data, again, err := c.try(ctx, r)
		if err == nil {
			return data, nil
		}
		err = c.explain(r, err)
		if !again || try == maxTries || ctx.Err() != nil {
			return nil, err
		}
		pause := 25 * time.Millisecond << try
		if !wait.Sleep(ctx, wait.Jitter(pause)) {
			return nil, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// try sends a request once; again reports whether it may be sent again.
func (c *client) try(ctx context.Context, r rpc) (data []byte, again bool, err error) {
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	token, err := c.authenticate(limited)
	if err != nil {
		return nil, c.passing(limited, err), err
	}
	used := c.member()
	data, err = used.unary(limited, r.method, token, r.msg)
	switch {
	case err == nil:
		return data, false, nil
	case staleToken(err):
		c.forget(token)
		return nil, true, err
	case !c.passing(ctx, err):
		return nil, false, err
	}
	// After a read has waited for one member in vain, it does not wait for the same member again.
	elsewhere := c.next(used) || limited.Err() == nil
	return nil, r.read && elsewhere || untaken(err), err
}

// member returns the member in use.
func (c *client) member() member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return member{c.http, c.scheme + "://" + c.servers[0]}
}

// next moves the first member to the end, unless that was done already. It returns false if there is no other.
func (c *client) next(failed member) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.http != failed.http || len(c.servers) == 1 {
		return len(c.servers) > 1
	}
	c.servers = append(slices.Clone(c.servers[1:]), c.servers[0])
	c.http = &http.Client{Transport: c.connect(c.servers)}
	failed.http.CloseIdleConnections()
	return true
}

// authenticate returns a token, or none if the cluster requires none.
func (c *client) authenticate(ctx context.Context) (string, error) {
	c.authMu.Lock()
	defer c.authMu.Unlock()
	if c.noAuth || c.token != "" {
		return c.token, nil
	}
	data, err := c.member().unary(ctx, methodAuthenticate, "", authenticateRequest(c.user, c.password))
	var s *statusError
	if errors.As(err, &s) && s.code == codeFailedPrecondition && strings.Contains(s.message, "authentication is not enabled") {
		c.noAuth = true
		return "", nil
	}
	if err == nil {
		c.token, err = decodeToken(data)
	}
	if err != nil {
		return "", &authError{user: c.user, err: err}
	}
	return c.token, nil
}

// forget drops a token that etcd no longer accepts, unless there is another already.
func (c *client) forget(token string) {
	c.authMu.Lock()
	defer c.authMu.Unlock()
	if c.token == token {
		c.token = ""
	}
}

// authError is a failure to get a token.
type authError struct {
	user string
	err  error
}

func (e *authError) Error() string { return fmt.Sprintf("log in as %q: %v", e.user, e.err) }
func (e *authError) Unwrap() error { return e.err }

// staleToken reports whether etcd requires another token: a simple one ends after five minutes, at a restart of the
// member, and when users or roles change. The request was not carried out.
func staleToken(err error) bool {
	var s *statusError
	return errors.As(err, &s) &&
		(strings.Contains(s.message, "invalid auth token") || strings.Contains(s.message, "revision of auth store is old"))
}

// passing reports whether the failure is the member's or the network's, and not the request's.
func (c *client) passing(ctx context.Context, err error) bool {
	var s *statusError
	if !errors.As(err, &s) {
		return ctx.Err() == nil
	}
	return s.code == codeUnavailable || untaken(err)
}

// untaken reports whether the request certainly had no effect.
func untaken(err error) bool {
	var unsent *dialer.Error
	var s *statusError
	switch {
	case errors.As(err, &unsent):
		return true
	case errors.As(err, &s):
		return s.message == "etcdserver: no leader" || s.message == "etcdserver: too many requests"
	}
	return false
}

// explain adds the request and the member, and wraps the error that callers branch on.
func (c *client) explain(r rpc, err error) error {
	var s *statusError
	if !errors.As(err, &s) {
		return fmt.Errorf("%s: %w: no answer from etcd at %s: %w", r.what, datastore.ErrUnavailable, c.endpoints(), err)
	}
	if kind := sentinel(s); kind != nil {
		return fmt.Errorf("%s: %w: %w", r.what, kind, err)
	}
	return fmt.Errorf("%s: %w", r.what, err)
}

func (c *client) endpoints() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.scheme + "://" + strings.Join(c.servers, ","+c.scheme+"://")
}

func sentinel(s *statusError) error {
	switch s.code {
	case codePermissionDenied, codeUnauthenticated:
		return datastore.ErrUnauthorized
	case codeCanceled, codeDeadlineExceeded, codeResourceExhausted, codeAborted, codeInternal, codeUnavailable, codeDataLoss:
		return datastore.ErrUnavailable
	case codeInvalidArgument:
		// etcd has no code of its own for these.
		for _, text := range []string{"authentication failed", "user name is empty", "invalid auth token", "revision of auth store is old"} {
			if strings.Contains(s.message, text) {
				return datastore.ErrUnauthorized
			}
		}
	}
	return nil
}
