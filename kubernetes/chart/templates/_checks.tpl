{{/* Values of this chart below `controller`, and below nothing. */}}
{{- define "forebay.values.controller" -}}
addHeaders admissionWebhooks affinity allowSnippetAnnotations annotations autoscaling autoscalingTemplate config configAnnotations configMapNamespace containerPort disableLeaderElection dnsConfig dnsPolicy electionID enableTopologyAwareRouting extraArgs extraContainers extraEnvs extraInitContainers extraVolumeMounts extraVolumes hostAliases hostNetwork hostPort hostname ignoreMissingWaf image ingressClass ingressClassByName ingressClassResource kind labels lifecycle livenessProbe maxUnavailable metrics minAvailable minReadySeconds name networkPolicy nodeSelector podAnnotations podDisruptionBudget podLabels podSecurityContext priorityClassName proxySetHeaders publishService readinessProbe replicaCount resources scope service sessionTickets terminationGracePeriodSeconds tolerations topologySpreadConstraints updateStrategy watchIngressWithoutClass
{{- end -}}

{{- define "forebay.values.top" -}}
commonLabels controller defaultBackend fullnameOverride gateway imagePullSecrets nameOverride namespaceOverride portNamePrefix rbac revisionHistoryLimit serviceAccount sharedStore tcp udp
{{- end -}}

{{/* Options of ingress-nginx that have no effect here and need none. */}}
{{- define "forebay.flags.ignored" -}}
v alsologtostderr logtostderr stderrthreshold sync-rate-limit enable-metrics metrics-per-host metrics-per-undefined-host exclude-socket-metrics report-status-classes enable-annotation-validation enable-topology-aware-routing health-check-path health-check-timeout healthz-host status-port stream-port profiler-port profiling dynamic-configuration-retries shutdown-grace-period post-shutdown-grace-period election-ttl internal-logger-address monitor-max-batch-size time-buckets length-buckets size-buckets bucket-factor max-buckets update-status-on-shutdown report-node-internal-ip-address default-server-port disable-full-test deep-inspect
{{- end -}}

{{/* Options of `forebay ingress` that extraArgs may set. */}}
{{- define "forebay.flags.known" -}}
kubeconfig apiserver-host publish-service publish-status-address update-status election-id disable-leader-election ingress-class controller-class watch-ingress-without-class watch-namespace configmap default-backend-service default-ssl-certificate tcp-services-configmap udp-services-configmap http-port https-port enable-ssl-passthrough disable-svc-external-name annotations-prefix resolver api-server gateway-controller gateway-addresses validating-webhook validating-webhook-certificate validating-webhook-key healthz-port ingress-class-by-name session-ticket-secret snippet-files ssl-passthrough-proxy-port ingress-nginx-metrics disable-catch-all watch-namespace-selector topology-zone ignore-missing-waf search-domain gateway-service
{{- end -}}

{{/* Stops the installation for values that must not be ignored. */}}
{{- define "forebay.checks" -}}
{{- $c := .Values.controller -}}
{{- if $c.customTemplate -}}
{{- if $c.customTemplate.configMapName -}}
{{- fail "controller.customTemplate: Forebay has no template of its configuration, so what yours adds would be missing; use main-snippet, http-snippet, server-snippet and location-snippet in controller.config" -}}
{{- end -}}
{{- end -}}
{{- if $c.extraModules -}}
{{- fail "controller.extraModules: Forebay loads no modules, so what they check or add would be missing; remove the value if you can do without" -}}
{{- end -}}
{{- range $key := list "enable-modsecurity" "enable-owasp-modsecurity-crs" -}}
{{- if and (eq (toString (get $c.config $key)) "true") (not $c.ignoreMissingWaf) -}}
{{- fail (printf "controller.config.%s: Forebay has no ModSecurity engine, so all hosts would answer 503; remove the key, or set controller.ignoreMissingWaf, if another firewall is in front: Forebay filters nothing" $key) -}}
{{- end -}}
{{- end -}}
{{- if and $c.lifecycle (contains "wait-shutdown" (toJson $c.lifecycle)) -}}
{{- fail "controller.lifecycle: /wait-shutdown is a program of ingress-nginx's image, and the pod would not end in order; remove the value, since Forebay's image ends gracefully by itself" -}}
{{- end -}}
{{- if and $c.keda $c.keda.enabled -}}
{{- fail "controller.keda: this chart makes no ScaledObject, so nothing would scale; use controller.autoscaling" -}}
{{- end -}}
{{- range $flag, $value := $c.extraArgs -}}
{{- if not (or (has $flag (splitList " " (include "forebay.flags.known" $))) (has $flag (splitList " " (include "forebay.flags.ignored" $)))) -}}
{{- fail (printf "controller.extraArgs.%s: neither Forebay nor ingress-nginx has such an option" $flag) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $c.kind "DaemonSet") $c.autoscaling.enabled -}}
{{- fail "controller.autoscaling: a DaemonSet has a pod on each node and cannot be scaled; set controller.kind: Deployment" -}}
{{- end -}}
{{- if eq $c.kind "Both" -}}
{{- fail "controller.kind: Both is gone from ingress-nginx, too; choose Deployment or DaemonSet" -}}
{{- end -}}
{{- if and $c.hostNetwork (eq $c.kind "Deployment") $c.hostPort.enabled (gt (int $c.replicaCount) 1) (not $c.affinity) (not $c.topologySpreadConstraints) -}}
{{- fail "controller.replicaCount: several replicas with hostNetwork need different nodes; use controller.kind: DaemonSet, or set controller.affinity" -}}
{{- end -}}
{{- if and .Values.defaultBackend.enabled (not .Values.defaultBackend.image.image) (not .Values.defaultBackend.image.repository) -}}
{{- fail "defaultBackend.image.image: name an image; without defaultBackend Forebay answers 404 by itself" -}}
{{- end -}}
{{- with .Values.sharedStore -}}
{{- if .url -}}
{{- if not (regexMatch "^rediss?://[A-Za-z0-9._:\\[\\]-]+(/[0-9]+)?$" .url) -}}
{{- fail "sharedStore.url: redis://HOST[:PORT][/DB] or rediss://HOST[:PORT][/DB] is wanted; a password belongs into sharedStore.passwordSecret" -}}
{{- end -}}
{{- range $name := list "user" "prefix" "timeout" "replicas" -}}
{{- if not (regexMatch "^[A-Za-z0-9._:/-]*$" (toString (get $.Values.sharedStore $name))) -}}
{{- fail (printf "sharedStore.%s: letters, digits and . _ : / - are allowed" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $c.admissionWebhooks.enabled $c.admissionWebhooks.existingSecret (not $c.admissionWebhooks.caBundle) -}}
{{- fail "controller.admissionWebhooks.caBundle: the API server has to know the authority of existingSecret" -}}
{{- end -}}
{{- end -}}

{{/* Sentences about values without effect, a line each. */}}
{{- define "forebay.notHonoured" -}}
{{- $c := .Values.controller -}}
{{- $why := dict
  "opentelemetry" "Forebay exports no traces yet"
  "maxmindLicenseKey" "Forebay reads no GeoIP databases yet"
  "reportNodeInternalIp" "Forebay has no right to read nodes; use extraArgs.publish-status-address"
  "containerSecurityContext" "the context of the container is fixed"
  "electionTTL" "a lease lasts 15 seconds"
  "startupProbe" "the readiness probe is enough"
  "shareProcessNamespace" "the pod has one container"
-}}
{{- range $key, $text := $why -}}
{{- $value := get $c $key -}}
{{- if and $value (not (and (kindIs "map" $value) (hasKey $value "enabled") (not (get $value "enabled")))) }}
controller.{{ $key }}: {{ $text }}
{{- end -}}
{{- end -}}
{{- /* What has no effect, unless it is what the container has anyway. */ -}}
{{- $fixed := dict "chroot" false "runAsNonRoot" (ne (include "forebay.asRoot" .) "true") "readOnlyRootFilesystem" true "allowPrivilegeEscalation" false -}}
{{- range $key, $value := $fixed -}}
{{- if and (hasKey $c.image $key) (ne (get $c.image $key) $value) }}
controller.image.{{ $key }}: the context of the container is fixed
{{- end -}}
{{- end -}}
{{- if hasKey $c.image "seccompProfile" }}
controller.image.seccompProfile: it is RuntimeDefault
{{- end -}}
{{- range $flag, $value := $c.extraArgs -}}
{{- if has $flag (splitList " " (include "forebay.flags.ignored" $)) }}
controller.extraArgs.{{ $flag }}: needs no counterpart
{{- end -}}
{{- end -}}
{{- range $key := list "enable-opentelemetry" "use-geoip2" -}}
{{- if eq (toString (get $c.config $key)) "true" }}
controller.config.{{ $key }}: not there yet
{{- end -}}
{{- end -}}
{{- $known := splitList " " (include "forebay.values.controller" .) -}}
{{- /* No ModSecurity, template or module gets here. The last one is what is always done. */ -}}
{{- $known = concat $known (keys $why) (list "customTemplate" "extraModules" "keda" "enableAnnotationValidations") -}}
{{- range $key := keys $c | sortAlpha -}}
{{- if and (not (has $key $known)) (get $c $key) }}
controller.{{ $key }}: this chart has no such value
{{- end -}}
{{- end -}}
{{- $known = concat (splitList " " (include "forebay.values.top" .)) (list "dhParam" "podSecurityPolicy") -}}
{{- range $key := keys (omit .Values "AsMap") | sortAlpha -}}
{{- if and (not (has $key $known)) (get $.Values $key) }}
{{ $key }}: this chart has no such value
{{- end -}}
{{- end -}}
{{- if .Values.dhParam }}
dhParam: Forebay has no finite-field Diffie-Hellman
{{- end -}}
{{- if $c.admissionWebhooks.patch }}
controller.admissionWebhooks.patch: certificates come from cert-manager or from Helm, no job runs
{{- end -}}
{{- range $key := list "certificate" "key" -}}
{{- if get $c.admissionWebhooks $key }}
controller.admissionWebhooks.{{ $key }}: certificate and key are a Secret
{{- end -}}
{{- end -}}
{{- range $key := list "createSecretJob" "patchWebhookJob" "extraEnvs" "networkPolicyEnabled" -}}
{{- if get $c.admissionWebhooks $key }}
controller.admissionWebhooks.{{ $key }}: no job runs
{{- end -}}
{{- end -}}
{{- if .Values.podSecurityPolicy }}
podSecurityPolicy: gone from Kubernetes
{{- end -}}
{{- end -}}
