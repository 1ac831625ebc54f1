//! Handshakes by rustls, from the first bytes of a connection to its keys.

use super::record::{self, ALERT, CCS, DATA, HANDSHAKE, HEADER, Half, TAG};
use super::stream::{MAX_FLIGHT, Stream, drain, receive};
use super::traffic::{Kernel, Traffic};
use crate::io::Io;
use crate::reactor::Token;
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ExtractedSecrets, HandshakeKind, PeerMisbehaved};

/// Alert `protocol_version`.
const PROTOCOL_VERSION: u8 = 70;
/// Alert `decode_error`.
const DECODE_ERROR: u8 = 50;
/// Alert `unexpected_message`.
pub(super) const UNEXPECTED_MESSAGE: u8 = 10;
/// A ChangeCipherSpec with a value that does not exist. rustls writes no alert for a record without a type; for this it
/// writes the one that belongs to both, `unexpected_message` (RFC 8446, sections 5 and 5.4).
const NO_CCS: [u8; 6] = [CCS, 3, 3, 0, 1, 2];

/// State of a connection.
pub(super) enum StreamState {
    /// A server's connection before its ClientHello is complete.
    Hello(Vec<u8>, super::hello::Reading),
    Server(Box<UnbufferedServerConnection>, Flight),
    Client(Box<UnbufferedClientConnection>, Flight),
    Traffic(Box<Traffic>),
    Broken,
}

/// Received bytes of a handshake. rustls gets one record at a time.
///
/// Otherwise it would also open the records behind the last message of the handshake. Those are for [`Traffic`], which
/// accepts fragmented messages and answers errors with an alert.
#[derive(Default)]
pub(super) struct Flight {
    pub(super) received: Vec<u8>,
    /// Bytes of `received` that rustls gets.
    pub(super) shown: usize,
}

impl Flight {
    pub(super) fn new(received: Vec<u8>) -> Flight {
        Flight { received, shown: 0 }
    }

    fn shown(&mut self) -> &mut [u8] {
        self.received.get_mut(..self.shown).unwrap_or_default()
    }

    /// Removes bytes that rustls has used.
    fn discard(&mut self, n: usize) {
        let n = n.min(self.shown);
        self.received.drain(..n);
        self.shown -= n;
    }

    /// Removes records of early data that rustls has skipped. Otherwise it would skip them again with every record behind
    /// them, and count their bytes each time.
    ///
    /// rustls overwrites what it cannot open with zeros, except the tag. A fragment of a message, which it still needs,
    /// contains its type.
    fn discard_skipped(&mut self) {
        while let Ok(Some(n)) = record::whole(self.shown())
            && let Some([DATA, _, _, _, _, body @ ..]) = self.shown().get(..n)
            && let Some(content @ [_, ..]) = body.get(..body.len().saturating_sub(TAG))
            && content.iter().all(|b| *b == 0)
        {
            self.discard(n);
        }
    }

    /// Gives rustls one record more, or everything if that cannot be a record, so that rustls reports it. Returns `false` if
    /// there is none.
    fn show_more(&mut self) -> bool {
        let rest = self.received.get(self.shown..).unwrap_or_default();
        let more = match record::whole(rest) {
            Ok(whole) => whole.unwrap_or(0),
            Err(_) => rest.len(),
        };
        self.shown += more;
        more > 0
    }
}

/// Failure of a handshake.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HandshakeFailure {
    pub(super) text: String,
    pub(super) alert: AlertDue,
}

/// State of the alert for a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AlertDue {
    /// It is written, or the peer does not expect one.
    Nothing,
    /// The next turn of rustls writes it, if rustls has one for this failure.
    Soon,
    /// rustls has none for a record without a type; [`NO_CCS`] makes it write one.
    Forced,
}

impl AlertDue {
    fn of(e: &rustls::Error) -> AlertDue {
        match e {
            rustls::Error::PeerMisbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext) => AlertDue::Forced,
            rustls::Error::PeerMisbehaved(_) => AlertDue::Soon,
            _ => AlertDue::Nothing,
        }
    }
}

/// Parameters that a handshake agreed on.
#[derive(Clone, Debug, Default)]
pub struct Agreed {
    /// TLS 1.3, else 1.2.
    pub v13: bool,
    /// Number of the cipher suite.
    pub suite: u16,
    /// Number of the group; 0 if none was used.
    pub group: u16,
    /// Protocol chosen by ALPN.
    pub alpn: Option<Box<[u8]>>,
    /// Resumed.
    pub resumed: bool,
    /// The peer's certificates, its own first.
    pub peer: Vec<CertificateDer<'static>>,
}

impl Agreed {
    /// Returns the parameters of a connection whose handshake is complete.
    pub(crate) fn of(c: &rustls::CommonState) -> Agreed {
        Agreed {
            v13: c.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3),
            suite: c.negotiated_cipher_suite().map_or(0, |s| u16::from(s.suite())),
            group: c.negotiated_key_exchange_group().map_or(0, |g| u16::from(g.name())),
            alpn: c.alpn_protocol().map(Into::into),
            resumed: c.handshake_kind() == Some(HandshakeKind::Resumed),
            peer: c.peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
        }
    }
}

/// Results of a complete handshake.
struct Complete {
    agreed: Agreed,
    secrets: ExtractedSecrets,
    kernel: Kernel,
    /// Bytes that came after the handshake.
    flight: Flight,
}

impl StreamState {
    /// Takes a connection apart whose handshake is complete.
    fn into_complete(self) -> Option<Complete> {
        match self {
            StreamState::Server(conn, flight) => {
                let agreed = Agreed::of(&conn);
                let (secrets, kernel) = conn.dangerous_into_kernel_connection().ok()?;
                Some(Complete { agreed, secrets, kernel: Kernel::Server(kernel), flight })
            }
            StreamState::Client(conn, flight) => {
                let agreed = Agreed::of(&conn);
                let (secrets, kernel) = conn.dangerous_into_kernel_connection().ok()?;
                Some(Complete { agreed, secrets, kernel: Kernel::Client(kernel), flight })
            }
            _ => None,
        }
    }
}

/// Result of a step of a handshake.
#[derive(Debug)]
pub enum Step {
    /// The handshake needs more input.
    Read,
    /// The socket has no room for the output.
    Write,
    /// The handshake is complete.
    Done(Box<Agreed>),
    /// The peer closed the connection.
    Closed,
    /// Reading or writing failed.
    Failed(Errno),
    /// The peer does not speak TLS, or has nothing in common with us.
    Refused(String),
}

/// Result of letting rustls process the received records.
enum Progress {
    Unfinished,
    Finished,
    /// The handshake has failed; text for the error log.
    Failed(String),
}

/// First bytes of a connection.
#[derive(Debug)]
pub enum Greeting {
    /// Not complete yet.
    Partial,
    /// A ClientHello.
    Hello(Box<super::hello::Hello>),
    /// Plain bytes, perhaps HTTP.
    Plain(Vec<u8>),
    /// Neither of these, with the alert to send.
    Broken(u8),
}

impl Greeting {
    /// Judges the bytes that have come. Returns `None` if there are too few of them.
    fn of(input: &mut Vec<u8>, reading: &mut super::hello::Reading) -> Option<Greeting> {
        match input.first() {
            Some(&HANDSHAKE) => match reading.more(input) {
                Ok(hello) => hello.map(|hello| Greeting::Hello(Box::new(hello))),
                Err(e) => Some(Greeting::Broken(e.alert().unwrap_or(DECODE_ERROR))),
            },
            // SSL 2.0, which is not supported.
            Some(b) if b & 0x80 != 0 => Some(Greeting::Broken(PROTOCOL_VERSION)),
            Some(_) => Some(Greeting::Plain(std::mem::take(input))),
            None => None,
        }
    }
}

/// Receives bytes of a handshake. Returns their number, 0 at the end of the connection; `None` if none have come.
fn receive_more(io: &Io, token: Token, input: &mut Vec<u8>) -> Result<Option<usize>, Errno> {
    if !io.poller.is_readable(token) {
        return Ok(None);
    }
    match receive(io, token, input, 4096) {
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN) => Ok(None),
        Err(e) => Err(e),
    }
}

impl Stream {
    /// Reads the first bytes of a connection. Returns `Ok(None)` if it was closed.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn greeting(&mut self, io: &Io, token: Token) -> Result<Option<Greeting>, Errno> {
        let StreamState::Hello(input, reading) = &mut self.state else {
            return Ok(Some(Greeting::Broken(DECODE_ERROR)));
        };
        loop {
            if let Some(greeting) = Greeting::of(input, reading) {
                return Ok(Some(greeting));
            }
            let Some(n) = receive_more(io, token, input)? else { return Ok(Some(Greeting::Partial)) };
            if n == 0 {
                return Ok(None);
            }
        }
    }

    /// Returns `true` once the ClientHello has been taken.
    pub fn greeted(&self) -> bool {
        !matches!(self.state, StreamState::Hello(..))
    }

    /// Continues with the configuration that was chosen.
    pub fn choose(&mut self, conn: UnbufferedServerConnection) {
        if let StreamState::Hello(input, _) = &mut self.state {
            let input = std::mem::take(input);
            self.state = StreamState::Server(Box::new(conn), Flight::new(input));
        }
    }

    /// Refuses a handshake after its ClientHello (RFC 6066, section 3; RFC 8446, section 6.2).
    pub fn refuse(&mut self, io: &Io, token: Token, alert: u8) {
        self.state = StreamState::Broken;
        self.owed.extend_from_slice(&plain_alert(alert));
        let _ = self.flush(io, token, SendFlags::NOSIGNAL);
        drain(io, token);
    }

    /// Continues the handshake as far as it can without waiting.
    pub fn handshake(&mut self, io: &Io, token: Token) -> Step {
        match self.state {
            StreamState::Server(..) | StreamState::Client(..) => {}
            StreamState::Hello(..) => return Step::Read,
            StreamState::Traffic(_) | StreamState::Broken => return Step::Failed(Errno::PROTO),
        }
        loop {
            if let Err(step) = self.exchange_flights(io, token) {
                return step;
            }
        }
    }

    /// Processes what has been received, sends the answer and receives more. The error is the step at which the handshake
    /// stops.
    fn exchange_flights(&mut self, io: &Io, token: Token) -> Result<(), Step> {
        match (self.process(), self.flush(io, token, SendFlags::NOSIGNAL)) {
            // The alert may not have left completely, but the connection ends in any case.
            (Progress::Failed(text), _) => {
                drain(io, token);
                self.state = StreamState::Broken;
                Err(Step::Refused(text))
            }
            (_, Err(e)) => Err(Step::Failed(e)),
            // The rest of the flight leaves before the first record of content.
            (Progress::Finished, Ok(_)) => {
                let agreed = self.take_keys();
                Err(agreed.map_or(Step::Failed(Errno::PROTO), |agreed| Step::Done(Box::new(agreed))))
            }
            (Progress::Unfinished, Ok(false)) => Err(Step::Write),
            (Progress::Unfinished, Ok(true)) => self.receive_flight(io, token),
        }
    }

    /// Lets rustls process what has been received.
    fn process(&mut self) -> Progress {
        let mut failure = None;
        let finished = match &mut self.state {
            StreamState::Server(conn, flight) => turns(flight, &mut failure, |input, failure| {
                let UnbufferedStatus { discard, state } = conn.process_tls_records(input);
                let turn = match state {
                    Ok(ConnectionState::ReadEarlyData(mut early)) => {
                        self.early = true;
                        while let Some(Ok(data)) = early.next_record() {
                            self.ready.extend_from_slice(data.payload);
                        }
                        Turn::Again
                    }
                    state => take_turn(state, &mut self.owed, &mut self.ready, &mut self.ended, failure),
                };
                (discard, turn)
            }),
            StreamState::Client(conn, flight) => turns(flight, &mut failure, |input, failure| {
                let UnbufferedStatus { discard, state } = conn.process_tls_records(input);
                let turn = take_turn(state, &mut self.owed, &mut self.ready, &mut self.ended, failure);
                (discard, turn)
            }),
            _ => false,
        };
        match failure {
            None if finished => Progress::Finished,
            None => Progress::Unfinished,
            Some(failure) => {
                if failure.alert == AlertDue::Soon && self.is_in_clear() {
                    self.owed.extend_from_slice(&plain_alert(UNEXPECTED_MESSAGE));
                }
                Progress::Failed(failure.text)
            }
        }
    }

    /// Receives more of the handshake. The error is the step at which it stops.
    fn receive_flight(&mut self, io: &Io, token: Token) -> Result<(), Step> {
        if self.ended {
            return Err(Step::Closed);
        }
        let (StreamState::Server(_, flight) | StreamState::Client(_, flight)) = &mut self.state else {
            return Err(Step::Failed(Errno::PROTO));
        };
        let input = &mut flight.received;
        // A peer that never completes its flight must not fill the memory of the server.
        if input.len() > MAX_FLIGHT {
            return Err(Step::Refused("handshake is too long".to_owned()));
        }
        match receive_more(io, token, input).map_err(Step::Failed)? {
            None => Err(Step::Read),
            Some(0) => Err(Step::Closed),
            Some(_) => Ok(()),
        }
    }

    /// Returns `true` if a server's alert is not encrypted: before TLS 1.2 has changed its keys, which a resumed session does
    /// first.
    pub(super) fn is_in_clear(&self) -> bool {
        let StreamState::Server(conn, _) = &self.state else { return false };
        conn.protocol_version() != Some(rustls::ProtocolVersion::TLSv1_3)
            && conn.handshake_kind() != Some(HandshakeKind::Resumed)
    }

    /// Takes the keys from rustls.
    pub(super) fn take_keys(&mut self) -> Option<Agreed> {
        // rustls gives the keys only by value; if that fails, the connection stays broken.
        let done = std::mem::replace(&mut self.state, StreamState::Broken).into_complete()?;
        let Complete { agreed, secrets: ExtractedSecrets { tx, rx }, kernel, flight } = done;
        let v13 = agreed.v13;
        let (tx, rx) = (Half::new(tx, v13)?, Half::new(rx, v13)?);
        // Tickets and changes of keys after the handshake exist in TLS 1.3 only.
        let kernel = if v13 { kernel } else { Kernel::Done };
        self.partial = flight.received;
        if self.partial.is_empty() {
            // The capacity is dropped, so that an idle connection keeps no buffer.
            self.partial = Vec::new();
        }
        // The socket may report no further event for bytes that have been received already. A broken record counts,
        // too, as the next read reports it.
        self.unopened = !matches!(record::whole(&self.partial), Ok(None));
        self.state = StreamState::Traffic(Box::new(Traffic {
            tx,
            rx,
            kernel,
            v13,
            empty: 0,
            unsent: 0,
            message: Vec::new(),
        }));
        Some(agreed)
    }
}

/// Returns `true` if a record is an alert, by its type or by the length that only alerts have in TLS 1.3.
pub(super) fn is_alert(record: &[u8]) -> bool {
    const SEALED: usize = HEADER + 2 + 1 + 16;
    record.first() == Some(&ALERT) || record.len() == SEALED
}

/// Returns a fatal alert that is not encrypted.
pub(super) fn plain_alert(alert: u8) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, 2, alert]
}

pub(super) enum Turn {
    Again,
    Blocked,
    Finished,
}

/// Takes turns until rustls needs more than was received. Returns `true` if the handshake is complete.
pub(super) fn turns(
    flight: &mut Flight,
    failure: &mut Option<HandshakeFailure>,
    mut turn: impl FnMut(&mut [u8], &mut Option<HandshakeFailure>) -> (usize, Turn),
) -> bool {
    loop {
        let (discard, turn) = turn(flight.shown(), failure);
        flight.discard(discard);
        // rustls has an alert for this record, and it is the one that the failure calls for.
        if failure.as_ref().is_some_and(|f| f.alert == AlertDue::Forced) {
            *flight = Flight { received: NO_CCS.to_vec(), shown: NO_CCS.len() };
        }
        match turn {
            Turn::Again => {}
            Turn::Finished => return true,
            Turn::Blocked => {
                flight.discard_skipped();
                if failure.is_some() || !flight.show_more() {
                    return false;
                }
            }
        }
    }
}

/// Appends a record that rustls has to send. Returns its bytes.
fn encode_record<'o, Data>(mut encode: EncodeTlsData<'_, Data>, owed: &'o mut Vec<u8>) -> &'o [u8] {
    let at = owed.len();
    let need = match encode.encode(&mut []) {
        Err(EncodeError::InsufficientSize(e)) => e.required_size,
        _ => 0,
    };
    // rustls tells the length only by failing: the first call is made with no room.
    owed.resize(at + need, 0);
    let n = encode.encode(owed.get_mut(at..).unwrap_or_default()).unwrap_or(0);
    owed.truncate(at + n);
    owed.get(at..).unwrap_or_default()
}

/// Does the next step of rustls.
pub(super) fn take_turn<Data>(
    state: Result<ConnectionState<'_, '_, Data>, rustls::Error>,
    owed: &mut Vec<u8>,
    ready: &mut Vec<u8>,
    ended: &mut bool,
    failure: &mut Option<HandshakeFailure>,
) -> Turn {
    match state {
        Ok(ConnectionState::EncodeTlsData(encode)) => {
            let written = encode_record(encode, owed);
            // The alert is the last record. Another step would fail in the same way.
            match failure {
                Some(failure) if is_alert(written) => {
                    failure.alert = AlertDue::Nothing;
                    Turn::Blocked
                }
                _ => Turn::Again,
            }
        }
        Ok(ConnectionState::TransmitTlsData(transmit)) => {
            transmit.done();
            Turn::Again
        }
        Ok(ConnectionState::ReadTraffic(mut traffic)) => {
            while let Some(Ok(data)) = traffic.next_record() {
                ready.extend_from_slice(data.payload);
            }
            Turn::Again
        }
        Ok(ConnectionState::WriteTraffic(_)) => Turn::Finished,
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            *ended = true;
            Turn::Blocked
        }
        Ok(_) => Turn::Blocked,
        // rustls gives the alert for the error with the next turn.
        Err(e) if failure.is_none() => {
            *failure = Some(HandshakeFailure { alert: AlertDue::of(&e), text: e.to_string() });
            Turn::Again
        }
        Err(_) => match failure {
            Some(failure) if failure.alert == AlertDue::Forced => {
                failure.alert = AlertDue::Soon;
                Turn::Again
            }
            _ => Turn::Blocked,
        },
    }
}
