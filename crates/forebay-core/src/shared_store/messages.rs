//! Messages by which replicas tell each other what they know: the servers of sessions, and purges of caches.
//!
//! The store has the latest messages of each [`Topic`] in a stream (Redis: XADD, XREAD). A replica reads on from the last one that it
//! has read. So one that was cut off for a while catches up, and notices if the stream does not go back that far any more.
//!
//! Everything that is read here may come from someone else who writes to the store. A message that is not in the form below is
//! ignored. Zones check what a message says.

use super::resp::{Reply, command};
use super::script::{Script, hex};
use crate::digest::sha256;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;
use tokio::sync::oneshot;

/// Zone whose replicas tell each other what they know.
pub trait Tells: Send + Sync {
    /// Returns the name of the zone, which is the same on all replicas.
    fn name(&self) -> &[u8];

    /// Returns the topic of its messages.
    fn topic(&self) -> Topic;

    /// Notes that the store may have forgotten everything, since its connection is a new one. What was sent and not answered is
    /// lost, or sent again.
    fn renew(&self);

    /// Takes what is to be sent.
    fn take_notes(&self, notes: &mut Vec<Note>);

    /// Takes the answer to a note: the server that a session is bound to in the store.
    fn answer(&self, note: Note, server: Option<&[u8]>);

    /// Takes what other replicas have told, in their order. May block.
    fn hear(&self, told: Vec<Received>);

    /// Notes that messages may have been missed.
    fn missed(&self);

    /// Returns the last message that was read for the zone by an earlier process, if that is known. May block.
    fn last_seen(&self) -> Option<Id> {
        None
    }

    /// Keeps the last message that was read, for a later process. May block.
    fn keep_seen(&self, _: Id) {}
}

/// Subject of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Servers of sessions.
    Sessions,
    /// Purges of caches.
    Purges,
}

impl Topic {
    /// Returns the name of the stream in the store, without the prefix.
    fn stream(self, prefix: &[u8]) -> Vec<u8> {
        let name: &[u8] = match self {
            Topic::Sessions => b"sessions",
            Topic::Purges => b"purges",
        };
        [prefix, name].concat()
    }
}

/// Messages that a stream keeps, about.
const KEPT: u32 = 10_000;
/// Longest name of a server, bytes.
pub const MAX_SERVER: usize = 255;
/// Longest name of a zone, bytes.
const MAX_ZONE: usize = 512;
/// Longest begin of keys in a purge, bytes.
pub const MAX_PREFIX: usize = 4096;
/// Most messages in one reply.
const BATCH: usize = 200;

/// Key of a session as other replicas know it: its SHA-256. The store does not see what authenticates clients.
pub type SessionKey = [u8; 32];

/// Sender of the name of a session's server, if the store has one.
pub type ServerSender = oneshot::Sender<Option<Box<[u8]>>>;

/// Purge of a cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Purge {
    /// The entry with this MD5 of its key.
    Entry([u8; 16]),
    /// All entries whose keys begin like this.
    Prefix(Box<[u8]>),
}

/// Message or question of a zone for the store.
#[derive(Debug)]
pub enum Note {
    /// Question for the server of a session. A session that is there is prolonged.
    Look {
        /// The session.
        key: SessionKey,
        /// Time for which the store keeps it.
        life: Duration,
        /// Receiver of the server.
        sender: ServerSender,
    },
    /// Server of a session.
    Bind {
        /// The session.
        key: SessionKey,
        /// Name of the server.
        server: Box<[u8]>,
        /// Time for which the store keeps it.
        life: Duration,
        /// Whether the session leaves another server. Otherwise it stays there.
        moves: bool,
    },
    /// Purge for the other replicas.
    Purge(Purge),
}

/// Content of a message that a replica has sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Received {
    /// Server of a session.
    Bound {
        /// The session.
        key: SessionKey,
        /// Name of the server.
        server: Box<[u8]>,
    },
    /// Purge.
    Purge(Purge),
}

/// Position of a message in its stream: milliseconds since 1970 by the store's clock, and a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(u64, u64);

impl Id {
    /// Position before all messages.
    pub(super) const START: Id = Id(0, 0);
    /// Position of no message: those of the stream could not be read.
    pub(super) const UNREADABLE: Id = Id(u64::MAX, u64::MAX);

    /// Reads `MILLISECONDS-NUMBER`.
    pub fn parse(text: &[u8]) -> Option<Id> {
        let (time, number) = std::str::from_utf8(text).ok()?.split_once('-')?;
        let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse().ok()).flatten();
        Some(Id(digits(time)?, digits(number)?))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// An entry of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// A message.
    Message(Message),
    /// First entry of a stream, so that it is not empty.
    First,
    /// Something that is not in the right form.
    Odd,
}

/// Returns the name of a zone in messages, whose length is bounded.
pub fn zone_name(name: Vec<u8>) -> Vec<u8> {
    if name.len() <= MAX_ZONE { name } else { hex(&sha256(&name)).into_bytes() }
}

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Replica that has sent it.
    pub from: Vec<u8>,
    /// Zone that it is for.
    pub zone: Vec<u8>,
    /// Content.
    pub told: Received,
}

/// Returns the server of a session, and prolongs it.
static LOOK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local server = redis.pcall('GET', KEYS[1])
if type(server) ~= 'string' then
  return false
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return server",
    )
});

/// Binds a session to a server, and tells the replicas if that is news. With the argument `stay`, a session stays at the server that it
/// is bound to. Returns its server.
static BIND: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local present = redis.pcall('GET', KEYS[1])
if ARGV[3] == 'stay' and type(present) == 'string' and present ~= ARGV[1] then
  return present
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if present ~= ARGV[1] then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', 'from', ARGV[5], 'zone', ARGV[6],
    'session', ARGV[7], 'server', ARGV[1])
end
return ARGV[1]",
    )
});

/// Returns whether a message is in its stream, and the last one of the stream. An empty stream gets a first one, so that each replica
/// has one to go on from.
static POSITION: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local id = last and last[1] or redis.call('XADD', KEYS[1], '*', 'from', ARGV[2])
return {#redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]), id}",
    )
});

/// Appends a note of a zone.
pub(super) fn note(out: &mut Vec<u8>, whole: bool, prefix: &[u8], zone: &[u8], replica: &str, note: &Note) {
    let name = |key: &SessionKey| [prefix, b"sticky:", zone, b":", hex(key).as_bytes()].concat();
    let millis = |life: &Duration| life.as_millis().max(1).to_string();
    match note {
        Note::Look { key, life, .. } => {
            LOOK.call_with(out, whole, &[&name(key)], &[millis(life).as_bytes()]);
        }
        Note::Bind { key, server, life, moves } => {
            let keys = [name(key), Topic::Sessions.stream(prefix)];
            let how: &[u8] = if *moves { b"move" } else { b"stay" };
            let (life, kept, session) = (millis(life), KEPT.to_string(), hex(key));
            let (life, kept, session) = (life.as_bytes(), kept.as_bytes(), session.as_bytes());
            let arguments = [server, life, how, kept, replica.as_bytes(), zone, session];
            BIND.call_with(out, whole, &keys.each_ref().map(Vec::as_slice), &arguments);
        }
        Note::Purge(purge) => {
            let (stream, kept) = (Topic::Purges.stream(prefix), KEPT.to_string());
            let digits;
            let (kind, text): (&[u8], &[u8]) = match purge {
                Purge::Entry(hash) => {
                    digits = hex(hash);
                    (b"entry", digits.as_bytes())
                }
                Purge::Prefix(text) => (b"prefix", text),
            };
            let replica = replica.as_bytes();
            command(
                out,
                &[
                    b"XADD",
                    &stream,
                    b"MAXLEN",
                    b"~",
                    kept.as_bytes(),
                    b"*",
                    b"from",
                    replica,
                    b"zone",
                    zone,
                    kind,
                    text,
                ],
            );
        }
    }
}

/// Reads the reply to a note: the server of a session.
pub(super) fn server(reply: &Reply) -> Option<&[u8]> {
    match reply {
        Reply::Text(text) if !text.is_empty() && text.len() <= MAX_SERVER => Some(text),
        _ => None,
    }
}

/// Appends the question whether a message is in its stream.
pub(super) fn position(out: &mut Vec<u8>, prefix: &[u8], topic: Topic, replica: &str, id: Id) {
    let (stream, id) = (topic.stream(prefix), id.to_string());
    POSITION.call_with(out, true, &[&stream], &[id.as_bytes(), replica.as_bytes()]);
}

/// Reads the reply to [`position`]: whether the message is there, and the last one.
pub(super) fn positioned(reply: &Reply) -> Option<(bool, Id)> {
    let Reply::Array(parts) = reply else { return None };
    let [Reply::Number(known), Reply::Text(last)] = parts.as_slice() else { return None };
    Some((*known > 0, Id::parse(last)?))
}

/// Appends the question for messages after the one with this position. The store waits for one for at most `wait`.
pub(super) fn read(out: &mut Vec<u8>, prefix: &[u8], topic: Topic, after: Id, wait: Duration) {
    let (count, wait) = (BATCH.to_string(), wait.as_millis().to_string());
    let (stream, after) = (topic.stream(prefix), after.to_string());
    let count: [&[u8]; 5] = [b"XREAD", b"COUNT", count.as_bytes(), b"BLOCK", wait.as_bytes()];
    command(out, &[&count[..], &[b"STREAMS", &stream, after.as_bytes()]].concat());
}

/// Reads the reply to [`read`]: entries with their positions. Returns `None` if it is no such reply.
pub(super) fn entries(reply: &Reply) -> Option<Vec<(Id, Entry)>> {
    let streams = match reply {
        Reply::Null => return Some(Vec::new()),
        Reply::Array(streams) => streams,
        _ => return None,
    };
    let [Reply::Array(stream)] = streams.as_slice() else { return None };
    let [Reply::Text(_), Reply::Array(entries)] = stream.as_slice() else { return None };
    let one = |entry: &Reply| {
        let Reply::Array(entry) = entry else { return None };
        let [Reply::Text(id), fields] = entry.as_slice() else { return None };
        Some((Id::parse(id)?, self::entry(fields)))
    };
    entries.iter().map(one).collect()
}

fn entry(fields: &Reply) -> Entry {
    match fields {
        Reply::Array(fields) if matches!(fields.as_slice(), [Reply::Text(name), _] if name == b"from") => {
            Entry::First
        }
        _ => message(fields).map_or(Entry::Odd, Entry::Message),
    }
}

fn message(fields: &Reply) -> Option<Message> {
    let Reply::Array(fields) = fields else { return None };
    let text = |field: &Reply| match field {
        Reply::Text(text) => Some(text.clone()),
        _ => None,
    };
    let fields = fields.iter().map(text).collect::<Option<Vec<_>>>()?;
    // A later version may add fields.
    let (names, values) = (fields.iter().step_by(2), fields.iter().skip(1).step_by(2));
    let names: Vec<&[u8]> = names.map(Vec::as_slice).collect();
    let mut values = values.cloned();
    let (from, zone) = (values.next()?, values.next()?);
    if from.len() > 64 || zone.len() > MAX_ZONE {
        return None;
    }
    let told = match names.as_slice() {
        [b"from", b"zone", b"session", b"server", ..] => {
            let key = unhex(&values.next()?)?;
            let server = values.next().filter(|s| !s.is_empty() && s.len() <= MAX_SERVER)?;
            Received::Bound { key, server: server.into() }
        }
        [b"from", b"zone", b"entry", ..] => Received::Purge(Purge::Entry(unhex(&values.next()?)?)),
        [b"from", b"zone", b"prefix", ..] => {
            let prefix = values.next().filter(|p| p.len() <= MAX_PREFIX)?;
            Received::Purge(Purge::Prefix(prefix.into()))
        }
        _ => return None,
    };
    Some(Message { from, zone, told })
}

/// Reads a hash in lower-case hexadecimal.
fn unhex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |b: &u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut hash = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(text.chunks(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(hash)
}

/// Reads any bytes as a reply of the store with messages. Returns the number of those in the right form. For fuzzing.
pub fn read_any(bytes: &[u8]) -> Option<usize> {
    let (reply, length) = super::resp::reply(bytes).ok()??;
    assert!(length <= bytes.len(), "read beyond the end");
    let _ = (positioned(&reply), server(&reply));
    let all = entries(&reply)?;
    let messages = all.iter().filter_map(|(_, entry)| match entry {
        Entry::Message(message) => Some(message),
        _ => None,
    });
    for message in messages.clone() {
        assert!(message.zone.len() <= MAX_ZONE, "a long name");
        match &message.told {
            Received::Bound { server, .. } => {
                assert!((1..=MAX_SERVER).contains(&server.len()), "a long server")
            }
            Received::Purge(Purge::Prefix(prefix)) => assert!(prefix.len() <= MAX_PREFIX, "a long prefix"),
            Received::Purge(Purge::Entry(_)) => {}
        }
    }
    Some(messages.count())
}

#[cfg(test)]
mod tests {
    use super::super::resp;
    use super::*;

    fn text(t: impl AsRef<[u8]>) -> Reply {
        Reply::Text(t.as_ref().to_vec())
    }

    fn heard(fields: &[&[u8]]) -> Option<Message> {
        message(&Reply::Array(fields.iter().map(text).collect()))
    }

    #[test]
    fn positions_are_ordered() {
        let id = |t: &str| Id::parse(t.as_bytes());
        assert!(id("9-10") < id("10-0") && id("10-9") < id("10-10"));
        assert_eq!(id("1732572858000-3").map(|id| id.to_string()).as_deref(), Some("1732572858000-3"));
        for odd in ["", "1", "-", "1-", "-1", "+1-1", "1-1-1", "1-x", "99999999999999999999-0", "1 -1"] {
            assert_eq!(id(odd), None, "{odd}");
        }
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        let (a, key) = (Purge::Entry([0xab; 16]), [0x5e; 32]);
        let b = Purge::Prefix(b"http://h/a\r\n"[..].into());
        for purge in [a, b] {
            let mut out = Vec::new();
            note(&mut out, false, b"p:", b"zone", "me", &Note::Purge(purge.clone()));
            let (Reply::Array(words), _) = resp::reply(&out).expect("valid").expect("complete") else {
                panic!("no array");
            };
            assert!(
                words[..6]
                    == [text("XADD"), text("p:purges"), text("MAXLEN"), text("~"), text("10000"), text("*")]
            );
            let told = Received::Purge(purge);
            let expected = Message { from: b"me".to_vec(), zone: b"zone".to_vec(), told };
            assert_eq!(message(&Reply::Array(words[6..].to_vec())), Some(expected));
        }
        let mut out = Vec::new();
        let bind = Note::Bind { key, server: b"s"[..].into(), life: Duration::from_secs(2), moves: false };
        note(&mut out, false, b"p:", b"zone", "me", &bind);
        let written = String::from_utf8(out).expect("text");
        let name = format!("p:sticky:zone:{}", "5e".repeat(32));
        assert!(written.contains(&format!("\r\n{name}\r\n$10\r\np:sessions\r\n")), "{written}");
        assert!(written.contains("\r\n2000\r\n$4\r\nstay\r\n"), "{written}");
    }

    #[test]
    fn other_text_is_ignored() {
        let session = "5e".repeat(32);
        let whole: [&[u8]; 8] =
            [b"from", b"me", b"zone", b"z", b"session", session.as_bytes(), b"server", b"s"];
        let told = Received::Bound { key: [0x5e; 32], server: b"s"[..].into() };
        let expected = Some(Message { from: b"me".to_vec(), zone: b"z".to_vec(), told });
        assert_eq!(heard(&whole), expected);
        assert_eq!(heard(&[&whole[..], &[b"later", b"field"]].concat()), expected);
        for cut in 0..whole.len() {
            assert_eq!(heard(&whole[..cut]), None, "{cut}");
        }
        let with = |at: usize, value: &[u8]| {
            let mut fields = whole;
            fields[at] = value;
            heard(&fields)
        };
        let upper = session.to_uppercase();
        for odd in [b"".as_slice(), &session.as_bytes()[1..], upper.as_bytes(), &[b'g'; 64], &[0xc3; 64]] {
            assert_eq!(with(5, odd), None);
        }
        assert_eq!((with(7, b""), with(7, &[b'a'; MAX_SERVER + 1])), (None, None));
        assert_eq!((with(3, &[b'a'; MAX_ZONE + 1]), with(1, &[b'a'; 65])), (None, None));
        assert_eq!((with(4, b"entry"), with(2, b"from")), (None, None));
        let prefix = [b'a'; MAX_PREFIX + 1];
        assert_eq!(heard(&[b"from", b"me", b"zone", b"z", b"prefix", &prefix]), None);
        assert!(heard(&[b"from", b"me", b"zone", b"z", b"prefix", &prefix[1..]]).is_some());
        assert_eq!(message(&Reply::Null), None);
    }

    #[test]
    fn replies_have_positions() {
        let entry = |id: &str, fields: Reply| Reply::Array(vec![text(id), fields]);
        let stream = |entries: Vec<Reply>| {
            Reply::Array(vec![Reply::Array(vec![text("p:purges"), Reply::Array(entries)])])
        };
        let origin = Reply::Array(vec![text("from"), text("me")]);
        let reply = stream(vec![entry("1-0", origin.clone()), entry("2-0", Reply::Null)]);
        assert_eq!(entries(&reply), Some(vec![(Id(1, 0), Entry::First), (Id(2, 0), Entry::Odd)]));
        assert_eq!(entries(&stream(vec![entry("x", origin)])), None);
        assert_eq!(entries(&Reply::Null), Some(Vec::new()));
        assert_eq!((entries(&Reply::Number(1)), entries(&Reply::Array(Vec::new()))), (None, None));
        let placed = |known, id: &str| positioned(&Reply::Array(vec![Reply::Number(known), text(id)]));
        assert_eq!((placed(1, "5-1"), placed(0, "5-1")), (Some((true, Id(5, 1))), Some((false, Id(5, 1)))));
        assert_eq!((placed(1, "5"), positioned(&Reply::Null)), (None, None));
        let long = text([b'a'; MAX_SERVER + 1]);
        assert_eq!((server(&long), server(&text("")), server(&Reply::Null)), (None, None, None));
        assert_eq!(server(&text("s")), Some(b"s".as_slice()));
    }

    #[test]
    fn any_bytes_do_no_harm() {
        let session = "5e".repeat(32);
        let seed = format!(
            "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-0\r\n*8\r\n$4\r\nfrom\r\n$1\r\nm\r\n$4\r\nzone\r\n$1\r\nz\r\n\
             $7\r\nsession\r\n$64\r\n{session}\r\n$6\r\nserver\r\n$1\r\ns\r\n"
        );
        assert_eq!(read_any(seed.as_bytes()), Some(1));
        let alphabet = b"*$:+-\r\n0123456789ax\0\xff";
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % below
        };
        let mut read = 0;
        for _ in 0..100_000 {
            let mut bytes = seed.clone().into_bytes();
            for _ in 0..=random(2) {
                let (at, new) = (random(bytes.len()), alphabet[random(alphabet.len())]);
                match random(3) {
                    0 => bytes[at] = new,
                    1 => bytes.insert(at, new),
                    _ => drop(bytes.remove(at)),
                }
            }
            read += usize::from(read_any(&bytes) == Some(1));
        }
        assert!(read > 100, "{read}");
    }
}
