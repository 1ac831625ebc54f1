//! Messages behind the handshake of TLS 1.3: new keys and, for clients, tickets (RFC 8446, section 4.6). A message may come in several
//! records, and a record may have several messages.

use super::record::Broken;

/// Longest message, bytes: NewSessionTicket has a ticket and extensions of 64 KiB each.
const MAX_MESSAGE: usize = 132 * 1024;

/// `new_session_ticket`.
const NEW_SESSION_TICKET: u8 = 4;
/// `key_update`.
const KEY_UPDATE: u8 = 24;

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'m> {
    /// The body of a NewSessionTicket.
    Ticket(&'m [u8]),
    /// The peer has new keys for sending. `true`: it requests new ones of ours, too.
    KeyUpdate(bool),
}

impl<'m> Message<'m> {
    fn new(kind: u8, body: &'m [u8]) -> Result<Message<'m>, Broken> {
        match (kind, body) {
            (NEW_SESSION_TICKET, ticket) => Ok(Message::Ticket(ticket)),
            (_, [requested @ (0 | 1)]) => Ok(Message::KeyUpdate(*requested == 1)),
            _ => Err(Broken::Illegal),
        }
    }
}

/// Reads the message at the start of `bytes`. Returns it, and the bytes behind it; `None` if it is incomplete. `takes_tickets`: the
/// message is for a client.
///
/// # Errors
/// No message begins with these bytes. The length is judged before the body has come.
pub fn next(bytes: &[u8], takes_tickets: bool) -> Result<Option<(Message<'_>, &[u8])>, Broken> {
    let Some((&kind, after)) = bytes.split_first() else { return Ok(None) };
    let longest = match kind {
        NEW_SESSION_TICKET if takes_tickets => MAX_MESSAGE,
        KEY_UPDATE => 1,
        _ => return Err(Broken::Malformed),
    };
    let Some((length, body)) = after.split_at_checked(3) else { return Ok(None) };
    let length = length.iter().fold(0, |n, b| n << 8 | usize::from(*b));
    if length > longest || (kind == KEY_UPDATE && length != longest) {
        return Err(Broken::Undecodable);
    }
    let Some((message, behind)) = body.split_at_checked(length) else { return Ok(None) };
    Ok(Some((Message::new(kind, message)?, behind)))
}
