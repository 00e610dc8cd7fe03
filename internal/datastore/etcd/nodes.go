package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// CalicoNode is Calico's own Node, which it keeps on etcd beside Kubernetes'.
type CalicoNode struct {
	Name string
	// Kubernetes is the Kubernetes Node that it stands for; empty for a host that is none.
	Kubernetes          string
	Labels, Annotations map[string]string

	value    []byte
	revision int64
}

// CalicoNodes returns all CalicoNodes.
func (s *Store) CalicoNodes(ctx context.Context) ([]CalicoNode, error) {
	prefix := prefixResources + "nodes/"
	found, err := s.find(ctx, "list "+prefix, rangeRequest{key: prefix, end: prefixEnd(prefix)})
	if err != nil {
		return nil, err
	}
	var nodes []CalicoNode
	for _, kv := range found.kvs {
		var obj struct {
			Meta api.Meta `json:"metadata"`
			Spec struct {
				OrchRefs []struct {
					NodeName     string `json:"nodeName"`
					Orchestrator string `json:"orchestrator"`
				} `json:"orchRefs"`
			} `json:"spec"`
		}
		if err := json.Unmarshal(kv.value, &obj); err != nil {
			return nil, fmt.Errorf("value of %s: %w", kv.key, err)
		}
		n := CalicoNode{
			Name: strings.TrimPrefix(kv.key, prefix), Labels: obj.Meta.Labels, Annotations: obj.Meta.Annotations,
			value: kv.value, revision: kv.revision,
		}
		for _, r := range obj.Spec.OrchRefs {
			if r.Orchestrator == "k8s" {
				n.Kubernetes = r.NodeName
			}
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Relabel writes a node's labels and annotations, if the node is unchanged since it was read. Other fields stay.
func (s *Store) Relabel(ctx context.Context, n CalicoNode, labels, annotations map[string]string) error {
	var obj, meta map[string]json.RawMessage
	if err := json.Unmarshal(n.value, &obj); err != nil {
		return fmt.Errorf("value of Calico's Node %s: %w", n.Name, err)
	}
	if err := json.Unmarshal(obj["metadata"], &meta); err != nil {
		return fmt.Errorf("metadata of Calico's Node %s: %w", n.Name, err)
	}
	for key, value := range map[string]map[string]string{"labels": labels, "annotations": annotations} {
		text, err := json.Marshal(maps.Clone(value))
		if err != nil {
			return fmt.Errorf("encode Calico's Node %s: %w", n.Name, err)
		}
		meta[key] = text
	}
	var err error
	if obj["metadata"], err = json.Marshal(meta); err != nil {
		return fmt.Errorf("encode Calico's Node %s: %w", n.Name, err)
	}
	value, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("encode Calico's Node %s: %w", n.Name, err)
	}
	return s.writeNode(ctx, "update", n, txnRequest{put: true, value: value})
}

// DeleteNode deletes a node if it is unchanged since it was read.
func (s *Store) DeleteNode(ctx context.Context, n CalicoNode) error {
	return s.writeNode(ctx, "delete", n, txnRequest{})
}

func (s *Store) writeNode(ctx context.Context, verb string, n CalicoNode, t txnRequest) error {
	t.guard.revision = n.revision
	done, err := s.commit(ctx, verb, &api.Node{Meta: api.Meta{Name: n.Name}}, t)
	if err == nil && !done.succeeded {
		return fmt.Errorf("%s Calico's Node %s: %w", verb, n.Name, datastore.ErrConflict)
	}
	return err
}
