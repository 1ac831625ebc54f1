//! A connection that is encrypted, from its first record to its last. The handshake is rustls'; then its keys
//! go to [`super::record`]. Nothing here waits. Hot path.

use super::record::{self, ALERT, Broken, CCS, DATA, HANDSHAKE, HEADER, Half, MAX_CONTENT, OVERHEAD, TAG};
use super::traffic::{Kernel, Traffic};
use crate::io::Io;
use crate::reactor::Token;
use crate::wire::{self, Sent, Then, transmit};
use rustix::io::{Errno, IoSlice};
use rustix::net::SendFlags;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{ExtractedSecrets, HandshakeKind, PeerMisbehaved};

/// Content sent with one call, bytes: to a client that takes all of it, at first, and to one that did not. What a client
/// does not take is owed to it, in memory.
const BATCH: usize = 8 * MAX_CONTENT;
const FIRST_BATCH: usize = 4 * MAX_CONTENT;
const SMALL_BATCH: usize = 2 * MAX_CONTENT;
/// Room of the buffer that records are sealed into: a batch in small records has more of them.
const OUTPUT: usize = BATCH + BATCH / 16;
/// Bytes received with one call.
const INPUT: usize = 32 * 1024;
/// Longest handshake flight that is kept while more is to come, bytes.
const MAX_FLIGHT: usize = 256 * 1024;
/// Alert `protocol_version`.
const PROTOCOL_VERSION: u8 = 70;
/// Alert `decode_error`.
const DECODE_ERROR: u8 = 50;
/// Alert `unexpected_message`.
const UNEXPECTED_MESSAGE: u8 = 10;
/// A ChangeCipherSpec with a value that does not exist. rustls writes no alert for a record without a type; for this it
/// writes the one that belongs to both, `unexpected_message` (RFC 8446, sections 5 and 5.4).
const NO_CCS: [u8; 6] = [CCS, 3, 3, 0, 1, 2];

/// Buffers of a thread, for whichever connection has its turn.
#[derive(Debug, Default)]
pub struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Scratch {
    fn output(&mut self) -> &mut [u8] {
        if self.output.is_empty() {
            self.output = vec![0; OUTPUT];
        }
        &mut self.output
    }
}

enum State {
    /// A server that waits for a ClientHello.
    Hello(Vec<u8>, super::hello::Reading),
    Server(Box<UnbufferedServerConnection>, Flight),
    Client(Box<UnbufferedClientConnection>, Flight),
    Traffic(Box<Traffic>),
    Broken,
}

/// Received bytes of a handshake, of which rustls sees one record more at a time.
///
/// rustls would open everything that is behind the last message of the handshake as well. Those records are for
/// [`Traffic`], which knows messages in pieces and answers what is wrong with an alert.
#[derive(Default)]
struct Flight {
    received: Vec<u8>,
    /// Bytes of `received` that rustls sees.
    shown: usize,
}

impl Flight {
    fn new(received: Vec<u8>) -> Flight {
        Flight { received, shown: 0 }
    }

    fn shown(&mut self) -> &mut [u8] {
        self.received.get_mut(..self.shown).unwrap_or_default()
    }

    /// Removes bytes that rustls needs no more.
    fn discard(&mut self, n: usize) {
        let n = n.min(self.shown);
        self.received.drain(..n);
        self.shown -= n;
    }

    /// Removes records of early data that rustls has passed over. It would look at them again with every record behind them,
    /// and count their bytes against what it passes over each time.
    ///
    /// They are those of which nothing is left but the tag: what cannot be opened is overwritten with zeros. A piece of a
    /// message, which is needed, has its type.
    fn discard_skipped(&mut self) {
        while let Ok(Some(n)) = record::whole(self.shown())
            && let Some([DATA, _, _, _, _, body @ ..]) = self.shown().get(..n)
            && let Some(content @ [_, ..]) = body.get(..body.len().saturating_sub(TAG))
            && content.iter().all(|b| *b == 0)
        {
            self.discard(n);
        }
    }

    /// Shows one record more, or all if no record can begin so, which rustls has to find out. `false`: there is none.
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

/// Why a handshake failed.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    text: String,
    alert: Due,
}

/// What becomes of the alert for a failure.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    /// It is written, or the other side has given up and waits for none.
    Nothing,
    /// It comes with the next turn of rustls, if rustls writes one.
    Soon,
    /// rustls writes none for a record without a type: [`NO_CCS`] makes it do so.
    Forced,
}

/// What a handshake agreed on.
#[derive(Debug, Default)]
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
    /// The other side's certificates, its own first.
    pub peer: Vec<CertificateDer<'static>>,
}

/// What a step of a handshake came to.
#[derive(Debug)]
pub enum Step {
    /// More has to be received.
    Read,
    /// There is no room for what has to be sent.
    Write,
    /// Bytes may be exchanged.
    Done(Box<Agreed>),
    /// The other side closed the connection.
    Closed,
    /// Reading or writing failed.
    Failed(Errno),
    /// It does not speak TLS, or not as we do.
    Refused(String),
}

/// What came before the handshake could begin.
#[derive(Debug)]
pub enum Greeting {
    /// Not whole yet.
    Partial,
    /// A ClientHello.
    Hello(Box<super::hello::Hello>),
    /// Plain bytes, perhaps HTTP.
    Plain(Vec<u8>),
    /// Neither; the alert that tells so.
    Broken(u8),
}

/// An encrypted connection.
pub struct Stream {
    state: State,
    /// Content that was received during the handshake.
    ready: Vec<u8>,
    /// A record that has not come whole.
    partial: Vec<u8>,
    /// Whole records came together with the end of the handshake and wait in `partial`.
    unopened: bool,
    /// Records that have not been sent.
    owed: Vec<u8>,
    /// Sent of `owed`.
    owed_at: usize,
    /// The other side sends no more.
    ended: bool,
    /// `close_notify` has been sent.
    closing: bool,
    /// Content came before the handshake was over (0-RTT).
    pub early: bool,
    /// Longest content of a record, bytes.
    pub record: usize,
    /// Content sent with one call, bytes.
    batch: usize,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("owed", &self.owed.len()).finish_non_exhaustive()
    }
}

pub(super) fn broken(_: Broken) -> Errno {
    Errno::PROTO
}

impl Stream {
    fn new(state: State) -> Stream {
        Stream {
            state,
            ready: Vec::new(),
            partial: Vec::new(),
            unopened: false,
            owed: Vec::new(),
            owed_at: 0,
            ended: false,
            closing: false,
            early: false,
            record: MAX_CONTENT,
            batch: FIRST_BATCH,
        }
    }

    /// The server's side; `received`: what has been read of the connection already.
    pub fn server(received: Vec<u8>) -> Stream {
        Stream::new(State::Hello(received, super::hello::Reading::default()))
    }

    /// The client's side.
    pub fn client(conn: UnbufferedClientConnection) -> Stream {
        Stream::new(State::Client(Box::new(conn), Flight::default()))
    }

    /// Whether the handshake is over.
    #[inline]
    pub fn established(&self) -> bool {
        matches!(self.state, State::Traffic(_))
    }

    /// Reads what a connection begins with.
    ///
    /// # Errors
    /// Those of the socket; `Ok(None)`: it was closed.
    pub fn greeting(&mut self, io: &Io, token: Token) -> Result<Option<Greeting>, Errno> {
        let State::Hello(input, reading) = &mut self.state else {
            return Ok(Some(Greeting::Broken(DECODE_ERROR)));
        };
        loop {
            match input.first() {
                Some(&HANDSHAKE) => match reading.more(input) {
                    Ok(Some(hello)) => return Ok(Some(Greeting::Hello(Box::new(hello)))),
                    Ok(None) => {}
                    Err(e) => return Ok(Some(Greeting::Broken(e.alert().unwrap_or(DECODE_ERROR)))),
                },
                // SSL 2.0, which nobody speaks.
                Some(b) if b & 0x80 != 0 => return Ok(Some(Greeting::Broken(PROTOCOL_VERSION))),
                Some(_) => return Ok(Some(Greeting::Plain(std::mem::take(input)))),
                None => {}
            }
            if !io.poller.is_readable(token) {
                return Ok(Some(Greeting::Partial));
            }
            match receive(io, token, input, 4096) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(Some(Greeting::Partial)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether the ClientHello has been taken.
    pub fn greeted(&self) -> bool {
        !matches!(self.state, State::Hello(..))
    }

    /// Goes on with the configuration that was chosen.
    pub fn choose(&mut self, conn: UnbufferedServerConnection) {
        if let State::Hello(input, _) = &mut self.state {
            let input = std::mem::take(input);
            self.state = State::Server(Box::new(conn), Flight::new(input));
        }
    }

    /// Refuses a handshake that has only begun (RFC 6066, section 3; RFC 8446, section 6.2).
    pub fn refuse(&mut self, io: &Io, token: Token, alert: u8) {
        self.state = State::Broken;
        self.owed.extend_from_slice(&plain_alert(alert));
        let _ = self.flush(io, token, SendFlags::NOSIGNAL);
        drain(io, token);
    }

    /// Goes on with the handshake as far as it can without waiting.
    pub fn handshake(&mut self, io: &Io, token: Token) -> Step {
        loop {
            let mut failure = None;
            let finished = match &mut self.state {
                State::Server(conn, flight) => turns(flight, &mut failure, |input, failure| {
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
                State::Client(conn, flight) => turns(flight, &mut failure, |input, failure| {
                    let UnbufferedStatus { discard, state } = conn.process_tls_records(input);
                    let turn = take_turn(state, &mut self.owed, &mut self.ready, &mut self.ended, failure);
                    (discard, turn)
                }),
                State::Hello(..) => return Step::Read,
                State::Traffic(_) | State::Broken => return Step::Failed(Errno::PROTO),
            };
            if failure.as_ref().is_some_and(|f| f.alert == Due::Soon) && self.is_in_clear() {
                self.owed.extend_from_slice(&plain_alert(UNEXPECTED_MESSAGE));
            }
            match self.flush(io, token, SendFlags::NOSIGNAL) {
                Ok(true) => {}
                Ok(false) if failure.is_none() && !finished => return Step::Write,
                Ok(false) => {}
                Err(e) if failure.is_none() => return Step::Failed(e),
                Err(_) => {}
            }
            if let Some(failure) = failure {
                drain(io, token);
                self.state = State::Broken;
                return Step::Refused(failure.text);
            }
            if finished {
                return match self.take_keys() {
                    Some(agreed) => Step::Done(Box::new(agreed)),
                    None => Step::Failed(Errno::PROTO),
                };
            }
            if self.ended {
                return Step::Closed;
            }
            let (State::Server(_, flight) | State::Client(_, flight)) = &mut self.state else {
                return Step::Failed(Errno::PROTO);
            };
            let input = &mut flight.received;
            if input.len() > MAX_FLIGHT {
                return Step::Refused("handshake is too long".to_owned());
            }
            if !io.poller.is_readable(token) {
                return Step::Read;
            }
            match receive(io, token, input, 4096) {
                Ok(0) => return Step::Closed,
                Ok(_) => {}
                Err(Errno::AGAIN) => return Step::Read,
                Err(e) => return Step::Failed(e),
            }
        }
    }

    /// Whether an alert of a server goes out as it is: before TLS 1.2 has changed its keys, which a session that is resumed
    /// does first.
    fn is_in_clear(&self) -> bool {
        let State::Server(conn, _) = &self.state else { return false };
        conn.protocol_version() != Some(rustls::ProtocolVersion::TLSv1_3)
            && conn.handshake_kind() != Some(HandshakeKind::Resumed)
    }

    /// Takes the keys over from rustls.
    fn take_keys(&mut self) -> Option<Agreed> {
        let agree = |c: &rustls::CommonState| Agreed {
            v13: c.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3),
            suite: c.negotiated_cipher_suite().map_or(0, |s| u16::from(s.suite())),
            group: c.negotiated_key_exchange_group().map_or(0, |g| u16::from(g.name())),
            alpn: c.alpn_protocol().map(Into::into),
            resumed: c.handshake_kind() == Some(HandshakeKind::Resumed),
            peer: c.peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
        };
        let (agreed, ExtractedSecrets { tx, rx }, kernel, flight) =
            match std::mem::replace(&mut self.state, State::Broken) {
                State::Server(conn, flight) => {
                    let agreed = agree(&conn);
                    let (secrets, kernel) = conn.dangerous_into_kernel_connection().ok()?;
                    (agreed, secrets, Kernel::Server(kernel), flight)
                }
                State::Client(conn, flight) => {
                    let agreed = agree(&conn);
                    let (secrets, kernel) = conn.dangerous_into_kernel_connection().ok()?;
                    (agreed, secrets, Kernel::Client(kernel), flight)
                }
                _ => return None,
            };
        let v13 = agreed.v13;
        let (tx, rx) = (Half::new(tx, v13)?, Half::new(rx, v13)?);
        let kernel = if v13 { kernel } else { Kernel::Done };
        self.partial = flight.received;
        if self.partial.is_empty() {
            self.partial = Vec::new();
        }
        self.unopened = !matches!(record::whole(&self.partial), Ok(None));
        self.state = State::Traffic(Box::new(Traffic {
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

    /// Whether the keys have sealed as much as they should and cannot change: no further request is to be taken.
    #[inline]
    pub fn worn(&self) -> bool {
        matches!(&self.state, State::Traffic(t) if !t.v13 && t.tx.worn())
    }

    /// Whether the other side has said that it sends no more (`close_notify`). A connection that ends without may have been
    /// cut by somebody else (RFC 8446, section 6.1).
    #[inline]
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Whether there is content, or a record, that needs no reading.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || self.unopened
    }

    /// Whether records have not left.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Gives memory back before a pause.
    pub fn shrink(&mut self) {
        for b in [&mut self.partial, &mut self.owed, &mut self.ready] {
            if b.is_empty() && b.capacity() > 0 {
                *b = Vec::new();
            }
        }
    }

    /// As [`crate::wire::Wire::read`]; appends up to 32 KiB, whatever the capacity.
    ///
    /// # Errors
    /// As there; `PROTO` for what is no record of this connection.
    pub fn read(&mut self, io: &Io, token: Token, out: &mut Vec<u8>) -> Result<usize, Errno> {
        if !self.ready.is_empty() {
            let ready = std::mem::take(&mut self.ready);
            out.extend_from_slice(&ready);
            return Ok(ready.len());
        }
        let mut scratch = io.tls.borrow_mut();
        let input = &mut scratch.input;
        loop {
            let State::Traffic(traffic) = &mut self.state else { return Err(Errno::PROTO) };
            if self.ended {
                return Ok(0);
            }
            input.clear();
            input.append(&mut self.partial);
            // What is here is opened first: the end of the connection must not overtake it.
            let got = match std::mem::take(&mut self.unopened) {
                true => Ok(input.len()),
                false => receive(io, token, input, INPUT),
            };
            let begin = out.len();
            let used = traffic.open_all(input, out, &mut self.ended, &mut self.owed);
            let used = match used {
                Ok(used) => used,
                Err(e) => {
                    if let Some(alert) = e.alert() {
                        traffic.alert(2, alert, &mut self.owed);
                    }
                    drop(scratch);
                    self.closing = true;
                    let _ = self.flush(io, token, SendFlags::NOSIGNAL);
                    drain(io, token);
                    return Err(Errno::PROTO);
                }
            };
            if used < input.len() {
                self.partial.extend_from_slice(input.get(used..).unwrap_or_default());
            }
            if !self.owed.is_empty() {
                // An answer to a change of keys does not wait until something else is sent.
                let _ = self.flush(io, token, SendFlags::NOSIGNAL);
            }
            if out.len() > begin {
                return Ok(out.len() - begin);
            }
            match got {
                Ok(0) => return Ok(0),
                Ok(_) if !io.poller.is_readable(token) && !self.ended => return Err(Errno::AGAIN),
                Ok(_) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// As [`crate::wire::Wire::send_pieces`]. `typed`: the last piece has a byte more, the type of a record
    /// ([`crate::wire::Wire::send_typed`]).
    ///
    /// # Errors
    /// As there.
    pub fn send(
        &mut self,
        io: &Io,
        token: Token,
        pieces: &[IoSlice<'_>],
        typed: bool,
        then: Then,
    ) -> Result<Sent, Errno> {
        if self.has_unsent() && !self.flush(io, token, SendFlags::NOSIGNAL)? {
            let empty = pieces.iter().all(|p| p.is_empty());
            return if empty { Ok(Sent { bytes: 0, full: true }) } else { Err(Errno::AGAIN) };
        }
        let State::Traffic(traffic) = &mut self.state else { return Err(Errno::PIPE) };
        if self.closing {
            return Err(Errno::PIPE);
        }
        traffic.renew(&mut self.owed)?;
        let total = pieces.iter().map(|p| p.len()).sum::<usize>() - usize::from(typed);
        // A short answer is sealed where it waits for the end of the turn.
        let mut place = if then == Then::Wait && total > 0 && total <= self.record.min(self.batch) {
            io.poller.reserve_answer(token, self.owed.len() + total + OVERHEAD)
        } else {
            None
        };
        let mut scratch = None;
        let out = match &mut place {
            Some(place) => place.room(),
            None => scratch.insert(io.tls.borrow_mut()).output(),
        };
        let mut end = 0;
        if !self.owed.is_empty() {
            end = self.owed.len();
            out.get_mut(..end).ok_or(Errno::NOBUFS)?.copy_from_slice(&self.owed);
            self.owed.clear();
        }
        let mut rest = pieces.iter();
        let mut piece: &[u8] = &[];
        let mut taken = 0;
        let most = self.batch.min(total);
        while taken < most {
            while piece.is_empty() {
                let Some(p) = rest.next() else { break };
                piece = p;
            }
            let n = self.record.min(most - taken);
            let len = traffic.tx.sealed_len(n);
            let Some(record) = out.get_mut(end..end + len) else { break };
            if piece.len() >= n {
                let (content, more) = piece.split_at(n);
                traffic.tx.seal(DATA, content, record).map_err(broken)?;
                piece = more;
            } else if typed
                && traffic.tx.v13()
                && let [last] = rest.as_slice()
                && piece.len() + last.len() == n + 1
            {
                traffic.tx.seal_inner(piece, last, record).map_err(broken)?;
            } else {
                // A record that covers several pieces is put together first.
                let at = traffic.tx.before();
                let content = record.get_mut(at..at + n).ok_or(Errno::NOBUFS)?;
                let mut filled = 0;
                while filled < n {
                    let m = piece.len().min(n - filled);
                    let (head, more) = piece.split_at(m);
                    content.get_mut(filled..filled + m).ok_or(Errno::NOBUFS)?.copy_from_slice(head);
                    filled += m;
                    piece = more;
                    if piece.is_empty() && filled < n {
                        let Some(p) = rest.next() else { return Err(Errno::NOBUFS) };
                        piece = p;
                    }
                }
                traffic.tx.seal_in_place(DATA, n, record).map_err(broken)?;
            }
            taken += n;
            end += len;
        }
        let mut flags = SendFlags::NOSIGNAL;
        if taken == total && then == Then::Close {
            let before = self.owed.len();
            traffic.alert(1, 0, &mut self.owed);
            let alert = self.owed.split_off(before);
            if let Some(room) = out.get_mut(end..end + alert.len()) {
                room.copy_from_slice(&alert);
                end += alert.len();
                self.closing = true;
                flags |= SendFlags::MORE;
            }
        } else if then == Then::More {
            flags |= SendFlags::MORE;
        }
        let Some(out) = scratch.as_mut().map(|s| s.output()) else {
            if let Some(place) = place {
                io.poller.commit_answer(token, place, end);
            }
            return Ok(Sent { bytes: taken, full: false });
        };
        let sent = transmit(&io.poller, token, out.get(..end).unwrap_or_default(), flags)?;
        self.batch = next_batch(self.batch, taken, sent < end);
        if sent < end {
            self.owed.extend_from_slice(out.get(sent..end).unwrap_or_default());
        }
        Ok(Sent { bytes: taken, full: sent < end })
    }

    /// As [`crate::wire::Wire::send_file`].
    ///
    /// # Errors
    /// As there.
    pub fn send_file(
        &mut self,
        io: &Io,
        token: Token,
        file: &impl std::os::fd::AsFd,
        offset: &mut u64,
        count: usize,
    ) -> Result<Sent, Errno> {
        if self.has_unsent() && !self.flush(io, token, SendFlags::NOSIGNAL)? {
            return Err(Errno::AGAIN);
        }
        let State::Traffic(traffic) = &mut self.state else { return Err(Errno::PIPE) };
        let mut scratch = io.tls.borrow_mut();
        let out = scratch.output();
        traffic.renew(&mut self.owed)?;
        let first = self.owed.len();
        out.get_mut(..first).ok_or(Errno::NOBUFS)?.copy_from_slice(&self.owed);
        self.owed.clear();
        let (before, record) = (traffic.tx.before(), self.record);
        let full = traffic.tx.sealed_len(record);
        // Content is read to where it is sealed: all records but the last are full.
        let fits = ((out.len() - first) / full).min(self.batch / record).clamp(1, 8);
        let want = count.min(fits * record);
        let got = {
            let mut slices: [rustix::io::IoSliceMut<'_>; 8] =
                std::array::from_fn(|_| rustix::io::IoSliceMut::new(&mut []));
            let mut used = 0;
            let mut left = want;
            for chunk in out.get_mut(first..).ok_or(Errno::NOBUFS)?.chunks_mut(full) {
                if left == 0 || used == slices.len() {
                    break;
                }
                let n = left.min(record);
                let Some(content) = chunk.get_mut(before..before + n) else { break };
                slices[used] = rustix::io::IoSliceMut::new(content);
                used += 1;
                left -= n;
            }
            rustix::io::preadv(file, slices.get_mut(..used).unwrap_or_default(), *offset)?
        };
        if got == 0 && count > 0 {
            return Ok(Sent { bytes: 0, full: false });
        }
        let mut end = first;
        let mut left = got;
        while left > 0 {
            let n = left.min(record);
            let len = traffic.tx.sealed_len(n);
            let slot = out.get_mut(end..end + len).ok_or(Errno::NOBUFS)?;
            traffic.tx.seal_in_place(DATA, n, slot).map_err(broken)?;
            end += len;
            left -= n;
        }
        *offset += got as u64;
        let sent = transmit(&io.poller, token, out.get(..end).unwrap_or_default(), SendFlags::NOSIGNAL)?;
        self.batch = next_batch(self.batch, got, sent < end);
        if sent < end {
            self.owed.extend_from_slice(out.get(sent..end).unwrap_or_default());
        }
        Ok(Sent { bytes: got, full: sent < end })
    }

    /// Says `close_notify`, if there is room for it.
    pub fn close(&mut self, io: &Io, token: Token) {
        if std::mem::replace(&mut self.closing, true) {
            return;
        }
        if let State::Traffic(traffic) = &mut self.state {
            traffic.alert(1, 0, &mut self.owed);
            let _ = self.flush(io, token, SendFlags::NOSIGNAL);
        }
    }

    /// Sends what is owed. `false`: not all.
    fn flush(&mut self, io: &Io, token: Token, flags: SendFlags) -> Result<bool, Errno> {
        if self.owed.is_empty() {
            return Ok(true);
        }
        let rest = self.owed.get(self.owed_at..).unwrap_or_default();
        let sent = transmit(&io.poller, token, rest, flags)?;
        self.owed_at += sent;
        if self.owed_at < self.owed.len() {
            return Ok(false);
        }
        self.owed_at = 0;
        self.owed.clear();
        if self.owed.capacity() > 4096 {
            self.owed = Vec::new();
        }
        Ok(true)
    }
}

/// How much to send with the next call.
fn next_batch(now: usize, taken: usize, full: bool) -> usize {
    match (full, taken >= now.min(FIRST_BATCH)) {
        (true, _) => SMALL_BATCH,
        (false, true) => BATCH,
        (false, false) => now,
    }
}

/// Whether a record is an alert: by its type, or by the length that in TLS 1.3 nothing else has.
fn is_alert(record: &[u8]) -> bool {
    const SEALED: usize = HEADER + 2 + 1 + 16;
    record.first() == Some(&ALERT) || record.len() == SEALED
}

/// A fatal alert that no key seals.
fn plain_alert(alert: u8) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, 2, alert]
}

enum Turn {
    Again,
    Blocked,
    Finished,
}

/// Takes turns until rustls needs more than was received. `true`: the handshake is over.
fn turns(
    flight: &mut Flight,
    failure: &mut Option<Failure>,
    mut turn: impl FnMut(&mut [u8], &mut Option<Failure>) -> (usize, Turn),
) -> bool {
    loop {
        let (discard, turn) = turn(flight.shown(), failure);
        flight.discard(discard);
        if failure.as_ref().is_some_and(|f| f.alert == Due::Forced) {
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

/// Does what rustls asks for.
fn take_turn<Data>(
    state: Result<ConnectionState<'_, '_, Data>, rustls::Error>,
    owed: &mut Vec<u8>,
    ready: &mut Vec<u8>,
    ended: &mut bool,
    failure: &mut Option<Failure>,
) -> Turn {
    match state {
        Ok(ConnectionState::EncodeTlsData(mut encode)) => {
            let at = owed.len();
            let need = match encode.encode(&mut []) {
                Err(rustls::unbuffered::EncodeError::InsufficientSize(e)) => e.required_size,
                _ => 0,
            };
            owed.resize(at + need, 0);
            let n = encode.encode(owed.get_mut(at..).unwrap_or_default()).unwrap_or(0);
            owed.truncate(at + n);
            // Behind the alert nothing is to be said, and what has failed would only fail again.
            match failure {
                Some(failure) if owed.get(at..).is_some_and(is_alert) => {
                    failure.alert = Due::Nothing;
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
        // The alert that belongs to it comes with the next turn.
        Err(e) if failure.is_none() => {
            let alert = match &e {
                rustls::Error::PeerMisbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext) => Due::Forced,
                rustls::Error::PeerMisbehaved(_) => Due::Soon,
                _ => Due::Nothing,
            };
            *failure = Some(Failure { text: e.to_string(), alert });
            Turn::Again
        }
        Err(_) => match failure {
            Some(failure) if failure.alert == Due::Forced => {
                failure.alert = Due::Soon;
                Turn::Again
            }
            _ => Turn::Blocked,
        },
    }
}

fn receive(io: &Io, token: Token, buf: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
    buf.reserve(room);
    wire::receive(&io.poller, token, buf)
}

/// Reads what has come and nobody wants any more: a socket that is closed with bytes unread resets the connection, and the
/// alert that has just been sent may be lost with it.
fn drain(io: &Io, token: Token) {
    let mut unread = Vec::new();
    while unread.len() < MAX_FLIGHT && io.poller.is_readable(token) {
        if !matches!(receive(io, token, &mut unread, INPUT), Ok(1..)) {
            return;
        }
    }
}

const _: () = assert!(OUTPUT >= BATCH + 5 * OVERHEAD + HEADER);

#[cfg(test)]
mod tests {
    use super::super::traffic::NO_RENEGOTIATION;
    use super::*;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use std::sync::Arc;

    /// A certificate of its own with its key, made by `openssl`. `None`: that is missing.
    fn certificate() -> Option<(CertificateDer<'static>, PrivateKeyDer<'static>)> {
        let dir = tempfile::tempdir().unwrap();
        let done = std::process::Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
            .args(["-keyout", "key", "-out", "crt", "-days", "9", "-subj", "/CN=h"])
            .current_dir(dir.path())
            .output();
        if done.is_err() {
            assert!(std::env::var_os("CI").is_none(), "openssl is missing");
            println!("skipped: openssl is missing");
            return None;
        }
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let key = super::super::pem::private_key(&read("key"), &[]).ok().unwrap();
        Some((super::super::pem::certificates(&read("crt")).remove(0), key))
    }

    /// Takes all turns that need no more bytes, and hands over what has come of them.
    fn all_turns(mut step: impl FnMut(&mut [u8]) -> (usize, Turn), input: &mut Vec<u8>) -> bool {
        loop {
            let (discard, turn) = step(input);
            input.drain(..discard);
            match turn {
                Turn::Again => {}
                Turn::Blocked => return false,
                Turn::Finished => return true,
            }
        }
    }

    /// A server and a client whose handshake is over; what the server has sent behind it waits with the client.
    fn pair(v13: bool) -> Option<(Box<Traffic>, Box<Traffic>, Vec<u8>)> {
        let (cert, key) = certificate()?;
        let version = if v13 { &rustls::version::TLS13 } else { &rustls::version::TLS12 };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.clone()], key)
            .unwrap();
        config.enable_secret_extraction = true;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(cert).unwrap();
        let mut client = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
            .with_no_client_auth();
        client.enable_secret_extraction = true;
        let name = ServerName::try_from("h").unwrap();
        let mut server = UnbufferedServerConnection::new(Arc::new(config)).unwrap();
        let mut client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let (mut ready, mut ended, mut failure) = (Vec::new(), false, None);
        let mut done = (false, false);
        for _ in 0..9 {
            let mut owed = Vec::new();
            done.0 |= all_turns(
                |input| {
                    let UnbufferedStatus { discard, state } = client.process_tls_records(input);
                    (discard, take_turn(state, &mut owed, &mut ready, &mut ended, &mut failure))
                },
                &mut to_client,
            );
            to_server.append(&mut owed);
            done.1 |= all_turns(
                |input| {
                    let UnbufferedStatus { discard, state } = server.process_tls_records(input);
                    (discard, take_turn(state, &mut owed, &mut ready, &mut ended, &mut failure))
                },
                &mut to_server,
            );
            to_client.append(&mut owed);
            assert_eq!(failure, None);
            if done == (true, true) {
                break;
            }
        }
        let mut streams = (Stream::server(Vec::new()), Stream::client(client));
        streams.0.state = State::Server(Box::new(server), Flight::default());
        streams.0.take_keys().unwrap();
        streams.1.take_keys().unwrap();
        match (streams.0.state, streams.1.state) {
            (State::Traffic(a), State::Traffic(b)) => Some((a, b, to_client)),
            _ => None,
        }
    }

    /// Seals a message in records of so many bytes of content.
    fn records(tx: &mut Half, message: &[u8], size: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in message.chunks(size) {
            let at = out.len();
            out.resize(at + tx.sealed_len(piece.len()), 0);
            tx.seal(HANDSHAKE, piece, &mut out[at..]).unwrap();
        }
        out
    }

    fn open(t: &mut Traffic, input: &mut [u8]) -> (Result<usize, Broken>, Vec<u8>, Vec<u8>) {
        let (mut out, mut owed, mut ended) = (Vec::new(), Vec::new(), false);
        (t.open_all(input, &mut out, &mut ended, &mut owed), out, owed)
    }

    fn data(tx: &mut Half, text: &[u8]) -> Vec<u8> {
        let mut record = vec![0; tx.sealed_len(text.len())];
        tx.seal(DATA, text, &mut record).unwrap();
        record
    }

    #[test]
    fn messages_behind_the_handshake_may_come_in_pieces() {
        let Some((mut server, mut client, tickets)) = pair(true) else { return };
        // Tickets that came with the handshake, as they are and in pieces.
        let mut whole = tickets.clone();
        assert_eq!(open(&mut client, &mut whole).0, Ok(tickets.len()));
        let ticket = [4, 0, 0, 18, 0, 0, 1, 0, 0, 0, 0, 0, 2, 7, 7, 0, 3, 1, 2, 3, 0, 0];
        for size in [1, 4, 7, 100] {
            let mut input = records(&mut server.tx, &ticket, size);
            let n = input.len();
            assert_eq!(open(&mut client, &mut input).0, Ok(n), "{size}");
            assert!(client.message.is_empty());
        }
        for size in [1, 2, 3, 4, 5] {
            let mut input = records(&mut client.tx, &[24, 0, 0, 1, 1], size);
            client.update(&mut Vec::new()).unwrap();
            let n = input.len();
            let (opened, _, mut owed) = open(&mut server, &mut input);
            assert_eq!(opened, Ok(n), "{size}");
            // The answer is in the old keys, what follows in new ones; so is what the client says.
            assert_eq!(open(&mut client, &mut owed).0, Ok(owed.len()));
            assert_eq!(open(&mut server, &mut data(&mut client.tx, b"up")).1, b"up");
            assert_eq!(open(&mut client, &mut data(&mut server.tx, b"down")).1, b"down");
        }
    }

    #[test]
    fn messages_behind_the_handshake_are_held_to_their_form() {
        for (message, size, wanted) in [
            (&[24, 0, 0, 1, 2][..], 9, Broken::Illegal),
            (&[24, 0, 0, 2, 0, 0], 9, Broken::Undecodable),
            (&[24, 0, 0, 0], 9, Broken::Undecodable),
            // A length of 16 MB is not waited for.
            (&[24, 255, 255, 255], 1, Broken::Undecodable),
            (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], 99, Broken::Malformed),
            // A ticket from a client, and a message that nobody knows.
            (&[4], 9, Broken::Malformed),
            (&[1], 9, Broken::Malformed),
        ] {
            let Some((mut server, mut client, _)) = pair(true) else { return };
            let mut input = records(&mut client.tx, message, size);
            assert_eq!(open(&mut server, &mut input).0, Err(wanted), "{message:?}");
        }
        let Some((mut server, mut client, _)) = pair(true) else { return };
        let mut input = records(&mut client.tx, &[24, 0], 9);
        input.extend(data(&mut client.tx, b"between"));
        assert_eq!(open(&mut server, &mut input).0, Err(Broken::Malformed), "nothing stands between pieces");
    }

    #[test]
    fn alerts_end_a_connection_as_they_say() {
        for (alert, wanted) in [
            (&[1, 90][..], Ok(false)),
            (&[1, 0], Ok(true)),
            (&[2, 40], Err(Broken::Alerted)),
            (&[1, 41], Err(Broken::Alerted)),
            (&[3, 40], Err(Broken::Illegal)),
            (&[2], Err(Broken::Undecodable)),
            (&[], Err(Broken::Malformed)),
        ] {
            let Some((mut server, mut client, _)) = pair(true) else { return };
            let mut record = vec![0; client.tx.sealed_len(alert.len())];
            client.tx.seal(ALERT, alert, &mut record).unwrap();
            let (mut out, mut owed, mut ended) = (Vec::new(), Vec::new(), false);
            let opened = server.open_all(&mut record, &mut out, &mut ended, &mut owed);
            assert_eq!(opened.map(|_| ended), wanted, "{alert:?}");
        }
        assert_eq!(Broken::Alerted.alert(), None, "who has given up is told nothing");
    }

    /// A handshake that fails is told so by one alert, whatever the client goes on with.
    #[test]
    fn a_handshake_that_fails_ends_with_one_alert() {
        let Some((cert, key)) = certificate() else { return };
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(vec![cert], key).unwrap());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
            .with_no_client_auth();
        let name = ServerName::try_from("h").unwrap();
        let mut client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
        let (mut hello, mut ready, mut ended, mut failure) = (Vec::new(), Vec::new(), false, None);
        all_turns(
            |input| {
                let UnbufferedStatus { discard, state } = client.process_tls_records(input);
                (discard, take_turn(state, &mut hello, &mut ready, &mut ended, &mut failure))
            },
            &mut Vec::new(),
        );
        // Nobody has sealed it, and no record of this type follows.
        let forged = [&[DATA, 3, 3, 0, 40][..], &[7; 40]].concat();
        for behind in
            [forged.repeat(1), forged.repeat(3), vec![9; 50], [forged.as_slice(), &[9; 50]].concat()]
        {
            let mut server = UnbufferedServerConnection::new(config.clone()).unwrap();
            let mut input = [hello.as_slice(), &behind].concat();
            let (mut owed, mut failure) = (Vec::new(), None);
            all_turns(
                |input| {
                    let UnbufferedStatus { discard, state } = server.process_tls_records(input);
                    (discard, take_turn(state, &mut owed, &mut ready, &mut ended, &mut failure))
                },
                &mut input,
            );
            assert!(failure.is_some());
            let mut alerts = 0;
            let mut rest = owed.as_slice();
            while let Ok(Some(n)) = record::whole(rest) {
                alerts += usize::from(is_alert(&rest[..n]));
                rest = &rest[n..];
            }
            assert_eq!(alerts, 1, "{failure:?}");
        }
    }

    /// Keeps the client's first secret of TLS 1.3.
    #[derive(Debug, Default)]
    struct Secret(std::sync::Mutex<Vec<u8>>);

    impl rustls::KeyLog for Secret {
        fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
            if label == "CLIENT_HANDSHAKE_TRAFFIC_SECRET" {
                *self.0.lock().unwrap() = secret.to_vec();
            }
        }
    }

    impl Secret {
        /// The keys that a client seals its Finished by (RFC 8446, section 7.3), with
        /// TLS_CHACHA20_POLY1305_SHA256.
        fn half(&self) -> Half {
            use aws_lc_rs::hmac;
            let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0.lock().unwrap());
            let expand = |label: &str, n: u8| {
                let label = format!("tls13 {label}");
                let info = [&[0, n, label.len() as u8], label.as_bytes(), &[0, 1]].concat();
                hmac::sign(&key, &info).as_ref()[..usize::from(n)].to_vec()
            };
            let key: [u8; 32] = expand("key", 32).try_into().unwrap();
            let iv: [u8; 12] = expand("iv", 12).try_into().unwrap();
            let secrets = rustls::ConnectionTrafficSecrets::Chacha20Poly1305 {
                key: rustls::crypto::cipher::AeadKey::from(key),
                iv: rustls::crypto::cipher::Iv::new(iv),
            };
            Half::new((0, secrets), true).unwrap()
        }
    }

    /// A server that waits for the client's last flight, and that flight.
    struct Waiting {
        server: Box<UnbufferedServerConnection>,
        client: Stream,
        last: Vec<u8>,
        secret: Arc<Secret>,
    }

    impl Waiting {
        fn new(version: &'static rustls::SupportedProtocolVersion) -> Option<Waiting> {
            let (cert, key) = certificate()?;
            let mut provider = rustls::crypto::aws_lc_rs::default_provider();
            provider.cipher_suites.retain(|s| u16::from(s.suite()) == 0x1303 || s.tls13().is_none());
            let provider = Arc::new(provider);
            let mut config = rustls::ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![cert], key)
                .unwrap();
            config.enable_secret_extraction = true;
            let mut client = rustls::ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
                .with_no_client_auth();
            client.enable_secret_extraction = true;
            let secret = Arc::new(Secret::default());
            client.key_log = secret.clone();
            let name = ServerName::try_from("h").unwrap();
            let mut client = UnbufferedClientConnection::new(Arc::new(client), name).unwrap();
            let mut server = Box::new(UnbufferedServerConnection::new(Arc::new(config)).unwrap());
            let (mut ready, mut ended) = (Vec::new(), false);
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            let mut failure = None;
            let mut from_client = |input: &mut Vec<u8>, owed: &mut Vec<u8>| {
                let mut flight = Flight::new(std::mem::take(input));
                turns(&mut flight, &mut failure, |input, failure| {
                    let UnbufferedStatus { discard, state } = client.process_tls_records(input);
                    (discard, take_turn(state, owed, &mut ready, &mut ended, failure))
                })
            };
            from_client(&mut to_client, &mut to_server);
            let hello = std::mem::take(&mut to_server);
            let (finished, failure) = serve(&mut server, Flight::new(hello), &mut to_client).1;
            assert_eq!((finished, failure), (false, None));
            let done = from_client(&mut to_client, &mut to_server);
            let mut client = Stream::client(client);
            if done {
                client.take_keys().unwrap();
            }
            Some(Waiting { server, client, last: to_server, secret })
        }

        /// What the server leaves of `input`, answers, and makes of it.
        fn serve(&mut self, input: Vec<u8>) -> (Vec<u8>, Vec<u8>, (bool, Option<Failure>)) {
            let mut owed = Vec::new();
            let (flight, end) = serve(&mut self.server, Flight::new(input), &mut owed);
            (flight.received, owed, end)
        }
    }

    fn serve(
        server: &mut UnbufferedServerConnection,
        mut flight: Flight,
        owed: &mut Vec<u8>,
    ) -> (Flight, (bool, Option<Failure>)) {
        let (mut ready, mut ended, mut failure) = (Vec::new(), false, None);
        let finished = turns(&mut flight, &mut failure, |input, failure| {
            let UnbufferedStatus { discard, state } = server.process_tls_records(input);
            (discard, take_turn(state, owed, &mut ready, &mut ended, failure))
        });
        assert_eq!(ready, b"", "content is for the record layer");
        (flight, (finished, failure))
    }

    /// What comes together with the client's Finished is opened as it is later, messages in pieces included.
    #[test]
    fn records_behind_the_handshake_are_left_to_the_record_layer() {
        for (version, message) in
            [(&rustls::version::TLS13, &[24, 0, 0, 1, 0][..]), (&rustls::version::TLS12, &[])]
        {
            let Some(mut waiting) = Waiting::new(version) else { return };
            if !waiting.client.established() {
                // TLS 1.2: the client waits for the server's Finished.
                let (rest, _, end) =
                    waiting.serve([waiting.last.clone(), vec![DATA, 3, 3, 0, 9, 7]].concat());
                assert_eq!((rest.as_slice(), end), (&[DATA, 3, 3, 0, 9, 7][..], (true, None)));
                continue;
            }
            let State::Traffic(client) = &mut waiting.client.state else { return };
            let mut behind = records(&mut client.tx, message, 2);
            client.update(&mut Vec::new()).unwrap();
            behind.extend(data(&mut client.tx, b"GET"));
            let (rest, _, end) = waiting.serve([waiting.last.clone(), behind.clone()].concat());
            assert_eq!((&rest, end), (&behind, (true, None)));
            let mut stream = Stream::new(State::Server(waiting.server, Flight::new(rest)));
            stream.take_keys().unwrap();
            assert!(stream.has_ready(), "nothing may wait for the next byte");
            let State::Traffic(server) = &mut stream.state else { return };
            let (opened, content, _) = open(server, &mut behind);
            assert_eq!((opened, content.as_slice()), (Ok(behind.len()), &b"GET"[..]));
        }
    }

    /// A record without a type during the handshake is answered by `unexpected_message`.
    #[test]
    fn a_record_without_a_type_is_unexpected() {
        let Some(mut waiting) = Waiting::new(&rustls::version::TLS13) else { return };
        let mut half = waiting.secret.half();
        let mut record = vec![0; half.sealed_len(3)];
        half.seal(0, &[0; 3], &mut record).unwrap();
        let (_, owed, (finished, failure)) = waiting.serve(record);
        let failure = failure.unwrap();
        assert!(!finished && failure.alert == Due::Nothing, "{failure:?}");
        assert!(failure.text.contains("IllegalTlsInnerPlaintext"), "{failure:?}");
        let State::Traffic(client) = &mut waiting.client.state else { return };
        let mut owed = owed;
        let (kind, at) = client.rx.open(&mut owed).unwrap();
        assert_eq!((kind, &owed[at]), (ALERT, [2, UNEXPECTED_MESSAGE].as_slice()));
    }

    /// rustls writes no alert for a record between the pieces of a message.
    #[test]
    fn an_interleaved_message_is_unexpected() {
        let Some(mut waiting) = Waiting::new(&rustls::version::TLS12) else { return };
        let exchange = record::whole(&waiting.last).unwrap().unwrap();
        let body = waiting.last[HEADER + 20..exchange].to_vec();
        let mut input = [&[HANDSHAKE, 3, 3, 0, 20], &waiting.last[HEADER..HEADER + 20]].concat();
        input.extend([CCS, 3, 3, 0, 1, 1]);
        input.extend([&[HANDSHAKE, 3, 3, 0, body.len() as u8], body.as_slice()].concat());
        let (_, owed, (finished, failure)) = waiting.serve(input);
        assert_eq!((finished, owed.len(), failure.map(|f| f.alert)), (false, 0, Some(Due::Soon)));
        assert!(Stream::new(State::Server(waiting.server, Flight::default())).is_in_clear());
    }

    /// A client of TLS 1.2 that wants to negotiate again is told that it is not done, and may go on.
    #[test]
    fn nothing_is_negotiated_again() {
        let Some((mut server, mut client, _)) = pair(false) else { return };
        let mut input = records(&mut client.tx, &[1, 0, 0, 3, 7, 7, 7], 99);
        input.extend(data(&mut client.tx, b"more"));
        let (opened, out, mut owed) = open(&mut server, &mut input);
        assert_eq!((opened, out.as_slice()), (Ok(input.len()), b"more".as_slice()));
        let (kind, at) = client.rx.open(&mut owed).unwrap();
        assert_eq!((kind, &owed[at]), (ALERT, [1, NO_RENEGOTIATION].as_slice()));
        let mut input = records(&mut client.tx, &[20, 0, 0, 0], 99);
        assert_eq!(open(&mut server, &mut input).0, Err(Broken::Malformed));
    }

    /// TLS 1.2 cannot change keys: what is being sent goes on, and no further request is taken. TLS 1.3 changes them.
    #[test]
    fn worn_keys_cut_nothing_off() {
        for v13 in [false, true] {
            let Some((mut server, mut client, _)) = pair(v13) else { return };
            server.tx.wear();
            client.rx.wear();
            let mut owed = Vec::new();
            server.renew(&mut owed).unwrap();
            assert_eq!(owed.is_empty(), !v13);
            let mut stream = Stream::new(State::Traffic(server));
            assert_eq!(stream.worn(), !v13);
            let State::Traffic(server) = &mut stream.state else { return };
            owed.extend(data(&mut server.tx, b"more"));
            assert_eq!(open(&mut client, &mut owed).1, b"more", "{v13}");
        }
    }
}
