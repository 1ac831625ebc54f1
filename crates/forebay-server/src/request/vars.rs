//! Variables of a request. Hot path.

use super::Request;
use crate::way;
use forebay_conf::error::Level;
use forebay_core::clock::Clock;
use forebay_core::limit::cidr::{self, Cidr};
use forebay_core::tls::Session;
use forebay_core::trace;
use forebay_core::vars::{Captures, Evaluate, Source, Stored, VarError, VarId, VarStore};
use forebay_http::proxy_protocol::Header;
use forebay_net::addr::Peer;

impl Request {
    /// Appends the value of a variable. `Ok(false)`: it has none.
    ///
    /// # Errors
    /// If the evaluation runs in a circle.
    pub fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        // The record copies each value, so requests that nobody follows take the short way.
        if trace::is_on() {
            return self.noted_var(id, out);
        }
        self.var_of(id, out)
    }

    /// Appends the value of a variable, and notes it in the record of the request's way.
    #[cold]
    fn noted_var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        // The buffer may hold other text before the value.
        let start = out.len();
        let found = self.var_of(id, out)?;
        way::variable(self, id, out.get(start..).filter(|_| found));
        Ok(found)
    }

    #[inline]
    fn var_of(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        match self.vars.get(id) {
            Stored::Value(v) => {
                out.extend_from_slice(v);
                return Ok(true);
            }
            // That there is no value is remembered, too, as finding it out may be as much work.
            Stored::Missing => return Ok(false),
            Stored::Empty => {}
        }
        let http = self.http();
        let Some(var) = http.vars.get(id.0 as usize) else { return Ok(false) };
        var.evaluate(self, id, out)
    }

    /// Returns the value of a variable as a vector of its own; `None` if it has none. For paths that are not hot.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn var_value(&mut self, id: VarId) -> Result<Option<Vec<u8>>, VarError> {
        let mut out = Vec::new();
        Ok(self.var(id, &mut out)?.then_some(out))
    }

    /// Returns `true` if a variable has a value that is neither empty nor `0` (nginx: if).
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn is_true(&mut self, id: VarId) -> Result<bool, VarError> {
        let mut value = self.take_buf();
        let found = self.var(id, &mut value)?;
        let holds = found && !value.is_empty() && value != b"0";
        self.give_buf(value);
        Ok(holds)
    }

    /// Writes the error of an evaluation to the error log, unless that is done.
    pub fn log_var_error(&mut self, why: &VarError) {
        if !why.0.is_empty() {
            self.log(Level::Error, &why.0);
        }
    }

    /// Stores a variable's value for the rest of the request; `None` = it has no value.
    pub fn store(&mut self, id: VarId, value: Option<&[u8]>) {
        self.vars.store(id, value);
    }

    /// Returns the value of a variable by its name in lower case, whether or not the configuration mentions it. `None` if the
    /// variable is not known or has no value.
    ///
    /// # Errors
    /// As [`Request::var`].
    pub fn var_named(&mut self, name: &[u8]) -> Result<Option<Vec<u8>>, VarError> {
        // A variable of the configuration may have been set, so it goes before the built-in one of the same name.
        let http = self.http();
        if let Some(at) = http.vars.iter().position(|v| *v.name == *name) {
            return self.var_value(VarId(at as u16));
        }
        let mut out = Vec::new();
        let found = match crate::variables::builtin(name).0 {
            Source::Get(f) => f(self, &mut out)?,
            Source::Prefix(f, rest) => f(self, &rest, &mut out)?,
            _ => false,
        };
        Ok(found.then_some(out))
    }
}

impl Evaluate for Request {
    #[inline]
    fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        Request::var(self, id, out)
    }

    #[inline]
    fn values(&mut self) -> &mut VarStore {
        &mut self.vars
    }

    /// Warns (nginx: uninitialized_variable_warn).
    fn uninitialized(&mut self, name: &[u8]) {
        if self.own_location().settings.rewrite.uninitialized_variable_warn {
            let name = String::from_utf8_lossy(name);
            self.log(Level::Warn, &format!("using uninitialized \"{name}\" variable"));
        }
    }

    #[inline]
    fn captures(&mut self) -> &mut Captures {
        &mut self.captures
    }

    #[inline]
    fn clock(&self) -> &Clock {
        &self.thread.clock
    }

    fn peer(&self) -> Peer {
        self.peer
    }

    fn proxied(&self) -> Option<&Header> {
        self.conn.client.proxied.as_deref()
    }

    #[inline]
    fn session(&self) -> Option<&Session> {
        self.conn.client.tls.as_deref()
    }

    fn forwarded(&self, peer: Peer, proxies: &[Cidr], recursive: bool) -> Peer {
        let lines = super::field_lines(&self.head, b"X-Forwarded-For");
        cidr::forwarded(peer, lines, proxies, recursive).map_or(peer, Peer::Inet)
    }

    fn log_with(&mut self, level: Level, message: impl FnOnce(&mut Vec<u8>)) {
        Request::log_with(self, level, message);
    }

    #[inline]
    fn take_buf(&mut self) -> Vec<u8> {
        Request::take_buf(self)
    }

    #[inline]
    fn give_buf(&mut self, buf: Vec<u8>) {
        Request::give_buf(self, buf);
    }
}
