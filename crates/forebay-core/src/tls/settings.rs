//! Settings of TLS that all front ends have (nginx: ngx_http_ssl_module, ngx_stream_ssl_module). `server.rs` builds the TLS
//! configuration of a server from them.

use crate::config::value::{Number, Sec, Setting, first, once};
use crate::config::{Build, Context, Scope};
use crate::keyword;
use crate::vars::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_net::tls::{ciphers, sessions};
use std::sync::{Arc, LazyLock};
use zeroize::Zeroizing;

keyword! {
    /// `ssl_prefer_server_ciphers`: the side whose order of cipher suites counts. Without the directive the suites
    /// are ordered by their cost, see [`ciphers::by_cost`].
    pub enum Preference { Off = "off", On = "on", Unsaid = "", }
}

crate::settings! {
    "ssl_certificate" => certificate: Names = Names::default();
    "ssl_certificate_key" => certificate_key: Names = Names::default();
    "ssl_certificate_cache" => certificate_cache: Cache = Cache(None);
    "ssl_password_file" => password_file: Passwords = Passwords::default();
    "ssl_protocols" => protocols: Protocols = Protocols { v12: true, v13: true };
    "ssl_ciphers" => ciphers: Ciphers = Ciphers::default();
    "ssl_prefer_server_ciphers" => prefer_server_ciphers: Preference = Preference::Unsaid;
    "ssl_ecdh_curve" => ecdh_curve: Curves = Curves::default();
    "ssl_session_cache" => session_cache: SessionCache = SessionCache::None;
    "ssl_session_tickets" => session_tickets: bool = true;
    "ssl_session_ticket_key" => session_ticket_key: TicketKeys = TicketKeys::default();
    "ssl_session_timeout" => session_timeout: Sec = Sec(300);
    "ssl_verify_client" => verify_client: VerifyClient = VerifyClient::Off;
    "ssl_verify_depth" => verify_depth: Number = Number(1);
    "ssl_client_certificate" => client_certificate: PemFile = PemFile::default();
    "ssl_trusted_certificate" => trusted_certificate: PemFile = PemFile::default();
    "ssl_crl" => crl: Crl = Crl::default();
    "ssl_certificate_compression" => certificate_compression: bool = false;
    "ssl_reject_handshake" => reject_handshake: bool = false;
    "ssl_conf_command" => conf_command: Commands = Commands::default();
    "ssl_stapling" => stapling: bool = false;
    "ssl_stapling_file" => stapling_file: DerFile = DerFile::default();
    "ssl_stapling_responder" => stapling_responder: Option<Url> = None;
    "ssl_stapling_verify" => stapling_verify: bool = false;
    "ssl_ocsp" => ocsp: Ocsp = Ocsp::Off;
    "ssl_ocsp_responder" => ocsp_responder: Option<Url> = None;
    "ssl_ocsp_cache" => ocsp_cache: OcspCache = OcspCache::default();
}

keyword! {
    /// Certificates of a client's chain whose state is checked by OCSP.
    pub enum Ocsp { Off = "off", On = "on", Leaf = "leaf", }
}

/// The URL of a responder.
#[derive(Clone, Debug)]
pub struct Url(pub Vec<u8>);

impl<C: Context> Setting<C> for Option<Url> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(Some(Url(first(d).to_vec())))
    }
}

/// Splits `shared:NAME:SIZE` into the name and the size in bytes.
fn shared(text: &[u8]) -> Option<(&[u8], u64)> {
    let zone = text.strip_prefix(b"shared:")?;
    let at = memchr::memchr(b':', zone).filter(|at| *at > 0)?;
    let (name, size) = zone.split_at(at);
    Some((name, units::size(size.get(1..)?)?))
}

/// `ssl_ocsp_cache`: cache of certificate states; `None` if it is off.
#[derive(Clone, Debug, Default)]
pub struct OcspCache(pub Option<Arc<sessions::Sessions>>);

impl<C: Context> Setting<C> for OcspCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let text = first(d);
        if text == b"off" {
            return Ok(OcspCache(None));
        }
        let shown = String::from_utf8_lossy(text);
        let Some((name, size)) = shared(text) else {
            return Err(cx.error(d, format!("invalid OCSP cache \"{shown}\"")));
        };
        if size < MIN_ZONE {
            return Err(cx.error(d, format!("OCSP cache \"{shown}\" is too small")));
        }
        // The prefix keeps this zone apart from a session cache of the same name.
        let name = [b"ocsp:", name].concat();
        Ok(OcspCache(Some(sessions::zone(&name, size as usize))))
    }
}

keyword! {
    /// `ssl_verify_client`: whether clients are asked for certificates.
    pub enum VerifyClient { Off = "off", On = "on", Optional = "optional", OptionalNoCa = "optional_no_ca", }
}

/// File names with their positions in the configuration. They may contain variables.
#[derive(Clone, Debug, Default)]
pub struct Names(pub Vec<Name>);

/// One file name with its position.
#[derive(Clone, Debug)]
pub struct Name {
    /// Name as written.
    pub text: Vec<u8>,
    /// Name with its variables compiled.
    pub template: Template,
    /// Error without a message at the position of the name.
    pub place: Error,
}

impl Name {
    /// Makes an error with this message at the position of the name.
    pub fn error(&self, message: String) -> Error {
        Error { message, ..self.place.clone() }
    }
}

impl<C: Context> Setting<C> for Names {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut names = previous.unwrap_or_default();
        let Some(word) = d.args.first() else { return Ok(names) };
        let template = if word.text.starts_with(b"data:") && !word.text.contains(&b'$') {
            Template::constant(&word.text)
        } else {
            cx.template(d, word)?
        };
        names.0.push(Name { text: word.text.clone(), template, place: cx.error(d, "") });
        Ok(names)
    }
}

/// `ssl_certificate_cache`: `(max entries, inactive seconds, valid seconds)`, or `None` for `off`.
#[derive(Clone, Copy, Debug)]
pub struct Cache(pub Option<(usize, u64, u64)>);

impl<C: Context> Setting<C> for Cache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d) == b"off" && d.args.len() == 1 {
            return Ok(Cache(None));
        }
        let (mut max, mut inactive, mut valid) = (0, 10, 60);
        for w in &d.args {
            let text = w.as_str();
            let (name, value) = text.split_once('=').unwrap_or_default();
            let read = match name {
                "max" => units::number(value.as_bytes()).filter(|n| *n > 0).map(|n| max = n as usize),
                "inactive" => units::time_secs(value.as_bytes()).map(|n| inactive = n),
                "valid" => units::time_secs(value.as_bytes()).map(|n| valid = n),
                _ => None,
            };
            read.ok_or_else(|| cx.error_at(d, w, format!("invalid parameter \"{text}\"")))?;
        }
        if max == 0 {
            let name = d.name.as_str();
            return Err(cx.error(d, format!("\"{name}\" must have the \"max\" parameter")));
        }
        Ok(Cache(Some((max, inactive, valid))))
    }
}

/// Passwords for encrypted private keys.
#[derive(Clone, Default)]
pub struct Passwords(pub Arc<Vec<Zeroizing<Vec<u8>>>>);

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passwords")
    }
}

fn read(d: &Directive, cx: &mut Build<'_>) -> Result<Arc<[u8]>, Error> {
    let path = cx.conf_path(first(d));
    match cx.files.read_shared(&path) {
        Ok((_, bytes)) => Ok(bytes),
        Err(e) => {
            let e = forebay_sys::errno::errno_text(
                rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
            );
            Err(cx.error(d, format!("open() \"{}\" failed {e}", path.display())))
        }
    }
}

impl<C: Context> Setting<C> for Passwords {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(Passwords(Arc::new(forebay_net::tls::pem::passwords(&read(d, cx)?))))
    }
}

/// Enabled versions of TLS.
#[derive(Clone, Copy, Debug)]
pub struct Protocols {
    /// TLS 1.2.
    pub v12: bool,
    /// TLS 1.3.
    pub v13: bool,
}

impl<C: Context> Setting<C> for Protocols {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut p = previous.unwrap_or(Protocols { v12: false, v13: false });
        let mut old = Vec::new();
        for w in &d.args {
            match w.text.to_ascii_lowercase().as_slice() {
                b"tlsv1.2" => p.v12 = true,
                b"tlsv1.3" => p.v13 = true,
                b"sslv2" | b"sslv3" | b"tlsv1" | b"tlsv1.1" => old.push(w.as_str().into_owned()),
                _ => return Err(cx.error_at(d, w, format!("invalid value \"{}\"", w.as_str()))),
            }
        }
        if !p.v12 && !p.v13 {
            let text =
                format!("none of the protocols \"{}\" is served, TLSv1.2 and TLSv1.3 are", old.join(" "));
            return Err(cx.error(d, text));
        }
        if !old.is_empty() {
            cx.warn(d, format!("protocols that are not safe are not served: {}", old.join(" ")));
        }
        Ok(p)
    }
}

/// Cipher suites of TLS 1.2.
#[derive(Clone, Debug)]
pub struct Ciphers(pub Arc<ciphers::List>);

impl Default for Ciphers {
    /// Returns the list of servers without `ssl_ciphers`. It is parsed once and shared.
    fn default() -> Ciphers {
        static ALL: LazyLock<Ciphers> =
            LazyLock::new(|| Ciphers(Arc::new(ciphers::parse("HIGH:!aNULL:!MD5"))));
        ALL.clone()
    }
}

impl<C: Context> Setting<C> for Ciphers {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let text = String::from_utf8_lossy(first(d)).into_owned();
        let list = ciphers::parse(&text);
        if list.is_empty() {
            return Err(cx.error(
                d,
                format!(
                    "SSL_CTX_set_cipher_list(\"{text}\") failed (SSL: error:0A0000B9:SSL routines::no cipher match)"
                ),
            ));
        }
        if !list.unserved.is_empty() {
            let text = format!("ciphers that are not served: {}", list.unserved.join(":"));
            cx.warn(d, text);
        }
        Ok(Ciphers(Arc::new(list)))
    }
}

/// Groups for key exchange.
#[derive(Clone)]
pub struct Curves(pub Arc<Vec<&'static dyn rustls::crypto::SupportedKxGroup>>);

impl std::fmt::Debug for Curves {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|g| g.name())).finish()
    }
}

impl Default for Curves {
    /// Returns the groups of servers without `ssl_ecdh_curve`. They are made once and shared.
    fn default() -> Curves {
        static AUTO: LazyLock<Curves> = LazyLock::new(|| Curves(Arc::new(ciphers::default_groups())));
        AUTO.clone()
    }
}

impl<C: Context> Setting<C> for Curves {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let text = String::from_utf8_lossy(first(d)).into_owned();
        let mut list = ciphers::groups(&text).map_err(|name| {
            cx.error(
                d,
                format!(
                    "SSL_CTX_set1_curves_list(\"{text}\") failed (SSL: error:0A080106:SSL routines::passed \
                     invalid argument:group '{name}' cannot be set)"
                ),
            )
        })?;
        if list.served.is_empty() {
            // Unlike nginx, which refuses to start: a server with other curves is better than none.
            list.served = ciphers::default_groups();
            cx.warn(d, format!("none of the curves \"{text}\" is served, the default ones are used"));
        } else if !list.unserved.is_empty() {
            cx.warn(d, format!("curves that are not served: {}", list.unserved.join(":")));
        }
        Ok(Curves(Arc::new(list.served)))
    }
}

/// `ssl_session_cache`: storage of TLS sessions.
#[derive(Clone, Debug)]
pub enum SessionCache {
    /// No storage, but clients are led to believe that sessions may be reused.
    None,
    /// No storage, and clients learn that sessions cannot be reused.
    Off,
    /// Storage in this process.
    Kept(Arc<sessions::Sessions>),
}

/// Memory for a session of `builtin`, whose size is a number of sessions, bytes.
const BUILTIN_SESSION: u64 = 512;

/// Smallest size of a zone, bytes.
const MIN_ZONE: u64 = 8 * 4096;

impl SessionCache {
    /// Reads one word of the directive.
    ///
    /// # Errors
    /// In nginx's words.
    fn of(text: &[u8]) -> Result<SessionCache, String> {
        let kept = |name: &[u8], size: u64| SessionCache::Kept(sessions::zone(name, size as usize));
        let shown = || String::from_utf8_lossy(text).into_owned();
        let cache = match text {
            b"off" => Some(SessionCache::Off),
            b"none" => Some(SessionCache::None),
            b"builtin" => Some(kept(b"builtin", 20480 * BUILTIN_SESSION)),
            _ => None,
        };
        if let Some(cache) = cache {
            return Ok(cache);
        }
        if let Some(n) = text.strip_prefix(b"builtin:") {
            let n = units::number(n).filter(|n| *n > 0 && *n < 1 << 24);
            let cache = n.map(|n| kept(b"builtin", n * BUILTIN_SESSION));
            return cache.ok_or_else(|| format!("invalid session cache \"{}\"", shown()));
        }
        match shared(text) {
            Some((name, size)) if size >= MIN_ZONE => Ok(kept(name, size)),
            Some(_) => Err(format!("session cache \"{}\" is too small", shown())),
            None => Err(format!("invalid session cache \"{}\"", shown())),
        }
    }
}

impl<C: Context> Setting<C> for SessionCache {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut cache = previous;
        for w in &d.args {
            cache = Some(SessionCache::of(&w.text).map_err(|message| cx.error_at(d, w, message))?);
        }
        Ok(cache.unwrap_or(SessionCache::None))
    }
}

/// Keys that encrypt session tickets; the contents of the files.
#[derive(Clone, Default)]
pub struct TicketKeys(pub Vec<Arc<Zeroizing<Vec<u8>>>>);

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketKeys")
    }
}

impl<C: Context> Setting<C> for TicketKeys {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut keys = previous.unwrap_or_default();
        let bytes = read(d, cx)?;
        if sessions::TicketKey::new(&bytes).is_none() {
            let path = cx.conf_path(first(d));
            return Err(cx.error(d, format!("\"{}\" must be 48 or 80 bytes", path.display())));
        }
        keys.0.push(Arc::new(Zeroizing::new(bytes.to_vec())));
        Ok(keys)
    }
}

/// Returns OpenSSL's error text for a file that cannot be opened.
pub fn bio_failed(path: &std::path::Path, e: &std::io::Error) -> String {
    let code = e.raw_os_error().unwrap_or(5);
    let text = forebay_sys::errno::strerror(code);
    let path = path.display();
    let tail = if code == 2 { " error:10000080:BIO routines::no such file" } else { "" };
    format!(
        "BIO_new_file() failed (SSL: error:8{code:07X}:system library::{text}:calling fopen({path}, r){tail})"
    )
}

/// Certificates of a file.
#[derive(Clone, Debug, Default)]
pub struct PemFile(pub Arc<Vec<rustls::pki_types::CertificateDer<'static>>>);

impl<C: Context> Setting<C> for PemFile {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d).is_empty() {
            return Ok(PemFile::default());
        }
        let path = cx.conf_path(first(d));
        let failed = |what: String| format!("cannot load certificate \"{}\": {what}", path.display());
        let certificates = match cx.files.read(&path) {
            Ok((_, text)) => forebay_net::tls::pem::certificates(text),
            Err(e) => return Err(cx.error(d, failed(bio_failed(&path, &e)))),
        };
        if certificates.is_empty() {
            let what = "PEM_read_bio_X509() failed (SSL: error:0480006C:PEM routines::no start line)";
            return Err(cx.error(d, failed(what.to_owned())));
        }
        Ok(PemFile(Arc::new(certificates)))
    }
}

/// Revocation lists, DER.
#[derive(Clone, Debug, Default)]
pub struct Crl(pub Arc<Vec<Vec<u8>>>);

impl<C: Context> Setting<C> for Crl {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d).is_empty() {
            return Ok(Crl::default());
        }
        let path = cx.conf_path(first(d));
        let failed = |what: String| format!("cannot load CRL \"{}\": {what}", path.display());
        let lists: Vec<Vec<u8>> = match cx.files.read(&path) {
            Ok((_, text)) => {
                let lists = forebay_net::tls::pem::blocks(text).into_iter().filter(|b| b.label == "X509 CRL");
                lists.map(|b| b.der.to_vec()).collect()
            }
            Err(e) => return Err(cx.error(d, failed(bio_failed(&path, &e)))),
        };
        if lists.is_empty() {
            let what = "PEM_read_bio_X509_CRL() failed (SSL: error:0480006C:PEM routines::no start line)";
            return Err(cx.error(d, failed(what.to_owned())));
        }
        // Skipping a broken list would accept certificates that it revokes.
        if !lists.iter().all(|l| forebay_net::tls::crl::is_list(l)) {
            let what = "PEM_read_bio_X509_CRL() failed (SSL: error:0688010A:asn1 encoding routines::nested asn1 error:\
                        Type=X509_CRL error:0488000D:PEM routines::ASN1 lib)";
            return Err(cx.error(d, failed(what.to_owned())));
        }
        Ok(Crl(Arc::new(lists)))
    }
}

/// Content of a DER file, empty without the directive.
#[derive(Clone, Debug, Default)]
pub struct DerFile(pub Arc<Vec<u8>>);

impl<C: Context> Setting<C> for DerFile {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let path = cx.conf_path(first(d));
        match cx.files.read(&path) {
            Ok((_, bytes)) if !forebay_net::tls::ocsp_message::is_response(bytes) => Err(cx.error(
                d,
                format!(
                    "d2i_OCSP_RESPONSE_bio(\"{}\") failed (SSL: error:0688010A:asn1 encoding routines::nested asn1 \
                     error:Type=OCSP_RESPONSE)",
                    path.display()
                ),
            )),
            Ok((_, bytes)) => Ok(DerFile(Arc::new(bytes.to_vec()))),
            Err(e) => {
                let text = bio_failed(&path, &e);
                let text =
                    text.replacen("BIO_new_file()", &format!("BIO_new_file(\"{}\")", path.display()), 1);
                Err(cx.error(d, text))
            }
        }
    }
}

/// Supported commands of `ssl_conf_command`.
#[derive(Clone, Debug, Default)]
pub struct Commands {
    /// `Ciphersuites`: the suites of TLS 1.3.
    pub suites13: Option<Vec<rustls::SupportedCipherSuite>>,
    /// `CipherString`.
    pub ciphers: Option<Arc<ciphers::List>>,
    /// `Groups`, `Curves`.
    pub groups: Option<Curves>,
    /// TLS 1.2 by `Protocol`, `MinProtocol` or `MaxProtocol`; `None` if no command sets it.
    pub v12: Option<bool>,
    /// TLS 1.3, likewise.
    pub v13: Option<bool>,
    /// `Options ServerPreference`.
    pub server_preference: Option<bool>,
    /// `Options SessionTicket`.
    pub tickets: Option<bool>,
    /// `Certificate`, which replaces `ssl_certificate`.
    pub certificate: Option<Name>,
    /// `PrivateKey`, which replaces `ssl_certificate_key`.
    pub key: Option<Name>,
}

/// Result of a command.
enum Applied {
    Yes,
    /// The command is known, but does nothing here.
    NoEffect,
    BadValue,
    Unknown,
}

impl<C: Context> Setting<C> for Commands {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut c = previous.unwrap_or_default();
        let Some(word) = d.args.get(1) else { return Ok(c) };
        let (name, value) = (String::from_utf8_lossy(first(d)), word.as_str());
        let file = || Name {
            text: word.text.clone(),
            template: Template::constant(&word.text),
            place: cx.error(d, ""),
        };
        let error = match c.apply(&name.to_ascii_lowercase(), &value, file) {
            Applied::Yes => return Ok(c),
            Applied::NoEffect => {
                cx.warn(d, format!("\"{name}\" of \"{}\" has no effect", d.name.as_str()));
                return Ok(c);
            }
            Applied::BadValue => "0A000180:SSL routines::bad value".to_owned(),
            Applied::Unknown => format!("0A000182:SSL routines::unknown cmd name:cmd={name}"),
        };
        Err(cx.error(d, format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: error:{error})")))
    }
}

impl Commands {
    /// Applies a command, whose name is in lower case. `file` makes its value the name of a file.
    fn apply(&mut self, name: &str, value: &str, file: impl FnOnce() -> Name) -> Applied {
        let applied = match name {
            "ciphersuites" => ciphers::suites13(value).ok().map(|suites| self.suites13 = Some(suites)),
            "cipherstring" => self.set_ciphers(value),
            "groups" | "curves" | "ecdhparameters" => self.set_groups(value),
            "minprotocol" => self.set_oldest(value),
            "maxprotocol" => self.set_newest(value),
            "protocol" => each(value, |version, on| self.set_version(version, on)),
            "options" => each(value, |option, on| self.set_option(option, on)),
            "certificate" => {
                self.certificate = Some(file());
                Some(())
            }
            "privatekey" => {
                self.key = Some(file());
                Some(())
            }
            "signaturealgorithms"
            | "clientsignaturealgorithms"
            | "dhparameters"
            | "recordpadding"
            | "numtickets" => return Applied::NoEffect,
            _ => return Applied::Unknown,
        };
        if applied.is_some() { Applied::Yes } else { Applied::BadValue }
    }

    fn set_ciphers(&mut self, value: &str) -> Option<()> {
        let list = ciphers::parse(value);
        if list.is_empty() {
            return None;
        }
        self.ciphers = Some(Arc::new(list));
        Some(())
    }

    fn set_groups(&mut self, value: &str) -> Option<()> {
        let list = ciphers::groups(value).ok().filter(|l| !l.served.is_empty())?;
        self.groups = Some(Curves(Arc::new(list.served)));
        Some(())
    }

    fn set_oldest(&mut self, value: &str) -> Option<()> {
        match value {
            "TLSv1.3" => self.v12 = Some(false),
            "TLSv1.2" | "TLSv1.1" | "TLSv1" | "SSLv3" | "None" => self.v12 = self.v12.or(Some(true)),
            _ => return None,
        }
        Some(())
    }

    fn set_newest(&mut self, value: &str) -> Option<()> {
        match value {
            "TLSv1.2" => self.v13 = Some(false),
            "TLSv1.3" | "None" => {}
            _ => return None,
        }
        Some(())
    }

    fn set_version(&mut self, version: &str, on: bool) -> Option<()> {
        match version {
            "TLSv1.2" => self.v12 = Some(on),
            "TLSv1.3" => self.v13 = Some(on),
            "ALL" => (self.v12, self.v13) = (Some(on), Some(on)),
            "TLSv1.1" | "TLSv1" | "SSLv3" | "SSLv2" => {}
            _ => return None,
        }
        Some(())
    }

    fn set_option(&mut self, option: &str, on: bool) -> Option<()> {
        match option.to_ascii_lowercase().as_str() {
            "serverpreference" => self.server_preference = Some(on),
            "sessionticket" => self.tickets = Some(on),
            other if OPTIONS_WITHOUT_EFFECT.contains(&other) => {}
            _ => return None,
        }
        Some(())
    }
}

/// Options that rustls always or never has, or that mean nothing to it.
const OPTIONS_WITHOUT_EFFECT: [&str; 20] = [
    "prioritizechacha",
    "noresumptiononrenegotiation",
    "unsaferenegotiation",
    "norenegotiation",
    "compression",
    "emptyfragments",
    "bugs",
    "dhsingle",
    "ecdhsingle",
    "unsafelegacyrenegotiation",
    "encryptthenmac",
    "allownodhekex",
    "middleboxcompat",
    "antireplay",
    "extendedmastersecret",
    "cansedata",
    "ktls",
    "strictcertcheck",
    "txcertificatecompression",
    "rxcertificatecompression",
];

/// Calls `f` with each word of a list and whether it is switched on: `-` before it means off, `+` or nothing on. Returns
/// `None` once `f` does.
fn each(list: &str, mut f: impl FnMut(&str, bool) -> Option<()>) -> Option<()> {
    list.split(',').try_for_each(|word| match word.strip_prefix('-') {
        Some(word) => f(word, false),
        None => f(word.trim_start_matches('+'), true),
    })
}
