//! Settings of TLS for front ends whose protocol is not known: the names for ALPN and the time for a handshake (nginx:
//! ngx_stream_ssl_module, ngx_stream_proxy_module). HTTP has its own names.

use super::server::Application;
use crate::config::value::{Msec, Setting, once};
use crate::config::{Context, Scope};
use crate::vars::{Evaluate, Template, VarError};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_net::io::Io;
use forebay_net::reactor::Deadline;
use forebay_net::tls::record::MAX_CONTENT;
use std::sync::Arc;
use std::time::Duration;

crate::settings! {
    /// `ssl_alpn`.
    "ssl_alpn" => alpn: Names = Names::default();
    /// `ssl_handshake_timeout`.
    "ssl_handshake_timeout" => handshake_timeout: Msec = Msec(Duration::from_secs(60));
}

/// Longest name, bytes (RFC 7301, section 3.1).
const MAX_NAME: usize = 255;

/// Returns `true` for a name that can be sent.
fn is_name(name: &[u8]) -> bool {
    (1..=MAX_NAME).contains(&name.len())
}

/// Names of protocols, the preferred one first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(pub Arc<Vec<Vec<u8>>>);

impl<C: Context> Setting<C> for Names {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        check_lengths(d, cx)?;
        Ok(Names(Arc::new(d.args.iter().map(|w| w.text.clone()).filter(|name| is_name(name)).collect())))
    }
}

/// Refuses names that are too long. Words with variables are checked as they are written, as in nginx.
fn check_lengths<C: Context>(d: &Directive, cx: &Scope<'_, C>) -> Result<(), Error> {
    match d.args.iter().any(|w| w.text.len() > MAX_NAME) {
        true => Err(cx.directive_error(d, "protocol too long")),
        false => Ok(()),
    }
}

impl Settings {
    /// Returns the deadline of a handshake that begins now.
    pub fn deadline(&self, io: &Io) -> Deadline {
        io.poller.after(self.handshake_timeout.0)
    }

    /// Returns the settings of a server for TLS that depend on these.
    pub fn application(&self) -> Application {
        Application {
            protocols: self.alpn.0.to_vec(),
            optional: None,
            early_data: false,
            record: MAX_CONTENT,
        }
    }
}

/// Names of protocols to offer to servers, which may have variables.
#[derive(Clone, Debug, Default)]
pub struct Offered(Arc<Vec<Template>>);

impl<C: Context> Setting<C> for Offered {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        check_lengths(d, cx)?;
        let names = d.args.iter().map(|w| cx.template(d, w));
        Ok(Offered(Arc::new(names.collect::<Result<_, _>>()?)))
    }
}

impl Offered {
    /// Returns the names if none has variables. They are an argument of [`super::client::ClientTls::new`].
    pub fn constants(&self) -> Option<Vec<&[u8]>> {
        let names = self.0.iter().map(Template::as_const).collect::<Option<Vec<_>>>()?;
        Some(names.into_iter().filter(|name| is_name(name)).collect())
    }

    /// Evaluates the names, for [`super::client::Wanted::offer`]. Leaves out those that cannot be sent.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn values<E: Evaluate>(&self, eval: &mut E) -> Result<Vec<Vec<u8>>, VarError> {
        let mut names = self.0.iter().map(|t| t.value(eval)).collect::<Result<Vec<_>, _>>()?;
        names.retain(|name| is_name(name));
        Ok(names)
    }
}

/// The directive for connections to servers.
pub mod upstream {
    use super::Offered;

    crate::settings! {
        /// `proxy_ssl_alpn`.
        "proxy_ssl_alpn" => alpn: Offered = Offered::default();
    }
}
