//! A request as it is to be written for an upstream, and the reasons for which it cannot be.

use crate::modules::proxy::Settings;
use crate::upstream::exchange::Outgoing;
use forebay_conf::error::Level;
use forebay_core::vars::{Template, VarError};
use forebay_http::field::Unsafe;
use forebay_server::request::Request;

/// Request as it is to be written for an upstream.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) uri: &'a [u8],
    pub(crate) body: &'a Outgoing,
    /// Key that is asked for ([`Facts::key`](super::facts::Facts::key)).
    pub key: Option<&'a Template>,
    /// `true` if the response is to be stored.
    pub stored: bool,
    /// `true` if the request is sent as GET even though the client has sent HEAD (nginx: proxy_cache_convert_head).
    pub as_get: bool,
}

/// Result of writing a request: `true` if it asks for another protocol.
pub(super) type Written = Result<bool, Unwritten>;

/// Reason for which a request cannot be written.
pub enum Unwritten {
    /// A variable has no value, which has been logged.
    Variable,
    /// A value would be more than one line.
    Unsafe(Unsafe),
    /// The client gets this status.
    Status(u16),
}

impl From<VarError> for Unwritten {
    fn from(_: VarError) -> Unwritten {
        Unwritten::Variable
    }
}

impl From<Unsafe> for Unwritten {
    fn from(e: Unsafe) -> Unwritten {
        Unwritten::Unsafe(e)
    }
}

impl Unwritten {
    /// Logs the reason; returns the status to answer with.
    pub fn status(self, req: &mut Request) -> u16 {
        match self {
            Unwritten::Variable => {}
            Unwritten::Unsafe(refused) => {
                let name = String::from_utf8_lossy(&refused.name).into_owned();
                // Unlike nginx: a value of several lines is refused, since it could contain a second request. nginx sends it.
                let text = format!("\"{name}\" for the upstream has a line break or NUL in its value");
                req.log(Level::Error, &text);
            }
            Unwritten::Status(status) => return status,
        }
        500
    }
}
