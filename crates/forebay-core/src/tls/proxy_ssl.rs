//! Settings of TLS to upstreams that all front ends have (nginx: ngx_http_proxy_module, ngx_stream_proxy_module, proxy_ssl_*).
//! `client.rs` builds the TLS configuration from them.

use super::cache_settings::CertificateCache;
use super::conf_command::Commands;
use super::files::{Crl, FileNames, Passwords, PemFile};
use super::key_log::KeyLog;
use super::settings::{Ciphers, Protocols};
use crate::config::value::{Number, Setting, once};
use crate::config::{Context, Scope};
use crate::vars::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use std::sync::Arc;

/// Alternative names of which a certificate has to have one. Names with a colon are URIs, the others DNS names.
#[derive(Clone, Debug, Default)]
pub struct Names(pub Arc<[String]>);

impl<C: Context> Setting<C> for Names {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let mut names = Vec::new();
        for word in &d.args {
            let name =
                std::str::from_utf8(&word.text).ok().filter(|name| !name.is_empty() && name.is_ascii());
            let name =
                name.ok_or_else(|| cx.error_at(d, word, format!("invalid name \"{}\"", word.as_str())))?;
            names.push(name.to_owned());
        }
        Ok(Names(names.into()))
    }
}

crate::settings! {
    /// `proxy_ssl_certificate`.
    "proxy_ssl_certificate" => certificate: FileNames = FileNames::default();
    /// `proxy_ssl_certificate_key`.
    "proxy_ssl_certificate_key" => certificate_key: FileNames = FileNames::default();
    /// `proxy_ssl_certificate_cache`.
    "proxy_ssl_certificate_cache" => certificate_cache: CertificateCache = CertificateCache(None);
    /// `proxy_ssl_password_file`.
    "proxy_ssl_password_file" => password_file: Passwords = Passwords::default();
    /// `proxy_ssl_ciphers`.
    "proxy_ssl_ciphers" => ciphers: Ciphers = Ciphers::default();
    /// `proxy_ssl_protocols`.
    "proxy_ssl_protocols" => protocols: Protocols = Protocols { v12: true, v13: true };
    /// `proxy_ssl_name`.
    "proxy_ssl_name" => name: Option<Template> = None;
    /// `proxy_ssl_server_name`.
    "proxy_ssl_server_name" => server_name: bool = false;
    /// `proxy_ssl_session_reuse`.
    "proxy_ssl_session_reuse" => session_reuse: bool = true;
    /// `proxy_ssl_verify`.
    "proxy_ssl_verify" => verify: bool = false;
    /// `proxy_ssl_verify_names`.
    "proxy_ssl_verify_names" => verify_names: Names = Names::default();
    /// `proxy_ssl_verify_depth`.
    "proxy_ssl_verify_depth" => verify_depth: Number = Number(1);
    /// `proxy_ssl_trusted_certificate`.
    "proxy_ssl_trusted_certificate" => trusted_certificate: PemFile = PemFile::default();
    /// `proxy_ssl_crl`.
    "proxy_ssl_crl" => crl: Crl = Crl::default();
    /// `proxy_ssl_key_log`.
    "proxy_ssl_key_log" => key_log: KeyLog = KeyLog::default();
    /// `proxy_ssl_conf_command`.
    "proxy_ssl_conf_command" => conf_command: Commands = Commands::default();
}
