package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Unacted lists, by kind, the fields of Calico's definitions that this project keeps without effect: clusters of Calico
// have them, and Calico's programs may share the cluster. The definitions accept any value in them. A field that is
// neither listed here nor in the Go type is refused.
var Unacted = map[string][]string{
	"BGPConfiguration": {"localWorkloadPeeringIPV4", "localWorkloadPeeringIPV6", "programClusterRoutes"},
	"KubeControllersConfiguration": {
		"debugProfileHost", "debugProfilePort", "controllers.namespace", "controllers.policy", "controllers.policyMigration",
		"controllers.serviceAccount", "controllers.workloadEndpoint",
	},
	"FelixConfiguration": {
		"awsSrcDstCheck", "bpfAttachType", "bpfCTLBLogFilter", "bpfConnectTimeLoadBalancing", "bpfConnectTimeLoadBalancingEnabled",
		"bpfConntrackLogLevel", "bpfConntrackMode", "bpfConntrackTimeouts", "bpfDSROptoutCIDRs", "bpfDataIfacePattern",
		"bpfDisableGROForIfaces", "bpfDisableUnprivileged", "bpfEnabled", "bpfEnforceRPF", "bpfExcludeCIDRsFromNAT",
		"bpfExportBufferSizeMB", "bpfExtToServiceConnmark", "bpfExternalServiceMode", "bpfForceTrackPacketsFromIfaces",
		"bpfHostConntrackBypass", "bpfHostNetworkedNATWithoutCTLB", "bpfIPFragTimeout", "bpfIPFragmentReassemblyEnabled",
		"bpfJITHardening", "bpfKubeProxyEndpointSlicesEnabled", "bpfKubeProxyHealthzPort", "bpfKubeProxyIptablesCleanupEnabled",
		"bpfKubeProxyMinSyncPeriod", "bpfL3IfacePattern", "bpfLogFilters", "bpfLogLevel", "bpfMaglevMaxEndpointsPerService",
		"bpfMaglevMaxServices", "bpfMapSizeConntrack", "bpfMapSizeConntrackCleanupQueue", "bpfMapSizeConntrackScaling", "bpfMapSizeIPSets",
		"bpfMapSizeIfState", "bpfMapSizeNATAffinity", "bpfMapSizeNATBackend", "bpfMapSizeNATFrontend", "bpfMapSizePerCpuConntrack",
		"bpfMapSizeRoute", "bpfOverlayHostSourceIP", "bpfPSNATPorts", "bpfPolicyDebugEnabled", "bpfProfiling", "bpfRedirectToPeer",
		"cgroupV2Path", "chainInsertMode", "dataplaneDriver", "dataplaneWatchdogTimeout", "debugDisableLogDropping", "debugHost",
		"debugMemoryProfilePath", "debugPort", "debugSimulateCalcGraphHangAfter", "debugSimulateDataplaneApplyDelay",
		"debugSimulateDataplaneHangAfter", "deviceRouteProtocol", "deviceRouteSourceAddress", "deviceRouteSourceAddressIPv6",
		"endpointReportingDelay", "endpointReportingEnabled", "endpointStatusPathPrefix", "externalNodesList", "featureGates",
		"flowLogsCollectorDebugTrace", "flowLogsFlushInterval", "flowLogsGoldmaneServer", "flowLogsLocalReporter",
		"flowLogsPolicyEvaluationMode", "genericXDPEnabled", "goGCThreshold", "goMaxProcs", "goMemoryLimitMB", "healthEnabled",
		"healthHost", "healthPort", "healthTimeoutOverrides", "interfaceExclude", "interfacePrefix", "interfaceRefreshInterval",
		"ipipEnabled", "ipsetsRefreshInterval", "iptablesBackend", "iptablesFilterAllowAction", "iptablesLockFilePath",
		"iptablesLockProbeInterval", "iptablesLockTimeout", "iptablesMangleAllowAction", "iptablesMarkMask",
		"iptablesNATOutgoingInterfaceFilter", "iptablesPostWriteCheckInterval", "iptablesRefreshInterval", "ipv4ElevatedRoutePriority",
		"ipv4NormalRoutePriority", "ipv6ElevatedRoutePriority", "ipv6NormalRoutePriority", "ipv6Support", "istioAmbientMode",
		"istioDSCPMark", "kubeNodePortRanges", "liveMigrationRouteConvergenceTime", "localSubnetL2Reachability",
		"localSubnetL2ReachabilityRefreshInterval", "logConnectionTransitions", "logConnectionTransitionsPrefix", "logDebugFilenameRegex",
		"logFilePath", "logSeverityFile", "logSeveritySys", "maxIpsetSize", "metadataAddr", "metadataPort", "mtuIfacePattern",
		"netlinkTimeout", "nftablesFilterAllowAction", "nftablesFlowTableOffload", "nftablesMangleAllowAction", "nftablesMarkMask",
		"nftablesMode", "nftablesRefreshInterval", "nodeSelector", "openstackRegion", "policySyncPathPrefix", "programClusterRoutes",
		"prometheusGoMetricsEnabled", "prometheusMetricsCAFile", "prometheusMetricsCertFile", "prometheusMetricsClientAuth",
		"prometheusMetricsEnabled", "prometheusMetricsHost", "prometheusMetricsKeyFile", "prometheusMetricsPort",
		"prometheusProcessMetricsEnabled", "prometheusWireGuardMetricsEnabled", "removeExternalRoutes", "reportingTTL", "requireMTUFile",
		"routeRefreshInterval", "routeSource", "routeSyncDisabled", "routeTableRange", "routeTableRanges", "serviceLoopPrevention",
		"sidecarAccelerationEnabled", "usageReportingEnabled", "usageReportingInitialDelay", "usageReportingInterval",
		"useInternalDataplaneDriver", "vxlanEnabled", "windowsManageFirewallRules", "wireguardInterfaceName", "wireguardInterfaceNameV6",
		"xdpEnabled", "xdpRefreshInterval",
	},
}

// Kept lists, by kind, the fields of the Go types that have no effect either, with their defaults as JSON. A default is
// not reported.
var Kept = map[string]map[string]string{
	"BGPConfiguration":             {"ignoredInterfaces": "[]", "logSeverityScreen": `"Info"`},
	"KubeControllersConfiguration": {"healthChecks": `"Enabled"`, "logSeverityScreen": `"Info"`, "prometheusMetricsPort": "9094"},
	"FelixConfiguration":           {"logSeverityScreen": `"Info"`, "reportingInterval": `"0s"`},
}

// Keys are keys of a stored spec that have no effect here.
type Keys struct {
	// Unknown are not Calico's fields: they are misspelt, perhaps in case alone.
	Unknown []string
	// Unacted are keys of the list Unacted, or keys of Kept with other values than the default.
	Unacted []string
}

// WithoutEffect returns Unacted as paths in an object.
func (k Keys) WithoutEffect() (fields []string) {
	for _, key := range k.Unacted {
		fields = append(fields, "spec."+key)
	}
	return fields
}

// Misspelt returns an error that names the unknown keys in an object's spec; nil if there are none.
func (k Keys) Misspelt(of Type) error {
	if len(k.Unknown) == 0 {
		return nil
	}
	return fmt.Errorf("spec.%s: %s has no such field, so it has no effect: see kubectl explain %s.spec for the spelling",
		strings.Join(k.Unknown, ", spec."), of.Kind, of.Plural)
}

// decodeExactly decodes a spec of a kind. Unlike encoding/json it distinguishes the case of keys.
func decodeExactly(kind string, data []byte, into any) (Keys, error) {
	var keys Keys
	var strange []string
	clean := exactly(data, reflect.TypeOf(into).Elem(), "", &strange)
	for _, key := range strange {
		if slices.Contains(Unacted[kind], key) {
			keys.Unacted = append(keys.Unacted, key)
		} else {
			keys.Unknown = append(keys.Unknown, key)
		}
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(clean, &members) // a value that is not an object has no keys; decoding reports it
	for key, value := range members {
		if otherwise, kept := Kept[kind][key]; kept && string(value) != otherwise && string(value) != "null" {
			keys.Unacted = append(keys.Unacted, key)
		}
	}
	slices.Sort(keys.Unacted)
	slices.Sort(keys.Unknown)
	return keys, json.Unmarshal(clean, into)
}

// exactly returns JSON without the keys that a type lacks, and appends these to strange. JSON of another form stays:
// decoding reports it.
func exactly(data []byte, t reflect.Type, path string, strange *[]string) []byte {
	var items []json.RawMessage
	var members map[string]json.RawMessage
	switch {
	case t.Kind() == reflect.Pointer:
		return exactly(data, t.Elem(), path, strange)
	case t.Kind() == reflect.Slice && json.Unmarshal(data, &items) == nil && items != nil:
		for i := range items {
			items[i] = exactly(items[i], t.Elem(), path, strange)
		}
		data, _ = json.Marshal(items) // RawMessages that were decoded
	case t.Kind() == reflect.Struct && json.Unmarshal(data, &members) == nil && members != nil:
		types := fieldTypes(t)
		for key, value := range members {
			if of, ok := types[key]; ok {
				members[key] = exactly(value, of, path+key+".", strange)
			} else {
				*strange = append(*strange, path+key)
				delete(members, key)
			}
		}
		data, _ = json.Marshal(members)
	}
	return data
}

// fieldTypes returns the types of a struct's fields by their keys.
func fieldTypes(t reflect.Type) map[string]reflect.Type {
	types := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		key, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if key != "" && key != "-" {
			types[key] = t.Field(i).Type
		}
	}
	return types
}

// UnmarshalJSON distinguishes the case of keys.
func (s *BGPConfigurationSpec) UnmarshalJSON(data []byte) (err error) {
	type plain BGPConfigurationSpec
	s.Keys, err = decodeExactly("BGPConfiguration", data, (*plain)(s))
	return err
}

// UnmarshalJSON distinguishes the case of keys.
func (s *BGPPeerSpec) UnmarshalJSON(data []byte) (err error) {
	type plain BGPPeerSpec
	s.Keys, err = decodeExactly("BGPPeer", data, (*plain)(s))
	return err
}

// UnmarshalJSON distinguishes the case of keys.
func (s *FelixConfigurationSpec) UnmarshalJSON(data []byte) (err error) {
	type plain FelixConfigurationSpec
	s.Keys, err = decodeExactly("FelixConfiguration", data, (*plain)(s))
	return err
}

// UnmarshalJSON distinguishes the case of keys.
func (s *KubeControllersConfigurationSpec) UnmarshalJSON(data []byte) (err error) {
	type plain KubeControllersConfigurationSpec
	s.Keys, err = decodeExactly("KubeControllersConfiguration", data, (*plain)(s))
	return err
}

// StrangeKeys implements Keyed.
func (c *BGPConfiguration) StrangeKeys() Keys { return c.Spec.Keys }

// StrangeKeys implements Keyed.
func (p *BGPPeer) StrangeKeys() Keys { return p.Spec.Keys }

// StrangeKeys implements Keyed.
func (f *FelixConfiguration) StrangeKeys() Keys { return f.Spec.Keys }

// StrangeKeys implements Keyed.
func (c *KubeControllersConfiguration) StrangeKeys() Keys { return c.Spec.Keys }

// Keyed is a kind that people write; its keys are distinguished by case.
type Keyed interface {
	Resource
	// StrangeKeys returns the keys of the spec that have no effect.
	StrangeKeys() Keys
}
