package migrate

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// documents are the pages that show values of the chart.
var documents = []string{"migrate-from-calico.md", "get-started/kubeadm.md", "get-started/kind.md",
	"get-started/k3s.md", "get-started/bare.md"}

// The chart accepts and renders the values shown in docs/, and mounts the directories that a page names.
func TestChartTakesShownValues(t *testing.T) {
	helm, dir := labtest.Program(t, "helm"), t.TempDir()
	seen := map[string]string{}
	for _, document := range documents {
		p := readPage(t, document)
		if len(p.values) == 0 {
			t.Errorf("docs/%s shows no values", document)
		}
		for name, text := range p.values {
			file := filepath.Join(dir, name+".yaml")
			errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
			out, err := exec.Command(helm, "template", "tortie", labtest.ChartDir(), "--namespace", "kube-system", "-f", file).CombinedOutput()
			if err != nil {
				t.Errorf("docs/%s, values %s: %v\n%s", document, name, err, out)
			}
			if seen[name] != "" {
				t.Errorf("values %s are in docs/%s and in docs/%s", name, document, p.path)
			}
			seen[name] = string(out)
		}
	}
	for name, wants := range map[string][]string{
		"k3s":          {"path: /var/lib/rancher/k3s/data/cni,", "path: /var/lib/rancher/k3s/agent/etc/cni/net.d,", "10.42.0.0/16"},
		"kind":         {"docker.io/tortie-net/tortie:dev", "path: /opt/cni/bin,"},
		"bare":         {"10.244.0.0/16", "path: /etc/cni/net.d,"},
		"migrate":      {"tortie.net/network: tortie", "TORTIE_REMOVE_CALICO_RULES"},
		"flannel":      {"name: migrate", "maxUnavailable: 100%"},
		"kubeadm-dual": {`"assign_ipv6": "true"`},
	} {
		difftest.Contains(t, seen[name], wants...)
	}
}
