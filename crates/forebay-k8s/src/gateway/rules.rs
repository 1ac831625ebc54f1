//! Rules of routes to `route` lines and named locations.

use super::attach::Cluster;
use super::objects::{
    BackendRef, Cors, Filter, GROUP, GatewayKind, HeaderModifier, Match, Method, PathModifier, Redirect,
    Route, Rule, ValueMatch,
};
use crate::groups::{Spec, short_hash};
use crate::model::{CertificateFiles, File};
use crate::objects::{Key, PortRef, ServicePort};
use forebay_conf::{Node, print};
use std::sync::Arc;
use std::time::Duration;

/// Backend of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    /// Group of its endpoints.
    pub spec: Arc<Spec>,
    /// Protocol.
    pub protocol: Protocol,
    /// TLS to it.
    pub tls: Option<BackendTls>,
}

/// Protocol to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Http2,
    Grpc,
}

/// TLS to a backend.
#[derive(Clone, Debug)]
pub(crate) struct BackendTls {
    /// Name in the handshake, and in the certificate unless there are `names`.
    pub name: String,
    /// Alternative names of which the certificate has to have one.
    pub names: Vec<String>,
    /// Authorities; `None`: those of the system.
    pub authorities: Option<File>,
}

/// Backend that requests of a rule go to, with its share.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The backend; `None`: the reference cannot be used, and its share is answered by 500.
    pub backend: Option<Backend>,
    /// Share in relation to the others.
    pub weight: u32,
    /// Changes of requests to this backend.
    pub filters: Vec<Filter>,
}

/// Why a reference of a route cannot be used: reason and message of the condition `ResolvedRefs`.
pub(crate) type Unresolved = (&'static str, String);

/// Finds the backends of a rule.
pub(crate) fn choices(
    cluster: Cluster<'_>,
    route: &Route,
    kind: GatewayKind,
    rule: &Rule,
    unresolved: &mut Vec<Unresolved>,
) -> Vec<Choice> {
    let mut all = Vec::new();
    for reference in &rule.backend_refs {
        let backend = match backend(cluster, route, kind, reference) {
            Ok(backend) => Some(backend),
            Err(why) => {
                unresolved.push(why);
                None
            }
        };
        all.push(Choice {
            backend,
            weight: reference.weight.unwrap_or(1),
            filters: reference.filters.clone(),
        });
    }
    all
}

/// Finds the backend of a reference.
pub(crate) fn backend(
    cluster: Cluster<'_>,
    route: &Route,
    kind: GatewayKind,
    reference: &BackendRef,
) -> Result<Backend, Unresolved> {
    let own = &route.metadata.namespace;
    let (group, name) =
        (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Service"));
    if (group, name) != ("", "Service") {
        return Err(("InvalidKind", format!("backends of kind {name} are not known")));
    }
    let key = Key::new(reference.namespace.as_deref().unwrap_or(own), reference.name.as_str());
    if !cluster.is_granted((GROUP, kind.name(), own), ("", "Service"), &key) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows the Service {key}")));
    }
    let missing = || ("BackendNotFound", format!("there is no Service {key} with this port"));
    let service = cluster.objects.service(&key).ok_or_else(missing)?;
    let number = reference.port.ok_or_else(missing)?;
    let udp = kind == GatewayKind::UdpRoute;
    let speaks = if udp { "UDP" } else { "TCP" };
    let fits = |p: &&ServicePort| p.port == number && p.protocol.as_deref().unwrap_or("TCP") == speaks;
    let port = service.object.spec.ports.iter().find(fits).ok_or_else(missing)?;
    let protocol = match (kind, port.app_protocol.as_deref()) {
        (GatewayKind::GrpcRoute, _) => Protocol::Grpc,
        (_, Some("kubernetes.io/h2c")) => Protocol::Http2,
        _ => Protocol::Http,
    };
    let port_ref = PortRef { name: None, number: Some(number) };
    let spec = Spec { service: key.clone(), port: port_ref, udp, ..Spec::default() };
    // What passes as it is has no TLS of ours.
    let tls = if kind.is_http() { super::backend_tls::of(cluster, &key, &port.name)? } else { None };
    Ok(Backend { spec: Arc::new(spec), protocol, tls })
}

/// Place that a rule is served at.
#[derive(Clone, Debug)]
pub(crate) struct Place<'a> {
    /// Text that no other rule has, for names of locations and variables.
    pub id: String,
    /// Port of the listener.
    pub port: u16,
    /// Match, with the prefix that filters may replace.
    pub found: &'a Match,
    /// Certificate that backends see.
    pub certificate: Option<&'a CertificateFiles>,
}

/// Directives for one match of a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// Directives of the http level.
    pub http: Vec<Node>,
    /// `route` lines.
    pub routes: Vec<Node>,
    /// Locations.
    pub locations: Vec<Node>,
    /// Files.
    pub files: Vec<File>,
}

/// Returns text as a word without variables.
pub(crate) fn literal(text: &str) -> String {
    String::from_utf8_lossy(&print::without_variables(text.as_bytes())).into_owned()
}

fn node<W: Into<Vec<u8>>>(name: &str, words: impl IntoIterator<Item = W>) -> Node {
    Node::new(name).args(words)
}

/// Makes the directives for one match of a rule.
pub(crate) fn serve(
    cluster: Cluster<'_>,
    route: &Route,
    kind: GatewayKind,
    (rule, choices): (&Rule, &[Choice]),
    place: &Place<'_>,
) -> Served {
    let mut served = Served::default();
    let conditions = conditions(place.found, kind);
    if let Some(cors) = rule.filters.iter().find_map(|f| f.cors.as_ref()) {
        preflight(cors, &conditions, place, &mut served);
    }
    let used: Vec<&Choice> = choices.iter().filter(|c| c.weight > 0).collect();
    let redirect = rule.filters.iter().find_map(|f| f.request_redirect.as_ref());
    if redirect.is_some() || used.len() < 2 {
        let name = format!("@{}", place.id);
        let mut words = vec![name.clone()];
        words.extend(conditions);
        served.routes.push(node("route", words));
        let body = match redirect {
            Some(redirect) => redirect_body(redirect, rule, place),
            None => body(cluster, route, kind, rule, used.first().copied(), place, &mut served),
        };
        served.locations.push(node("location", [name]).block(body));
        return served;
    }
    // The choice of a backend is a condition like the others. It stays the same for a request, as its number does.
    let variable = format!("$choice_{}", place.id);
    let total: u64 = used.iter().map(|c| u64::from(c.weight)).sum();
    let mut parts = Vec::new();
    for (index, choice) in used.iter().enumerate() {
        let share = match index + 1 == used.len() {
            true => "*".to_owned(),
            false => percent(u64::from(choice.weight), total),
        };
        // A share that is rounded to nothing cannot be written.
        if share != "0.00%" {
            parts.push(node(&share, [index.to_string()]));
        }
        let name = format!("@{}_{index}", place.id);
        let mut words = vec![name.clone()];
        words.extend(conditions.clone());
        words.extend([variable.clone(), format!("={index}")]);
        served.routes.push(node("route", words));
        let own = Place { id: format!("{}_{index}", place.id), ..place.clone() };
        let body = body(cluster, route, kind, rule, Some(choice), &own, &mut served);
        served.locations.push(node("location", [name]).block(body));
    }
    served.http.push(node("split_clients", ["$request_id", &variable]).block(parts));
    served
}

/// Returns a share as a word of `split_clients`.
pub(crate) fn percent(part: u64, total: u64) -> String {
    let hundredths = part * 10_000 / total.max(1);
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

/// Returns the conditions of a match as words of `route`: values and patterns.
fn conditions(found: &Match, kind: GatewayKind) -> Vec<String> {
    let mut words = Vec::new();
    let mut add = |value: String, pattern: String| words.extend([value, pattern]);
    if kind == GatewayKind::GrpcRoute {
        add("$uri".into(), grpc_path(found));
    } else {
        let path = found.path.clone().unwrap_or_default();
        let value = path.value.unwrap_or_else(|| "/".into());
        let pattern = match path.kind.as_deref() {
            Some("Exact") => format!("={value}"),
            Some("RegularExpression") => format!("~^(?:{value})$"),
            _ => format!("^{value}"),
        };
        add("$uri".into(), pattern);
        if let Some(Method::Http(method)) = &found.method {
            add("$request_method".into(), format!("={method}"));
        }
    }
    for header in &found.headers {
        let name = header.name.to_ascii_lowercase().replace('-', "_");
        add(format!("$http_{name}"), value_pattern(header));
    }
    for parameter in &found.query_params {
        add(format!("$arg_{}", parameter.name), value_pattern(parameter));
    }
    words
}

fn value_pattern(found: &ValueMatch) -> String {
    match found.kind.as_deref() {
        Some("RegularExpression") => format!("~^(?:{})$", found.value),
        _ => format!("={}", found.value),
    }
}

/// Returns the pattern of the path of a gRPC method: `/SERVICE/METHOD`.
fn grpc_path(found: &Match) -> String {
    let Some(Method::Grpc(method)) = &found.method else { return "~^/".into() };
    let regex = method.kind.as_deref() == Some("RegularExpression");
    let part = |text: &Option<String>| match text {
        Some(text) if regex => format!("(?:{text})"),
        Some(text) => escape(text),
        None => "[^/]+".to_owned(),
    };
    match (&method.service, &method.method) {
        (Some(service), Some(method)) if !regex => format!("=/{service}/{method}"),
        (service, method) => format!("~^/{}/{}$", part(service), part(method)),
    }
}

/// Returns a text as a regular expression that fits it alone.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && c.is_ascii() {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Returns the prefix that a match has, without a slash at its end; empty for the root.
fn prefix(found: &Match) -> String {
    let value = found.path.as_ref().and_then(|p| p.value.clone()).unwrap_or_default();
    value.trim_end_matches('/').to_owned()
}

/// Makes the body of the location for a backend.
fn body(
    cluster: Cluster<'_>,
    route: &Route,
    kind: GatewayKind,
    rule: &Rule,
    choice: Option<&Choice>,
    place: &Place<'_>,
    served: &mut Served,
) -> Vec<Node> {
    let Some(backend) = choice.and_then(|c| c.backend.as_ref()) else { return vec![node("return", ["500"])] };
    let filters: Vec<&Filter> =
        rule.filters.iter().chain(choice.into_iter().flat_map(|c| &c.filters)).collect();
    if filters.iter().any(|f| !is_known(f)) {
        // A filter that is not applied must not be skipped (HTTPRouteFilter: "MUST result in a HTTP error response").
        return vec![node("return", ["500"])];
    }
    let mut nodes = vec![node("set", ["$proxy_upstream_name".to_owned(), backend.spec.name()])];
    // `rewrite ... break` ends the directives of its kind, so it comes after all `set` and `if`.
    let mut rewrites = Vec::new();
    let mut headers = Headers::new(backend.protocol);
    for filter in &filters {
        if let Some(changes) = &filter.request_header_modifier {
            headers.change(changes, &place.id, &mut nodes);
        }
        if let Some(changes) = &filter.response_header_modifier {
            answer_fields(changes, &mut nodes);
        }
        if let Some(rewrite) = &filter.url_rewrite {
            if let Some(host) = &rewrite.hostname {
                headers.set("Host", literal(host));
            }
            if let Some(path) = &rewrite.path {
                rewrites.extend(rewrite_path(path, &prefix(place.found)));
            }
        }
        if let Some(cors) = &filter.cors {
            answer_cors(cors, &place.id, served, &mut nodes);
        }
    }
    for (index, copy) in filters.iter().filter_map(|f| f.request_mirror.as_ref()).enumerate() {
        let Ok(target) = self::backend(cluster, route, kind, &copy.backend_ref) else { continue };
        let path = format!("/_mirror_{}_{index}", place.id);
        let share = match (copy.fraction, copy.percent) {
            (Some(f), _) => Some(percent(f.numerator.into(), f.denominator.unwrap_or(100).into())),
            (None, Some(p)) => Some(percent(p.into(), 100)),
            (None, None) => None,
        };
        nodes.push(node("mirror", [path.as_str()]));
        served.locations.push(mirror_location(
            &path,
            &target,
            share,
            (served_id(&place.id, index), encryption("proxy", &target, place.certificate, &mut served.files)),
            &mut served.http,
        ));
    }
    nodes.extend(rewrites);
    nodes.extend(headers.nodes());
    nodes.extend(limits(rule, backend.protocol));
    nodes.extend(pass(backend, place.certificate, &mut served.files));
    nodes
}

fn served_id(id: &str, index: usize) -> String {
    format!("{id}_m{index}")
}

fn is_known(filter: &Filter) -> bool {
    match filter.kind.as_str() {
        "RequestHeaderModifier" => filter.request_header_modifier.is_some(),
        "ResponseHeaderModifier" => filter.response_header_modifier.is_some(),
        "URLRewrite" => filter.url_rewrite.is_some(),
        "RequestMirror" => filter.request_mirror.is_some(),
        "RequestRedirect" => filter.request_redirect.is_some(),
        "CORS" => filter.cors.is_some(),
        _ => false,
    }
}

fn mirror_location(
    path: &str,
    target: &Backend,
    share: Option<String>,
    (id, encryption): (String, Vec<Node>),
    http: &mut Vec<Node>,
) -> Node {
    let mut nodes = vec![node("internal", [""; 0])];
    if let Some(share) = share {
        let variable = format!("$mirrored_{id}");
        let mut parts = vec![node("*", ["0"])];
        if share != "0.00%" {
            parts.insert(0, node(&share, ["1"]));
        }
        http.push(node("split_clients", ["$request_id", &variable]).block(parts));
        nodes.push(
            node("if", [format!("({variable}"), "=".into(), "0)".into()])
                .block(vec![node("return", ["204"])]),
        );
    }
    nodes.extend(Headers::new(Protocol::Http).nodes());
    nodes.extend(encryption);
    let scheme = if target.tls.is_some() { "https" } else { "http" };
    nodes.push(node("proxy_pass", [format!("{scheme}://{}$request_uri", target.spec.name())]));
    node("location", ["=", path]).block(nodes)
}

/// Returns the directives that pass a request on.
fn pass(backend: &Backend, certificate: Option<&CertificateFiles>, files: &mut Vec<File>) -> Vec<Node> {
    let name = backend.spec.name();
    let (family, scheme) = match (backend.protocol, &backend.tls) {
        (Protocol::Grpc, None) => ("grpc", "grpc"),
        (Protocol::Grpc, Some(_)) => ("grpc", "grpcs"),
        (_, None) => ("proxy", "http"),
        (_, Some(_)) => ("proxy", "https"),
    };
    let mut nodes = encryption(family, backend, certificate, files);
    if family == "proxy" {
        let version = if backend.protocol == Protocol::Http2 { "2" } else { "1.1" };
        nodes.push(node("proxy_http_version", [version]));
    }
    nodes.push(node(&format!("{family}_pass"), [format!("{scheme}://{name}")]));
    nodes
}

/// Returns the directives for TLS to a backend. `family` is the first word of their names.
fn encryption(
    family: &str,
    backend: &Backend,
    certificate: Option<&CertificateFiles>,
    files: &mut Vec<File>,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let Some(tls) = &backend.tls else { return nodes };
    nodes.push(node(&format!("{family}_ssl_server_name"), ["on"]));
    nodes.push(node(&format!("{family}_ssl_name"), [literal(&tls.name)]));
    nodes.push(node(&format!("{family}_ssl_verify"), ["on"]));
    nodes.push(node(&format!("{family}_ssl_verify_depth"), ["4"]));
    if !tls.names.is_empty() {
        nodes.push(node(&format!("{family}_ssl_verify_names"), tls.names.iter().map(String::as_str)));
    }
    let authorities = tls.authorities.as_ref().map_or(SYSTEM_AUTHORITIES, |f| f.path.as_str());
    nodes.push(node(&format!("{family}_ssl_trusted_certificate"), [authorities]));
    files.extend(tls.authorities.clone());
    if let Some(own) = certificate {
        nodes.push(node(&format!("{family}_ssl_certificate"), [own.chain.path.as_str()]));
        nodes.push(node(&format!("{family}_ssl_certificate_key"), [own.key.path.as_str()]));
        files.extend([own.chain.clone(), own.key.clone()]);
    }
    nodes
}

/// Authorities of the system, where Debian and the image have them.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Returns the time limits and repetitions of a rule.
fn limits(rule: &Rule, protocol: Protocol) -> Vec<Node> {
    let family = if protocol == Protocol::Grpc { "grpc" } else { "proxy" };
    let mut nodes = Vec::new();
    let time = |text: &Option<String>| text.as_deref().and_then(duration).filter(|d| !d.is_zero());
    let (whole, attempt) = (time(&rule.timeouts.request), time(&rule.timeouts.backend_request));
    if let Some(limit) = attempt.or(whole) {
        let text = format!("{}ms", limit.as_millis());
        for what in ["connect", "send", "read"] {
            nodes.push(node(&format!("{family}_{what}_timeout"), [text.clone()]));
        }
    }
    if let Some(limit) = whole {
        nodes.push(node(&format!("{family}_next_upstream_timeout"), [format!("{}ms", limit.as_millis())]));
    }
    if let Some(retry) = &rule.retry {
        let mut words = vec!["error".to_owned(), "timeout".to_owned()];
        let known = |code: &&u16| [403, 404, 429, 500, 502, 503, 504].contains(*code);
        words.extend(retry.codes.iter().filter(known).map(|code| format!("http_{code}")));
        words.push("non_idempotent".to_owned());
        nodes.push(node(&format!("{family}_next_upstream"), words));
        let tries = retry.attempts.unwrap_or(1).saturating_add(1);
        nodes.push(node(&format!("{family}_next_upstream_tries"), [tries.to_string()]));
        nodes.push(node(&format!("{family}_next_upstream_again"), ["on"]));
    }
    nodes
}

/// Reads a duration of the Gateway API (GEP-2257), such as `1h30m` or `500ms`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    if text.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let (unit, length) = if rest.starts_with("ms") {
            (1, 2)
        } else {
            (
                match rest.as_bytes().first()? {
                    b's' => 1000,
                    b'm' => 60_000,
                    b'h' => 3_600_000,
                    _ => return None,
                },
                1,
            )
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(unit)?))?;
        rest = rest.get(length..)?;
    }
    Some(total)
}

/// Fields of requests to a backend.
struct Headers {
    directive: &'static str,
    fields: Vec<(String, String)>,
}

impl Headers {
    fn new(protocol: Protocol) -> Headers {
        let plain = [
            ("Host", "$http_host"),
            ("X-Request-ID", "$request_id"),
            ("X-Real-IP", "$remote_addr"),
            ("X-Forwarded-For", "$proxy_add_x_forwarded_for"),
            ("X-Forwarded-Host", "$http_host"),
            ("X-Forwarded-Proto", "$scheme"),
            ("Upgrade", "$http_upgrade"),
            ("Connection", "$gateway_connection"),
        ];
        let directive = if protocol == Protocol::Grpc { "grpc_set_header" } else { "proxy_set_header" };
        // Over HTTP/2 there is no Connection field.
        let kept = |(name, _): &(&str, &str)| {
            protocol == Protocol::Http || !["Upgrade", "Connection"].contains(name)
        };
        let fields = plain.into_iter().filter(kept).map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
        Headers { directive, fields }
    }

    fn set(&mut self, name: &str, value: String) {
        self.fields.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        self.fields.push((name.to_owned(), value));
    }

    /// Sets, adds and removes fields. `nodes` gets what an addition needs before.
    fn change(&mut self, changes: &HeaderModifier, id: &str, nodes: &mut Vec<Node>) {
        for field in &changes.set {
            self.set(&field.name, literal(&field.value));
        }
        for field in &changes.add {
            let own =
                self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(&field.name)).map(|(_, v)| v.clone());
            let before =
                own.unwrap_or_else(|| format!("$http_{}", field.name.to_ascii_lowercase().replace('-', "_")));
            let variable = format!("$before_{id}_{}", short_hash(&field.name.to_ascii_lowercase()));
            nodes.push(node("set", [variable.as_str(), ""]));
            let value = node("set", [variable.clone(), format!("{before},")]);
            nodes.push(node("if", [format!("({before})")]).block(vec![value]));
            let braced = format!("${{{}}}", variable.trim_start_matches('$'));
            self.set(&field.name, format!("{braced}{}", literal(&field.value)));
        }
        for name in &changes.remove {
            self.set(name, String::new());
        }
    }

    fn nodes(self) -> impl Iterator<Item = Node> {
        let directive = self.directive;
        self.fields.into_iter().map(move |(name, value)| node(directive, [name, value]))
    }
}

fn answer_fields(changes: &HeaderModifier, nodes: &mut Vec<Node>) {
    for name in &changes.remove {
        nodes.push(node("more_clear_headers", [name.as_str()]));
    }
    for field in &changes.set {
        nodes.push(node("more_set_headers", [format!("{}: {}", field.name, literal(&field.value))]));
    }
    for field in &changes.add {
        nodes.push(node("add_header", [field.name.clone(), literal(&field.value), "always".into()]));
    }
}

/// Returns the `rewrite` lines for a new path.
fn rewrite_path(path: &PathModifier, prefix: &str) -> Vec<Node> {
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
fn redirect_body(redirect: &Redirect, rule: &Rule, place: &Place<'_>) -> Vec<Node> {
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

/// Returns the variable with the allowed origin of a request, and its `map`.
fn origin_map(cors: &Cors, id: &str) -> (String, Node) {
    let variable = format!("$origin_{id}");
    let mut entries = vec![node("default", [""])];
    for origin in &cors.allow_origins {
        let word = if origin == "*" {
            // With credentials an answer has to name the origin.
            "~.".to_owned()
        } else {
            format!("~*^{}$", escape(origin).replace("\\*", ".+"))
        };
        let any = origin == "*" && cors.allow_credentials != Some(true);
        entries.push(node(&word, [if any { "*" } else { "$http_origin" }]));
    }
    (variable.clone(), node("map", ["$http_origin", &variable]).block(entries))
}

/// Adds the fields of answers to requests of other origins.
fn answer_cors(cors: &Cors, id: &str, served: &mut Served, nodes: &mut Vec<Node>) {
    let (variable, map) = origin_map(cors, &format!("a{id}"));
    served.http.push(map);
    nodes.push(node("more_set_headers", [format!("Access-Control-Allow-Origin: {variable}")]));
    let when = |text: &str, id: &str| (format!("$cors_{id}"), text.to_owned());
    let mut add = |field: &str, value: &str| {
        // Only where the origin is allowed: an empty value removes the field.
        let (name, value) = when(value, &format!("{id}_{}", short_hash(field)));
        let entries = vec![node("default", [literal(&value)]), node("", [""])];
        served.http.push(node("map", [variable.as_str(), &name]).block(entries));
        nodes.push(node("more_set_headers", [format!("{field}: {name}")]));
    };
    if cors.allow_credentials == Some(true) {
        add("Access-Control-Allow-Credentials", "true");
    }
    if !cors.expose_headers.is_empty() {
        add("Access-Control-Expose-Headers", &cors.expose_headers.join(", "));
    }
}

/// Adds the answer to requests that ask for permission (Fetch: CORS-preflight request).
fn preflight(cors: &Cors, conditions: &[String], place: &Place<'_>, served: &mut Served) {
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
    served.locations.push(node("location", [refused]).block(vec![node("return", ["204"])]));
    let mut nodes = vec![node("more_set_headers", [format!("Access-Control-Allow-Origin: {variable}")])];
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
    served.locations.push(node("location", [name]).block(nodes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ms = |text: &str| duration(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Some(500));
        assert_eq!(ms("1h30m5s"), Some(5_405_000));
        assert_eq!(ms("0s"), Some(0));
        for wrong in ["", "5", "s", "5x", "1.5s", "99999999999999999999h"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn paths_of_grpc() {
        let path = |kind: Option<&str>, service: Option<&str>, method: Option<&str>| {
            let method = super::super::objects::GrpcMethod {
                kind: kind.map(str::to_owned),
                service: service.map(str::to_owned),
                method: method.map(str::to_owned),
            };
            grpc_path(&Match { method: Some(Method::Grpc(method)), ..Match::default() })
        };
        assert_eq!(path(None, Some("a.B"), Some("C")), "=/a.B/C");
        assert_eq!(path(None, Some("a.B"), None), "~^/a\\.B/[^/]+$");
        assert_eq!(path(None, None, Some("C")), "~^/[^/]+/C$");
        assert_eq!(path(Some("RegularExpression"), Some("a.*"), Some("C")), "~^/(?:a.*)/(?:C)$");
        assert_eq!(grpc_path(&Match::default()), "~^/");
    }

    #[test]
    fn shares() {
        assert_eq!(percent(1, 3), "33.33%");
        assert_eq!(percent(1, 100_000), "0.00%");
        assert_eq!(percent(100, 100), "100.00%");
    }
}
