//! What a rule asks for and does not get. Such a rule is closed: it answers 500 to what it matches (HTTPRouteFilter: "MUST result in a
//! HTTP error response").

use super::matches::{decoded, shown, text};
use super::{external_auth, fields, limits, persistence};
use crate::gateway::objects::{
    Cors, Filter, Fraction, GatewayKind, Match, PathModifier, Redirect, Rule, UrlRewrite,
};
use crate::ingress::is_host;

/// Most matches of all rules of a route.
pub(crate) const MOST_MATCHES: usize = 1024;

/// Returns what a rule asks for and does not get. Empty: all of it works.
pub(crate) fn of_rule(rule: &Rule, kind: GatewayKind) -> Vec<String> {
    let mut faults = Vec::new();
    for filter in &rule.filters {
        faults.extend(of_filter(filter, kind, false, rule));
    }
    faults.extend(combinations(rule.filters.iter()));
    faults.extend(limits::faults(rule));
    faults.extend(rule.session_persistence.as_ref().and_then(|wish| persistence::read(wish, "").err()));
    faults
}

/// Returns what a backend asks for and does not get, with the filters of its rule.
pub(crate) fn of_backend(filters: &[Filter], rule: &Rule, kind: GatewayKind) -> Vec<String> {
    let own = filters.iter().flat_map(|filter| of_filter(filter, kind, true, rule));
    own.chain(combinations(filters.iter())).collect()
}

/// Filters that a rule has once at most.
const ONCE: &[&str] = &[
    "CORS",
    "ExternalAuth",
    "RequestHeaderModifier",
    "RequestRedirect",
    "ResponseHeaderModifier",
    "URLRewrite",
];

fn combinations<'f>(filters: impl Iterator<Item = &'f Filter> + Clone) -> Vec<String> {
    let count = |kind: &str| filters.clone().filter(|f| f.kind == kind).count();
    let mut faults: Vec<String> = ONCE
        .iter()
        .filter(|kind| count(kind) > 1)
        .map(|kind| format!("a rule has one filter {kind} at most"))
        .collect();
    if count("RequestRedirect") > 0 && count("URLRewrite") > 0 {
        faults.push("the filters RequestRedirect and URLRewrite exclude each other".into());
    }
    faults
}

fn of_filter(filter: &Filter, kind: GatewayKind, of_backend: bool, rule: &Rule) -> Vec<String> {
    let http = kind == GatewayKind::HttpRoute;
    let unknown = || vec![format!("the filter {} is not supported", shown(&filter.kind))];
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            filter.request_header_modifier.as_ref().map_or_else(unknown, fields::faults)
        }
        "ResponseHeaderModifier" => {
            filter.response_header_modifier.as_ref().map_or_else(unknown, fields::faults)
        }
        "RequestMirror" => filter.request_mirror.as_ref().map_or_else(unknown, |copy| {
            let part = |f: Fraction| f.denominator != Some(0) && f.numerator <= f.denominator.unwrap_or(100);
            let wrong = copy.fraction.is_some_and(|f| !part(f))
                || copy.percent.is_some_and(|percent| percent > 100 || copy.fraction.is_some());
            wrong.then(|| "the share of a mirror is none".to_owned()).into_iter().collect()
        }),
        "URLRewrite" if http => filter.url_rewrite.as_ref().map_or_else(unknown, |r| rewrite(r, rule)),
        "RequestRedirect" if http && !of_backend => {
            filter.request_redirect.as_ref().map_or_else(unknown, |r| redirect(r, rule))
        }
        "CORS" if http && !of_backend => filter.cors.as_ref().map_or_else(unknown, cors),
        "ExternalAuth" if http && !of_backend => {
            filter.external_auth.as_ref().map_or_else(unknown, external_auth::faults)
        }
        _ => unknown(),
    }
}

fn rewrite(rewrite: &UrlRewrite, rule: &Rule) -> Vec<String> {
    let host = rewrite.hostname.iter().filter_map(|host| bad_host(host));
    host.chain(rewrite.path.iter().flat_map(|path| new_path(path, rule))).collect()
}

fn redirect(redirect: &Redirect, rule: &Rule) -> Vec<String> {
    let mut faults: Vec<String> = redirect.hostname.iter().filter_map(|host| bad_host(host)).collect();
    faults.extend(redirect.path.iter().flat_map(|path| new_path(path, rule)));
    if let Some(scheme) = redirect.scheme.as_deref().filter(|s| !["http", "https"].contains(s)) {
        faults.push(format!("a redirect to the scheme {} is not supported", shown(scheme)));
    }
    if let Some(code) = redirect.status_code.filter(|code| ![301, 302, 303, 307, 308].contains(code)) {
        faults.push(format!("{code} is no status of a redirect"));
    }
    faults
}

fn bad_host(host: &str) -> Option<String> {
    let fine = is_host(&host.to_ascii_lowercase()) && !host.starts_with('*');
    (!fine).then(|| format!("\"{}\" is no host", shown(host)))
}

/// Returns what is wrong with a new path. A prefix is only there to be replaced if all matches of the rule have one.
fn new_path(path: &PathModifier, rule: &Rule) -> Vec<String> {
    let is_path = |new: &str| new.starts_with('/') && !new.contains(['?', '#']) && text(new).is_ok();
    let wrong = |new: &str| vec![format!("\"{}\" is no path", shown(new))];
    match (path.kind.as_str(), &path.replace_full_path, &path.replace_prefix_match) {
        ("ReplaceFullPath", Some(new), None) if new.is_empty() || is_path(new) => Vec::new(),
        ("ReplaceFullPath", Some(new), None) => wrong(new),
        ("ReplacePrefixMatch", None, Some(new)) => {
            if !new.is_empty() && !is_path(new) {
                return wrong(new);
            }
            let has_prefix = |found: &Match| {
                let path = found.path.clone().unwrap_or_default();
                matches!(path.kind.as_deref(), None | Some("PathPrefix"))
                    && path.value.as_deref().is_none_or(|value| decoded(value).is_ok())
            };
            match rule.matches.iter().all(has_prefix) {
                true => Vec::new(),
                false => vec!["a prefix is replaced where the match has none".into()],
            }
        }
        (kind, ..) => vec![format!("a new path of type {} is not supported", shown(kind))],
    }
}

fn cors(cors: &Cors) -> Vec<String> {
    let mut faults = Vec::new();
    let lists = [&cors.allow_methods, &cors.allow_headers, &cors.expose_headers];
    for word in lists.into_iter().flatten() {
        if word.is_empty() || !super::matches::is_token(word) || text(word).is_err() {
            faults.push(format!("CORS: \"{}\" is no method or name of a field", shown(word)));
        }
    }
    for origin in &cors.allow_origins {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "+-.:/*[]".contains(c);
        if origin.is_empty() || text(origin).is_err() || !origin.chars().all(allowed) {
            faults.push(format!("CORS: \"{}\" is no origin", shown(origin)));
        }
    }
    if cors.allow_origins.len() > 256 || lists.iter().any(|list| list.len() > 256) {
        faults.push("CORS: a list has more than 256 entries".into());
    }
    // All of a list are one word.
    if lists.iter().any(|list| list.iter().map(|w| w.len() + 2).sum::<usize>() > 3000) {
        faults.push("CORS: a list is longer than 3000 bytes".into());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn faults(rule: Value, kind: GatewayKind) -> Vec<String> {
        of_rule(&serde_json::from_value(rule).expect("a rule"), kind)
    }

    #[test]
    fn rules_that_cannot_be_done() {
        let http = |filter: Value| faults(json!({ "filters": [filter] }), GatewayKind::HttpRoute);
        let redirect = |more: Value| {
            let mut redirect = json!({});
            redirect.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
            http(json!({ "type": "RequestRedirect", "requestRedirect": redirect }))
        };
        assert_eq!(redirect(json!({ "scheme": "https", "statusCode": 308 })), [""; 0]);
        for more in [
            json!({ "scheme": "ftp" }),
            json!({ "statusCode": 200 }),
            json!({ "hostname": "a b" }),
            json!({ "hostname": "*.a" }),
            json!({ "path": { "type": "ReplaceFullPath", "replaceFullPath": "a" } }),
            json!({ "path": { "type": "Other" } }),
        ] {
            assert_eq!(redirect(more.clone()).len(), 1, "{more}");
        }
        for filter in [
            json!({ "type": "ExtensionRef" }),
            json!({ "type": "Later" }),
            json!({ "type": "CORS" }),
            json!({ "type": "CORS", "cors": { "allowHeaders": ["a b"] } }),
            json!({ "type": "CORS", "cors": { "allowOrigins": ["https://a\"b"] } }),
            json!({ "type": "RequestMirror", "requestMirror": { "backendRef": { "name": "a" }, "fraction": { "numerator": 1, "denominator": 0 } } }),
        ] {
            assert_eq!(http(filter.clone()).len(), 1, "{filter}");
        }
        let twice = json!({ "filters": [
            { "type": "URLRewrite", "urlRewrite": { "hostname": "a.test" } },
            { "type": "URLRewrite", "urlRewrite": { "hostname": "b.test" } },
        ] });
        assert_eq!(faults(twice, GatewayKind::HttpRoute).len(), 1);
        let rewrite =
            json!({ "filters": [{ "type": "URLRewrite", "urlRewrite": { "hostname": "a.test" } }] });
        assert_eq!(faults(rewrite.clone(), GatewayKind::HttpRoute), [""; 0]);
        assert_eq!(faults(rewrite, GatewayKind::GrpcRoute).len(), 1);
        let prefix = json!({ "matches": [{ "path": { "type": "Exact", "value": "/a" } }],
            "filters": [{ "type": "URLRewrite", "urlRewrite": { "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/b" } } }] });
        assert_eq!(faults(prefix, GatewayKind::HttpRoute).len(), 1);
    }

    #[test]
    fn backends_that_cannot_be_done() {
        let filters: Vec<Filter> = serde_json::from_value(json!([
            { "type": "RequestRedirect", "requestRedirect": {} },
            { "type": "CORS", "cors": {} },
            { "type": "URLRewrite", "urlRewrite": { "hostname": "a.test" } },
        ]))
        .expect("filters");
        let rule = Rule::default();
        assert_eq!(of_backend(&filters[..2], &rule, GatewayKind::HttpRoute).len(), 2);
        assert_eq!(of_backend(&filters[2..], &rule, GatewayKind::HttpRoute), [""; 0]);
    }
}
