//! Certificates by ACME (nginx: ngx_http_acme_module; ours: `acme on`). The directives make [`Order`]s, which `forebay_acme`
//! carries out.

use crate::config::listen::ListenDirective;
use crate::config::names::ServerName;
use crate::config::value::{Setting, first, once};
use crate::config::{ListenAddr, Scope};
use crate::modules::Verdict;
use crate::request::Request;
use crate::variables::{HasValue, Row};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_acme::{
    Certificate, Challenge, ExternalAccount, Identifier, Issuer, KeyKind, LETS_ENCRYPT, Order, Profile,
};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_core::tls::loader::Issued;
use forebay_core::vars::RowSource;
use forebay_http::request::Method;
use forebay_net::resolver::Resolver;
use forebay_net::tls::pem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

crate::settings! {
    /// `acme`: the server gets its certificate itself.
    "acme" => on: Switch = Switch::Off;
    /// `acme_certificate`.
    "acme_certificate" => certificate: Option<Wanted> = None;
}

/// Variables of this module.
pub(crate) const VARIABLES: &[Row] = &[
    Row {
        name: VARIABLE_NAMES.0,
        get: RowSource::Get(|r, o| inline(r, o, Certificate::chain)),
        settable: false,
    },
    Row {
        name: VARIABLE_NAMES.1,
        get: RowSource::Get(|r, o| inline(r, o, Certificate::key)),
        settable: false,
    },
];

/// Variables that name a server's certificate and its key.
const VARIABLE_NAMES: (&str, &str) = ("acme_certificate", "acme_certificate_key");

/// Appends a part of the server's certificate as inline data.
fn inline(r: &mut Request, out: &mut Vec<u8>, part: fn(&Certificate, &mut Vec<u8>) -> bool) -> HasValue {
    let http = r.http();
    let Some(certificate) = &http.server(r).acme else { return Ok(false) };
    let before = out.len();
    out.extend_from_slice(b"data:");
    let there = part(certificate, out);
    if !there {
        out.truncate(before);
    }
    Ok(there)
}

/// Directory of accounts and certificates of `acme on`.
const STATE_PATH: &str = "/var/lib/forebay/acme";
/// Issuer of `acme on`, unless there is an `acme_issuer` of the name [`DEFAULT`].
const BUILT_IN: &str = "letsencrypt";
/// Issuer of `acme on`, if it is defined.
const DEFAULT: &str = "default";
/// Path of HTTP-01 challenges (RFC 8555, section 8.3).
const WELL_KNOWN: &[u8] = b"/.well-known/acme-challenge/";

/// Answers a request of the authority, whatever server and location it is for. Runs first of all hooks.
pub(crate) fn answer(req: &mut Request) -> Verdict {
    let Some(token) = req.uri.strip_prefix(WELL_KNOWN) else { return Verdict::Declined };
    if req.method != Method::Get {
        return Verdict::Declined;
    }
    let Some(text) = forebay_acme::http_answer(token) else { return Verdict::Declined };
    req.resp.status = 200;
    req.resp.content_type = b"text/plain".to_vec();
    req.resp.set_body(text.into_bytes());
    req.keep_alive = false;
    Verdict::Done
}

/// `acme on` or `acme off`.
#[derive(Clone, Debug)]
pub(crate) enum Switch {
    /// Not wanted.
    Off,
    /// Wanted. With an error without a message at the directive, for its place.
    On(Error),
}

impl Setting<crate::HttpContext> for Switch {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        match first(d) {
            b"on" => Ok(Switch::On(cx.error(d, ""))),
            b"off" => Ok(Switch::Off),
            name => {
                let name = String::from_utf8_lossy(name);
                Err(cx.error(
                    d,
                    format!("\"acme\" takes \"on\" or \"off\", clients as \"{name}\" are not supported yet"),
                ))
            }
        }
    }
}

/// `acme_certificate`.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    issuer: String,
    identifiers: Vec<Identifier>,
    key: KeyKind,
    /// Error without a message at the directive.
    place: Error,
}

impl Setting<crate::HttpContext> for Option<Wanted> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let issuer = String::from_utf8_lossy(first(d)).into_owned();
        let mut wanted =
            Wanted { issuer, identifiers: Vec::new(), key: KeyKind::default(), place: cx.error(d, "") };
        for w in d.args.iter().skip(1) {
            let text = w.as_str();
            if let Some(kind) = text.strip_prefix("key=") {
                let unsupported = || cx.error_at(d, w, format!("unsupported key: {kind}"));
                wanted.key = KeyKind::parse(kind).ok_or_else(unsupported)?;
                continue;
            }
            let identifier = identifier(&text).map_err(|text| cx.error_at(d, w, text))?;
            if wanted.identifiers.contains(&identifier) {
                return Err(cx.error_at(d, w, format!("duplicate identifier \"{text}\"")));
            }
            wanted.identifiers.push(identifier);
        }
        Ok(Some(wanted))
    }
}

/// Reads an identifier that challenges over HTTP and TLS can prove.
fn identifier(text: &str) -> Result<Identifier, String> {
    match Identifier::parse(text) {
        None => Err(format!("invalid identifier \"{text}\"")),
        Some(i) if i.is_wildcard() => Err(format!(
            "wildcard identifier \"{text}\" is not supported: only a challenge by DNS proves it, which is not supported yet"
        )),
        Some(identifier) => Ok(identifier),
    }
}

/// Issuers that a configuration defines.
#[derive(Default)]
pub(crate) struct Issuers {
    defined: Vec<Issuer>,
    /// `acme_client_path`.
    path: Option<PathBuf>,
    /// `acme_shared_zone` has been read.
    zone: bool,
}

/// Reads `acme_shared_zone`. All threads share the memory of the process, so the zone has no other use.
pub(crate) fn shared_zone(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    if std::mem::replace(&mut cx.tables.acme.zone, true) {
        return Err(cx.error(d, "\"acme_shared_zone\" directive is duplicate"));
    }
    let text = String::from_utf8_lossy(first(d)).into_owned();
    let invalid = || cx.error(d, format!("invalid zone \"{text}\""));
    let (name, size) = text.strip_prefix("zone=").and_then(|z| z.split_once(':')).ok_or_else(invalid)?;
    let size = units::size(size.as_bytes()).filter(|_| !name.is_empty()).ok_or_else(invalid)?;
    cx.share_zone(d, name.as_bytes(), ("http", "acme"), Some(size))
}

/// Reads `acme_client_path`: the directory of accounts and certificates of `acme on`.
pub(crate) fn client_path(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    if cx.tables.acme.path.is_some() {
        return Err(cx.error(d, "\"acme_client_path\" directive is duplicate"));
    }
    let path = cx.full_path(first(d));
    cx.directory(d, &path, Some(Vec::new()))?;
    cx.tables.acme.path = Some(path);
    Ok(())
}

/// Reads an `acme_issuer` block.
pub(crate) fn issuer(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let name = String::from_utf8_lossy(first(d)).into_owned();
    if cx.tables.acme.defined.iter().any(|i| i.name == name) {
        return Err(cx.error(d, format!("duplicate acme issuer \"{name}\"")));
    }
    if name.is_empty() || name.contains(['/', '\0']) {
        return Err(cx.error(d, format!("invalid acme issuer name \"{name}\"")));
    }
    let mut reading = Reading { issuer: Issuer::new(&name, ""), seen: Vec::new(), cx };
    for inner in d.block.iter().flatten() {
        let read = reading.directive(inner);
        reading.cx.keep(read);
    }
    let Reading { mut issuer, seen, cx } = reading;
    if !seen.contains(&b"uri".to_vec()) {
        return Err(cx.error(d, format!("\"uri\" is missing in acme issuer \"{name}\"")));
    }
    if !seen.contains(&b"state_path".to_vec()) {
        let path = cx.full_path(format!("acme_{name}").as_bytes());
        cx.directory(d, &path, Some(Vec::new()))?;
        issuer.state_path = Some(path);
    }
    cx.tables.acme.defined.push(issuer);
    Ok(())
}

/// Names of the directives of the block.
#[cfg(test)]
pub(crate) const DIRECTIVES: &[&str] = &[
    "uri",
    "account_key",
    "challenge",
    "contact",
    "external_account_key",
    "preferred_chain",
    "profile",
    "common_name_in_csr",
    "ssl_verify",
    "ssl_trusted_certificate",
    "state_path",
    "accept_terms_of_service",
];

/// Issuer that is being read.
struct Reading<'r, 's> {
    issuer: Issuer,
    /// Names of the directives so far.
    seen: Vec<Vec<u8>>,
    cx: &'r mut Scope<'s>,
}

impl Reading<'_, '_> {
    fn directive(&mut self, d: &Directive) -> Result<(), Error> {
        let name = &d.name.text;
        if name != b"contact" && self.seen.contains(name) {
            return Err(self.cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str())));
        }
        self.seen.push(name.clone());
        let text = String::from_utf8_lossy(first(d)).into_owned();
        match name.as_slice() {
            b"uri" => self.uri(d, text)?,
            b"account_key" => self.account_key(d, &text)?,
            b"challenge" => self.challenge(d, &text)?,
            b"contact" => self.issuer.contacts.extend(d.args.iter().map(contact)),
            b"external_account_key" => self.external(d, text)?,
            b"preferred_chain" => self.issuer.preferred_chain = Some(text),
            b"profile" => self.profile(d, text)?,
            b"common_name_in_csr" => self.issuer.common_name = bool::take(None, d, self.cx)?,
            b"ssl_verify" => self.issuer.verify = bool::take(None, d, self.cx)?,
            b"ssl_trusted_certificate" => self.trusted(d)?,
            b"state_path" => self.state_path(d, &text)?,
            b"accept_terms_of_service" => self.issuer.terms_accepted = true,
            _ => {}
        }
        Ok(())
    }

    fn uri(&mut self, d: &Directive, text: String) -> Result<(), Error> {
        if !text.starts_with("https://") || text.len() == 8 {
            return Err(self.cx.error(d, format!("invalid URL \"{text}\", it must begin with \"https://\"")));
        }
        self.issuer.uri = text;
        Ok(())
    }

    fn account_key(&mut self, d: &Directive, text: &str) -> Result<(), Error> {
        if let Some(kind) = KeyKind::parse(text) {
            self.issuer.account_kind = kind;
            return Ok(());
        }
        if text.starts_with("ecdsa:") || text.starts_with("rsa:") {
            return Err(self.cx.error(d, format!("unsupported key: {text}")));
        }
        let key = self.file(d, first(d))?;
        if pem::private_key(&key, &[]).is_err() {
            return Err(self.cx.error(d, format!("\"{text}\" has no private key in PEM without a password")));
        }
        self.issuer.account_key = Some(key.into());
        Ok(())
    }

    fn challenge(&mut self, d: &Directive, text: &str) -> Result<(), Error> {
        self.issuer.challenge = match text {
            "http-01" | "http" => Challenge::Http01,
            "tls-alpn-01" | "tls-alpn" => Challenge::TlsAlpn01,
            other => return Err(self.cx.error(d, format!("unsupported challenge: {other}"))),
        };
        Ok(())
    }

    fn external(&mut self, d: &Directive, id: String) -> Result<(), Error> {
        let value = d.args.get(1).map(|w| w.text.as_slice()).unwrap_or_default();
        let text = match value.strip_prefix(b"data:") {
            Some(text) => text.to_vec(),
            None => self.file(d, value)?,
        };
        let text = text.trim_ascii();
        let bare = text.iter().rposition(|b| *b != b'=').map_or(0, |last| last + 1);
        let key = URL_SAFE_NO_PAD.decode(text.get(..bare).unwrap_or_default()).ok().filter(|k| !k.is_empty());
        let key =
            key.ok_or_else(|| self.cx.error(d, "invalid external account key, it must be base64url"))?;
        self.issuer.external = Some(ExternalAccount { id, key: key.into() });
        Ok(())
    }

    fn profile(&mut self, d: &Directive, name: String) -> Result<(), Error> {
        let required = match d.args.get(1) {
            None => false,
            Some(w) if w.text == b"require" => true,
            Some(w) => {
                return Err(self.cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            }
        };
        self.issuer.profile = Some(Profile { name, required });
        Ok(())
    }

    fn trusted(&mut self, d: &Directive) -> Result<(), Error> {
        let roots = pem::certificates(&self.file(d, first(d))?);
        if roots.is_empty() {
            return Err(self.cx.error(d, "there is no certificate in the file"));
        }
        self.issuer.roots = Some(roots);
        Ok(())
    }

    fn state_path(&mut self, d: &Directive, text: &str) -> Result<(), Error> {
        if text != "off" {
            let path = self.cx.full_path(first(d));
            self.cx.directory(d, &path, Some(Vec::new()))?;
            self.issuer.state_path = Some(path);
        }
        Ok(())
    }

    /// Reads a file, below the directory of the configuration.
    fn file(&mut self, d: &Directive, name: &[u8]) -> Result<Vec<u8>, Error> {
        let path = self.cx.conf_path(name);
        let read = self.cx.files.read(&path).map(|(_, bytes)| bytes.to_vec());
        read.map_err(|e| {
            let why = forebay_sys::errno::errno(&e);
            self.cx.error(d, format!("open() \"{}\" failed ({why})", path.display()))
        })
    }
}

/// Returns a URL of a contact. What has no scheme is an address for mail.
fn contact(w: &Word) -> String {
    let text = w.as_str();
    if text.contains(':') { text.into_owned() } else { format!("mailto:{text}") }
}

/// What the choice of a server's certificate depends on.
pub(crate) struct Subject<'s> {
    /// Settings in effect at the server.
    pub(crate) settings: &'s Settings,
    /// Names of the server.
    pub(crate) names: &'s [ServerName],
    /// `listen` directives of the server.
    pub(crate) listens: &'s [ListenDirective],
    /// The server has `ssl_certificate`, or one around it has.
    pub(crate) certified: bool,
}

/// Returns the challenge that can be met at these addresses. Without port 80 the authority could only fail to connect, which
/// counts against its limits.
fn challenge_at<'l>(mut listens: impl Iterator<Item = &'l ListenDirective>) -> Challenge {
    let is_http = |a: &ListenAddr| matches!(a, ListenAddr::Inet(a) if a.port() == 80);
    let plain = listens.any(|l| !l.address_options.ssl && l.addrs.iter().any(is_http));
    if plain { Challenge::Either } else { Challenge::TlsAlpn01 }
}

/// Issuers of a configuration, for its servers.
pub(crate) struct Ordering {
    issuers: Vec<Arc<Issuer>>,
    /// Orders of the servers so far.
    pub(crate) orders: Vec<Order>,
    /// Directories for the certificates of `acme on`, in the order in which they are made.
    pub(crate) default_paths: Vec<PathBuf>,
    path: Option<PathBuf>,
    /// Challenge of the built-in issuer.
    challenge: Challenge,
    /// Resolver of the http level.
    resolver: Option<Arc<Resolver>>,
}

impl Ordering {
    /// Takes the issuers over. `resolver`: that of the http level. `listens`: the `listen` directives of all servers.
    pub(crate) fn new<'l>(
        issuers: Issuers,
        resolver: Option<&Arc<Resolver>>,
        listens: impl Iterator<Item = &'l ListenDirective>,
    ) -> Ordering {
        let complete = |i: Issuer| Arc::new(Issuer { resolver: resolver.cloned(), ..i });
        let Issuers { defined, path, .. } = issuers;
        Ordering {
            issuers: defined.into_iter().map(complete).collect(),
            orders: Vec::new(),
            default_paths: Vec::new(),
            path,
            challenge: challenge_at(listens),
            resolver: resolver.cloned(),
        }
    }

    /// Returns the certificate that a server wants, if it wants one.
    ///
    /// # Errors
    /// If its names cannot be in a certificate, or its issuer is not defined.
    pub(crate) fn server(
        &mut self,
        subject: &Subject<'_>,
        cx: &mut Scope<'_>,
    ) -> Result<Option<(Arc<Certificate>, Issued)>, Error> {
        let (order, variables, place) = match (&subject.settings.certificate, &subject.settings.on) {
            (Some(wanted), _) => (self.wanted(wanted, subject, cx)?, Some(VARIABLE_NAMES), &wanted.place),
            (None, Switch::On(place)) => match self.implied(place, subject)? {
                Some(order) => (order, None, place),
                None => return Ok(None),
            },
            (None, Switch::Off) => return Ok(None),
        };
        let at = |message: String| Error { message, ..place.clone() };
        let certificate = Certificate::of(&order).map_err(at)?;
        let name = format!("{} {}", order.issuer.name, order.file());
        let issued = Issued { name, slot: certificate.slot().clone(), variables };
        if !self.orders.iter().any(|o| Arc::ptr_eq(&o.issuer, &order.issuer) && o.file() == order.file()) {
            self.orders.push(order);
        }
        Ok(Some((certificate, issued)))
    }

    /// Returns the order of an `acme_certificate`.
    fn wanted(&self, wanted: &Wanted, subject: &Subject<'_>, cx: &mut Scope<'_>) -> Result<Order, Error> {
        let at = |message: String| Error { message, ..wanted.place.clone() };
        let issuer = self.issuers.iter().find(|i| i.name == wanted.issuer);
        let issuer = issuer.ok_or_else(|| at(format!("acme issuer \"{}\" is not defined", wanted.issuer)))?;
        let mut identifiers = wanted.identifiers.clone();
        if identifiers.is_empty() {
            for name in subject.names {
                let text = String::from_utf8_lossy(&name.written()).into_owned();
                match name {
                    ServerName::Regex(..) => {
                        let text = format!(
                            "\"acme_certificate\": regular expression \"{text}\" in \"server_name\" is ignored"
                        );
                        let level = forebay_conf::error::Level::Warn;
                        cx.warnings.push(Error { level, ..at(text) });
                    }
                    ServerName::Exact(n) if n.is_empty() => {}
                    _ => add(&mut identifiers, &text).map_err(at)?,
                }
            }
        }
        if identifiers.is_empty() {
            return Err(at("\"acme_certificate\": no identifiers found in \"server_name\"".to_owned()));
        }
        Ok(Order { issuer: issuer.clone(), identifiers, key: wanted.key })
    }

    /// Returns the order of a server with `acme on`; `None` if it has no use for one: it listens without TLS, has a certificate,
    /// or no name.
    fn implied(&mut self, place: &Error, subject: &Subject<'_>) -> Result<Option<Order>, Error> {
        let at = |message: String| Error { message, ..place.clone() };
        if subject.certified || !subject.listens.iter().any(|l| l.address_options.ssl) {
            return Ok(None);
        }
        let mut identifiers = Vec::new();
        for name in subject.names {
            let text = String::from_utf8_lossy(&name.written()).into_owned();
            match name {
                ServerName::Regex(..) => {
                    return Err(at(format!(
                        "\"acme\" cannot get a certificate for the regular expression \"{text}\" in \"server_name\", \
                         name each host"
                    )));
                }
                // Names of servers that take what no other does.
                ServerName::Exact(n) if n.is_empty() || n == b"_" => {}
                ServerName::Exact(n) if !n.contains(&b'.') && Identifier::parse(&text).is_some() => {
                    return Err(at(format!(
                        "\"acme\" cannot get a certificate for \"{text}\", which is no public name"
                    )));
                }
                _ => add(&mut identifiers, &text).map_err(at)?,
            }
        }
        if identifiers.is_empty() {
            return Ok(None);
        }
        Ok(Some(Order { issuer: self.default_issuer(), identifiers, key: KeyKind::default() }))
    }

    /// Returns the issuer of `acme on`.
    fn default_issuer(&mut self) -> Arc<Issuer> {
        let known = |name: &str| self.issuers.iter().find(|i| i.name == name).cloned();
        if let Some(issuer) = known(DEFAULT).or_else(|| known(BUILT_IN)) {
            return issuer;
        }
        let base = self.path.clone().unwrap_or_else(|| PathBuf::from(STATE_PATH));
        if self.path.is_none() {
            self.default_paths.extend(base.parent().map(Path::to_owned));
            self.default_paths.push(base.clone());
        }
        let issuer = Arc::new(Issuer {
            terms_accepted: true,
            challenge: self.challenge,
            state_path: Some(base.join(BUILT_IN)),
            resolver: self.resolver.clone(),
            ..Issuer::new(BUILT_IN, LETS_ENCRYPT)
        });
        self.issuers.push(issuer.clone());
        issuer
    }
}

fn add(identifiers: &mut Vec<Identifier>, text: &str) -> Result<(), String> {
    let identifier = match text.strip_prefix('.') {
        // Stands for all names below it, too.
        Some(rest) => identifier(&format!("*.{rest}"))?,
        None => identifier(text)?,
    };
    if !identifiers.contains(&identifier) {
        identifiers.push(identifier);
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/acme.rs"]
mod tests;
