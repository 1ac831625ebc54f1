//! Field compression by the dynamic table, for what we send (RFC 9204, section 2.1). Hot path.
//!
//! Heads are encoded by the static table alone (`encode.rs`), so that those of files are kept ready-made for all connections. The
//! encoder of a connection replaces lines that its client's table has. It compares lines as they are encoded, and so decodes nothing
//! for each response.
//!
//! It only refers to insertions that the client has acknowledged, so that nothing waits for them. A line is inserted when it comes for the
//! second time. Lines that would not come again, or that nobody should be able to guess by lengths, never are.

use super::qpack::{Error, Reader};
use super::static_table::STATIC;
use crate::compression::push_int;
use crate::compression::secret::is_secret;
use crate::compression::table::OVERHEAD;
use std::collections::VecDeque;

/// Greatest table that is used of what a client offers, bytes.
const MOST_CAPACITY: usize = 4096;
/// Smallest table that is worth it, bytes.
const LEAST_CAPACITY: usize = 128;
/// Shortest line that is worth an insertion, bytes.
const LEAST_LINE: usize = 4;
/// Most sections that wait for an acknowledgment. While there are more, sections do not refer to the table.
const UNACKNOWLEDGED: usize = 256;
/// Number of sections without a reference to an entry after which it may leave the table.
const COLD: u64 = 64;
/// Sections that are kept as they were encoded.
const KEPT: usize = 4;
/// Sets of lines that are remembered; each line belongs to one of them.
const SETS: usize = 16;
/// Lines in a set.
const WAYS: usize = 4;

/// Returns `true` for a name of the static table whose lines are worth an insertion: not one with another value each time, nor a secret.
const fn is_indexable(name: &str) -> bool {
    !matches!(name.as_bytes(), b"date" | b"content-length" | b"age") && !is_secret(name.as_bytes())
}

/// [`is_indexable`] by the index of the name.
static INDEXABLE: [bool; STATIC.len()] = {
    let mut table = [false; STATIC.len()];
    let mut i = 0;
    while i < STATIC.len() {
        table[i] = is_indexable(STATIC[i].0);
        i += 1;
    }
    table
};

/// Line of a section.
struct Line {
    /// Length, bytes.
    len: usize,
    /// Name of a line that may be inserted.
    name: Option<LineName>,
}

/// Name of a literal line.
#[derive(Clone, Copy)]
enum LineName {
    /// Index in the static table.
    Static(usize),
    Literal,
}

impl Line {
    /// Reads the first line of a section that refers to nothing but the static table.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Line> {
        let first = *bytes.first()?;
        if (0xc0..0xff).contains(&first) {
            // By far the commonest of those without a value.
            return Some(Line { len: 1, name: None });
        }
        let mut reader = Reader::new(bytes);
        let name = match first {
            0xff => {
                reader.int(6).ok()?;
                return Some(Line { len: reader.at, name: None });
            }
            0x50..0x60 => {
                let index = usize::try_from(reader.int(4).ok()?).ok()?;
                INDEXABLE.get(index)?.then_some(LineName::Static(index))
            }
            0x20..0x30 => {
                reader.text(3, usize::MAX).ok()?;
                Some(LineName::Literal)
            }
            // Lines that no table may have.
            0x30..0x40 => {
                reader.text(3, usize::MAX).ok()?;
                None
            }
            0x70..0x80 => {
                reader.int(4).ok()?;
                None
            }
            _ => return None,
        };
        reader.text(7, usize::MAX).ok()?;
        Some(Line { len: reader.at, name: name.filter(|_| reader.at >= LEAST_LINE) })
    }
}

/// Entry of the table.
#[derive(Debug)]
struct Entry {
    /// The line as a section has it without the table.
    line: Box<[u8]>,
    /// Size as RFC 9204 counts it, bytes.
    size: usize,
    /// Number of the last section that referred to it.
    used: u64,
}

/// Line that has come before.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Hash of the line; 0: none.
    hash: u32,
    /// Number of insertions up to and with the one of the line; 0: it has not been inserted.
    inserted: u32,
    /// No table may have it.
    secret: bool,
}

/// Section that refers to the table and has not been acknowledged.
#[derive(Clone, Copy, Debug)]
struct Sent {
    stream: u64,
    /// Absolute index of the oldest entry that it refers to.
    oldest: u64,
}

/// A section as it was encoded, for the next one with the same lines: the responses of one file differ in nothing within a second.
#[derive(Debug, Default)]
struct Kept {
    /// The section as it is encoded by the static table alone.
    section: Vec<u8>,
    /// Its lines and, behind them, its prefix.
    encoded: Vec<u8>,
    /// Place of the prefix.
    prefix: usize,
    /// Absolute indices of the entries that it refers to.
    indices: Vec<u64>,
    /// [`Encoder::changes`] at that time. The section is encoded in another way after a change.
    changes: u64,
    /// Number of the last section that it was used for.
    used: u64,
}

/// The encoder of a connection.
#[derive(Debug)]
pub struct Encoder {
    /// Range of encoded insert counts (RFC 9204, section 4.5.1.1).
    range: u64,
    /// Size of the table that is used, bytes.
    capacity: usize,
    /// The client has been told of it.
    announced: bool,
    size: usize,
    /// Entries, the oldest first.
    entries: VecDeque<Entry>,
    /// Entries that have left the table: absolute index of the oldest.
    dropped: u64,
    /// Insertions that the client has acknowledged.
    known: u64,
    /// Sections so far.
    sections: u64,
    unacknowledged: VecDeque<Sent>,
    slots: [[Slot; WAYS]; SETS],
    /// Number of changes after which a section may be encoded in another way.
    changes: u64,
    /// A line of the section at hand is to be inserted.
    inserts: bool,
    kept: Vec<Kept>,
}

impl Encoder {
    /// Creates the encoder for a peer that offers a table of `offered` bytes; `None` if that is too small to be used.
    pub fn new(offered: u64) -> Option<Encoder> {
        let capacity = usize::try_from(offered).unwrap_or(usize::MAX).min(MOST_CAPACITY);
        (capacity >= LEAST_CAPACITY).then(|| Encoder {
            range: 2 * (offered / OVERHEAD as u64),
            capacity,
            announced: false,
            size: 0,
            entries: VecDeque::new(),
            dropped: 0,
            known: 0,
            sections: 0,
            unacknowledged: VecDeque::new(),
            slots: [[Slot::default(); WAYS]; SETS],
            changes: 0,
            inserts: false,
            kept: Vec::new(),
        })
    }

    /// Returns the number of insertions so far.
    pub fn inserted(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// Encodes a section of a stream anew, where lines of it are in the table. `section` is encoded by the static table alone. Appends the
    /// lines to `out` and then the prefix, whose place is the result; `None`: the section is to be sent as it is. Instructions for the peer
    /// are appended to `instructions`; without it nothing is inserted.
    pub fn encode(
        &mut self,
        stream: u64,
        section: &[u8],
        out: &mut Vec<u8>,
        mut instructions: Option<&mut Vec<u8>>,
    ) -> Option<usize> {
        let may_refer = self.unacknowledged.len() < UNACKNOWLEDGED;
        if may_refer && let Some(prefix) = self.encode_as_before(stream, section, out) {
            return Some(prefix);
        }
        let mut rest = section.strip_prefix(&[0, 0])?;
        let (before, start) = (self.changes, out.len());
        self.inserts = false;
        let mut indices = Vec::new();
        // Lines that stay as they are and have not been copied.
        let mut plain = rest;
        self.sections += 1;
        let (mut oldest, mut required) = (u64::MAX, 0);
        while !rest.is_empty() {
            let line = Line::read(rest)?;
            let (bytes, behind) = rest.split_at_checked(line.len)?;
            rest = behind;
            let found =
                line.name.and_then(|name| self.find(bytes, name, oldest, instructions.as_deref_mut()));
            if let Some(index) = found.filter(|_| may_refer) {
                out.extend_from_slice(plain.get(..plain.len() - rest.len() - line.len)?);
                plain = rest;
                // Relative to what is known, which is the base.
                let age = usize::try_from(self.known - 1 - index).unwrap_or(usize::MAX);
                push_int(out, 0x80, 6, age);
                oldest = oldest.min(index);
                required = required.max(index + 1);
                indices.push(index);
            }
        }
        if required == 0 {
            return None;
        }
        out.extend_from_slice(plain);
        self.unacknowledged.push_back(Sent { stream, oldest });
        let prefix = out.len();
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        push_int(out, 0, 8, number(required % self.range + 1));
        push_int(out, 0, 7, number(self.known - required));
        // A line that found no room in the table may find it the next time.
        if self.changes == before && !self.inserts {
            self.keep(section, out.get(start..)?, prefix - start, indices);
        }
        Some(prefix)
    }

    /// Encodes a section as one with the same bytes was before, if nothing has changed since. See [`Self::encode`].
    fn encode_as_before(&mut self, stream: u64, section: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        let changes = self.changes;
        let at = self.kept.iter().position(|kept| kept.changes == changes && kept.section == section)?;
        if at > 0 {
            // The next section is likely to be the same.
            self.kept.swap(0, at);
        }
        let kept = self.kept.first_mut()?;
        self.sections += 1;
        kept.used = self.sections;
        let oldest = *kept.indices.first()?;
        let prefix = out.len() + kept.prefix;
        out.extend_from_slice(&kept.encoded);
        self.unacknowledged.push_back(Sent { stream, oldest });
        Some(prefix)
    }

    /// Keeps a section as it was encoded, in place of the one whose last use is longest ago.
    fn keep(&mut self, section: &[u8], encoded: &[u8], prefix: usize, mut indices: Vec<u64>) {
        // The oldest one first.
        indices.sort_unstable();
        if self.kept.len() < KEPT {
            self.kept.push(Kept::default());
        }
        let Some(kept) = self.kept.iter_mut().min_by_key(|kept| kept.used) else { return };
        // The marks of its entries would go with it.
        note_uses(kept, &mut self.entries, self.dropped);
        kept.section.clear();
        kept.section.extend_from_slice(section);
        kept.encoded.clear();
        kept.encoded.extend_from_slice(encoded);
        (kept.prefix, kept.indices) = (prefix, indices);
        (kept.changes, kept.used) = (self.changes, self.sections);
    }

    /// Returns the absolute index of a line that the peer has in its table. Inserts one that comes for the second time. `keep`: index of
    /// the first entry that the section refers to so far.
    #[inline]
    fn find(&mut self, line: &[u8], name: LineName, keep: u64, out: Option<&mut Vec<u8>>) -> Option<u64> {
        let hash = hash(line);
        // Products depend on all bits of their factors in the upper ones.
        let set = (hash >> 28) as usize % SETS;
        let Some(way) = self.slots[set].iter().position(|slot| slot.hash == hash) else {
            self.remember(hash, set);
            return None;
        };
        let inserted = self.slots[set][way].inserted;
        if self.is_live(inserted) {
            let index = u64::from(inserted) - 1;
            let entry = self.entries.get_mut(usize::try_from(index - self.dropped).ok()?)?;
            if index >= self.known || *entry.line != *line {
                return None;
            }
            entry.used = self.sections;
            return Some(index);
        }
        if self.slots[set][way].secret {
            return None;
        }
        if matches!(name, LineName::Literal) && has_secret(line) {
            self.slots[set][way].secret = true;
            return None;
        }
        self.inserts = true;
        self.slots[set][way].inserted = self.insert(line, name, keep, out?)?;
        None
    }

    /// Notes that a line has come for the first time, in place of another that is not in the table.
    fn remember(&mut self, hash: u32, set: usize) {
        // In turns, so that those which came first stay for a while.
        let turn = self.sections as usize % WAYS;
        let ways = || self.slots[set].iter().enumerate().cycle().skip(turn).take(WAYS);
        let empty = ways().find(|(_, slot)| slot.hash == 0);
        let place = empty.or_else(|| ways().find(|(_, slot)| !self.is_live(slot.inserted)));
        if let Some((way, _)) = place {
            self.changes += 1;
            self.slots[set][way] = Slot { hash, ..Slot::default() };
        }
    }

    /// Returns `true` if the line of a slot is in the table.
    fn is_live(&self, inserted: u32) -> bool {
        u64::from(inserted) > self.dropped
    }

    /// Inserts a line. Returns the number of insertions; `None` if there is no room.
    fn insert(&mut self, line: &[u8], name: LineName, keep: u64, out: &mut Vec<u8>) -> Option<u32> {
        let number = u32::try_from(self.inserted() + 1).ok()?;
        let mut reader = Reader::new(line);
        let mut text = Vec::new();
        let name_text = match name {
            LineName::Static(index) => {
                reader.int(4).ok()?;
                text.extend_from_slice(STATIC.get(index)?.0.as_bytes());
                None
            }
            LineName::Literal => {
                let coded = reader.peek()? & 0x08 != 0;
                let name = reader.text(3, usize::MAX).ok()?;
                let mut again = Reader::new(line);
                again.string(3, usize::MAX, &mut text).ok()?;
                Some((coded, name))
            }
        };
        let value = line.get(reader.at..)?;
        reader.string(7, usize::MAX, &mut text).ok()?;
        let size = text.len() + OVERHEAD;
        self.make_room(size, keep)?;
        self.changes += 1;
        if !std::mem::replace(&mut self.announced, true) {
            push_int(out, 0x20, 5, self.capacity);
        }
        match (name, name_text) {
            (LineName::Static(index), _) => push_int(out, 0xc0, 6, index),
            (LineName::Literal, Some((coded, name))) => {
                push_int(out, if coded { 0x60 } else { 0x40 }, 5, name.len());
                out.extend_from_slice(name);
            }
            (LineName::Literal, None) => return None,
        }
        out.extend_from_slice(value);
        self.entries.push_back(Entry { line: line.into(), size, used: self.sections });
        self.size += size;
        Some(number)
    }

    /// Has old entries leave the table. Only those may that the peer knows of, and that no section on its way refers to (RFC 9204, section
    /// 2.1.1). Those in use stay: a table of them serves better than one that changes all the time.
    fn make_room(&mut self, size: usize, keep: u64) -> Option<()> {
        if size > self.capacity / 2 {
            return None;
        }
        for kept in &self.kept {
            note_uses(kept, &mut self.entries, self.dropped);
        }
        let keep = self.unacknowledged.iter().map(|sent| sent.oldest).fold(keep.min(self.known), u64::min);
        let (mut left, mut leave) = (self.size, 0);
        while left + size > self.capacity {
            let entry = self.entries.get(leave)?;
            if self.dropped + leave as u64 >= keep || self.sections - entry.used < COLD {
                return None;
            }
            left -= entry.size;
            leave += 1;
        }
        self.entries.drain(..leave);
        self.dropped += leave as u64;
        self.size = left;
        Some(())
    }

    /// Takes the acknowledgment of a stream's first section that is not acknowledged (RFC 9204, section 4.4.1).
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none: QPACK_DECODER_STREAM_ERROR.
    pub fn acknowledge(&mut self, stream: u64) -> Result<(), Error> {
        let at = self.unacknowledged.iter().position(|sent| sent.stream == stream).ok_or(Error::Invalid)?;
        self.unacknowledged.remove(at);
        Ok(())
    }

    /// Forgets the sections of a stream that the peer will not decode (RFC 9204, section 4.4.2).
    pub fn cancel(&mut self, stream: u64) {
        self.unacknowledged.retain(|sent| sent.stream != stream);
    }

    /// Takes an Insert Count Increment (RFC 9204, section 4.4.3).
    ///
    /// # Errors
    /// [`Error::Invalid`] for zero, or more than was inserted: QPACK_DECODER_STREAM_ERROR.
    pub fn increment(&mut self, n: u64) -> Result<(), Error> {
        if n == 0 || n > self.inserted() - self.known {
            return Err(Error::Invalid);
        }
        self.known += n;
        self.changes += 1;
        Ok(())
    }
}

/// Notes in the table which sections referred to entries last.
fn note_uses(kept: &Kept, entries: &mut VecDeque<Entry>, dropped: u64) {
    for index in &kept.indices {
        let at = index.checked_sub(dropped).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| entries.get_mut(at)) {
            entry.used = entry.used.max(kept.used);
        }
    }
}

/// Returns `true` for a literal line whose name tells a secret.
fn has_secret(line: &[u8]) -> bool {
    let mut name = Vec::new();
    Reader::new(line).string(3, usize::MAX, &mut name).is_ok() && is_secret(&name)
}

/// Returns a hash that is not 0, of the length and the ends of a line. Lines with the same one share a place, which only spoils their
/// compression.
#[inline]
fn hash(line: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (first, last) = match (line.first_chunk(), line.last_chunk()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (line.iter().fold(0, |sum, b| sum << 8 | u64::from(*b)), 0),
    };
    let sum = (first.wrapping_mul(FACTOR) ^ last).wrapping_add(line.len() as u64).wrapping_mul(FACTOR);
    ((sum >> 32) as u32).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::super::qpack::Decoder;
    use super::*;
    use crate::compression::{Field, Sink};

    #[derive(Debug, Default, PartialEq, Eq)]
    struct Fields(Vec<(String, String)>);
    impl Sink for Fields {
        fn field(&mut self, Field { name, value, .. }: Field<'_>) {
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            self.0.push((text(name), text(value)));
        }
    }

    /// Both ends of a connection.
    struct Pair {
        encoder: Encoder,
        decoder: Decoder,
        stream: u64,
    }

    impl Pair {
        fn new(capacity: usize) -> Pair {
            let encoder = Encoder::new(capacity as u64).expect("large enough");
            Pair { encoder, decoder: Decoder::new(capacity), stream: 0 }
        }

        /// Sends a section on the next stream. Returns its length, and whether it refers to the table.
        fn send(&mut self, fields: &[(&str, &str)]) -> (usize, bool) {
            let mut section = Vec::new();
            encode::prefix(&mut section);
            fields.iter().for_each(|(n, v)| encode::field(&mut section, n.as_bytes(), v.as_bytes()));
            let (mut out, mut instructions) = (Vec::new(), Vec::new());
            self.stream += 4;
            let changed = self.encoder.encode(self.stream, &section, &mut out, Some(&mut instructions));
            if let Some(at) = changed {
                section = [&out[at..], &out[..at]].concat();
            }
            let mut got = Fields::default();
            // What it needs is there before its instructions: nothing waits.
            assert_eq!(self.decoder.decode(&section, &mut Vec::new(), &mut got), Ok(changed.is_some()));
            let want: Vec<_> = fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            assert_eq!(got.0, want);
            let done = self.decoder.instructions(&instructions, &mut Vec::new());
            assert_eq!(done, Ok(instructions.len()));
            assert_eq!(self.decoder.inserted(), self.encoder.inserted());
            (section.len(), changed.is_some())
        }

        fn acknowledge(&mut self) {
            let new = self.encoder.inserted() - self.encoder.known;
            if new > 0 {
                self.encoder.increment(new).expect("there are so many");
            }
        }
    }

    const HEAD: [(&str, &str); 6] = [
        ("server", "forebay/0.2.0"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("content-type", "text/html; charset=utf-8-with-more"),
        ("x-custom", "a value"),
        ("set-cookie", "id=secret"),
        ("x-csrf-token", "c0ffee"),
    ];

    #[test]
    fn lines_that_come_again_are_short() {
        let mut pair = Pair::new(4096);
        let first = pair.send(&HEAD);
        assert_eq!((pair.encoder.inserted(), first.1), (0, false), "nothing has come twice");
        assert_eq!((pair.send(&HEAD), pair.encoder.inserted()), (first, 3));
        assert_eq!(pair.send(&HEAD), first, "nothing has been acknowledged");
        pair.acknowledge();
        let (len, refers) = pair.send(&HEAD);
        assert!(refers && len + 30 < first.0, "{len} {first:?}");
        assert_eq!(pair.encoder.inserted(), 3, "neither the date nor the secrets");
        // In another order, with others between.
        pair.send(&[HEAD[3], ("x-other", "b"), HEAD[0], ("cache-control", "max-age=77")]);
    }

    #[test]
    fn sections_are_kept_as_they_were_encoded() {
        let mut pair = Pair::new(4096);
        let used = |pair: &Pair| pair.encoder.kept.iter().map(|kept| kept.used).max();
        for _ in 0..2 {
            pair.send(&HEAD);
        }
        pair.acknowledge();
        let first = pair.send(&HEAD);
        assert_eq!((pair.encoder.kept.len(), used(&pair)), (1, Some(3)));
        assert_eq!((pair.send(&HEAD), used(&pair)), (first, Some(4)), "as it is kept");
        assert_eq!(pair.encoder.acknowledge(pair.stream), Ok(()));
        // A new line, which would be inserted the next time, changes nothing about these lines, but might.
        pair.send(&[HEAD[0], ("x-other", "b")]);
        assert_eq!(pair.encoder.kept.len(), 1);
        pair.send(&[HEAD[0], ("x-other", "b")]);
        assert_eq!(pair.encoder.inserted(), 4, "inserted in spite of a kept section");
        pair.acknowledge();
        for n in 0..2 * KEPT {
            let length = n.to_string();
            assert!(pair.send(&[HEAD[0], ("content-length", &length)]).1);
            assert!(pair.encoder.kept.len() <= KEPT);
        }
        // A section with a line that waits for room is not kept.
        let mut pair = Pair::new(128);
        let pairs = [[("x-first", "some value of it")], [("x-second", "some value of it")]];
        for fields in [&pairs[0], &pairs[0]] {
            pair.send(fields);
        }
        pair.acknowledge();
        let both = [pairs[0][0], pairs[1][0], ("x-third", "another value")];
        for _ in 0..3 {
            pair.send(&both);
            pair.acknowledge();
        }
        assert!(!pair.encoder.kept.iter().any(|kept| kept.changes == pair.encoder.changes));
        // Uses of a kept section keep its entries in the table.
        let mut pair = Pair::new(128);
        for _ in 0..3 {
            pair.send(&pairs[0]);
            pair.acknowledge();
        }
        for _ in 0..2 * COLD {
            pair.send(&pairs[0]);
            pair.encoder.acknowledge(pair.stream).expect("on its way");
        }
        for _ in 0..2 {
            pair.send(&[("x-large", "of a size that takes the place of another")]);
        }
        assert_eq!(pair.encoder.dropped, 0, "the entry is in use");
    }

    #[test]
    fn feedback_is_strict() {
        let mut pair = Pair::new(4096);
        assert_eq!(pair.encoder.increment(1), Err(Error::Invalid), "nothing was inserted");
        assert_eq!(pair.encoder.acknowledge(4), Err(Error::Invalid), "nothing was sent");
        pair.send(&HEAD);
        pair.send(&HEAD);
        assert_eq!(pair.encoder.increment(0), Err(Error::Invalid));
        assert_eq!(pair.encoder.increment(4), Err(Error::Invalid));
        assert_eq!(pair.encoder.increment(1), Ok(()));
        assert_eq!(pair.encoder.increment(3), Err(Error::Invalid));
        assert_eq!(pair.encoder.increment(2), Ok(()));
        pair.send(&HEAD);
        assert_eq!(
            pair.encoder.acknowledge(pair.stream - 4),
            Err(Error::Invalid),
            "did not refer to the table"
        );
        assert_eq!(pair.encoder.acknowledge(pair.stream), Ok(()));
        assert_eq!(pair.encoder.acknowledge(pair.stream), Err(Error::Invalid), "acknowledged already");
        pair.send(&HEAD);
        pair.encoder.cancel(pair.stream);
        assert_eq!(pair.encoder.acknowledge(pair.stream), Err(Error::Invalid), "cancelled");
    }

    #[test]
    fn only_entries_out_of_use_leave() {
        let mut pair = Pair::new(256);
        let field = |n: usize| [("x-some-name".to_owned(), format!("value number {n}"))];
        let send = |pair: &mut Pair, n: usize| {
            let [(name, value)] = field(n);
            let sent = pair.send(&[(&name, &value)]);
            pair.acknowledge();
            sent.1
        };
        for n in 0..8 {
            send(&mut pair, n);
            send(&mut pair, n);
        }
        // Each takes 58 bytes.
        assert_eq!((pair.encoder.inserted(), pair.encoder.dropped), (4, 0), "all are too young to leave");
        // A section on its way holds them, however old they become.
        assert!(send(&mut pair, 0));
        let first = pair.stream;
        for _ in 0..COLD {
            pair.send(&[("a", "b")]);
        }
        pair.acknowledge();
        assert!(!send(&mut pair, 5) && pair.encoder.dropped == 0);
        pair.encoder.acknowledge(first).expect("on its way");
        assert!(!send(&mut pair, 5) && pair.encoder.dropped == 1, "{:?}", pair.encoder);
        assert!(send(&mut pair, 5) && !send(&mut pair, 0));
    }

    #[test]
    fn unacknowledged_sections_are_bounded() {
        let mut pair = Pair::new(4096);
        pair.send(&HEAD);
        pair.send(&HEAD);
        pair.acknowledge();
        let referring = (0..2 * UNACKNOWLEDGED).filter(|_| pair.send(&HEAD).1).count();
        assert_eq!((referring, pair.encoder.unacknowledged.len()), (UNACKNOWLEDGED, UNACKNOWLEDGED));
    }

    #[test]
    fn sections_that_it_does_not_know_are_left_alone() {
        let mut encoder = Encoder::new(4096).expect("large enough");
        for section in
            [&[][..], &[0], &[1, 0, 0x80], &[0, 0, 0x80], &[0, 0, 0x51, 9, b'a'], &[0, 0, 0x5f, 0xff]]
        {
            assert_eq!(encoder.encode(0, section, &mut Vec::new(), Some(&mut Vec::new())), None);
        }
        assert!(Encoder::new(0).is_none() && Encoder::new(u64::MAX).is_some());
    }

    #[test]
    fn any_order_of_events_keeps_both_ends_in_step() {
        let mut seed = 7_u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for capacity in [128, 200, 1000, 4096, 100_000] {
            let mut pair = Pair::new(capacity);
            let mut waiting = Vec::new();
            let mut short = 0;
            for _ in 0..3000 {
                let fields: Vec<(String, String)> = (0..random(6))
                    .map(|_| (format!("x-{}", "y".repeat(random(12) as usize)), format!("{}", random(4))))
                    .collect();
                let fields: Vec<(&str, &str)> =
                    fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
                if pair.send(&fields).1 {
                    waiting.push(pair.stream);
                    short += 1;
                }
                match random(4) {
                    0 => pair.acknowledge(),
                    1 if !waiting.is_empty() => {
                        let stream = waiting.swap_remove(random(waiting.len() as u64) as usize);
                        pair.encoder.acknowledge(stream).expect("on its way");
                    }
                    2 if !waiting.is_empty() => pair.encoder.cancel(waiting.remove(0)),
                    _ => {}
                }
                assert!(pair.encoder.size <= pair.encoder.capacity);
            }
            assert!(short > 200, "{capacity}: {short}");
        }
    }
}
