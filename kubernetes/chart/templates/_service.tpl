{{/* A Service of the controller: (dict "root" $ "name" NAME "s" VALUES). */}}
{{- define "forebay.service" -}}
{{- $root := .root -}}
{{- $s := .s -}}
{{- $c := $root.Values.controller -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  namespace: {{ include "forebay.namespace" $root }}
  labels:
    {{- include "forebay.labels" $root | nindent 4 }}
    app.kubernetes.io/component: controller
    {{- with $s.labels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $s.annotations }}
  annotations:
    {{- range $key, $value := . }}
    {{ $key }}: {{ tpl (toString $value) $root | quote }}
    {{- end }}
  {{- end }}
spec:
  type: {{ $s.type }}
  {{- range $key := list "clusterIP" "loadBalancerIP" "loadBalancerClass" "externalTrafficPolicy" "sessionAffinity" "ipFamilyPolicy" "healthCheckNodePort" }}
  {{- with get $s $key }}
  {{ $key }}: {{ . }}
  {{- end }}
  {{- end }}
  {{- if hasKey $s "allocateLoadBalancerNodePorts" }}
  allocateLoadBalancerNodePorts: {{ $s.allocateLoadBalancerNodePorts }}
  {{- end }}
  {{- range $key := list "clusterIPs" "externalIPs" "loadBalancerSourceRanges" "ipFamilies" }}
  {{- with get $s $key }}
  {{ $key }}:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  ports:
    {{- range $name := list "http" "https" }}
    {{- if get $c.service (ternary "enableHttp" "enableHttps" (eq $name "http")) }}
    - name: {{ $name }}
      port: {{ get $s.ports $name }}
      protocol: TCP
      targetPort: {{ get $s.targetPorts $name }}
      {{- if $c.service.appProtocol }}
      appProtocol: {{ $name }}
      {{- end }}
      {{- with get (default dict $s.nodePorts) $name }}
      nodePort: {{ . }}
      {{- end }}
    {{- end }}
    {{- end }}
    {{- if and $c.service.enableHttps (eq (include "forebay.http3" $root) "true") }}
    - name: http3
      port: {{ $s.ports.https }}
      protocol: UDP
      targetPort: http3
    {{- end }}
    {{- if $root.Values.gateway.enabled }}
    {{- range $port := $root.Values.gateway.ports }}
    - name: gateway-{{ $port }}
      port: {{ $port }}
      protocol: TCP
      targetPort: gateway-{{ $port }}
    {{- end }}
    {{- range $port := $root.Values.gateway.udpPorts }}
    - name: gateway-u-{{ $port }}
      port: {{ $port }}
      protocol: UDP
      targetPort: gateway-u-{{ $port }}
    {{- end }}
    {{- end }}
    {{- range $protocol := list "tcp" "udp" }}
    {{- range $port, $_ := get $root.Values $protocol }}
    {{- $name := include "forebay.portName" (dict "prefix" $root.Values.portNamePrefix "port" $port "protocol" $protocol) }}
    - name: {{ $name }}
      port: {{ $port }}
      protocol: {{ upper $protocol }}
      targetPort: {{ $name }}
      {{- with get (default dict (get (default dict $s.nodePorts) $protocol)) (toString $port) }}
      nodePort: {{ . }}
      {{- end }}
    {{- end }}
    {{- end }}
  selector:
    {{- include "forebay.selector" $root | nindent 4 }}
    app.kubernetes.io/component: controller
{{- end -}}
