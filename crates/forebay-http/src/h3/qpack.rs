//! Field decompression (RFC 9204): the encoder stream of the peer, the dynamic table that it fills, field sections. Hot path.

use super::static_table::{STATIC, STATIC_LABELS};
use crate::compression::table::{OVERHEAD, Table};
use crate::compression::{Field, Label, Sink, huffman, push_int};
use crate::h1::fields::stop;

/// Size of the dynamic table that we offer to keep for a peer, bytes as RFC 9204 counts them.
pub const TABLE_CAPACITY: usize = 4096;

/// The reason for which bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// More bytes are needed. In a field section, which is whole, this is an error of the peer.
    Truncated,
    /// The bytes are not QPACK, or refer to entries that do not exist.
    Invalid,
}

/// Bytes that are read from their beginning.
pub(super) struct Reader<'b> {
    bytes: &'b [u8],
    pub(super) at: usize,
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Reads a number whose prefix has `bits` bits (RFC 7541, section 5.1).
    #[inline]
    pub(super) fn int(&mut self, bits: u32) -> Result<u64, Error> {
        let max = (1u64 << bits) - 1;
        let first = u64::from(self.peek().ok_or(Error::Truncated)?) & max;
        self.at += 1;
        if first < max {
            return Ok(first);
        }
        let mut value = max;
        // Counts are at most 2^62 (RFC 9204, section 4.1.1).
        for shift in (0..56).step_by(7) {
            let b = self.peek().ok_or(Error::Truncated)?;
            self.at += 1;
            value += u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Invalid)
    }

    /// Reads a string of at most `most` bytes, as it is encoded. See [`Self::string`].
    #[inline]
    pub(super) fn text(&mut self, bits: u32, most: usize) -> Result<&'b [u8], Error> {
        let len = self.int(bits)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= most).ok_or(Error::Invalid)?;
        let text = self.bytes.get(self.at..).and_then(|b| b.get(..len)).ok_or(Error::Truncated)?;
        self.at += len;
        Ok(text)
    }

    /// Appends a string of at most `most` bytes whose length has a prefix of `bits` bits. The bit above it says that it is in
    /// Huffman code. Returns its length as it is encoded.
    #[inline]
    pub(super) fn string(&mut self, bits: u32, most: usize, out: &mut Vec<u8>) -> Result<usize, Error> {
        let coded = self.peek().is_some_and(|b| b & (1 << bits) != 0);
        let text = self.text(bits, most)?;
        if coded {
            huffman::decode(text, out).map_err(|_| Error::Invalid)?;
        } else {
            out.extend_from_slice(text);
        }
        Ok(text.len())
    }
}

/// Returns an entry of the static table.
#[inline]
fn static_entry(index: u64) -> Result<Field<'static>, Error> {
    let index = usize::try_from(index).map_err(|_| Error::Invalid)?;
    let ((name, value), label) = STATIC.get(index).zip(STATIC_LABELS.get(index)).ok_or(Error::Invalid)?;
    Ok(Field { label: *label, name: name.as_bytes(), value: value.as_bytes(), sound: true, received: 0 })
}

/// The decoder of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Entries that the peer has inserted so far.
    inserted: u64,
    /// Instructions that have been carried out so far.
    carried_out: u64,
    /// Capacity that we have announced, bytes.
    allowed: usize,
    /// Longest name and value that may be inserted, bytes.
    longest: usize,
}

/// Begin of a field section (RFC 9204, section 4.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    required: u64,
    base: u64,
}

impl Decoder {
    /// Creates a decoder that keeps a table of at most `allowed` bytes.
    pub fn new(allowed: usize) -> Decoder {
        // The peer sets the capacity before it inserts (RFC 9204, section 3.2.3).
        Decoder { table: Table::new(0), inserted: 0, carried_out: 0, allowed, longest: allowed }
    }

    /// Sets the length of the longest name and value that may be inserted, bytes. Those that do not fit into the table are never allowed.
    pub fn limit_strings(&mut self, longest: usize) {
        self.longest = longest.min(self.allowed);
    }

    /// Returns the number of entries that the peer has inserted so far.
    pub fn inserted(&self) -> u64 {
        self.inserted
    }

    /// Returns the number of entries that have left the table.
    pub fn evicted(&self) -> u64 {
        self.inserted - self.table.len() as u64
    }

    /// Returns the number of instructions that have been carried out so far.
    pub fn carried_out(&self) -> u64 {
        self.carried_out
    }

    /// Carries out the instructions of the peer's encoder stream (RFC 9204, section 4.3). Returns the number of bytes that were
    /// whole instructions.
    ///
    /// # Errors
    /// [`Error::Invalid`]: QPACK_ENCODER_STREAM_ERROR.
    pub fn instructions(&mut self, bytes: &[u8], scratch: &mut Vec<u8>) -> Result<usize, Error> {
        let mut reader = Reader::new(bytes);
        let mut done = 0;
        while reader.peek().is_some() {
            match self.instruction(&mut reader, scratch) {
                Ok(()) => {
                    done = reader.at;
                    self.carried_out += 1;
                }
                Err(Error::Truncated) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn instruction(&mut self, reader: &mut Reader<'_>, scratch: &mut Vec<u8>) -> Result<(), Error> {
        scratch.clear();
        let first = reader.peek().ok_or(Error::Truncated)?;
        let most = self.longest;
        let label = if first & 0x80 != 0 {
            let from_static = first & 0x40 != 0;
            let index = reader.int(6)?;
            let known = if from_static { static_entry(index)? } else { self.relative(self.inserted, index)? };
            scratch.extend_from_slice(known.name);
            known.label
        } else if first & 0x40 != 0 {
            reader.string(5, most, scratch)?;
            Label::of(scratch)
        } else if first & 0x20 != 0 {
            let capacity = usize::try_from(reader.int(5)?).map_err(|_| Error::Invalid)?;
            if capacity > self.allowed {
                return Err(Error::Invalid);
            }
            self.table.limit(capacity);
            return Ok(());
        } else {
            let index = reader.int(5)?;
            // Copied, since the insertion may evict the entry itself.
            let known = self.relative(self.inserted, index)?;
            let (label, name_len, sound) = (known.label, known.name.len(), known.sound);
            scratch.extend_from_slice(known.name);
            scratch.extend_from_slice(known.value);
            let (name, value) = scratch.split_at(name_len);
            return self.insert(Field { label, name, value, sound, received: 0 });
        };
        let name_len = scratch.len();
        reader.string(7, most, scratch)?;
        let (name, value) = scratch.split_at(name_len);
        self.insert(Field { label, name, value, sound: stop(value) == value.len(), received: 0 })
    }

    fn insert(&mut self, field: Field<'_>) -> Result<(), Error> {
        // Unlike HPACK's, an entry that is too large is an error (RFC 9204, section 3.2.2).
        if !self.table.insert(field) {
            return Err(Error::Invalid);
        }
        self.inserted += 1;
        Ok(())
    }

    /// Returns the entry with a relative index (RFC 9204, section 3.2.5): 0 is the one inserted last before `base`.
    #[inline]
    fn relative(&self, base: u64, index: u64) -> Result<Field<'_>, Error> {
        let absolute = base.checked_sub(1).and_then(|last| last.checked_sub(index)).ok_or(Error::Invalid)?;
        self.absolute(absolute)
    }

    #[inline]
    fn absolute(&self, index: u64) -> Result<Field<'_>, Error> {
        let age =
            self.inserted.checked_sub(1).and_then(|last| last.checked_sub(index)).ok_or(Error::Invalid)?;
        usize::try_from(age).ok().and_then(|age| self.table.get(age)).ok_or(Error::Invalid)
    }

    /// Reads the begin of a field section.
    #[inline]
    fn prefix(&self, reader: &mut Reader<'_>) -> Result<Prefix, Error> {
        let encoded = reader.int(8)?;
        let required = self.required_count(encoded)?;
        let below = reader.peek().is_some_and(|b| b & 0x80 != 0);
        let delta = reader.int(7)?;
        let base = match below {
            true => required.checked_sub(delta + 1).ok_or(Error::Invalid)?,
            false => required + delta,
        };
        Ok(Prefix { required, base })
    }

    /// Decodes the Required Insert Count (RFC 9204, section 4.5.1.1).
    #[inline]
    fn required_count(&self, encoded: u64) -> Result<u64, Error> {
        if encoded == 0 {
            return Ok(0);
        }
        let most = (self.allowed / OVERHEAD) as u64;
        let range = 2 * most;
        if encoded > range {
            return Err(Error::Invalid);
        }
        let greatest = self.inserted + most;
        let mut required = greatest / range * range + encoded - 1;
        if required > greatest {
            required = required.checked_sub(range).ok_or(Error::Invalid)?;
        }
        if required == 0 { Err(Error::Invalid) } else { Ok(required) }
    }

    /// Returns the number of insertions that a field section needs. If there are fewer so far, its stream is blocked (RFC 9204,
    /// section 2.1.2).
    ///
    /// # Errors
    /// QPACK_DECOMPRESSION_FAILED.
    pub fn required(&self, section: &[u8]) -> Result<u64, Error> {
        Ok(self.prefix(&mut Reader::new(section))?.required)
    }

    /// Decodes a field section. Returns `true` if it refers to the dynamic table, which is to be acknowledged (RFC 9204, section
    /// 4.4.1).
    ///
    /// # Errors
    /// QPACK_DECOMPRESSION_FAILED, also for a section that is blocked.
    pub fn decode(&self, section: &[u8], scratch: &mut Vec<u8>, sink: &mut impl Sink) -> Result<bool, Error> {
        let mut reader = Reader::new(section);
        let prefix = self.prefix(&mut reader)?;
        if prefix.required > self.inserted {
            return Err(Error::Invalid);
        }
        while let Some(first) = reader.peek() {
            self.line(first, &mut reader, prefix, scratch, sink)?;
        }
        Ok(prefix.required > 0)
    }

    /// Decodes a field line representation (RFC 9204, section 4.5).
    #[inline]
    fn line(
        &self,
        first: u8,
        reader: &mut Reader<'_>,
        prefix: Prefix,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> Result<(), Error> {
        let known = match first {
            0xc0.. => {
                sink.field(static_entry(reader.int(6)?)?);
                return Ok(());
            }
            0x80..0xc0 => {
                let index = reader.int(6)?;
                sink.field(self.referred(prefix, prefix.base, index)?);
                return Ok(());
            }
            0x10..0x20 => {
                let index = reader.int(4)?;
                sink.field(self.behind_base(prefix, index)?);
                return Ok(());
            }
            0x50..0x60 | 0x70..0x80 => Some(static_entry(reader.int(4)?)?),
            0x40..0x50 | 0x60..0x70 => {
                let index = reader.int(4)?;
                Some(self.referred(prefix, prefix.base, index)?)
            }
            0x00..0x10 => {
                let index = reader.int(3)?;
                Some(self.behind_base(prefix, index)?)
            }
            0x20..0x40 => None,
        };
        scratch.clear();
        let (label, received_name) = match known {
            Some(known) => {
                scratch.extend_from_slice(known.name);
                (known.label, 0)
            }
            None => {
                let len = reader.string(3, usize::MAX, scratch)?;
                (Label::of(scratch), len)
            }
        };
        let name_len = scratch.len();
        let received = reader.string(7, usize::MAX, scratch)?.max(received_name);
        let (name, value) = scratch.split_at(name_len);
        sink.field(Field { label, name, value, sound: stop(value) == value.len(), received });
        Ok(())
    }

    /// Returns an entry that a section refers to. It must be among those that the section says it needs.
    #[inline]
    fn referred(&self, prefix: Prefix, base: u64, index: u64) -> Result<Field<'_>, Error> {
        let absolute = base.checked_sub(1).and_then(|last| last.checked_sub(index));
        self.absolute(absolute.filter(|n| *n < prefix.required).ok_or(Error::Invalid)?)
    }

    /// Returns an entry with a post-base index (RFC 9204, section 3.2.6).
    fn behind_base(&self, prefix: Prefix, index: u64) -> Result<Field<'_>, Error> {
        let absolute = prefix.base.checked_add(index).filter(|n| *n < prefix.required);
        self.absolute(absolute.ok_or(Error::Invalid)?)
    }
}

/// Appends a Section Acknowledgment (RFC 9204, section 4.4.1).
pub fn push_section_ack(out: &mut Vec<u8>, stream: u64) {
    push_int(out, 0x80, 7, stream as usize);
}

/// Appends a Stream Cancellation (RFC 9204, section 4.4.2).
pub fn push_stream_cancellation(out: &mut Vec<u8>, stream: u64) {
    push_int(out, 0x40, 6, stream as usize);
}

/// Appends an Insert Count Increment (RFC 9204, section 4.4.3).
pub fn push_insert_count_increment(out: &mut Vec<u8>, increment: u64) {
    push_int(out, 0, 6, increment as usize);
}

/// Instruction of the peer's decoder stream (RFC 9204, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// The section of this stream was decoded.
    SectionAck(u64),
    /// The sections of this stream will not be decoded.
    StreamCancellation(u64),
    /// So many more insertions were received.
    InsertCountIncrement(u64),
}

/// Reads an instruction of the peer's decoder stream. Returns it with its length.
///
/// # Errors
/// [`Error::Truncated`] if it is not complete; [`Error::Invalid`]: QPACK_DECODER_STREAM_ERROR.
pub fn feedback(bytes: &[u8]) -> Result<(Feedback, usize), Error> {
    let mut reader = Reader::new(bytes);
    let read = match reader.peek().ok_or(Error::Truncated)? {
        0x80.. => Feedback::SectionAck(reader.int(7)?),
        0x40..0x80 => Feedback::StreamCancellation(reader.int(6)?),
        _ => Feedback::InsertCountIncrement(reader.int(6)?),
    };
    Ok((read, reader.at))
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    #[derive(Default)]
    struct Fields(Vec<(String, String)>);
    impl Sink for Fields {
        fn field(&mut self, Field { label, name, value, .. }: Field<'_>) {
            assert_eq!(label, Label::of(name));
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            self.0.push((text(name), text(value)));
        }
    }

    /// Strings count as they were received: in Huffman code, and not at all where a table has them.
    #[test]
    fn lengths_are_those_received() {
        struct Received(Vec<usize>);
        impl Sink for Received {
            fn field(&mut self, field: Field<'_>) {
                self.0.push(field.received);
            }
        }
        let mut section = Vec::new();
        encode::prefix(&mut section);
        encode::status(&mut section, 200);
        encode::field(&mut section, b"cookie", &[b'a'; 12_000]);
        encode::field(&mut section, b"x-other", &[b'{'; 100]);
        let mut received = Received(Vec::new());
        assert_eq!(Decoder::new(0).decode(&section, &mut Vec::new(), &mut received), Ok(false));
        assert_eq!(received.0, [0, 7_500, 100]);
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap()).collect()
    }

    fn decode(d: &Decoder, section: &str) -> Result<Vec<(String, String)>, Error> {
        let mut f = Fields::default();
        d.decode(&hex(section), &mut Vec::new(), &mut f)?;
        Ok(f.0)
    }

    fn insert(d: &mut Decoder, instructions: &str) -> Result<usize, Error> {
        d.instructions(&hex(instructions), &mut Vec::new())
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    /// RFC 9204, appendix B.
    #[test]
    fn example_of_the_rfc() {
        let mut d = Decoder::new(220);
        assert_eq!(
            decode(&d, "0000 510b 2f69 6e64 6578 2e68 746d 6c"),
            Ok(vec![pair(":path", "/index.html")])
        );
        // B.2: the section arrives before the insertions that it needs.
        assert_eq!(d.required(&hex("0381 1011")), Ok(2));
        assert_eq!(decode(&d, "0381 1011"), Err(Error::Invalid));
        let text = "3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468";
        assert_eq!(insert(&mut d, text), Ok(hex(text).len()));
        assert_eq!((d.inserted(), d.table.size()), (2, 106));
        let both = vec![pair(":authority", "www.example.com"), pair(":path", "/sample/path")];
        assert_eq!(decode(&d, "0381 1011"), Ok(both));
        // B.3: an insertion with a literal name.
        insert(&mut d, "4a63 7573 746f 6d2d 6b65 790c 6375 7374 6f6d 2d76 616c 7565").unwrap();
        assert_eq!((d.inserted(), d.table.size()), (3, 160));
        // B.4: a duplicate.
        insert(&mut d, "02").unwrap();
        assert_eq!((d.inserted(), d.table.size()), (4, 217));
        let three = vec![
            pair(":authority", "www.example.com"),
            pair(":path", "/"),
            pair("custom-key", "custom-value"),
        ];
        assert_eq!(decode(&d, "0500 80c1 81"), Ok(three));
        // B.5: eviction.
        insert(&mut d, "810d 6375 7374 6f6d 2d76 616c 7565 32").unwrap();
        assert_eq!((d.inserted(), d.table.size()), (5, 215));
        assert!(d.absolute(0).is_err() && d.absolute(1).is_ok());
    }

    #[test]
    fn instructions_may_be_cut_anywhere() {
        let text =
            hex("3fbd01 c00f 7777 772e 6578 616d 706c 652e 636f 6d c10c 2f73 616d 706c 652f 7061 7468");
        for cut in 0..text.len() {
            let mut d = Decoder::new(220);
            let done = d.instructions(&text[..cut], &mut Vec::new()).unwrap();
            let rest = d.instructions(&text[done..], &mut Vec::new()).unwrap();
            assert_eq!((done + rest, d.inserted(), d.carried_out()), (text.len(), 2, 3));
        }
    }

    #[test]
    fn malformed_instructions() {
        for (text, what) in [
            ("3fbe01", "more capacity than was offered"),
            ("c001 61", "an insertion without capacity"),
            ("3fbd01 80 01 61", "a name that is not in the table"),
            ("3fbd01 00", "a duplicate of nothing"),
            ("3fbd01 ff3f 00", "a name behind the static table"),
            ("3fbd01 c07f ff01", "a value longer than the table"),
            ("3fff ffff ffff ffff ff7f", "a number without end"),
        ] {
            assert_eq!(insert(&mut Decoder::new(220), text), Err(Error::Invalid), "{what}");
        }
    }

    #[test]
    fn names_and_values_that_are_too_long() {
        for (text, good) in [
            ("3fbd01 c0 04 61626364", true),
            ("3fbd01 c0 05 6162636465", false),
            ("3fbd01 44 61626364 00", true),
            ("3fbd01 45 6162636465 00", false),
        ] {
            let mut decoder = Decoder::new(220);
            decoder.limit_strings(4);
            assert_eq!(insert(&mut decoder, text).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn malformed_sections() {
        let mut d = Decoder::new(220);
        insert(&mut d, "3fbd01 c001 61").unwrap();
        for (text, error, what) in [
            ("", Error::Truncated, "no prefix"),
            ("00", Error::Truncated, "no base"),
            ("0f00", Error::Invalid, "a count beyond the range"),
            ("0300", Error::Invalid, "blocked"),
            ("0200 81", Error::Invalid, "an entry that does not exist"),
            ("0281 80", Error::Invalid, "an entry below the base"),
            ("0000 10", Error::Invalid, "an entry without a need"),
            ("0280 11", Error::Invalid, "an entry behind what is needed"),
            ("0000 ff24", Error::Invalid, "behind the static table"),
            ("0000 23", Error::Truncated, "a name that is cut"),
            ("0000 2161 ff", Error::Truncated, "a length that is cut"),
        ] {
            assert_eq!(decode(&d, text), Err(error), "{what}");
        }
        assert_eq!(decode(&d, "0200 80"), Ok(vec![pair(":authority", "a")]));
        assert_eq!(decode(&d, "0280 10"), Ok(vec![pair(":authority", "a")]));
    }

    /// The count of a connection that has inserted more than the range of the prefix.
    #[test]
    fn counts_wrap() {
        let mut d = Decoder::new(64);
        insert(&mut d, "3f21").unwrap();
        for n in 1..20u64 {
            insert(&mut d, "c001 61").unwrap();
            let encoded = n % 4 + 1;
            assert_eq!(d.required(&[encoded as u8, 0]), Ok(n));
        }
    }

    #[test]
    fn feedback_is_read_as_it_is_written() {
        let mut out = Vec::new();
        push_section_ack(&mut out, 400);
        push_stream_cancellation(&mut out, 8);
        push_insert_count_increment(&mut out, 70);
        let mut rest = out.as_slice();
        let mut got = Vec::new();
        while !rest.is_empty() {
            let (one, len) = feedback(rest).unwrap();
            got.push(one);
            rest = &rest[len..];
        }
        let want =
            [Feedback::SectionAck(400), Feedback::StreamCancellation(8), Feedback::InsertCountIncrement(70)];
        assert_eq!(got, want);
        assert_eq!(feedback(&[0xff]), Err(Error::Truncated));
    }
}
