package kubernetes

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// secret stands for a token: no error may repeat it.
const secret = "s3cr3t-token"

// writeConfig writes a kubeconfig with these lines of YAML below cluster and user.
func writeConfig(t *testing.T, cluster, user string) string {
	t.Helper()
	indent := func(s string) string { return "    " + strings.ReplaceAll(s, "\n", "\n    ") }
	return writeFile(t, "kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: tortie\n"+
		"contexts:\n- name: other\n  context: {cluster: nowhere, user: nobody}\n- name: tortie\n  context: {cluster: local, user: cni}\n"+
		"clusters:\n- name: local\n  cluster:\n"+indent(cluster)+"\nusers:\n- name: cni\n  user:\n"+indent(user)+"\n")
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	errtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestLoadKubeconfig(t *testing.T) {
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, c := range []struct {
		name          string
		cluster, user string
		want          Config
	}{
		{
			name:    "token and inline authority",
			cluster: "server: https://10.96.0.1:443\ncertificate-authority-data: " + b64("CA"), user: "token: " + secret,
			want: Config{Server: "https://10.96.0.1:443", CAData: []byte("CA"), Token: secret},
		},
		{
			name:    "client certificate and server name",
			cluster: "server: https://[fd00::1]:6443\ntls-server-name: kubernetes",
			user:    "client-certificate-data: " + b64("CERT") + "\nclient-key-data: " + b64("KEY"),
			want:    Config{Server: "https://[fd00::1]:6443", ServerName: "kubernetes", CertData: []byte("CERT"), KeyData: []byte("KEY")},
		},
		{
			name: "no verification", cluster: "server: https://a\ninsecure-skip-tls-verify: true", user: "{}",
			want: Config{Server: "https://a", Insecure: true},
		},
		{
			name: "token file with an absolute path", cluster: "server: https://a", user: "tokenFile: /run/token",
			want: Config{Server: "https://a", TokenFile: "/run/token"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := LoadKubeconfig(writeConfig(t, c.cluster, c.user))
			errtest.Must(t, err)
			difftest.Want(t, "config", c.want, got)
		})
	}
}

// Files that a kubeconfig names lie beside it, as for kubectl.
func TestLoadKubeconfigReadsFilesBesideIt(t *testing.T) {
	path := writeConfig(t, "server: https://a\ncertificate-authority: pki/ca.crt", "tokenFile: token")
	dir := filepath.Dir(path)
	errtest.Must(t, os.Mkdir(filepath.Join(dir, "pki"), 0o755))
	errtest.Must(t, os.WriteFile(filepath.Join(dir, "pki", "ca.crt"), []byte("CA"), 0o600))
	got, err := LoadKubeconfig(path)
	errtest.Must(t, err)
	want := Config{Server: "https://a", CAData: []byte("CA"), TokenFile: filepath.Join(dir, "token")}
	difftest.Want(t, "config", want, got)
}

// Errors name the file and the field, and never the token.
func TestLoadKubeconfigErrors(t *testing.T) {
	const server = "server: https://a"
	for _, c := range []struct{ name, text, want string }{
		{"not YAML", "users: [{user: {token: " + secret + "}", "YAML"},
		{"a token where a list belongs", "users: " + secret, "YAML"},
		{"empty", "", `current-context "" contexts`},
		{"unknown context", "current-context: a", `current-context "a" contexts`},
		{"unknown cluster",
			"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: " + secret + "}}]",
			`cluster "c" context "a" clusters`},
		{"unknown user",
			"current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {" + server + "}}]",
			`user "u" context "a" users`},
	} {
		t.Run(c.name, func(t *testing.T) { wantKubeconfigError(t, writeFile(t, "kubeconfig", c.text), c.want) })
	}
	for _, c := range []struct{ name, cluster, user, want string }{
		{"no server", "tls-server-name: a", "token: " + secret, "clusters[].cluster.server"},
		{"authority not base64", server + "\ncertificate-authority-data: '%'", "token: " + secret, "certificate-authority base64"},
		{"authority missing", server + "\ncertificate-authority: ca.crt", "token: " + secret, "certificate-authority open"},
		{"certificate not base64", server, "token: " + secret + "\nclient-certificate-data: '%'", "client-certificate base64"},
		{"key not base64", server, "token: " + secret + "\nclient-key-data: '" + secret + "%'", "client-key base64"},
	} {
		t.Run(c.name, func(t *testing.T) { wantKubeconfigError(t, writeConfig(t, c.cluster, c.user), c.want) })
	}
	t.Run("no file", func(t *testing.T) {
		wantKubeconfigError(t, filepath.Join(t.TempDir(), "calico-kubeconfig"), "tortie-node")
	})
}

func wantKubeconfigError(t *testing.T, path, want string) {
	t.Helper()
	_, err := LoadKubeconfig(path)
	if !errtest.Names(err, path+" "+want) {
		t.Fatalf("error %v, want one that names %s and %s", err, path, want)
	}
	if strings.Contains(err.Error(), secret) {
		t.Errorf("error %q repeats the token", err)
	}
}

// A configuration that cannot work is refused before any request, without its secrets in the error.
func TestNewErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"no server", Config{Token: secret}, `server ""`},
		{"no scheme", Config{Server: "10.96.0.1:443", Token: secret}, `server "10.96.0.1:443"`},
		{"other scheme", Config{Server: "unix:///run/api", Token: secret}, `server "unix:///run/api"`},
		{"authority not PEM", Config{Server: "https://a", CAData: []byte("CA"), Token: secret}, "certificate-authority PEM"},
		{"key not PEM", Config{Server: "https://a", CertData: []byte("CERT"), KeyData: []byte(secret)}, "client-certificate client-key"},
		{"key missing", Config{Server: "https://a", CertData: []byte("CERT")}, "client-certificate client-key"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.cfg)
			if !errtest.Names(err, c.want) {
				t.Fatalf("error %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("error %q repeats the secret", err)
			}
		})
	}
}

// FuzzLoadKubeconfig: a kubeconfig is refused, or names a server.
func FuzzLoadKubeconfig(f *testing.F) {
	f.Add("current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {server: 'https://a'}}]\nusers: [{name: u, user: {token: x}}]")
	f.Add(`{"current-context":"a","contexts":[{"name":"a","context":{}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		path := writeFile(t, "kubeconfig", text)
		if cfg, err := LoadKubeconfig(path); err == nil && cfg.Server == "" {
			t.Errorf("accepted without a server")
		}
	})
}

func TestLoadKubeconfigOverridden(t *testing.T) {
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	path := writeConfig(t, "server: https://a\ncertificate-authority-data: "+b64("CA"), "tokenFile: /run/token")
	ca, cert, key := writeFile(t, "ca", "CA2"), writeFile(t, "cert", "CERT"), writeFile(t, "key", "KEY")
	for _, c := range []struct {
		name string
		path string
		o    Override
		want Config
	}{
		{"nothing", path, Override{}, Config{Server: "https://a", CAData: []byte("CA"), TokenFile: "/run/token"}},
		{"server", path, Override{Server: "https://b"}, Config{Server: "https://b", CAData: []byte("CA"), TokenFile: "/run/token"}},
		{"token instead of its file", path, Override{Token: secret}, Config{Server: "https://a", CAData: []byte("CA"), Token: secret}},
		{"files and no verification", path, Override{CAFile: ca, CertFile: cert, KeyFile: key, Insecure: true}, Config{
			Server: "https://a", CAData: []byte("CA2"), CertData: []byte("CERT"), KeyData: []byte("KEY"), TokenFile: "/run/token", Insecure: true,
		}},
		{"no kubeconfig", "", Override{Server: "https://b", CAFile: ca, Token: secret},
			Config{Server: "https://b", CAData: []byte("CA2"), Token: secret}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := LoadKubeconfigOverridden(c.path, c.o)
			errtest.Must(t, err)
			difftest.Want(t, "config", c.want, got)
		})
	}
	if _, err := LoadKubeconfigOverridden(path, Override{Context: "other"}); err == nil || !strings.Contains(err.Error(), `"nowhere"`) {
		t.Errorf("the other context: %v", err)
	}
	if _, err := LoadKubeconfigOverridden(path, Override{CAFile: "/none/ca"}); !errtest.Names(err, "/none/ca") {
		t.Errorf("no such file: %v", err)
	}
}
