{{/* The name of everything that the chart installs. */}}
{{- define "octavo.name" -}}
{{- if contains "octavo" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-octavo{{ end }}-operator
{{- end }}

{{- define "octavo.selector" -}}
app.kubernetes.io/name: octavo-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "octavo.labels" -}}
{{ include "octavo.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What the operator may do; tests/contract_tests and the e2e stories hold it to this and no more. */}}
{{- define "octavo.rules" -}}
- apiGroups: [octavo.dev]
  resources: [inferenceservices]
  verbs: [list, watch]
- apiGroups: [octavo.dev]
  resources: [inferenceservices/status, inferenceservices/scale]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [pods]
  # patch: the deletion cost of pods, before autoscaling takes some away.
  verbs: [list, watch, patch]
- apiGroups: [""]
  resources: [persistentvolumeclaims, serviceaccounts]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, get, patch]
{{- end }}
