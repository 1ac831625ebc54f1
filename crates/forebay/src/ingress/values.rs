//! Values of the Helm chart of ingress-nginx: the settings in them, and what Forebay does not honour.

use forebay_k8s::objects::{ConfigMap, Metadata, Object};
use forebay_k8s::{Key, Objects, Options};
use serde_json::Value;
use std::sync::Arc;

/// Namespace and name of the ConfigMap that the values become.
const CONFIG: (&str, &str) = ("helm", "values");

/// Parts of `controller` that need no counterpart, or one with the same name in the chart of Forebay.
const KNOWN: &[&str] = &[
    "config",
    "allowSnippetAnnotations",
    "ingressClassResource",
    "ingressClass",
    "watchIngressWithoutClass",
    "extraArgs",
    "addHeaders",
    "proxySetHeaders",
    "service",
    "metrics",
    "autoscaling",
    "replicaCount",
    "minAvailable",
    "maxUnavailable",
    "resources",
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "podAnnotations",
    "podLabels",
    "labels",
    "annotations",
    "publishService",
    "admissionWebhooks",
    "kind",
    "image",
    "containerPort",
    "hostPort",
    "hostNetwork",
    "dnsPolicy",
    "terminationGracePeriodSeconds",
    "priorityClassName",
    "electionID",
    "scope",
    "name",
    "updateStrategy",
    "livenessProbe",
    "readinessProbe",
    "podSecurityContext",
    "tcp",
    "udp",
    "extraEnvs",
    "enableAnnotationValidations",
    "minReadySeconds",
    "reportNodeInternalIp",
    "hostname",
    "configNamespace",
    "ingressClassByName",
    "networkPolicy",
    "keda",
    "disableLeaderElection",
    "electionTTL",
];

/// Applies the values to objects and options. Returns what is not honoured.
pub(super) fn apply(values: &Value, objects: &mut Objects, options: &mut Options) -> Vec<String> {
    let mut problems = Vec::new();
    let controller = values.get("controller").cloned().unwrap_or_default();
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut data = std::collections::BTreeMap::new();
    for (key, value) in controller.get("config").and_then(Value::as_object).into_iter().flatten() {
        data.insert(key.clone(), text(value));
    }
    if let Some(allow) = controller.get("allowSnippetAnnotations").and_then(Value::as_bool) {
        data.insert("allow-snippet-annotations".into(), allow.to_string());
    }
    for (part, key) in [("addHeaders", "add-headers"), ("proxySetHeaders", "proxy-set-headers")] {
        let fields = controller.get(part).and_then(Value::as_object).filter(|f| !f.is_empty());
        if let Some(fields) = fields {
            let fields = fields.iter().map(|(k, v)| (k.clone(), text(v))).collect();
            objects.apply(config_map(key, fields));
            data.insert(key.into(), format!("{}/{key}", CONFIG.0));
        }
    }
    objects.apply(config_map(CONFIG.1, data));
    options.config_map = Some(Key::new(CONFIG.0, CONFIG.1));
    let at = |path: &[&str]| {
        path.iter().try_fold(&controller, |v, key| v.get(*key)).and_then(Value::as_str).map(str::to_owned)
    };
    if let Some(name) = at(&["ingressClassResource", "name"]).or_else(|| at(&["ingressClass"])) {
        options.ingress_class = name;
    }
    if let Some(name) = at(&["ingressClassResource", "controllerValue"]) {
        options.controller_class = name;
    }
    services(values, objects, options);
    flags(&controller, options);
    for (key, value) in controller.as_object().into_iter().flatten() {
        let empty = value.is_null()
            || value == &Value::Bool(false)
            || value
                .as_object()
                .is_some_and(|o| o.is_empty() || o.get("enabled") == Some(&Value::Bool(false)));
        let empty = empty || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
        if !empty && !KNOWN.contains(&key.as_str()) {
            problems.push(format!("controller.{key} is not honoured{}", advice(key)));
        }
    }
    problems
}

fn advice(key: &str) -> &'static str {
    match key {
        "customTemplate" => ": there is no template; use snippets of the ConfigMap",
        "opentelemetry" => ": Forebay exports no OpenTelemetry traces yet",
        "extraModules" => ": modules cannot be loaded",
        "maxmindLicenseKey" => ": Forebay reads no GeoIP databases yet",
        "extraContainers" | "extraInitContainers" | "extraVolumes" | "extraVolumeMounts" => {
            ": look at what they are for"
        }
        _ => "",
    }
}

fn config_map(name: &str, data: std::collections::BTreeMap<String, String>) -> Object {
    let metadata = Metadata { name: name.into(), namespace: CONFIG.0.into(), ..Metadata::default() };
    Object::ConfigMap(Arc::new(ConfigMap { metadata, data }))
}

fn services(values: &Value, objects: &mut Objects, options: &mut Options) {
    for part in ["tcp", "udp"] {
        let Some(ports) = values.get(part).and_then(Value::as_object).filter(|p| !p.is_empty()) else {
            continue;
        };
        let data =
            ports.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap_or_default().to_owned())).collect();
        objects.apply(config_map(part, data));
        let key = Some(Key::new(CONFIG.0, part));
        if part == "tcp" {
            options.tcp_services = key;
        } else {
            options.udp_services = key;
        }
    }
}

fn flags(controller: &Value, options: &mut Options) {
    for (flag, value) in controller.get("extraArgs").and_then(Value::as_object).into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match flag.as_str() {
            "default-ssl-certificate" => options.default_ssl_certificate = Key::parse(&text),
            "default-backend-service" => options.default_backend_service = Key::parse(&text),
            "ingress-class" => options.ingress_class = text,
            "controller-class" => options.controller_class = text,
            "annotations-prefix" => options.annotations_prefix = text,
            "enable-ssl-passthrough" => options.enable_ssl_passthrough = text != "false",
            "disable-svc-external-name" => options.disable_svc_external_name = text != "false",
            // Those that are no options are named elsewhere.
            _ => {}
        }
    }
}
