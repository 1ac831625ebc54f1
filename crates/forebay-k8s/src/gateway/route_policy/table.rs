//! The fields of a RoutePolicy and the annotations that they stand for. The definition of the kind has the same fields, in
//! `kubernetes/crds/routepolicies.yaml`.

/// Way from a field to the value of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A text.
    Text,
    /// A whole number.
    Number,
    /// `true` or `false`.
    Bool,
    /// `true` or `false`, for `on` and `off`.
    Switch,
    /// A list of texts, joined by commas.
    List,
}

/// A field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Path below `spec`: the group and the name, or the name alone.
    pub path: &'static str,
    /// Annotation.
    pub annotation: &'static str,
    /// Way to its value.
    pub form: Form,
}

const fn f(path: &'static str, annotation: &'static str, form: Form) -> Field {
    Field { path, annotation, form }
}

use Form::{Bool, List, Number, Switch, Text};

/// All fields but `targetRefs`.
pub(crate) const FIELDS: &[Field] = &[
    f("basicAuth.secret", "auth-secret", Text),
    f("basicAuth.secretType", "auth-secret-type", Text),
    f("basicAuth.realm", "auth-realm", Text),
    f("externalAuth.url", "auth-url", Text),
    f("externalAuth.method", "auth-method", Text),
    f("externalAuth.responseHeaders", "auth-response-headers", List),
    f("externalAuth.proxySetHeaders", "auth-proxy-set-headers", Text),
    f("externalAuth.signin", "auth-signin", Text),
    f("externalAuth.signinRedirectParam", "auth-signin-redirect-param", Text),
    f("externalAuth.requestRedirect", "auth-request-redirect", Text),
    f("externalAuth.alwaysSetCookie", "auth-always-set-cookie", Bool),
    f("externalAuth.cacheKey", "auth-cache-key", Text),
    f("externalAuth.cacheDuration", "auth-cache-duration", Text),
    f("externalAuth.keepalive", "auth-keepalive", Number),
    f("externalAuth.keepaliveRequests", "auth-keepalive-requests", Number),
    f("externalAuth.keepaliveTimeout", "auth-keepalive-timeout", Number),
    f("enableGlobalAuth", "enable-global-auth", Bool),
    f("allowlistSourceRange", "allowlist-source-range", List),
    f("denylistSourceRange", "denylist-source-range", List),
    f("limit.connections", "limit-connections", Number),
    f("limit.rps", "limit-rps", Number),
    f("limit.rpm", "limit-rpm", Number),
    f("limit.burstMultiplier", "limit-burst-multiplier", Number),
    f("limit.allowlist", "limit-allowlist", List),
    f("limit.scope", "limit-scope", Text),
    f("limit.rate", "limit-rate", Number),
    f("limit.rateAfter", "limit-rate-after", Number),
    f("proxy.bodySize", "proxy-body-size", Text),
    f("proxy.connectTimeout", "proxy-connect-timeout", Number),
    f("proxy.sendTimeout", "proxy-send-timeout", Number),
    f("proxy.readTimeout", "proxy-read-timeout", Number),
    f("proxy.buffering", "proxy-buffering", Switch),
    f("proxy.requestBuffering", "proxy-request-buffering", Switch),
    f("proxy.bufferSize", "proxy-buffer-size", Text),
    f("proxy.buffersNumber", "proxy-buffers-number", Number),
    f("proxy.busyBuffersSize", "proxy-busy-buffers-size", Text),
    f("proxy.maxTempFileSize", "proxy-max-temp-file-size", Text),
    f("proxy.cookieDomain", "proxy-cookie-domain", Text),
    f("proxy.cookiePath", "proxy-cookie-path", Text),
    f("proxy.redirectFrom", "proxy-redirect-from", Text),
    f("proxy.redirectTo", "proxy-redirect-to", Text),
    f("clientBodyBufferSize", "client-body-buffer-size", Text),
    f("sessionCookie.name", "session-cookie-name", Text),
    f("sessionCookie.path", "session-cookie-path", Text),
    f("sessionCookie.domain", "session-cookie-domain", Text),
    f("sessionCookie.maxAge", "session-cookie-max-age", Number),
    f("sessionCookie.samesite", "session-cookie-samesite", Text),
    f("sessionCookie.secure", "session-cookie-secure", Bool),
    f("sessionCookie.changeOnFailure", "session-cookie-change-on-failure", Bool),
    f("loadBalance", "load-balance", Text),
    f("upstreamHashBy", "upstream-hash-by", Text),
    f("cors.allowOrigin", "cors-allow-origin", List),
    f("cors.allowMethods", "cors-allow-methods", List),
    f("cors.allowHeaders", "cors-allow-headers", List),
    f("cors.exposeHeaders", "cors-expose-headers", List),
    f("cors.allowCredentials", "cors-allow-credentials", Bool),
    f("cors.maxAge", "cors-max-age", Number),
    f("customHeaders", "custom-headers", Text),
    f("upstreamVhost", "upstream-vhost", Text),
    f("xForwardedPrefix", "x-forwarded-prefix", Text),
    f("enableAccessLog", "enable-access-log", Bool),
];

/// Groups of fields that are an annotation by being there, whatever fields they have.
pub(crate) const GROUPS: &[(&str, &str, &str)] = &[
    ("basicAuth", "auth-type", "basic"),
    ("sessionCookie", "affinity", "cookie"),
    ("cors", "enable-cors", "true"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::row;
    use crate::value::Value;
    use serde_json::Value as Json;
    use std::collections::BTreeSet;

    #[test]
    fn fields_stand_for_annotations() {
        let mut known = BTreeSet::new();
        for field in FIELDS {
            let row = row(field.annotation).unwrap_or_else(|| panic!("{}", field.annotation));
            assert!(known.insert(field.path) && known.insert(field.annotation), "{}", field.path);
            assert_ne!(row.value, Value::Snippet, "{}", field.path);
            let fits = match field.form {
                Number => matches!(row.value, Value::Number(..)),
                Bool => row.value == Value::Bool,
                Switch => matches!(row.value, Value::OneOf(["on", "off"])),
                Text | List => !matches!(row.value, Value::Number(..) | Value::Bool),
            };
            assert!(fits, "{}", field.path);
        }
        for (_, annotation, _) in GROUPS {
            assert!(row(annotation).is_some(), "{annotation}");
        }
    }

    fn leaves(schema: &Json, path: &str, found: &mut Vec<(String, String)>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let own = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match field["type"].as_str() {
                Some("object") => leaves(field, &own, found),
                Some(kind) => found.push((own, kind.to_owned())),
                None => panic!("{own} has no type"),
            }
        }
    }

    #[test]
    fn the_definition_has_the_same_fields() {
        let text = include_str!("../../../../../kubernetes/crds/routepolicies.yaml");
        let definition = crate::objects::yaml(text).expect("YAML");
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut found = Vec::new();
        leaves(schema, "", &mut found);
        found.retain(|(path, _)| path != "targetRefs");
        let kind = |form| match form {
            Text => "string",
            Number => "integer",
            Bool | Switch => "boolean",
            List => "array",
        };
        let mut wanted: Vec<(String, String)> =
            FIELDS.iter().map(|f| (f.path.to_owned(), kind(f.form).to_owned())).collect();
        wanted.sort();
        found.sort();
        assert_eq!(found, wanted);
    }

    #[test]
    fn the_table_in_the_documentation_is_complete() {
        let text = include_str!("../../../../../docs/kubernetes-gateway.md");
        for field in FIELDS {
            let line = format!("| `{}` | `{}` |", field.path, field.annotation);
            assert!(text.contains(&line), "{line}");
        }
    }
}
