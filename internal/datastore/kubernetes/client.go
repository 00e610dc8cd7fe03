package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/dialer"
)

const (
	// requestTimeout bounds one try of one request. It is longer than dialer.DeadAfter, so that requests on the
	// dead connection of an unreachable server fail first, and a read is retried on a new one.
	requestTimeout = 10 * time.Second
	// totalTimeout bounds all tries of one request together, and the pauses between them.
	totalTimeout = 20 * time.Second
	// maxTries bounds the tries of one request that the server was too busy for or did not answer.
	maxTries = 4
	// maxRetryAfter bounds what a server can make one request wait between two tries.
	maxRetryAfter = 5 * time.Second
	// maxResponse bounds what is read of an answer: a list of 10,000 blocks is 40 MB.
	maxResponse = 256 << 20
)

// client sends requests to one API server. Requests that run at the same time share one HTTP/2 connection.
type client struct {
	base      *url.URL
	http      *http.Client
	transport *http.Transport // of http
	token     func() (string, error)
	userAgent string
	timeout   time.Duration // of one try
	dryRun    bool          // nothing is written
}

func newClient(cfg Config) (*client, error) {
	base, err := url.Parse(cfg.Server)
	if err != nil || base.Host == "" || (base.Scheme != "https" && base.Scheme != "http") {
		return nil, fmt.Errorf("API server %q: not a URL such as https://10.96.0.1:443", cfg.Server)
	}
	tlsConfig, err := tlsFor(cfg)
	if err != nil {
		return nil, err
	}
	transport := dialer.Transport(tlsConfig)
	return &client{
		base:      base,
		timeout:   requestTimeout,
		transport: transport,
		http: &http.Client{
			Transport: transport,
			// An API server has no business redirecting, and a redirect must not carry the token elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		token:     tokenSource(cfg),
		userAgent: cfg.UserAgent,
	}, nil
}

func tlsFor(cfg Config) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName, InsecureSkipVerify: cfg.Insecure}
	if len(cfg.CAData) > 0 {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(cfg.CAData) {
			return nil, errors.New("certificate-authority: no PEM certificate in it")
		}
	}
	if len(cfg.CertData) > 0 || len(cfg.KeyData) > 0 {
		pair, err := tls.X509KeyPair(cfg.CertData, cfg.KeyData)
		if err != nil {
			return nil, fmt.Errorf("client-certificate and client-key: %w", err)
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

func tokenSource(cfg Config) func() (string, error) {
	if cfg.TokenFile == "" {
		return func() (string, error) { return cfg.Token, nil }
	}
	return func() (string, error) {
		b, err := os.ReadFile(cfg.TokenFile)
		if err != nil {
			return "", fmt.Errorf("bearer token: %w", err)
		}
		return strings.TrimSpace(string(b)), nil
	}
}

// request is one call of the API.
type request struct {
	method      string
	path        string
	query       url.Values
	contentType string
	accept      string // empty means JSON as it is
	body        any    // encoded as JSON unless nil
}

// do sends a request and replaces the value at out by the answer (unless out is nil); on an error out stays as it was.
//
// It tries again, with growing and jittered pauses, when the server answered that it did not accept the request (429,
// 503 with Retry-After), when there was no connection to send it over and, for reads, when there was no answer or a
// 503. A write that was sent may have been applied: the caller gets ErrUnavailable and has to read before it decides.
func (c *client) do(ctx context.Context, r request, out any) error {
	var payload []byte
	if r.body != nil {
		var err error
		if payload, err = json.Marshal(r.body); err != nil {
			return fmt.Errorf("%s %s: encode: %w", r.method, r.path, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, totalTimeout)
	defer cancel()
	for try := 1; ; try++ {
		retryAfter, err := c.try(ctx, r, payload, out)
		if err == nil || retryAfter < 0 || try == maxTries {
			return err
		}
		pause := max(retryAfter, 50*time.Millisecond<<try)
		if !wait.Sleep(ctx, wait.Jitter(pause)) {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

const noRetry = time.Duration(-1)

// try sends a request once. A negative duration means that trying again is useless or unsafe.
func (c *client) try(ctx context.Context, r request, payload []byte, out any) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := c.newRequest(ctx, r, payload)
	if err != nil {
		return noRetry, err
	}
	resp, body, err := c.exchange(req)
	if err != nil {
		retry := noRetry
		var unsent *dialer.Error
		if (r.method == http.MethodGet || errors.As(err, &unsent)) && ctx.Err() == nil {
			retry = 0
		}
		return retry, c.unreachable(r, err)
	}
	if resp.StatusCode >= 300 {
		return retryAfter(r.method, resp), statusError(r, resp.StatusCode, body)
	}
	if err := replace(out, body); err != nil {
		return noRetry, fmt.Errorf("%s %s: the API server's answer: %w", r.method, r.path, err)
	}
	return 0, nil
}

// exchange sends a request and reads the whole answer.
func (c *client) exchange(req *http.Request) (*http.Response, []byte, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	return resp, body, err
}

// replace decodes JSON into a new value and stores it at out. Decoding over the old value would merge: fields that the
// answer does not have, such as the owner of a block or a label, would keep their old values.
func replace(out any, data []byte) error {
	if out == nil {
		return nil
	}
	old := reflect.ValueOf(out).Elem()
	fresh := reflect.New(old.Type())
	if err := json.Unmarshal(data, fresh.Interface()); err != nil {
		return err
	}
	old.Set(fresh.Elem())
	return nil
}

func (c *client) newRequest(ctx context.Context, r request, payload []byte) (*http.Request, error) {
	u := c.base.JoinPath(r.path)
	u.RawQuery = r.query.Encode()
	if c.dryRun && r.method != http.MethodGet {
		u.RawQuery = "dryRun=All" // no write has a query
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(payload))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	req.Header.Set("Accept", cmp.Or(r.accept, contentJSON))
	if payload != nil {
		req.Header.Set("Content-Type", r.contentType)
	}
	if c.userAgent != "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	return req, nil
}

// unreachable names the server: url.Error would repeat method and URL.
func (c *client) unreachable(r request, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("%s %s: %w: no answer from the API server at %s: %w", r.method, r.path, datastore.ErrUnavailable, c.base, err)
}

// retryAfter returns the pause before the next try: negative unless the answer is 429, or 503 with Retry-After or to a
// read.
func retryAfter(method string, resp *http.Response) time.Duration {
	seconds, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
	case resp.StatusCode == http.StatusServiceUnavailable && (err == nil || method == http.MethodGet):
	default:
		return noRetry
	}
	return min(time.Duration(max(seconds, 0))*time.Second, maxRetryAfter)
}

// statusObject is the part of the API server's Status object that is used.
type statusObject struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	Details struct {
		Kind   string `json:"kind"`
		Causes []struct {
			Field string `json:"field"`
		} `json:"causes"`
	} `json:"details"`
}

// otherUID reports whether the object has another UID than the request, which API servers refuse as a change of it.
func (s *statusObject) otherUID() bool {
	for _, c := range s.Details.Causes {
		if c.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

// statusError turns the API server's Status object into an error that wraps what callers branch on.
func statusError(r request, code int, body []byte) error {
	var s statusObject
	if json.Unmarshal(body, &s) != nil || s.Message == "" {
		s.Message = http.StatusText(code)
	}
	kind := sentinel(r, code, s)
	if kind == nil {
		return fmt.Errorf("%s %s: %s (HTTP %d)", r.method, r.path, s.Message, code)
	}
	return fmt.Errorf("%s %s: %w: %s (HTTP %d)", r.method, r.path, kind, s.Message, code)
}

// lacksPermission matches the API servers' message about failed authorization. Any other text of a 403 comes from
// admission, after that.
var lacksPermission = regexp.MustCompile(`(^|: )User "[^"]*" cannot `)

func sentinel(r request, code int, s statusObject) error {
	switch {
	case byWebhook.MatchString(s.Message):
		return datastore.ErrRefused
	case strings.Contains(s.Message, noWebhook):
		return unasked{}
	case code == http.StatusNotFound && r.method == http.MethodPut:
		return datastore.ErrConflict // it went away since it was read
	case code == http.StatusNotFound:
		return datastore.ErrNotFound
	case code == http.StatusConflict && s.Reason == "AlreadyExists":
		return datastore.ErrExists
	case code == http.StatusConflict:
		return datastore.ErrConflict
	// An operation of a JSON patch could not be applied. A result that the API server finds invalid has a kind.
	case code == http.StatusUnprocessableEntity && r.contentType == contentJSONPatch && s.Details.Kind == "":
		return datastore.ErrConflict
	case code == http.StatusUnprocessableEntity && s.otherUID():
		return datastore.ErrConflict
	case code == http.StatusUnauthorized:
		return datastore.ErrUnauthenticated
	case code == http.StatusForbidden && s.Message != http.StatusText(code) && !lacksPermission.MatchString(s.Message):
		return refusal(s.Message)
	case code == http.StatusForbidden:
		return datastore.ErrUnauthorized
	case code == http.StatusTooManyRequests, code >= 500:
		return datastore.ErrUnavailable
	}
	return nil
}
