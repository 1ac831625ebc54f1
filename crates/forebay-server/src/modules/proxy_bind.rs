//! `proxy_bind` and what else is set on the sockets that go to upstreams (nginx: ngx_http_proxy_module).

use crate::config::Scope;
use crate::config::value::{Setting, Size, once};
use crate::request::Request;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::{Directive, Word};
use forebay_core::vars::Template;
use forebay_core::vars::VarError;
use std::net::{IpAddr, SocketAddr};

crate::settings! {
    /// `proxy_bind`.
    "proxy_bind" => bind: Bind = Bind(None);
    /// `proxy_socket_rcvbuf`; 0 = the system's.
    "proxy_socket_rcvbuf" => rcvbuf: Size = Size(0);
    /// `proxy_socket_sndbuf`; 0 = the system's.
    "proxy_socket_sndbuf" => sndbuf: Size = Size(0);
}

/// Local address of connections to upstreams. `None` leaves it to the system.
#[derive(Clone, Debug)]
pub(crate) struct Bind(Option<Template>);

impl Setting<crate::HttpContext> for Bind {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let alone = d.args.len() == 1;
        let word = d.args.first().filter(|w| !alone || w.text != b"off");
        let bind = word.map(|w| address(d, w, cx)).transpose()?;
        match d.args.get(1) {
            Some(w) => Err(refuse_option(d, w, cx)),
            None => Ok(Bind(bind)),
        }
    }
}

fn address(d: &Directive, w: &Word, cx: &mut Scope<'_>) -> Result<Template, Error> {
    let t = cx.template(d, w)?;
    if t.as_const().is_some_and(|c| parse(c).is_none()) {
        return Err(cx.error_at(d, w, format!("invalid address \"{}\"", w.as_str())));
    }
    Ok(t)
}

/// Makes the error for a second parameter.
fn refuse_option(d: &Directive, w: &Word, cx: &Scope<'_>) -> Error {
    let why = match w.text.as_slice() {
        // It needs a right that the worker gives up.
        b"transparent" => format!("\"transparent\" in \"{}\" is not supported", d.name.as_str()),
        _ => format!("invalid parameter \"{}\"", w.as_str()),
    };
    cx.error_at(d, w, why)
}

/// Reads `ADDRESS` or `ADDRESS:PORT`.
fn parse(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, 0)).or_else(|| text.parse().ok())
}

impl Settings {
    /// Returns the local address of connections for this request.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    #[inline]
    pub(crate) fn local(&self, req: &mut Request) -> Result<Option<SocketAddr>, VarError> {
        let Some(t) = &self.bind.0 else { return Ok(None) };
        let text = t.value(req)?;
        let found = parse(&text);
        if found.is_none() && !text.is_empty() {
            let text = String::from_utf8_lossy(&text).into_owned();
            req.log(Level::Error, &format!("invalid local address \"{text}\""));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, request};

    #[test]
    fn addresses() {
        let mut req = request("proxy_bind $arg_a;", "a=127.0.0.2:5");
        let local = |req: &mut Request| {
            let http = req.http();
            http.location(req).settings.proxy_bind.local(req).expect("no circle")
        };
        assert_eq!(local(&mut req), Some(([127, 0, 0, 2], 5).into()));
        crate::testing::again(&mut req, "a=[::1]");
        assert_eq!(local(&mut req).map(|a| a.to_string()).as_deref(), Some("[::1]:0"));
        crate::testing::again(&mut req, "a=nonsense");
        assert_eq!(local(&mut req), None);
        assert!(error("proxy_bind 1.2.3;").is_some_and(|m| m.contains("invalid address")));
        assert!(error("proxy_bind 127.0.0.1 transparent;").is_some());
    }
}
