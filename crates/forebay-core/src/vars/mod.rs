//! Variables: names become numbers once, values belong to a request (nginx: variables). Hot path.
//!
//! A front end implements [`Evaluate`] for its requests or sessions. Everything here is generic over it and compiled for each.

mod compute;
mod extract;
mod host_table;
mod numbers;
pub mod proxy_protocol;
mod registry;
mod store;
mod template;
mod time;

pub use compute::{AddressSource, Geo, Map, Segments, Share, Split, Value, murmur2};
pub use extract::Extract;
pub use host_table::{HostTable, Refused};
pub use numbers::NumMap;
pub use registry::{
    Builtin, Computed, Getter, Names, PrefixGetter, Registry, Row, RowSource, Source, Uses, Var,
};
pub use store::{Stored, VarStore};
pub use template::{Part, Template};
pub use time::TimeFormat;

use crate::clock::Clock;
use crate::limit::cidr::Cidr;
use crate::tls::Session;
use forebay_conf::error::Level;
use forebay_http::proxy_protocol::Header;
use forebay_net::addr::Peer;

/// Number of a variable in one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VarId(pub u16);

/// Error of an evaluation; the request is answered with 500. The text is for the error log, and empty if the error has been
/// logged already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VarError(pub String);

impl VarError {
    /// Error that has been logged already.
    pub const LOGGED: VarError = VarError(String::new());
}

/// Groups of the last regular expression that matched, for `$1` to `$9`.
#[derive(Clone, Debug, Default)]
pub struct Captures {
    /// Text that was matched.
    pub text: Vec<u8>,
    /// Groups as offsets into `text`; (1, 0) = not part of the match.
    pub groups: Vec<(u32, u32)>,
}

impl Captures {
    /// Appends the text of a group; nothing if it took no part in the match.
    pub fn push(&self, n: u8, out: &mut Vec<u8>) {
        if let Some((a, b)) = self.groups.get(n as usize)
            && a <= b
        {
            out.extend_from_slice(self.text.get(*a as usize..*b as usize).unwrap_or_default());
        }
    }
}

/// A request or session for which variables are evaluated.
pub trait Evaluate: Sized {
    /// Appends the value of a variable. Returns `Ok(false)` if it has none.
    ///
    /// # Errors
    /// If the evaluation runs in a circle, or a pattern exceeds its limits.
    fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError>;

    /// Returns the values that are stored.
    fn values(&mut self) -> &mut VarStore;

    /// Stores a variable's value for the rest of the request. `None` stores that it has none.
    #[inline]
    fn store(&mut self, id: VarId, value: Option<&[u8]>) {
        self.values().store(id, value);
    }

    /// Notes that a variable of `set` is used that has not been set.
    fn uninitialized(&mut self, name: &[u8]) {
        let _ = name;
    }

    /// Returns the groups of the last pattern that matched.
    fn captures(&mut self) -> &mut Captures;

    /// Returns the clock of the thread.
    fn clock(&self) -> &Clock;

    /// Returns the address of the client.
    fn peer(&self) -> Peer;

    /// Returns the PROXY protocol header that the client's connection began with.
    fn proxied(&self) -> Option<&Header> {
        None
    }

    /// Returns the TLS session of the client; `None` if its connection is not encrypted.
    fn session(&self) -> Option<&Session>;

    /// Returns the address that trusted proxies report (`X-Forwarded-For`) for a client at `peer`, or `peer` if none is trusted.
    fn forwarded(&self, peer: Peer, proxies: &[Cidr], recursive: bool) -> Peer;

    /// Writes a line to the error log. Calls `message` only if a log takes the level.
    fn log_with(&mut self, level: Level, message: impl FnOnce(&mut Vec<u8>));

    /// Takes an empty buffer, to be returned by [`Evaluate::give_buf`].
    fn take_buf(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns a buffer for the next use.
    fn give_buf(&mut self, buf: Vec<u8>) {
        drop(buf);
    }
}
