package install

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/config"
)

// defaultConflist is the template for an empty CNI_NETWORK_CONFIG. The chart's ConfigMap holds a copy (make generate).
//
//go:embed conflist.json
var defaultConflist string

var placeholderPattern = regexp.MustCompile(`__[A-Z0-9_]+?__`)

// Placeholder is a name that a conflist template may hold, with what it stands for.
type Placeholder struct {
	Name  string
	Help  string
	value func(config.Install) string
}

// Placeholders lists what a template of the conflist may hold, by Calico's names. A value is inserted as it stands inside
// a JSON string, or as a number where the template has no quotes.
func Placeholders() []Placeholder {
	number := strconv.Itoa
	return []Placeholder{
		{"__LOG_LEVEL__", "LOG_LEVEL", func(c config.Install) string { return c.LogLevel }},
		{"__LOG_FILE_PATH__", "LOG_FILE_PATH", func(c config.Install) string { return c.LogFile }},
		{"__DATASTORE_TYPE__", "kubernetes", func(config.Install) string { return "kubernetes" }},
		{"__KUBERNETES_NODE_NAME__", "KUBERNETES_NODE_NAME", func(c config.Install) string { return c.NodeName }},
		{"__KUBECONFIG_FILEPATH__", "path of the plugins' kubeconfig on the host", func(c config.Install) string {
			return filepath.Join(c.NetDir, KubeconfigName)
		}},
		{"__CNI_MTU__", "CNI_MTU, a number", func(c config.Install) string { return number(c.MTU) }},
		{"__KUBERNETES_SERVICE_HOST__", "KUBERNETES_SERVICE_HOST", func(c config.Install) string { return c.ServiceHost }},
		{"__KUBERNETES_SERVICE_PORT__", "KUBERNETES_SERVICE_PORT", func(c config.Install) string { return number(c.ServicePort) }},
	}
}

// renderConflist fills the placeholders of the configured template in and proves that the result is a conflist.
func renderConflist(cfg config.Install) ([]byte, error) {
	template := cfg.NetworkConfig
	if template == "" {
		template = defaultConflist
	}
	known := map[string]string{}
	var names []string
	for _, p := range Placeholders() {
		known[p.Name] = jsonInner(p.value(cfg))
		names = append(names, p.Name)
	}
	var unknown []string
	text := placeholderPattern.ReplaceAllStringFunc(template, func(name string) string {
		value, ok := known[name]
		if !ok {
			unknown = append(unknown, name)
		}
		return value
	})
	if len(unknown) > 0 {
		return nil, fmt.Errorf("CNI_NETWORK_CONFIG has unknown placeholders %s; known are %s",
			strings.Join(unknown, ", "), strings.Join(names, ", "))
	}
	text = strings.TrimSpace(text) + "\n"
	if err := checkConflist([]byte(text)); err != nil {
		return nil, fmt.Errorf("CNI_NETWORK_CONFIG with its placeholders filled in: %w", err)
	}
	return []byte(text), nil
}

// checkConflist refuses what a runtime would refuse later, on the node, for every pod.
func checkConflist(text []byte) error {
	var list struct {
		Name    string
		Plugins []struct{ Type string }
	}
	if err := json.Unmarshal(text, &list); err != nil {
		if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
			return fmt.Errorf("not JSON: line %d: %w", bytes.Count(text[:at.Offset], []byte("\n"))+1, err)
		}
		return fmt.Errorf("not a conflist: %w", err)
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

// jsonInner escapes s for the inside of a JSON string.
func jsonInner(s string) string {
	quoted, err := json.Marshal(s)
	if err != nil { // cannot be: every Go string has a JSON form
		return ""
	}
	return string(quoted[1 : len(quoted)-1])
}
