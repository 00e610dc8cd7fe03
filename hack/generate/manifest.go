package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

const manifestPath = "manifests/tortie.yaml"

const manifestHead = `# Tortie in one file, for clusters without Helm:
#
#   kubectl apply --server-side -f manifests/tortie.yaml
#
# Generated from charts/tortie with its default values (make generate).
`

// manifest renders the chart with its default values, definitions included.
func manifest(o options) ([]byte, error) {
	text, err := render(o, "--include-crds")
	return append([]byte(manifestHead), text...), err
}

// render returns the chart's objects, without what is true of a Helm release only. Hooks are Helm's to run: elsewhere they would be
// objects like others.
func render(o options, args ...string) ([]byte, error) {
	args = append([]string{"template", "tortie", filepath.Join(o.root, "charts/tortie"), "--namespace", "kube-system", "--no-hooks"}, args...)
	out, err := exec.Command(o.helm, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	var text bytes.Buffer
	for line := range strings.Lines(string(out)) {
		if !isHelms(line) {
			text.WriteString(line)
		}
	}
	return text.Bytes(), nil
}

// isHelms finds what is true of a Helm release only: the labels by which Helm knows its objects.
func isHelms(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "helm.sh/chart:") || strings.HasPrefix(line, "app.kubernetes.io/managed-by:") ||
		strings.HasPrefix(line, "# Source: tortie/")
}
