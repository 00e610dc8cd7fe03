{{/* The labels by which the DaemonSet finds its pods. They can not change in an update. */}}
{{- define "tortie.selectorLabels" -}}
app.kubernetes.io/name: tortie
app.kubernetes.io/component: node
{{- end }}

{{/* The labels of every object. Call with the component: (list . "node"). */}}
{{- define "tortie.labels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: tortie
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tortie
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* The API groups that Calico's kinds may be in: its first one, and that of Calico 3.32 and later. The cluster has one of them, or both. Rules
name both, since a migration changes the group while pods run. */}}
{{- define "tortie.calicoGroups" -}}
[crd.projectcalico.org, projectcalico.org]
{{- end }}

{{/* The only kind that has another name in each group. Call with verbs: RBAC's rules for it. */}}
{{- define "tortie.ipamConfigRules" -}}
{{- $rules := list }}
{{- range $group, $plural := dict "crd.projectcalico.org" "ipamconfigs" "projectcalico.org" "ipamconfigurations" }}
{{- $rules = append $rules (printf "- apiGroups: [%s]\n  resources: [%s]\n  verbs: [%s]" $group $plural (join ", " $)) }}
{{- end }}
{{- join "\n" $rules }}
{{- end }}

{{- define "tortie.image" -}}
{{- with .Values.image }}
{{- .repository }}{{ .digest | empty | ternary (printf ":%s" (.tag | default $.Chart.AppVersion)) (printf "@%s" .digest) }}
{{- end }}
{{- end }}

{{/* How pods in the host's network reach the API server without kube-proxy: environment variables, or nothing. */}}
{{- define "tortie.apiServerEnv" -}}
{{- with .Values.apiServer }}
{{- if .host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .port | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* The API group of Calico's objects for all that has to know it, if the values name one. */}}
{{- define "tortie.groupEnv" -}}
{{- if ne .Values.apiGroup "auto" }}
- name: CALICO_API_GROUP
  value: {{ include "tortie.group" . }}
{{- end }}
{{- end }}

{{/* That group: by the values, else the same choice as groups.Choose and groups.ChooseNew make for the programs: the first group whose
ClusterInformation is ready, else the first that has one, else the first with definitions. */}}
{{- define "tortie.group" -}}
{{- if eq .Values.apiGroup "auto" }}
{{- $ready := list }}{{ $there := list }}{{ $defined := list }}
{{- range $group := list "crd.projectcalico.org/v1" "projectcalico.org/v3" }}
{{- if lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (printf "clusterinformations.%s" (dir $group)) }}
{{- $defined = append $defined $group }}
{{- with lookup $group "ClusterInformation" "" "default" }}
{{- $there = append $there $group }}
{{- if dig "spec" "datastoreReady" false . }}{{ $ready = append $ready $group }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- concat $ready $there $defined (list "crd.projectcalico.org/v1") | first }}
{{- else }}
{{- eq .Values.apiGroup "v3" | ternary "projectcalico.org/v3" "crd.projectcalico.org/v1" }}
{{- end }}
{{- end }}

{{/* What every pod has that works for the release and not for the cluster's users: it runs anywhere, in the host's network. */}}
{{- define "tortie.podBasics" -}}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
tolerations:
  - operator: Exists
{{- end }}

{{/* Where pods run whose tokens are worth more than a node: not on one that runs the users' pods, if there are others. */}}
{{- define "tortie.controlPlane" -}}
{{- $expressions := list (dict "key" "node-role.kubernetes.io/control-plane" "operator" "Exists") -}}
nodeAffinity:
{{- if eq .Values.controlPlane "require" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions: {{ toJson $expressions }}
{{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions: {{ toJson $expressions }}
{{- end }}
{{- end }}

{{/* The security context of a pod that writes to its host. */}}
{{- define "tortie.hostWriter" -}}
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A container of the image without any right. */}}
{{- define "tortie.container" -}}
image: {{ include "tortie.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "tortie.noRights" -}}
runAsUser: 65532
runAsGroup: 65532
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The conflist's template: the operator's, or the installer's own with the families that pods get addresses of. */}}
{{- define "tortie.conflist" -}}
{{- if .Values.cni.conflist }}{{ .Values.cni.conflist | trim }}{{ else -}}
{{- $text := .Files.Get "files/conflist.json" | trim -}}
{{- $ipam := `"ipam": {"type": "calico-ipam"}` -}}
{{- if not (contains $ipam $text) }}{{ fail "files/conflist.json has another ipam than the chart knows" }}{{ end -}}
{{- if has "IPv6" .Values.ipFamilies -}}
{{- $four := has "IPv4" .Values.ipFamilies | ternary "true" "false" -}}
{{- $text = replace $ipam (printf `"ipam": {"type": "calico-ipam", "assign_ipv4": "%s", "assign_ipv6": "true"}` $four) $text -}}
{{- end -}}
{{- $text -}}
{{- end }}
{{- end }}

{{/* TORTIE_POLICY: auto leaves nodes alone where another policy engine enforces. In quotes, as YAML reads off as false. */}}
{{- define "tortie.policy" -}}
{{ .Values.policy.enabled | ternary "auto" "off" }}
{{- end }}

{{/* Where metrics are served. Call with a port: (list . 9096). */}}
{{- define "tortie.metricsAddress" -}}
{{- with (index . 0).Values.monitoring.metrics.host }}{{ contains ":" . | ternary (printf "[%s]" .) . }}{{ end }}:{{ int (index . 1) }}
{{- end }}

{{/* The pools that the agent makes if there are none, with the modes that the values ask for, and the variables that tell the agent. */}}
{{- define "tortie.pools" -}}
{{- if and (has "IPv4" .ipFamilies) (ne .ipPool.cidr "none") }}
- name: default-ipv4-ippool
  of: ipPool
  modes:
    - {name: ipipMode, env: CALICO_IPV4POOL_IPIP, value: {{ .ipPool.ipipMode }}}
    - {name: vxlanMode, env: CALICO_IPV4POOL_VXLAN, value: {{ .ipPool.vxlanMode }}}
{{- end }}
{{- if and (has "IPv6" .ipFamilies) (ne .ipv6Pool.cidr "none") }}
- name: default-ipv6-ippool
  of: ipv6Pool
  modes:
    - {name: vxlanMode, env: CALICO_IPV6POOL_VXLAN, value: {{ .ipv6Pool.vxlanMode }}}
{{- end }}
{{- end }}

{{/* The command that gives a pool of "tortie.pools", with the chart as root, the modes that the values ask for; nothing if it has them, or does not exist. */}}
{{- define "tortie.poolPatch" -}}
{{- $group := include "tortie.group" .root }}
{{- $of := printf "ippools.%s" (dir $group) }}
{{- if lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $of }}
{{- $spec := dig "spec" dict (lookup $group "IPPool" "" .name) }}
{{- $want := dict }}
{{- $same := true }}
{{- range .modes }}
{{- $_ := set $want .name .value }}
{{- if ne .value (get $spec .name | default "Never") }}{{ $same = false }}{{ end }}
{{- end }}
{{- if and $spec (not $same) -}}
kubectl patch {{ $of }} {{ .name }} --type=merge -p '{"spec":{{ toJson $want }}}'
{{- end }}
{{- end }}
{{- end }}

{{/* What values.schema.json cannot say, as it looks at each value alone. */}}
{{- define "tortie.check" -}}
{{- with .Values }}
{{- if and (ne .ipPool.ipipMode "Never") (ne .ipPool.vxlanMode "Never") }}
{{- fail (printf "ipPool.vxlanMode is %s and ipPool.ipipMode is %s: a pool has one encapsulation: set one of them to Never" .ipPool.vxlanMode .ipPool.ipipMode) }}
{{- end }}
{{- if and (has .fencing (list "enforce" "warn")) (semverCompare "<1.31-0" $.Capabilities.KubeVersion.Version) }}
{{- fail (printf "fencing is %s, which needs Kubernetes 1.31: the policies of %s know no addresses (isIP, isCIDR): set it to auto or off" .fencing $.Capabilities.KubeVersion.Version) }}
{{- end }}
{{- $asked := dict }}
{{- if $.Release.IsUpgrade }}
{{- /* Of a name that extraEnv has too, the first is the chart's own. */}}
{{- range $kind, $name := dict "DaemonSet" "tortie-node" "Deployment" "tortie-kube-controllers" }}
{{- range dig "spec" "template" "spec" "containers" list (lookup "apps/v1" $kind $.Release.Namespace $name) }}
{{- range .env }}{{ if not (hasKey $asked .name) }}{{ $_ := set $asked .name (.value | default "") }}{{ end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- range $pool := include "tortie.pools" $.Values | fromYamlArray }}
{{- range .modes }}
{{- if ne .value (get $asked .env | default .value) }}
{{- with include "tortie.poolPatch" (merge (dict "root" $) $pool) }}
{{- fail (printf "%s: the pool %s exists with other modes, and no upgrade changes it. Change it first, then the upgrade will do: %s" $pool.of $pool.name .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- range list "podMonitor" "serviceMonitor" }}
{{- if and (get $.Values.monitoring .).enabled (not $.Values.monitoring.metrics.enabled) }}
{{- fail (printf "monitoring.%s.enabled needs monitoring.metrics.enabled: without it the metrics are served on 127.0.0.1 of each node only" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
