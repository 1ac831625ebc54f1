//! The `resolver` directive.

use super::scope::{Build, Context, Scope};
use super::value::{Setting, once};
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_net::addr::{PeerAddr, Place};
use forebay_net::resolver::{Parameters, Resolver};
use std::net::SocketAddr;
use std::sync::Arc;

/// Reads the directive.
///
/// # Errors
/// The message of nginx.
pub fn parse(d: &Directive, cx: &Build<'_>) -> Result<Resolver, Error> {
    let mut p = Parameters { ipv4: true, ipv6: true, ..Parameters::default() };
    // Angie: the name servers, suffixes and hosts of the system.
    let mut of_system = false;
    for w in &d.args {
        let t = w.text.as_slice();
        let invalid = || cx.error_at(d, w, format!("invalid parameter: {}", w.as_str()));
        let flag = |v: &[u8]| match v {
            b"on" => Ok(true),
            b"off" => Ok(false),
            _ => Err(invalid()),
        };
        if let Some(v) = t.strip_prefix(b"valid=") {
            p.valid = Some(units::duration_secs(v).ok_or_else(invalid)?);
        } else if let Some(v) = t.strip_prefix(b"ipv4=") {
            p.ipv4 = flag(v)?;
        } else if let Some(v) = t.strip_prefix(b"ipv6=") {
            p.ipv6 = flag(v)?;
        } else if let Some(v) = t.strip_prefix(b"status_zone=") {
            p.zone = Some(v.to_vec());
        } else if t == b"conf" {
            of_system = true;
        } else {
            p.servers.extend(name_servers(d, w, cx)?);
        }
    }
    if !p.ipv4 && !p.ipv6 {
        return Err(cx.error(d, "\"ipv4\" and \"ipv6\" cannot both be \"off\""));
    }
    if of_system && !p.servers.is_empty() {
        return Err(cx.error(d, "\"conf\" stands for the name servers of the system, others cannot be added"));
    }
    if of_system {
        return Ok(Resolver::system_with(p));
    }
    if p.servers.is_empty() {
        return Err(cx.error(d, "no name servers defined"));
    }
    Ok(Resolver::new(p))
}

/// Addresses of a name server, which may be given by name.
fn name_servers(d: &Directive, w: &Word, cx: &Build<'_>) -> Result<Vec<SocketAddr>, Error> {
    let text = w.as_str();
    let place =
        Place::parse(&w.text).map_err(|m| cx.error_at(d, w, format!("{m} in resolver \"{text}\"")))?;
    let inet = |a| match a {
        PeerAddr::Inet(a) => Some(a),
        PeerAddr::Unix(_) => None,
    };
    let found: Vec<SocketAddr> = place.addresses(53).into_iter().filter_map(inet).collect();
    if found.is_empty() {
        return Err(cx.error_at(d, w, format!("host not found in resolver \"{text}\"")));
    }
    Ok(found)
}

/// A resolver as a setting.
#[derive(Clone, Debug, Default)]
pub struct Chosen(pub Option<Arc<Resolver>>, pub Absence);

/// What holds without a resolver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Absence {
    /// Nobody has said anything: HTTP uses that of the system.
    #[default]
    Unsaid,
    /// `resolver off` (Angie): no name is resolved at run time.
    Off,
}

impl<C: Context> Setting<C> for Chosen {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if let [only] = d.args.as_slice()
            && only.text == b"off"
        {
            return Ok(Chosen(None, Absence::Off));
        }
        Ok(Chosen(Some(Arc::new(parse(d, cx)?)), Absence::Unsaid))
    }
}
