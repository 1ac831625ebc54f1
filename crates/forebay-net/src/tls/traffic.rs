//! Records of a connection whose handshake is over: content, alerts, and the messages that change keys (RFC 8446, sections
//! 4.6, 5 and 6). Hot path.

use super::post_handshake::{self, Message};
use super::record::{self, ALERT, Broken, DATA, HANDSHAKE, Half};
use super::stream::broken;
use rustix::io::Errno;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

/// Records in a row that carry nothing (OpenSSL has the same limit).
const MAX_EMPTY: u32 = 32;

/// Changes of keys that are asked for while no answer can leave.
const MAX_UNSENT: u32 = 32;

/// State of rustls after the handshake, for changes of keys.
pub(super) enum Kernel {
    Server(KernelConnection<ServerConnectionData>),
    Client(KernelConnection<ClientConnectionData>),
    /// TLS 1.2 changes nothing.
    Done,
}

/// Both directions.
pub(super) struct Traffic {
    pub(super) tx: Half,
    pub(super) rx: Half,
    pub(super) kernel: Kernel,
    pub(super) v13: bool,
    pub(super) empty: u32,
    /// Number of answers to changes of keys that have not left.
    pub(super) unsent: u32,
    /// The beginning of a message after the handshake, of which the rest comes with the next record.
    pub(super) message: Vec<u8>,
}

/// Returns `true` if a record holds a ClientHello and nothing else.
fn is_client_hello(content: &[u8]) -> bool {
    match content {
        [1, a, b, c, rest @ ..] => {
            rest.len() == usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c)
        }
        _ => false,
    }
}

/// Alert `no_renegotiation`.
pub(super) const NO_RENEGOTIATION: u8 = 100;

impl Traffic {
    /// Opens all whole records. Returns the bytes used.
    pub(super) fn open_all(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
        ended: &mut bool,
        owed: &mut Vec<u8>,
    ) -> Result<usize, Broken> {
        let mut at = 0;
        while !*ended {
            let Some((kind, content)) = self.open_next(input, &mut at)? else { break };
            // This is the usual kind of record, and the rest of the loop is rare.
            if kind == DATA && !content.is_empty() {
                out.extend_from_slice(content);
                self.empty = 0;
                continue;
            }
            match kind {
                DATA => {}
                ALERT => *ended = self.receive_alert(content)?,
                HANDSHAKE => self.receive_handshake(content, owed)?,
                _ => return Err(Broken::Malformed),
            }
            // A peer could send records without content for ever, and each of them costs a decryption.
            self.count_empty()?;
        }
        Ok(at)
    }

    /// Opens the record at `at`, and moves `at` to its end. Returns `None` if the record is incomplete.
    #[inline]
    fn open_next<'i>(
        &mut self,
        input: &'i mut [u8],
        at: &mut usize,
    ) -> Result<Option<(u8, &'i [u8])>, Broken> {
        let rest = input.get_mut(*at..).unwrap_or_default();
        let Some(n) = record::whole(rest)? else { return Ok(None) };
        let record = rest.get_mut(..n).ok_or(Broken::Malformed)?;
        let (kind, content) = self.rx.open(record)?;
        let content = record.get(content).ok_or(Broken::Malformed)?;
        *at += n;
        if kind != HANDSHAKE && !self.message.is_empty() {
            // Fragments of a message must follow each other (RFC 8446, section 5.1).
            return Err(Broken::Malformed);
        }
        Ok(Some((kind, content)))
    }

    /// Reads an alert. Returns `true` if it ends the connection in good order (`close_notify`).
    #[cold]
    fn receive_alert(&self, content: &[u8]) -> Result<bool, Broken> {
        match content {
            // `user_canceled` and `no_renegotiation` are warnings that end nothing.
            [1, 90 | NO_RENEGOTIATION] => Ok(false),
            // `close_notify` at any level.
            [_, 0] => Ok(true),
            [1 | 2, _] => Err(Broken::Alerted),
            [_, _] => Err(Broken::Illegal),
            // RFC 8446, section 5.4.
            [] if self.v13 => Err(Broken::Malformed),
            _ => Err(Broken::Undecodable),
        }
    }

    #[cold]
    fn receive_handshake(&mut self, content: &[u8], owed: &mut Vec<u8>) -> Result<(), Broken> {
        if self.v13 && !content.is_empty() {
            return self.post_handshake(content, owed);
        }
        if self.v13 || !is_client_hello(content) {
            return Err(Broken::Malformed);
        }
        // Refuse a renegotiation with a warning, as nginx does (RFC 5746, section 4.5).
        self.alert(1, NO_RENEGOTIATION, owed);
        Ok(())
    }

    /// Counts a record without content. A fragment of a message counts as content, since the length of a message is limited.
    fn count_empty(&mut self) -> Result<(), Broken> {
        if !self.message.is_empty() {
            return Ok(());
        }
        self.empty += 1;
        if self.empty > MAX_EMPTY { Err(Broken::Malformed) } else { Ok(()) }
    }

    /// Reads messages after the handshake.
    fn post_handshake(&mut self, content: &[u8], owed: &mut Vec<u8>) -> Result<(), Broken> {
        let mut gathered = std::mem::take(&mut self.message);
        let mut rest = content;
        if !gathered.is_empty() {
            gathered.extend_from_slice(content);
            rest = &gathered;
        }
        while let Some((message, behind)) = self.next_message(rest)? {
            rest = behind;
            match message {
                Message::Ticket(ticket) => self.take_ticket(ticket)?,
                // New keys begin with a new record.
                Message::KeyUpdate(_) if !rest.is_empty() => return Err(Broken::Malformed),
                Message::KeyUpdate(requested) => self.receive_key_update(requested, owed)?,
            }
        }
        self.message = rest.to_vec();
        Ok(())
    }

    /// Reads the message at the start of `bytes`, as [`post_handshake::next`] does.
    fn next_message<'m>(&self, bytes: &'m [u8]) -> Result<Option<(Message<'m>, &'m [u8])>, Broken> {
        match &self.kernel {
            Kernel::Done if !bytes.is_empty() => Err(Broken::Malformed),
            kernel => post_handshake::next(bytes, matches!(kernel, Kernel::Client(_))),
        }
    }

    fn take_ticket(&mut self, ticket: &[u8]) -> Result<(), Broken> {
        let Kernel::Client(k) = &mut self.kernel else { return Err(Broken::Malformed) };
        k.handle_new_session_ticket(ticket).map_err(|_| Broken::Undecodable)
    }

    /// Changes the keys for receiving. Changes the keys for sending, too, if the peer has requested that.
    fn receive_key_update(&mut self, requested: bool, owed: &mut Vec<u8>) -> Result<(), Broken> {
        let secrets = match &mut self.kernel {
            Kernel::Server(k) => k.update_rx_secret(),
            Kernel::Client(k) => k.update_rx_secret(),
            Kernel::Done => return Err(Broken::Malformed),
        };
        // A new key starts with record number 0; `secrets` has it.
        self.rx = secrets.ok().and_then(|s| Half::new(s, true)).ok_or(Broken::Malformed)?;
        if requested { self.answer_key_update(owed) } else { Ok(()) }
    }

    fn answer_key_update(&mut self, owed: &mut Vec<u8>) -> Result<(), Broken> {
        // A peer that never reads must not make answers pile up.
        self.unsent = if owed.is_empty() { 1 } else { self.unsent + 1 };
        if self.unsent > MAX_UNSENT { Err(Broken::Overflow) } else { self.update(owed) }
    }

    /// Changes the keys for sending.
    pub(super) fn update(&mut self, owed: &mut Vec<u8>) -> Result<(), Broken> {
        let at = owed.len();
        owed.resize(at + self.tx.sealed_len(5), 0);
        // Sealed with the old keys, then the keys change (RFC 8446, section 4.6.3). The last byte requests nothing:
        // two sides that request would never stop.
        self.tx.seal(HANDSHAKE, &[24, 0, 0, 1, 0], owed.get_mut(at..).unwrap_or_default())?;
        let secrets = match &mut self.kernel {
            Kernel::Server(k) => k.update_tx_secret(),
            Kernel::Client(k) => k.update_tx_secret(),
            Kernel::Done => return Err(Broken::Overflow),
        };
        self.tx = secrets.ok().and_then(|s| Half::new(s, true)).ok_or(Broken::Malformed)?;
        Ok(())
    }

    /// Changes worn keys. TLS 1.2 cannot: what is being sent goes on, and the connection ends behind it
    /// ([`super::stream::Stream::worn`]).
    #[inline]
    pub(super) fn renew(&mut self, owed: &mut Vec<u8>) -> Result<(), Errno> {
        if self.v13 && self.tx.worn() { self.update(owed).map_err(broken) } else { Ok(()) }
    }

    pub(super) fn alert(&mut self, level: u8, what: u8, owed: &mut Vec<u8>) {
        let at = owed.len();
        owed.resize(at + self.tx.sealed_len(2), 0);
        if self.tx.seal(ALERT, &[level, what], owed.get_mut(at..).unwrap_or_default()).is_err() {
            owed.truncate(at);
        }
    }
}
