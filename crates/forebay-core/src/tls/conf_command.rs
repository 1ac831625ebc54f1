//! `ssl_conf_command` and `proxy_ssl_conf_command`: commands of OpenSSL's configuration (SSL_CONF_cmd).

use super::files::{FileName, check_dh_file};
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
    /// `NumTickets`: tickets of TLS 1.3 after a handshake.
    pub num_tickets: Option<u8>,
    /// `Certificate`. With `PrivateKey` it replaces the certificate with a key of the same kind.
    pub certificate: Option<FileName>,
    /// `PrivateKey`.
    pub key: Option<FileName>,
}

/// Result of a command.
enum Applied {
    Yes,
    /// The command is known, but does nothing here.
    NoEffect,
    /// The command is known and not supported: what to use instead.
    Unsupported(&'static str),
    BadValue,
    /// Error of OpenSSL before that of the value.
    Failed(String),
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
        let lower = name.to_ascii_lowercase();
        if lower == "dhparameters" {
            // The exchanges that they are for are not served.
            return check_dh_file(d, &word.text, cx).map(|()| c);
        }
        let error = match c.apply(&lower, &value, file) {
            Applied::Yes => return Ok(c),
            Applied::NoEffect => {
                cx.warn(d, format!("\"{name}\" of \"{}\" has no effect", d.name.as_str()));
                return Ok(c);
            }
            Applied::Unsupported(instead) => {
                // Without effect the other side would meet other demands, or see another certificate, than was meant.
                let message =
                    format!("\"{name}\" of \"{}\" is not supported, use {instead}", d.name.as_str());
                return Err(cx.error(d, message));
            }
            Applied::BadValue => "error:0A000180:SSL routines::bad value".to_owned(),
            Applied::Failed(error) => format!("{error} error:0A000180:SSL routines::bad value"),
            Applied::Unknown => format!("error:0A000182:SSL routines::unknown cmd name:cmd={name}"),
        };
        Err(cx.error(d, format!("SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: {error})")))
    }
}

impl Commands {
    /// Applies a command, whose name is in lower case. `file` makes its value the name of a file.
    fn apply(&mut self, name: &str, value: &str, file: impl FnOnce() -> FileName) -> Applied {
        let applied = match name {
            "ciphersuites" => ciphers::suites13(value).ok().map(|suites| self.suites13 = Some(suites)),
            "cipherstring" => match ciphers::parse(value) {
                Ok(list) => {
                    self.ciphers = Some(Arc::new(list));
                    Some(())
                }
                Err(refused) => return Applied::Failed(refused.to_string()),
            },
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
            "numtickets" => {
                value.parse().ok().filter(|n| *n <= MAX_TICKETS).map(|n| self.num_tickets = Some(n))
            }
            "signaturealgorithms" | "clientsignaturealgorithms" | "recordpadding" => {
                return Applied::NoEffect;
            }
            "verifymode" => {
                return Applied::Unsupported(
                    "\"ssl_verify_client\" for clients and \"proxy_ssl_verify\" for upstreams",
                );
            }
            "verifycafile" | "verifycapath" | "verifycastore" => {
                return Applied::Unsupported(
                    "\"ssl_trusted_certificate\" or \"proxy_ssl_trusted_certificate\"",
                );
            }
            "requestcafile" | "requestcapath" | "requestcastore" | "clientcafile" | "clientcapath"
            | "clientcastore" => {
                return Applied::Unsupported("\"ssl_client_certificate\"");
            }
            "chaincafile" | "chaincapath" | "chaincastore" => {
                return Applied::Unsupported("a file of \"ssl_certificate\" that has the chain as well");
            }
            "serverinfofile" => {
                return Applied::Unsupported("nothing: certificates are sent without extensions of files");
            }
            _ => return Applied::Unknown,
        };
        if applied.is_some() { Applied::Yes } else { Applied::BadValue }
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

/// Most tickets of `NumTickets`.
const MAX_TICKETS: u8 = 16;

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
