//! PROXY protocol header in front of what a server receives (nginx: proxy_protocol), with values from variables and extensions.

use crate::config::{Scope, StreamContext};
use crate::session::Session;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, first, once};
use forebay_core::upstream::greeting::SendProxy;
use forebay_core::upstream::peer::Peer as Server;
use forebay_core::vars::{Template, VarError, proxy_protocol::extension_type};
use forebay_http::proxy_protocol::{self, HeaderVersion, MAX_EXTENSIONS, push_extension};
use forebay_net::addr::Peer;

forebay_core::settings! {
    /// `proxy_protocol`.
    "proxy_protocol" => header: Header = Header::Fixed(SendProxy::Off);
    /// `proxy_protocol_tlv`: extensions of headers of version 2.
    "proxy_protocol_tlv" => extensions: Extensions = Extensions::default();
}

/// `proxy_protocol`, which may have variables.
#[derive(Clone, Debug)]
pub(crate) enum Header {
    Fixed(SendProxy),
    Variable(Template),
}

impl Setting<StreamContext> for Header {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        match d.args.first().filter(|w| w.text.contains(&b'$')) {
            Some(w) => {
                once(&previous, d, cx)?;
                Ok(Header::Variable(cx.template(d, w)?))
            }
            None => {
                let previous = previous.map(|_| SendProxy::Off);
                Ok(Header::Fixed(SendProxy::take(previous, d, cx)?))
            }
        }
    }
}

impl Header {
    /// Returns the version for a connection without a session: a health check.
    pub(crate) fn without_session(&self) -> SendProxy {
        match self {
            Header::Fixed(fixed) => *fixed,
            Header::Variable(_) => SendProxy::Off,
        }
    }

    /// Evaluates the directive. A value that is neither a version nor `off` nor empty is an error: a server that takes addresses
    /// from the header must not get connections without it.
    fn value(&self, s: &mut Session) -> Result<SendProxy, VarError> {
        let template = match self {
            Header::Fixed(fixed) => return Ok(*fixed),
            Header::Variable(template) => template,
        };
        let text = template.value(s)?;
        if text.is_empty() {
            return Ok(SendProxy::Off);
        }
        let invalid = || {
            VarError(format!("invalid value \"{}\" of \"proxy_protocol\"", String::from_utf8_lossy(&text)))
        };
        SendProxy::of(&text).ok_or_else(invalid)
    }
}

/// `proxy_protocol_tlv` directives of a level: types and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extensions(Vec<(u8, Template)>);

impl Setting<StreamContext> for Extensions {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.unwrap_or_default();
        let Some(kind) = extension_type(first(d)) else {
            let name = String::from_utf8_lossy(first(d)).into_owned();
            return Err(cx.error(d, format!("invalid TLV type \"{name}\"")));
        };
        if let Some(w) = d.args.get(1) {
            all.0.push((kind, cx.template(d, w)?));
        }
        Ok(all)
    }
}

impl Extensions {
    /// Evaluates the extensions. Those with an empty value are left out.
    fn value(&self, s: &mut Session) -> Result<Vec<u8>, VarError> {
        let mut out = Vec::new();
        for (kind, template) in &self.0 {
            let value = template.value(s)?;
            if !value.is_empty() {
                push_extension(*kind, &value, &mut out);
            }
        }
        match out.len() {
            ..=MAX_EXTENSIONS => Ok(out),
            n => Err(VarError(format!("the values of \"proxy_protocol_tlv\" are too long: {n} bytes"))),
        }
    }
}

/// Returns the header for a server of a session; empty if it gets none. The parameter of `server` goes before the directive.
///
/// # Errors
/// A variable has no valid value.
pub(crate) fn header(s: &mut Session, server: Option<&Server>) -> Result<Vec<u8>, VarError> {
    let mut out = Vec::new();
    let stream = s.stream();
    let Some(settings) = stream.servers.get(s.server).map(|own| &own.settings.proxy_protocol) else {
        return Ok(out);
    };
    let version = match server.and_then(|server| server.proxy_protocol) {
        Some(version) => version,
        None => settings.header.value(s)?,
    };
    let version = match version.version() {
        None => return Ok(out),
        Some(version) if s.udp.is_some() => version.over_udp(),
        Some(version) => version,
    };
    let extensions = match version {
        HeaderVersion::One => Vec::new(),
        HeaderVersion::Two | HeaderVersion::Datagram => settings.extensions.value(s)?,
    };
    let client = match s.peer {
        Peer::Inet(a) => Some(a),
        Peer::Unix => None,
    };
    let between = client.zip(s.client.local_address(&s.conf));
    proxy_protocol::write(version, between, &extensions, &mut out);
    Ok(out)
}
