//! Values of the Helm chart of ingress-nginx that do something else with Forebay, or nothing, although nothing complains of them.

use super::{IngressArgs, flags};
use clap::Args;
use serde_json::Value;

/// Keys beside `controller` that the chart has.
const TOP: &[&str] = &[
    "commonLabels",
    "controller",
    "defaultBackend",
    "dhParam",
    "fullnameOverride",
    "global",
    "imagePullSecrets",
    "nameOverride",
    "namespaceOverride",
    "podSecurityPolicy",
    "portNamePrefix",
    "rbac",
    "revisionHistoryLimit",
    "serviceAccount",
    "tcp",
    "udp",
];

/// Paths that the port for probes answers.
const PROBES: &[&str] = &["/healthz", "/readyz"];

/// Port for probes without `--healthz-port`.
const PROBE_PORT: u64 = 10254;

/// Beginning of the names of ingress-nginx's metrics.
const SERIES: &str = "nginx_ingress_controller_";

/// Returns what carries over in silence.
pub(super) fn over(values: &Value) -> Vec<String> {
    let mut notes = Vec::new();
    for key in values.as_object().into_iter().flat_map(|all| all.keys()) {
        if !TOP.contains(&key.as_str()) {
            notes.push(format!("{key}: the chart of ingress-nginx has no such key"));
        }
    }
    if values.pointer("/defaultBackend/enabled") == Some(&Value::Bool(true)) {
        notes.push(
            "defaultBackend.enabled: name the Service of the default backend by --default-backend-service"
                .into(),
        );
    }
    let Some(controller) = values.get("controller") else { return notes };
    probes(controller, &mut notes);
    arguments(controller, &mut notes);
    templates(controller, &mut notes);
    let rules = controller.pointer("/metrics/prometheusRule/rules");
    for (i, rule) in rules.and_then(Value::as_array).into_iter().flatten().enumerate() {
        let series = rule.get("expr").and_then(Value::as_str).map(series).unwrap_or_default();
        if !series.is_empty() {
            let name = rule.get("alert").or(rule.get("record")).and_then(Value::as_str).unwrap_or("?");
            notes.push(format!(
                "controller.metrics.prometheusRule.rules[{i}] ({name}) asks for {}, which Forebay does not export by \
                 default: it would be silent for ever",
                series.join(", ")
            ));
        }
    }
    notes
}

fn probes(controller: &Value, notes: &mut Vec<String>) {
    let own = controller.pointer("/extraArgs/healthz-port").and_then(number).unwrap_or(PROBE_PORT);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(get) = controller.get(probe).and_then(|p| p.get("httpGet")) else { continue };
        let path = get.get("path").and_then(Value::as_str).filter(|path| !PROBES.contains(path));
        if let Some(path) = path {
            notes.push(format!(
                "controller.{probe}.httpGet.path is {path}: the port for probes answers {}",
                PROBES.join(" and ")
            ));
        }
        if let Some(port) = get.get("port").and_then(number).filter(|port| *port != own) {
            notes.push(format!("controller.{probe}.httpGet.port is {port}: probes are answered at {own}"));
        }
    }
    if let Some(path) =
        controller.get("healthCheckPath").and_then(Value::as_str).filter(|path| *path != "/healthz")
    {
        notes.push(format!("controller.healthCheckPath is {path}: the path is /healthz"));
    }
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Names the arguments that `forebay ingress` would refuse.
fn arguments(controller: &Value, notes: &mut Vec<String>) {
    let command = IngressArgs::augment_args(clap::Command::new("ingress"));
    for flag in controller.get("extraArgs").and_then(Value::as_object).into_iter().flat_map(|all| all.keys())
    {
        if let Some((_, why)) = flags::WITHOUT_EFFECT.iter().find(|(name, _)| name == flag) {
            notes.push(format!("controller.extraArgs.{flag} has no effect: {why}"));
        } else if !command.get_arguments().any(|a| a.get_long() == Some(flag)) {
            notes.push(format!(
                "controller.extraArgs.{flag}: forebay ingress has no such option, leave it out"
            ));
        }
    }
}

/// Names mounts of templates and of files of nginx, which nothing reads.
fn templates(controller: &Value, notes: &mut Vec<String>) {
    let mounts = controller.get("extraVolumeMounts").and_then(Value::as_array);
    for (i, mount) in mounts.into_iter().flatten().enumerate() {
        let path = mount.get("mountPath").and_then(Value::as_str).unwrap_or_default();
        if path.starts_with("/etc/nginx") {
            notes.push(format!(
                "controller.extraVolumeMounts[{i}] mounts {path}: Forebay has no template and reads no file there"
            ));
        }
    }
}

/// Returns the names of ingress-nginx's metrics in a query.
fn series(query: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found: Vec<&str> = query.split(|c| !is_name(c)).filter(|w| w.starts_with(SERIES)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_is_named_at_once() {
        let values = json!({
            "controler": {},
            "defaultBackend": {"enabled": true},
            "controller": {
                "livenessProbe": {"httpGet": {"path": "/live", "port": 10254}},
                "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}},
                "extraArgs": {"sync-rate-limit": "1", "default-ssl-certificate": "a/b"},
                "extraVolumeMounts": [{"mountPath": "/etc/nginx/template"}, {"mountPath": "/data"}],
                "metrics": {"prometheusRule": {"rules": [
                    {"alert": "Reload", "expr": "count(nginx_ingress_controller_config_last_reload_successful == 0) > 0"},
                    {"alert": "Own", "expr": "forebay_requests_total > 1"},
                ]}},
            },
        });
        let notes = over(&values);
        let starts = [
            "controler:",
            "defaultBackend.enabled:",
            "controller.livenessProbe.httpGet.path is /live",
            "controller.readinessProbe.httpGet.port is 8080",
            "controller.extraArgs.sync-rate-limit has no effect:",
            "controller.extraVolumeMounts[0] mounts /etc/nginx/template",
            "controller.metrics.prometheusRule.rules[0] (Reload) asks for nginx_ingress_controller_config_last",
        ];
        assert_eq!(notes.len(), starts.len(), "{notes:#?}");
        for (note, start) in notes.iter().zip(starts) {
            assert!(note.starts_with(start), "{note}");
        }
        assert_eq!(
            over(&json!({"controller": {"livenessProbe": {"httpGet": {"path": "/healthz", "port": 10254}}}})),
            [""; 0]
        );
    }
}
