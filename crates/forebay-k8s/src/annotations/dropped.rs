//! Annotations that ingress-nginx had and has no more. Manifests keep them for years, without effect.

/// Name, and what there is in its place.
#[rustfmt::skip]
const ROWS: &[(&str, &str)] = &[
    ("add-base-url", "use sub_filter in a snippet"),
    ("base-url-scheme", "use sub_filter in a snippet"),
    ("enable-influxdb", "use the metrics of Prometheus"),
    ("enable-opentracing", "it gave way to enable-opentelemetry"),
    ("enable-vts-status", "use the metrics of Prometheus"),
    ("global-rate-limit", "use limit-rps with forebay.io/limit-scope: cluster"),
    ("global-rate-limit-ignored-cidrs", "use limit-allowlist"),
    ("global-rate-limit-key", "use limit-rps with forebay.io/limit-scope: cluster"),
    ("global-rate-limit-window", "use limit-rps or limit-rpm"),
    ("grpc-backend", "use backend-protocol: GRPC"),
    ("influxdb-host", "use the metrics of Prometheus"),
    ("influxdb-measurement", "use the metrics of Prometheus"),
    ("influxdb-port", "use the metrics of Prometheus"),
    ("influxdb-server-name", "use the metrics of Prometheus"),
    ("lua-resty-waf", "the firewall is gone"),
    ("lua-resty-waf-allow-unknown-content-types", "the firewall is gone"),
    ("lua-resty-waf-debug", "the firewall is gone"),
    ("lua-resty-waf-extra-rules", "the firewall is gone"),
    ("lua-resty-waf-ignore-rulesets", "the firewall is gone"),
    ("lua-resty-waf-process-multipart-body", "the firewall is gone"),
    ("lua-resty-waf-score-threshold", "the firewall is gone"),
    ("mirror-uri", "use mirror-target"),
    ("opentracing-trust-incoming-span", "it gave way to opentelemetry-trust-incoming-span"),
    ("secure-backends", "use backend-protocol: HTTPS"),
    ("secure-verify-ca-secret", "use proxy-ssl-secret with proxy-ssl-verify"),
    ("session-cookie-hash", "the cookie needs no choice of a hash"),
    ("upstream-fail-timeout", "failures count by proxy-next-upstream"),
    ("upstream-max-fails", "failures count by proxy-next-upstream"),
    ("vts-filter-key", "use the metrics of Prometheus"),
];

/// Returns what there is in place of an annotation that ingress-nginx has dropped.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    ROWS.iter().find(|(dropped, _)| *dropped == name).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_of_them_is_served() {
        for (name, _) in ROWS {
            assert!(crate::annotations::row(name).is_none(), "{name}");
        }
        assert!(ROWS.windows(2).all(|pair| matches!(pair, [a, b] if a.0 < b.0)));
    }
}
