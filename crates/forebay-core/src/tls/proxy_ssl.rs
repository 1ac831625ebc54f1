//! Settings of TLS to upstreams that all front ends have (nginx: ngx_http_proxy_module, ngx_stream_proxy_module, proxy_ssl_*).
//! `client.rs` builds the TLS configuration from them.

use super::cache_settings::CertificateCache;
use super::conf_command::Commands;
use super::files::{Crl, FileNames, Passwords, PemFile};
use super::settings::{Ciphers, Protocols};
use crate::config::value::Number;
use crate::vars::Template;
use forebay_net::tls::ciphers;
use std::sync::Arc;

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
    "proxy_ssl_ciphers" => ciphers: Ciphers = Ciphers(Arc::new(ciphers::parse("DEFAULT")));
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
    /// `proxy_ssl_verify_depth`.
    "proxy_ssl_verify_depth" => verify_depth: Number = Number(1);
    /// `proxy_ssl_trusted_certificate`.
    "proxy_ssl_trusted_certificate" => trusted_certificate: PemFile = PemFile::default();
    /// `proxy_ssl_crl`.
    "proxy_ssl_crl" => crl: Crl = Crl::default();
    /// `proxy_ssl_conf_command`.
    "proxy_ssl_conf_command" => conf_command: Commands = Commands::default();
}
