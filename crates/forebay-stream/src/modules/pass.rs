//! `pass`: hands a connection to another listener of the process (nginx: ngx_stream_pass_module).

use super::Content;
use crate::config::Scope;
use crate::session::{Outcome, Session};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::client::PassedFrom;
use forebay_core::config::ListenAddr;
use forebay_core::config::value::first;
use forebay_core::front::Passed;
use forebay_core::vars::Template;
use forebay_net::addr::{PeerAddr, Place};
use forebay_net::wire::Wire;
use std::rc::Rc;

/// Address of the other listener.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A constant address.
    Address(ListenAddr),
    /// An address with variables.
    Variable(Template),
}

/// Most listeners that may pass a connection on, one after the other.
const MAX_PASSES: u8 = 10;

/// Reads `pass`.
///
/// # Errors
/// In nginx's words.
pub(crate) fn parse(d: &Directive, known: Option<&Content>, cx: &mut Scope<'_>) -> Result<Content, Error> {
    if matches!(known, Some(Content::Pass(_))) {
        return Err(cx.directive_error(d, "is duplicate"));
    }
    if let Some(w) = d.args.first().filter(|w| w.text.contains(&b'$')) {
        return Ok(Content::Pass(Target::Variable(cx.template(d, w)?)));
    }
    match address(first(d)) {
        Ok(addr) => Ok(Content::Pass(Target::Address(addr))),
        Err(text @ (NO_PORT | NO_ADDRESSES)) => Err(cx.directive_error(d, &format!("has {text}"))),
        Err(text) => {
            let written = String::from_utf8_lossy(first(d));
            Err(cx.error(d, format!("{text} in \"{written}\" of the \"pass\" directive")))
        }
    }
}

const NO_PORT: &str = "no port";
const NO_ADDRESSES: &str = "no addresses";

/// Reads an address. Names are not resolved.
fn address(text: &[u8]) -> Result<ListenAddr, &'static str> {
    let place = Place::parse(text)?;
    match place.literal(0) {
        Some(PeerAddr::Unix(path)) => Ok(ListenAddr::Unix(path)),
        Some(PeerAddr::Inet(a)) if a.port() > 0 => Ok(ListenAddr::Inet(a)),
        Some(PeerAddr::Inet(_)) => Err(NO_PORT),
        None => Err(NO_ADDRESSES),
    }
}

/// Hands the connection of a session over. The other listener logs it.
pub(crate) fn serve(s: &mut Session, target: &Target) -> Outcome {
    if s.udp.is_some() {
        return refuse(s, 500, "cannot pass udp connection");
    }
    let addr = match target {
        Target::Address(addr) => addr.clone(),
        Target::Variable(template) => match evaluate(s, template) {
            Ok(addr) => addr,
            Err(text) => return refuse(s, 500, &text),
        },
    };
    let active = s.thread.active();
    let Some(found) = active.listener(&addr) else {
        // The status is nginx's.
        return refuse(s, 200, &format!("port not found for \"{addr}\""));
    };
    let earlier = s.client.passed_from.clone();
    let passes = earlier.as_ref().map_or(0, |p| p.passes) + 1;
    if passes > MAX_PASSES {
        return refuse(s, 500, "stream pass cycle");
    }
    let from = PassedFrom { counted: std::mem::take(&mut s.counted), passes, earlier };
    let mut client = (*s.client).clone();
    client.peer = s.peer;
    client.listener = found.slot;
    client.local = found.local;
    client.passed_from = Some(Rc::new(from));
    // The session ends without its wire, which stays open.
    let wire = std::mem::replace(&mut s.wire, Wire::Closed);
    s.thread.pass(found.front, Passed { wire, early: std::mem::take(&mut s.early), client });
    Outcome::Passed
}

fn evaluate(s: &mut Session, template: &Template) -> Result<ListenAddr, String> {
    let text = template.value(s).map_err(|e| e.0)?;
    address(&text).map_err(|m| format!("{m} in pass \"{}\"", String::from_utf8_lossy(&text)))
}

fn refuse(s: &Session, status: u16, text: &str) -> Outcome {
    s.log(Level::Error, &format!("{text} while passing connection to port"));
    Outcome::Over(status)
}
