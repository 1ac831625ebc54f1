//! Answers to pages of other origins (Fetch: CORS protocol).

use super::matches::escape;
use super::{Place, Served, literal, node};
use crate::gateway::objects::Cors;
use crate::groups::short_hash;
use forebay_conf::Node;

/// Returns the variable with the allowed origin of a request, and its `map`.
fn origin_map(cors: &Cors, id: &str) -> (String, Node) {
    let variable = format!("$origin_{id}");
    let mut entries = vec![node("default", [""])];
    for origin in &cors.allow_origins {
        let word = if origin == "*" {
            // With credentials an answer has to name the origin.
            "~.".to_owned()
        } else {
            format!("~*^{}$", escape(origin).replace("\\*", "[a-z0-9.-]+"))
        };
        let any = origin == "*" && cors.allow_credentials != Some(true);
        entries.push(node(&word, [if any { "*" } else { "$http_origin" }]));
    }
    (variable.clone(), node("map", ["$http_origin", &variable]).block(entries))
}

/// Adds the fields of answers to requests of other origins.
pub(super) fn answer(cors: &Cors, id: &str, http: &mut Vec<Node>, nodes: &mut Vec<Node>) {
    let (variable, map) = origin_map(cors, &format!("a{id}"));
    http.push(map);
    nodes.push(node("more_set_headers", [format!("Access-Control-Allow-Origin: {variable}")]));
    let mut add = |field: &str, value: &str| {
        // Only where the origin is allowed: an empty value removes the field.
        let name = format!("$cors_{id}_{}", short_hash(field));
        let entries = vec![node("default", [literal(value)]), node("", [""])];
        http.push(node("map", [variable.as_str(), &name]).block(entries));
        nodes.push(node("more_set_headers", [format!("{field}: {name}")]));
    };
    if cors.allow_credentials == Some(true) {
        add("Access-Control-Allow-Credentials", "true");
    }
    if !cors.expose_headers.is_empty() {
        add("Access-Control-Expose-Headers", &cors.expose_headers.join(", "));
    }
}

/// Adds the answer to requests that ask for permission (Fetch: CORS-preflight request). Browsers send them without credentials, so that
/// none are asked for; `lists`, the networks that are let in, hold for them, too.
pub(super) fn preflight(
    cors: &Cors,
    conditions: &[String],
    lists: &[Node],
    place: &Place<'_>,
    served: &mut Served,
) {
    let id = format!("p{}", place.id);
    let (variable, map) = origin_map(cors, &id);
    served.http.push(map);
    let name = format!("@{id}");
    let mut words = vec![name.clone()];
    words.extend(conditions.iter().cloned());
    words.extend(
        ["$request_method", "=OPTIONS", "$http_access_control_request_method", "~."].map(str::to_owned),
    );
    let mut others = words.clone();
    words.extend([variable.clone(), "~.".into()]);
    served.routes.push(node("route", words));
    // Other origins get an answer without permission, which the backend must not give.
    let refused = format!("@x{}", place.id);
    if let Some(first) = others.first_mut() {
        first.clone_from(&refused);
    }
    served.routes.push(node("route", others));
    let empty = vec![node("return", ["204"])];
    served.locations.extend(super::gated(&refused, lists.to_vec(), empty, true));
    let body = permission(cors, &variable);
    served.locations.extend(super::gated(&name, lists.to_vec(), body, true));
}

/// Makes the answer that gives permission.
fn permission(cors: &Cors, origin: &str) -> Vec<Node> {
    let mut nodes = vec![node("more_set_headers", [format!("Access-Control-Allow-Origin: {origin}")])];
    let mut add =
        |field: &str, value: String| nodes.push(node("more_set_headers", [format!("{field}: {value}")]));
    let list = |all: &[String], asked: &str| match all {
        [one] if one == "*" && cors.allow_credentials == Some(true) => asked.to_owned(),
        all => literal(&all.join(", ")),
    };
    if !cors.allow_methods.is_empty() {
        add("Access-Control-Allow-Methods", list(&cors.allow_methods, "$http_access_control_request_method"));
    }
    if !cors.allow_headers.is_empty() {
        add(
            "Access-Control-Allow-Headers",
            list(&cors.allow_headers, "$http_access_control_request_headers"),
        );
    }
    if cors.allow_credentials == Some(true) {
        add("Access-Control-Allow-Credentials", "true".into());
    }
    if !cors.expose_headers.is_empty() {
        add("Access-Control-Expose-Headers", list(&cors.expose_headers, ""));
    }
    add("Access-Control-Max-Age", cors.max_age.unwrap_or(5).to_string());
    nodes.push(node("return", ["204"]));
    nodes
}
