//! `health_check`: the parameters that mean the same for every protocol, and the `match` blocks that it names.

use super::Schedule;
use crate::config::Build;
use crate::config::value::{first, split_parameter};
use crate::upstream::peer::Peer;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_conf::units;
use forebay_net::addr::PeerAddr;
use std::sync::Arc;
use std::time::Duration;

/// Parameters of a `health_check` that every protocol has.
#[derive(Clone, Debug)]
pub struct HealthCheck {
    /// Times of the checks.
    pub schedule: Schedule,
    /// `port=`.
    port: Option<u16>,
    /// `match=`.
    matching: Option<Vec<u8>>,
    /// The directive, with an empty text.
    at: Error,
}

/// Reason for which a parameter is refused.
#[derive(Debug)]
pub enum Refusal {
    /// It is unknown, or its value is invalid.
    Invalid,
    /// It asks for something that is not supported, in these words.
    Unsupported(&'static str),
}

impl HealthCheck {
    /// Creates a check with the defaults of `health_check`.
    pub fn new(d: &Directive, cx: &Build<'_>) -> HealthCheck {
        HealthCheck { schedule: Schedule::default(), port: None, matching: None, at: cx.error(d, "") }
    }

    /// Reads a parameter.
    ///
    /// # Errors
    /// [`Refusal::Invalid`], also if the parameter is not one of those that every protocol has.
    pub fn parameter(&mut self, name: &[u8], value: Option<&[u8]>) -> Result<(), Refusal> {
        let s = &mut self.schedule;
        match (name, value) {
            (b"interval", Some(v)) => s.interval = time(v)?,
            (b"jitter", Some(v)) => s.jitter = units::duration_ms(v).ok_or(Refusal::Invalid)?,
            (b"fails", Some(v)) => s.fails = count(v)?,
            (b"passes", Some(v)) => s.passes = count(v)?,
            (b"mandatory", None) => s.mandatory = true,
            (b"persistent", None) if s.mandatory => s.persistent = true,
            (b"match", Some(v)) => self.matching = Some(v.to_vec()),
            (b"port", Some(v)) => self.port = Some(count(v)?),
            _ => return Err(Refusal::Invalid),
        }
        Ok(())
    }

    /// Returns the address to check of a server. `port=` replaces the server's port.
    pub fn address(&self, peer: &Peer) -> PeerAddr {
        let mut addr = peer.addr.clone();
        if let (PeerAddr::Inet(addr), Some(port)) = (&mut addr, self.port) {
            addr.set_port(port);
        }
        addr
    }

    /// Creates an error at the directive.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error { message: message.into(), ..self.at.clone() }
    }
}

/// Reads the parameters of a directive with `read`, which gets the name and the value of each.
///
/// # Errors
/// `invalid parameter "x"`, or the words of [`Refusal::Unsupported`].
pub fn parameters(
    d: &Directive,
    cx: &Build<'_>,
    mut read: impl FnMut(&[u8], Option<&[u8]>) -> Result<(), Refusal>,
) -> Result<(), Error> {
    for w in &d.args {
        let (name, value) = split_parameter(&w.text);
        read(name, value).map_err(|refusal| cx.error_at(d, w, text_of(&refusal, w)))?;
    }
    Ok(())
}

fn text_of(refusal: &Refusal, w: &Word) -> String {
    match refusal {
        Refusal::Invalid => format!("invalid parameter \"{}\"", w.as_str()),
        Refusal::Unsupported(what) => (*what).to_owned(),
    }
}

/// Reads a time other than 0.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn time(v: &[u8]) -> Result<Duration, Refusal> {
    units::duration_ms(v).filter(|d| !d.is_zero()).ok_or(Refusal::Invalid)
}

/// Reads a number other than 0.
fn count<T: TryFrom<u64>>(v: &[u8]) -> Result<T, Refusal> {
    let number = units::number(v).filter(|n| *n > 0).and_then(|n| T::try_from(n).ok());
    number.ok_or(Refusal::Invalid)
}

/// Creates the error about a line of a `match` block.
pub fn invalid_line(line: &Directive, cx: &Build<'_>) -> Error {
    cx.error(line, format!("invalid \"{}\" in \"match\"", line.name.as_str()))
}

/// `match` blocks of a configuration under construction. `M` has the conditions of one.
#[derive(Debug)]
pub struct Matches<M>(Vec<(Vec<u8>, Arc<M>)>);

impl<M> Default for Matches<M> {
    fn default() -> Matches<M> {
        Matches(Vec::new())
    }
}

impl<M> Matches<M> {
    /// Adds the conditions of `match NAME { ... }`.
    ///
    /// # Errors
    /// `duplicate match "x"`.
    pub fn define(&mut self, d: &Directive, conditions: M, cx: &Build<'_>) -> Result<(), Error> {
        let name = first(d);
        if self.0.iter().any(|(known, _)| known == name) {
            return Err(cx.error(d, format!("duplicate match \"{}\"", String::from_utf8_lossy(name))));
        }
        self.0.push((name.to_vec(), Arc::new(conditions)));
        Ok(())
    }

    /// Returns the conditions that a check names; `None` if it names none.
    ///
    /// # Errors
    /// `match "x" not found`.
    pub fn of(&self, check: &HealthCheck) -> Result<Option<Arc<M>>, Error> {
        let Some(name) = &check.matching else { return Ok(None) };
        match self.0.iter().find(|(known, _)| known == name) {
            Some((_, conditions)) => Ok(Some(conditions.clone())),
            None => Err(check.error(format!("match \"{}\" not found", String::from_utf8_lossy(name)))),
        }
    }
}
