//! Field decompression (RFC 7541): integers, strings, the static and the dynamic table, the decoder. Hot path.

use crate::compression::table::Table;
use crate::compression::{Field, Label, Sink, huffman, name_of};
use crate::h1::fields::stop;

/// Size of the dynamic table that we offer to keep for a peer, bytes as RFC 7541 counts them (the default).
pub(crate) const TABLE_SIZE: usize = 4096;

/// Most size updates at the start of a block (RFC 7541, section 4.2).
const SIZE_UPDATES: u32 = 2;

/// The static table (RFC 7541, appendix A); index 1 is the first.
pub(crate) const STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The reason for which a block cannot be decoded. It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The block ends within a number (nginx: FRAME_SIZE_ERROR).
    Truncated,
    /// COMPRESSION_ERROR.
    Compression,
}

/// Reads a number; the first byte is at `*at`.
#[inline]
fn int(block: &[u8], at: &mut usize, bits: u32) -> Result<usize, Error> {
    let max = (1usize << bits) - 1;
    let first = usize::from(*block.get(*at).ok_or(Error::Compression)?) & max;
    *at += 1;
    if first < max {
        return Ok(first);
    }
    let mut value = max;
    // Three more bytes are two million: nothing here is longer.
    for shift in [0, 7, 14] {
        let b = *block.get(*at).ok_or(Error::Truncated)?;
        *at += 1;
        value += usize::from(b & 0x7f) << shift;
        if b & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(Error::Compression)
}

/// The decoder of a connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// Bytes that we allow the peer to use.
    allowed: usize,
    lenient: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { table: Table::new(TABLE_SIZE), allowed: TABLE_SIZE, lenient: false }
    }
}

impl Decoder {
    /// Creates a decoder that takes a whole byte of padding behind Huffman code, which RFC 7541 forbids and nginx takes from
    /// upstreams.
    pub(crate) fn lenient() -> Decoder {
        Decoder { lenient: true, ..Decoder::default() }
    }

    /// Decodes a whole block, so that the tables of both ends stay the same.
    ///
    /// # Errors
    /// A block that is not HPACK. The connection cannot be used any more.
    pub fn decode(&mut self, block: &[u8], scratch: &mut Vec<u8>, sink: &mut impl Sink) -> Result<(), Error> {
        let mut at = 0;
        let mut updates = 0;
        let mut fields = false;
        while let Some(&b) = block.get(at) {
            if b & 0x80 != 0 {
                let index = int(block, &mut at, 7)?;
                fields = true;
                if let Some((name, value)) = index.checked_sub(1).and_then(|i| STATIC.get(i)) {
                    let (name, value) = (name.as_bytes(), value.as_bytes());
                    let label = STATIC_LABELS[index - 1];
                    sink.field(Field { label, name, value, sound: true, received: 0 });
                    continue;
                }
                // Index 0 is in neither table and ends up here: an error (RFC 7541, section 6.1).
                let known = index.checked_sub(STATIC.len() + 1).and_then(|i| self.table.get(i));
                sink.field(known.ok_or(Error::Compression)?);
                continue;
            }
            if b & 0xe0 == 0x20 {
                let size = int(block, &mut at, 5)?;
                updates += 1;
                // Size updates stand only at the start of a block (RFC 7541, section 4.2).
                if fields || updates > SIZE_UPDATES || size > self.allowed {
                    return Err(Error::Compression);
                }
                self.table.limit(size);
                continue;
            }
            let keep = b & 0x40 != 0;
            fields = true;
            self.literal(block, &mut at, if keep { 6 } else { 4 }, keep, scratch, sink)?;
        }
        Ok(())
    }

    fn literal(
        &mut self,
        block: &[u8],
        at: &mut usize,
        bits: u32,
        keep: bool,
        scratch: &mut Vec<u8>,
        sink: &mut impl Sink,
    ) -> Result<(), Error> {
        scratch.clear();
        let index = int(block, at, bits)?;
        let (label, received_name) = match index.checked_sub(1) {
            // Copied, since the insertion below may evict that very entry (RFC 7541, section 4.4).
            Some(i) => (self.known_name(i, scratch)?, 0),
            None => {
                let len = string(block, at, scratch, self.lenient)?;
                (Label::of(scratch), len)
            }
        };
        let name_len = scratch.len();
        let received = string(block, at, scratch, self.lenient)?.max(received_name);
        let (name, value) = scratch.split_at(name_len);
        let field = Field { label, name, value, sound: stop(value) == value.len(), received };
        sink.field(field);
        if keep {
            // An entry that is too large empties the table and is no error (RFC 7541, section 4.4).
            self.table.insert(field);
        }
        Ok(())
    }

    /// Appends the name of an entry of the tables, the static one first. `i` counts from 0.
    #[inline]
    fn known_name(&self, i: usize, out: &mut Vec<u8>) -> Result<Label, Error> {
        if let Some((name, _)) = STATIC.get(i) {
            out.extend_from_slice(name.as_bytes());
            return Ok(STATIC_LABELS[i]);
        }
        let known = self.table.get(i - STATIC.len()).ok_or(Error::Compression)?;
        out.extend_from_slice(known.name);
        Ok(known.label)
    }

    /// Limits the table to the size in bytes that the peer has acknowledged (SETTINGS_HEADER_TABLE_SIZE).
    pub fn allow(&mut self, size: usize) {
        self.allowed = size;
        self.table.limit(self.table.limited_to().min(size));
    }

    /// Returns the number of bytes of memory that the table holds, as RFC 7541 counts them.
    pub fn size(&self) -> usize {
        self.table.size()
    }
}

/// Appends a string literal (RFC 7541, section 5.2). Returns its length as it is encoded.
fn string(block: &[u8], at: &mut usize, out: &mut Vec<u8>, lenient: bool) -> Result<usize, Error> {
    let coded = block.get(*at).is_some_and(|b| b & 0x80 != 0);
    let len = int(block, at, 7)?;
    let text = block.get(*at..).and_then(|b| b.get(..len)).ok_or(Error::Compression)?;
    *at += len;
    if coded {
        let before = out.len();
        huffman::decode(text, out).or_else(|_| {
            // The first attempt has appended what it could decode.
            out.truncate(before);
            let text = text.strip_suffix(&[0xff]).filter(|_| lenient).ok_or(Error::Compression)?;
            huffman::decode(text, out).map_err(|_| Error::Compression)
        })?;
    } else {
        out.extend_from_slice(text);
    }
    Ok(len)
}

static STATIC_LABELS: [Label; 61] = {
    let mut labels = [Label::Unknown; 61];
    let mut i = 0;
    while i < labels.len() {
        let name = STATIC[i].0.as_bytes();
        labels[i] = match i {
            0 => Label::Authority,
            1 | 2 => Label::Method,
            3 | 4 => Label::Path,
            5 | 6 => Label::Scheme,
            7..14 => Label::Status,
            _ => Label::Field(name_of(name)),
        };
        i += 1;
    }
    labels
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::push_int;
    use crate::compression::table::OVERHEAD;
    use std::collections::VecDeque;

    #[derive(Default)]
    struct Fields(Vec<(String, String)>);
    impl Sink for Fields {
        fn field(&mut self, Field { label, name, value, sound, .. }: Field<'_>) {
            assert_eq!(label, Label::of(name));
            assert_eq!(sound, !value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            self.0.push((text(name), text(value)));
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|c| u8::from_str_radix(std::str::from_utf8(c).unwrap(), 16).unwrap()).collect()
    }

    fn decode(d: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Error> {
        let mut f = Fields::default();
        d.decode(block, &mut Vec::new(), &mut f)?;
        Ok(f.0)
    }

    fn pair(a: &str, b: &str) -> (String, String) {
        (a.to_owned(), b.to_owned())
    }

    /// RFC 7541, appendix C.4: three requests on one connection.
    #[test]
    fn requests_of_the_rfc() {
        let mut d = Decoder::default();
        let first = decode(&mut d, &hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff")).unwrap();
        assert_eq!(
            first,
            [
                pair(":method", "GET"),
                pair(":scheme", "http"),
                pair(":path", "/"),
                pair(":authority", "www.example.com")
            ]
        );
        assert_eq!(d.size(), 57);
        let second = decode(&mut d, &hex("8286 84be 5886 a8eb 1064 9cbf")).unwrap();
        assert_eq!(second[4], pair("cache-control", "no-cache"));
        assert_eq!(d.size(), 110);
        let third =
            decode(&mut d, &hex("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf")).unwrap();
        assert_eq!(third[3], pair(":authority", "www.example.com"));
        assert_eq!(third[4], pair("custom-key", "custom-value"));
        assert_eq!(d.size(), 164);
    }

    #[test]
    fn an_entry_larger_than_the_table_empties_it() {
        let mut d = Decoder::default();
        let mut block = vec![0x40];
        push_int(&mut block, 0, 7, 1);
        block.push(b'a');
        push_int(&mut block, 0, 7, 1);
        block.push(b'b');
        decode(&mut d, &block).unwrap();
        assert_eq!(d.size(), 34);
        let mut block = vec![0x40];
        push_int(&mut block, 0, 7, 5000);
        block.extend(std::iter::repeat_n(b'n', 5000));
        push_int(&mut block, 0, 7, 0);
        decode(&mut d, &block).unwrap();
        assert_eq!(d.size(), 0);
    }

    /// Against a plain list, over many turns of the bytes of entries.
    #[test]
    fn the_table_keeps_what_it_should() {
        let mut d = Decoder::default();
        let mut model: VecDeque<(String, String)> = VecDeque::new();
        let mut seed = 7usize;
        for n in 0..3000 {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345) & 0x7fff_ffff;
            let new = (format!("name-{n}"), "v".repeat(seed >> 8 & if n % 50 == 0 { 2047 } else { 63 }));
            let mut block = vec![0x40];
            for text in [&new.0, &new.1] {
                push_int(&mut block, 0, 7, text.len());
                block.extend(text.bytes());
            }
            decode(&mut d, &block).unwrap();
            model.push_front(new);
            let size = |m: &VecDeque<(String, String)>| {
                m.iter().map(|(a, b)| a.len() + b.len() + OVERHEAD).sum::<usize>()
            };
            while size(&model) > TABLE_SIZE {
                model.pop_back();
            }
            assert_eq!(d.size(), size(&model));
            if n % 20 == 0 {
                let mut block = Vec::new();
                (0..model.len()).for_each(|i| push_int(&mut block, 0x80, 7, STATIC.len() + 1 + i));
                assert_eq!(decode(&mut d, &block).unwrap(), Vec::from(model.clone()));
            }
        }
        assert!(d.table.memory() <= 4 * TABLE_SIZE, "{}", d.table.memory());
    }

    #[test]
    fn malformed_blocks() {
        for (block, error) in [
            ("80", Error::Compression),             // index 0
            ("be", Error::Compression),             // beyond the tables
            ("7f ff ff ff 7f", Error::Compression), // far beyond
            ("ff", Error::Truncated),
            ("42 ff", Error::Truncated),
            ("ff ff ff ff ff", Error::Compression),
            ("42 ff ff ff ff ff", Error::Compression),
            ("40", Error::Compression),       // no name
            ("82 3f 01", Error::Compression), // size update behind a field
            ("3f e2 1f", Error::Compression), // more than was offered
            ("20 20 20", Error::Compression), // three size updates
            ("00 01 61", Error::Compression), // no value
        ] {
            assert_eq!(decode(&mut Decoder::default(), &hex(block)), Err(error), "{block}");
        }
        assert_eq!(
            decode(&mut Decoder::default(), &hex("20 3f e1 1f 82")).unwrap(),
            [pair(":method", "GET")]
        );
    }

    #[test]
    fn numbers_of_the_rfc() {
        let mut out = Vec::new();
        push_int(&mut out, 0, 5, 10);
        push_int(&mut out, 0, 5, 1337);
        assert_eq!(out, [10, 31, 154, 10]);
        let mut at = 1;
        assert_eq!(int(&out, &mut at, 5), Ok(1337));
        assert_eq!(at, 4);
    }
}
