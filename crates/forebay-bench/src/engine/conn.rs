//! One connection: its phase, sending and receiving. Hot path.

use super::context::{Ctx, DISTRUST};
use super::flight::Flight;
use super::h3::Turn;
use super::http::Http;
use super::transport::{Buffers, DecryptError, Received, Transport};
use crate::load::{Load, Origin, Protocol};
use crate::record::Failure;
use rustix::io::Errno;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No socket.
    Closed,
    /// No socket, and a pause before the next attempt.
    Waiting,
    /// connect(2) is under way.
    Connecting,
    /// The TLS handshake is under way.
    Handshaking,
    /// Requests may be sent.
    Open,
}

/// A slot for one connection after another.
pub(super) struct Conn {
    /// Tells events of this connection from late events of those that had the slot before.
    pub(super) generation: u32,
    pub(super) phase: Phase,
    /// Index of [`Load::origins`].
    pub(super) origin: u32,
    /// Time at which the phase began, or from which on the connection could have sent its next request, ns.
    pub(super) since: u64,
    /// A request that waits for the connection.
    pub(super) first: Option<Flight>,
    pub(super) transport: Transport,
    pub(super) http: Http,
    /// The slot is in the list of slots that wait for a request to be due.
    pub(super) in_free: bool,
    /// The slot was just taken from that list.
    pub(super) waited: bool,
    /// Failed attempts in a row.
    pub(super) fails: u32,
    /// Requests sent on this connection.
    issued: u64,
    /// Position in [`Origin::order`].
    position: usize,
}

/// Next step of a connection after reading.
pub(super) enum Next {
    /// Wait for more.
    Wait,
    /// There may be room for requests.
    Refill,
    /// The TLS handshake is complete.
    Opened,
    /// The connection has ended as it should.
    Ended,
}

/// State of the peer's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerSide {
    Sends,
    Closed,
}

impl Conn {
    pub(super) fn new(origin: u32, position: usize, parallel: usize) -> Conn {
        Conn {
            generation: 0,
            phase: Phase::Closed,
            origin,
            since: 0,
            first: None,
            transport: Transport::default(),
            http: Http::new(parallel),
            in_free: false,
            waited: false,
            fails: 0,
            issued: 0,
            position,
        }
    }

    /// Resets the state of the last connection, but keeps its memory.
    pub(super) fn reset(&mut self) {
        self.transport.close();
        self.http.reset();
        self.generation = self.generation.wrapping_add(1);
        self.phase = Phase::Closed;
        self.issued = 0;
    }

    /// Returns `true` if the connection is being made.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Handshaking)
    }

    /// Returns `true` if no request is under way or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.first.is_none() && self.http.is_idle()
    }

    /// Returns since when the server owes something: a connection, a handshake or a response.
    pub(super) fn waits_since(&self) -> Option<u64> {
        match self.phase {
            Phase::Closed | Phase::Waiting => None,
            Phase::Connecting | Phase::Handshaking => Some(self.since),
            Phase::Open => self.http.oldest_start(),
        }
    }

    /// Returns the next request of the origin, in its order.
    #[inline]
    pub(super) fn next_in_order(&mut self, load: &Load) -> u32 {
        let order = load.origins.get(self.origin as usize).map_or(&[][..], |o| &o.order);
        let request = order.get(self.position).copied().unwrap_or(0);
        self.position += 1;
        if self.position >= order.len() {
            self.position = 0;
        }
        request
    }

    /// Returns `true` if another request may be sent.
    #[inline]
    pub(super) fn has_room(&self, load: &Load) -> bool {
        !self.is_used_up(load) && self.http.has_room(load.parallel)
    }

    #[inline]
    fn is_used_up(&self, load: &Load) -> bool {
        load.per_connection > 0 && self.issued >= load.per_connection
    }

    /// Returns `true` if requests go to the socket one by one, so that they need not be gathered.
    #[inline]
    pub(super) fn sends_singly(&self, load: &Load) -> bool {
        load.parallel == 1 && self.transport.is_direct() && !self.http.has_streams()
    }

    /// Sends a request of a connection that [`Conn::sends_singly`].
    #[inline]
    pub(super) fn send_singly(&mut self, ctx: &mut Ctx<'_>, flight: Flight) -> Result<(), Failure> {
        self.issued += 1;
        let bytes = self.http.send_h1(ctx, flight);
        self.transmit(ctx, bytes)
    }

    /// Appends a request to `output`.
    #[inline]
    pub(super) fn gather(&mut self, ctx: &mut Ctx<'_>, flight: Flight, output: &mut Vec<u8>) {
        self.issued += 1;
        self.http.send(ctx, flight, output);
    }

    /// Sends bytes.
    #[inline]
    pub(super) fn write(&mut self, ctx: &mut Ctx<'_>, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.is_empty() { Ok(()) } else { self.transmit(ctx, bytes) }
    }

    /// Sends bytes. Without any, over UDP, an empty datagram.
    #[inline]
    fn transmit(&mut self, ctx: &mut Ctx<'_>, bytes: &[u8]) -> Result<(), Failure> {
        let sent = self.transport.write(bytes);
        self.count_sent(ctx, sent)
    }

    /// Sends the bytes that TLS and the socket did not take before.
    pub(super) fn flush(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        let sent = self.transport.flush();
        self.count_sent(ctx, sent)
    }

    /// Sends the bytes that the socket did not take before.
    pub(super) fn flush_socket(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        let sent = self.transport.flush_socket();
        self.count_sent(ctx, sent)
    }

    /// Counts what the socket has taken.
    #[inline]
    fn count_sent(&mut self, ctx: &mut Ctx<'_>, sent: Result<(), Failure>) -> Result<(), Failure> {
        ctx.count_out(self.transport.newly_sent());
        sent.map_err(|kind| self.unsent(kind))
    }

    fn unsent(&self, kind: Failure) -> Failure {
        if self.phase == Phase::Handshaking { Failure::Tls } else { kind }
    }

    /// Sets up HTTP on a connection that is ready for it.
    pub(super) fn start_http(&mut self, ctx: &mut Ctx<'_>, buffers: &mut Buffers) -> Result<(), Failure> {
        self.phase = Phase::Open;
        if ctx.load.protocol == Protocol::Http2 {
            buffers.output.clear();
            self.http.start_h2(ctx.load.parallel, &mut buffers.output);
            self.write(ctx, &buffers.output)?;
        }
        if let Some(h3) = self.http.h3() {
            return h3.begin(ctx);
        }
        if self.transport.tls().is_none() {
            return Ok(());
        }
        // Content may have arrived with the end of the handshake.
        buffers.output.clear();
        self.decrypt(ctx, &[], &mut buffers.output)?;
        self.write(ctx, &buffers.output)
    }

    /// Receives and handles all bytes that have arrived. `last`: the peer will send no more.
    pub(super) fn receive(
        &mut self,
        ctx: &mut Ctx<'_>,
        buffers: &mut Buffers,
        last: bool,
    ) -> Result<Next, Failure> {
        buffers.output.clear();
        let peer = self.pull(ctx, buffers, last)?;
        if self.handshake_is_complete() {
            ctx.record.handshake.record(ctx.now.saturating_sub(self.since));
            self.flush(ctx)?;
            if peer == PeerSide::Sends {
                return Ok(Next::Opened);
            }
        }
        if peer == PeerSide::Closed {
            return self.closed(ctx);
        }
        self.write(ctx, &buffers.output)?;
        if self.http.is_closing() || self.is_done(ctx.load) {
            return Ok(Next::Ended);
        }
        if self.transport.tls().is_some_and(|tls| tls.wants_write()) {
            self.flush(ctx)?;
        }
        Ok(if self.phase == Phase::Open { Next::Refill } else { Next::Wait })
    }

    /// Handles all that QUIC has for this connection.
    pub(super) fn receive_h3(&mut self, ctx: &mut Ctx<'_>) -> Result<Next, Failure> {
        let Some(h3) = self.http.h3() else { return Ok(Next::Wait) };
        match h3.turn(ctx)? {
            Turn::Handshaking => Ok(Next::Wait),
            Turn::Established => {
                ctx.record.handshake.record(ctx.now.saturating_sub(self.since));
                ctx.record.connections += 1;
                Ok(Next::Opened)
            }
            Turn::Open if self.is_done(ctx.load) => Ok(Next::Ended),
            Turn::Open => Ok(Next::Refill),
        }
    }

    /// Reads until the socket is empty or closed.
    fn pull(&mut self, ctx: &mut Ctx<'_>, buffers: &mut Buffers, last: bool) -> Result<PeerSide, Failure> {
        loop {
            let skippable = self.skippable(ctx);
            let received = match skippable {
                Some(left) => self.transport.discard(buffers, left),
                None => self.transport.read(buffers),
            };
            let Received { bytes, is_short } = match received {
                Ok(received) => received,
                Err(Errno::AGAIN) => return Ok(PeerSide::Sends),
                Err(Errno::INTR) => continue,
                Err(e) => return Err(self.lost(ctx, e)),
            };
            if bytes == 0 && !self.transport.has_datagrams() {
                return Ok(PeerSide::Closed);
            }
            match skippable {
                Some(left) => self.http.skip(ctx, bytes as u64, left),
                None => self.take(ctx, buffers, bytes)?,
            }
            // Another call would only find the socket empty. After the peer's end it finds the end.
            if is_short && !last {
                return Ok(PeerSide::Sends);
            }
        }
    }

    /// Returns how much content the kernel may drop: nothing looks at it.
    #[inline]
    fn skippable(&self, ctx: &Ctx<'_>) -> Option<u64> {
        if ctx.keep_content || self.transport.tls().is_some() { None } else { self.http.skippable() }
    }

    /// Takes `n` bytes that were read.
    #[inline]
    fn take(&mut self, ctx: &mut Ctx<'_>, buffers: &mut Buffers, n: usize) -> Result<(), Failure> {
        let (data, output) = buffers.split(n);
        if self.transport.tls().is_some() {
            self.decrypt(ctx, data, output)
        } else if self.transport.has_datagrams() {
            self.http.datagram(ctx, data);
            Ok(())
        } else {
            self.http.bytes(ctx, data, output)
        }
    }

    /// Decrypts bytes and takes the content.
    fn decrypt(&mut self, ctx: &mut Ctx<'_>, data: &[u8], output: &mut Vec<u8>) -> Result<(), Failure> {
        let mut data = data;
        loop {
            self.transport.decrypt(&mut data).map_err(|e| self.broken_tls(ctx, &e))?;
            // Content that comes with the handshake is kept in TLS until HTTP is set up.
            while self.phase == Phase::Open
                && let Some(content) = self.transport.content()
            {
                let n = content.len();
                self.http.bytes(ctx, content, output)?;
                self.transport.consume(n);
            }
            if data.is_empty() {
                return Ok(());
            }
        }
    }

    fn broken_tls(&self, ctx: &mut Ctx<'_>, error: &DecryptError) -> Failure {
        let DecryptError::Tls(error) = error else { return Failure::Tls };
        ctx.note(|| match error {
            rustls::Error::InvalidCertificate(why) => {
                format!("{DISTRUST}: {why}; --ca FILE believes others, --insecure any")
            }
            other => other.to_string(),
        });
        if self.phase == Phase::Handshaking { Failure::Tls } else { Failure::Read }
    }

    fn handshake_is_complete(&self) -> bool {
        self.phase == Phase::Handshaking && self.transport.tls().is_some_and(|tls| !tls.is_handshaking())
    }

    /// Handles the end of the connection by the server.
    fn closed(&mut self, ctx: &mut Ctx<'_>) -> Result<Next, Failure> {
        if self.phase == Phase::Handshaking {
            ctx.note(|| "the server closed during the TLS handshake".to_owned());
            return Err(Failure::Tls);
        }
        self.http.closed(ctx).map(|()| Next::Ended)
    }

    /// Returns `true` if the connection has sent all that it may and has all responses.
    #[inline]
    fn is_done(&self, load: &Load) -> bool {
        let spent = self.http.is_going_away() || self.is_used_up(load);
        spent && self.http.is_idle() && self.phase == Phase::Open
    }

    /// Returns the failure that the loss of the connection is in this phase.
    fn lost(&self, ctx: &mut Ctx<'_>, error: Errno) -> Failure {
        if self.transport.has_datagrams() {
            // An ICMP message has come for a datagram.
            ctx.note(|| format!("the datagram was refused: {}", std::io::Error::from(error)));
        }
        if self.phase == Phase::Handshaking { Failure::Tls } else { self.http.reset_by_peer() }
    }

    /// Returns the origin that the connection belongs to.
    pub(super) fn origin_of<'l>(&self, load: &'l Load) -> Option<&'l Origin> {
        load.origins.get(self.origin as usize)
    }
}
