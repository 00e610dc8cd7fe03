package install

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/install/objects"
)

const (
	// tokenLife is Calico's value: the plugins survive a day without the API server.
	tokenLife = 24 * time.Hour
	// callTimeout bounds one request, so that a hanging API server causes an error and not silence.
	callTimeout = 10 * time.Second
	userAgent   = "tortie-install"
	// blindRenewal is the assumed remaining life of a token without a readable expiry.
	blindRenewal = time.Hour
)

// ErrNotAllowed marks an API server's refusal to issue a token, which retries do not change.
var ErrNotAllowed = errors.New("not allowed to request a token")

// Token is a bearer token for the plugins.
type Token struct {
	Value   string
	Expires time.Time
}

// TokenSource issues tokens. ErrNotAllowed lasts until an operator changes the cluster's RBAC.
type TokenSource interface {
	Token(ctx context.Context) (Token, error)
}

// accountTokens requests tokens of a ServiceAccount. They are bound to the Node, so that the API server knows the node
// of a request, and not to the installer's pod: a token that became invalid with the pod would leave the node without a
// network until the next pod started.
type accountTokens struct {
	connect   func() (*rest.Config, error) // as this pod, to the API server's present address
	namespace string
	account   string
	node      string
	log       *slog.Logger
}

// defaultNamespace is the ServiceAccount's namespace in Calico's manifests, used without a file of the pod's namespace.
const defaultNamespace = "kube-system"

// NewTokens returns the TokenSource of the configured ServiceAccount, in the namespace of this pod, as this pod. It
// falls back to this pod's own token if TokenRequest is not allowed. It is nil without an API server, which plugins
// with etcd do not need.
func NewTokens(cfg config.Install, log *slog.Logger) (TokenSource, error) {
	own := podToken{path: filepath.Join(cfg.AccountDir, "token")}
	namespace, err := os.ReadFile(filepath.Join(cfg.AccountDir, "namespace"))
	switch {
	case errors.Is(err, fs.ErrNotExist) && cfg.Kubeconfig != "":
		namespace = []byte(defaultNamespace)
	case errors.Is(err, fs.ErrNotExist) && cfg.Datastore != "kubernetes":
		log.Info("no kubeconfig is written, as this pod has no service account", "dir", cfg.AccountDir)
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading this pod's namespace: %w (the pod needs automountServiceAccountToken)", err)
	}
	asked := &accountTokens{
		connect: func() (*rest.Config, error) { return Connect(cfg) }, namespace: strings.TrimSpace(string(namespace)),
		account: cfg.ServiceAccount, node: cfg.NodeName, log: log,
	}
	return withFallback{first: asked, second: own, log: log}, nil
}

// Connect returns how the installer itself reaches the API server. It makes no request.
func Connect(cfg config.Install) (*rest.Config, error) {
	if cfg.Kubeconfig != "" {
		api, err := clientcmd.BuildConfigFromFlags("", cfg.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("KUBECONFIG %s: %w", cfg.Kubeconfig, err)
		}
		return api, nil
	}
	cfg, err := withEndpoint(cfg)
	if err != nil {
		return nil, err
	}
	api := &rest.Config{
		Host:            cfg.APIServer(),
		BearerTokenFile: filepath.Join(cfg.AccountDir, "token"), // read again when the kubelet renews it
	}
	if cfg.SkipTLSVerify {
		api.Insecure = true
	} else {
		api.CAFile = filepath.Join(cfg.AccountDir, "ca.crt")
	}
	return api, nil
}

// Token implements TokenSource.
func (s *accountTokens) Token(ctx context.Context) (Token, error) {
	cfg, err := s.connect()
	if err != nil {
		return Token{}, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent, cfg.Timeout = userAgent, callTimeout
	api, err := objects.New(cfg) // for each token: the API server's address can change
	if err != nil {
		return Token{}, err
	}
	node := &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: s.node}
	token, err := s.request(ctx, api, node)
	if cannotBind(err) {
		s.log.Warn("the API server binds no token to a Node (Kubernetes before 1.31): a stolen token of the plugins works from anywhere until "+
			"it expires, and does not say which node it is of", "error", err)
		token, err = s.request(ctx, api, nil)
	}
	switch {
	case err == nil:
		return token, nil
	case isMissingNode(err):
		err = fmt.Errorf(
			"%w (KUBERNETES_NODE_NAME must be the name of this node in Kubernetes; a node that registers again gets its token then)", err)
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err):
		err = fmt.Errorf("%w: %w", ErrNotAllowed, err)
	}
	return Token{}, fmt.Errorf("requesting a token of ServiceAccount %s/%s: %w", s.namespace, s.account, err)
}

// request requests a token that is bound to an object; nil binds it to none. The API server fills in the object's UID.
func (s *accountTokens) request(ctx context.Context, api *objects.Client, object *authv1.BoundObjectReference) (Token, error) {
	life := int64(tokenLife / time.Second)
	issued, err := api.CreateToken(ctx, s.namespace, s.account, authv1.TokenRequestSpec{ExpirationSeconds: &life, BoundObjectRef: object})
	if err != nil {
		return Token{}, err
	}
	return Token{Value: issued.Token, Expires: issued.ExpirationTimestamp.Time}, nil
}

// cannotBind reports whether err means that the API server binds tokens to Pods and Secrets only: Kubernetes 1.29 added
// the kind Node, disabled by default.
func cannotBind(err error) bool {
	return apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)
}

// isMissingNode reports whether err means a missing Node, and not a missing ServiceAccount.
func isMissingNode(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "nodes"
}

// podToken is the token that the kubelet mounts into this pod. It becomes invalid with the pod's deletion.
type podToken struct{ path string }

// Token implements TokenSource.
func (s podToken) Token(context.Context) (Token, error) {
	text, err := os.ReadFile(s.path)
	if err != nil {
		return Token{}, fmt.Errorf("reading this pod's own token: %w", err)
	}
	value := strings.TrimSpace(string(text))
	if value == "" {
		return Token{}, fmt.Errorf("reading this pod's own token: %s is empty", s.path)
	}
	return Token{Value: value, Expires: expiry(value, time.Now())}, nil
}

// expiry returns the claim exp of a JSON web token. It does not verify the token, as the API server does.
func expiry(token string, now time.Time) time.Time {
	var claims struct {
		Expires int64 `json:"exp"`
	}
	parts := strings.Split(token, ".")
	if len(parts) == 3 {
		payload, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil && json.Unmarshal(payload, &claims) == nil && claims.Expires > 0 {
			return time.Unix(claims.Expires, 0)
		}
	}
	return now.Add(blindRenewal)
}

// withFallback uses first, and second, with a warning, if first returns ErrNotAllowed. It tries first at each renewal,
// as RBAC may have been corrected meanwhile.
type withFallback struct {
	first, second TokenSource
	log           *slog.Logger
}

// Token implements TokenSource.
func (s withFallback) Token(ctx context.Context) (Token, error) {
	token, err := s.first.Token(ctx)
	if !errors.Is(err, ErrNotAllowed) {
		return token, err
	}
	s.log.Warn("using this pod's own token for the plugins, which dies with the pod: allow create on serviceaccounts/token", "error", err)
	return s.second.Token(ctx)
}
