package install

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/app/cniconf"
	"github.com/tortie-net/tortie/internal/app/config"
)

// defaultConflist is the template for an empty CNI_NETWORK_CONFIG. The chart's ConfigMap holds a copy (make generate).
//
//go:embed conflist.json
var defaultConflist string

var placeholderPattern = regexp.MustCompile(`__[A-Z0-9_]+?__`)

// Placeholder is a name in a conflist template that is replaced by a value.
type Placeholder struct {
	Name  string
	Help  string
	value func(config.Install) string
}

// Placeholders lists the valid placeholders, with Calico's names. A value is inserted in the form for the inside of a
// JSON string; numbers may stand without quotes.
func Placeholders() []Placeholder {
	number := strconv.Itoa
	return []Placeholder{
		{"__LOG_LEVEL__", "LOG_LEVEL", func(c config.Install) string { return c.LogLevel }},
		{"__LOG_FILE_PATH__", "LOG_FILE_PATH", func(c config.Install) string { return c.LogFile }},
		{"__LOG_FILE_MAX_SIZE__", "LOG_FILE_MAX_SIZE, a number", func(c config.Install) string { return number(c.LogMaxSize) }},
		{"__LOG_FILE_MAX_AGE__", "LOG_FILE_MAX_AGE, a number", func(c config.Install) string { return number(c.LogMaxAge) }},
		{"__LOG_FILE_MAX_COUNT__", "LOG_FILE_MAX_COUNT, a number", func(c config.Install) string { return number(c.LogMaxCount) }},
		{"__DATASTORE_TYPE__", "DATASTORE_TYPE", func(c config.Install) string { return c.Datastore }},
		{"__KUBERNETES_NODE_NAME__", "KUBERNETES_NODE_NAME", func(c config.Install) string { return c.NodeName }},
		{"__KUBECONFIG_FILEPATH__", "path of the plugins' kubeconfig on the host", func(c config.Install) string {
			return filepath.Join(c.NetDir, KubeconfigName)
		}},
		{"__CNI_MTU__", "CNI_MTU, a number", func(c config.Install) string { return number(c.MTU) }},
		{"__REQUIRE_MTU_FILE__", "REQUIRE_MTU_FILE, true or false",
			func(c config.Install) string { return strconv.FormatBool(c.RequireMTUFile) }},
		{"__POLICY_ENFORCED__", "true unless TORTIE_POLICY is off, then false",
			func(c config.Install) string { return strconv.FormatBool(c.Policy.Enforces()) }},
		{"__POLICY_SETUP_TIMEOUT__", "TORTIE_POLICY_SETUP_TIMEOUT_SECONDS, 0 if TORTIE_POLICY is off; a number", func(c config.Install) string {
			if !c.Policy.Enforces() {
				return "0"
			}
			return number(c.PolicyTimeout)
		}},
		{"__KUBERNETES_SERVICE_HOST__", "address of the API server", func(c config.Install) string { return c.ServiceHost }},
		{"__KUBERNETES_SERVICE_PORT__", "its port", func(c config.Install) string { return number(c.ServicePort) }},
		{"__SERVICEACCOUNT_TOKEN__", "this pod's own token, which dies with the pod: for old templates only", ownToken},
		{"__CALICO_API_GROUP__", "CALICO_API_GROUP", func(c config.Install) string { return string(c.APIGroup) }},
		{"__ETCD_ENDPOINTS__", "ETCD_ENDPOINTS", func(c config.Install) string { return c.EtcdEndpoints }},
		{"__ETCD_DISCOVERY_SRV__", "ETCD_DISCOVERY_SRV", func(c config.Install) string { return c.EtcdDiscovery }},
		{"__ETCD_CA_CERT_FILE__", "path of etcd-ca on the host; empty without one", func(c config.Install) string { return etcdPath(c, etcdCA) }},
		{"__ETCD_CERT_FILE__", "path of etcd-cert, likewise", func(c config.Install) string { return etcdPath(c, etcdCert) }},
		{"__ETCD_KEY_FILE__", "path of etcd-key, likewise", func(c config.Install) string { return etcdPath(c, etcdKey) }},
	}
}

// template returns the configured template, and its name for errors.
func template(cfg config.Install) (text, name string, err error) {
	switch {
	case cfg.NetworkFile != "":
		content, err := os.ReadFile(cfg.NetworkFile)
		if err != nil {
			return "", "", fmt.Errorf("CNI_NETWORK_CONFIG_FILE: %w (it must name a file that is mounted into this container)", err)
		}
		return string(content), "CNI_NETWORK_CONFIG_FILE " + cfg.NetworkFile, nil
	case cfg.NetworkConfig != "":
		return cfg.NetworkConfig, "CNI_NETWORK_CONFIG", nil
	}
	return defaultConflist, "the built-in template", nil
}

// renderConflist fills in the placeholders of the configured template and checks that the result has the form that its
// file name requires.
func renderConflist(cfg config.Install) ([]byte, error) {
	template, name, err := template(cfg)
	if err != nil {
		return nil, err
	}
	values := map[string]func(config.Install) string{}
	var names []string
	for _, p := range Placeholders() {
		values[p.Name] = p.value
		names = append(names, p.Name)
	}
	var unknown []string
	text := placeholderPattern.ReplaceAllStringFunc(template, func(name string) string {
		value, ok := values[name]
		if !ok {
			unknown = append(unknown, name)
			return name
		}
		return jsonInner(value(cfg))
	})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("%s has unknown placeholders %s; known are %s", name, strings.Join(unknown, ", "), strings.Join(names, ", "))
	}
	text = strings.TrimSpace(text) + "\n"
	check := checkConflist
	if filepath.Ext(cfg.ConfName) != ".conflist" {
		check = checkConf
	}
	if err := check([]byte(text)); err != nil {
		return nil, fmt.Errorf("%s with its placeholders filled in: %w", name, err)
	}
	return []byte(text), nil
}

// checkConflist rejects what a runtime would reject later, on the node, for every pod.
func checkConflist(text []byte) error {
	var list struct {
		Name    string
		Plugins []struct{ Type string }
	}
	if err := decode(text, &list); err != nil {
		return err
	}
	if list.Name == "" {
		return errors.New(`not a conflist: it has no "name"`)
	}
	if len(list.Plugins) == 0 {
		return errors.New(`not a conflist: it has no "plugins"`)
	}
	for i, p := range list.Plugins {
		if p.Type == "" {
			return fmt.Errorf(`not a conflist: plugin %d has no "type"`, i+1)
		}
	}
	return nil
}

// checkConf is checkConflist for the configuration of a single plugin, which runtimes read from files .conf and .json.
func checkConf(text []byte) error {
	var conf struct {
		Name, Type string
		Plugins    json.RawMessage
	}
	if err := decode(text, &conf); err != nil {
		return err
	}
	switch {
	case conf.Plugins != nil:
		return errors.New(`a conflist, as it has "plugins": CNI_CONF_NAME must end in .conflist`)
	case conf.Name == "":
		return errors.New(`not a network's configuration: it has no "name"`)
	case conf.Type == "":
		return errors.New(`not a network's configuration: it has no "type"`)
	}
	return nil
}

func decode(text []byte, into any) error {
	err := json.Unmarshal(text, into)
	if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
		return fmt.Errorf("not JSON: line %d: %w", bytes.Count(text[:at.Offset], []byte("\n"))+1, err)
	}
	if err != nil {
		return fmt.Errorf("not a conflist: %w", err)
	}
	return nil
}

// ownToken returns this pod's token, empty if it has none: whether the result works shows in the plugins.
func ownToken(cfg config.Install) string {
	text, err := os.ReadFile(filepath.Join(cfg.AccountDir, "token"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// preferred returns the names of other networks' configurations that a runtime uses instead of conf (foreign), and of
// multus' (meta), which calls conf: runtimes use the first file in lexical order.
func preferred(dir, conf string) (foreign, meta []string, err error) {
	files, err := cniconf.Read(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("looking for other networks: %w", err)
	}
	for _, f := range files {
		switch {
		case f.Name >= conf:
			return foreign, meta, nil
		case isMeta(f):
			meta = append(meta, f.Name)
		default:
			foreign = append(foreign, f.Name)
		}
	}
	return foreign, meta, nil
}

// isMeta reports whether a configuration is multus', which calls the network's, and is meant to come first.
func isMeta(f cniconf.File) bool {
	return len(f.Types) > 0 && strings.HasPrefix(f.Types[0], "multus")
}

// jsonInner escapes s for the inside of a JSON string.
func jsonInner(s string) string {
	quoted, err := json.Marshal(s)
	if err != nil { // impossible: every Go string has a JSON form
		return ""
	}
	return string(quoted[1 : len(quoted)-1])
}
