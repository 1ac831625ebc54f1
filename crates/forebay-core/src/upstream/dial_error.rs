//! Texts for the error log about connections that cannot be opened (nginx: ngx_event_connect).

use forebay_conf::error::Level;
use forebay_net::addr::PeerAddr;
use forebay_net::dial::{DialError, DialSettings, OwnStep};
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::net::SocketAddr;

/// Action that fails, in the words of the log.
pub const CONNECTING: &str = "while connecting to upstream";

/// Consequence of a failure for the choice of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// It counts as the server's, and another one may be asked.
    Server,
    /// It does not count as the server's. Another one may be asked, since what is missing here may be there for that.
    Nobody,
    /// It does not count as the server's, and another one would not help.
    Ours,
}

/// Returns the consequence of a failure.
pub fn blame(e: &DialError) -> Blame {
    match e {
        DialError::Own(OwnStep::Connect, _) => Blame::Nobody,
        DialError::Own(..) | DialError::ClientGone => Blame::Ours,
        DialError::Connect(_) | DialError::Greeting(_) | DialError::Timeout => Blame::Server,
    }
}

/// Returns the line for the error log about a connection that cannot be opened.
pub fn text(s: &DialSettings<'_>, e: &DialError) -> (Level, String) {
    match e {
        DialError::Connect(e) | DialError::Own(OwnStep::Connect, e) => connect_failed(s.addr, *e),
        DialError::Own(OwnStep::Bind, e) => {
            let local = s.local.map(|local| name_of_local(local.addr)).unwrap_or_default();
            (Level::Crit, format!("bind({local}) failed {} {CONNECTING}", errno_text(*e)))
        }
        DialError::Own(OwnStep::Transparent, e) => {
            (Level::Alert, format!("setsockopt(IP_TRANSPARENT) failed {} {CONNECTING}", errno_text(*e)))
        }
        DialError::Own(OwnStep::Socket, e) => {
            (Level::Alert, format!("socket() failed {} {CONNECTING}", errno_text(*e)))
        }
        DialError::Greeting(e) => {
            let doing = "while sending PROXY protocol header to upstream";
            (Level::Error, format!("send() failed {} {doing}", errno_text(*e)))
        }
        DialError::Timeout | DialError::ClientGone => {
            (Level::Error, format!("upstream timed out (110: Connection timed out) {CONNECTING}"))
        }
    }
}

fn connect_failed(addr: &PeerAddr, e: Errno) -> (Level, String) {
    let (level, to) = match addr {
        PeerAddr::Unix(p) if e == Errno::NOENT => (Level::Crit, format!("to unix:{} ", p.display())),
        PeerAddr::Unix(p) => (Level::Error, format!("to unix:{} ", p.display())),
        PeerAddr::Inet(_) => (Level::Error, String::new()),
    };
    (level, format!("connect() {to}failed {} {CONNECTING}", errno_text(e)))
}

/// Returns the text of a local address, without a port of 0.
fn name_of_local(a: SocketAddr) -> String {
    if a.port() == 0 { a.ip().to_string() } else { a.to_string() }
}
