//! Certificates by ACME (nginx: ngx_http_acme_module; Angie: acme_client and what belongs to it; ours: `acme on`). The directives
//! make [`Order`]s, which `forebay_acme` carries out.
//!
//! `issuer.rs` reads `acme_issuer`, `client.rs` reads `acme_client`, `tables.rs` has both and the directives of the http level.
//! `ordering.rs` makes the orders once all servers are known. `hook.rs` sends challenges to locations.
//!
//! Each issuer has one task on the tokio thread. A hook is a `Request` in its location.

mod client;
pub mod hook;
mod issuer;
mod ordering;
mod tables;

use client::client;
use forebay_server::module::ConfigHooks;
pub use hook::Hook;
use issuer::issuer;
use tables::{client_path, dns_port, dns_program, dns_ttl, http_port, max_response_size, shared_zone};

#[cfg(test)]
pub use issuer::DIRECTIVES;

use forebay_acme::{Certificate, Identifier, KeyKind, Order, dns, http};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::ListenAddr;
use forebay_core::config::value::{Setting, first};
use forebay_core::vars::RowSource;
use forebay_server::config::Scope;
use forebay_server::config::http::Http;
use forebay_server::module::{Condition, Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::Request;
use forebay_server::variables::{HasValue, Row};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock};

forebay_server::module_settings! {
    /// `acme`: the source of the server's certificates.
    "acme" => uses: Uses = Uses::Nothing;
    /// `acme_certificate`.
    "acme_certificate" => certificates: Certificates = Certificates::default();
}

/// `acme`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    http_directives: &[
        ("acme_issuer", issuer),
        ("acme_shared_zone", shared_zone),
        ("acme_client", client),
        ("acme_client_path", client_path),
        ("acme_dns_port", dns_port),
        ("acme_dns_program", dns_program),
        ("acme_dns_ttl", dns_ttl),
        ("acme_http_port", http_port),
        ("acme_max_response_size", max_response_size),
    ],
    location_directives: &[("acme_hook", |d, l, cx| {
        let hook = Hook::parse(d, cx)?;
        l.parts.get_mut::<Vec<Hook>>().push(hook);
        Ok(())
    })],
    variables: &[VARIABLES, hook::VARIABLES],
    // The authority is answered in the first phase, before redirects to https or access rules of a server
    // could refuse it.
    hooks: &[PhaseHook {
        phase: Phase::PostRead,
        enabled: Condition::Http(|http| !of_http(http).orders.is_empty()),
        hook: answer,
    }],
    config: ConfigHooks {
        place: Some(hook::place),
        certificates: Some(ordering::begin),
        ..ConfigHooks::NONE
    },
    prepare: Some(|http| {
        // This comes before the first handshake, which has to find the certificates.
        forebay_acme::load(&of_http(http).orders);
    }),
    begin: Some(|b| {
        let (outside, tokio) = (b.outside, &b.outside.tokio);
        let hooks = hook::hooks(outside, b.front, b.http);
        let environment = forebay_acme::Environment { tokio, log: b.log, hooks };
        of_http(b.http).start(&mut b.tasks, &environment, |addr| outside.sockets(addr));
    }),
    ..Module::NONE
};

const VARIABLES: &[Row] = &[
    Row {
        name: VARIABLE_NAMES.0,
        get: RowSource::Get(|r, o| of_server(r, o, Certificate::chain)),
        settable: false,
    },
    Row {
        name: VARIABLE_NAMES.1,
        get: RowSource::Get(|r, o| of_server(r, o, Certificate::key)),
        settable: false,
    },
    // This row comes before `acme_cert_*`, a shorter prefix that its names have as well.
    Row {
        name: "acme_cert_key_*",
        get: RowSource::Prefix(|r, name, o| of_client(r, name, o, Certificate::key)),
        settable: false,
    },
    Row {
        name: "acme_cert_*",
        get: RowSource::Prefix(|r, name, o| of_client(r, name, o, Certificate::chain)),
        settable: false,
    },
];

/// Variables that name a server's certificate and its key.
const VARIABLE_NAMES: (&str, &str) = ("acme_certificate", "acme_certificate_key");

/// Part of a certificate that is appended to a value. Returns `false` if there is no certificate.
type Part = fn(&Certificate, &mut Vec<u8>) -> bool;

fn of_server(r: &mut Request, out: &mut Vec<u8>, part: Part) -> HasValue {
    let http = r.http();
    let certificate = of_http(&http).of_servers.get(&r.server);
    Ok(certificate.is_some_and(|certificate| inline(certificate, out, part)))
}

fn of_client(r: &mut Request, name: &[u8], out: &mut Vec<u8>, part: Part) -> HasValue {
    let http = r.http();
    let client = of_http(&http).clients.iter().find(|c| c.name.as_bytes().eq_ignore_ascii_case(name));
    Ok(client.is_some_and(|client| inline(&client.certificate, out, part)))
}

/// Appends a part of a certificate as inline data.
fn inline(certificate: &Certificate, out: &mut Vec<u8>, part: Part) -> bool {
    // Without a certificate the value has to stay as it was, without the scheme.
    let before = out.len();
    out.extend_from_slice(b"data:");
    let there = part(certificate, out);
    if !there {
        out.truncate(before);
    }
    there
}

/// Answers a request of the authority, whatever server and location it is for.
fn answer(req: &mut Request) -> Step<'_> {
    let Some(text) = http::answer(&req.uri.path, req.method) else { return Verdict::Declined.into() };
    req.resp.status = 200;
    req.resp.content_type = b"text/plain".to_vec();
    req.resp.set_body(text.into_bytes());
    req.ending.close();
    Verdict::Done.into()
}

/// Part of the http block that is about ACME.
#[derive(Debug, Default)]
pub struct Acme {
    /// Certificates that are wanted.
    pub orders: Vec<Order>,
    /// The first certificate of each server that has any, by the number of the server.
    pub of_servers: HashMap<usize, Arc<Certificate>>,
    /// Certificates by the names of `acme_client`s.
    pub clients: Vec<ClientCertificate>,
    /// `acme_hook`s.
    pub hooks: Vec<Hook>,
    /// Addresses at which questions about challenges by DNS are answered.
    pub dns: Vec<ListenAddr>,
    /// Addresses at which requests of challenges are answered, where no server listens.
    pub http: Vec<ListenAddr>,
    /// Seconds for which answers about challenges by DNS may be kept.
    pub dns_ttl: u32,
}

/// Returns the part of an http block that is about ACME.
pub fn of_http(http: &Http) -> &Acme {
    static NONE: LazyLock<Acme> = LazyLock::new(Acme::default);
    http.parts.get().unwrap_or(&NONE)
}

/// Certificate of an `acme_client`.
#[derive(Debug)]
pub struct ClientCertificate {
    pub(crate) name: String,
    pub(crate) certificate: Arc<Certificate>,
}

impl Acme {
    /// Starts the background work.
    pub fn start(
        self: &Acme,
        tasks: &mut forebay_core::tasks::Tasks,
        environment: &forebay_acme::Environment<'_>,
        sockets: impl Fn(&ListenAddr) -> Vec<Arc<OwnedFd>>,
    ) {
        forebay_acme::start(&self.orders, tasks, environment);
        let kind = |addr: &ListenAddr| match addr.is_udp() {
            true => dns::Socket::Datagrams,
            false => dns::Socket::Connections,
        };
        let for_dns = self.dns.iter().flat_map(|addr| sockets(addr).into_iter().map(kind(addr)));
        dns::start(&self.orders, (for_dns.collect(), self.dns_ttl), tasks, environment);
        http::start(self.http.iter().flat_map(&sockets).collect(), tasks, environment);
    }
}

/// `acme`.
#[derive(Clone, Debug)]
pub enum Uses {
    /// `off`.
    Nothing,
    /// `on`: the default issuer. The error has no message yet, only the place of the directive.
    Default(Error),
    /// `acme_client`s by name, each with such an error.
    Clients(Vec<(String, Error)>),
}

impl Setting<forebay_server::config::HttpContext> for Uses {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let place = cx.error(d, "");
        let name = String::from_utf8_lossy(first(d)).into_owned();
        match (name.as_str(), previous) {
            ("on", None) => Ok(Uses::Default(place)),
            ("off", None) => Ok(Uses::Nothing),
            ("on" | "off", Some(_)) | (_, Some(Uses::Nothing | Uses::Default(_))) => {
                Err(cx.error(d, "\"acme\" directive is duplicate"))
            }
            (_, Some(Uses::Clients(known))) if known.iter().any(|(n, _)| n.eq_ignore_ascii_case(&name)) => {
                Err(cx.error(d, format!("duplicate acme client \"{name}\"")))
            }
            (_, Some(Uses::Clients(mut known))) => {
                known.push((name, place));
                Ok(Uses::Clients(known))
            }
            (_, None) => Ok(Uses::Clients(vec![(name, place)])),
        }
    }
}

/// `acme_certificate`s of a server.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Vec<Wanted>);

/// `acme_certificate`.
#[derive(Clone, Debug)]
struct Wanted {
    issuer: String,
    identifiers: Vec<Identifier>,
    key: KeyKind,
    /// Error without a message at the directive.
    place: Error,
}

impl Setting<forebay_server::config::HttpContext> for Certificates {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.unwrap_or_default();
        let wanted = Wanted::parse(d, cx)?;
        // A handshake chooses among the certificates of a server by the kind of key, so a second one of a
        // kind would never be used.
        if all.0.iter().any(|other| other.key.is_rsa() == wanted.key.is_rsa()) {
            let text = "\"acme_certificate\" directive is duplicate: one with \"key=rsa\" and one with \"key=ecdsa\" are possible";
            return Err(cx.error(d, text));
        }
        all.0.push(wanted);
        Ok(all)
    }
}

impl Wanted {
    fn parse(d: &Directive, cx: &Scope<'_>) -> Result<Wanted, Error> {
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
        Ok(wanted)
    }
}

fn identifier(text: &str) -> Result<Identifier, String> {
    Identifier::parse(text).ok_or_else(|| format!("invalid identifier \"{text}\""))
}

#[cfg(test)]
mod tests;
