package config

import (
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func controllersEnv(vars map[string]string) Env {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestControllers(t *testing.T) {
	c, err := LoadControllers(controllersEnv(map[string]string{
		"ENABLED_CONTROLLERS": "node, loadbalancer, policy", "DATASTORE_TYPE": "kubernetes", "RECONCILER_PERIOD": "90s",
		"TORTIE_LEAK_GRACE_PERIOD": "0", "SYNC_NODE_LABELS": "false",
	}))
	errtest.Must(t, err)
	if len(c.Ignored) != 1 || !c.LoadBalancers || c.Etcd || *c.Period != 90*time.Second || *c.Grace != 0 ||
		c.Compaction != nil || *c.SyncLabels || c.NodeGrace != 10*time.Second || c.Rate != 100 || c.Address != "127.0.0.1:9095" ||
		c.Set["RECONCILER_PERIOD"] != "90s" || len(c.Set) != 5 {
		t.Errorf("%+v", c)
	}
	if c, err := LoadControllers(controllersEnv(map[string]string{"ETCD_ENDPOINTS": "http://10.0.0.1:2379"})); err != nil || !c.Etcd {
		t.Errorf("etcd by its endpoints: %+v, %v", c, err)
	}
	for name, value := range map[string]string{
		"ENABLED_CONTROLLERS": "policy", "DATASTORE_TYPE": "mysql", "RECONCILER_PERIOD": "soon", "TORTIE_LEAK_GRACE_PERIOD": "-1s",
		"TORTIE_NODE_GRACE_PERIOD": "x",
		"TORTIE_API_RATE":          "0", "TORTIE_CONTROLLERS_ADDRESS": "9095", "TORTIE_CONTROLLERS_METRICS": "all", "LOG_LEVEL": "loud",
		"SYNC_NODE_LABELS":  "perhaps",
		"COMPACTION_PERIOD": "10",
	} {
		if _, err := LoadControllers(controllersEnv(map[string]string{name: value})); err == nil || !strings.Contains(err.Error(), name+"=") {
			t.Errorf("%s=%s: %v", name, value, err)
		}
	}
}
