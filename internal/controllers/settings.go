package controllers

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
)

// Settings are the settings in force: the environment overrides the object, which overrides Calico's defaults.
type Settings struct {
	Period, Grace, Compaction time.Duration
	SyncLabels                bool
	Hosts                     HostSettings
	// AssignIPs is the setting of the controller of Services; empty if it is invalid.
	AssignIPs string
}

// Calico's defaults.
const (
	defaultPeriod     = 5 * time.Minute
	defaultGrace      = 15 * time.Minute
	defaultCompaction = 10 * time.Minute
)

// effective merges the settings. A field of the object that cannot be parsed is ignored and returned as an error.
func effective(env *config.Controllers, obj *api.KubeControllersConfiguration) (Settings, error) {
	spec, node := api.KubeControllersConfigurationSpec{}, api.NodeControllerConfig{}
	if obj != nil {
		spec = obj.Spec
		if obj.Spec.Controllers.Node != nil {
			node = *obj.Spec.Controllers.Node
		}
	}
	var errs [6]error
	s := Settings{SyncLabels: node.SyncLabels != disabled}
	s.Period, errs[0] = chooseTime(env.Period, node.ReconcilerPeriod, defaultPeriod, "spec.controllers.node.reconcilerPeriod")
	s.Grace, errs[1] = chooseTime(env.Grace, node.LeakGracePeriod, defaultGrace, "spec.controllers.node.leakGracePeriod")
	s.Compaction, errs[2] = chooseTime(env.Compaction, spec.EtcdV3CompactionPeriod, defaultCompaction, "spec.etcdV3CompactionPeriod")
	s.Hosts, errs[3] = hostSettings(env.HostEndpoints, obj != nil, node.HostEndpoint)
	s.AssignIPs, errs[4] = assignIPs(spec.Controllers.LoadBalancer)
	errs[5] = spec.Keys.Misspelt((*api.KubeControllersConfiguration)(nil).ResourceType())
	if env.SyncLabels != nil {
		s.SyncLabels = *env.SyncLabels
	}
	if s.Period <= 0 {
		s.Period = defaultPeriod
	}
	return s, errors.Join(errs[:]...)
}

// assignIPs returns which Services get addresses. In an object from before Calico had the controller the section is
// absent: then a pool for Services is enough.
func assignIPs(of *api.LoadBalancerControllerConfig) (string, error) {
	switch {
	case of == nil || of.AssignIPs == "":
		return api.AllServices, nil
	case of.AssignIPs == api.AllServices || of.AssignIPs == api.RequestedServicesOnly:
		return of.AssignIPs, nil
	}
	return "", fmt.Errorf("spec.controllers.loadBalancer.assignIPs %q must be %s or %s: addresses of Services stay as they are", of.AssignIPs,
		api.AllServices, api.RequestedServicesOnly)
}

// hostSettings merges the settings of host endpoints. Without an object the administrator's intention is not known.
func hostSettings(env string, known bool, of *api.AutoHostEndpointConfig) (s HostSettings, err error) {
	if of == nil {
		of = &api.AutoHostEndpointConfig{}
	}
	s = HostSettings{Auto: env, Default: of.CreateDefaultHostEndpoint != disabled, Templates: of.Templates}
	switch auto := cmp.Or(of.AutoCreate, disabled); {
	case s.Auto != "" || !known:
	case auto == enabled || auto == disabled:
		s.Auto = auto
	default:
		err = fmt.Errorf("spec.controllers.node.hostEndpoint.autoCreate %q must be %s or %s: host endpoints stay as they are",
			auto, enabled, disabled)
	}
	return s, err
}

// chooseTime returns the environment's value, else the object's, else the default.
func chooseTime(env *time.Duration, text string, otherwise time.Duration, field string) (time.Duration, error) {
	if env != nil {
		return *env, nil
	}
	d, err := time.ParseDuration(cmp.Or(text, otherwise.String()))
	if err != nil || d < 0 {
		return otherwise, fmt.Errorf("%s %q is no time such as 15m: %s is in force", field, text, otherwise)
	}
	return d, nil
}

// defaultConfiguration returns the object as Calico's controllers create it, as far as it is read here.
func defaultConfiguration() *api.KubeControllersConfiguration {
	port := 9094
	return &api.KubeControllersConfiguration{
		Meta: api.Meta{Name: api.DefaultName},
		Spec: api.KubeControllersConfigurationSpec{
			LogSeverityScreen: "Info", HealthChecks: "Enabled", EtcdV3CompactionPeriod: text(defaultCompaction), PrometheusMetricsPort: &port,
			Controllers: api.ControllersConfig{LoadBalancer: &api.LoadBalancerControllerConfig{AssignIPs: api.AllServices},
				Node: &api.NodeControllerConfig{
					ReconcilerPeriod: text(defaultPeriod), SyncLabels: enabled, LeakGracePeriod: text(defaultGrace),
					HostEndpoint: &api.AutoHostEndpointConfig{AutoCreate: disabled, CreateDefaultHostEndpoint: enabled},
				}},
		},
	}
}

// running returns the settings in the form of the object's status.
func (s Settings) running() api.KubeControllersConfigurationSpec {
	word := map[bool]string{true: enabled, false: disabled}
	spec := defaultConfiguration().Spec
	spec.EtcdV3CompactionPeriod = text(s.Compaction)
	spec.Controllers.LoadBalancer.AssignIPs = s.AssignIPs
	*spec.Controllers.Node = api.NodeControllerConfig{
		ReconcilerPeriod: text(s.Period), SyncLabels: word[s.SyncLabels], LeakGracePeriod: text(s.Grace),
		HostEndpoint: &api.AutoHostEndpointConfig{
			AutoCreate: cmp.Or(s.Hosts.Auto, disabled), CreateDefaultHostEndpoint: word[s.Hosts.Default], Templates: s.Hosts.Templates,
		},
	}
	return spec
}

// text returns a duration in the notation of Kubernetes' tools.
func text(d time.Duration) string { return d.String() }
