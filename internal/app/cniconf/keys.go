package cniconf

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// Keys are the keys of the plugin calico's object, both Calico's and Tortie's, with a dot for each level. Unread also
// reports all other keys: they are misspelt, or of a later Calico.
var Keys = slices.Concat(
	keys(api.Acted, "", "datastore_type", "calico_api_group", "nodename", "nodename_file", "nodename_file_optional", "hostname", "mtu",
		"require_mtu_file", "num_queues", "device_type", "log_level", "log_file_path", "log_file_max_size", "log_file_max_age",
		"log_file_max_count", "ipam.type", "ipam.assign_ipv4", "ipam.assign_ipv6", "ipam.ipv4_pools", "ipam.ipv6_pools", "ipam.subnet",
		"ipam.ranges", "ipam.routes", "ipam_lock_file", "qps", "burst", "policy.type", "policy.k8s_api_root", "policy.k8s_auth_token",
		"policy.k8s_client_certificate", "policy.k8s_client_key", "policy.k8s_certificate_authority", "kubernetes.kubeconfig",
		"kubernetes.k8s_api_root", "kubernetes.node_name", "feature_control.ip_addrs_no_ipam", "feature_control.floating_ips",
		"container_settings.allow_ip_forwarding", "include_default_routes", "readiness_gates", "policy_enforced", "policy_setup_timeout_seconds",
		"endpoint_status_dir", "etcd_endpoints", "etcd_discovery_srv", "etcd_ca_cert_file", "etcd_cert_file", "etcd_key_file",
		"etcd_authority", "etcd_scheme"), keys(api.Refused, "if not empty: an external agent makes no interfaces", "dataplane_options.type"),
	keys(api.Named, "it is for Windows", "mode", "vxlan_mac_prefix", "vxlan_vni", "windows_pod_deletion_timestamp_timeout",
		"windows_use_single_network", "windows_disable_default_deny_all_policy", "windows_loopback_DSR"), keys(api.Named, "it is for Mesos",
		"args.org.apache.mesos"), keys(api.Named, "Calico does not read it either", "ipam.name", "ipam.ip_pools_label_selector_keys"),
	keys(api.Written, "by the CNI specification, of which container runtimes make use", specified...),
)

// specified are the keys of the CNI specification. Keys below them are not checked.
var specified = []string{"name", "cniVersion", "type", "capabilities", "dns", "prevResult", "runtimeConfig"}

func keys(fate api.Fate, why string, names ...string) (all []api.Input) {
	for _, key := range names {
		all = append(all, api.Input{On: "calico", Key: key, Fate: fate, Why: why})
	}
	return all
}

// unread lists the keys of a configuration's plugin calico that have no effect, none if the text is no JSON.
func unread(text []byte) (all []string) {
	var conf struct {
		Type    string
		Plugins []json.RawMessage
	}
	if json.Unmarshal(text, &conf) != nil {
		return nil
	}
	if conf.Type != "" {
		conf.Plugins = append(conf.Plugins, text)
	}
	for _, plugin := range conf.Plugins {
		var is struct {
			Type string
			IPAM struct{ Type string }
		}
		if json.Unmarshal(plugin, &is) == nil && is.Type == "calico" {
			all = append(all, below("", plugin, is.IPAM.Type == "calico-ipam")...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// below lists the keys without effect of an object at a path. Another IPAM plugin has keys of its own.
func below(path string, object json.RawMessage, ownIPAM bool) (all []string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return []string{strings.TrimSuffix(path, ".")}
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		whole := path + key
		// encoding/json ignores the case of keys.
		is := func(i api.Input) bool { return strings.EqualFold(i.Key, whole) && i.Fate != api.Named }
		inside := func(i api.Input) bool {
			return len(i.Key) > len(whole) && i.Key[len(whole)] == '.' && strings.EqualFold(i.Key[:len(whole)], whole)
		}
		switch {
		case slices.ContainsFunc(Keys, is), strings.HasPrefix(key, "cni.dev/"), strings.EqualFold(whole, "ipam") && !ownIPAM:
		case slices.ContainsFunc(Keys, inside):
			all = append(all, below(whole+".", members[key], ownIPAM)...)
		default:
			all = append(all, whole)
		}
	}
	return all
}

// Unread describes the keys of a configuration's plugin calico that have no effect; empty if there are none.
func Unread(text []byte) string { return inWords(unread(text)) }

func inWords(names []string) string {
	if len(names) == 0 {
		return ""
	}
	for i, name := range names {
		if at := slices.IndexFunc(Keys, func(k api.Input) bool { return strings.EqualFold(k.Key, name) }); at >= 0 {
			names[i] += " (" + Keys[at].Why + ")"
		}
	}
	return "keys of calico without effect: " + strings.Join(names, ", ") + ": correct or remove them; docs/calico-inputs.csv lists all"
}
