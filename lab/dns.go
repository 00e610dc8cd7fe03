package lab

import (
	"context"
	_ "embed"
	"strings"

	"github.com/tortie-net/tortie/lab/internal/cluster"
	"github.com/tortie-net/tortie/lab/internal/node"
)

//go:embed dns.yaml
var dnsManifest string

// startDNS creates the objects of CoreDNS. Its pods wait for the pod network.
func (l *Lab) startDNS(ctx context.Context) error {
	manifest := strings.NewReplacer("IMAGE", cluster.CoreDNSImage, "ADDRESS", node.ClusterDNS).Replace(dnsManifest)
	_, err := l.tool(ctx, strings.NewReader(manifest), "kubectl", "create", "-f", "-")
	return err
}
