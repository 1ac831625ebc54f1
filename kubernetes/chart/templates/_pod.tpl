{{/* Arguments of the program: options of our own, then extraArgs, which replace those of the same name. */}}
{{- define "forebay.args" -}}
{{- $c := .Values.controller -}}
{{- $args := dict -}}
{{- $_ := set $args "configmap" (printf "%s/%s" (include "forebay.configNamespace" .) (include "forebay.controller" .)) -}}
{{- $_ := set $args "ingress-class" (default $c.ingressClassResource.name $c.ingressClass) -}}
{{- $_ := set $args "controller-class" $c.ingressClassResource.controllerValue -}}
{{- if $c.ingressClassByName }}{{ $_ := set $args "ingress-class-by-name" "true" }}{{ end -}}
{{- if $c.watchIngressWithoutClass }}{{ $_ := set $args "watch-ingress-without-class" "true" }}{{ end -}}
{{- if $c.ignoreMissingWaf }}{{ $_ := set $args "ignore-missing-waf" "true" }}{{ end -}}
{{- if $c.scope.enabled }}{{ $_ := set $args "watch-namespace" (default (include "forebay.namespace" .) $c.scope.namespace) }}{{ end -}}
{{- if and (not $c.scope.enabled) $c.scope.namespaceSelector }}{{ $_ := set $args "watch-namespace-selector" $c.scope.namespaceSelector }}{{ end -}}
{{- if $c.enableTopologyAwareRouting }}{{ $_ := set $args "topology-zone" "$(POD_ZONE)" }}{{ end -}}
{{- if $c.disableLeaderElection }}{{ $_ := set $args "disable-leader-election" "true" -}}
{{- else }}{{ $_ := set $args "election-id" (include "forebay.electionID" .) }}{{ end -}}
{{- if $c.sessionTickets.enabled }}{{ $_ := set $args "session-ticket-secret" (printf "%s/%s" (include "forebay.namespace" .) (include "forebay.ticketSecret" .)) }}{{ end -}}
{{- with include "forebay.publishService" . }}{{ $_ := set $args "publish-service" . }}{{ end -}}
{{- if ne (int $c.containerPort.http) 80 }}{{ $_ := set $args "http-port" (toString $c.containerPort.http) }}{{ end -}}
{{- if ne (int $c.containerPort.https) 443 }}{{ $_ := set $args "https-port" (toString $c.containerPort.https) }}{{ end -}}
{{- if ne (int $c.metrics.port) 10254 }}{{ $_ := set $args "healthz-port" (toString $c.metrics.port) }}{{ end -}}
{{- if .Values.tcp }}{{ $_ := set $args "tcp-services-configmap" (printf "%s/%s-tcp" (include "forebay.namespace" .) (include "forebay.fullname" .)) }}{{ end -}}
{{- if .Values.udp }}{{ $_ := set $args "udp-services-configmap" (printf "%s/%s-udp" (include "forebay.namespace" .) (include "forebay.fullname" .)) }}{{ end -}}
{{- if .Values.defaultBackend.enabled }}{{ $_ := set $args "default-backend-service" (printf "%s/%s" (include "forebay.namespace" .) (include "forebay.defaultBackend" .)) }}{{ end -}}
{{- if $c.admissionWebhooks.enabled }}
{{- $_ := set $args "validating-webhook" (printf ":%v" $c.admissionWebhooks.port) -}}
{{- $_ := set $args "validating-webhook-certificate" "/etc/forebay/webhook/tls.crt" -}}
{{- $_ := set $args "validating-webhook-key" "/etc/forebay/webhook/tls.key" -}}
{{- end -}}
{{- $files := list -}}
{{- with .Values.sharedStore -}}
{{- if and .url .passwordSecret.name }}{{ $files = append $files "/etc/forebay/shared-store/password" }}{{ end -}}
{{- if and .url .caSecret.name }}{{ $files = append $files "/etc/forebay/shared-store-ca/ca.crt" }}{{ end -}}
{{- end -}}
{{- if $files }}{{ $_ := set $args "snippet-files" (join "," $files) }}{{ end -}}
{{- $_ := set $args "gateway-controller" (ternary .Values.gateway.controllerName "" .Values.gateway.enabled) -}}
{{- if and .Values.gateway.enabled .Values.gateway.services }}{{ $_ := set $args "gateway-service" (printf "%s/%s" (include "forebay.namespace" .) (include "forebay.controller" .)) }}{{ end -}}
{{- if and .Values.gateway.enabled .Values.gateway.addresses }}{{ $_ := set $args "gateway-addresses" (join "," .Values.gateway.addresses) }}{{ end -}}
{{- /* No Ingress can name the API server as its upstream. The kubelet fills in the address. */ -}}
{{- $_ := set $args "api-server" "$(KUBERNETES_SERVICE_HOST)" -}}
{{- $ignored := splitList " " (include "forebay.flags.ignored" .) -}}
{{- range $flag, $value := $c.extraArgs }}{{ if not (has $flag $ignored) }}{{ $_ := set $args $flag (toString $value) }}{{ end }}{{ end -}}
{{- $switches := list "watch-ingress-without-class" "ingress-class-by-name" "disable-leader-election" "enable-ssl-passthrough" "disable-svc-external-name" "ingress-nginx-metrics" "disable-catch-all" "ignore-missing-waf" -}}
- ingress
{{- range $flag, $value := $args }}
{{- if has $flag $switches }}
{{- if ne $value "false" }}
- --{{ $flag }}
{{- end }}
{{- else }}
- {{ printf "--%s=%s" $flag $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* "true" if the ConfigMap turns HTTP/3 on. */}}
{{- define "forebay.http3" -}}
{{- if eq (toString (get .Values.controller.config "use-http3")) "true" }}true{{ end -}}
{{- end -}}

{{/* "true" where the master starts as root: ports below 1024 of the node cannot be had otherwise. */}}
{{- define "forebay.asRoot" -}}
{{- if or .Values.controller.hostNetwork (eq (toString .Values.controller.image.runAsUser) "0") }}true{{ end -}}
{{- end -}}

{{/* Mode of files with credentials. The group of the pod reads them if it does not start as root. */}}
{{- define "forebay.secretMode" -}}
{{ ternary "0400" "0440" (eq (include "forebay.asRoot" .) "true") }}
{{- end -}}

{{/* securityContext of the pod. */}}
{{- define "forebay.podContext" -}}
{{- $c := .Values.controller -}}
{{- $context := omit $c.podSecurityContext "runAsUser" "runAsGroup" "runAsNonRoot" -}}
{{- $_ := set $context "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if ne (include "forebay.asRoot" .) "true" -}}
{{- /* The user of the pod may open ports below 1024 of the pod. */ -}}
{{- $sysctls := list -}}
{{- range $context.sysctls }}{{ if ne .name "net.ipv4.ip_unprivileged_port_start" }}{{ $sysctls = append $sysctls . }}{{ end }}{{ end -}}
{{- $sysctls = append $sysctls (dict "name" "net.ipv4.ip_unprivileged_port_start" "value" "0") -}}
{{- $_ := set $context "sysctls" $sysctls -}}
{{- if and $c.image.runAsUser (not (hasKey $context "fsGroup")) }}{{ $_ := set $context "fsGroup" (int $c.image.runAsGroup) }}{{ end -}}
{{- end -}}
{{ toYaml $context }}
{{- end -}}

{{/* securityContext of the container. */}}
{{- define "forebay.containerContext" -}}
{{- $c := .Values.controller -}}
{{- $context := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true -}}
{{- if eq (include "forebay.asRoot" .) "true" -}}
{{- /* The master opens ports below 1024, makes the worker another user and ends it. It gives that user the directories of temporary files. */ -}}
{{- $_ := set $context "capabilities" (dict "drop" (list "ALL") "add" (list "NET_BIND_SERVICE" "SETUID" "SETGID" "KILL" "CHOWN")) -}}
{{- $context = merge $context (dict "runAsUser" 0 "runAsGroup" 0 "runAsNonRoot" false) -}}
{{- else -}}
{{- $_ := set $context "capabilities" (dict "drop" (list "ALL")) -}}
{{- $_ := set $context "runAsNonRoot" true -}}
{{- /* Without a number, the platform chooses the user (OpenShift). */ -}}
{{- if $c.image.runAsUser -}}
{{- $context = merge $context (dict "runAsUser" (int $c.image.runAsUser) "runAsGroup" (int $c.image.runAsGroup)) -}}
{{- end -}}
{{- end -}}
{{ toYaml $context }}
{{- end -}}

{{- define "forebay.pod" -}}
{{- $c := .Values.controller -}}
metadata:
  labels:
    {{- include "forebay.labels" . | nindent 4 }}
    app.kubernetes.io/component: controller
    {{- with $c.labels }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $c.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $c.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "forebay.serviceAccount" . }}
  # The token is a volume of its own: the process that serves requests gives it up, or is another user.
  automountServiceAccountToken: false
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- if $c.hostNetwork }}
  hostNetwork: true
  {{- end }}
  dnsPolicy: {{ ternary "ClusterFirstWithHostNet" $c.dnsPolicy (and $c.hostNetwork (eq $c.dnsPolicy "ClusterFirst")) }}
  {{- with $c.dnsConfig }}
  dnsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.hostAliases }}
  hostAliases:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.hostname }}
  hostname: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $c.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "forebay.podContext" . | nindent 4 }}
  {{- with $c.extraInitContainers }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ $c.name }}
      image: {{ include "forebay.image" (dict "image" $c.image "tag" .Chart.AppVersion) }}
      imagePullPolicy: {{ $c.image.pullPolicy }}
      command: [/usr/sbin/forebay]
      args:
        {{- include "forebay.args" . | nindent 8 }}
      env:
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_NAMESPACE
          valueFrom:
            fieldRef:
              fieldPath: metadata.namespace
        {{- if $c.enableTopologyAwareRouting }}
        # Kubernetes copies the label of the node to the pod (1.35 and newer). Without it all endpoints are used.
        - name: POD_ZONE
          valueFrom:
            fieldRef:
              fieldPath: metadata.labels['topology.kubernetes.io/zone']
        {{- end }}
        {{- with $c.extraEnvs }}{{ toYaml . | nindent 8 }}{{ end }}
      securityContext:
        {{- include "forebay.containerContext" . | nindent 8 }}
      ports:
        - name: http
          containerPort: {{ $c.containerPort.http }}
          protocol: TCP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $c.hostNetwork | ternary $c.containerPort.http $c.hostPort.ports.http }}
          {{- end }}
        - name: https
          containerPort: {{ $c.containerPort.https }}
          protocol: TCP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $c.hostNetwork | ternary $c.containerPort.https $c.hostPort.ports.https }}
          {{- end }}
        {{- if eq (include "forebay.http3" .) "true" }}
        - name: http3
          containerPort: {{ $c.containerPort.https }}
          protocol: UDP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $c.hostNetwork | ternary $c.containerPort.https $c.hostPort.ports.https }}
          {{- end }}
        {{- end }}
        - name: {{ $c.metrics.portName }}
          containerPort: {{ $c.metrics.port }}
          protocol: TCP
        {{- if $c.admissionWebhooks.enabled }}
        - name: webhook
          containerPort: {{ $c.admissionWebhooks.port }}
          protocol: TCP
        {{- end }}
        {{- if .Values.gateway.enabled }}
        {{- range $port := .Values.gateway.ports }}
        - name: gateway-{{ $port }}
          containerPort: {{ $port }}
          protocol: TCP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $port }}
          {{- end }}
        {{- end }}
        {{- range $port := .Values.gateway.udpPorts }}
        - name: gateway-u-{{ $port }}
          containerPort: {{ $port }}
          protocol: UDP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $port }}
          {{- end }}
        {{- end }}
        {{- end }}
        {{- range $port, $_ := .Values.tcp }}
        - name: {{ include "forebay.portName" (dict "prefix" $.Values.portNamePrefix "port" $port "protocol" "tcp") }}
          containerPort: {{ $port }}
          protocol: TCP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $port }}
          {{- end }}
        {{- end }}
        {{- range $port, $_ := .Values.udp }}
        - name: {{ include "forebay.portName" (dict "prefix" $.Values.portNamePrefix "port" $port "protocol" "udp") }}
          containerPort: {{ $port }}
          protocol: UDP
          {{- if $c.hostPort.enabled }}
          hostPort: {{ $port }}
          {{- end }}
        {{- end }}
      {{- range $name := list "livenessProbe" "readinessProbe" }}
      {{ $name }}:
        httpGet:
          path: /healthz
          port: {{ $c.metrics.port }}
          scheme: HTTP
        {{- toYaml (omit (get $c $name) "httpGet" "exec" "tcpSocket" "grpc") | nindent 8 }}
      {{- end }}
      {{- with $c.lifecycle }}
      lifecycle:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $c.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        - name: token
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
        {{- if $c.admissionWebhooks.enabled }}
        - name: webhook
          mountPath: /etc/forebay/webhook
          readOnly: true
        {{- end }}
        {{- if and .Values.sharedStore.url .Values.sharedStore.passwordSecret.name }}
        - name: shared-store
          mountPath: /etc/forebay/shared-store
          readOnly: true
        {{- end }}
        {{- if and .Values.sharedStore.url .Values.sharedStore.caSecret.name }}
        - name: shared-store-ca
          mountPath: /etc/forebay/shared-store-ca
          readOnly: true
        {{- end }}
        {{- with $c.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
    {{- with $c.extraContainers }}{{ toYaml . | nindent 4 }}{{ end }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: token
      projected:
        defaultMode: {{ include "forebay.secretMode" $ }}
        sources:
          - serviceAccountToken:
              path: token
              expirationSeconds: 3607
          - configMap:
              name: kube-root-ca.crt
              items:
                - key: ca.crt
                  path: ca.crt
          - downwardAPI:
              items:
                - path: namespace
                  fieldRef:
                    fieldPath: metadata.namespace
    {{- if $c.admissionWebhooks.enabled }}
    - name: webhook
      secret:
        secretName: {{ default (include "forebay.admission" .) $c.admissionWebhooks.existingSecret }}
        defaultMode: {{ include "forebay.secretMode" $ }}
    {{- end }}
    {{- with .Values.sharedStore }}
    {{- if and .url .passwordSecret.name }}
    - name: shared-store
      secret:
        secretName: {{ .passwordSecret.name }}
        defaultMode: {{ include "forebay.secretMode" $ }}
        items:
          - key: {{ .passwordSecret.key }}
            path: password
    {{- end }}
    {{- if and .url .caSecret.name }}
    - name: shared-store-ca
      secret:
        secretName: {{ .caSecret.name }}
        defaultMode: {{ include "forebay.secretMode" $ }}
        items:
          - key: {{ .caSecret.key }}
            path: ca.crt
    {{- end }}
    {{- end }}
    {{- with $c.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with $c.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $c.affinity }}
  affinity:
    {{- tpl (toYaml .) $ | nindent 4 }}
  {{- end }}
  {{- with $c.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- tpl (toYaml .) $ | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Name of the port of a TCP or UDP service, at most 15 characters. */}}
{{- define "forebay.portName" -}}
{{- $name := printf "%s-%s" (toString .port) .protocol -}}
{{- if .prefix }}{{ printf "%s-%s" .prefix $name }}{{ else }}{{ $name }}{{ end -}}
{{- end -}}
