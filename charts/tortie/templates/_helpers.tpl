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
