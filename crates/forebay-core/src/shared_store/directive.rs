//! `shared_store redis://HOST:PORT/DB ...`.

use super::calls::Zones;
use super::listen::listen;
use super::messages::{Tells, Topic};
use super::task::keep;
use super::{Link, Shares};
use crate::config::{Context, Scope};
use crate::tasks::{Log, Tasks};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_net::tls::pem::{self, PemError};
use forebay_net::tls::sessions::share_ticket_keys;
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::runtime::Handle;
use zeroize::Zeroizing;

/// Longest time that a request waits for the store, unless `timeout=` gives another.
const TIMEOUT: Duration = Duration::from_millis(5);
/// Port of Redis.
const PORT: u16 = 6379;

/// Settings of the store.
pub struct Settings {
    /// Name or address.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) database: u32,
    pub(super) user: Option<String>,
    pub(super) password: Option<Zeroizing<Vec<u8>>>,
    /// Unset without TLS.
    pub(super) tls: Option<Tls>,
    /// Begin of the names of all keys.
    pub(super) prefix: Vec<u8>,
    /// Longest time that a request waits for the store (`exact`).
    pub timeout: Duration,
    /// Number of replicas to assume until the store has counted them.
    pub(super) replicas: u32,
    /// Set: keys for session tickets are in the store, too.
    pub(super) tickets: Option<SharedTickets>,
}

/// Sealing of the keys for session tickets in the store.
#[derive(Default)]
pub(super) struct SharedTickets {
    /// Content of the file that the keys for sealing are derived from; `None`: those of the servers.
    pub(super) file: Option<Zeroizing<Vec<u8>>>,
}

/// Shortest content of the file of [`SharedTickets`], bytes.
const SHORTEST_SECRET: usize = 16;

/// Verification of the store's certificate.
#[derive(Debug, Default)]
pub(super) struct Tls {
    /// Authorities to trust; `None`: those of the system.
    pub(super) authorities: Option<Vec<CertificateDer<'static>>>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password.
        f.debug_struct("Settings").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl Settings {
    /// Returns the address as the log shows it.
    pub(super) fn place(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        format!("{scheme}://{open}{}{close}:{}", self.host, self.port)
    }
}

/// The shared store of a configuration, with the zones that use it.
#[derive(Default)]
pub struct SharedStore {
    settings: Option<Arc<Settings>>,
    zones: Vec<Arc<dyn Shares>>,
    /// Errors of directives that need a store, in case that there is none.
    needed: Vec<Error>,
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl SharedStore {
    /// Adds a zone. `missing` is the error if there is no store.
    pub fn add(&mut self, zone: Arc<dyn Shares>, missing: Error) {
        self.zones.push(zone);
        self.needed.push(missing);
    }

    /// Notes a directive that needs a store. `missing` is the error if there is none.
    pub fn need(&mut self, missing: Error) {
        self.needed.push(missing);
    }

    /// Returns the settings, if there is a store.
    pub fn settings(&self) -> Option<&Arc<Settings>> {
        self.settings.as_ref()
    }

    /// Returns the errors of directives that need a store and have none.
    pub fn missing(&mut self) -> Vec<Error> {
        if self.settings.is_some() { Vec::new() } else { std::mem::take(&mut self.needed) }
    }

    /// Starts the tasks that use the store, if there is a store. `telling` are the zones whose replicas tell each other what they
    /// know.
    pub fn start(&self, telling: Vec<Arc<dyn Tells>>, tasks: &mut Tasks, tokio: &Handle, log: &Log) {
        Link::of_process().used.store(self.settings.is_some(), Relaxed);
        if self.settings.as_ref().is_none_or(|s| s.tickets.is_none()) {
            share_ticket_keys(Vec::new());
        }
        if let Some(settings) = &self.settings {
            for topic in [Topic::Sessions, Topic::Purges] {
                let zones: Vec<_> = telling.iter().filter(|zone| zone.topic() == topic).cloned().collect();
                if !zones.is_empty() {
                    let task = listen(settings.clone(), topic, zones, Link::of_process(), log.clone());
                    tasks.spawn(tokio, "reading messages of the shared store", task);
                }
            }
            let zones = Zones { limits: self.zones.clone(), telling };
            let task = keep(settings.clone(), zones, Link::of_process(), log.clone());
            tasks.spawn(tokio, "asking the shared store", task);
        }
    }
}

/// Tables of a context, which may have a shared store.
pub trait Stores {
    /// Returns the store. `None`: the context has no `shared_store`.
    fn shared_store(&mut self) -> Option<&mut SharedStore>;
}

/// Reads `shared_store`.
///
/// # Errors
/// With the place of the parameter.
pub fn directive<C>(d: &Directive, cx: &mut Scope<'_, C>) -> Result<(), Error>
where
    C: Context,
    C::Tables: Stores,
{
    if cx.tables.shared_store().is_some_and(|store| store.settings.is_some()) {
        return Err(cx.error(d, "\"shared_store\" directive is duplicate"));
    }
    let Some((url, parameters)) = d.args.split_first() else { return Ok(()) };
    let mut settings = address(url).map_err(|what| cx.error_at(d, url, what))?;
    for w in parameters {
        parameter(&mut settings, w, d, cx)?;
    }
    if settings.user.is_some() && settings.password.is_none() {
        return Err(cx.error(d, "\"shared_store\" has a \"user\" but no \"password\""));
    }
    if let Some(store) = cx.tables.shared_store() {
        store.settings = Some(Arc::new(settings));
    }
    Ok(())
}

/// Reads `redis://HOST:PORT/DB`. The error says what is wrong.
fn address(w: &Word) -> Result<Settings, String> {
    let text = w.as_str();
    let invalid = |what: &str| format!("{what} in \"{text}\" of \"shared_store\"");
    let (tls, rest) = match (text.strip_prefix("redis://"), text.strip_prefix("rediss://")) {
        (Some(rest), _) => (None, rest),
        (_, Some(rest)) => (Some(Tls::default()), rest),
        _ => return Err(invalid("no \"redis://\" or \"rediss://\"")),
    };
    if rest.contains('@') {
        // Not with the text: it may have the password.
        let what = "the address of \"shared_store\" must not have a user or password, use \"user=\" and \
                    \"password=file:PATH\"";
        return Err(what.to_owned());
    }
    let (place, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match place.strip_prefix('[').and_then(|p| p.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(|| invalid("invalid port"))?)),
        None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(invalid("no host"));
    }
    let port = match port {
        None => PORT,
        Some(port) => port.parse().ok().filter(|p| *p != 0).ok_or_else(|| invalid("invalid port"))?,
    };
    let database = if database.is_empty() { Ok(0) } else { database.parse() };
    Ok(Settings {
        host: host.to_owned(),
        port,
        database: database.map_err(|_| invalid("invalid number of the database"))?,
        user: None,
        password: None,
        tls,
        prefix: b"forebay:".to_vec(),
        timeout: TIMEOUT,
        replicas: 1,
        tickets: None,
    })
}

fn parameter<C: Context>(
    s: &mut Settings,
    w: &Word,
    d: &Directive,
    cx: &mut Scope<'_, C>,
) -> Result<(), Error> {
    let (name, value) = crate::config::value::split_parameter(&w.text);
    let invalid = |what: &str| cx.error_at(d, w, format!("invalid {what} \"{}\"", w.as_str()));
    match (name, value) {
        (b"tls", None) => {
            s.tls.get_or_insert_default();
        }
        (b"session_tickets", None) => {
            s.tickets.get_or_insert_default();
        }
        (b"session_tickets", Some(secret)) => {
            let path = secret.strip_prefix(b"file:").ok_or_else(|| invalid("file"))?;
            let secret = Zeroizing::new(read(path, w, d, cx)?);
            if secret.len() < SHORTEST_SECRET {
                let path = String::from_utf8_lossy(path);
                let text = format!("\"{path}\" must have at least {SHORTEST_SECRET} bytes, best random ones");
                return Err(cx.error_at(d, w, text));
            }
            s.tickets = Some(SharedTickets { file: Some(secret) });
        }
        (b"user", Some(user)) => s.user = Some(String::from_utf8_lossy(user).into_owned()),
        (b"password", Some(password)) => {
            let Some(path) = password.strip_prefix(b"file:") else {
                // Not with the word: it is the password.
                let what = "the password of \"shared_store\" must be in a file: password=file:PATH";
                return Err(cx.error_at(d, w, what));
            };
            let bytes = Zeroizing::new(read(path, w, d, cx)?);
            let first = pem::passwords(&bytes).into_iter().next();
            let empty = || {
                cx.error_at(d, w, format!("there is no password in \"{}\"", String::from_utf8_lossy(path)))
            };
            s.password = Some(first.ok_or_else(empty)?);
        }
        (b"ca", Some(path)) => {
            let certificates = pem::all_certificates(&read(path, w, d, cx)?).map_err(|e| {
                let path = String::from_utf8_lossy(path);
                let message = match e {
                    PemError::None => format!("there is no certificate in \"{path}\""),
                    e => format!("cannot load certificate \"{path}\": {e}"),
                };
                cx.error_at(d, w, message)
            })?;
            s.tls.get_or_insert_default().authorities = Some(certificates);
        }
        (b"prefix", Some(prefix)) => s.prefix = prefix.to_vec(),
        (b"timeout", Some(time)) => {
            let time = units::duration_ms(time).filter(|t| !t.is_zero());
            s.timeout = time.ok_or_else(|| invalid("timeout"))?;
        }
        (b"replicas", Some(n)) => {
            let n = units::number(n).and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            s.replicas = n.ok_or_else(|| invalid("number of replicas"))?;
        }
        _ => return Err(invalid("parameter")),
    }
    Ok(())
}

/// Reads a file of the configuration.
fn read<C: Context>(path: &[u8], w: &Word, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Vec<u8>, Error> {
    let path = cx.conf_path(path);
    let read = cx.files.read(&path).map(|(_, bytes)| bytes.to_vec());
    read.map_err(|e| {
        let why = forebay_sys::errno::errno(&e);
        cx.error_at(d, w, format!("open() \"{}\" failed ({why})", path.display()))
    })
}
