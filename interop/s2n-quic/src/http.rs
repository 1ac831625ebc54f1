//! The few frames of HTTP/3 (RFC 9114) and representations of QPACK (RFC 9204) that requests for files need.

use crate::Result;
use httlib_huffman::DecoderSpeed;

pub const DATA: u64 = 0;
pub const HEADERS: u64 = 1;
/// Type of the control stream, and a SETTINGS frame without settings: no dynamic table.
pub const CONTROL: &[u8] = &[0, 4, 0];
/// Code of a connection that ends without an error.
pub const NO_ERROR: u32 = 0x100;

/// Adds a frame.
pub fn push_frame(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.push(kind);
    out.extend((payload.len() as u64 | 3 << 62).to_be_bytes());
    out.extend(payload);
}

/// Adds a field whose name has a number below 15 in the static table, and whose value is short.
fn push_field(out: &mut Vec<u8>, name: u8, value: &str) {
    out.extend([0x50 | name, value.len() as u8]);
    out.extend(value.bytes());
}

/// Returns a request for a file.
pub fn request(path: &str) -> Vec<u8> {
    // No dynamic table, then GET and https of the static one.
    let mut fields = vec![0, 0, 0xc0 | 17, 0xc0 | 23];
    push_field(&mut fields, 0, "localhost");
    push_field(&mut fields, 1, path);
    let mut out = Vec::new();
    push_frame(&mut out, HEADERS as u8, &fields);
    out
}

/// Returns a response, with status 404 if there is no content.
pub fn response(content: Option<&[u8]>) -> Vec<u8> {
    let status = if content.is_some() { 25 } else { 27 };
    let content = content.unwrap_or_default();
    let mut fields = vec![0, 0, 0xc0 | status];
    push_field(&mut fields, 4, &content.len().to_string());
    let mut out = Vec::new();
    push_frame(&mut out, HEADERS as u8, &fields);
    push_frame(&mut out, DATA as u8, content);
    out
}

/// Returns `true` if the fields of a response begin with status 200.
pub fn is_ok(fields: &[u8]) -> bool {
    fields.get(2) == Some(&(0xc0 | 25))
}

/// Cuts a stream into frames.
#[derive(Default)]
pub struct Frames {
    kept: Vec<u8>,
    /// Type and rest of the frame whose payload comes now.
    open: Option<(u64, u64)>,
}

impl Frames {
    /// Takes what came, and calls with type and payload: all of it for HEADERS, pieces for others.
    pub fn take(&mut self, bytes: &[u8], mut call: impl FnMut(u64, &[u8])) {
        self.kept.extend(bytes);
        let mut at = 0;
        loop {
            let (kind, left, head) = match self.open {
                Some((kind, left)) => (kind, left, 0),
                None => match head(&self.kept[at..]) {
                    Some(head) => head,
                    None => break,
                },
            };
            let there = self.kept.len() - at - head;
            if kind == HEADERS && (there as u64) < left {
                break;
            }
            let n = there.min(usize::try_from(left).unwrap_or(usize::MAX));
            at += head;
            call(kind, &self.kept[at..at + n]);
            at += n;
            self.open = Some((kind, left - n as u64)).filter(|(_, left)| *left > 0);
            if n == there {
                break;
            }
        }
        self.kept.drain(..at);
    }
}

/// Returns type and length of a frame, and the length of both.
fn head(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (kind, first) = integer(bytes)?;
    let (left, second) = integer(&bytes[first..])?;
    Some((kind, left, first + second))
}

/// Reads a variable-length integer (RFC 9000, section 16).
fn integer(bytes: &[u8]) -> Option<(u64, usize)> {
    let len = 1 << (bytes.first()? >> 6);
    let value = bytes.get(..len)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
    Some((value & (u64::MAX >> (66 - 8 * len)), len))
}

/// Reads method and path from the fields of a request that uses no dynamic table.
pub fn method_and_path(fields: &[u8]) -> Result<(bool, String)> {
    let mut reader = Reader { bytes: fields, at: 2 };
    let (mut is_post, mut path) = (false, String::new());
    while let Some(first) = reader.bytes.get(reader.at).copied() {
        match first {
            0xc0.. => is_post |= reader.prefixed(6)? == 20,
            0x50..0x60 | 0x70..0x80 => {
                let name = reader.prefixed(4)?;
                let value = reader.text(7)?;
                if name == 1 {
                    path = value;
                }
            }
            0x20..0x40 => {
                reader.text(3)?;
                reader.text(7)?;
            }
            _ => return Err("a field with the dynamic table".into()),
        }
    }
    Ok((is_post, path))
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied().ok_or("a field that ends too early")?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads an integer with a prefix of some bits (RFC 7541, section 5.1).
    fn prefixed(&mut self, bits: u8) -> Result<usize> {
        let most = (1 << bits) - 1;
        let mut value = usize::from(self.byte()?) & most;
        if value < most {
            return Ok(value);
        }
        for shift in (0..28).step_by(7) {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number that is too large".into())
    }

    /// Reads a string whose length has a prefix of some bits, with the Huffman bit before them.
    fn text(&mut self, bits: u8) -> Result<String> {
        let is_coded = self.bytes.get(self.at).is_some_and(|byte| byte >> bits & 1 == 1);
        let len = self.prefixed(bits)?;
        let coded = self.bytes.get(self.at..self.at + len).ok_or("a field that ends too early")?;
        self.at += len;
        if !is_coded {
            return Ok(String::from_utf8_lossy(coded).into());
        }
        let mut plain = Vec::new();
        httlib_huffman::decode(coded, &mut plain, DecoderSpeed::FourBits)
            .map_err(|_| "a wrong Huffman code")?;
        Ok(String::from_utf8_lossy(&plain).into())
    }
}
