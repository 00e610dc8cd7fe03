package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const (
	manifestPath  = "manifests/tortie.yaml"
	uninstallPath = "manifests/uninstall.yaml"
)

const manifestHead = `# Tortie in one file, for clusters without Helm:
#
#   kubectl apply --server-side -f manifests/tortie.yaml
#
# It has definitions of crd.projectcalico.org/v1, and cannot look first. Where "kubectl get crd ippools.projectcalico.org" finds something
# use Helm, which looks: else Calico's programs turn to v1 and find it empty. If this file has created them there, delete them again:
#
#   kubectl delete -f charts/tortie/definitions/v1/
#
# Generated from charts/tortie with its default values (make generate).
`

const removal = `# What helm uninstall runs before the release goes, for clusters without Helm: it ends the agents and cleans every node.
#
#   kubectl apply -f manifests/uninstall.yaml
#   kubectl -n kube-system logs -f job/tortie-uninstall
#   kubectl delete -f manifests/uninstall.yaml
#
# Generated from charts/tortie with its default values (make generate).
`

// manifest renders the chart with its default values, after the definitions, which a hook of the chart creates.
func manifest(o options) ([]byte, error) {
	definitions, err := crdTexts(o)
	if err != nil {
		return nil, err
	}
	text, err := render(o, "--no-hooks")
	return slices.Concat([]byte(manifestHead), definitions, text), err
}

// uninstall renders the chart's uninstall hook as ordinary objects.
func uninstall(o options) ([]byte, error) {
	text, err := render(o, "--show-only", "templates/hook-uninstall.yaml")
	return append([]byte(removal), text...), err
}

// manifestFor is the oldest Kubernetes that has all kinds of the manifest.
const manifestFor = "1.31.0"

// render returns the chart's objects without hooks and the metadata of a Helm release.
func render(o options, args ...string) ([]byte, error) {
	args = append([]string{"template", "tortie", filepath.Join(o.root, "charts/tortie"), "--namespace", "kube-system",
		"--kube-version", manifestFor}, args...)
	out, err := exec.Command(o.helm, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("rendering the chart: %w", err)
	}
	var text bytes.Buffer
	lines := slices.Collect(strings.Lines(string(out)))
	for i, line := range lines {
		// Hooks have only annotations of Helm.
		emptied := strings.TrimSpace(line) == "annotations:" && i+1 < len(lines) && isHelms(lines[i+1])
		if !emptied && !isHelms(line) {
			text.WriteString(line)
		}
	}
	return withoutTest(text.Bytes()), nil
}

// withoutTest drops the objects that only `helm test` uses.
func withoutTest(text []byte) []byte {
	const between = "\n---\n"
	documents := slices.DeleteFunc(bytes.Split(text, []byte(between)), func(document []byte) bool {
		return bytes.Contains(document, []byte("\n    app.kubernetes.io/component: test\n"))
	})
	return bytes.Join(documents, []byte(between))
}

// isHelms matches metadata of a Helm release: its labels, and the annotations of hooks.
func isHelms(line string) bool {
	line = strings.TrimSpace(line)
	return strings.HasPrefix(line, "helm.sh/hook") || strings.HasPrefix(line, "helm.sh/chart:") ||
		strings.HasPrefix(line, "app.kubernetes.io/managed-by:") || strings.HasPrefix(line, "# Source: tortie/")
}
