package labtest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// WriteKubeconfig writes a kubeconfig with the server and the token of cfg into a directory, and returns its path.
func WriteKubeconfig(t testing.TB, dir string, cfg *rest.Config) string {
	t.Helper()
	named := func(key string, value map[string]any) []any { return []any{map[string]any{"name": "lab", key: value}} }
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "lab",
		"contexts": named("context", map[string]any{"cluster": "lab", "user": "lab"}),
		"users":    named("user", map[string]any{"token": cfg.BearerToken}),
		"clusters": named("cluster", map[string]any{
			"server": cfg.Host, "certificate-authority-data": cfg.CAData, "certificate-authority": cfg.CAFile, "tls-server-name": cfg.ServerName,
		}),
	})
	errtest.Must(t, err)
	path := filepath.Join(dir, "kubeconfig")
	errtest.Must(t, os.WriteFile(path, text, 0o600))
	return path
}

// PluginKubeconfig returns a kubeconfig as the install container writes it for the plugins. ca is PEM.
func PluginKubeconfig(server string, ca []byte, token string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: %q, certificate-authority-data: %q}}]
users: [{name: calico, user: {token: %q}}]
contexts: [{name: calico-context, context: {cluster: local, user: calico}}]
current-context: calico-context
`, server, base64.StdEncoding.EncodeToString(ca), token)
}

// Inside returns a configuration that reaches cfg's server from inside a namespace, at a loopback address there, until
// the test ends.
func Inside(t testing.TB, ns *netnstest.NS, cfg *rest.Config) *rest.Config {
	t.Helper()
	var l net.Listener
	ns.Within(t, func() (err error) {
		l, err = new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
		return err
	})
	t.Cleanup(func() { l.Close() })
	go Forward(l, strings.TrimPrefix(cfg.Host, "https://"))
	inside := rest.CopyConfig(cfg)
	inside.Host = "https://" + l.Addr().String()
	return inside
}
