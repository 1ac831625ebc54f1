//! Annotations of an Ingress to the policy of its routes.

mod access;
mod buffers;
mod headers;

pub(crate) use access::general_authority;
pub(super) use access::valid_times;

use super::{Making, Parsed, is_name};
use crate::groups::{LIMIT_ZONES, Spec, short_hash};
use crate::model::{Cors, Errors, Https, Limit, LimitKind, Limits, Mirror, Networks, Plain, Policy};
use crate::objects::{Key, PortRef};
use crate::problem::Severity;
use crate::reach;
use crate::settings::Settings;
use crate::snippet::{self, Author};
use crate::value::{cidrs, parse_bool, parse_size};
use forebay_conf::grammar::{Contexts, NEXT_UPSTREAM};
use std::sync::Arc;

/// Annotations of one word that are one directive.
const SIMPLE: &[(&str, &str, Form)] = &[
    ("client-body-buffer-size", "client_body_buffer_size", Form::Size),
    ("proxy-body-size", "client_max_body_size", Form::Size),
    ("proxy-buffering", "proxy_buffering", Form::Word),
    ("proxy-request-buffering", "proxy_request_buffering", Form::Word),
    ("proxy-http-version", "proxy_http_version", Form::Word),
    ("proxy-connect-timeout", "proxy_connect_timeout", Form::Seconds),
    ("proxy-send-timeout", "proxy_send_timeout", Form::Seconds),
    ("proxy-read-timeout", "proxy_read_timeout", Form::Seconds),
    ("proxy-next-upstream-timeout", "proxy_next_upstream_timeout", Form::Seconds),
    ("proxy-next-upstream-tries", "proxy_next_upstream_tries", Form::Word),
    ("limit-rate", "limit_rate", Form::Kilobytes),
    ("limit-rate-after", "limit_rate_after", Form::Kilobytes),
    ("satisfy", "satisfy", Form::Word),
    ("proxy-ssl-ciphers", "proxy_ssl_ciphers", Form::Ciphers),
    ("proxy-ssl-name", "proxy_ssl_name", Form::Word),
    ("proxy-ssl-server-name", "proxy_ssl_server_name", Form::Word),
    ("proxy-ssl-verify-depth", "proxy_ssl_verify_depth", Form::Word),
    ("fastcgi-index", "fastcgi_index", Form::Word),
];

/// Way from a value to a word.
#[derive(Clone, Copy)]
enum Form {
    Word,
    Size,
    Seconds,
    Kilobytes,
    Ciphers,
}

/// Adds a directive.
fn plain(policy: &mut Policy, name: &'static str, words: impl IntoIterator<Item = impl Into<String>>) {
    policy.plain.push(Plain { name, words: words.into_iter().map(Into::into).collect() });
}

/// Returns the networks of a key of the ConfigMap.
fn general(settings: &Settings, key: &'static str) -> Vec<String> {
    cidrs(settings.get(key)).unwrap_or_default()
}

/// Returns the networks that the ConfigMap lets in.
pub(crate) fn general_networks(settings: &Settings) -> Networks {
    let mut deny = general(settings, "block-cidrs");
    deny.extend(general(settings, "denylist-source-range"));
    Networks { deny, allow: general(settings, "whitelist-source-range") }
}

impl Making<'_> {
    /// Makes the policy of an Ingress. `first`: the host is the first of the Ingress, whose file defines its zones.
    pub(super) fn policy(&mut self, parsed: &Parsed, first: bool) -> Arc<Policy> {
        let mut policy = Policy { id: short_hash(&parsed.key.to_string()), ..Policy::default() };
        self.firewall(parsed);
        self.cookie_path(parsed);
        self.simple(parsed, &mut policy);
        policy.https = self.https(parsed);
        self.several_words(parsed, &mut policy);
        self.buffers(parsed, &mut policy);
        self.upstream_tls(parsed, &mut policy);
        self.networks(parsed, &mut policy);
        self.access(parsed, &mut policy);
        policy.limits = self.limits(parsed, first);
        policy.cors = self.cors(parsed);
        policy.errors = self.errors(parsed, &policy);
        policy.stand_in = self.default_backend(parsed);
        policy.mirror = self.mirror(parsed);
        self.headers(parsed, &mut policy);
        self.fastcgi(parsed, &mut policy);
        policy.snippet =
            self.snippet(parsed, "configuration-snippet", Contexts::LOCATION).unwrap_or_default();
        if self.closed {
            // Its paths answer 503, and need nothing else. Zones are for other hosts, too, which may be open.
            policy = Policy { id: policy.id, limits: policy.limits, ..Policy::default() };
        }
        Arc::new(policy)
    }

    /// Reports that the cookie of affinity has no path to go by where paths are regular expressions.
    fn cookie_path(&mut self, parsed: &Parsed) {
        let a = &parsed.annotations;
        if a.get("affinity").is_some() && super::uses_regex(a) && a.get("session-cookie-path").is_none() {
            let text = "the paths are regular expressions, so the path of the cookie is \"/\"; session-cookie-path names another";
            let problem = parsed.annotation_problem("affinity", text);
            self.problems.push(problem.severity(Severity::Differs).reason("Differs"));
        }
    }

    /// Closes the paths of an Ingress for which the ConfigMap asks for the firewall that is missing.
    fn firewall(&mut self, parsed: &Parsed) {
        let own = parsed.annotations.get("enable-modsecurity").and_then(parse_bool);
        if own == Some(false) || !self.globals.lacks_firewall() {
            return;
        }
        let text = format!("the ConfigMap asks for ModSecurity. {}", crate::annotations::NO_FIREWALL);
        self.problems.push(parsed.problem("metadata", text).reason("NoFirewall"));
        self.closed = true;
    }

    fn simple(&self, parsed: &Parsed, policy: &mut Policy) {
        for (annotation, directive, form) in SIMPLE {
            let Some(value) = parsed.annotations.get(annotation) else { continue };
            let word = match form {
                Form::Word => value.to_owned(),
                Form::Size => parse_size(value).unwrap_or_default(),
                Form::Seconds => format!("{value}s"),
                // 0 is no limit.
                Form::Kilobytes => format!("{value}k"),
                Form::Ciphers => crate::value::ciphers(value).unwrap_or_default(),
            };
            if !word.is_empty() {
                plain(policy, directive, [word]);
            }
        }
        let flag = |name: &'static str| parsed.annotations.get(name).and_then(parse_bool);
        if flag("enable-access-log") == Some(false) {
            plain(policy, "access_log", ["off"]);
        }
        if flag("enable-rewrite-log") == Some(true) {
            plain(policy, "rewrite_log", ["on"]);
        }
        if let Some(relative) = flag("relative-redirects") {
            plain(policy, "absolute_redirect", [if relative { "off" } else { "on" }]);
        }
        if let Some(port) = flag("use-port-in-redirects") {
            plain(policy, "port_in_redirect", [if port { "on" } else { "off" }]);
        }
    }

    /// Returns the redirect of requests without TLS.
    pub(super) fn https(&self, parsed: &Parsed) -> Https {
        let flag = |name: &'static str| {
            let own = parsed.annotations.get(name).and_then(parse_bool);
            own.unwrap_or_else(|| self.globals.settings.flag(name))
        };
        Https::new(flag("ssl-redirect"), flag("force-ssl-redirect"))
    }

    fn several_words(&mut self, parsed: &Parsed, policy: &mut Policy) {
        self.pair(parsed, "proxy-cookie-domain", "proxy_cookie_domain", policy);
        self.pair(parsed, "proxy-cookie-path", "proxy_cookie_path", policy);
        self.proxy_redirect(parsed, policy);
        self.next_upstream(parsed, policy);
    }

    fn proxy_redirect(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let a = &parsed.annotations;
        let why = match (a.get("proxy-redirect-from"), a.get("proxy-redirect-to")) {
            (None, None) => return,
            // The default replaces names of groups, which no backend knows.
            (Some("off" | "default"), _) => return plain(policy, "proxy_redirect", ["off"]),
            (Some(from), Some(to)) if to != "off" => {
                let regex = Some(from).filter(|from| from.starts_with('~'));
                match regex.and_then(|r| crate::value::regex_lint(r.trim_start_matches(['~', '*']))) {
                    None => return plain(policy, "proxy_redirect", [from, to]),
                    Some(why) => why,
                }
            }
            _ => "proxy-redirect-from and proxy-redirect-to only work together".into(),
        };
        self.problems.push(parsed.annotation_problem("proxy-redirect-from", why).reason("InvalidValue"));
    }

    fn next_upstream(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let Some(value) = parsed.annotations.get("proxy-next-upstream") else { return };
        let mut words: Vec<&str> = value.split_ascii_whitespace().collect();
        if let Some(bad) = words.iter().find(|w| !NEXT_UPSTREAM.contains(w)) {
            let at = value.find(bad).unwrap_or(0);
            let text = format!("there is no condition \"{bad}\"");
            let problem = parsed.annotation_problem("proxy-next-upstream", text);
            self.problems.push(problem.reason("InvalidValue").at(value, at));
            return;
        }
        if self.globals.settings.flag("retry-non-idempotent") && !words.contains(&"non_idempotent") {
            words.push("non_idempotent");
        }
        plain(policy, "proxy_next_upstream", words);
    }

    /// Adds a directive of `off` or two words.
    fn pair(&mut self, parsed: &Parsed, annotation: &'static str, name: &'static str, policy: &mut Policy) {
        let Some(value) = parsed.annotations.get(annotation) else { return };
        let words: Vec<&str> = value.split_ascii_whitespace().collect();
        let regex = |w: &&str| {
            w.strip_prefix('~').is_none_or(|r| crate::value::regex_lint(r.trim_start_matches('*')).is_none())
        };
        match words.as_slice() {
            ["off"] => plain(policy, name, ["off"]),
            [from, _] if regex(from) => plain(policy, name, words),
            _ => {
                let problem = parsed.annotation_problem(annotation, "it must be \"off\" or two words");
                self.problems.push(problem.reason("InvalidValue").at(value, 0));
            }
        }
    }

    fn networks(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let list = |name: &'static str| {
            let own = parsed.annotations.get(name).map(str::to_owned);
            own.map(|text| cidrs(&text).unwrap_or_default())
        };
        let settings = &self.globals.settings;
        // Lists of the ConfigMap that cannot be read.
        let unread = |key: &'static str, own: Option<&'static str>| {
            settings.refused(key) && own.is_none_or(|own| parsed.annotations.get(own).is_none())
        };
        let keys = [
            ("block-cidrs", None),
            ("denylist-source-range", Some("denylist-source-range")),
            ("whitelist-source-range", Some("allowlist-source-range")),
        ];
        if let Some((key, _)) = keys.into_iter().find(|(key, own)| unread(key, *own)) {
            let text = format!("the value of {key} in the ConfigMap is not valid; the paths answer 503");
            self.problems.push(parsed.problem("metadata", text).reason("SettingInvalid"));
            self.closed = true;
        }
        let mut deny = general(settings, "block-cidrs");
        let own = list("denylist-source-range");
        deny.extend(own.unwrap_or_else(|| general(settings, "denylist-source-range")));
        let allow = list("allowlist-source-range");
        let allow = allow.unwrap_or_else(|| general(settings, "whitelist-source-range"));
        policy.networks = Networks { deny, allow };
    }

    fn limits(&mut self, parsed: &Parsed, first: bool) -> Limits {
        let a = &parsed.annotations;
        let multiplier = a.number("limit-burst-multiplier").unwrap_or(5);
        let mut cluster = a.get("limit-scope") == Some("cluster");
        if cluster && !self.globals.shared_store() {
            let text =
                "http-snippet of the ConfigMap names no shared_store, so each replica counts by itself";
            self.problems.push(parsed.annotation_problem("limit-scope", text).reason("NoSharedStore"));
            cluster = false;
        }
        let kinds = [
            ("limit-connections", LimitKind::Connections),
            ("limit-rps", LimitKind::Second),
            ("limit-rpm", LimitKind::Minute),
        ];
        let limit = |((name, kind), suffix): ((&'static str, LimitKind), &str)| {
            let number = a.number(name).filter(|n| *n > 0)?.min(10_000_000);
            let zone = format!("{}_{}_{suffix}", parsed.key.namespace, parsed.key.name);
            let zone = self.globals.taken.free(zone);
            Some(Limit {
                zone,
                kind,
                number,
                burst: number.saturating_mul(multiplier).min(100_000_000),
                cluster,
            })
        };
        let limits = kinds.into_iter().zip(LIMIT_ZONES).filter_map(limit).collect();
        let free = a.get("limit-allowlist").and_then(|v| cidrs(v).ok()).unwrap_or_default();
        Limits { limits, free, defined_here: first }
    }

    fn cors(&mut self, parsed: &Parsed) -> Option<Cors> {
        let a = &parsed.annotations;
        if !a.flag("enable-cors") {
            return None;
        }
        Some(Cors {
            origins: self.origins(parsed),
            methods: a.or_default("cors-allow-methods").to_owned(),
            headers: a.or_default("cors-allow-headers").to_owned(),
            expose: a.get("cors-expose-headers").unwrap_or_default().to_owned(),
            credentials: a.flag("cors-allow-credentials"),
            max_age: a.number("cors-max-age").unwrap_or(1_728_000),
        })
    }

    /// Returns the origins that are allowed; none for all. Where one is wrong there are fewer than meant, never all of them.
    fn origins(&mut self, parsed: &Parsed) -> Vec<String> {
        const NONE: &str = "null.invalid";
        let value = parsed.annotations.or_default("cors-allow-origin");
        let parts = || value.split(',').map(str::trim).filter(|o| !o.is_empty());
        let mut origins = Vec::new();
        for origin in parts().take_while(|origin| *origin != "*") {
            if is_origin(origin) {
                origins.push(origin.to_owned());
                continue;
            }
            let text = format!("\"{}\" is no origin", origin.escape_debug());
            let problem = parsed.annotation_problem("cors-allow-origin", text);
            self.problems.push(problem.reason("InvalidValue").at(value, value.find(origin).unwrap_or(0)));
            origins.push(NONE.into());
        }
        if parts().any(|origin| origin == "*") {
            return Vec::new();
        }
        if origins.is_empty() {
            let problem = parsed.annotation_problem("cors-allow-origin", "there is no origin in it");
            self.problems.push(problem.reason("InvalidValue"));
            origins.push(NONE.into());
        }
        origins
    }

    fn errors(&mut self, parsed: &Parsed, policy: &Policy) -> Option<Errors> {
        let a = &parsed.annotations;
        let settings = &self.globals.settings;
        let own = a.get("custom-http-errors");
        let text = own.unwrap_or_else(|| settings.get("custom-http-errors")).to_owned();
        let off = a.get("disable-proxy-intercept-errors").and_then(parse_bool);
        if text.is_empty() || off.unwrap_or_else(|| settings.flag("disable-proxy-intercept-errors")) {
            return None;
        }
        let mut codes = self.error_codes(parsed, &text);
        let general = self.globals.default_backend.as_ref();
        let Some(group) = self.default_backend(parsed).or_else(|| general.map(Spec::name)) else {
            if own.is_some() {
                let text = "it needs a default backend that makes the pages";
                self.problems
                    .push(parsed.annotation_problem("custom-http-errors", text).reason("BackendMissing"));
            }
            return None;
        };
        self.protect_denials(parsed, policy, &mut codes);
        (!codes.is_empty()).then_some(Errors { codes, group })
    }

    /// Reads the statuses that have pages of their own, in order.
    fn error_codes(&mut self, parsed: &Parsed, text: &str) -> Vec<u16> {
        let mut codes = Vec::new();
        for part in text.split([',', ' ']).filter(|p| !p.is_empty()) {
            match part.parse::<u16>().ok().filter(|c| (300..600).contains(c) && *c != 499) {
                Some(code) => codes.push(code),
                None => {
                    let why = format!("\"{part}\" is no status from 300 to 599");
                    let problem = parsed.annotation_problem("custom-http-errors", why);
                    self.problems.push(problem.reason("InvalidValue").at(text, text.find(part).unwrap_or(0)));
                }
            }
        }
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    /// Leaves 401 and 403 to the access checks where the pages would come from the Service that these protect: it would answer
    /// requests that it must not see.
    fn protect_denials(&mut self, parsed: &Parsed, policy: &Policy, codes: &mut Vec<u16>) {
        let guarded = policy.authority.is_some() || policy.passwords.is_some();
        let Some(name) = parsed.annotations.get("default-backend").filter(|_| guarded) else { return };
        let serves = |p: &super::HostPath| p.backend.as_ref().is_some_and(|(service, _)| service == name);
        if !parsed.rules.iter().flat_map(|r| &r.paths).any(serves) {
            return;
        }
        let before = codes.len();
        codes.retain(|c| !matches!(c, 401 | 403));
        if codes.len() < before {
            let text = "401 and 403 are not sent to the default backend: it is the Service that authentication protects";
            self.problems.push(parsed.annotation_problem("custom-http-errors", text).reason("AccessBypass"));
        }
    }

    /// Returns the group of the annotation `default-backend`.
    pub(super) fn default_backend(&mut self, parsed: &Parsed) -> Option<String> {
        let name = parsed.annotations.get("default-backend")?;
        let key = Key::new(parsed.key.namespace.as_str(), name);
        if !is_name(name) || !is_name(&key.namespace) {
            return None;
        }
        let port = self.view.service(&key).and_then(|s| s.spec.ports.first().map(|p| p.port));
        let Some(port) = port else {
            let text = format!("the Service {key} does not exist, or has no port");
            self.problems.push(parsed.annotation_problem("default-backend", text).reason("BackendMissing"));
            return None;
        };
        let port = PortRef { name: None, number: Some(port) };
        let spec = Spec { service: key, port, ..Spec::default() }.beside(&self.globals.taken);
        let field = format!("metadata.annotations[{}]", parsed.annotation_name("default-backend"));
        Some(self.use_group(parsed, spec, &field))
    }

    fn mirror(&mut self, parsed: &Parsed) -> Option<Mirror> {
        let a = &parsed.annotations;
        let target = a.get("mirror-target")?;
        if let Some(why) = self.unreachable(target) {
            let problem =
                parsed.annotation_problem("mirror-target", format!("requests are not mirrored: {why}"));
            self.problems.push(problem.reason("ForbiddenTarget").at(target, 0));
            return None;
        }
        let own = reach::split(target).map(|u| u.host.to_owned()).unwrap_or_default();
        let host = a.get("mirror-host").map_or(own, str::to_owned);
        Some(Mirror { target: target.to_owned(), host, body: a.or_default("mirror-request-body") != "off" })
    }

    /// Returns why a URL of an annotation cannot be fetched.
    pub(super) fn unreachable(&self, url: &str) -> Option<String> {
        if let Some(why) = reach::forbidden_url(url, self.own_host, &self.globals.options) {
            return Some(why);
        }
        let host = reach::split(url).map(|u| u.host.to_owned()).unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
        (!address && self.globals.options.resolvers.is_empty())
            .then(|| "no name servers are known to resolve its host".into())
    }

    /// Returns what follows if the object that an annotation names is missing.
    fn closing(&self, annotation: &'static str) -> &'static str {
        let closes = crate::annotations::row(annotation).is_some_and(|row| row.access);
        if closes { "; the paths of the Ingress answer 503" } else { "" }
    }

    /// Finds an object that an annotation names, in the namespace of the Ingress unless others are allowed.
    pub(super) fn referred<T>(
        &mut self,
        parsed: &Parsed,
        annotation: &'static str,
        name: &str,
        find: impl Fn(&crate::view::View<'_>, &Key) -> Option<T>,
    ) -> Option<T> {
        let key = Key::parse(name).unwrap_or_else(|| Key::new(parsed.key.namespace.as_str(), name));
        let cross = self.globals.settings.flag("allow-cross-namespace-resources");
        if key.namespace != parsed.key.namespace && !cross {
            let closes = self.closing(annotation);
            let text =
                format!("{key} is in another namespace (allow-cross-namespace-resources is false){closes}");
            self.problems.push(parsed.annotation_problem(annotation, text).reason("CrossNamespace"));
            return None;
        }
        let found = find(self.view, &key);
        if found.is_none() {
            let text = format!("{key} does not exist{}", self.closing(annotation));
            self.problems.push(parsed.annotation_problem(annotation, text).reason("ReferenceMissing"));
        }
        found
    }

    /// Parses a snippet of an annotation. `None`: it is refused, and has been reported.
    pub(super) fn snippet(
        &mut self,
        parsed: &Parsed,
        name: &'static str,
        context: Contexts,
    ) -> Option<Vec<forebay_conf::Node>> {
        let Some(text) = parsed.annotations.raw(name) else { return Some(Vec::new()) };
        let author = Author::Tenant { own_host: self.own_host };
        match snippet::parse(text, context, author, &self.globals.options, &self.globals.settings.defined) {
            Ok(nodes) => Some(nodes),
            Err(invalid) => {
                let closes = crate::settings::snippet_decides(text);
                self.closed |= closes;
                let text_of = if closes {
                    "the snippet is refused; the paths of the Ingress answer 503"
                } else {
                    "the snippet is refused"
                };
                let problem = parsed.annotation_problem(name, text_of).invalid(text, &invalid);
                self.problems.push(problem.reason("SnippetRefused"));
                None
            }
        }
    }
}

/// Returns why a field cannot be set.
pub(super) fn bad_field(name: &str, value: &str, known: &crate::variables::Known) -> Option<String> {
    if let Err(invalid) = crate::value::Value::Token.check(name, known) {
        return Some(format!("its name is not valid: {}", invalid.reason));
    }
    crate::value::Value::Template.check(value.trim(), known).err().map(|invalid| invalid.reason)
}

/// Returns `true` for `SCHEME://HOST[:PORT]`, a host alone, a wildcard in place of the first label, and `null`.
fn is_origin(text: &str) -> bool {
    let host = text.split_once("://").map_or(text, |(_, host)| host);
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let (host, port) = host.split_once(':').map_or((host, None), |(h, p)| (h, Some(p)));
    let name = host.strip_prefix("*.").unwrap_or(host);
    let part =
        |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.');
    scheme.is_none_or(is_scheme) && part(name) && port.is_none_or(|p| p.parse::<u16>().is_ok())
}

/// Returns `true` for the scheme of a URL (RFC 3986, section 3.1). Those that apps choose have other characters than letters.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"+-.".contains(&b))
}
