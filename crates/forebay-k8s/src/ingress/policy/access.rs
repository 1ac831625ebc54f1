//! Who is let in: passwords, a service that decides, certificates of clients. What cannot be done closes the paths.

use super::{Making, Parsed};
use crate::annotations::Annotations;
use crate::ingress::Globals;
use crate::model::{Authority, ClientPolicy, File, Passwords, Policy};
use crate::objects::{Key, Secret};
use crate::reach;
use crate::value::parse_bool;
use forebay_conf::grammar::Contexts;
use std::sync::Arc;

impl Making<'_> {
    /// Adds the access checks of an Ingress.
    pub(super) fn access(&mut self, parsed: &Parsed, policy: &mut Policy) {
        let a = &parsed.annotations;
        if a.get("auth-type").is_some() {
            policy.passwords = self.passwords(parsed);
            self.closed |= policy.passwords.is_none();
        }
        policy.clients = a.get("auth-tls-secret").map(|name| self.clients(parsed, name));
        if a.get("auth-tls-match-cn").is_some() && policy.clients.is_none() {
            let text = "it needs auth-tls-secret; the paths of the Ingress answer 503";
            self.problems
                .push(parsed.annotation_problem("auth-tls-match-cn", text).reason("ReferenceMissing"));
            self.closed = true;
        }
        policy.authority = self.authority(parsed);
    }

    /// Makes the demand for certificates of clients, which are verified by a Secret.
    fn clients(&mut self, parsed: &Parsed, secret: &str) -> ClientPolicy {
        let a = &parsed.annotations;
        let key = Key::parse(secret).unwrap_or_else(|| Key::new(parsed.key.namespace.as_str(), secret));
        let cross = key.namespace != parsed.key.namespace
            && !self.globals.settings.flag("allow-cross-namespace-resources");
        let secret = self.view.secret(&key).filter(|_| !cross);
        let known = secret.is_some_and(|s| super::super::tls::authorities(&key, &s).is_some());
        self.one_authority(parsed, &key);
        let cn = a.get("auth-tls-match-cn");
        if let Some(text) = cn.filter(|t| !t.starts_with("CN=")) {
            let why = "it must begin with CN=; the paths of the Ingress answer 503";
            let problem = parsed.annotation_problem("auth-tls-match-cn", why);
            self.problems.push(problem.reason("InvalidValue").at(text, 0));
            self.closed = true;
        }
        // Nothing to verify by: nobody can be let in.
        self.closed |= !known;
        ClientPolicy {
            match_cn: cn.map(str::to_owned),
            pass: a.flag("auth-tls-pass-certificate-to-upstream"),
            // The subject of a certificate that nobody has verified says nothing.
            required: a.or_default("auth-tls-verify-client") == "on" || cn.is_some(),
        }
    }

    /// Closes the paths of an Ingress whose authorities are others than those of the oldest one of the host: clients are verified
    /// by these alone.
    fn one_authority(&mut self, parsed: &Parsed, key: &Key) {
        let Some((first, owner)) = self.authorities.clone().filter(|(first, _)| first != key) else { return };
        let text = format!(
            "the clients of the host are verified by the Secret {first} of the older Ingress {owner}; the paths of the \
             Ingress answer 503"
        );
        self.problems.push(parsed.annotation_problem("auth-tls-secret", text).reason("AuthorityConflict"));
        self.closed = true;
    }

    fn passwords(&mut self, parsed: &Parsed) -> Option<Passwords> {
        let a = &parsed.annotations;
        if a.get("auth-type") != Some("basic") {
            return None;
        }
        let Some(name) = a.get("auth-secret") else {
            let text = "auth-secret is missing; the paths of the Ingress answer 503";
            self.problems.push(parsed.annotation_problem("auth-type", text).reason("ReferenceMissing"));
            return None;
        };
        let secret = self.referred(parsed, "auth-secret", name, |view, key| view.secret(key))?;
        let key = Key::parse(name).unwrap_or_else(|| Key::new(parsed.key.namespace.as_str(), name));
        let kind = a.or_default("auth-secret-type");
        let Some(bytes) = password_file(&secret, kind) else {
            let text = format!("the Secret {key} has no key \"auth\"; the paths of the Ingress answer 503");
            self.problems.push(parsed.annotation_problem("auth-secret", text).reason("ReferenceMissing"));
            return None;
        };
        if !super::is_name(&key.namespace) || !super::is_name(&key.name) {
            return None;
        }
        let path = super::super::tls::secret_path(&key, kind);
        self.files.push(File { path: path.clone(), bytes });
        // The word `off` would switch the check off.
        let realm = a
            .get("auth-realm")
            .filter(|r| !r.eq_ignore_ascii_case("off"))
            .unwrap_or("Authentication Required");
        Some(Passwords { realm: realm.to_owned(), path })
    }

    /// Makes the service that decides, of the annotations or, without, of the ConfigMap.
    fn authority(&mut self, parsed: &Parsed) -> Option<Authority> {
        let a = &parsed.annotations;
        let Some(url) = a.get("auth-url") else { return self.general_authority(parsed) };
        if let Some(why) = self.unreachable(url) {
            let text = format!("{why}; the paths of the Ingress answer 503");
            let problem = parsed.annotation_problem("auth-url", text).reason("ForbiddenTarget");
            self.problems.push(problem.at(url, 0));
            self.closed = true;
            return None;
        }
        let mut authority = from(url, |name| a.get(name).map(str::to_owned));
        self.check_times(parsed);
        authority.keepalive = keepalive(a, url);
        authority.always_set_cookie = a.flag("auth-always-set-cookie");
        let snippet = self.snippet(parsed, "auth-snippet", Contexts::LOCATION);
        self.closed |= snippet.is_none();
        authority.snippet = snippet.unwrap_or_default();
        if let Some(map) = a.get("auth-proxy-set-headers") {
            authority.headers =
                self.literal_fields(parsed, "auth-proxy-set-headers", map).unwrap_or_default();
        }
        self.signin(parsed, &mut authority);
        Some(authority)
    }

    /// Closes the paths of an Ingress whose times for the answers of a service cannot be read.
    fn check_times(&mut self, parsed: &Parsed) {
        let text = parsed.annotations.get("auth-cache-duration");
        let Some(text) = text.filter(|text| valid_times(text).is_none()) else { return };
        let why = "it must be statuses and a time, such as 200 401 5m; the paths of the Ingress answer 503";
        let problem = parsed.annotation_problem("auth-cache-duration", why).reason("InvalidValue");
        self.problems.push(problem.at(text, 0));
        self.closed = true;
    }

    fn general_authority(&mut self, parsed: &Parsed) -> Option<Authority> {
        if parsed.annotations.get("enable-global-auth").and_then(parse_bool) == Some(false) {
            return None;
        }
        if self.globals.broken_authority {
            let text =
                "a key global-auth-* of the ConfigMap is not valid; the paths of the Ingress answer 503";
            self.problems.push(parsed.problem("metadata", text).reason("SettingInvalid"));
            self.closed = true;
            return None;
        }
        general_authority(self.globals)
    }

    /// Drops a page to log in at that is none.
    fn signin(&mut self, parsed: &Parsed, authority: &mut Authority) {
        let Some((url, _)) = &authority.signin else { return };
        let fine = reach::is_link(url);
        if !fine {
            let problem =
                parsed.annotation_problem("auth-signin", "it must be a path or a URL of http or https");
            self.problems.push(problem.reason("InvalidValue").at(url, 0));
            authority.signin = None;
        }
    }
}

/// Returns the service that the ConfigMap names.
pub(crate) fn general_authority(globals: &Globals) -> Option<Authority> {
    let settings = &globals.settings;
    let url = settings.some("global-auth-url")?.to_owned();
    let of = |name: &'static str| {
        let general = ALL.iter().find(|(own, _)| *own == name).map(|(_, general)| *general)?;
        settings.some(general).map(str::to_owned)
    };
    let mut authority = from(&url, of);
    authority.signin = authority.signin.filter(|(page, _)| reach::is_link(page));
    authority.always_set_cookie = settings.flag("global-auth-always-set-cookie");
    authority.snippet = globals.snippets.authority.clone();
    Some(authority)
}

/// Annotations of external authentication and their keys in the ConfigMap.
const ALL: &[(&str, &str)] = &[
    ("auth-method", "global-auth-method"),
    ("auth-signin", "global-auth-signin"),
    ("auth-signin-redirect-param", "global-auth-signin-redirect-param"),
    ("auth-request-redirect", "global-auth-request-redirect"),
    ("auth-response-headers", "global-auth-response-headers"),
    ("auth-cache-key", "global-auth-cache-key"),
    ("auth-cache-duration", "global-auth-cache-duration"),
];

fn from(url: &str, get: impl Fn(&'static str) -> Option<String>) -> Authority {
    let host = reach::split(url).map(|u| u.host.to_owned()).unwrap_or_default();
    let list = get("auth-response-headers").unwrap_or_default();
    let parameter = get("auth-signin-redirect-param").unwrap_or_else(|| "rd".into());
    let times = get("auth-cache-duration")
        .and_then(|text| valid_times(&text))
        .or_else(|| valid_times(CACHE_TIMES))
        .unwrap_or_default();
    Authority {
        url: url.to_owned(),
        host,
        method: get("auth-method"),
        signin: get("auth-signin").map(|page| (page, parameter)),
        redirect: get("auth-request-redirect"),
        response_headers: list.split([',', ' ']).filter(|h| !h.is_empty()).map(str::to_owned).collect(),
        cache: get("auth-cache-key").map(|key| (key, times)),
        ..Authority::default()
    }
}

/// Reads `200 202 401 5m, 403 1m`: the words of `proxy_cache_valid` lines.
pub(in crate::ingress) fn valid_times(text: &str) -> Option<Vec<Vec<String>>> {
    let mut lines = Vec::new();
    for part in text.split(',') {
        let words: Vec<&str> = part.split_ascii_whitespace().collect();
        let (time, codes) = words.split_last()?;
        forebay_conf::units::duration_ms(time.as_bytes())?;
        let code = |w: &&str| **w == *"any" || w.parse::<u16>().is_ok_and(|c| (100..600).contains(&c));
        if !codes.iter().all(code) {
            return None;
        }
        lines.push(words.into_iter().map(str::to_owned).collect());
    }
    Some(lines)
}

/// Times that answers are kept for if nothing else is said.
const CACHE_TIMES: &str = "200 202 401 5m";

fn keepalive(a: &Annotations, url: &str) -> Option<(i64, i64, i64)> {
    let connections = a.number("auth-keepalive").filter(|n| *n > 0)?.min(100_000);
    // A host that depends on the request has no group.
    let fixed = reach::split(url).is_some_and(|u| !u.host.contains('$') && !u.scheme.contains('$'));
    let number = |name: &'static str, default: i64| a.number(name).unwrap_or(default);
    fixed
        .then(|| (connections, number("auth-keepalive-requests", 1000), number("auth-keepalive-timeout", 60)))
}

/// Makes the file of names and hashed passwords.
fn password_file(secret: &Secret, kind: &str) -> Option<Arc<[u8]>> {
    if kind == "auth-file" {
        return secret.data.get("auth").cloned();
    }
    let mut text = Vec::new();
    for (user, hash) in &secret.data {
        let trimmed = hash.trim_ascii();
        if !user.contains([':', '\n', '\r', '#']) && !trimmed.contains(&b'\n') && !trimmed.contains(&b'\r') {
            text.extend_from_slice(user.as_bytes());
            text.push(b':');
            text.extend_from_slice(trimmed);
            text.push(b'\n');
        }
    }
    Some(text.into())
}
