package kubernetes

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// Config is how to reach an API server, and the credentials.
type Config struct {
	// Server is the URL of the API server.
	Server string
	// CAData holds PEM certificates of the authorities that may sign the server's certificate; empty means the system's
	// authorities.
	CAData []byte
	// ServerName overrides the name that the server's certificate is checked for.
	ServerName string
	// Insecure skips that check.
	Insecure bool
	// Token is a bearer token. TokenFile, if set, wins and is read again for each request: kubelet rotates it.
	Token, TokenFile string
	// CertData and KeyData are a PEM client certificate and its key.
	CertData, KeyData []byte
	// UserAgent names the program in the API server's audit log.
	UserAgent string
	// Group is the group that the cluster keeps Calico's objects in; it may ask the API server by Lock and Served. nil
	// means groups.V1.
	Group *groups.Current
}

// kubeconfig is the part of a kubeconfig file that a CNI plugin can use, without exec and auth-provider plugins.
type kubeconfig struct {
	CurrentContext string `yaml:"current-context"`
	Contexts       []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string  `yaml:"name"`
		Cluster cluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User user   `yaml:"user"`
	} `yaml:"users"`
}

type cluster struct {
	Server   string `yaml:"server"`
	CAFile   string `yaml:"certificate-authority"`
	CAData   string `yaml:"certificate-authority-data"`
	TLSName  string `yaml:"tls-server-name"`
	Insecure bool   `yaml:"insecure-skip-tls-verify"`
}

type user struct {
	Token     string `yaml:"token"`
	TokenFile string `yaml:"tokenFile"`
	CertFile  string `yaml:"client-certificate"`
	CertData  string `yaml:"client-certificate-data"`
	KeyFile   string `yaml:"client-key"`
	KeyData   string `yaml:"client-key-data"`
}

// Override replaces fields of a kubeconfig. Empty fields change nothing.
type Override struct {
	Context                   string // instead of the current one
	Server                    string
	CAFile, CertFile, KeyFile string
	Token                     string
	Insecure                  bool
}

// LoadKubeconfig reads the current context of a kubeconfig file. Errors name the file and the field, never its secrets.
func LoadKubeconfig(path string) (Config, error) {
	return LoadKubeconfigOverridden(path, Override{})
}

// LoadKubeconfigOverridden reads a context of a kubeconfig file and applies the override. Without a file (path is
// empty) the override is all.
func LoadKubeconfigOverridden(path string, o Override) (Config, error) {
	var cfg Config
	if path != "" {
		var err error
		if cfg, err = loadContext(path, o.Context); err != nil {
			return Config{}, err
		}
	}
	return o.apply(cfg)
}

func loadContext(path, name string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("kubeconfig: %w (is the install container of tortie-node running on this node?)", err)
	}
	var k kubeconfig
	if err := yaml.Unmarshal(data, &k); err != nil {
		// The parser's message may quote the file, tokens included.
		return Config{}, fmt.Errorf("kubeconfig %s: not valid YAML or JSON of a kubeconfig", path)
	}
	k.CurrentContext = cmp.Or(name, k.CurrentContext)
	cfg, err := k.resolve(filepath.Dir(path))
	if err != nil {
		return Config{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return cfg, nil
}

// apply changes a Config. A token of the override also removes a token file, which would win.
func (o Override) apply(cfg Config) (Config, error) {
	cfg.Server = cmp.Or(o.Server, cfg.Server)
	cfg.Insecure = cfg.Insecure || o.Insecure
	if o.Token != "" {
		cfg.Token, cfg.TokenFile = o.Token, ""
	}
	for _, f := range []struct {
		what, path string
		into       *[]byte
	}{
		{"certificate authority", o.CAFile, &cfg.CAData},
		{"client certificate", o.CertFile, &cfg.CertData},
		{"client key", o.KeyFile, &cfg.KeyData},
	} {
		if f.path == "" {
			continue
		}
		data, err := os.ReadFile(f.path)
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w", f.what, err)
		}
		*f.into = data
	}
	return cfg, nil
}

func (k *kubeconfig) resolve(dir string) (Config, error) {
	c, u, err := k.current()
	if err != nil {
		return Config{}, err
	}
	if c.Server == "" {
		return Config{}, errors.New("clusters[].cluster.server is empty")
	}
	cfg := Config{Server: c.Server, ServerName: c.TLSName, Insecure: c.Insecure, Token: u.Token}
	if u.TokenFile != "" {
		cfg.TokenFile = below(dir, u.TokenFile)
	}
	for _, f := range []struct {
		name, data, file string
		into             *[]byte
	}{
		{"certificate-authority", c.CAData, c.CAFile, &cfg.CAData},
		{"client-certificate", u.CertData, u.CertFile, &cfg.CertData},
		{"client-key", u.KeyData, u.KeyFile, &cfg.KeyData},
	} {
		if *f.into, err = inlineOrFile(dir, f.data, f.file); err != nil {
			return Config{}, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return cfg, nil
}

// current returns the cluster and user of the current context.
func (k *kubeconfig) current() (cluster, user, error) {
	var clusterName, userName string
	found := false
	for _, c := range k.Contexts {
		if c.Name == k.CurrentContext {
			clusterName, userName, found = c.Context.Cluster, c.Context.User, true
		}
	}
	if !found {
		return cluster{}, user{}, fmt.Errorf("current-context %q is not among contexts", k.CurrentContext)
	}
	for _, c := range k.Clusters {
		if c.Name != clusterName {
			continue
		}
		for _, u := range k.Users {
			if u.Name == userName {
				return c.Cluster, u.User, nil
			}
		}
		return cluster{}, user{}, fmt.Errorf("user %q of context %q is not among users", userName, k.CurrentContext)
	}
	return cluster{}, user{}, fmt.Errorf("cluster %q of context %q is not among clusters", clusterName, k.CurrentContext)
}

func inlineOrFile(dir, data, file string) ([]byte, error) {
	if data != "" {
		b, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, errors.New("its -data form is not base64")
		}
		return b, nil
	}
	if file == "" {
		return nil, nil
	}
	return os.ReadFile(below(dir, file))
}

// below resolves a path in a kubeconfig, which is relative to the file's directory.
func below(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
