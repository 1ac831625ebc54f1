{{- define "forebay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "forebay.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "forebay.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of the controller's objects. */}}
{{- define "forebay.controller" -}}
{{- printf "%s-%s" (include "forebay.fullname" .) .Values.controller.name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "forebay.defaultBackend" -}}
{{- printf "%s-%s" (include "forebay.fullname" .) .Values.defaultBackend.name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "forebay.admission" -}}
{{- printf "%s-admission" (include "forebay.fullname" .) -}}
{{- end -}}

{{- define "forebay.configNamespace" -}}
{{- default (include "forebay.namespace" .) .Values.controller.configMapNamespace -}}
{{- end -}}

{{- define "forebay.selector" -}}
app.kubernetes.io/name: {{ include "forebay.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "forebay.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "forebay.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: forebay
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "forebay.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "forebay.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "forebay.electionID" -}}
{{- default (printf "%s-leader" (include "forebay.fullname" .)) .Values.controller.electionID -}}
{{- end -}}

{{- define "forebay.ticketSecret" -}}
{{- printf "%s-session-tickets" (include "forebay.fullname" .) -}}
{{- end -}}

{{/* Reference of an image: (dict "image" IMAGE "tag" DEFAULT). */}}
{{- define "forebay.image" -}}
{{- $image := .image -}}
{{- $name := $image.repository | default (ternary (printf "%s/%s" $image.registry $image.image) $image.image (not (empty $image.registry))) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" (ternary (printf "%s:%v" $name $image.tag) $name (not (empty $image.tag))) $image.digest -}}
{{- else -}}
{{- printf "%s:%v" $name (default .tag $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The Service whose addresses are published, NAMESPACE/NAME; empty: none. */}}
{{- define "forebay.publishService" -}}
{{- with .Values.controller -}}
{{- if .publishService.enabled -}}
{{- if .publishService.pathOverride -}}
{{- .publishService.pathOverride -}}
{{- else if and .service.enabled .service.external.enabled -}}
{{- printf "%s/%s" (include "forebay.namespace" $) (include "forebay.controller" $) -}}
{{- else if and .service.enabled .service.internal.enabled -}}
{{- printf "%s/%s-internal" (include "forebay.namespace" $) (include "forebay.controller" $) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* JSON: the namespaces of scope.enabled: what is served, and where objects are that options name. */}}
{{- define "forebay.scopes" -}}
{{- $watched := default (include "forebay.namespace" .) .Values.controller.scope.namespace -}}
{{- $named := list (include "forebay.namespace" .) (include "forebay.configNamespace" .) -}}
{{- range $flag := list "default-ssl-certificate" "default-backend-service" "tcp-services-configmap" "udp-services-configmap" -}}
{{- with get $.Values.controller.extraArgs $flag -}}
{{- $named = append $named (splitList "/" . | first) -}}
{{- end -}}
{{- end -}}
{{- dict "watched" $watched "named" (without ($named | uniq) $watched) | toJson -}}
{{- end -}}

{{/* Rules for what is read in the namespaces of named objects. */}}
{{- define "forebay.rules.named" -}}
- apiGroups: [""]
  resources: [configmaps, secrets, services]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
{{- end -}}

{{/* Rules for what is served in a namespace. */}}
{{- define "forebay.rules.namespace" -}}
{{ include "forebay.rules.named" . }}
- apiGroups: [networking.k8s.io]
  resources: [ingresses]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [ingresses/status]
  verbs: [patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.gateway.enabled }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways, httproutes, grpcroutes, tlsroutes, tcproutes, udproutes, referencegrants, backendtlspolicies, listenersets]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways/status, httproutes/status, grpcroutes/status, tlsroutes/status, tcproutes/status, udproutes/status, backendtlspolicies/status, listenersets/status]
  verbs: [patch]
{{- if .Values.gateway.services }}
# A Service for each Gateway, an alias for that of the controller.
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
{{- end }}
- apiGroups: [forebay.io]
  resources: [routepolicies]
  verbs: [list, watch]
- apiGroups: [forebay.io]
  resources: [routepolicies/status]
  verbs: [patch]
- apiGroups: [gateway.networking.x-k8s.io]
  resources: [xtelemetrypolicies]
  verbs: [list, watch]
- apiGroups: [gateway.networking.x-k8s.io]
  resources: [xtelemetrypolicies/status]
  verbs: [patch]
{{- end }}
{{- end -}}

{{/* Rules for objects without a namespace. */}}
{{- define "forebay.rules.cluster" -}}
- apiGroups: [networking.k8s.io]
  resources: [ingressclasses]
  verbs: [list, watch]
{{- if or .Values.gateway.enabled .Values.controller.scope.namespaceSelector (get .Values.controller.extraArgs "watch-namespace-selector") }}
# Labels of namespaces decide which routes may attach, and which Ingresses are served.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [list, watch]
{{- end }}
{{- if .Values.gateway.enabled }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses]
  verbs: [list, watch]
- apiGroups: [gateway.networking.k8s.io]
  resources: [gatewayclasses/status]
  verbs: [patch]
- apiGroups: [certificates.k8s.io]
  resources: [clustertrustbundles]
  verbs: [list, watch]
{{- end }}
{{- end -}}
