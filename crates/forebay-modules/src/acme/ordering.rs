//! Orders of the servers of a configuration.

use super::client::Client;
use super::hook::Placed;
use super::tables::{DNS_PORT, Issuers};
use super::{Acme, ClientCertificate, Hook, SETTINGS, Settings, Uses, VARIABLE_NAMES, Wanted, identifier};
use forebay_acme::{Certificate, Challenge, Identifier, Issuer, KeyKind, LETS_ENCRYPT, Order, Publication};
use forebay_conf::error::{Error, Level};
use forebay_core::config::listen::ListenDirective;
use forebay_core::config::names::ServerName;
use forebay_core::config::{ListenAddr, Listener};
use forebay_core::tls::issued::{ClientNames, IssuedToClients};
use forebay_core::tls::loader::Issued;
use forebay_net::resolver::Resolver;
use forebay_server::config::Scope;
use forebay_server::config::issued::{CertificateSource, Chosen, Issuing, Needed, Subject};
use forebay_server::config::parts::Parts;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Directory of accounts and certificates of `acme on` and of `acme_client`s.
const STATE_PATH: &str = "/var/lib/forebay/acme";
/// Issuer of `acme on`, unless there is an `acme_issuer` of the name [`DEFAULT`].
const BUILT_IN: &str = "letsencrypt";
/// Issuer of `acme on`, if it is defined.
pub(super) const DEFAULT: &str = "default";
/// Port of HTTP-01 without `acme_http_port`.
const HTTP_PORT: u16 = 80;
/// Seconds for which answers about challenges may be kept without `acme_dns_ttl`.
const DNS_TTL: u32 = 60;

/// Returns `true` if a server uses a client.
fn uses(s: &Settings, client: &str) -> bool {
    match &s.uses {
        Uses::Clients(used) => used.iter().any(|(name, _)| name.eq_ignore_ascii_case(client)),
        _ => false,
    }
}

/// Returns `true` if a server presents a certificate without a directive that names it.
fn takes_any(subject: &Subject<'_>) -> bool {
    !subject.certified && subject.listens.iter().any(|l| l.address_options.ssl)
}

/// Returns `true` if a server has a port for plain HTTP.
fn has_port<'l>(mut listens: impl Iterator<Item = &'l ListenDirective>, port: u16) -> bool {
    let is_http = |a: &ListenAddr| matches!(a, ListenAddr::Inet(a) if a.port() == port);
    listens.any(|l| !l.address_options.ssl && l.addrs.iter().any(is_http))
}

/// Issuers of a configuration, for its servers.
pub(super) struct Ordering {
    issuers: Vec<Arc<Issuer>>,
    clients: Vec<Clientele>,
    acme: Acme,
    tables: Issuers,
    /// A server has the port of HTTP-01.
    has_http: bool,
    /// Resolver of the http level.
    resolver: Option<Arc<Resolver>>,
    /// Directories that no directive names, in the order in which they are made.
    directories: Vec<PathBuf>,
}

/// An `acme_client` with the names of its servers.
struct Clientele {
    issuer: Arc<Issuer>,
    key: KeyKind,
    identifiers: Vec<Identifier>,
}

/// Certificate of an order with its place in servers.
struct Ordered {
    certificate: Arc<Certificate>,
    issued: Issued,
}

impl Ordering {
    /// Takes the issuers over.
    fn new(issuing: Issuing<'_, '_>) -> Ordering {
        let Issuing { resolver, listens, cx } = issuing;
        let parts = &mut cx.tables.parts;
        let (mut tables, hooks) = (parts.take::<Issuers>(), parts.take::<Placed>().0);
        let has_http = has_port(listens.into_iter(), tables.http.map_or(HTTP_PORT, |a| a.port()));
        let defined = std::mem::take(&mut tables.defined);
        let clients = std::mem::take(&mut tables.clients);
        let acme = Acme { hooks, dns_ttl: tables.dns_ttl.unwrap_or(DNS_TTL), ..Acme::default() };
        let mut ordering = Ordering {
            issuers: Vec::new(),
            clients: Vec::new(),
            acme,
            tables,
            has_http,
            resolver: resolver.cloned(),
            directories: Vec::new(),
        };
        for mut issuer in defined {
            if issuer.name == DEFAULT && ordering.tables.default_lacks_path {
                issuer.state_path = Some(ordering.default_directory().join(DEFAULT));
            }
            let issuer = Arc::new(ordering.completed(issuer));
            ordering.issuers.push(issuer);
        }
        for Client { issuer, key } in clients {
            let path = ordering.default_directory().join(&issuer.name);
            let issuer = ordering.completed(Issuer { state_path: Some(path), ..issuer });
            ordering.clients.push(Clientele { issuer: Arc::new(issuer), key, identifiers: Vec::new() });
        }
        ordering
    }

    /// Completes an issuer with settings of the http level.
    fn completed(&self, issuer: Issuer) -> Issuer {
        let is_hooked = self.acme.hooks.iter().any(|h| h.client.eq_ignore_ascii_case(&issuer.name));
        let publication = match (&issuer.publication, &self.tables.program) {
            // A hook is for one client by name, and so comes before a program for all of them.
            _ if is_hooked => Publication::Hook,
            (Publication::Own, Some(p)) if issuer.challenge == Challenge::Dns01 => {
                Publication::Program(p.clone())
            }
            (own, _) => own.clone(),
        };
        Issuer {
            resolver: self.resolver.clone(),
            publication,
            max_response: self.tables.max_response.unwrap_or(issuer.max_response),
            ..issuer
        }
    }

    /// Returns the directory of the issuers that name none, and notes it if no directive does.
    fn default_directory(&mut self) -> PathBuf {
        if let Some(path) = &self.tables.path {
            return path.clone();
        }
        let base = PathBuf::from(STATE_PATH);
        if self.directories.is_empty() {
            self.directories.extend(base.parent().map(Path::to_owned));
            self.directories.push(base.clone());
        }
        base
    }

    /// Notes the names of a server of another block, whose front end refuses clients that are not defined.
    ///
    /// # Errors
    /// If the client cannot get a certificate for a name.
    fn grant(&mut self, server: &ClientNames) -> Result<(), Error> {
        let mut names = Vec::new();
        let mut plain = server.names.iter().filter(|name| !name.is_empty() && !name.starts_with('~'));
        let added = plain.try_for_each(|name| add(&mut names, name));
        // The front end of that block reports a client that is not defined, at its own directive.
        let is_known = self.clients.iter().any(|c| c.issuer.name.eq_ignore_ascii_case(&server.client));
        let granted =
            added.and_then(|()| if is_known { self.add_names(&server.client, names) } else { Ok(()) });
        granted.map_err(|message| Error { message, ..server.place.clone() })
    }

    fn add_names(&mut self, client: &str, names: Vec<Identifier>) -> Result<(), String> {
        let known = self.clients.iter_mut().find(|c| c.issuer.name.eq_ignore_ascii_case(client));
        let client = known.ok_or_else(|| format!("acme client \"{client}\" is not defined"))?;
        // `_` is the usual name of a server that takes all requests for unknown names, and no authority
        // certifies it.
        for name in names.into_iter().filter(|n| *n != Identifier::Dns("_".to_owned())) {
            provable(&client.issuer, &name)?;
            if !client.identifiers.contains(&name) {
                client.identifiers.push(name);
            }
        }
        Ok(())
    }

    /// Makes the orders of the clients, and adds their certificates to `all`.
    ///
    /// # Errors
    /// If no key can be made.
    fn order_for_clients(&mut self, all: &mut IssuedToClients) -> Result<(), Error> {
        for Clientele { issuer, key, identifiers } in &self.clients {
            if identifiers.is_empty() {
                continue;
            }
            let order = Order { issuer: issuer.clone(), identifiers: identifiers.clone(), key: *key };
            let certificate = Certificate::of(&order).map_err(|text| forebay_core::config::plain(&text))?;
            all.add(&issuer.name, certificate.slot().clone());
            self.acme.clients.push(ClientCertificate { name: issuer.name.clone(), certificate });
            self.acme.orders.push(order);
        }
        Ok(())
    }

    /// Checks that the names in hooks are those of clients or issuers.
    ///
    /// # Errors
    /// For the first that is not.
    fn check_hooks(&self) -> Result<(), Error> {
        let is_known = |h: &&Hook| {
            let mut all = self.issuers.iter().chain(self.clients.iter().map(|c| &c.issuer));
            h.client == BUILT_IN || all.any(|i| i.name.eq_ignore_ascii_case(&h.client))
        };
        match self.acme.hooks.iter().find(|h| !is_known(h)) {
            Some(h) => Err(Error {
                message: format!("acme client \"{}\" is not defined", h.client),
                ..h.place.clone()
            }),
            None => Ok(()),
        }
    }

    /// Adds an order, unless another server has the same.
    fn place(
        &mut self,
        order: Order,
        variables: Option<(&str, &str)>,
        place: &Error,
    ) -> Result<Ordered, Error> {
        let certificate = Certificate::of(&order).map_err(|message| Error { message, ..place.clone() })?;
        let name = format!("{} {}", order.issuer.name, order.file());
        let variables = variables.map(|(cert, key)| (cert.to_owned(), key.to_owned()));
        let issued = Issued { name, slot: certificate.slot().clone(), variables };
        let is_same = |o: &Order| Arc::ptr_eq(&o.issuer, &order.issuer) && o.file() == order.file();
        // Servers with the same names share one certificate, which the authority has to issue only once.
        if !self.acme.orders.iter().any(is_same) {
            self.acme.orders.push(order);
        }
        Ok(Ordered { certificate, issued })
    }

    /// Returns the order of an `acme_certificate`.
    fn wanted(&self, wanted: &Wanted, subject: &Subject<'_>, cx: &mut Scope<'_>) -> Result<Order, Error> {
        let at = |message: String| Error { message, ..wanted.place.clone() };
        let issuer = self.issuers.iter().find(|i| i.name == wanted.issuer);
        let issuer = issuer.ok_or_else(|| at(format!("acme issuer \"{}\" is not defined", wanted.issuer)))?;
        let mut identifiers = wanted.identifiers.clone();
        if identifiers.is_empty() {
            // As in nginx-acme, a dot before a name stands for `www.`, unless the challenge is by DNS, which
            // alone can prove a wildcard.
            let dot = if issuer.challenge == Challenge::Dns01 { Dot::Below } else { Dot::Www };
            identifiers = names_for("acme_certificate", dot, subject.names, &wanted.place, cx)?;
        }
        if identifiers.is_empty() {
            return Err(at("\"acme_certificate\": no identifiers found in \"server_name\"".to_owned()));
        }
        identifiers.iter().try_for_each(|i| provable(issuer, i)).map_err(at)?;
        Ok(Order { issuer: issuer.clone(), identifiers, key: wanted.key })
    }

    /// Returns the order of a server with `acme on`; `None` if it has no use for one: it listens without TLS, has a certificate,
    /// or no name.
    fn implied(&mut self, place: &Error, subject: &Subject<'_>) -> Result<Option<Order>, Error> {
        let at = |message: String| Error { message, ..place.clone() };
        if !takes_any(subject) {
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
                // These are the usual names of a server that takes all requests for unknown names.
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
        let issuer = self.default_issuer();
        identifiers.iter().try_for_each(|i| provable(&issuer, i)).map_err(at)?;
        Ok(Some(Order { issuer, identifiers, key: KeyKind::default() }))
    }

    /// Returns the issuer of `acme on`.
    fn default_issuer(&mut self) -> Arc<Issuer> {
        let known = |name: &str| self.issuers.iter().find(|i| i.name == name).cloned();
        if let Some(issuer) = known(DEFAULT).or_else(|| known(BUILT_IN)) {
            return issuer;
        }
        let by_dns = self.tables.program.is_some() || !self.tables.dns.is_empty();
        let challenge = match (by_dns, self.has_http) {
            (true, _) => Challenge::Dns01,
            (false, true) => Challenge::Either,
            // Without the port the authority could only fail to connect, which counts against its limits.
            (false, false) => Challenge::TlsAlpn01,
        };
        let issuer = Issuer {
            terms_accepted: true,
            challenge,
            state_path: Some(self.default_directory().join(BUILT_IN)),
            ..Issuer::new(BUILT_IN, LETS_ENCRYPT)
        };
        let issuer = Arc::new(self.completed(issuer));
        self.issuers.push(issuer.clone());
        issuer
    }
}

impl CertificateSource for Ordering {
    fn collect(&mut self, subject: &Subject<'_>, cx: &mut Scope<'_>) -> Result<(), Error> {
        let Uses::Clients(used) = &SETTINGS.of(subject.settings).uses else { return Ok(()) };
        for (client, place) in used {
            let names = names_for("acme", Dot::Below, subject.names, place, cx)?;
            self.add_names(client, names).map_err(|message| Error { message, ..place.clone() })?;
        }
        Ok(())
    }

    fn prepare(&mut self, cx: &mut Scope<'_>) {
        for server in std::mem::take(&mut cx.client_names) {
            self.grant(&server).unwrap_or_else(|error| cx.keep_late(error));
        }
        let ordered = self.order_for_clients(&mut cx.issued_to_clients);
        ordered.and_then(|()| self.check_hooks()).unwrap_or_else(|error| cx.keep_late(error));
    }

    fn choose(&mut self, subject: &Subject<'_>, cx: &mut Scope<'_>) -> Result<Chosen, Error> {
        let settings = SETTINGS.of(subject.settings);
        let mut own: Vec<Ordered> = Vec::new();
        for wanted in &settings.certificates.0 {
            let order = self.wanted(wanted, subject, cx)?;
            own.push(self.place(order, Some(VARIABLE_NAMES), &wanted.place)?);
        }
        if let (Uses::Default(place), true) = (&settings.uses, own.is_empty())
            && let Some(order) = self.implied(place, subject)?
        {
            own.push(self.place(order, None, place)?);
        }
        let first = own.first().map(|o| o.certificate.clone());
        let is_ordered = first.is_some();
        self.acme.of_servers.extend(first.map(|certificate| (subject.number, certificate)));
        let mut issued: Vec<Issued> = own.into_iter().map(|o| o.issued).collect();
        issued.extend(cx.issued_to_clients.issued(takes_any(subject), |client| uses(settings, client)));
        Ok(Chosen { issued, is_ordered })
    }

    fn finish(self: Box<Self>, front: u8, parts: &mut Parts) -> Needed {
        let Ordering { mut acme, clients, tables, has_http, directories, .. } = *self;
        let any = |port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        if acme.orders.iter().any(|o| o.issuer.answers_dns()) {
            let addrs = if tables.dns.is_empty() { vec![any(DNS_PORT)] } else { tables.dns };
            acme.dns = addrs.iter().flat_map(|a| [ListenAddr::Udp(*a), ListenAddr::Inet(*a)]).collect();
        }
        // Issuers in the language of nginx-acme leave the port to the servers of the configuration.
        if !has_http && clients.iter().any(|c| !c.identifiers.is_empty() && c.issuer.answers_http()) {
            acme.http = vec![ListenAddr::Inet(tables.http.unwrap_or(any(HTTP_PORT)))];
        }
        let addrs = acme.dns.iter().chain(&acme.http);
        let listeners = addrs.map(|addr| Listener::outside(addr.clone(), front)).collect();
        *parts.get_mut() = acme;
        Needed { listeners, directories }
    }
}

/// Begins the orders of a configuration.
pub(super) fn begin(issuing: Issuing<'_, '_>) -> Box<dyn CertificateSource> {
    Box::new(Ordering::new(issuing))
}

/// Meaning of a dot before a name of a server in its certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dot {
    /// The name and all names below it.
    Below,
    /// The name and the one with `www.` before it.
    Www,
}

/// Returns the names of a server that a certificate can have. Warns of patterns.
fn names_for(
    directive: &str,
    dot: Dot,
    names: &[ServerName],
    place: &Error,
    cx: &mut Scope<'_>,
) -> Result<Vec<Identifier>, Error> {
    let mut identifiers = Vec::new();
    for name in names {
        let text = String::from_utf8_lossy(&name.written()).into_owned();
        match name {
            ServerName::Regex(..) => {
                let message =
                    format!("\"{directive}\": regular expression \"{text}\" in \"server_name\" is ignored");
                cx.warnings.push(Error { level: Level::Warn, message, ..place.clone() });
            }
            ServerName::Exact(n) if n.is_empty() => {}
            _ => {
                let of_www = text.strip_prefix('.').filter(|_| dot == Dot::Www);
                let names =
                    of_www.map_or(vec![text.clone()], |rest| vec![rest.to_owned(), format!("www.{rest}")]);
                let added = names.iter().try_for_each(|name| add(&mut identifiers, name));
                added.map_err(|message| Error { message, ..place.clone() })?;
            }
        }
    }
    Ok(identifiers)
}

/// Checks that the challenge of an issuer can prove control of a name.
fn provable(issuer: &Issuer, identifier: &Identifier) -> Result<(), String> {
    match (issuer.challenge, identifier) {
        (Challenge::Dns01, Identifier::Ip(ip)) => {
            Err(format!("address \"{ip}\" is not supported: a challenge by DNS does not prove it"))
        }
        (Challenge::Dns01, _) => Ok(()),
        (_, name) if name.is_wildcard() => Err(format!(
            "wildcard identifier \"{name}\" is not supported: only a challenge by DNS proves it, see \"challenge dns-01\""
        )),
        _ => Ok(()),
    }
}

fn add(identifiers: &mut Vec<Identifier>, text: &str) -> Result<(), String> {
    // A name with a dot before it stands for the name itself and for all names below it.
    let both = match text.strip_prefix('.') {
        Some(rest) => vec![identifier(rest)?, identifier(&format!("*.{rest}"))?],
        None => vec![identifier(text)?],
    };
    for identifier in both {
        if !identifiers.contains(&identifier) {
            identifiers.push(identifier);
        }
    }
    Ok(())
}
