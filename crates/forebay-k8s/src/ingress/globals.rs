//! What all parts of a translation share: the options, and the ConfigMap read once.

use super::policy::bad_field;
use super::{Globals, Snippets};
use crate::annotations::Verdict;
use crate::groups::{Common, Spec};
use crate::objects::{ConfigMap, Key, Kind, PortRef};
use crate::options::{Options, TICKET_KEY_BYTES, TICKET_KEYS};
use crate::problem::Problem;
use crate::settings::{Judged, OnFailure, Row, Settings, on_failure};
use crate::snippet::{self, Author};
use crate::taken::Taken;
use crate::tree;
use crate::value::parse_time;
use crate::view::View;
use base64::Engine;
use forebay_conf::Node;
use forebay_conf::grammar::Contexts;
use std::net::IpAddr;
use std::sync::Arc;

/// Reads the ConfigMap and what it names.
pub(crate) fn read(
    view: &View<'_>,
    options: &Options,
    map: &ConfigMap,
    judged: &Judged,
    problems: &mut Vec<Problem>,
) -> Globals {
    let mut settings = Settings::read(map, judged, problems);
    let mut reading =
        Reading { view, options, settings: &settings, map, problems, failed: Vec::new(), judged };
    let mut snippets = reading.snippets();
    let broken_authority = reading.authority(&mut snippets.authority);
    let headers = reading.headers();
    let response_headers = reading.fields("add-headers");
    let ticket_keys = reading.ticket_keys();
    let addresses = reading.addresses();
    let failed = reading.failed;
    for (row, text) in &failed {
        settings.fail(row, text, judged);
    }
    let ipv6 = options.ipv6 && !settings.flag("disable-ipv6");
    let groups = Common { keepalive: keepalive(&settings), endpoints_in_files: options.endpoints_in_files };
    let variables = variables(options, &settings, &snippets, &headers);
    let default_certificate = default_certificate(view, options);
    let taken = Taken::of([
        options.main.as_slice(),
        &options.http,
        &snippets.main,
        &snippets.http,
        &snippets.server,
        &snippets.location,
        &snippets.stream,
    ]);
    let default_backend = default_backend(view, options).map(|spec| spec.beside(&taken));
    Globals {
        options: options.clone(),
        settings,
        default_backend,
        default_certificate,
        groups,
        variables,
        headers,
        response_headers,
        snippets,
        taken,
        addresses,
        ipv6,
        ticket_keys,
        broken_authority,
    }
}

/// Returns why a URL of the ConfigMap cannot be fetched. It may name any host that can be resolved.
fn unreachable(url: &str, options: &Options) -> Option<&'static str> {
    let Some(parts) = crate::reach::split(url) else {
        return Some("it must be http://HOST... or https://HOST...");
    };
    let scheme = matches!(parts.scheme, "http" | "https" | "$scheme" | "$pass_access_scheme");
    let host = parts.host.trim_matches(['[', ']']);
    if !scheme || host.is_empty() {
        return Some("it must be http://HOST... or https://HOST...");
    }
    if parts.port.is_some_and(|p| p.parse::<u16>().map_or(true, |n| n == 0)) {
        return Some("its port is no number");
    }
    let address = host.parse::<IpAddr>().is_ok();
    if !address && crate::reach::has_empty_label(host) {
        return Some("its host is no name");
    }
    (!address && options.resolvers.is_empty()).then_some("no name servers are known to resolve its host")
}

fn default_backend(view: &View<'_>, options: &Options) -> Option<Spec> {
    let key = options.default_backend_service.as_ref()?;
    let named = super::is_name(&key.namespace) && super::is_name(&key.name);
    let port = view.service(key).and_then(|s| s.spec.ports.first().map(|p| p.port));
    named.then(|| Spec {
        service: key.clone(),
        port: PortRef { name: None, number: port.or(Some(80)) },
        ..Spec::default()
    })
}

fn default_certificate(view: &View<'_>, options: &Options) -> bool {
    let of_secret =
        |key: &Key| view.secret(key).is_some_and(|secret| super::tls::of_secret(key, &secret).is_ok());
    options.made_certificate.is_some() || options.default_ssl_certificate.as_ref().is_some_and(of_secret)
}

fn keepalive(settings: &Settings) -> Vec<(&'static str, String)> {
    match settings.number("upstream-keepalive-connections") {
        ..=0 => Vec::new(),
        n => vec![
            ("keepalive", n.min(1_000_000).to_string()),
            ("keepalive_requests", settings.number("upstream-keepalive-requests").max(1).to_string()),
            (
                "keepalive_time",
                parse_time(settings.get("upstream-keepalive-time")).unwrap_or_else(|| "1h".into()),
            ),
            ("keepalive_timeout", format!("{}s", settings.number("upstream-keepalive-timeout"))),
        ],
    }
}

/// Finds the variables of locations that texts of the ConfigMap, or directives of the caller, mention.
fn variables(
    options: &Options,
    settings: &Settings,
    snippets: &Snippets,
    headers: &[(String, String)],
) -> Vec<&'static str> {
    let mut found = Vec::new();
    let format = Node::new("log_format").arg(settings.get("log-format-upstream"));
    let key =
        Node::new("key").arg(settings.get("upstream-hash-by")).arg(settings.get("limit-conn-zone-variable"));
    let fields = headers.iter().map(|(_, value)| Node::new("field").arg(value.as_str()));
    let all: Vec<Node> = [format, key].into_iter().chain(fields).collect();
    tree::collect(&all, &mut found);
    for nodes in [&options.http, &snippets.http, &snippets.server] {
        tree::collect(nodes, &mut found);
    }
    found
}

struct Reading<'a> {
    view: &'a View<'a>,
    options: &'a Options,
    settings: &'a Settings,
    map: &'a ConfigMap,
    problems: &'a mut Vec<Problem>,
    judged: &'a Judged,
    /// Keys that are found to be wrong after the check of their shape.
    failed: Vec<(&'static Row, String)>,
}

impl Reading<'_> {
    fn problem(&self, key: &str, text: impl Into<String>) -> Problem {
        Problem::new(Kind::ConfigMap, &self.map.metadata, format!("data[{key}]"), text)
    }

    fn snippets(&mut self) -> Snippets {
        Snippets {
            main: self.snippet("main-snippet", Contexts::MAIN),
            http: self.snippet("http-snippet", Contexts::HTTP),
            server: self.snippet("server-snippet", Contexts::SERVER),
            location: self.snippet("location-snippet", Contexts::LOCATION),
            stream: self.snippet("stream-snippet", Contexts::STREAM),
            authority: Vec::new(),
        }
    }

    /// Checks the keys of the general authentication service, and reads its snippet. Returns `true` if one is not valid, so that
    /// nobody can be let in.
    fn authority(&mut self, snippet: &mut Vec<Node>) -> bool {
        let s = self.settings;
        const CLOSED: &str = "the paths that it protects answer 503";
        let keys = ["url", "method", "cache-key", "cache-duration", "snippet", "signin"];
        let mut broken = s.refused("global-auth-url");
        let Some(url) = s.some("global-auth-url") else { return broken };
        broken |= s.refused_any("global-auth-", &keys);
        if let Some(why) = unreachable(url, self.options) {
            self.wrong("global-auth-url", url, &format!("{why}; {CLOSED}"));
            broken = true;
        }
        if let Some(text) = s.some("global-auth-signin").filter(|t| !crate::reach::is_link(t)) {
            let why = "it must be a path or a URL of http or https; clients get the status of the service";
            self.wrong("global-auth-signin", text, why);
        }
        let times = s.some("global-auth-cache-duration");
        if let Some(text) = times.filter(|t| super::policy::valid_times(t).is_none()) {
            let why = format!("it must be statuses and a time, such as 200 401 5m; {CLOSED}");
            self.wrong("global-auth-cache-duration", text, &why);
            broken = true;
        }
        if s.set("global-auth-snippet").is_some() {
            let before = self.problems.len();
            *snippet = self.snippet("global-auth-snippet", Contexts::LOCATION);
            broken |= self.problems.len() > before;
        }
        broken
    }

    /// Reports a value that is not valid.
    fn wrong(&mut self, key: &'static str, value: &str, why: &str) {
        let problem = self.problem(key, why).reason("InvalidValue");
        self.problems.push(problem.at(value, 0));
    }

    fn snippet(&mut self, key: &'static str, context: Contexts) -> Vec<Node> {
        debug_assert!(!matches!(
            crate::settings::row(key).map(|r| r.verdict),
            None | Some(Verdict::Refused(_))
        ));
        let Some(text) = self.settings.set(key) else { return Vec::new() };
        let parse = |text: &str| {
            snippet::parse(text, context, Author::Operator, self.options, &self.settings.defined)
        };
        match parse(text) {
            Ok(nodes) => nodes,
            Err(invalid) => {
                let (last, follows) = match (self.judged.last.get(key), on_failure(key, text)) {
                    (Some(last), OnFailure::Close) if last != text => {
                        (parse(last).ok(), "the last one that worked stays")
                    }
                    (None, OnFailure::Close) => {
                        (None, "and it decides on access: all paths of Ingresses answer 503")
                    }
                    _ => (None, "it is left out"),
                };
                let problem =
                    self.problem(key, format!("the snippet is not valid, {follows}")).invalid(text, &invalid);
                self.problems.push(problem.reason("SnippetRefused"));
                self.failed.extend(crate::settings::row(key).map(|row| (row, text.to_owned())));
                last.unwrap_or_default()
            }
        }
    }

    /// Makes the fields of requests to upstreams.
    fn headers(&mut self) -> Vec<(String, String)> {
        let s = self.settings;
        let address =
            if s.flag("compute-full-forwarded-for") { "$full_x_forwarded_for" } else { "$remote_addr" };
        // Those that the client, or a proxy in front, has sent.
        let sent = |key: &'static str| {
            let name = s.get(key).to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            format!("$http_{name}")
        };
        let (sent_address, sent_host) = (sent("forwarded-for-header"), sent("forwarded-host-header"));
        let mut fields: Vec<(String, String)> = [
            ("Host", "$best_http_host"),
            ("Upgrade", "$http_upgrade"),
            ("Connection", "$connection_upgrade"),
            ("X-Request-ID", "$req_id"),
            ("X-Real-IP", "$remote_addr"),
            ("X-Forwarded-For", address),
            ("X-Forwarded-Host", "$best_http_host"),
            ("X-Forwarded-Port", "$pass_port"),
            ("X-Forwarded-Proto", "$pass_access_scheme"),
            ("X-Forwarded-Scheme", "$pass_access_scheme"),
            ("X-Scheme", "$pass_access_scheme"),
            ("X-Original-Forwarded-For", sent_address.as_str()),
            ("X-Original-Forwarded-Host", sent_host.as_str()),
            ("Forwarded", "$trusted_forwarded"),
            // CVE-2016-5385.
            ("Proxy", ""),
        ]
        .into_iter()
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect();
        if s.flag("proxy-add-original-uri-header") {
            fields.push(("X-Original-URI".into(), "$request_uri".into()));
        }
        let own = self.fields("proxy-set-headers");
        fields.retain(|(name, _)| !own.iter().any(|(o, _)| o.eq_ignore_ascii_case(name)));
        fields.extend(own);
        fields
    }

    /// Reads the fields of a ConfigMap that a key names.
    fn fields(&mut self, key: &'static str) -> Vec<(String, String)> {
        let Some(name) = self.settings.some(key) else { return Vec::new() };
        let found = Key::parse(name).unwrap_or_else(|| Key::new(self.map.metadata.namespace.as_str(), name));
        let Some(map) = self.view.config_map(&found) else {
            let closes = crate::settings::closes(key);
            let follows = if closes { "; all paths of Ingresses answer 503" } else { "" };
            let text = format!("the ConfigMap {found} does not exist{follows}");
            self.problems.push(self.problem(key, text).reason("ReferenceMissing"));
            if closes {
                self.failed.extend(crate::settings::row(key).map(|row| (row, name.to_owned())));
            }
            return Vec::new();
        };
        let mut fields = Vec::new();
        for (name, value) in &map.data {
            match bad_field(name, value, &self.settings.defined) {
                None => fields.push((name.clone(), value.trim().to_owned())),
                Some(why) => {
                    let text = format!("the field \"{}\" of {found} is left out: {why}", name.escape_debug());
                    self.problems.push(self.problem(key, text).reason("InvalidValue"));
                    // It does not come from the client instead.
                    if crate::value::Value::Token.check(name, &self.settings.defined).is_ok() {
                        fields.push((name.clone(), String::new()));
                    }
                }
            }
        }
        fields
    }

    /// Returns the key of the ConfigMap, or else those that the leader keeps in a Secret. There are none until it has made them.
    fn ticket_keys(&mut self) -> Vec<Arc<[u8]>> {
        let Some(text) = self.settings.some("ssl-session-ticket-key") else {
            let secret = self.options.session_tickets.as_ref().and_then(|key| self.view.secret(key));
            let key = |name: &&str| secret.as_ref()?.data.get(*name).cloned();
            let keys = TICKET_KEYS.iter().filter_map(key).filter(|k| k.len() == TICKET_KEY_BYTES);
            return keys.collect();
        };
        let bytes = base64::engine::general_purpose::STANDARD.decode(text.trim()).ok();
        if let Some(bytes) = bytes.filter(|b| matches!(b.len(), 48 | 80)) {
            return vec![bytes.into()];
        }
        let problem = self.problem(
            "ssl-session-ticket-key",
            "it must be 48 or 80 bytes in base64; keys are made at the start",
        );
        self.problems.push(problem.reason("InvalidValue"));
        Vec::new()
    }

    fn addresses(&mut self) -> Vec<String> {
        let mut found = self.options.bind_addresses.clone();
        for key in ["bind-address", "bind-address-ipv4", "bind-address-ipv6"] {
            for part in self.settings.list(key) {
                match part.trim_matches(['[', ']']).parse::<IpAddr>() {
                    Ok(address) => found.push(address.to_string()),
                    Err(_) => self
                        .problems
                        .push(self.problem(key, format!("\"{part}\" is no address")).reason("InvalidValue")),
                }
            }
        }
        found
    }
}
