//! Field compression for what we send (RFC 9204), by the static table. Heads of files can then be kept ready-made. What a connection's
//! dynamic table makes of them is in `encoder.rs`. Hot path.

use super::static_table::STATIC;
use crate::compression::{huffman, place_of, push_int};

/// Appends the begin of a field section that does not refer to the dynamic table (RFC 9204, section 4.5.1).
#[inline]
pub fn prefix(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends `:status`.
#[inline]
pub fn status(out: &mut Vec<u8>, status: u16) {
    let index = match status {
        103 => 24,
        200 => 25,
        304 => 26,
        404 => 27,
        503 => 28,
        100 => 63,
        204 => 64,
        206 => 65,
        302 => 66,
        400 => 67,
        403 => 68,
        421 => 69,
        425 => 70,
        500 => 71,
        _ => {
            let digit = |n: u16| b'0' + (n % 10) as u8;
            // Three digits take less in plain.
            return indexed_plain(out, 24, &[digit(status / 100), digit(status / 10), digit(status)]);
        }
    };
    push_int(out, 0xc0, 6, index);
}

macro_rules! indices {
    ($($id:ident = $name:literal,)*) => { $(
        #[doc = concat!("Index of `", $name, "`.")]
        pub const $id: usize = place_of(&STATIC, $name);
    )* };
}

indices! {
    ACCEPT_RANGES = "accept-ranges", CONTENT_LENGTH = "content-length", CONTENT_TYPE = "content-type", DATE = "date",
    ETAG = "etag", LAST_MODIFIED = "last-modified", LOCATION = "location", SERVER = "server", VARY = "vary",
}

/// Appends a string whose length has a prefix of `bits` bits below `first`, in Huffman code where that is shorter.
#[inline]
fn string(out: &mut Vec<u8>, first: u8, bits: u32, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        push_int(out, first | 1 << bits, bits, coded);
        huffman::encode(text, out);
    } else {
        push_int(out, first, bits, text.len());
        out.extend_from_slice(text);
    }
}

/// Appends a field whose name is in the static table.
#[inline]
pub fn indexed(out: &mut Vec<u8>, index: usize, value: &[u8]) {
    push_int(out, 0x50, 4, index);
    string(out, 0, 7, value);
}

/// Appends a field as [`indexed`] does, but without Huffman code: for short values that change with each response.
#[inline]
pub fn indexed_plain(out: &mut Vec<u8>, index: usize, value: &[u8]) {
    push_int(out, 0x50, 4, index);
    push_int(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Appends a field by its name, which is made lower-case.
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    literal(out, name, value, 0);
}

/// Appends a field as [`field`] does. No one may put it into a table (RFC 9204, section 7.1.3).
pub fn sensitive(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    literal(out, name, value, 1);
}

/// Appends a field by its name. `never`: 1 if no one may index it.
fn literal(out: &mut Vec<u8>, name: &[u8], value: &[u8], never: u8) {
    let same = |n: &str| n.as_bytes().eq_ignore_ascii_case(name);
    let mut known = STATIC.iter().enumerate().filter(|(_, (n, _))| same(n));
    let first = known.clone().next();
    if let Some((index, _)) = known.find(|(_, (_, v))| never == 0 && v.as_bytes() == value) {
        return push_int(out, 0xc0, 6, index);
    }
    if let Some((index, _)) = first {
        push_int(out, 0x50 | never << 5, 4, index);
        return string(out, 0, 7, value);
    }
    if name.iter().any(u8::is_ascii_uppercase) {
        string(out, 0x20 | never << 4, 3, &name.to_ascii_lowercase());
    } else {
        string(out, 0x20 | never << 4, 3, name);
    }
    string(out, 0, 7, value);
}

#[cfg(test)]
mod tests {
    use super::super::qpack::Decoder;
    use super::*;
    use crate::compression::{Field, Sink};

    struct Fields(Vec<(String, String)>);
    impl Sink for Fields {
        fn field(&mut self, Field { name, value, .. }: Field<'_>) {
            let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
            self.0.push((text(name), text(value)));
        }
    }

    #[test]
    fn encoded_sections_are_decoded() {
        let mut out = Vec::new();
        prefix(&mut out);
        status(&mut out, 200);
        status(&mut out, 418);
        indexed(&mut out, CONTENT_TYPE, b"text/html");
        indexed_plain(&mut out, CONTENT_LENGTH, b"1234");
        field(&mut out, b"Cache-Control", b"no-store");
        field(&mut out, b"Cache-Control", b"max-age=3600");
        field(&mut out, b"X-Some", &[b'{'; 200]);
        sensitive(&mut out, b"Authorization", b"Basic {}");
        sensitive(&mut out, b"Proxy-Authorization", b"Basic {}");
        let mut got = Fields(Vec::new());
        assert_eq!(Decoder::new(0).decode(&out, &mut Vec::new(), &mut got), Ok(false));
        let braces = "{".repeat(200);
        let want = [
            (":status", "200"),
            (":status", "418"),
            ("content-type", "text/html"),
            ("content-length", "1234"),
            ("cache-control", "no-store"),
            ("cache-control", "max-age=3600"),
            ("x-some", braces.as_str()),
            ("authorization", "Basic {}"),
            ("proxy-authorization", "Basic {}"),
        ];
        assert_eq!(got.0, want.map(|(a, b)| (a.to_owned(), b.to_owned())));
        for code in 100..600 {
            let mut out = vec![0, 0];
            status(&mut out, code);
            let mut got = Fields(Vec::new());
            Decoder::new(0).decode(&out, &mut Vec::new(), &mut got).unwrap();
            assert_eq!(got.0, [(":status".to_owned(), code.to_string())]);
        }
    }
}
