//! The content of a route's location.

use super::super::{merge, node};
use super::fields::{self, Family};
use super::{Out, is_exempt, policy_id, route_id, target};
use super::{access, beside, canary};
use crate::ingress::upstream_name;
use crate::model::{Action, Cors, Forward, HostName, Https, Plain, Protocol, Route};
use crate::variables;
use forebay_conf::Node;

/// Variables that are set in each location that something refers to.
pub(in crate::tree) const OF_LOCATION: &[&str] = &[
    "proxy_upstream_name",
    "proxy_alternative_upstream_name",
    "namespace",
    "ingress_name",
    "service_name",
    "service_port",
    "location_path",
    "escaped_request_uri",
    "proxy_host",
];

/// Makes the directives of a route's location.
pub(super) fn body(out: &mut Out<'_>, route: &Route) -> Vec<Node> {
    let mut location = LocationBuilder { nodes: to_https(out, Some(route)), route };
    match &route.action {
        Action::Answer(status) => location.nodes.push(node("return", [status.to_string()])),
        Action::Redirect { code, url } => location.redirect(out, *code, url),
        Action::Forward(forward) => location.forward(out, forward),
    }
    let mut all = variables(out, Some(route), &location.nodes);
    all.extend(location.nodes);
    all
}

/// Builder of the location of a route.
struct LocationBuilder<'a> {
    nodes: Vec<Node>,
    route: &'a Route,
}

impl LocationBuilder<'_> {
    /// Adds the answers to pages of other origins and the checks of access, which come first.
    fn checks(&mut self, out: &mut Out<'_>) {
        if let Some(answers) = &self.route.policy.cors {
            cors(out, self.route, answers, &mut self.nodes);
        }
        access::checks(out, self.route, &mut self.nodes);
    }

    fn redirect(&mut self, out: &mut Out<'_>, code: i64, url: &str) {
        let policy = &self.route.policy;
        self.checks(out);
        let form = |d: &&Plain| matches!(d.name, "absolute_redirect" | "port_in_redirect" | "access_log");
        let words = |d: &Plain| node(d.name, d.words.iter().map(String::as_str));
        self.nodes.extend(policy.plain.iter().filter(form).map(words));
        for own in [&out.globals.snippets.location, &policy.snippet] {
            self.nodes = merge::join(std::mem::take(&mut self.nodes), own);
        }
        self.nodes.extend(answers(self.route));
        self.nodes.push(node("return", [code.to_string(), url.to_owned()]));
    }

    fn forward(&mut self, out: &mut Out<'_>, forward: &Forward) {
        let (route, policy) = (self.route, &self.route.policy);
        self.checks(out);
        let nodes = &mut self.nodes;
        let authorized = access::authority(out, route, nodes);
        plain(forward.protocol, &policy.plain, nodes);
        headers(out, route, forward.protocol, authorized, nodes);
        if let Some(errors) = &policy.errors {
            beside::errors(out, route, errors, nodes);
        }
        if let Some(group) = &policy.stand_in {
            beside::stand_in(out, route, group, nodes);
        }
        if let Some(mirror) = &policy.mirror {
            beside::mirror(out, route, mirror, nodes);
        }
        // A snippet comes before the rewriting of the path, and may have a `proxy_pass` of its own.
        let mut passing = Vec::new();
        pass(out, route, forward, &mut passing);
        for own in [&out.globals.snippets.location, &policy.snippet] {
            self.nodes = merge::join(std::mem::take(&mut self.nodes), own);
            merge::give_way(&mut passing, own);
        }
        self.nodes.extend(passing);
    }
}

/// Makes the answer for paths without a route.
pub(super) fn unrouted(out: &mut Out<'_>) -> Vec<Node> {
    let mut nodes = to_https(out, None);
    nodes.extend(access::subject(out, "/"));
    // Requests for hosts with rules are those of somebody.
    let logged = out.globals.settings.flag("enable-access-log-for-default-backend");
    if out.server.host == HostName::Any && !logged {
        nodes.push(node("access_log", ["off"]));
    }
    match &out.globals.default_backend {
        // A setting that decides on access has no value to go by.
        _ if !out.globals.settings.closed.is_empty() => nodes = vec![node("return", ["503"])],
        // As in locations of routes, what cannot be checked is closed.
        Some(_) if out.globals.lacks_firewall() || out.globals.settings.refused("block-cidrs") => {
            nodes.push(node("return", ["503"]));
        }
        Some(spec) => {
            let blocked = crate::value::cidrs(out.globals.settings.get("block-cidrs")).unwrap_or_default();
            nodes.extend(blocked.iter().map(|n| node("deny", [n.as_str()])));
            nodes.extend(fields::with(out, &fields::no_reasons()));
            nodes.push(node("proxy_pass", [format!("http://{}", spec.name())]));
        }
        None => nodes.push(node("return", ["404"])),
    }
    let mut all = variables(out, None, &nodes);
    all.extend(nodes);
    all
}

/// Makes the variables that a location's directives, or settings for all locations, refer to.
pub(super) fn variables(out: &Out<'_>, route: Option<&Route>, nodes: &[Node]) -> Vec<Node> {
    made(out, route, nodes, out.globals.variables.clone())
}

/// Adds a location that a route needs, with the variables that its directives refer to. The location that leads to it has set those
/// for all.
pub(super) fn add_helper<const N: usize>(
    out: &mut Out<'_>,
    route: &Route,
    words: [String; N],
    body: Vec<Node>,
) {
    let set = made(out, Some(route), &body, Vec::new());
    out.helpers.push(node("location", words).block(set.into_iter().chain(body).collect()));
}

fn made(out: &Out<'_>, route: Option<&Route>, nodes: &[Node], mut wanted: Vec<&'static str>) -> Vec<Node> {
    collect(nodes, &mut wanted);
    let forward = route.map(|r| &r.action);
    let has_canary = matches!(forward, Some(Action::Forward(f)) if !f.alternatives.is_empty());
    let mut made = Vec::new();
    for name in OF_LOCATION.iter().filter(|n| wanted.contains(n)) {
        let variable = format!("${name}");
        made.push(match *name {
            "escaped_request_uri" => node("set_escape_uri", [variable.as_str(), "$request_uri"]),
            // A `map` in `http` gives it an empty value elsewhere.
            "proxy_alternative_upstream_name" => match route.filter(|_| has_canary) {
                Some(route) => {
                    node("set", [variable, format!("$canary_name_{}", route_id(out.server, route))])
                }
                None => continue,
            },
            // A dollar sign would begin a variable.
            _ => node("set", [variable, crate::gateway::literal(&text_of(name, route))]),
        });
    }
    made
}

/// Returns the value of a variable of a location.
fn text_of(name: &str, route: Option<&Route>) -> String {
    let origin = route.map(|r| r.origin.clone()).unwrap_or_default();
    match name {
        "proxy_upstream_name" | "proxy_host" => match route {
            Some(_) => upstream_name(&origin.object.namespace, &origin.service, &origin.port),
            None => "upstream-default-backend".to_owned(),
        },
        "namespace" => origin.object.namespace,
        "ingress_name" => origin.object.name,
        "service_name" => origin.service,
        "service_port" => origin.port,
        "location_path" => route.map_or("/", |r| r.path.path()).to_owned(),
        _ => String::new(),
    }
}

/// Adds the variables of locations that directives mention.
pub(crate) fn collect(nodes: &[Node], wanted: &mut Vec<&'static str>) {
    for node in nodes {
        for word in node.args.iter().filter(|w| w.contains(&b'$')) {
            for mention in variables::mentions(&String::from_utf8_lossy(word)) {
                let found = OF_LOCATION.iter().find(|n| **n == mention.name);
                wanted.extend(found.filter(|n| !wanted.contains(n)).copied());
            }
        }
        if let Some(block) = &node.block {
            collect(block, wanted);
        }
    }
}

/// Makes the redirect of requests without TLS.
pub(super) fn to_https(out: &Out<'_>, route: Option<&Route>) -> Vec<Node> {
    let settings = &out.globals.settings;
    if matches!(route.map(|r| &r.action), Some(Action::Answer(_))) {
        return Vec::new();
    }
    let https = match route {
        Some(route) => route.policy.https,
        None => Https::new(settings.flag("ssl-redirect"), settings.flag("force-ssl-redirect")),
    };
    redirect(out, route.map_or("/", |r| r.path.path()), https)
}

/// Makes the redirect of requests without TLS for a path.
pub(super) fn redirect(out: &Out<'_>, path: &str, https: Https) -> Vec<Node> {
    let globals = out.globals;
    let has_tls = out.server.tls.certificate.is_some() || out.server.wants_tls && globals.default_certificate;
    let redirects = match https {
        Https::Optional => false,
        Https::WithCertificate => has_tls,
        Https::Always => true,
    };
    if !redirects || is_exempt(globals, "no-tls-redirect-locations", path) {
        return Vec::new();
    }
    let code = globals.settings.get("http-redirect-code");
    let port = match globals.options.public_https_port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    let target = format!("https://$redirect_host{port}$request_uri");
    vec![node("if", ["($redirect_to_https)"]).block(vec![node("return", [code, target.as_str()])])]
}

pub(super) fn plain(protocol: Protocol, directives: &[Plain], nodes: &mut Vec<Node>) {
    for directive in directives {
        let Some(name) = name_for(protocol, directive.name) else { continue };
        // FastCGI has no gateways that answer by these.
        let foreign = |w: &&str| name == "fastcgi_next_upstream" && matches!(*w, "http_502" | "http_504");
        let words: Vec<&str> = directive.words.iter().map(String::as_str).filter(|w| !foreign(w)).collect();
        if !words.is_empty() {
            nodes.push(node(&name, words));
        }
    }
}

/// Returns the name of a directive of the proxy module for a protocol. `None`: that has none.
fn name_for(protocol: Protocol, name: &str) -> Option<String> {
    let Some(rest) = name.strip_prefix("proxy_") else { return Some(name.to_owned()) };
    let timed = [
        "connect_timeout",
        "send_timeout",
        "read_timeout",
        "next_upstream",
        "next_upstream_timeout",
        "next_upstream_tries",
    ];
    let buffered = [
        "buffer_size",
        "buffers",
        "busy_buffers_size",
        "buffering",
        "request_buffering",
        "max_temp_file_size",
    ];
    match protocol {
        Protocol::Http | Protocol::Https | Protocol::Auto => Some(name.to_owned()),
        Protocol::Grpc | Protocol::Grpcs => {
            let has = timed.contains(&rest) || rest == "buffer_size" || rest.starts_with("ssl_");
            has.then(|| format!("grpc_{rest}"))
        }
        Protocol::Fcgi => {
            (timed.contains(&rest) || buffered.contains(&rest)).then(|| format!("fastcgi_{rest}"))
        }
    }
}

/// Makes the fields of answers that `custom-headers` names.
fn answers(route: &Route) -> Vec<Node> {
    let fields = route.policy.response_headers.iter();
    fields.map(|(name, value)| node("more_set_headers", [format!("{name}: {value}")])).collect()
}

/// Adds the fields of requests to the upstream and of answers.
fn headers(
    out: &Out<'_>,
    route: &Route,
    protocol: Protocol,
    authorized: Vec<fields::Field>,
    nodes: &mut Vec<Node>,
) {
    nodes.extend(answers(route));
    nodes.extend(fields::lookalikes_of(out, route, &authorized));
    let family = Family::of(protocol);
    let set = fields::of_route(out, route, family, authorized);
    nodes.extend(if family == Family::Fastcgi { fastcgi(route, set) } else { set });
}

/// Parameters that FastCGI programs expect.
const FASTCGI_PARAMETERS: [(&str, &str); 18] = [
    ("QUERY_STRING", "$query_string"),
    ("REQUEST_METHOD", "$request_method"),
    ("CONTENT_TYPE", "$content_type"),
    ("CONTENT_LENGTH", "$content_length"),
    ("SCRIPT_FILENAME", "$document_root$fastcgi_script_name"),
    ("SCRIPT_NAME", "$fastcgi_script_name"),
    ("REQUEST_URI", "$request_uri"),
    ("DOCUMENT_URI", "$document_uri"),
    ("DOCUMENT_ROOT", "$document_root"),
    ("SERVER_PROTOCOL", "$server_protocol"),
    ("REQUEST_SCHEME", "$pass_access_scheme"),
    ("GATEWAY_INTERFACE", "CGI/1.1"),
    ("REMOTE_ADDR", "$remote_addr"),
    ("REMOTE_PORT", "$remote_port"),
    ("SERVER_ADDR", "$server_addr"),
    ("SERVER_PORT", "$server_port"),
    ("SERVER_NAME", "$server_name"),
    ("REDIRECT_STATUS", "200"),
];

/// Returns the parameters for FastCGI. `fields`: those of fields of the request.
fn fastcgi(route: &Route, fields: Vec<Node>) -> Vec<Node> {
    let parameters = |(n, v): (&str, &str)| node("fastcgi_param", [n, v]);
    let own = route.policy.fastcgi.iter().map(|(n, v)| (n.as_str(), v.as_str()));
    let own: Vec<Node> = own.map(parameters).collect();
    // Programs take any value for yes.
    let https = node("fastcgi_param", ["HTTPS", "$secure_cookie", "if_not_empty"]);
    let general = FASTCGI_PARAMETERS.into_iter().map(parameters);
    merge::join(general.chain([https]).chain(fields).collect(), &own)
}

fn pass(out: &mut Out<'_>, route: &Route, forward: &Forward, nodes: &mut Vec<Node>) {
    let id = route_id(out.server, route);
    if let Some(alternative) = forward.alternatives.first() {
        canary::choose(out, &id, &forward.group, alternative);
    }
    if let Some((path, to)) = &forward.rewrite {
        let to = if to.starts_with('/') || to.starts_with('$') { to.clone() } else { format!("/{to}") };
        nodes.push(node("rewrite", [format!("(?i){path}"), to, "break".into()]));
    }
    let Some(group) = target(route, &id) else { return };
    nodes.push(match forward.protocol {
        Protocol::Http => node("proxy_pass", [format!("http://{group}")]),
        Protocol::Https => node("proxy_pass", [format!("https://{group}")]),
        Protocol::Auto => node("proxy_pass", [format!("$scheme://{group}")]),
        Protocol::Grpc => node("grpc_pass", [format!("grpc://{group}")]),
        Protocol::Grpcs => node("grpc_pass", [format!("grpcs://{group}")]),
        Protocol::Fcgi => node("fastcgi_pass", [group]),
    });
}

/// Adds the answers to pages of other origins.
fn cors(out: &mut Out<'_>, route: &Route, cors: &Cors, nodes: &mut Vec<Node>) {
    let id = policy_id(out.server, route);
    let all = cors.origins.is_empty();
    let condition = if all {
        vec!["($request_method".to_owned(), "=".into(), "OPTIONS)".into()]
    } else {
        vec![format!("($cors_ask_{id})")]
    };
    nodes.push(node("if", condition).block(vec![node("return", ["204"])]));
    nodes.extend(cors_answers(out, route, cors));
}

/// Makes the fields of answers that pages of other origins may read.
pub(super) fn cors_answers(out: &mut Out<'_>, route: &Route, cors: &Cors) -> Vec<Node> {
    let id = policy_id(out.server, route);
    let all = cors.origins.is_empty();
    let origin = if all { "*".to_owned() } else { format!("$cors_origin_{id}") };
    if out.once(&format!("cors {id}")) && !all {
        cors_variables(out, cors, &origin, &id);
    }
    let mut fields = vec![node("more_set_headers", [format!("Access-Control-Allow-Origin: {origin}")])];
    for (name, value) in cors_fields(cors) {
        let field = match name {
            "credentials" => "Access-Control-Allow-Credentials",
            "methods" => "Access-Control-Allow-Methods",
            "headers" => "Access-Control-Allow-Headers",
            "expose" => "Access-Control-Expose-Headers",
            _ => "Access-Control-Max-Age",
        };
        let value = if all { value } else { format!("$cors_{name}_{id}") };
        fields.push(node("more_set_headers", [format!("{field}: {value}")]));
    }
    if !all {
        fields.push(node("more_set_headers", ["-a", "Vary: Origin"]));
    }
    fields
}

/// Makes the variables of the answers to pages of listed origins. `origin`: the variable of the origin itself.
fn cors_variables(out: &mut Out<'_>, cors: &Cors, origin: &str, id: &str) {
    let mut entries = vec![node("default", [""])];
    entries.extend(cors.origins.iter().map(|o| node(&origin_key(o), ["$http_origin"])));
    out.http.push(node("map", ["$http_origin", origin]).block(entries));
    // Only an origin that is allowed gets the fields, and an answer to its question.
    for (name, value) in cors_fields(cors) {
        let entries = vec![node("default", [value]), node("", [""])];
        out.http.push(node("map", [origin, &format!("$cors_{name}_{id}")]).block(entries));
    }
    let ask = vec![node("default", [""]), node("~^OPTIONS .", ["1"])];
    let words = [format!("$request_method $cors_origin_{id}"), format!("$cors_ask_{id}")];
    out.http.push(node("map", words).block(ask));
}

fn cors_fields(cors: &Cors) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    if cors.credentials {
        fields.push(("credentials", "true".to_owned()));
    }
    fields.push(("methods", cors.methods.clone()));
    fields.push(("headers", cors.headers.clone()));
    if !cors.expose.is_empty() {
        fields.push(("expose", cors.expose.clone()));
    }
    fields.push(("age", cors.max_age.to_string()));
    fields
}

/// Returns the regular expression for an origin, as a key of a `map`.
fn origin_key(origin: &str) -> String {
    let (scheme, host) = match origin.split_once("://") {
        Some((scheme, host)) => (regex::escape(scheme), host),
        None => ("https?".to_owned(), origin),
    };
    if origin == "null" {
        return "~^null$".into();
    }
    let host = match host.strip_prefix("*.") {
        Some(rest) => format!("[A-Za-z0-9_-]+\\.{}", regex::escape(rest)),
        None => regex::escape(host),
    };
    // Ports have to be named.
    format!("~*^{scheme}://{host}$")
}
