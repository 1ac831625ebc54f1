//! `ssl_conf_command` and `proxy_ssl_conf_command`: commands of OpenSSL's configuration (SSL_CONF_cmd).

use super::files::FileName;
use super::settings::Curves;
use crate::config::value::{Setting, first};
use crate::config::{Context, Scope};
use crate::vars::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_net::tls::ciphers;
use std::sync::Arc;

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
    pub certificate: Option<FileName>,
    /// `PrivateKey`, which replaces `ssl_certificate_key`.
    pub key: Option<FileName>,
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
        let file = || FileName {
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
    fn apply(&mut self, name: &str, value: &str, file: impl FnOnce() -> FileName) -> Applied {
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
