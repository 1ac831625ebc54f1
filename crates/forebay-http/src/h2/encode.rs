//! Field compression for what we send (RFC 7541). Without the dynamic table: the peer's table then never matters, heads
//! of files can be kept ready-made, and nothing that a client chose can be guessed from lengths. Hot path.

use super::hpack::STATIC;
use crate::compression::{huffman, place_of, push_int};

/// Appends `:status`.
#[inline]
pub fn status(out: &mut Vec<u8>, status: u16) {
    let index = match status {
        200 => 8,
        204 => 9,
        206 => 10,
        304 => 11,
        400 => 12,
        404 => 13,
        500 => 14,
        _ => {
            // A literal with the name of index 8.
            let d = [
                b'0' + (status / 100 % 10) as u8,
                b'0' + (status / 10 % 10) as u8,
                b'0' + (status % 10) as u8,
            ];
            out.extend_from_slice(&[0x08, 3]);
            out.extend_from_slice(&d);
            return;
        }
    };
    out.push(0x80 | index);
}

macro_rules! indices {
    ($($id:ident = $name:literal,)*) => { $(
        #[doc = concat!("Index of `", $name, "`.")]
        pub const $id: usize = place_of(&STATIC, $name) + 1;
    )* };
}

indices! {
    ACCEPT_RANGES = "accept-ranges", CONTENT_LENGTH = "content-length", CONTENT_TYPE = "content-type", DATE = "date",
    ETAG = "etag", LAST_MODIFIED = "last-modified", LOCATION = "location", SERVER = "server", VARY = "vary",
    AUTHORITY = ":authority", METHOD = ":method", PATH = ":path", SCHEME = ":scheme",
}

/// Appends a string literal, in Huffman code where that is shorter.
#[inline]
fn string(out: &mut Vec<u8>, text: &[u8]) {
    let coded = huffman::encoded_len(text);
    if coded < text.len() {
        push_int(out, 0x80, 7, coded);
        huffman::encode(text, out);
    } else {
        push_int(out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
}

/// Appends a field whose name is in the static table.
#[inline]
pub fn indexed(out: &mut Vec<u8>, index: usize, value: &[u8]) {
    push_int(out, 0, 4, index);
    string(out, value);
}

/// Appends a field as [`indexed`] does, but without Huffman code: for short values that change with each response.
#[inline]
pub fn indexed_plain(out: &mut Vec<u8>, index: usize, value: &[u8]) {
    push_int(out, 0, 4, index);
    push_int(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// First bits of a literal that no table on the way may have (RFC 7541, section 6.2.3).
const NEVER_INDEXED: u8 = 0x10;

/// Appends a field by its name, which is made lower-case.
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    literal(out, name, value, 0);
}

/// Appends a field as [`field`] does. No table on the way may have it (RFC 7541, section 7.1.3).
pub(crate) fn sensitive(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    literal(out, name, value, NEVER_INDEXED);
}

/// Appends a field by its name. `first`: the first bits of the literal.
fn literal(out: &mut Vec<u8>, name: &[u8], value: &[u8], first: u8) {
    let known = STATIC.iter().skip(14).position(|(n, _)| n.as_bytes().eq_ignore_ascii_case(name));
    if let Some(i) = known {
        push_int(out, first, 4, i + 15);
        return string(out, value);
    }
    out.push(first);
    if name.iter().any(u8::is_ascii_uppercase) {
        string(out, &name.to_ascii_lowercase());
    } else {
        string(out, name);
    }
    string(out, value);
}

#[cfg(test)]
mod tests {
    use super::super::hpack::Decoder;
    use super::*;
    use crate::compression::{Field, Sink};

    struct Fields(Vec<(Vec<u8>, Vec<u8>)>);
    impl Sink for Fields {
        fn field(&mut self, Field { name, value, .. }: Field<'_>) {
            self.0.push((name.to_vec(), value.to_vec()));
        }
    }

    #[test]
    fn encoded_heads_are_decoded() {
        let mut out = Vec::new();
        status(&mut out, 200);
        status(&mut out, 418);
        indexed(&mut out, CONTENT_TYPE, b"text/html");
        indexed_plain(&mut out, CONTENT_LENGTH, b"1234");
        field(&mut out, b"Cache-Control", b"max-age=3600");
        field(&mut out, b"X-Some", &[b'{'; 200]);
        field(&mut out, b"Set-Cookie", b"a=b");
        field(&mut out, b"X-CSRF-Token", b"c");
        let mut got = Fields(Vec::new());
        Decoder::default().decode(&out, &mut Vec::new(), &mut got).unwrap();
        let got: Vec<(String, String)> = got
            .0
            .iter()
            .map(|(a, b)| (String::from_utf8_lossy(a).into_owned(), String::from_utf8_lossy(b).into_owned()))
            .collect();
        let braces = "{".repeat(200);
        let want = [
            (":status", "200"),
            (":status", "418"),
            ("content-type", "text/html"),
            ("content-length", "1234"),
            ("cache-control", "max-age=3600"),
            ("x-some", braces.as_str()),
            ("set-cookie", "a=b"),
            ("x-csrf-token", "c"),
        ];
        assert_eq!(got, want.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn sensitive_fields_are_marked() {
        for (name, is_known) in [("Authorization", true), ("Cookie", true), ("X-Api-Key", false)] {
            let mut out = Vec::new();
            sensitive(&mut out, name.as_bytes(), b"v");
            assert_eq!(out[0] & 0xf0, NEVER_INDEXED, "{name}");
            assert_eq!(out[0] & 0x0f != 0, is_known, "{name}");
        }
    }

    #[test]
    fn indices_are_those_of_the_rfc() {
        assert_eq!((CONTENT_TYPE, DATE, SERVER, LAST_MODIFIED), (31, 33, 54, 44));
    }
}
