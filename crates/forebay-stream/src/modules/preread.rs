//! Reading of a session's first bytes before its content handler runs (nginx: the preread phase of ngx_stream_core_module, and
//! ngx_stream_ssl_preread_module).

use crate::config::Server;
use crate::session::Session;
use crate::variables::{Row, row};
use forebay_conf::error::Level;
use forebay_core::config::value::{Msec, Size};
use forebay_net::tls::hello::{Hello, Reading};
use rustix::io::Errno;
use std::time::Duration;

forebay_core::settings! {
    /// `preread_buffer_size`.
    "preread_buffer_size" => buffer_size: Size = Size(16 * 1024);
    /// `preread_timeout`: time for all that is read.
    "preread_timeout" => timeout: Msec = Msec(Duration::from_secs(30));
    /// `ssl_preread`.
    "ssl_preread" => ssl: bool = false;
}

/// Names of versions, as on the wire.
const VERSIONS: [(u16, &str); 6] = [
    (0x0002, "SSLv2"),
    (0x0300, "SSLv3"),
    (0x0301, "TLSv1"),
    (0x0302, "TLSv1.1"),
    (0x0303, "TLSv1.2"),
    (0x0304, "TLSv1.3"),
];

/// Variables of this module.
pub(crate) const VARIABLES: &[Row] = &[
    row("ssl_preread_server_name", |s, o| {
        let Some(hello) = &s.hello else { return Ok(false) };
        let name = hello.written_name.as_ref().or(hello.server_name.as_ref());
        o.extend_from_slice(name.map_or(b"", |name| name));
        Ok(true)
    }),
    row("ssl_preread_alpn_protocols", |s, o| {
        let Some(hello) = &s.hello else { return Ok(false) };
        o.extend_from_slice(&hello.protocols().collect::<Vec<_>>().join(&b','));
        Ok(true)
    }),
    row("ssl_preread_protocol", |s, o| {
        let Some(hello) = &s.hello else { return Ok(false) };
        let name = VERSIONS.iter().find(|(version, _)| *version == hello.version);
        o.extend_from_slice(name.map_or(b"", |(_, name)| name.as_bytes()));
        Ok(true)
    }),
];

/// Reads the ClientHello, if the server asks for it. The bytes stay for the content handler. Returns the status with which the
/// session ends.
pub(crate) async fn read(s: &mut Session, server: &Server) -> Option<u16> {
    let settings = &server.settings.preread;
    // A datagram is no TLS: nothing more of it can be waited for.
    if !settings.ssl || s.udp.is_some() {
        return None;
    }
    let most = settings.buffer_size.0 as usize;
    let thread = s.thread.clone();
    let deadline = thread.io.poller.after(settings.timeout.0);
    let mut reading = Reading::default();
    loop {
        match reading.more(&s.early) {
            Ok(None) => {}
            Ok(Some(hello)) => {
                s.hello = Some(Box::new(hello));
                return None;
            }
            // Something other than TLS is passed on as it is.
            Err(_) => {
                s.hello = old_hello(&s.early).map(Box::new);
                return None;
            }
        }
        if s.early.len() >= most {
            s.log(Level::Error, "preread buffer full");
            return Some(400);
        }
        s.early.reserve(most - s.early.len());
        match s.wire.read(&thread.io, &mut s.early) {
            Ok(0) => return Some(200),
            Ok(n) => s.received += n as u64,
            Err(Errno::AGAIN) => {
                let readable = s.wire.wait_readable(&thread.io);
                if thread.io.poller.until(deadline, readable).await.is_none() {
                    s.log(
                        Level::Info,
                        "client timed out (110: Connection timed out) while prereading client data",
                    );
                    return Some(200);
                }
            }
            Err(_) => return Some(400),
        }
    }
}

/// Returns a ClientHello in the form of SSL 2.0, with its version only (RFC 5246, appendix E.2).
fn old_hello(bytes: &[u8]) -> Option<Hello> {
    match bytes {
        [length, _, 1, a, b, ..] if length & 0x80 != 0 => {
            Some(Hello { version: u16::from_be_bytes([*a, *b]), ..Hello::default() })
        }
        _ => None,
    }
}
