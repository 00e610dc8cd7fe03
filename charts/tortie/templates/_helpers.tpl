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

{{- define "tortie.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
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
