//! `proxy_bind` and what else is set on the sockets that go to upstreams (nginx: ngx_http_proxy_module,
//! ngx_stream_proxy_module).

use crate::config::value::{Setting, Size, once};
use crate::config::{Context, Scope};
use crate::vars::{Evaluate, Template, VarError};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_net::dial::LocalAddress;
use std::net::{IpAddr, SocketAddr};

crate::settings! {
    /// `proxy_bind`.
    "proxy_bind" => bind: Bind = Bind(None);
    /// `proxy_socket_rcvbuf`; 0 = the system's.
    "proxy_socket_rcvbuf" => rcvbuf: Size = Size(0);
    /// `proxy_socket_sndbuf`; 0 = the system's.
    "proxy_socket_sndbuf" => sndbuf: Size = Size(0);
}

/// Local address of connections to upstreams, and whether it may be another machine's (`transparent`). `None` leaves it to the
/// system.
#[derive(Clone, Debug)]
pub struct Bind(Option<(Template, bool)>);

impl<C: Context> Setting<C> for Bind {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let alone = d.args.len() == 1;
        let word = d.args.first().filter(|w| !alone || w.text != b"off");
        let bind = word.map(|w| address(d, w, cx)).transpose()?;
        let transparent = match d.args.get(1) {
            Some(w) if w.text == b"transparent" => true,
            Some(w) => return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()))),
            None => false,
        };
        cx.build.transparent |= transparent && bind.is_some();
        Ok(Bind(bind.map(|bind| (bind, transparent))))
    }
}

fn address<C: Context>(d: &Directive, w: &Word, cx: &mut Scope<'_, C>) -> Result<Template, Error> {
    let t = cx.template(d, w)?;
    if t.as_const().is_some_and(|c| parse(c).is_none()) {
        return Err(cx.error_at(d, w, format!("invalid address \"{}\"", w.as_str())));
    }
    Ok(t)
}

/// Reads `ADDRESS` or `ADDRESS:PORT`.
fn parse(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0)).or_else(|| text.parse().ok())
}

impl Settings {
    /// Returns the local address of a connection without a request or session: a health check. One with variables has none.
    pub fn fixed_local(&self) -> Option<LocalAddress> {
        let (template, transparent) = self.bind.0.as_ref()?;
        let addr = template.as_const().and_then(parse)?;
        Some(LocalAddress { addr, transparent: *transparent })
    }

    /// Returns the local address of connections for a request or session.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    #[inline]
    pub fn local<E: Evaluate>(&self, subject: &mut E) -> Result<Option<LocalAddress>, VarError> {
        let Some((t, transparent)) = &self.bind.0 else { return Ok(None) };
        let text = t.value(subject)?;
        let found = parse(&text);
        if found.is_none() && !text.is_empty() {
            let what = format!("invalid local address \"{}\"", String::from_utf8_lossy(&text));
            subject.log_with(Level::Error, |line| line.extend_from_slice(what.as_bytes()));
        }
        Ok(found.map(|addr| LocalAddress { addr, transparent: *transparent }))
    }
}
