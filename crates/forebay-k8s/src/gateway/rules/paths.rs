//! Paths that filters change, and redirects.

use super::fields::answer_fields;
use super::matches::{decoded, escape};
use super::{Place, literal, node};
use crate::gateway::objects::{Match, PathModifier, Redirect, Rule};
use forebay_conf::Node;

/// Returns the prefix that a match has, as `$uri` has it, without a slash at its end; empty for the root.
pub(super) fn prefix(found: &Match) -> String {
    let value = found.path.as_ref().and_then(|p| p.value.as_deref()).unwrap_or("/");
    decoded(value).unwrap_or_default().trim_end_matches('/').to_owned()
}

/// Returns the `rewrite` lines for a new path.
pub(super) fn rewrite_path(path: &PathModifier, prefix: &str) -> Vec<Node> {
    match path.kind.as_str() {
        "ReplaceFullPath" => {
            let full = path.replace_full_path.as_deref().unwrap_or("/");
            let full = if full.is_empty() { "/" } else { full };
            vec![node("rewrite", ["^".to_owned(), literal(full), "break".into()])]
        }
        _ => {
            let new = path.replace_prefix_match.as_deref().unwrap_or_default().trim_end_matches('/');
            let (old, new) = (escape(prefix), literal(new));
            let root = if new.is_empty() { "/".to_owned() } else { new.clone() };
            vec![
                node("rewrite", [format!("^{old}/(.*)$"), format!("{new}/$1"), "break".into()]),
                node("rewrite", [format!("^{old}$"), root, "break".into()]),
            ]
        }
    }
}

/// Makes the body of a location that redirects.
pub(super) fn redirect_body(redirect: &Redirect, rule: &Rule, place: &Place<'_>) -> Vec<Node> {
    let mut nodes = Vec::new();
    for changes in rule.filters.iter().filter_map(|f| f.response_header_modifier.as_ref()) {
        answer_fields(changes, &mut nodes);
    }
    let scheme = redirect.scheme.clone().unwrap_or_else(|| "$scheme".into());
    let host = redirect.hostname.as_deref().map_or_else(|| "$host".to_owned(), literal);
    // Another scheme has its well-known port.
    let port = redirect.port.or(if redirect.scheme.is_some() { None } else { Some(place.port) });
    let well_known = |port: &u16| match redirect.scheme.as_deref() {
        Some("http") => *port == 80,
        Some("https") => *port == 443,
        _ => *port == 80 || *port == 443,
    };
    let port = port.filter(|p| !well_known(p)).map(|p| format!(":{p}")).unwrap_or_default();
    let path = match &redirect.path {
        None => "$request_uri".to_owned(),
        Some(path) if path.kind == "ReplaceFullPath" => {
            format!("{}$is_args$args", literal(path.replace_full_path.as_deref().unwrap_or("/")))
        }
        Some(path) => {
            let new = literal(path.replace_prefix_match.as_deref().unwrap_or_default().trim_end_matches('/'));
            let (rest, target) = (format!("$rest_{}", place.id), format!("$target_{}", place.id));
            let pattern = format!("^{}(/.*)?$", escape(&prefix(place.found)));
            nodes.push(node("set", [rest.as_str(), ""]));
            let captured = node("set", [rest.as_str(), "$1"]);
            nodes.push(node("if", ["($uri".into(), "~".into(), format!("{pattern})")]).block(vec![captured]));
            nodes.push(node("set", [target.clone(), format!("{new}{rest}")]));
            let root = node("set", [target.as_str(), "/"]);
            nodes.push(node("if", [format!("({target}"), "=".into(), "\"\")".into()]).block(vec![root]));
            format!("{target}$is_args$args")
        }
    };
    let code = redirect.status_code.unwrap_or(302);
    nodes.push(node("return", [code.to_string(), format!("{scheme}://{host}{port}{path}")]));
    nodes
}
