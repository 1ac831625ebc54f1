//! Failures of a server, with their lines in the error log.

use crate::modules::proxy::NextUpstream;
use crate::upstream::CALL;
use forebay_conf::error::Level;
use forebay_core::upstream::dial_error::Blame;
use forebay_net::blame;
use forebay_server::request::Request;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;

pub(crate) const SENDING: &str = "while sending request to upstream";
pub(crate) const READING: &str = "while reading response header from upstream";

/// Failure of one server.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Condition of `proxy_next_upstream`.
    pub kind: NextUpstream,
    /// Status for the client if no other server is asked.
    pub status: u16,
    /// `true` if the server cannot have acted upon the request.
    pub unsent: bool,
    /// Consequence for the choice of servers.
    pub blame: Blame,
    /// The step that failed, in the words of the error log.
    pub doing: &'static str,
}

impl Fault {
    /// Creates a fault of a request that has been sent.
    pub fn new(kind: NextUpstream, status: u16) -> Fault {
        Fault { kind, status, unsent: false, blame: Blame::Server, doing: READING }
    }

    /// Creates a fault of the client or of this server: the upstream is not to blame.
    pub fn own(status: u16) -> Fault {
        Fault { blame: Blame::Ours, ..Fault::new(NextUpstream::Error, status) }
    }

    /// Creates a fault of a connection on which nothing was sent.
    pub fn unsent(kind: NextUpstream, status: u16, doing: &'static str) -> Fault {
        Fault { unsent: true, doing, ..Fault::new(kind, status) }
    }
}

/// Returns the consequence of an error on a connection that was there.
fn blame_of(e: Errno) -> Blame {
    // A shortage of memory or descriptors on this machine says nothing about the server.
    if blame::is_shortage(e) { Blame::Nobody } else { Blame::Server }
}

/// Logs that the client is gone.
pub fn client_gone(req: &mut Request, doing: &str) -> Fault {
    req.log(
        // nginx has the same level and words, which people and tools look for in logs.
        Level::Info,
        &format!(
            "epoll_wait() reported that client prematurely closed connection, so upstream connection is \
             closed too while {doing}"
        ),
    );
    Fault::own(499)
}

/// Logs why a server has failed. The text stays with the server as the reason ([`forebay_core::upstream::peer::Live::note_failure`]).
#[cold]
pub fn log(req: &mut Request, level: Level, text: &str) {
    req.log(level, text);
    CALL.of_mut(req).reason = Some(text.into());
}

/// Logs that a request cannot be sent.
pub fn send_failed(req: &mut Request, e: Errno) -> Fault {
    log(req, Level::Error, &format!("send() failed {} {SENDING}", errno_text(e)));
    Fault { doing: SENDING, blame: blame_of(e), ..Fault::new(NextUpstream::Error, 502) }
}

/// Logs that a server takes nothing of a request.
pub fn send_timeout(req: &mut Request) -> Fault {
    log(
        req,
        Level::Error,
        "upstream timed out (110: Connection timed out) while sending request to upstream",
    );
    Fault { doing: SENDING, ..Fault::new(NextUpstream::Timeout, 504) }
}

/// Logs that a server closed its connection too early.
pub fn closed(req: &mut Request, doing: &str) -> Fault {
    log(req, Level::Error, &format!("upstream prematurely closed connection {doing}"));
    Fault::new(NextUpstream::Error, 502)
}

/// Logs that a connection cannot be read.
pub fn receive_failed(req: &mut Request, e: Errno, doing: &str) -> Fault {
    log(req, Level::Error, &format!("recv() failed {} {doing}", errno_text(e)));
    Fault { blame: blame_of(e), ..Fault::new(NextUpstream::Error, 502) }
}

/// Logs that a server was silent for too long.
pub fn timed_out(req: &mut Request, doing: &str) -> Fault {
    log(req, Level::Error, &format!("upstream timed out (110: Connection timed out) {doing}"));
    Fault::new(NextUpstream::Timeout, 504)
}

/// Logs that the head of a response is invalid.
pub fn bad_head(req: &mut Request, message: &[u8]) -> Fault {
    log(req, Level::Error, &format!("{} {READING}", String::from_utf8_lossy(message)));
    Fault::new(NextUpstream::InvalidHeader, 502)
}
