//! `fallback`: the group that stands in for a group while that has no servers.

use super::groups::{Named, Table, Upstream};
use crate::config::value::first;
use crate::config::{Build, Context, Scope};
use crate::upstream::local::{LocalGroups, LocalSet};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use std::rc::Rc;
use std::sync::Arc;

/// `fallback` as it is written.
#[derive(Debug)]
pub(super) struct Written {
    to: To,
    /// An error at the directive, with an empty text.
    at: Error,
}

#[derive(Debug)]
enum To {
    Group(Vec<u8>),
    Status(u16),
    Off,
}

/// What happens while a group has no servers, or only ones that are `down`.
#[derive(Debug)]
pub enum Fallback<X> {
    /// Another group takes the requests or sessions.
    Group(Named<X>),
    /// Requests are answered with this status.
    Status(u16),
    /// Nothing is done about it, as without the directive.
    Off,
}

impl Written {
    /// Reads `fallback GROUP | =STATUS | off`. Sessions of the stream block have no status.
    pub(super) fn parse<C: Context>(d: &Directive, cx: &Scope<'_, C>) -> Result<Written, Error> {
        let to = match first(d) {
            b"off" => To::Off,
            text => match text.strip_prefix(b"=") {
                Some(number) if C::BLOCK == "http" => To::Status(status(d, number, cx)?),
                Some(_) => return Err(cx.directive_error(d, "invalid value")),
                None => To::Group(text.to_ascii_lowercase()),
            },
        };
        Ok(Written { to, at: cx.error(d, "") })
    }

    /// Returns the name of the group that stands in.
    pub(super) fn group(&self) -> Option<&[u8]> {
        match &self.to {
            To::Group(name) => Some(name),
            To::Status(_) | To::Off => None,
        }
    }

    /// Finds the group that stands in for `own`; `named`: finds a group that a block defines; `next`: the name after a name.
    ///
    /// # Errors
    /// If there is no such group, or the way leads back to where it was.
    pub(super) fn find<'w, X>(
        &'w self,
        own: &[u8],
        named: impl Fn(&[u8]) -> Option<Named<X>>,
        next: impl Fn(&[u8]) -> Option<&'w [u8]>,
    ) -> Result<Fallback<X>, Error> {
        let name = match &self.to {
            To::Group(name) => name,
            To::Status(status) => return Ok(Fallback::Status(*status)),
            To::Off => return Ok(Fallback::Off),
        };
        let error = |message: String| Error { message, ..self.at.clone() };
        let text = String::from_utf8_lossy(name);
        let group =
            named(name).ok_or_else(|| error(format!("upstream \"{text}\" of \"fallback\" not found")))?;
        // A circle that does not lead through `own` is found at the groups that are on it, and ends the walk here.
        let mut passed: Vec<&[u8]> = Vec::new();
        let mut at = Some(name.as_slice());
        while let Some(name) = at.filter(|name| !passed.contains(name)) {
            if name == own {
                let text = String::from_utf8_lossy(own);
                return Err(error(format!("\"fallback\" of upstream \"{text}\" leads back to it")));
            }
            passed.push(name);
            at = next(name);
        }
        Ok(Fallback::Group(group))
    }
}

fn status(d: &Directive, number: &[u8], cx: &Build<'_>) -> Result<u16, Error> {
    let status = units::number(number).and_then(|n| u16::try_from(n).ok()).filter(|n| (400..600).contains(n));
    status.ok_or_else(|| cx.error(d, "status must be between 400 and 599"))
}

/// Servers for a request or session.
#[derive(Debug)]
pub enum Serving<'u, X> {
    /// Those of this group.
    Group(&'u Arc<Upstream<X>>, Rc<LocalSet>),
    /// There are none, and the request is answered with this status.
    Status(u16),
}

impl<X> Upstream<X> {
    /// Returns the servers as they are now: those of this group, or of the first one of its fallbacks that has any. `all`: the groups
    /// of the configuration. Hot path.
    pub fn serving<'u>(self: &'u Arc<Self>, all: &'u Table<X>, groups: &LocalGroups) -> Serving<'u, X> {
        let mut upstream = self;
        loop {
            let local = groups.local(&upstream.group);
            // A request that comes before the first answer of the name server waits for it.
            if !local.set.vacant || upstream.group.is_unanswered() {
                return Serving::Group(upstream, local);
            }
            match &upstream.fallback {
                Some(Fallback::Status(status)) => return Serving::Status(*status),
                // It ends, since no way leads back.
                Some(Fallback::Group(named)) => match all.get(*named) {
                    Some(next) => upstream = next,
                    None => return Serving::Group(upstream, local),
                },
                Some(Fallback::Off) | None => return Serving::Group(upstream, local),
            }
        }
    }
}
