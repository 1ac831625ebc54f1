//! Settings of TLS that all front ends have (nginx: ngx_http_ssl_module, ngx_stream_ssl_module). `loader.rs` builds the TLS
//! settings of a server from them. Values that are files are in `files.rs`, caches in `cache_settings.rs`.

use super::cache_settings::{CertificateCache, OcspCache, SessionCache};
use super::conf_command::Commands;
use super::files::{Crl, DerFile, DhFile, FileNames, Passwords, PemFile, TicketKeys};
use super::key_log::KeyLog;
use crate::config::value::{Number, OptionalSetting, Sec, Setting, first, once};
use crate::config::{Context, Scope};
use crate::keyword;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_net::tls::ciphers;
use std::sync::{Arc, LazyLock};

keyword! {
    /// `ssl_prefer_server_ciphers`: the side whose order of cipher suites counts. Without the directive the suites
    /// are ordered by their cost, see [`ciphers::by_cost`].
    pub enum Preference { Off = "off", On = "on", Unsaid = "", }
}

crate::settings! {
    "ssl_certificate" => certificate: FileNames = FileNames::default();
    "ssl_certificate_key" => certificate_key: FileNames = FileNames::default();
    "ssl_certificate_cache" => certificate_cache: CertificateCache = CertificateCache(None);
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
    "ssl_verify_depth" => verify_depth: Number = Number(VERIFY_DEPTH);
    "ssl_client_certificate" => client_certificate: PemFile = PemFile::default();
    "ssl_trusted_certificate" => trusted_certificate: PemFile = PemFile::default();
    "ssl_crl" => crl: Crl = Crl::default();
    "ssl_dhparam" => dhparam: DhFile = DhFile;
    "ssl_certificate_compression" => certificate_compression: bool = false;
    "ssl_reject_handshake" => reject_handshake: bool = false;
    "ssl_conf_command" => conf_command: Commands = Commands::default();
    "ssl_stapling" => stapling: bool = false;
    "ssl_stapling_file" => stapling_file: DerFile = DerFile::default();
    "ssl_stapling_responder" => stapling_responder: Option<Url> = None;
    "ssl_stapling_verify" => stapling_verify: bool = false;
    "ssl_ocsp" => ocsp: Ocsp = Ocsp::Off;
    "ssl_ocsp_responder" => ocsp_responder: Option<Url> = None;
    "ssl_key_log" => key_log: KeyLog = KeyLog::default();
    "ssl_keylog_file" => keylog_file: KeyLog = KeyLog::default();
    "ssl_ocsp_cache" => ocsp_cache: OcspCache = OcspCache::default();
}

/// Default of `ssl_verify_depth`.
pub(super) const VERIFY_DEPTH: u64 = 1;

keyword! {
    /// Certificates of a client's chain whose state is checked by OCSP.
    pub enum Ocsp { Off = "off", On = "on", Leaf = "leaf", }
}

/// The URL of a responder.
#[derive(Clone, Debug)]
pub struct Url(pub Vec<u8>);

impl<C: Context> OptionalSetting<C> for Url {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(Url(first(d).to_vec()))
    }
}

keyword! {
    /// `ssl_verify_client`: whether clients are asked for certificates.
    pub enum VerifyClient { Off = "off", On = "on", Optional = "optional", OptionalNoCa = "optional_no_ca", }
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
            LazyLock::new(|| Ciphers(Arc::new(ciphers::parse("HIGH:!aNULL:!MD5").unwrap_or_default())));
        ALL.clone()
    }
}

impl<C: Context> Setting<C> for Ciphers {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let text = String::from_utf8_lossy(first(d)).into_owned();
        let list = ciphers::parse(&text).map_err(|refused| {
            cx.error(d, format!("SSL_CTX_set_cipher_list(\"{text}\") failed (SSL: {refused})"))
        })?;
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
