package install

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

func TestUntilRenewal(t *testing.T) {
	cases := []struct{ left, low, high time.Duration }{
		{24 * time.Hour, 6 * time.Hour, 12 * time.Hour},
		{time.Hour, 15 * time.Minute, 30 * time.Minute},
		{8 * time.Second, minRenewal, minRenewal},
		{-time.Minute, minRenewal, minRenewal},
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) { // so that no time passes between the two readings of the clock
			for range 100 {
				if got := New(config.Install{}, Options{}).untilRenewal(time.Now().Add(c.left)); got < c.low || got > c.high {
					t.Errorf("%v left: renewal in %v, want %v to %v", c.left, got, c.low, c.high)
				}
			}
		})
	}
}

func TestRunRenewsTheTokenOverDays(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		tokens := tokenFunc(func(context.Context) (Token, error) {
			times = append(times, time.Now())
			return Token{Value: fmt.Sprint("token", len(times)), Expires: time.Now().Add(tokenLife)}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 7*24*time.Hour)
		defer cancel()
		errtest.Must(t, h.unwatched(tokens).Run(ctx))
		// A week has 14 to 28 intervals of 6 to 12 hours.
		if n := len(times); n < 14 || n > 29 {
			t.Errorf("%d tokens in a week", n)
		}
		if got := read(t, h.net(KubeconfigName)); !strings.Contains(got, fmt.Sprint("token", len(times))) {
			t.Errorf("the kubeconfig has not the last of %d tokens:\n%s", len(times), got)
		}
	})
}

// The API server is unavailable for longer than the token lives. Tries continue at a bounded rate, and the first answer
// is used.
func TestRunOutlivesAnOutage(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		calls, start := 0, time.Now()
		back := start.Add(48 * time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tokens := tokenFunc(func(context.Context) (Token, error) {
			calls++
			switch {
			case calls == 1:
				return Token{Value: "first", Expires: time.Now().Add(tokenLife)}, nil
			case time.Now().Before(back):
				return Token{}, errors.New("connection refused")
			}
			time.AfterFunc(time.Second, cancel)
			return Token{Value: "second", Expires: time.Now().Add(tokenLife)}, nil
		})
		errtest.Must(t, h.unwatched(tokens).Run(ctx))
		if got := read(t, h.net(KubeconfigName)); !strings.Contains(got, "second") {
			t.Errorf("kubeconfig after the outage:\n%s", got)
		}
		if late := time.Since(back); late > 2*maxRetry+time.Second {
			t.Errorf("the token came %v after the API server", late)
		}
		if limit := int(48 * time.Hour / maxRetry); calls > limit {
			t.Errorf("%d requests during the outage, limit %d", calls, limit)
		}
	})
}

func TestFirstTokenIsWaitedForButNotForever(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		err := h.installer(tokenFunc(func(context.Context) (Token, error) {
			calls++
			return Token{}, errors.New("connection refused")
		})).Install(t.Context())
		if err == nil || !strings.Contains(err.Error(), "connection refused") || !strings.Contains(err.Error(), "30s") {
			t.Errorf("error %v does not say what failed and for how long", err)
		}
		if took := time.Since(start); took != firstTokenLimit || calls < 3 {
			t.Errorf("%d requests in %v", calls, took)
		}
	})
}

// The deadline interrupts a try: the returned error is from the try before, and names the problem.
func TestReasonOutlivesACutOffTry(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := h.installer(tokenFunc(func(ctx context.Context) (Token, error) {
			if time.Since(start) < firstTokenLimit*3/4 {
				return Token{}, errors.New("the API server says why")
			}
			<-ctx.Done()
			return Token{}, ctx.Err()
		})).Install(t.Context())
		if err == nil || !strings.Contains(err.Error(), "the API server says why") || !strings.Contains(err.Error(), "30s") {
			t.Errorf("error %v does not say what failed and for how long", err)
		}
	})
}

// A server that accepts the connection and sends nothing must not stop the renewal.
func TestHangingServerIsLeft(t *testing.T) {
	h := newHost(t)
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := h.installer(tokenFunc(func(ctx context.Context) (Token, error) {
			if calls++; calls == 1 {
				<-ctx.Done()
				return Token{}, ctx.Err()
			}
			return Token{Value: "secret", Expires: time.Now().Add(tokenLife)}, nil
		})).Install(t.Context())
		if err != nil || calls != 2 {
			t.Errorf("%d requests, error %v", calls, err)
		}
	})
}

func TestExpiry(t *testing.T) {
	now := time.Unix(1000, 0)
	jwt := func(claims string) string {
		return "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s"
	}
	cases := []struct {
		name, token string
		want        time.Time
	}{
		{"claim", jwt(`{"exp":4600}`), time.Unix(4600, 0)},
		{"no claim", jwt(`{}`), now.Add(blindRenewal)},
		{"not JSON", jwt(`exp`), now.Add(blindRenewal)},
		{"not base64", "h.*.s", now.Add(blindRenewal)},
		{"opaque", "abcdef", now.Add(blindRenewal)},
	}
	for _, c := range cases {
		if got := expiry(c.token, now); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestFallback(t *testing.T) {
	h := newHost(t)
	own := filepath.Join(h.cfg.AccountDir, "token")
	put(t, own, "the pod's own\n")
	var log bytes.Buffer
	source := func(err error) TokenSource {
		return withFallback{
			first:  tokenFunc(func(context.Context) (Token, error) { return Token{Value: "requested"}, err }),
			second: podToken{own}, log: slog.New(slog.NewTextHandler(&log, nil)),
		}
	}
	if token, err := source(nil).Token(t.Context()); err != nil || token.Value != "requested" || log.Len() > 0 {
		t.Errorf("allowed: %+v, %v, log %q", token, err, &log)
	}
	if _, err := source(errors.New("timeout")).Token(t.Context()); err == nil {
		t.Error("a passing error fell back: it must be tried again")
	}
	token, err := source(fmt.Errorf("no: %w", ErrNotAllowed)).Token(t.Context())
	if err != nil || token.Value != "the pod's own" {
		t.Errorf("not allowed: %+v, %v", token, err)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), "serviceaccounts/token") {
		t.Errorf("warning is missing: %q", &log)
	}
	unlink(t, own)
	if _, err := source(ErrNotAllowed).Token(t.Context()); err == nil || !strings.Contains(err.Error(), own) {
		t.Errorf("neither source has a token: %v", err)
	}
}

// realCluster is a namespace with a ServiceAccount for the installer's pod, in a real API server.
type realCluster struct {
	client    *kubernetes.Clientset
	api       *rest.Config // as the administrator
	namespace string
	log       bytes.Buffer // of the token sources
}

func newCluster(t *testing.T, namespace string) *realCluster {
	t.Helper()
	api := labtest.RESTConfig(t)
	client, err := kubernetes.NewForConfig(api)
	errtest.Must(t, err)
	c := &realCluster{client: client, api: api, namespace: namespace}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"tortie-node", "tortie-cni"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node()}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// node is the Node that the installer runs on.
func (c *realCluster) node() string { return c.namespace + "-node" }

// tokens returns the source of an account's tokens, for the user of cfg.
func (c *realCluster) tokens(t *testing.T, cfg *rest.Config, account string) TokenSource {
	t.Helper()
	return &accountTokens{
		connect:   func() (*rest.Config, error) { return cfg, nil },
		namespace: c.namespace, account: account, node: c.node(), log: slog.New(slog.NewTextHandler(&c.log, nil)),
	}
}

// as returns a configuration with a token of the ServiceAccount tortie-node, as the installer's pod has.
func (c *realCluster) as(t *testing.T) *rest.Config {
	t.Helper()
	request, err := c.client.CoreV1().ServiceAccounts(c.namespace).CreateToken(t.Context(), "tortie-node",
		&authv1.TokenRequest{}, metav1.CreateOptions{})
	errtest.Must(t, err)
	cfg := rest.AnonymousClientConfig(c.api)
	cfg.BearerToken = request.Status.Token
	return cfg
}

// allow gives tortie-node the one right that the chart gives it.
func (c *realCluster) allow(t *testing.T) {
	t.Helper()
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "token"},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{"tortie-cni"}, Verbs: []string{"create"},
		}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "token"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "token"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: c.namespace, Name: "tortie-node"}},
	}
	if _, err := c.client.RbacV1().Roles(c.namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.client.RbacV1().RoleBindings(c.namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestTokenRequestOnARealServer(t *testing.T) {
	c := newCluster(t, "install-token")
	tokens := c.tokens(t, c.as(t), "tortie-cni")
	if _, err := tokens.Token(t.Context()); !errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), "tortie-cni") {
		t.Fatalf("without the right: %v, want ErrNotAllowed that names the account", err)
	}
	c.allow(t)
	token := eventually(t, tokens)
	if left := time.Until(token.Expires); left < 23*time.Hour || left > 25*time.Hour {
		t.Errorf("the token lives %v, want 24 h", left)
	}
	if got := expiry(token.Value, time.Now()); got.Sub(token.Expires).Abs() > time.Second {
		t.Errorf("claim exp is %v, the server says %v", got, token.Expires)
	}
	who := c.review(t, token.Value)
	if who.User.Username != "system:serviceaccount:install-token:tortie-cni" || !slices.Equal(who.User.Extra[nodeName], []string{c.node()}) {
		t.Errorf("the token is of %+v", who.User)
	}
	// The deletion of a Node invalidates its tokens. After it has registered again it gets another.
	errtest.Must(t, c.client.CoreV1().Nodes().Delete(t.Context(), c.node(), metav1.DeleteOptions{}))
	if _, err := tokens.Token(t.Context()); errors.Is(err, ErrNotAllowed) || err == nil ||
		!strings.Contains(err.Error(), "KUBERNETES_NODE_NAME") {
		t.Errorf("without the Node: %v, want an error that names KUBERNETES_NODE_NAME and passes", err)
	}
	waittest.Until(t, time.Minute, "the token ends with its Node", func() bool { return !c.review(t, token.Value).Authenticated })
}

// nodeName is the user attribute with the node that the user's token is bound to.
const nodeName = "authentication.kubernetes.io/node-name"

// olderServer answers like Kubernetes 1.30 to a request to bind a token to a Node.
type olderServer struct{ http.RoundTripper }

func (s olderServer) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(body, []byte(`"boundObjectRef":{`)) {
		r.Body = io.NopCloser(bytes.NewReader(body))
		return s.RoundTripper.RoundTrip(r)
	}
	text := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"BadRequest","code":400,` +
		`"message":"cannot bind token to a Node object as the \"ServiceAccountTokenNodeBinding\" feature-gate is disabled"}`
	return &http.Response{
		StatusCode: http.StatusBadRequest, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(text)),
	}, nil
}

func TestServersThatBindNoTokenToNodes(t *testing.T) {
	c := newCluster(t, "install-unbound")
	c.allow(t)
	cfg := c.as(t)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper { return olderServer{rt} })
	token := eventually(t, c.tokens(t, cfg, "tortie-cni"))
	who := c.review(t, token.Value)
	if !who.Authenticated || who.User.Extra[nodeName] != nil {
		t.Errorf("the token is of %+v", who.User)
	}
	if log := c.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "feature-gate is disabled") {
		t.Errorf("no warning: %q", log)
	}
}

// throughProxy returns a host on which installer and plugins reach the real API server by a proxy that counts. The
// pod's namespace is the chart's.
func throughProxy(t *testing.T, node string) (*host, *labtest.Proxy) {
	t.Helper()
	proxy := labtest.NewProxy(t)
	cfg, err := clientcmd.BuildConfigFromFlags("", proxy.Kubeconfig())
	errtest.Must(t, err)
	client, err := kubernetes.NewForConfig(labtest.RESTConfig(t))
	errtest.Must(t, err)
	if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labtest.As(t, "tortie-cni") // grants the account the chart's rights
	h := newHost(t)
	h.cfg.Kubeconfig, h.cfg.NodeName, h.cfg.ServiceAccount = proxy.Kubeconfig(), node, "tortie-cni"
	put(t, filepath.Join(h.cfg.AccountDir, "ca.crt"), string(cfg.CAData))
	if _, err := fmt.Sscanf(strings.Replace(cfg.Host, ":", " ", 2), "https //127.0.0.1 %d", &h.cfg.ServicePort); err != nil {
		t.Fatalf("address %s of the proxy: %v", cfg.Host, err)
	}
	h.cfg.ServiceHost = "127.0.0.1"
	return h, proxy
}

// real returns an installer as the program makes it.
func (h *host) real(t *testing.T) *Installer {
	t.Helper()
	tokens, err := NewTokens(h.cfg, h.logger())
	errtest.Must(t, err)
	return New(h.cfg, Options{Tokens: tokens, Log: h.logger(), Metrics: NewMetrics()})
}

// The written kubeconfig is proven by the plugins' code, with the chart's rights. It costs two requests; afterwards a
// resident installer makes none.
func TestAnInstallationIsTwoRequests(t *testing.T) {
	h, proxy := throughProxy(t, "install-requests")
	want := map[string]int{"create serviceaccounts/token": 1, "get clusterinformations": 1}
	i := h.real(t)
	run(t, i)
	await(t, "it is installed", func() bool { return value(t, i, "tortie_install_active") == 1 })
	difftest.Want(t, "requests", want, proxy.Requests())
	first := read(t, h.net(KubeconfigName))
	// What the plugins do when they get a 401.
	await(t, "a plugin's word is heard", func() bool {
		put(t, i.refusalFile(), "")
		return value(t, i, "tortie_install_token_refusals_total") > 0
	})
	if read(t, h.net(KubeconfigName)) != first {
		t.Error("the token was renewed less than 30 seconds after the last")
	}
	difftest.Want(t, "requests", want, proxy.Requests())
}

// An account without the plugins' rights is detected before a pod fails.
func TestRightsThatAreMissingAreFound(t *testing.T) {
	h, _ := throughProxy(t, "install-rights")
	client, err := kubernetes.NewForConfig(labtest.RESTConfig(t))
	errtest.Must(t, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "without-rights"}}
	if _, err := client.CoreV1().ServiceAccounts("kube-system").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.cfg.ServiceAccount = account.Name
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	err = h.real(t).Install(ctx)
	if err == nil || !strings.Contains(err.Error(), h.net(KubeconfigName)) || !strings.Contains(err.Error(), "clusterinformations") {
		t.Errorf("error %v does not say what is missing", err)
	}
	if there(h.net("10-calico.conflist"))() {
		t.Error("there is a conflist that no pod could use")
	}
}

func TestMissingAccountOnARealServer(t *testing.T) {
	c := newCluster(t, "install-missing")
	tokens := c.tokens(t, c.api, "no-such-account")
	if _, err := tokens.Token(t.Context()); !errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), `"no-such-account"`) {
		t.Errorf("error %v does not say that the account is missing", err)
	}
}

func TestNamespaceFileIsNeeded(t *testing.T) {
	h := newHost(t)
	if _, err := NewTokens(h.cfg, slog.Default()); !errors.Is(err, os.ErrNotExist) ||
		!strings.Contains(err.Error(), "automountServiceAccountToken") {
		t.Errorf("error %v does not say what is missing", err)
	}
	put(t, filepath.Join(h.cfg.AccountDir, "namespace"), "kube-system\n")
	put(t, filepath.Join(h.cfg.AccountDir, "token"), "t")
	tokens, err := NewTokens(h.cfg, slog.Default())
	errtest.Must(t, err)
	if _, err := tokens.Token(t.Context()); err == nil {
		t.Error(`"a certificate" was accepted as the cluster's CA`)
	}
}

// eventually waits for the API server's authorizer to see the new rights.
func eventually(t *testing.T, tokens TokenSource) Token {
	t.Helper()
	var token Token
	waittest.For(t, 10*time.Second, func() (err error) {
		token, err = tokens.Token(t.Context())
		return err
	})
	return token
}

func (c *realCluster) review(t *testing.T, token string) authv1.TokenReviewStatus {
	t.Helper()
	review := &authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token}}
	answer, err := c.client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
	errtest.Must(t, err)
	return answer.Status
}
