//! Reading of a session's first message before its content handler runs (nginx: the preread phase of ngx_stream_core_module,
//! ngx_stream_ssl_preread_module and ngx_stream_mqtt_preread_module; Angie: stream_rdp_preread).

use crate::config::Server;
use crate::modules::ssl;
use crate::session::Session;
use crate::variables::{Row, row};
use forebay_conf::error::Level;
use forebay_core::config::value::{Msec, Size};
use forebay_core::vars::{RowSource, VarError};
use forebay_http::{mqtt, rdp};
use forebay_net::reactor::Deadline;
use forebay_net::tls::hello::{Hello, Reading};
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::time::Duration;

forebay_core::settings! {
    /// `preread_buffer_size`.
    "preread_buffer_size" => buffer_size: Size = Size(16 * 1024);
    /// `preread_timeout`: time for all that is read.
    "preread_timeout" => timeout: Msec = Msec(Duration::from_secs(30));
    /// `ssl_preread`.
    "ssl_preread" => ssl: bool = false;
    /// `ssl_passthrough`: TLS of connections for this server does not end here.
    "ssl_passthrough" => passes: bool = false;
    /// `mqtt_preread`.
    "mqtt_preread" => mqtt: bool = false;
    /// `rdp_preread`.
    "rdp_preread" => rdp: bool = false;
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
        let Some(hello) = hello(s) else { return Ok(false) };
        let name = hello.written_name.as_ref().or(hello.server_name.as_ref());
        o.extend_from_slice(name.map_or(b"", |name| name));
        Ok(true)
    }),
    row("ssl_preread_alpn_protocols", |s, o| {
        let Some(hello) = hello(s) else { return Ok(false) };
        o.extend_from_slice(&hello.protocols().collect::<Vec<_>>().join(&b','));
        Ok(true)
    }),
    row("ssl_preread_protocol", |s, o| {
        let Some(hello) = hello(s) else { return Ok(false) };
        let name = VERSIONS.iter().find(|(version, _)| *version == hello.version);
        o.extend_from_slice(name.map_or(b"", |(_, name)| name.as_bytes()));
        Ok(true)
    }),
    row("mqtt_preread_clientid", |s, o| {
        let Some(FirstMessage::Connect(connect)) = s.first_message.as_deref() else { return Ok(false) };
        o.extend_from_slice(&connect.client_id);
        Ok(true)
    }),
    row("mqtt_preread_username", |s, o| {
        let Some(FirstMessage::Connect(connect)) = s.first_message.as_deref() else { return Ok(false) };
        let Some(name) = &connect.user_name else { return Ok(false) };
        o.extend_from_slice(name);
        Ok(true)
    }),
    row("rdp_cookie", |s, o| rdp_cookie(s, o, |cookie| Some(cookie))),
    Row { name: "rdp_cookie_*", get: RowSource::Prefix(named_cookie), settable: false },
];

/// Returns the ClientHello that has been read.
pub(crate) fn hello(s: &Session) -> Option<&Hello> {
    match s.first_message.as_deref() {
        Some(FirstMessage::Hello(hello)) => Some(hello),
        _ => None,
    }
}

/// Appends what `part` takes of the RDP cookie.
fn rdp_cookie(
    s: &Session,
    out: &mut Vec<u8>,
    part: impl Fn(&[u8]) -> Option<&[u8]>,
) -> Result<bool, VarError> {
    let Some(FirstMessage::Request { cookie }) = s.first_message.as_deref() else { return Ok(false) };
    let Some(text) = part(cookie) else { return Ok(false) };
    out.extend_from_slice(text);
    Ok(true)
}

fn named_cookie(s: &mut Session, name: &[u8], out: &mut Vec<u8>) -> Result<bool, VarError> {
    rdp_cookie(s, out, |cookie| rdp::value(cookie, name))
}

/// First message of a client.
#[derive(Debug)]
pub(crate) enum FirstMessage {
    /// ClientHello of TLS.
    Hello(Hello),
    /// CONNECT packet of MQTT.
    Connect(mqtt::Connect),
    /// Connection request of RDP.
    Request {
        /// Its cookie, `NAME=VALUE`; empty if it has none.
        cookie: Vec<u8>,
    },
}

/// Reader of a protocol's first message.
enum Reader {
    Tls(Reading),
    Mqtt,
    Rdp,
}

/// Result of looking at the bytes that have come.
enum Look {
    /// More are needed.
    Partial,
    /// They begin with the message.
    Found(Box<FirstMessage>),
    /// They are of another protocol.
    Other,
}

impl Look {
    fn of<E>(read: Result<Option<FirstMessage>, E>) -> Look {
        match read {
            Ok(Some(message)) => Look::Found(Box::new(message)),
            Ok(None) => Look::Partial,
            Err(_) => Look::Other,
        }
    }
}

impl Reader {
    /// Looks at all bytes that have come.
    fn look(&mut self, bytes: &[u8]) -> Look {
        match self {
            Reader::Tls(reading) => {
                let read = reading.more(bytes).or_else(|_| old_hello(bytes).map(Some).ok_or(()));
                Look::of(read.map(|hello| hello.map(FirstMessage::Hello)))
            }
            Reader::Mqtt => Look::of(mqtt::parse(bytes).map(|connect| connect.map(FirstMessage::Connect))),
            Reader::Rdp => Look::of(
                rdp::cookie(bytes)
                    .map(|cookie| cookie.map(|cookie| FirstMessage::Request { cookie: cookie.to_vec() })),
            ),
        }
    }
}

/// Reads the first message, if the server asks for one. Something of another protocol is passed on as it is. The bytes stay for
/// the content handler. Returns the status with which the session ends.
pub(crate) async fn read(s: &mut Session, server: &Server) -> Option<u16> {
    let settings = &server.settings.preread;
    // A datagram is none of these protocols: nothing more of it can be waited for.
    if s.udp.is_some() || !(settings.ssl || settings.mqtt || settings.rdp) {
        return None;
    }
    let deadline = s.thread.io.poller.after(settings.timeout.0);
    let readers = [
        (settings.ssl, Reader::Tls(Reading::default())),
        (settings.mqtt, Reader::Mqtt),
        (settings.rdp, Reader::Rdp),
    ];
    for (_, mut reader) in readers.into_iter().filter(|(on, _)| *on) {
        loop {
            match reader.look(&s.early) {
                Look::Found(message) => {
                    s.first_message = Some(message);
                    return None;
                }
                Look::Other => break,
                Look::Partial => {}
            }
            if let Err(status) = receive(s, settings, deadline).await {
                return Some(status);
            }
        }
    }
    None
}

/// Reads the ClientHello of a connection at a listener with `ssl` before TLS begins, and chooses the server by its name: that of
/// some servers passes as it is (`ssl_passthrough`). Returns the status with which the session ends.
pub(crate) async fn read_hello(s: &mut Session, server: &Server) -> Option<u16> {
    let encrypts = s.client.address(&s.conf).is_some_and(|a| a.options.ssl);
    if !encrypts || s.wire.is_tls() {
        return None;
    }
    let settings = &server.settings.preread;
    let deadline = s.thread.io.poller.after(settings.timeout.0);
    let mut reader = Reader::Tls(Reading::default());
    let name = loop {
        match reader.look(&s.early) {
            Look::Found(message) => match *message {
                FirstMessage::Hello(hello) => break hello.server_name,
                _ => break None,
            },
            Look::Other => break None,
            Look::Partial => {}
        }
        if let Err(status) = receive(s, settings, deadline).await {
            return Some(status);
        }
    };
    name.and_then(|name| ssl::choose_server(s, &name))
}

/// Receives more bytes. Fails with the status with which the session ends.
async fn receive(s: &mut Session, settings: &Settings, deadline: Deadline) -> Result<(), u16> {
    let most = settings.buffer_size.0 as usize;
    let thread = s.thread.clone();
    loop {
        if s.early.len() >= most {
            s.log(Level::Error, "preread buffer full while prereading client data");
            return Err(400);
        }
        s.early.reserve(most - s.early.len());
        match s.wire.read(&thread.io, &mut s.early) {
            Ok(0) => return Err(200),
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN) => {
                let readable = s.wire.wait_readable(&thread.io);
                if thread.io.poller.until(deadline, readable).await.is_none() {
                    s.log(
                        Level::Info,
                        "client timed out (110: Connection timed out) while prereading client data",
                    );
                    return Err(200);
                }
            }
            Err(e) => {
                let error = errno_text(e);
                s.log(Level::Info, &format!("recv() failed {error} while prereading client data"));
                return Err(200);
            }
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
